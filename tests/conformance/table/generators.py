"""Generators: sent and thrown into, delegated to, closed, chained lazily."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect
from tests.conformance.outside import tool
from tests.conformance.shared import ask, by_name, child


def turns(s, q, n):
    for i in range(n):
        got = ask(s, f"{q}{i}", "n")
        stop = yield i, got
        if stop:
            return "stopped"
    return "over"


@case(backend=by_name)
def generator_that_is_sent(s, q):
    it = turns(s, q, 4)
    seen = [next(it)]
    try:
        while True:
            seen.append(it.send(int(seen[-1][1]) > 6))
    except StopIteration as end:
        return seen, end.value


@case([{"q": q} for q in "abcd"], backend=by_name)
def pipeline(s, q):
    def words(text):
        yield from (w for w in text.split() if w)

    def asked(items):
        for k, item in enumerate(items):
            effect("take", item)
            yield item, child(f"{k}{item}", "n").ret_value

    def big(pairs, limit):
        return ((a, int(b)) for a, b in pairs if int(b) > limit)

    found = list(itertools.islice(big(asked(words(f"{q} one two three")), 2), 2))
    s += f"{found}" + gen("p", max_tokens=2)
    return found


@case([{"q": "a"}, {"q": "bc"}], backend=by_name)
def generators_sent_and_thrown_into(s, q):
    def asks(names):
        total = 0
        for name in names:
            s.__iadd__(f"{name}:" + gen(name, max_tokens=2))
            total += len((yield s[name]) or "")
        return total

    def pages(n):
        try:
            for i in range(n):
                if got := (yield tool(i)):
                    s.__iadd__(got + gen("p", max_tokens=2))
        finally:
            tool("closed")

    def both():
        try:
            yield f"total {(yield from asks(['a', 'b']))}"
            with contextlib.closing(pages(3)) as found:
                yield next(found)
        except KeyError as error:
            yield f"caught {error}"
        finally:
            s.__iadd__("|closed")

    g = both()
    out = [next(g), g.send("xy"), g.send("z")]
    out.append(g.throw(KeyError("k")) if len(q) > 1 else next(g))
    g.close()
    first, second = itertools.tee(pages(2))
    return out, next(first), list(second), list(first), [x for x, _ in zip(pages(5), range(2), strict=False)]


@case(backend=by_name)
def machine_of_generators(s, q):
    def idle() -> Iterator[str]:
        got = yield "idle"
        while True:
            got = (yield from busy()) if got > "4" else (yield "waiting")

    def busy() -> Any:
        for i in range(2):
            got = yield f"busy{i}"
            effect("busy", got)
        return got

    machine = idle()
    out = [next(machine)]
    out += [machine.send(child(f"{q}{i}", "n").ret_value) for i in range(4)]
    machine.close()
    return out
