"""Effects and the outside: tools, files, random numbers, globals, locks, objects that tools and the program change."""

from __future__ import annotations

import random
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc
from tests.conformance import outside
from tests.conformance.harness import case, effect, opaque, scripted
from tests.conformance.outside import tool


@case([{"q": str(i)} for i in range(6)])
def effects(s: Any, q: str) -> str:
    effect("start", q)
    s += q + lmc.gen("x", max_tokens=5)
    r = tool(s["x"])
    s += r + lmc.gen("y", max_tokens=5)
    effect("mid", s["y"], len(r))
    if "a" in s["y"]:
        effect("a")
    s += tool("const") + tool(q)
    return r


RESULTS: list[str] = []


@case([{"q": "a"}, {"q": "b"}], reset=RESULTS.clear, outside=lambda: list(RESULTS), batch=False)  # items would share the list
def outside_list(s: Any, q: str) -> int:
    s += q + lmc.gen("x", max_tokens=5)
    RESULTS.append(s["x"])
    RESULTS.append("end")
    s += str(len(RESULTS)) + RESULTS[0]
    return len(RESULTS)


@case([{"q": "a", "stop": ["a", "b"]}, {"q": "b", "stop": []}])
def stops(s: Any, q: str, stop: list[str]) -> str:
    s += q + lmc.gen("x", max_tokens=9, stop=stop) + lmc.gen("y", max_tokens=9, stop=["e"])
    stop.append("i")
    s += lmc.gen("z", max_tokens=9, stop=stop)
    return s["x"] + str(stop)


def fill(q: str, out: list[str]) -> None:
    effect("fill", q)
    out.append(q)
    out.append(q + "!")


ESCAPED: list[Any] = []


def size(m: list[Any]) -> int:
    ESCAPED.append(m)
    return len(m)


@case([{"q": "a"}, {"q": "b"}], reset=ESCAPED.clear, outside=lambda: list(ESCAPED), batch=False, journal=False)  # items would share the list
def containers_escape(s: Any, q: str) -> Any:
    out: list[str] = []
    fill(q, out)
    s += q + lmc.gen("x", max_tokens=3)
    m = [s["x"]]
    n = size(m)
    m.append("2")
    return len(out), n, m, ESCAPED[-1] is m, ESCAPED[-1]


MODE = "a"


def set_mode(mode: str) -> None:
    global MODE
    effect("mode", mode)
    MODE = mode


def _mode_a() -> None:
    global MODE
    MODE = "a"


@case([{"q": "a"}], reset=_mode_a, outside=lambda: MODE, journal=False)
def outside_changes(s: Any, q: str) -> str:
    if MODE == "a":
        s += "mode a "
    set_mode("b")
    s += lmc.gen("x", max_tokens=3)
    if MODE == "a":
        s += "still a"
    else:
        s += "now " + MODE
    return MODE


@case([{"queue": ["u", "v", "w"]}, {"queue": []}, {"queue": ["z"]}])
def queue_argument(s: Any, queue: list[str]) -> int:
    n = 0
    while queue:
        s += queue.pop(0) + lmc.gen("x", max_tokens=3)
        n += 1
        if n == 2:
            queue.append("extra")
    return n


LOCK = threading.Lock()


@case([{"q": "a"}])
def locks(s: Any, q: str) -> str:
    with LOCK:
        effect("locked", LOCK.locked())
        s += q + lmc.gen("x", max_tokens=3)
        r = tool(s["x"])
    effect("free", LOCK.locked())
    return r


@dataclass
class Config:
    style: str = "brief"
    limit: int = 6


CONFIG = Config()


@case([{"q": "a", "config": Config("long", 5)}, {"q": "b", "config": Config()}])
def configured(s: Any, q: str, config: Any) -> str:
    s += CONFIG.style + q + lmc.gen("x", max_tokens=CONFIG.limit) + config.style
    s += lmc.gen("y", max_tokens=config.limit, regex=r"[ab]{2,5}")
    CONFIG.limit += 0
    config.style = "changed"
    return config.style + s["y"]


_FOLDER = tempfile.TemporaryDirectory(prefix="lmc-effects-")  # goes when the process ends
SCRATCH = Path(_FOLDER.name) / "file"


@case(reset=lambda: (random.seed(1), SCRATCH.unlink(missing_ok=True)), outside=lambda: SCRATCH.exists() and SCRATCH.read_text(), batch=False, journal="refused")
def time_random_and_files(s: Any, q: str) -> Any:
    first = random.random()
    with open(SCRATCH, "a") as file:
        file.write(f"{first}\n")
    s += f"{random.randint(0, 9)}" + lmc.gen("x", max_tokens=2)
    with open(SCRATCH, "a") as file:
        file.write(s["x"] + "\n")
    return first, random.choice([s["x"], "b", "c"]), random.random(), open(SCRATCH).read()


@case(reset=lambda: SCRATCH.write_text("one\ntwo\n"), journal="refused")
def files_and_sets(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    with open(SCRATCH) as file:
        for line in file:
            s += line + lmc.gen("y", max_tokens=1)
    letters = outside.quiet(s["x"] + "k")
    return [c for c in sorted(set(letters))], sorted({c: 1 for c in set(letters)})


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


OUTSIDE = {"reset": outside.reset, "outside": outside.look, "batch": False}  # items of a batch would share it


@case(**OUTSIDE, backend=scripted(x=["a", "rare", "a", "rare"]))
def global_changed_then_new_arm(s: Any, q: str) -> Any:
    limit = outside.LIMIT
    outside.set_limit(9)
    for _ in range(2):
        s += q + lmc.gen("x", max_tokens=4)
        if len(s["x"]) > 2:
            s += f"limit {limit}"
    return limit


@case(**OUTSIDE, journal=False)
def attributes_of_functions_and_classes(s: Any, q: str) -> Any:
    first = outside.counted.calls, outside.Settings.level, outside.Settings.note
    a = outside.counted(q)
    outside.Settings.level += 1
    outside.Settings.note = a
    b = outside.counted(a)
    s += a + b + str(outside.counted.calls) + lmc.gen("x", max_tokens=3)
    return first, outside.Settings.level, outside.Settings.note, opaque(s["x"]) * 0
