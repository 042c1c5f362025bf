"""Programs with a journal, and what cuts it off, for tests of journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmc
from lmc.durable import records
from lmc.errors import InDoubtEffect
from tests.durable.resuming import CALLS, lay


def look_up(q: str) -> list[Any]:
    CALLS.append(("look_up", q))
    if q.endswith("7"):
        raise LookupError(f"nothing about {q}")
    return [q, {"found": len(CALLS) * 0}]


def note(x: str, into: list[str]) -> None:
    CALLS.append(("note", x))
    into.append(x)


@lmc.function
def agent(s: Any, q: str) -> Any:
    s += q
    notes: list[str] = []
    for _ in range(3):
        s += "\nNext:" + lmc.select("action", [" search", " finish"])
        if s["action"] == " finish":
            break
        try:
            found = look_up(q)
            found.append(len(found))
        except LookupError as error:
            found = [str(error)]
        note(s["action"], notes)
        forks = s.fork(2)
        for f, style in zip(forks, ["short", "long"]):
            f += f"\n{found} {style}:" + lmc.gen("thought", max_tokens=6, temperature=1.0)
        s += "".join(f["thought"] for f in forks)
    s += lmc.gen("end", max_tokens=4)
    return s["end"], notes


def seen(state: lmc.State) -> Any:
    names = [n for n in state.variables if n is not None]
    return state.text(), state.ret_value, {n: state[n] for n in names}, {n: state.get_meta_info(n) for n in names}, state.usage


def ways() -> list[Any]:
    return [agent.run, lmc.compile(agent)]


def cut(path: Path, size: int, to: Path) -> Path:
    lay(to, path.read_bytes()[:size])
    return to


def ask_places(path: Path) -> set[Any]:
    return {(item, *place) for item, known in records.read(path).runs.items() for place in known.answers}


@lmc.function
def pays(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    try:
        paid = charge(s["a"])
    except InDoubtEffect:
        paid = "in doubt"
    s += lmc.gen("b", max_tokens=3)
    return paid


def charge(x: str) -> str:
    CALLS.append(("charge", x))
    return f"paid {x}"
