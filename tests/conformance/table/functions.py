"""Functions: closures, decorators, caches, registries, recursion, arguments of every form; tools wherever an expression may stand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect
from tests.conformance.outside import shout, tool
from tests.conformance.shared import ask, by_name, child, number, number_of


@case(backend=by_name)
def closures(s, q):
    def make(style):
        count = 0

        def say(text, *more, sep=" ", **kw):
            nonlocal count
            count += 1
            return ask(s, sep.join([style, text, *more, *(f"{k}={v}" for k, v in kw.items())]), f"a{count}")

        return say, lambda: count

    say, count = make(q)
    args, kwargs = ("x", "y"), {"sep": "-", "z": 1}
    found = [say("a"), say(*args), say("b", *args, **kwargs), say(*[w for w in "uv"], sep="")]
    return found, count()


@case(backend=by_name)
def star_arguments(s, q):
    def template(head, /, *parts, tail="", **named):
        return head + "".join(parts) + "".join(f"{k}:{v}" for k, v in sorted(named.items())) + tail

    options = {"max_tokens": 3, "stop": ["\n"]}
    (first, *middle), last = [*template(q, "b", "c", tail="!")], q
    s += template(*first, *middle, **{"k": last}, tail="?") + gen("x", **options)
    return first, middle, {**options, "n": 1}


@case([{"q": q} for q in "abcdefgh"], backend=by_name)
def visitor(s, q):
    tree = {"and": [{"ask": q}, {"or": [{"ask": "b"}, {"ask": "c"}]}]}

    def visit(node):
        (kind, inside), = node.items()
        match kind:
            case "ask":
                return int(child(inside, "n").ret_value) > 3
            case "and":
                return all(visit(n) for n in inside)
            case "or":
                return any([visit(n) for n in inside])

    s += f"{visit(tree)}" + gen("v", max_tokens=2)
    return visit(tree)


def turn(q: str) -> Any:
    return lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=4))


class Asker:
    def __init__(self, s: Any) -> None:
        self.s = s
        self.children: list[str] = []

    def go(self, q: str) -> str:
        self.s += turn(q)
        self.children.append(self.s["a"])
        return self.children[-1]


@case([{"q": "a"}, {"q": "b"}])
def helpers(s: Any, q: str) -> Any:
    s += turn(q)

    def ask(t: str) -> str:
        nonlocal s
        s += t + lmc.gen("a", max_tokens=4)
        return s["a"].strip()

    first = ask("more")
    node = Asker(s)
    return first, node.go(first), len(node.children)


@case(backend=by_name)
def routes_that_register(s, q):
    routes: dict[str, Callable[[str], str]] = {}

    def route(label: str) -> Any:
        return lambda fn: routes.setdefault(label, fn)

    @route("positive")
    def _(text: str) -> str:
        return "P" + ask(s, text)

    @route("negative")
    def _(text: str) -> str:
        return "N" + child(text).ret_value

    return [routes.get(ask(s, f"route {q}{i}", "label"), str.upper)(f"{q}{i}") for i in range(3)]


@case(backend=by_name)
def definitions_that_are_cached(s, q):
    @functools.cache
    def define(word: str) -> str:
        effect("define", word)
        return child(f"define {word}").ret_value

    found = [define(w) for w in ask(s, q, "names").split(", ") + ["x0", "x1", "x0"]]
    s += "; ".join(found) + gen("z", max_tokens=3)
    return found


@case(backend=by_name)
def guarded_answers(s, q):
    class Blocked(Exception):
        pass

    def guard(fn: Callable[[str], str]) -> Callable[[str], str]:
        @functools.wraps(fn)
        def inner(text: str) -> str:
            if number_of(f"is it safe? {text}") < 3:
                raise Blocked(text)
            out = fn(text)
            return out if number_of(f"does it leak? {out}") < 8 else "[redacted]"

        return inner

    @guard
    def chat(text: str) -> str:
        return ask(s, text)

    out = []
    for text in (q, q + "!", "x"):
        try:
            out.append(chat(text))
        except Blocked as blocked:
            out.append(f"blocked {blocked}")
    return out


def is_even(x: Any) -> bool:
    effect("is_even", x)
    return len(str(x)) % 2 == 0


@case(backend=by_name)
def tools_in_every_place(s, q):
    s += f"{q}{tool('f')!r:>8}" + gen("a", max_tokens=2)
    d = {tool("k"): number("v")}
    d[tool("k")] += number("more")
    d.setdefault(tool("z"), number("default"))
    del d[tool("z")]
    xs = [y for x in "ab" if is_even(x + "1") for y in tool(x)] + [*map(tool, "c"), *(tool(i) for i in range(1))]
    chosen = (w := tool("walrus")) and (tool("yes") if is_even("ab") else tool("no"))
    chain = 1 < number("ab") < number("abcd") < 10 and not is_even("odd")

    def inner(x=tool("default"), *args, **named):  # noqa: B008
        return x, args, named

    match [tool("m"), 2]:
        case [x, n] if is_even("guard!") and n == 2:
            m = x
        case _:
            m = None
    assert number("assert"), tool("never")
    s += inner(*tool("st"), **{"k": tool("kw")})[0] + gen("b", max_tokens=2)
    found = any(is_even(x) for x in ("a", "bb", "never")), sorted(["bb", "a"], key=number), functools.reduce(lambda a, b: a + tool(b), "ab", "")
    return d, xs, chosen, chain, inner(), m, w, found, list(filter(is_even, ["a", "bb"])), next((tool(x) for x in "ab"), None)


def program_over(prefix: str, tools: list[Any]) -> Any:
    def program(s, q):
        s += prefix + q + gen("x", max_tokens=4)
        for t in tools:
            s += t(s["x"])
        return s["x"] + prefix

    return program


PROGRAMS_AS_CLOSURES = {
    f"program_over_{len(tools)}_tools": case([{"q": "x"}, {"q": "y"}])(program_over(prefix, tools))
    for prefix, tools in (("a", [tool]), ("b", [tool, shout]), ("c", []))
}
program_that_is_a_lambda = case([{"q": "a"}])(lambda s, q: s.__iadd__(q + gen("x", max_tokens=3))["x"])


@case()
def one_helper_asks_in_code_that_is_not_followed_and_behind_it(s, q):
    def beside(text):
        (f,) = s.fork(1)
        return ask(f, text)

    first = copy_context().run(lambda: None) or copy_context().run(beside, q)
    return first, beside("y" + q), beside("z" + q)
