"""The mistakes that others made: where each is tested, and the forms of them that no other file has."""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.errors import BackendError
from tests.searching import some

from . import outside
from .harness import case, cases, conform, effect, scripted
from .outside import tool

HERE = "conformance/test_mistakes.py"
SEMANTICS = "conformance/test_semantics.py"
OUTSIDE, CALLERS = "conformance/test_outside.py", "conformance/test_callers.py"
INTERPRETER = "frontend/test_interpreter.py"

MISTAKES: dict[int, tuple[str, dict[str, str]]] = {
    1: ("a branch on an answer frozen", {SEMANTICS: "test_branch_on_output test_loop_on_output", HERE: "while_not_in"}),
    2: ("a branch, loop, len or index on arguments; dummy arguments", {SEMANTICS: "test_branch_on_arguments", HERE: "no_dummies"}),
    3: ("string operations on answers", {SEMANTICS: "test_strings", HERE: "text_taken_apart"}),
    4: ("names and expressions used again", {SEMANTICS: "test_reuse", HERE: "an_argument_used_twice"}),
    5: ("effects once, in order, never while tracing", {SEMANTICS: "test_effects test_print test_effects_are_each_once_per_run",
        HERE: "time_random_and_files test_tracing_does_nothing"}),
    6: ("mutated objects, closures, defaults", {SEMANTICS: "test_mutable test_global_store test_mutable_default", HERE: "a_closure_over_a_list",
        "conformance/test_parameters.py": "changed_before_it_is_asked list_of_the_outside"}),
    7: ("exceptions", {SEMANTICS: "test_exceptions test_backend_fault test_item_of_a_batch", HERE: "a_fault_at_the_first_read "
                                                                                                   "a_fault_in_a_fork_that_nobody_reads bare_raise"}),
    8: ("early return, gens that nobody reads", {SEMANTICS: "test_unread_forks_are_not_generated", HERE: "early_return"}),
    9: ("nested forks", {SEMANTICS: "test_forks", HERE: "a_group_in_a_fork"}),
    10: ("sub-programs", {SEMANTICS: "test_sub_programs", INTERPRETER: "test_10_sub_programs_run_beside_the_caller", HERE: "children_of_children"}),
    11: ('"x" in s', {SEMANTICS: "test_contains"}),
    12: ("siblings are independent samples",
        {INTERPRETER: "test_12_siblings_are_independent_samples_and_runs_repeat", HERE: "test_siblings_differ_and_equal_asks_merge_at_0_only"}),
    13: ("token boundaries", {"backend/test_local.py": "test_text_is_one_run_however_it_is_cut test_generated_ids_are_kept_as_generated",
         "backend/engine/test_tokenizer.py": "test_the_spelling_in_plain_text_is_plain_however_it_is_cut"}),
    14: ("no prompt is changed",
        {INTERPRETER: "test_14_prompts_are_exactly_what_the_program_wrote",
            "passes/test_aggressive.py": "test_it_runs_only_on_request_and_explain_shows_both_texts"}),
    15: ("API targets", {"passes/test_plan_speculation.py": "test_a_chain_of_gens_gets_a_template",
         "api/test_speculation.py": "test_an_answer_is_taken_only_where_that_is_certain test_a_model_that_breaks_the_template_costs_at_most_one_call_more "
                                    "test_a_limit_holds",
         "api/test_conformance.py": "test_an_api_gives_what_the_mock_gives test_random_programs_give_what_they_give_on_the_mock"}),
    16: ("streams", {"conformance/test_streams.py": "test_a_compiled_stream_is_the_interpreters test_an_abandoned_stream_stops_its_run",
        "test_cutting_off.py": "test_the_engine_has_all_its_pages_back"}),
    17: ("a mutable result is not pure", {SEMANTICS: "test_17_mutable_result"}),
    18: ("an unused op that can raise", {SEMANTICS: "test_18_unused_op_that_raises", HERE: "charged_after_what_raises"}),
    19: ("values in containers and outside hooks", {SEMANTICS: "test_19_values_in_containers", HERE: "hashed_and_looked_up"}),
    20: ("max, sorted, any over values", {SEMANTICS: "test_20_order_and_short_circuits"}),
    21: ("helpers without a state argument", {SEMANTICS: "test_21_helpers_without_a_state"}),
    22: ("containers that escape", {SEMANTICS: "test_22_containers_that_escape"}),
    23: ("the outside changes mid-run", {SEMANTICS: "test_23_outside_changes test_global_store"}),
    24: ("iterating what the host made", {SEMANTICS: "test_24_iterations", HERE: "files_and_sets"}),
    25: ("tools that call the program, locks, async tools, threads",
        {SEMANTICS: "test_25_reentry_and_threads", "conformance/test_async.py": "test_gathered_tools_run_at_the_same_time",
         HERE: "test_an_async_tool_runs_the_program_it_belongs_to"}),
    26: ("a branch first taken late", {SEMANTICS: "test_26_late_branch"}),
    27: ("what a loop has seen", {OUTSIDE: "test_what_a_loop_has_seen seen_outside seen_kept_in_a_closure"}),
    28: ("copies of outside containers", {OUTSIDE: "dict_of_a_global dict_of_a_mapping_proxy dict_of_the_environment slice_replaced_by_a_global "
         "parameters_of_a_global the_same_kind_as_a_global test_what_is_outside_is_read_anew_for_each_call"}),
    29: ("files that change, reloaded modules", {CALLERS: "test_a_file_edited_after_import_is_not_what_runs test_reload_runs_the_new_code_and_keeps_the_old"}),
    30: ("frames and lines", {CALLERS: "test_logging_names_the_callers_file_and_line test_warnings_name_the_callers_file_and_line "
                                       "test_tools_see_the_programs_frame "
         "test_asserts_that_pytest_rewrote_keep_their_messages test_a_debugger_and_coverage_see_the_programs_lines"}),
    31: ("recursion, decorators, methods", {CALLERS: "test_recursion", "conformance/test_decorated.py":
         "test_a_decorator_under_lmc_function test_a_decorator_over_lmc_function helpers_under_decorators test_a_bound_method_is_a_program"}),
    32: ("gathered forks ask at once", {"frontend/test_suspending.py": "test_tasks_of_a_program_ask_at_once", "conformance/test_written.py": "gathered_forks"}),
}  # fmt: skip
"""Number: what it is, and its tests: functions and cases, by file."""


def test_each_mistake_has_tests() -> None:
    assert list(MISTAKES) == list(range(1, 33))
    for number, (what, files) in MISTAKES.items():
        for file, names in files.items():
            there = set(re.findall(r"^(?:async )?def (\w+)", (Path(__file__).parent.parent / file).read_text(), re.MULTILINE))
            assert not set(names.split()) - there, f"{number}, {what}: {file} has no {set(names.split()) - there}"


@case([{"q": q} for q in "abcde"])
def while_not_in(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    n = 0
    while "a" not in s["x"] and n < 5:
        s += "again" + lmc.gen("x", max_tokens=2)
        n += 1
    return n


@case([{"q": "a", "table": {"k": [1, 2]}, "n": 2}, {"q": "b", "table": {"k": []}, "n": 1}])
def no_dummies(s: Any, q: str, table: dict[str, list[int]], n: int) -> Any:
    effect("given", q, table, n)
    s += q.strip() + str(table["k"][: n // 2]) + lmc.gen("x", max_tokens=2)
    for row in range(n):
        s += f"{row}" + lmc.gen("y", max_tokens=1)
    return tool(table["k"]), len(table["k"])


@case(backend=scripted(x=["a: 12", "b: 7", "c: 3"]))
def text_taken_apart(s: Any, q: str) -> Any:
    s += f"{q!r} {[q]}" + lmc.gen("x", max_tokens=9)
    name, number = s["x"].split(":")[0], int(s["x"].split(":")[1])
    s += repr(s["x"]) + f"{name!r:>5}|{number:03d}" + "{!r}".format(s["x"]) + str([s["x"]])
    return eval(f"{number} + 1"), eval("number * 2"), json.loads(f"[{number}]")


@case()
def an_argument_used_twice(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2) + q
    a, b = s.fork(2)
    a += q + q + lmc.gen("y", max_tokens=2)
    b += q + lmc.gen("y", max_tokens=2) + q
    return q, a["y"] + q, b["y"] + q


SCRATCH = Path(tempfile.gettempdir()) / f"lmc-effects-{random.SystemRandom().randrange(10**9)}"


@case(reset=lambda: (random.seed(1), SCRATCH.unlink(missing_ok=True)), outside=lambda: SCRATCH.exists() and SCRATCH.read_text(), batch=False)
def time_random_and_files(s: Any, q: str) -> Any:
    first = random.random()
    with open(SCRATCH, "a") as file:
        file.write(f"{first}\n")
    s += f"{random.randint(0, 9)}" + lmc.gen("x", max_tokens=2)
    with open(SCRATCH, "a") as file:
        file.write(s["x"] + "\n")
    return first, random.choice([s["x"], "b", "c"]), random.random(), open(SCRATCH).read()


def test_tracing_does_nothing() -> None:
    done: list[str] = []

    @lmc.function
    def program(s: Any, q: str) -> Any:
        done.append("before")
        s += q + lmc.gen("x", max_tokens=2)
        return done.append(s["x"])

    mock = Mock()
    lmc.compile(program, backend=mock).lower(q="a")
    assert not done
    assert not mock.call_log


def remembering() -> Any:
    seen: list[str] = []

    def remember(x: str) -> int:
        effect("remember", x, list(seen))
        seen.append(x)
        return len(seen)

    return seen, remember


KEPT, REMEMBER = remembering()


@case(reset=KEPT.clear, outside=lambda: list(KEPT), batch=False)
def a_closure_over_a_list(s: Any, q: str) -> Any:
    first = REMEMBER(q)
    s += q + lmc.gen("x", max_tokens=2)
    KEPT.append("mine")
    return first, REMEMBER(s["x"]), len(KEPT)


def faulty(*names: str) -> Any:
    """Mocks whose answers by these names fail."""
    return lambda: Mock(fault=lambda ask, _: BackendError(f"down for {ask.name}") if ask.name in names else None)


@case(backend=faulty("x"))
def a_fault_at_the_first_read(s: Any, q: str) -> Any:
    f = s.fork(1)[0]
    f += q + lmc.gen("x", max_tokens=2)
    effect("asked", q)
    f += "more" + lmc.gen("z", max_tokens=2)
    s += lmc.gen("y", max_tokens=2)
    effect("other", s["y"])
    text = f["x"] + "!"
    effect("never", text)
    return text


@case(backend=faulty("x"))
def a_fault_in_a_fork_that_nobody_reads(s: Any, q: str) -> Any:
    for f in s.fork(2):
        f += q + lmc.gen("x", max_tokens=2)
        f += "later" + lmc.gen("z", max_tokens=2)
    s += lmc.gen("y", max_tokens=2)
    effect("done", s["y"])
    return s["y"]


@case(backend=faulty("x"))
def bare_raise(s: Any, q: str) -> Any:
    f = s.fork(1)[0]
    f += q + lmc.gen("x", max_tokens=2)
    try:
        try:
            s += q + f["x"]
        except lmc.LmcError:
            effect("seen", q)
            raise
        finally:
            effect("finally", q)
    except Exception as error:
        s += f"after {type(error).__name__}"
    s += lmc.gen("y", max_tokens=2)
    return s["y"]


@case([{"q": q} for q in "abcd"])
def early_return(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    s += lmc.gen("unread", max_tokens=2)
    if "a" in s["x"]:
        return s["x"]
    for c in s["x"]:
        if c in "eiou":
            return c
        s += lmc.gen("y", max_tokens=1)
    return None


@case(temperature=0.8)
def a_group_in_a_fork(s: Any, q: str) -> Any:
    with s.user():
        s += q
        outer = s.fork(2)
        outer += lmc.gen("x", max_tokens=2)
        inner = [f.fork(2) for f in outer]
        for group in inner:
            group += lambda i: str(i) + lmc.gen("y", max_tokens=2)
        s += "going on" + lmc.gen("z", max_tokens=2)
    return [[f["y"] + f["x"] for f in group] for group in inner]


@lmc.function
def leaf(s: Any, tip: str) -> str:
    s += tip + lmc.gen("l", max_tokens=2)
    effect("leaf", s["l"])
    return s["l"]


@lmc.function
def branch(s: Any, tip: str) -> str:
    s += tip + lmc.gen("b", max_tokens=2)
    return leaf(tip=s["b"]).ret_value + leaf(tip=tip)["l"]


@case(temperature=0.8)
def children_of_children(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    found = [branch(tip=s["x"]), branch(tip=q)]
    s += lmc.gen("y", max_tokens=2)
    return [f.ret_value for f in found], found[0]["b"]


def test_siblings_differ_and_equal_asks_merge_at_0_only() -> None:
    @lmc.function
    def program(s: Any, q: str) -> Any:
        forks = s.fork(4)
        forks += q + lmc.gen("x", max_tokens=8)
        return [f["x"] for f in forks]

    fast = lmc.compile(program)
    for temperature, calls in ((0, 1), (0.9, 4)):
        mock = Mock()
        found = fast(q="a", seed=1, temperature=temperature, backend=mock).ret_value
        assert found == program.run(q="a", seed=1, temperature=temperature, backend=Mock()).ret_value
        assert len(set(found)) == len(mock.call_log) == calls


@case([{"q": "a"}, {"q": "b"}], backend=scripted(n=["5", "no", "7"]))
def charged_after_what_raises(s: Any, q: str) -> Any:
    s += q + lmc.gen("n", max_tokens=3)
    int(s["n"])
    effect("charge", q)


@case([{"q": q} for q in "abc"])
def hashed_and_looked_up(s: Any, q: str) -> Any:
    s += q + lmc.gen("v", max_tokens=1)
    s += lmc.gen("w", max_tokens=1)
    v, w, seen = s["v"], s["w"], {s["v"], "k"}
    found = [hash(v) == hash(str(v)), w in seen, v in seen, v is None, isinstance(v, str), "%s" % (v,), [v, w].count(v)]
    try:
        found.append({v: 1}[w])
    except KeyError as error:
        found.append(str(error))
    return found


@case(reset=lambda: SCRATCH.write_text("one\ntwo\n"))
def files_and_sets(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    with open(SCRATCH) as file:
        for line in file:
            s += line + lmc.gen("y", max_tokens=1)
    letters = outside.quiet(s["x"] + "k")
    return [c for c in sorted(set(letters))], sorted({c: 1 for c in set(letters)})


CASES = cases(dict(globals()))


@some("name", CASES, 3)
def test_means_the_same(name: str) -> None:
    try:
        CASES[name].check()
    finally:
        SCRATCH.unlink(missing_ok=True)


async def deeper(q: str, depth: int) -> str:
    await asyncio.sleep(0)
    return (await NESTED.acall(q=q + "+", depth=depth - 1, backend=Mock(), seed=1)).ret_value if depth else "leaf"


@lmc.function
async def nested(s: Any, q: str, depth: int) -> str:
    s += q + lmc.gen("x", max_tokens=2)
    s += await deeper(q, depth)
    return s["x"] + s.text()


NESTED = lmc.compile(nested)


def test_an_async_tool_runs_the_program_it_belongs_to() -> None:
    items = [{"q": str(i), "depth": i % 3} for i in range(20)]
    got = asyncio.run(NESTED.abatch(items, backend=Mock(), seed=1))
    want = nested.run_batch(items, backend=Mock(), seed=1)
    assert [state.ret_value for state in got] == [state.ret_value for state in want]
    conform(nested, [{"q": "a", "depth": 2}])
