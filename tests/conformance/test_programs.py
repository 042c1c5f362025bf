"""Programs of the kind that people write with the language: each means the same in every execution."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import json
import statistics
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

import lmc
from lmc import gen, user
from tests.searching import some

from .harness import Case, case, cases, conform, effect, scripted
from .outside import shout, tool
from .programs import BEGIN, compiled

EXAMPLES = [("2+2", "4"), ("3*3", "9")]


@case()
def few_shot(s: Any, q: str) -> str:
    s += "Solve.\n"
    for question, answer in EXAMPLES:
        s += f"Q: {question}\nA: {answer}\n"
    s += f"Q: {q}\nA:" + lmc.gen("answer", max_tokens=8, stop="\n")
    return s["answer"].strip()


@case([{"q": "text"}, {"q": "more"}], backend=scripted(related=["yes", "no"]))
def essay_judge(s: Any, q: str) -> str:
    s += lmc.system("You grade essays.") + lmc.user("Essay: " + q)
    s += lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return "off topic"
    forks = s.fork(3)
    for f, dim in zip(forks, ["clarity", "originality", "evidence"]):
        f += lmc.user(f"Judge its {dim}.") + lmc.assistant(lmc.gen("judgment", max_tokens=12, stop="END"))
    s += lmc.user("Summary:\n" + "\n".join(f["judgment"].strip() for f in forks))
    s += lmc.assistant(lmc.gen("out", regex=r'\{"grade": "[ABCD][+-]?"\}'))
    return json.loads(s["out"])["grade"]


@case()
def tree_of_thought(s: Any, q: str) -> str:
    s += q
    level = [s]
    for depth in range(2):
        following = []
        for state in level:
            for i, f in enumerate(state.fork(2)):
                f += f"[{depth}.{i}]" + lmc.gen("thought", max_tokens=5)
                f += lmc.gen("score", max_tokens=4)
                following.append(f)
        following.sort(key=lambda f: f["score"], reverse=True)
        level = following[:2]
    return level[0]["thought"] + level[0].text()


@case()
def chat_until(s: Any, q: str) -> Any:
    with s.system():
        s += "You are " + q
    turns = 0
    while True:
        with s.user():
            s += f"turn {turns}"
        with s.assistant():
            s += lmc.gen("a", max_tokens=5)
            turns += 1
        if turns > 3 or "e" in s["a"]:
            break
    return turns, s.messages()


@case()  # so many decisions that they use up a tree's credit (growth.py)
def builtins_on_values(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: f"{i}{q}" + lmc.gen("v", max_tokens=5)
    vs = [f["v"] for f in forks]
    lengths = list(map(len, vs))
    s += "|".join(sorted(vs)) + min(vs) + max(vs, key=len)
    s += "".join(reversed(vs[0])) + str(sum(lengths)) + str(any("a" in v for v in vs)) + str(all(vs))
    longest = [v for v, n in zip(vs, lengths) if n == max(lengths)]
    return longest, list(filter(lambda v: "e" in v, vs)), sorted(vs, key=lambda v: (len(v), v)), [*enumerate(vs, 1)]


@case(temperature=0.5)
def copies_and_scopes(s: Any, q: str) -> Any:
    s += q
    with s.copy() as c:
        c += "copy" + lmc.gen("c", max_tokens=4)
    with s.var_scope("all"):
        s += "in" + lmc.gen("x", max_tokens=4) + "out"
    s += s["all"] + str(s["c"])
    s.set_var("k", s["x"] + "k")
    s["j"] = [s["x"]]
    return s["k"], s["j"], s.get_var("x"), s.get_meta_info("x")["finish_reason"]["type"], "k" in s, "z" in s


@case()
def joins(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join()
    s += s["v"][0] + "/" + s["v"][-1] + lmc.gen("w", max_tokens=3)
    return s["v"], [m["finish_reason"] for m in s.get_meta_info("v")]


@case()
def join_concatenated(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join("concate_and_append")
    s += lmc.gen("w", max_tokens=3)
    return s["w"]


@case(temperature=0.9)
def several_samples(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4, n=3)
    votes = Counter(s["x"])
    s += " ".join(s["x"]) + str(len(s["x"]))
    for i, x in enumerate(s["x"]):
        s += f"{i}{x}"
    return s["x"][0], len(votes), [m["finish_reason"]["type"] for m in s.get_meta_info("x")]


# -- answers as values: lists, keys, identity


ITEMS = [{"q": q} for q in ("a", "bee gee", "c", "d")]  # answers that sort in several orders


@case()
def lists_that_reading_makes(s, q):
    s += user(q) + gen("x", max_tokens=2, n=2, temperature=0.9)
    a, b = s.fork(2)
    a["x"].append("a")
    b["x"].append("b")
    s["x"].reverse()
    metas, messages = s.get_meta_info("x"), s.messages()
    metas.append({})
    messages.append("more")
    messages[0]["role"] = "other"
    s += f"{len(s.get_meta_info('x'))} {s.messages()} {s['x'] is s.get_var('x')}"
    return a["x"], b["x"], s["x"], metas, messages


@case(ITEMS)
def dataclasses_of_the_program(s, q):
    @dataclass(order=True)
    class Draft:
        score: int
        text: str = ""
        state: Any = dataclasses.field(default=None, compare=False, repr=False)

        def ask(self):
            self.state += gen("y", max_tokens=1)
            return self.state["y"]

    @dataclass
    class Long(Draft):
        rows: list = dataclasses.field(default_factory=list)

    @dataclass(eq=False)
    class Plain:
        x: int

    s += q
    drafts = []
    for i, f in enumerate(s.fork(3)):
        f += f"{i}" + gen("x", max_tokens=3)
        drafts.append(Draft(len(f["x"]) % 3, f["x"], f))
    best, long = max(drafts), Long(drafts[0].score, "long", s, [q])
    effect("best", best.ask(), repr(best), f"{long} {drafts[0]!r} {long!s}", repr(Plain(3)))
    falling = sorted(drafts, reverse=True)
    drafts.sort()
    try:
        long < 3  # noqa: B015
    except TypeError as error:
        s += str(error)
    same = Draft(best.score, best.text)
    return (
        [d.score for d in falling], drafts[0] <= drafts[1], best == same, best != same, same in drafts, Draft(9) in drafts, Draft(9) not in drafts,
        long == Long(long.score, "long", None, [q]), long == best, Plain(1) == Plain(1), drafts[-1] > drafts[0],
    )  # fmt: skip


PARTS = [{"q": "a", "x": "z"}, {"q": "b", "x": 2}, {"q": "c", "x": None}]


@case(PARTS)
def part_of_an_expression_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    s += q + gen("x", max_tokens=3) + v
    return s["x"]


@case(PARTS)  # which is a message without text
def message_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    ask = lmc.user(v) + lmc.assistant(gen("x", max_tokens=3))
    effect("between", q)
    s += ask
    s.user(expr=v)
    return s["x"]



@case()
def statistics_of_forks(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: q + str(i) + lmc.gen("x", regex="[0-9]")
    most = statistics.multimode(f["x"] for f in forks)
    most.append("k")
    return statistics.mean(int(f["x"]) for f in forks), statistics.median([int(f["x"]) for f in forks]), most


def fill(x: str, out: list[Any]) -> int:
    out.append(x)
    return len(out)


@case()  # while it is found out which lists are objects of the run
def lists_made_by_operators(s: Any, q: str) -> Any:
    counts, seen, both = [0] * 3, [q] + ["k"], [[]] * 2
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[0-2]")
        counts[int(f["x"])] += 1
    n = fill(s["y"] if "y" in s else q, seen)
    both[0].append(n)
    seen = seen + [str(c) for c in counts]
    return counts, seen, both, both[0] is both[1], counts is not [0] * 3


@case()
def groups_by_an_answer(s: Any, q: str) -> Any:
    groups: dict[str, list[str]] = {"0": [], "1": []}
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[01]") + lmc.gen("y", max_tokens=2)
        groups[f["x"]].append(f["y"])
    s += "; ".join(f"{k}: {', '.join(v)}" for k, v in groups.items())
    return groups


@case()
def cells_by_answers(s: Any, q: str) -> Any:
    rows, kept = [[0] * 3 for _ in range(2)], {"0": {"n": 0}, "1": {"n": 1}}
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[0-2]") + lmc.gen("y", regex="[01]")
        rows[int(f["y"])][int(f["x"])] += 1
        kept[f["y"]]["n"] += int(f["x"])
    pair = ([q], ["k"])
    pair[int(f["y"])].append(f["x"])
    return rows, kept, pair, [r for r in rows if sum(r) > 1]



@case(backend=scripted(labels=['["x"]', '["y"]'] * 9, one=["p", "q"] * 9))
def types_written_inside(s: Any, q: str) -> Any:
    options = ["p", "q"]
    s += q + lmc.gen("labels", dtype=list[Literal["x", "y"]])
    s += lmc.gen("one", dtype=Literal["p", "q"]) + lmc.gen("two", choices=options)
    return json.loads(s["labels"]), s["one"]



def noted(text: str) -> str:
    effect("noted", text)
    return text


MODELS = scripted(x=lambda text, ask: ('{"label": "a", "score": 3}', '{"label": "b"}', '{"label": 1}', '{"label": "c", "score": 30}')[len(text) % 4])


@case([{"q": q} for q in ("a", "bee gee", "c", "dd")], backend=MODELS)
def models(s, q):
    class Verdict(BaseModel):
        """A judge's verdict."""

        label: str
        score: int = Field(default=1, le=10)
        tags: list[str] = Field(default_factory=list)

        def is_good(self):
            return self.score > 2

    s += q + gen("x", json_schema=Verdict)
    try:
        verdict = Verdict.model_validate_json(s["x"])
    except ValidationError as error:
        s += str(error.error_count())
        return None
    verdict.tags.append(noted(q))
    if verdict.is_good():
        s += gen("y", max_tokens=2)
    return verdict.model_dump(), isinstance(verdict, Verdict), verdict == Verdict(**verdict.model_dump()), type(verdict).__name__



# -- states as values: shown, ordered, returned


@case()
def states_that_are_printed(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += q + str(i) + lmc.gen("a", max_tokens=3)
    effect("forks", [f"{f!r:.20}" for f in forks], str(s)[:10])
    return s


@case()
def ranks_states(s: Any, q: str) -> Any:
    forks = s.fork(4)
    forks += lambda i: f"{i}" + lmc.gen("v", regex="[0-9][0-9]")
    ranked = sorted(zip([f["v"] for f in forks], range(4), forks), reverse=True)
    score, _, worst = min((f["v"], i, f) for i, f in enumerate(forks))
    heap = [(f["v"], i, f) for i, f in enumerate(forks)]
    heapq.heapify(heap)
    s += ranked[0][2]["v"] + worst["v"]
    return score, [i for _, i, _ in heap], [f["v"] for f in heapq.nlargest(2, forks, key=lambda f: f["v"])], heapq.nsmallest(1, heap)[0][1]


@case()
def orders_states(s: Any, q: str) -> Any:
    """A state has no place before another one, and Python says so only when it comes to that."""
    forks = s.fork(3)
    forks += lmc.gen("v", regex="[01]")
    try:
        return [score for score, _ in sorted((f["v"], f) for f in forks)]
    except TypeError as error:
        return str(error)



@case()
def state_by_its_repr(s, q):
    s += q + gen("g", max_tokens=2)
    word, other = s["g"], s.fork(2)
    return word, repr(s), str(s), "%s" % s, "{}".format(s), repr([s]), repr(other)  # noqa: UP031, UP032



@case(backend=scripted(x="$name is $$5"))
def keyword_arguments_of_any_name(s, q):
    s += q + gen("x")
    s += string.Template(s["x"]).safe_substitute(name=q, fn="f", owner="o")
    s += "{name} {fn} {owner} {error}".format(name=s["x"], fn=q, owner=1, error=2)
    s += str(dict(name=s["x"], fn=q, owner=len(s["x"])))


# -- programs within programs


@lmc.function
def child(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=4)
    return s["x"]


@case()
def children_with_sampling_that_is_left(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    effect("before", s["a"])
    try:
        child(tip="x", temperature=-1)
    except lmc.ParameterError as error:
        s += error.message[:20]
    counted = child(tip="y", max_new_tokens=2, n=2, temperature=len(s["a"]) / 10)
    effect("after", counted["x"])
    return child(tip="z", top_p=0.5)


@case()
def children_with_options(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one = child.run(tip=s["a"], temperature=0.3, max_new_tokens=2)
    two = child(tip=one["x"], seed=5)
    bound = child.bind(tip="bound")
    three = bound()
    s += two["x"] + three["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, two.text()


cool = child.options(temperature=0.3, max_new_tokens=2)


@case()
def children_with_fixed_options(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one, two = cool.run(tip=s["a"]), cool(tip=s["a"], max_new_tokens=3)
    three = child.options(seed=5)(tip=one["x"])
    s += two["x"] + three["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, three.text()


@case()
def batches_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = child.run_batch([{"tip": s["a"]}, {"tip": "b"}], temperature=0)
    s += "".join(c["x"] for c in states) + lmc.gen("z", max_tokens=2)
    for c in child.run_batch([("t",), (q,)], generator_style=True):
        s += c["x"]
    return [c.ret_value for c in states]


FAST = lmc.compile(child)


@case()
def compiled_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = FAST.batch([{"tip": s["a"]}, {"tip": "b"}], seed=3)
    one = FAST(tip="one", seed=4)
    s += "".join(c["x"] for c in states) + one["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value



@lmc.function
def _tip(s: Any, about: str, n: int = 2) -> Any:
    s += f"Tip on {about}:" + lmc.gen("tip", max_tokens=n)
    return s["tip"]


def _tips(topics: Any) -> list[Any]:
    return [_tip(about=t)["tip"] for t in topics]


@case()
def sub_programs(s: Any, q: str) -> Any:
    kids = [_tip(about=t) for t in (q, "k")]
    s += " ".join(kid["tip"] for kid in kids)
    return _tips([s["x"] if "x" in s else "l"]), [k.ret_value for k in kids], {t: _tip(t, n=1).ret_value for t in "ab"}



CASES = cases(dict(globals()))


@some("name", CASES, 6)
def test_program(name: str):
    CASES[name].check()


def test_lambda_program():
    program = Case(lmc.function(lambda s, q: s.__iadd__(q + lmc.gen("x", max_tokens=3))["x"]), [{"q": "a"}], {})
    program.check()


def test_assertions():  # as source text: pytest rewrites the asserts of its modules
    program, *_ = compiled(BEGIN + """
    s += q + lmc.gen("x", max_tokens=4)
    assert "e" not in s["x"], f"has e: {s['x']}"
    assert "a" in s["x"]
""")
    conform(program, [{"q": str(i), "xs": []} for i in range(5)])


def test_closure_programs():
    def make(prefix: str, tools: list[Any]) -> Any:
        @lmc.function
        def program(s: Any, q: str) -> str:
            s += prefix + q + lmc.gen("x", max_tokens=4)
            for t in tools:
                s += t(s["x"])
            return s["x"] + prefix

        return program

    for prefix, tools in (("a", [tool]), ("b", [tool, shout]), ("c", [])):
        conform(make(prefix, tools), [{"q": "x"}, {"q": "y"}])


def test_cached_and_wrapped_helpers():
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            effect("enter", fn.__name__)
            result = fn(*args, **kwargs)
            effect("leave", fn.__name__)
            return result

        return inner

    @logged
    def say(s: Any, q: str) -> str:
        s += q + lmc.gen("x", max_tokens=5)
        return s["x"]

    @functools.lru_cache
    def slow(x: str) -> str:
        return x[::-1]

    @lmc.function
    def program(s: Any, q: str) -> Any:
        return say(s, q), slow(s["x"]), slow(s["x"])

    conform(program, [{"q": "a"}, {"q": "b"}])
