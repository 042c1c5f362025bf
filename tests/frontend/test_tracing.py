"""The graph of a program before any run: what it asks, in regions where that is undecided; nothing of it runs."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from textwrap import dedent
from typing import Any

import pytest

import lmc
from examples import (
    async_tools,
    chat,
    classify,
    durable_research,
    extraction,
    judge,
    react,
    self_consistency,
    tree_of_thought,
)
from lmc.frontend.tracing import graph_of, traced
from lmc.ir import Graph, parse, print_graph, verify
from lmc.passes.base import Target
from lmc.passes.manager import run_pipeline


def body(graph: Graph) -> str:
    """The blocks of a graph without places in the source."""
    lines = re.sub(r' loc\("[^"]*":[0-9:]+\)', "", print_graph(graph)).splitlines()[2:-1]
    return "\n".join(line.strip() for line in lines)


def shows(function: Any, expected: str, **examples: Any) -> None:
    graph = run_pipeline(graph_of(function, **examples), passes=(), kind="tokens")
    verify(graph)
    assert parse(print_graph(graph)) == graph
    assert body(graph) == "\n".join(line.strip() for line in dedent(expected).strip().splitlines())


@lmc.function
def arms(s: Any, q: str) -> Any:
    s += "Q: " + q + lmc.gen("a")
    if s["a"] == "x":
        s += "one" + lmc.gen("b")
        label = "first"
    else:
        label = s["a"].strip() or "none"
    s += label + lmc.gen("c", max_tokens=3)
    return s["c"]


def test_arms_go_on_together_with_what_they_bind() -> None:
    """One asks and the other does not, so the address behind them is undecided."""
    shows(arms, """
        %c0 = ctx.new()
        %x0 = concat("Q: ", %q)
        %c1 = append(%c0, %x0)
        %c2, %a, %m = gen(%c1) {name = "a", stream = "", ordinal = 0}
        %p0: bool = py.eq(%a, "x")
        switch(%p0) [true -> ^b0, _ -> ^b1] then ^b2
        ^b0:
        %c3 = append(%c2, "one")
        %c4, %b, %m.1 = gen(%c3) {name = "b", stream = "", ordinal = 1}
        yield("first", %c4, %b)
        ^b1:
        %x1: str = py.strip(%a)
        %v0 = py.choice(%x1, %x1, "none")
        yield(%v0, %c2, none)
        ^b2(%v1: any, %c5: ctx, %v2: any):
        %c6 = append(%c5, %v1)
        %c7, %c, %m.2 = gen(%c6) {name = "c", stream = "", ordinal = 2, shifted = true, max_tokens = 3}
        return(%c, %c7, %a, %v2, %c) {vars = ["a", "b", "c"]}
    """)  # fmt: skip


@lmc.function
def leaving(s: Any) -> Any:
    s += lmc.select("ok", choices=["yes", "no"])
    if s["ok"] == "no":
        return "no"
    if s["ok"] != "yes":
        raise ValueError("neither: " + s["ok"])
    s += lmc.gen("x")
    return s["x"]


def test_an_arm_that_leaves_is_beside_the_way_that_goes_on() -> None:
    shows(leaving, """
        %c0 = ctx.new()
        %c1, %ok, %m = select(%c0, "yes", "no") {name = "ok", stream = "", ordinal = 0, method = "token_length_normalized", temperature = 0.0}
        %p0: bool = py.eq(%ok, "no")
        switch(%p0) [true -> ^b0, _ -> ^b1]
        ^b0:
        return("no", %c1, %ok) {vars = ["ok"]}
        ^b1:
        %p1: bool = py.ne(%ok, "yes")
        switch(%p1) [true -> ^b2, _ -> ^b3]
        ^b2:
        %x0 = concat("neither: ", %ok)
        raise(%x0)
        ^b3:
        %c2, %x, %m.1 = gen(%c1) {name = "x", stream = "", ordinal = 1}
        return(%x, %c2, %ok, %x) {vars = ["ok", "x"]}
    """)  # fmt: skip


@lmc.function
def child(s: Any, tip: str) -> Any:
    s += tip + lmc.gen("t")
    return s["t"]


@lmc.function
def looping(s: Any, docs: Any) -> Any:
    for d in docs:
        if not d:
            continue
        s += d
        if "stop" in d:
            break
    found = [child(tip=d).ret_value for d in docs]
    while "ok" not in s.text():
        s += "Again: " + lmc.gen("x")
    return found


def test_a_loop_over_unknown_items_is_one_region() -> None:
    shows(looping, """
        %c0 = ctx.new()
        loop(%docs, %c0) [_ -> ^body] then ^after
        ^body(%c1: ctx):
        %v0 = unknown(%docs) {reason = "an item"}
        %p0: bool = py.not(%v0)
        switch(%p0) [true -> ^b0, _ -> ^b1] then ^b2
        ^b0:
        continue(%c1)
        ^b1:
        yield()
        ^b2:
        %c2 = append(%c1, %v0)
        %p1: bool = py.in("stop", %v0)
        switch(%p1) [true -> ^b3, _ -> ^b4] then ^b5
        ^b3:
        break(%c2)
        ^b4:
        yield()
        ^b5:
        yield(%c2)
        ^after(%c3: ctx):
        loop(%docs, none) [_ -> ^body.1] then ^after.1
        ^body.1(%v1: any):
        %v2 = unknown(%docs) {reason = "an item"}
        %c4 = ctx.new()
        %c5 = append(%c4, %v2)
        %c6, %t, %m = gen(%c5) {name = "t", stream = "/c0", ordinal = 0}
        yield(%t)
        ^after.1(%v3: any):
        %x0 = ctx.text(%c3)
        %p2: bool = py.in("ok", %x0)
        loop(none, %c3) [_ -> ^body.2] then ^after.2
        ^body.2(%c7: ctx):
        %x1 = ctx.text(%c7)
        %p3: bool = py.in("ok", %x1)
        %c8 = append(%c7, "Again: ")
        %c9, %x, %m.1 = gen(%c8) {name = "x", stream = "", ordinal = 0}
        yield(%c9)
        ^after.2(%c10: ctx):
        %v4 = unknown() {reason = "only Python knows"}
        return(%v3, %c10, %v4) {vars = ["x"]}
    """)  # fmt: skip


@lmc.function
def endless(s: Any) -> int:
    n = 0
    while True:
        s += lmc.gen("x", max_tokens=3)
        n += 1
        if "a" in s["x"] or n >= 6:
            break
    return n


def test_of_a_loop_without_a_known_end_a_few_turns_are_shown() -> None:
    graph, outcome = traced(endless, {})
    assert outcome.stopped_at is None
    assert [op.attr("ordinal") for op in graph.ops() if op.kind == "gen"] == [0, 1, 2, 3]


@lmc.function
def only_errors_end(s: Any, tool: Any) -> None:
    while True:
        try:
            tool()
        except ValueError as error:
            s += str(error)
        s += lmc.gen("x", max_tokens=3)


@lmc.function
def an_error_ends(s: Any, tool: Any) -> None:
    while True:
        s += lmc.gen("x", max_tokens=3)
        try:
            tool()
        except ValueError:
            break
    s += lmc.gen("y", max_tokens=3)


@lmc.function
def never_ends(s: Any) -> None:
    while True:
        s += lmc.gen("x", max_tokens=3)


@lmc.function
def ends_as_nothing_decides(s: Any, tool: Any, debug: bool = False) -> None:
    while True:
        tool()
        if debug:
            break


@lmc.function
def ends_by_a_number(s: Any, tool: Any) -> str:
    turns = 0
    while True:
        tool()
        turns += 1
        if turns == 9:
            break
    s += f"{turns}" + lmc.gen("x")
    return s["x"]


@pytest.mark.parametrize(
    ("program", "gens", "calls"),
    ((only_errors_end, 4, 4), (an_error_ends, 5, 4), (never_ends, 64, 0), (ends_as_nothing_decides, 0, 64), (ends_by_a_number, 1, 9)),
)
def test_of_a_loop_that_nothing_known_ends_some_turns_are_shown(program: Any, gens: int, calls: int) -> None:
    graph, outcome = traced(program, {})
    assert outcome.steps < 20_000
    assert sum(op.kind == "gen" for op in graph.ops()) == gens
    assert sum(op.attr("reason") == "unknown code" for op in graph.ops()) == calls


@lmc.function
def computes_with_what_is_unknown(s: Any, log: Any) -> Any:
    for i in range(20_000):
        log = (log[i % 3][1] + log[1])[::-1]
    s += lmc.gen("x")
    return log


def test_a_graph_has_no_more_ops_than_passes_can_look_at_before_a_run() -> None:
    graph, outcome = traced(computes_with_what_is_unknown, {})
    assert "steps" in outcome.reason and sum(1 for _ in graph.ops()) < 8000


def clean(text: str) -> str:
    if text.startswith("-"):
        return text[1:]
    return text


@lmc.function
def helped(s: Any, n: int, tool: Any) -> Any:
    forks = s.fork(n)
    for f in forks:
        f += lmc.gen("x")
        tool(clean(f["x"]))
    try:
        v = int(forks[0]["x"])
    except ValueError:
        s += "not a number" + lmc.gen("y")
        v = 0
    s += f"{v}"
    return s


@lmc.function
def states_of_children(s: Any, q: str) -> Any:
    children = [child(tip=word) for word in q.split()]
    by_word = {f"{word}!": s for word in q.split()}
    s += "".join(c["t"] for c in children) + lmc.gen("end")
    return by_word[s["end"]]


@lmc.function
def bound_in_the_last_turn(s: Any, xs: Any) -> Any:
    last = ""
    for x in xs:
        if last + x:
            last = x.upper()
        break
    s += lmc.gen("end")


def test_what_turns_carry_is_yielded_though_only_the_loop_uses_it() -> None:
    shows(bound_in_the_last_turn, """
        %c0 = ctx.new()
        loop(%xs, "") [_ -> ^body] then ^after
        ^body(%v0: any):
        %v1 = unknown(%xs) {reason = "an item"}
        %v2 = py.add(%v0, %v1)
        switch(%v2) [true -> ^b0, _ -> ^b1] then ^b2
        ^b0:
        %x0: str = py.upper(%v1)
        yield(%x0)
        ^b1:
        yield(%v0)
        ^b2(%v3: any):
        break(%v3)
        ^after(%v4: any):
        %c1, %end, %m = gen(%c0) {name = "end", stream = "", ordinal = 0}
        return(none, %c1, %end) {vars = ["end"]}
    """)  # fmt: skip


@lmc.function
def scoped_then_asked(s: Any, xs: Any) -> Any:
    with s.var_scope("k"):
        s += "first"
    for x in xs:
        s += x + lmc.gen("k")
    return s["k"]


def test_turns_yield_as_many_operands_for_a_name_as_its_first_value_has() -> None:
    graph = graph_of(scoped_then_asked)
    verify(graph)
    assert [op.attrs["name"] for op in graph.ops() if op.kind == "gen"] == ["k"]


def test_states_that_a_comprehension_collects_are_values() -> None:
    graph = graph_of(states_of_children)
    verify(graph)
    assert [op.attrs["name"] for op in graph.ops() if op.kind == "gen"] == ["t", "end"]


def _zips(s: Any, qs: Any) -> Any:
    forks = s.fork(len(qs))
    for q, f in zip(qs, forks):
        f += q + lmc.gen("a", max_tokens=4)
    return [f["a"] for f in forks]


def _zips_by_a_helper(s: Any, qs: Any) -> Any:
    def ask(f: Any, q: Any) -> None:
        f += q + lmc.gen("a", max_tokens=4)

    forks = s.fork(len(qs))
    for f, q in zip(forks, qs, strict=True):
        ask(f, q)
    return [f["a"] for f in forks]


def _calls_each(s: Any, qs: Any) -> Any:
    def ask(f: Any, q: Any) -> Any:
        f += q + lmc.gen("a", max_tokens=4)
        return f["a"]

    return s.fork(len(qs)).each(ask, qs)


@pytest.mark.parametrize("function", [_zips, _zips_by_a_helper, _calls_each], ids=lambda f: f.__name__)
def test_forks_of_unknown_number_beside_what_they_are_about_are_one_branch(function: Any) -> None:
    shows(lmc.function(function), """
        %c0 = ctx.new()
        %v0 = py.len(%qs)
        %v1 = py.item(%qs, 0)
        %c1 = append(%c0, %v1)
        %c2, %a, %m = gen(%c1) {name = "a", stream = "/0.0", ordinal = 0, max_tokens = 4}
        %v2 = py.list(%a)
        return(%v2, %c0) {vars = []}
    """)


def _numbers_forks(s: Any, n: Any) -> Any:
    forks = s.fork(n)
    for i in range(n):
        forks[i] += "x" + lmc.gen("a", max_tokens=4)
    return forks[1]["a"]


def test_any_of_forks_of_unknown_number_is_the_one_that_is_shown() -> None:
    text = lmc.compile(lmc.function(_numbers_forks)).dump_ir()
    assert text.count(" = gen(") == 1 and "raise(" not in text


def test_helpers_that_ask_nothing_and_unknown_code_are_values_and_a_fork_of_unknown_size_is_one_branch() -> None:
    shows(helped, """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0) {name = "x", stream = "/0.0", ordinal = 0}
        %v0 = unknown(%x) {calls = "clean", reason = "decided by what is not known"}
        %v1 = unknown(%v0) {calls = "a value", reason = "unknown code"}
        %v2 = py.int(%x)
        %v3 = unknown() {reason = "something raised"}
        switch(%v3) [true -> ^b0, _ -> ^b1] then ^b2
        ^b0:
        %c2 = append(%c0, "not a number")
        %c3, %y, %m.1 = gen(%c2) {name = "y", stream = "", ordinal = 0}
        yield(0, %c3, %y)
        ^b1:
        yield(%v2, %c0, none)
        ^b2(%v4: any, %c4: ctx, %v5: any):
        %x0: str = py.format(%v4, "")
        %c5 = append(%c4, %x0)
        return(%c5, %c5, %v5) {vars = ["y"]}
    """)  # fmt: skip


@lmc.function
def lent(s: Any, tool: Any) -> None:
    f = s.fork(1)[0]
    f += "unread" + lmc.gen("x")
    tool(f)
    f += "more" + lmc.gen("y")


def test_a_state_that_unknown_code_had_is_lost_and_its_asks_may_be_read() -> None:
    graph = graph_of(lent)
    assert 'unknown(%c2) {reason = "unknown code may have extended the prompt"}' in body(graph)
    planned = run_pipeline(graph)
    assert [op.attr("lazy", False) for op in planned.ops() if op.kind == "gen"] == [False, True]


class Agent: ...


class Writer(Agent): ...


class Thought:
    def __init__(self, s: Any) -> None:
        self.s = s

    def __await__(self) -> Any:
        self.s += lmc.gen("thought")
        yield from ()


@lmc.function
async def of_everything(s: Any, names: list[str]) -> Any:
    heads = dict(zip(names, s.fork(len(names)), strict=True))
    for name in names:
        heads[name] += name + lmc.gen("say")
    agents = [agent.__name__ for agent in Agent.__subclasses__()]
    s += agents[0] + lmc.gen("last")
    await Thought(s)
    return [heads[name]["say"] for name in names]


def test_what_a_graph_cannot_show_ends_it_with_no_exception_and_is_noted() -> None:
    """An unknown state that is extended, what a class has of its metaclass, an object's own `__await__`."""
    graph = graph_of(of_everything)
    assert [op.attr("name") for op in graph.ops() if op.kind == "gen"] == ["last"] and not any(op.kind == "raise" for op in graph.ops())
    assert 'reason = "unknown state is extended"' in body(graph)


@lmc.function
def of_unknown_number(s: Any, n: int, *questions: str) -> Any:
    kept = [q for q in questions if (last := q)]
    left, right = s.fork(n)
    left += "l" + lmc.gen("left")
    right += "r" + lmc.gen("right")
    _, *others = s.fork(n)
    for f in others:
        f += "o" + lmc.gen("other")
    del n
    try:
        print(n)  # noqa: F821
    except UnboundLocalError:
        note = "none"
    first, *_ = questions
    for question in questions:
        s += question + lmc.gen("each")
    s += f"{first}{last}{kept}{note}{left['left']}{right['right']}" + lmc.gen("end")


def test_unknown_arguments_forks_and_deleted_names_end_a_graph_with_no_exception() -> None:
    graph = graph_of(of_unknown_number)
    assert [op.attr("name") for op in graph.ops() if op.kind == "gen"] == ["left", "right", "other", "each", "end"]
    assert not any(op.kind == "raise" for op in graph.ops()) and sum(op.kind == "loop" for op in graph.ops()) == 2
    left, right = [op for op in graph.ops() if op.kind == "gen"][:2]
    assert right.operands[0] is not left.results[0]


@dataclass
class Report:
    texts: Any


def _asks_of_40(s: Any) -> Any:
    forks = s.fork(40)
    for f in forks:
        f += lmc.gen("x")
    return forks


@lmc.function
def returns_many(s: Any) -> Any:
    return [f["x"] for f in _asks_of_40(s)]


@lmc.function
def returns_an_object(s: Any) -> Any:
    return Report({f["x"]: f for f in _asks_of_40(s)[:5]})


@lmc.function
def joins_many(s: Any) -> None:
    s += "".join(f["x"] for f in _asks_of_40(s))


@lmc.function
def reads_and_loses(s: Any) -> Any:
    notes = [f["x"] for f in s.fork(0)]
    for f in _asks_of_40(s):
        notes.append(f["x"])
    for part in json.loads(notes[0]):
        notes.append(part)
    return notes


@lmc.function
def returns_forks(s: Any) -> Any:
    return Report([_asks_of_40(s)])


@pytest.mark.parametrize(("program", "lazy"), [(returns_many, 0), (returns_an_object, 35), (joins_many, 0), (reads_and_loses, 0), (returns_forks, 0)])
def test_what_is_read_has_a_reader_whatever_becomes_of_it(program: Any, lazy: int) -> None:
    """In a long list, in an object, in what native code or a loop over unknown items loses; states that are returned in an object, too."""
    planned = run_pipeline(graph_of(program))
    assert [op.attr("lazy", False) for op in planned.ops() if op.kind == "gen"].count(True) == lazy


@pytest.mark.parametrize(
    ("function", "examples", "asks"),
    [
        (judge.judge, {}, ["select", "gen", "gen", "gen", "gen"]),
        (chat.chat, {}, ["gen"]),
        (chat.chat, {"questions": ["a", "b"]}, ["gen", "gen"]),
        (classify.classify, {}, ["select"]),
        (extraction.extract, {}, ["gen"]),
        (react.react, {}, ["select", "gen"] * 4),
        (react.react, {"max_steps": 2}, ["select", "gen"] * 2),
        (self_consistency.vote, {}, ["gen"] * 10),
        (tree_of_thought.solve, {}, None),
        (async_tools.guide, {}, ["gen", "gen"]),
        (durable_research.research, {}, ["gen"] * 7),
    ],
)
def test_examples_show_what_they_ask_before_any_run(function: Any, examples: dict[str, Any], asks: list[str] | None) -> None:
    graph, outcome = traced(function, examples)
    assert outcome.stopped_at is None
    found = [op.kind for op in graph.ops() if op.kind in ("gen", "select")]
    assert found == asks if asks is not None else (found.count("gen"), found.count("select")) == (6, 4)
    assert parse(print_graph(graph)) == graph
    for kind in ("tokens", "chat"):
        verify(run_pipeline(graph, kind=kind), "planned")


def test_the_plan_of_an_example_has_its_groups_and_prefixes() -> None:
    text = body(run_pipeline(graph_of(judge.judge)))
    assert text.count("group = [0, 3]") == 3 and text.count("prefill(") == 2 and "@fsm0" in text
    assert Target().kind == "tokens"


@lmc.function
def formatted(s: Any, flag: Any) -> None:
    n = 0
    if flag:
        n = 1
    s += f"{n} {flag!s} {'a'}" + lmc.gen("x")


def test_what_arms_bind_is_unknown_though_each_knows_it() -> None:
    assert graph_of(formatted).feeds and "py.format" in body(graph_of(formatted))


def test_tracing_runs_nothing_of_the_program() -> None:
    calls: list[str] = []

    @lmc.host
    def act(x: str) -> str:
        calls.append(x)
        return x

    @lmc.function
    def acting(s: Any, q: str) -> None:
        calls.append("in the program")
        s += act(q) + lmc.gen("x")

    assert [op.kind for op in graph_of(acting, q="x").ops() if op.kind == "gen"] == ["gen"]
    assert calls == []


@lmc.function
def answers_calls(s: Any) -> Any:
    s += lmc.gen("a", tools=[len])
    for call in s.get_meta_info("a")["tool_calls"]:
        s += lmc.tool_result(call, "done")
    s += lmc.gen("b")
    return s["b"]


def test_a_result_of_a_call_that_is_not_known_is_text_that_is_not_known() -> None:
    """It was drawn as an exception that every turn of the loop raises."""
    text = body(graph_of(answers_calls))
    assert "raise(" not in text and "py.tool_result(" in text and 'name = "b"' in text


def test_a_state_of_one_arm_alone_is_not_known_after_it() -> None:
    @lmc.function
    def program(s: Any, q: Any) -> Any:
        f = s.copy() if q else s.fork(1)[0]
        f += "a" + lmc.gen("a")
        return s["a"]

    verify(graph_of(program))


class Batches:
    def __init__(self, items, size):
        self.items, self.size, self.at = items, size, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.items):
            raise StopIteration
        self.at += self.size
        return self.items[self.at - self.size : self.at]


class Pages:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, i):
        if i >= len(self.items):
            raise IndexError(i)
        return self.items[i]


@lmc.function
def iterates(s, items, kind):
    found = [f"{kind} {len(x)}" for x in (Batches(items, 2) if kind == "next" else Pages(items))]
    s += f"{found}" + lmc.gen("x", max_tokens=2)
    return found


@pytest.mark.parametrize("kind", ["next", "item"])
def test_an_iterator_of_the_programs_own_ends_where_python_decides_it(kind):
    """The first call of such a program never returned."""
    text = print_graph(graph_of(iterates, kind=kind))
    assert text.count("gen(") == 1
    program = lmc.compile(iterates)
    assert program(["a", "b", "c"], kind, backend=lmc.Mock()).ret_value == iterates.run(["a", "b", "c"], kind, backend=lmc.Mock()).ret_value


@lmc.function
def asks_again(s):
    s += "Number:" + lmc.gen("n", max_tokens=2)
    try:
        return int(s["n"])
    except ValueError as error:
        s += f"{error}, again:" + lmc.gen("m", max_tokens=2)
        return s["m"]


def test_a_handler_that_shows_its_exception_is_followed():
    """Its name was not bound, and the graph had an exception there in place of the request."""
    text = print_graph(graph_of(asks_again))
    assert text.count("gen(") == 2 and "raise(" not in text


@lmc.function
def raises_again(s):
    s += "Number:" + lmc.gen("n", max_tokens=2)
    try:
        return int(s["n"])
    except ValueError:
        raise


def test_a_handler_that_raises_its_exception_again_raises_that():
    """It was drawn as an error of a `raise` outside of any handler."""
    text = print_graph(graph_of(raises_again))
    assert "raise" in text and "No active exception" not in text


def test_a_graph_that_grows_with_each_call_is_cut_off():
    def deeper(k, s):
        s += "q" + lmc.gen("x", max_tokens=2)
        return deeper(k + 1, s) + deeper(k, s) if s["x"] else ""

    assert len(list(graph_of(lmc.function(lambda s, k: deeper(k, s))).ops())) < 15_000


PICTURE = bytes(range(256)) * 100


@lmc.function
def sees_one_picture(s: Any) -> Any:
    for f in s.fork(2):
        f += "See: " + lmc.image(PICTURE) + lmc.image(b"short") + lmc.gen("a")
    return len(s["a"])


def test_long_bytes_are_named_by_their_digest_and_equal_ones_are_one_value() -> None:
    digest = blake2b(PICTURE, digest_size=8).hexdigest()
    graph = run_pipeline(graph_of(sees_one_picture), after="cse")
    lines = body(graph).splitlines()
    assert [line for line in lines if "bytes" in line] == [
        f'%v0 = py.bytes(bytes("0001020304050607"), 25600, "{digest}")',
        '%c3 = image(%c2, bytes("73686f7274"))',
    ]
    assert parse(print_graph(graph)) == graph


def marked(names: list[str], chosen: str) -> list[str]:
    return ["*" if name == chosen else name for name in names]


@lmc.function
def marks_the_chosen(s: Any, names: Any = ("tea", "rain")) -> None:
    s += "Which? " + lmc.gen("chosen")
    s += " ".join(marked(names, s["chosen"])) + lmc.gen("why")


def test_a_helper_whose_comprehension_has_an_undecided_condition_is_one_value() -> None:
    """The graph ended there."""
    lines = body(graph_of(marks_the_chosen)).splitlines()
    assert lines[3] == '%v0 = unknown(%chosen) {calls = "marked", reason = "decided by what is not known"}' and 'name = "why"' in lines[6]


@lmc.function
def names_unknown(s: Any, q: str) -> None:
    s += "x" + lmc.gen("a") + lmc.gen(q) + lmc.select(q, ["y", "z"]) + "and" + lmc.gen("b")
    s += s["a"] + s["b"] + lmc.gen("c")


def test_a_request_whose_name_is_unknown_is_one_and_any_variable_before_it_may_be_its_answer() -> None:
    shows(names_unknown, """
        %c0 = ctx.new()
        %c1 = append(%c0, "x")
        %c2, %a, %m = gen(%c1) {name = "a", stream = "", ordinal = 0}
        %c3, %x0, %m.1 = gen(%c2, %q) {stream = "", ordinal = 1, params = ["name"]}
        %c4, %x1, %m.2 = select(%c3, "y", "z", %q) {stream = "", ordinal = 2, method = "token_length_normalized", temperature = 0.0, params = ["name"]}
        %c5 = append(%c4, "and")
        %c6, %b, %m.3 = gen(%c5) {name = "b", stream = "", ordinal = 3}
        %v0 = py.item(%c6, "a")
        %x2 = concat(%v0, %b)
        %c7 = append(%c6, %x2)
        %c8, %c, %m.4 = gen(%c7) {name = "c", stream = "", ordinal = 4}
        return(none, %c8, %a, %b, %c) {vars = ["a", "b", "c"]}
    """)  # fmt: skip


@lmc.function
def skipped_statements(s: Any, q: str) -> None:
    try:
        x = q.index("a")
    except* ValueError:
        y = x = -1
    match q.split():
        case [first, *_]:
            z = first

    class Shown:
        def text(self, x: Any) -> Any:
            return (lambda y: y)(x)

    s += f"{x}{y}{z}" + lmc.gen("a")


def test_what_a_skipped_statement_binds_is_unknown() -> None:
    lines = body(graph_of(skipped_statements)).splitlines()
    assert 'name = "a"' in lines[-2] and lines[-1].startswith("return")


@lmc.function
def in_a_folder(s: Any) -> None:
    with tempfile.TemporaryDirectory() as at:
        s += at + lmc.gen("a")


def test_entering_an_object_of_a_library_is_unknown_code() -> None:
    lines = body(graph_of(in_a_folder)).splitlines()
    assert 'calls = "TemporaryDirectory"' in lines[-4] and 'name = "a"' in lines[-2]
