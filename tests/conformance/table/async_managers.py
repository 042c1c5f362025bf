"""`async with` of the host in async programs: entered, left and failing the same in every execution."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import lmc
from tests.conformance.harness import case, effect, scripted


class Session:
    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Session:
        effect("open", self.name)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        effect("close", self.name, kind and kind.__name__)
        await asyncio.sleep(0)
        return kind is KeyError

    async def get(self, q: str) -> str:
        effect("get", q)
        await asyncio.sleep(0)
        return f"<{self.name}{q}>"


@case()
async def left_by_break_and_return(s: Any, q: str) -> Any:
    try:
        for i in range(3):
            async with Session(str(i)) as one:
                s += await one.get(q) + lmc.gen("a", max_tokens=2)
                if i == 0:
                    continue
                with s.user():
                    if q == "a":
                        break
                    return s["a"]
    finally:
        async with Session("finally") as last:
            s += await last.get("x")


async def fetch(x: str) -> str:
    effect("fetch", x)
    await asyncio.sleep(0)
    return f"<{x}>"


@contextlib.asynccontextmanager
async def guarded(s: Any, name: str) -> AsyncIterator[str]:
    effect("in", name)
    s += f"<{name}>"
    try:
        yield name.upper()
    except KeyError as error:
        s += f"caught {error}" + await fetch("k")
    else:
        s += "fine"
    finally:
        s += await fetch("over")
        effect("out", name)


class Sitting:
    """A manager of the program's own that uses its state."""

    def __init__(self, s: Any, name: str) -> None:
        self.s, self.name, self.log = s, name, list[str]()

    async def __aenter__(self) -> Sitting:
        self.s += f"<{self.name}>"
        self.log.append(await fetch(self.name))
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.s += f"</{self.name} {kind and kind.__name__} {error}>"
        await asyncio.sleep(0)
        return kind is not None and issubclass(kind, LookupError)


@contextlib.asynccontextmanager
async def both(s: Any) -> AsyncIterator[str]:
    async with guarded(s, "g") as g, Sitting(s, "s") as one:
        yield g + one.name


ANSWERS = scripted(a=lambda text, ask: "xyz"[len(text) % 3])


@case([{"q": q} for q in ("a", "bc", "def")], backend=ANSWERS)
async def of_its_own(s: Any, q: str) -> Any:
    for i in range(3):
        try:
            async with guarded(s, q) as name, both(s) as more:
                s += name + more + lmc.gen("a")
                match s["a"]:
                    case "x":
                        raise KeyError(s["a"])
                    case "y" if i:
                        raise ValueError(s["a"])
                    case "z" if i:
                        return await fetch(s["a"])
            s += "after"
        except ValueError as error:
            s += str(error)
            break
    async with Sitting(s, "last") as last:
        s += lmc.gen("a")
        raise {"x": IndexError, "y": RuntimeError}.get(s["a"], KeyError)(s["a"])
    return last.log
