"""What an evaluation says is certain, Python asks: whatever answers are there, of programs that return."""

# ruff: noqa: B008, F841 (programs are written as people write them)

from __future__ import annotations

import asyncio
import functools
import operator
import re
from contextvars import copy_context
from typing import Any

import pytest

import lmc
from tests.frontend.capture.comparing import evaluation, run_python

XS = ["x", "y", "z", "w"]


def ask(s: Any, q: str) -> str:
    (f,) = s.fork(1)
    f += q + lmc.gen("a", max_tokens=4)
    return f["a"]


# -- generators


class Counter:
    def __init__(self) -> None:
        self.least = 0


@lmc.function
def leaves_a_generator_that_changes_what_it_goes_through(s):
    nodes = [{"name": x} for x in XS]
    ask(s, "first")

    def walk():
        for node in nodes:
            node["seen"] = "yes"
            yield node

    for node in walk():
        ask(s, node["name"])
        if node["name"] == "y":
            break
    ask(s, str(nodes))


@lmc.function
def takes_an_item_more_of_what_changes_names_bound_anew(s):
    seen = ["old"]
    ask(s, "first")

    def adds():
        for x in XS:
            seen.append(x)
            yield x

    items = adds()
    next(items)
    seen = ["new"]
    next(items)
    ask(s, str(seen))


@lmc.function
def takes_items_that_are_requests(s):
    def doubled(items):
        for x in items:
            yield x + x

    ask(s, "first")
    for x in doubled(ask(s, x) for x in XS):
        ask(s, "doubled " + x)
    ask(s, "end")


@lmc.function
def takes_items_where_an_answer_says_so(s):
    answer, items, pairs = ask(s, "q"), (x for x in XS), iter(XS)
    both = zip(pairs, "pq", strict=False)
    if "no" not in answer:
        next(items)
        list(both)
    for x in (*items, *pairs):
        ask(s, x)
    ask(s, "end")


# -- special methods


class Tally:
    def __init__(self, seen):
        self.seen = seen

    def __add__(self, x):
        self.seen.append(x)
        return self

    __len__ = lambda self: self.seen.append("len") or 1

    @lmc.function
    def asks(self, s, q):
        s += q + lmc.gen("a", max_tokens=4)


@lmc.function
def adds_to_an_object(s):
    seen, lengths = [], []
    tally, other = Tally(seen), Tally(lengths)
    ask(s, "first")
    tally + 1
    list(map(len, [other]))
    ask(s, str(seen))
    ask(s, str(lengths))


class Shown:
    def __init__(self, seen):
        self.seen = seen

    __str__ = __repr__ = __format__ = lambda self, *_: self.seen.append("shown") or "shown"  # type: ignore[attr-defined]
    __bool__ = __eq__ = __radd__ = lambda self, *_: self.seen.append("used") or True  # type: ignore[assignment]
    __hash__ = object.__hash__


@lmc.function
def uses_objects_in_native_code(s):
    seen1, seen2, seen3, seen4, seen5, seen6 = [1], [2], [3], [4], [5], [6]
    a, b, c, d, e, f = Shown(seen1), Shown(seen2), Shown(seen3), Shown(seen4), Shown(seen5), Shown(seen6)
    ask(s, "first")
    print(a)
    f"{[a, b]}"
    (a, c).count(3)  # type: ignore[arg-type]
    object() + d  # type: ignore[operator]
    bool(e)
    f.__dict__["seen"].append("new")
    for x in (seen1, seen2, seen3, seen4, seen5, seen6):
        ask(s, str(x))


@lmc.function
def sets_an_attribute_that_a_class_has_not(s):
    ask(s, "first")
    Tally.kind = "new"  # type: ignore[attr-defined]
    ask(s, getattr(Tally, "kind", "none"))
    del Tally.kind  # type: ignore[attr-defined]


@lmc.function
def hands_a_coroutine_over(s):
    seen = ["old"]

    async def asks():
        seen.append("new")
        ask(s, "inside")

    ask(s, "first")
    asyncio.run(asks())
    ask(s, str(seen))


@lmc.function
def asks_alone(s, q="alone"):
    s += q + lmc.gen("a", max_tokens=4)


@lmc.function
def reads_what_unknown_code_has_set(s):
    tally = Tally([])
    ask(s, "first")
    setattr(tally, "name", "a")  # noqa: B010
    try:
        ask(s, tally.name)
    except AttributeError:
        ask(s, "none")
    tally.asks("method")
    asks_alone()


# -- comprehensions


@lmc.function
def binds_a_name_behind_an_undecided_condition(s):
    y = "old"
    found = [x for x in XS if "no" not in ask(s, y + x) and (y := x)]
    ask(s, y)


# -- handlers that leave: skipped code may raise, and so may what changes containers


def fails(x: str) -> None:
    raise ValueError(x)


@lmc.function
def calls_a_tool_in_an_undecided_arm(s):
    answer = ask(s, "q")
    try:
        if answer:
            fails(answer)
    except ValueError:
        return
    ask(s, "end")


@lmc.function
def calls_a_tool_in_an_undecided_expression(s):
    answer = ask(s, "q")
    try:
        answer and fails(answer)
    except ValueError:
        return
    ask(s, "end")


@lmc.function
def calls_a_tool_in_an_undecided_loop(s):
    for x in XS:
        answer = ask(s, x)
        try:
            for word in answer:
                fails(word)
        except ValueError:
            break
    ask(s, "end")


@lmc.function
def leaves_a_loop_behind_one_in_an_undecided_arm(s):
    answer = ask(s, "q")
    for x in XS:
        if answer:
            for _ in "ab":
                pass
            else:
                break
        ask(s, x)
    ask(s, "end")


@lmc.function
def binds_a_name_in_a_function_in_an_undecided_arm(s):
    text = "old"
    if ask(s, "q"):

        def change():
            nonlocal text
            text = "new"

        change()
    ask(s, text)
    ask(s, "end")


@lmc.function
def removes_what_may_not_be_there(s):
    answer = ask(s, "q")
    try:
        ["1", "2"].remove(answer)
    except ValueError:
        return
    ask(s, "end")


@lmc.function
def deletes_an_item_that_may_not_be_there(s):
    answer, counts = ask(s, "q"), {"1": 1}
    try:
        del counts[answer]
    except KeyError:
        return
    ask(s, "end")


@lmc.function
def passes_arguments_of_an_unknown_number(s):
    answer = ask(s, "q")
    try:
        fails(*answer)
    except TypeError:
        return
    ask(s, "end")


# -- requests of which it is undecided how many are made


@lmc.function
def compares_answers_in_a_chain(s):
    in_order = "0" < ask(s, "a") < ask(s, "b") < ask(s, "c")
    ask(s, "end")


@lmc.function
def looks_for_an_answer_among_requests(s):
    found = "1 2" in (ask(s, x) for x in XS), operator.contains((ask(s, x) for x in XS), "1 2")  # type: ignore[arg-type]
    ask(s, "end")


@lmc.function
def replaces_words_by_answers(s):
    ask(s, "q")
    re.sub("[ab]", lambda m: ask(s, m[0]), "a-b")
    ask(s, "a")
    ask(s, "end")


@lmc.function
def replaces_words_by_answers_of_a_partial_function(s):
    ask(s, "q")
    re.sub("[ab]", functools.partial(lambda before, m: ask(s, m[0]), "k"), "a-b")
    ask(s, "a")
    ask(s, "end")


@lmc.function
def hands_a_partial_function_over(s):
    ask(s, "q")
    copy_context().run(functools.partial(ask, s, "k"))
    ask(s, "end")


@lmc.function
def hands_a_partial_function_over_in_an_undecided_arm(s):
    if "no" not in ask(s, "q"):
        copy_context().run(functools.partial(ask, s, "k"))
    ask(s, "end")


@lmc.function
def sorts_by_answers_in_an_undecided_expression(s):
    "no" in ask(s, "q") or sorted("ba", key=functools.partial(ask, s))
    ask(s, "end")


@lmc.function
def calls_functions_of_a_table_in_an_undecided_arm(s):
    table = {"k": lambda x: ask(s, x)}
    if "no" not in ask(s, "q"):
        [call("x") for call in table.values()]
    ask(s, "end")


@lmc.function
def hands_an_object_with_a_function_over_in_an_undecided_arm(s):
    agent = Agent(s)
    if "no" not in agent.ask("q"):
        copy_context().run(Agent.again, agent)
    ask(s, "end")


class Agent:
    def __init__(self, s: Any) -> None:
        self.ask = lambda q: ask(s, q)

    def again(self) -> str:
        return self.ask("again")

    def __str__(self) -> str:
        return self.again()

    @property
    def thought(self) -> str:
        return self.again()


@lmc.function
def calls_a_method_that_calls_others_in_an_undecided_arm(s):
    agent = Agent(s)
    if "no" not in agent.ask("q"):
        agent.again()
    ask(s, "end")


@lmc.function
def reads_a_property_in_an_undecided_arm(s):
    agent = Agent(s)
    if "no" not in agent.ask("q"):
        agent.thought  # noqa: B018
    ask(s, "end")


@lmc.function
def shows_an_object_in_an_undecided_arm(s):
    agent = Agent(s)
    if "no" not in agent.ask("q"):
        str(agent)
    ask(s, "end")


@lmc.function
def asks_in_the_body_of_a_class(s):
    ask(s, "q")

    class Named:
        name = ask(s, "a")

    ask(s, "end")


# -- skipped code


@lmc.function
def changes_something_in_the_body_of_a_class(s):
    names: list[Any] = ["q"]
    ask(s, "q")

    class Named:
        names.append("Named")

        @names.append
        def later(self):
            return self

    ask(s, f"{names[:2]}")


@lmc.function
def defines_functions_whose_defaults_do_something(s):
    answer, names, last = ask(s, "q"), [], "old"
    if "no" not in answer:

        def later(x=names.append("x"), *, y=(last := "new")):
            return x, y

    ask(s, f"{names} {last}")


@lmc.function
def changes_an_item_under_a_name_of_its_own(s):
    answer, table = ask(s, "q"), {"k": [1]}
    if "no" not in answer:
        items = table["k"]
        items.append(2)
    ask(s, str(table))


def add(to: list[Any]) -> None:
    to.append("new")


@lmc.function
def changes_what_is_passed_by_name(s):
    answer, names = ask(s, "q"), ["old"]
    if "no" not in answer:
        add(to=names)
    ask(s, str(names))


@lmc.function
def changes_each_object_of_a_list(s):
    answer, counters = ask(s, "q"), [Counter(), Counter()]
    if "no" not in answer:
        for counter in counters:
            other = counter
            other.least = 7
    ask(s, str(counters[0].least))


@lmc.function
def passes_an_object_beside_arguments_of_unknown_number(s):
    names, words = ["old"], ask(s, "q").split()
    adds_all(names, *words)
    ask(s, str(names))


def adds_all(to: list[Any], *_: Any, **__: Any) -> None:
    to.append("new")


@lmc.function
def passes_an_object_beside_unknown_names(s):
    names, words = ["old"], ask(s, "q").split()
    adds_all(names, **{"x" + word: 1 for word in words})
    ask(s, str(names))


@lmc.function
def makes_requests_behind_items_of_unknown_number(s):
    words = ask(s, "q").split()
    both = [*words, ask(s, "in a list")]
    print(*both, ask(s, "in a call"))
    ask(s, "end")


@lmc.function
def changes_an_object_in_a_list_of_unknown_length(s):
    names, others, words = ["old"], ["old"], ask(s, "q").split()
    held = [*words, names]
    held[-1].append("new")
    made = [others for _ in words]
    made[0].append("new")
    ask(s, f"{names}")
    ask(s, f"{others}")


@lmc.function
def changes_what_a_name_was_before_an_undecided_arm(s):
    names, others, answer = ["old"], ["old"], ask(s, "q")
    held = names
    if not answer:
        held = others
    held.append("new")
    if answer:
        either = names
    else:
        either = others
    either.append("newer")
    ask(s, f"{names}")
    ask(s, f"{others}")


@lmc.function
def changes_an_object_of_a_list_that_an_answer_selects_from(s):
    every, answer = [["old"], ["old"]], ask(s, "q")
    selected = [one for one in every if answer]
    selected[0].append("new")
    ask(s, str(every))


@lmc.function
def extends_a_fork_in_an_undecided_arm(s):
    first, second = s.fork(2)
    held = second
    if ask(s, "q"):
        held = first
    held += "held"
    first += lmc.gen("b", max_tokens=4)
    ask(s, first["b"])


@lmc.function
def extends_a_fork_that_an_answer_selects(s):
    first, second = s.fork(2)
    held = first if ask(s, "q") else second
    held += "held"
    first += lmc.gen("b", max_tokens=4)
    ask(s, first["b"])


@lmc.function
def extends_a_fork_in_a_list_of_unknown_length(s):
    (fork,) = s.fork(1)
    held = [fork for _ in ask(s, "q").split()]
    for one in held:
        one += "held"
    fork += lmc.gen("b", max_tokens=4)
    ask(s, fork["b"])


@lmc.function
def sets_a_variable_of_a_fork_that_an_answer_selects(s):
    first, second = s.fork(2)
    first.set_var("v", "old")
    held = first if ask(s, "q") else second
    held.set_var("v", "new")
    ask(s, first["v"])


@lmc.function
def joins_forks_that_an_answer_selects(s):
    first, second = s.fork(1), s.fork(1)
    held = first if ask(s, "q") else second
    first[0] += "first"
    second[0] += "second"
    held.join("concate_and_append")
    ask(s, "end")


@lmc.function
def has_no_name_of_an_exception_behind_its_handler(s):
    text = "old"
    try:
        int(ask(s, "q"))
    except ValueError as text:
        pass
    try:
        told = text
    except NameError:
        told = "unbound"
    ask(s, told)


PROGRAMS = {k: v for k, v in list(globals().items()) if isinstance(v, lmc.Function)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_certain_is_asked(name: str) -> None:
    program: Any = PROGRAMS[name]
    python = run_python(program, {}, {"a": "1 2"})
    prompts = {address: prompt for address, _, prompt in python.asked}
    assert python.error is None
    for k in range(len(python.asked)):
        known = {address: python.answers[address] for address in list(prompts)[:k]}
        asked, _ = evaluation(program, {}, known)
        certain = [a for a in asked if a.certain and not a.shifted]
        assert certain and all(a.address in prompts and a.prompt in (None, prompts[a.address]) for a in certain), certain
