"""Runs generated programs in every execution, shrinks those on which two executions differ, and searches many seeds in parallel.

What a program is run with (backend faults, latency, temperature, optimization level, batch, threads) follows from its text's
seed, so a seed is a whole test.
"""

from __future__ import annotations

import ast
import copy
import random
import signal
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.errors import BackendError
from tests.conformance.harness import EFFECTS, Seen, asked, eager, lying, observe, run
from tests.conformance.programs import compiled, source

ITEMS: list[dict[str, Any]] = [{"q": "a", "xs": ["u"]}, {"q": "bee gee", "xs": ["oh", "a b"], "flag": True}, {"q": "c", "xs": ["u"]}]
HANG = 120
"""Seconds after which a program is taken to hang."""


@dataclass(frozen=True)
class Setting:
    """The settings of a run besides the program's arguments.

    faults   every how many-th request fails, by its name and seed; 0: none
    ahead    how far it is asked ahead; "lies": by a plan that lies
    """

    ahead: str = "certain"
    temperature: float = 0.8
    faults: int = 0
    latency: bool = False
    batch: bool = True
    threads: bool = False
    opt: int = 1

    @staticmethod
    def of(seed: int) -> Setting:
        r = random.Random(f"setting {seed}")
        return Setting(
            ahead=r.choice(["off", "certain", "certain", "likely", "likely", "lies", "lies"]), temperature=r.choice([0.8, 0.8, 0]),
            faults=r.choice([0, 0, 0, 7]), latency=r.random() < 0.6, batch=r.random() < 0.5, threads=r.random() < 0.15, opt=r.choice([0, 1, 1]),
        )  # fmt: skip

    def backend(self) -> Mock:
        def failing(ask: Any, _: int) -> BaseException | None:
            return BackendError(f"planted for {ask.name}") if zlib.crc32(f"{ask.name} {ask.seed}".encode()) % self.faults == 0 else None

        def slow(ask: Any) -> float:
            return (0, 0.0004, 0.001)[zlib.crc32(f"{ask.name} {ask.seed}".encode()) % 3]

        return Mock(latency=slow if self.latency else 0, fault=failing if self.faults else None)

    def compile(self, program: Any) -> Callable[..., Any]:
        """The program as it is called under this setting."""
        if self.ahead == "lies":
            return lying(program, random.Random(repr(self)))
        return eager(lmc.compile(program, opt=self.opt, ahead=self.ahead))


class Hangs(BaseException):  # not an Exception: neither the program nor the executor may take it for one of the program's
    """A program that did not end."""


class Differs(AssertionError):
    """Two executions of a program gave different results."""


def check(text: str, setting: Setting) -> None:
    """Raises `Differs` where two executions of a program differ in anything that can be seen."""
    program, reset, look = compiled(text)
    private = "outside." not in text.replace("outside.section", "").replace("outside.relay", "") and not any(
        w in text for w in (" G", "(G", "N ", "STEPS", "TABLE", "keep(")
    )
    options: dict[str, Any] = {"seed": 7, "temperature": setting.temperature}
    reference: list[tuple[Seen, Counter[Any]]] = []
    for world, item in enumerate(ITEMS):
        reset(world % 2)
        with closing(setting.backend()) as mock:
            reference.append((run(program.run, item, look, {**options, "backend": mock}), _all_asked(mock)))
    fast = setting.compile(program)
    for turn in ("first", "second"):
        for world, (item, (expected, log)) in enumerate(zip(ITEMS, reference, strict=True)):
            reset(world % 2)
            with closing(setting.backend()) as mock:
                seen, calls = run(fast, item, look, {**options, "backend": mock}), _all_asked(mock)
            _same(f"{turn} {item}", seen, expected, setting)
            if setting.ahead == "off" and expected.error is None and calls - log:
                raise Differs(f"{turn} {item}: calls added {calls - log}")
    lmc.compile(program, opt=setting.opt).dump_ir()  # raises an IRError for a graph that is not well-formed
    if private and setting.batch:
        _batch(program, lmc.compile(program, opt=setting.opt, ahead="certain"), setting, options)
    if private and setting.threads:
        _threads(lmc.compile(program, opt=setting.opt), [seen for seen, _ in reference], setting, options)


def _all_asked(mock: Mock) -> Counter[Any]:
    """Return all asks, once nothing is under way any more: forks that nobody reads may still be."""
    while mock._pending:
        time.sleep(0.0005)
    return asked(mock)


def _same(where: str, seen: Any, expected: Any, setting: Setting) -> None:
    if seen == expected:
        return
    lines = [f"{where} ({setting}):"]
    for name in Seen.__dataclass_fields__:
        a, b = getattr(seen, name), getattr(expected, name)
        if a != b:
            lines += [f"  {name}", f"    compiled    {a!r}", f"    interpreter {b!r}"]
    raise Differs("\n".join(lines))


def _of_runs(effects: Sequence[Any]) -> dict[Any, list[Any]]:
    """The effects by the run they belong to, each in its order; a tool of a generated program is told the run last."""
    found: dict[Any, list[Any]] = {item["q"]: [] for item in ITEMS}
    for effect in effects:
        found.setdefault(effect[-1] if effect[-1] in found else None, []).append(effect)
    rest: list[Any] = found.pop(None, [])
    return {**found, None: sorted(map(repr, rest))}


def _batch(program: Any, fast: lmc.Program, setting: Setting, options: dict[str, Any]) -> None:
    EFFECTS.clear()
    with closing(setting.backend()) as mock:
        expected = [_seen(state) for state in program.run_batch(copy.deepcopy(ITEMS), backend=mock, errors="return", num_threads=1, **options)]
    effects = _of_runs(EFFECTS)
    EFFECTS.clear()
    with closing(setting.backend()) as mock:
        got = [_seen(state) for state in fast.batch(copy.deepcopy(ITEMS), backend=mock, errors="return", **options)]
    for item, seen, one in zip(ITEMS, got, expected, strict=True):
        _same(f"batch {item}", seen, one, setting)
    if _of_runs(EFFECTS) != effects:
        raise Differs(f"batch: effects\n    compiled    {_of_runs(EFFECTS)}\n    interpreter {effects}")


def _seen(state: lmc.State) -> Seen:
    if state.failure is not None:
        return Seen(error=(type(state.failure).__name__, str(state.failure)))
    try:
        return observe(state)
    except Exception as error:  # of a backend's fault
        return Seen(error=(type(error).__name__, str(error)))


def _threads(fast: lmc.Program, expected: Sequence[Seen], setting: Setting, options: dict[str, Any]) -> None:
    EFFECTS.clear()
    got: dict[int, Seen] = {}

    def work(index: int) -> None:
        item = copy.deepcopy(ITEMS[index % len(ITEMS)])
        try:
            with closing(setting.backend()) as mock:
                seen = observe(fast(**item, **options, backend=mock))
        except Exception as error:
            seen = Seen(error=(type(error).__name__, str(error)))
        seen.arguments = item
        got[index] = seen

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(ITEMS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, seen in sorted(got.items()):
        _same(f"threads, {ITEMS[index]}", seen, replace(expected[index], effects=[], outside=None), setting)
    effects = _of_runs(EFFECTS)
    for item, one in zip(ITEMS, expected, strict=True):
        want = [e for e in one.effects if e[-1] == item["q"]]
        if effects[item["q"]] != want:
            raise Differs(f"threads, {item}: effects {effects[item['q']]} instead of {want}")


def problem(text: str, setting: Setting) -> str | None:
    """Return what is wrong with a program, or None."""

    def late(*_: Any) -> None:
        raise Hangs(f"not over after {HANG} s")

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, late) if in_main else None
    if in_main:
        signal.alarm(HANG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(text, setting)
    except SyntaxError:
        raise
    except (Exception, Hangs) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if in_main:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return None


# -- shrinking ------------------------------------------------------------------------------------------------------------


def shrunk(text: str, setting: Setting, tries: int = 400) -> tuple[str, Setting]:
    """A smaller program, under simpler settings, that still has a problem of this kind."""
    kind = (problem(text, setting) or "").partition(":")[0]

    def fails(text: str, setting: Setting) -> bool:
        try:
            said = problem(text, setting)
        except SyntaxError:
            return False
        return said is not None and said.partition(":")[0] == kind

    for simpler in (replace(setting, threads=False), replace(setting, batch=False), replace(setting, latency=False), replace(setting, faults=0),
                    replace(setting, temperature=0), replace(setting, opt=0)):  # fmt: skip
        merged = replace(setting, **{k: v for k, v in vars(simpler).items() if v != getattr(setting, k)})
        if merged != setting and fails(text, merged):
            setting = merged
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(text):
            tries -= 1
            if tries <= 0:
                break
            if fails(smaller, setting):
                text, progress = smaller, True
                break
    return text, setting


def _smaller(text: str) -> Iterator[str]:
    """Texts with one statement less, or with a compound statement's body in its place; large cuts first."""
    tree = ast.parse(text)
    places: list[tuple[int, ast.AST, str, int]] = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            held: Any = getattr(node, field, None)
            for i, item in enumerate(held if isinstance(held, list) else ()):
                places.append((len(list(ast.walk(item))), node, field, i))
    for _, node, field, i in sorted(places, key=lambda p: -p[0]):
        items: list[Any] = getattr(node, field)
        item = items[i]
        for instead in ([], *_bodies(item)):
            setattr(node, field, [*items[:i], *instead, *items[i + 1 :]] or ([ast.Pass()] if field == "body" else []))
            try:
                yield ast.unparse(tree) + "\n"
            except Exception:  # a try without handlers, and the like
                pass
            setattr(node, field, items)


def _bodies(item: Any) -> list[list[Any]]:
    if isinstance(item, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
        return []
    return [body for field in ("body", "orelse", "finalbody") if (body := getattr(item, field, None)) and isinstance(body, list)]


# -- searching ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    seed: int
    problem: str
    text: str
    setting: Setting


def look_at(seed: int) -> tuple[int, str | None]:
    return seed, problem(source(seed), Setting.of(seed))


def examined(seed: int, said: str) -> Failure:
    """A failing seed, shrunk."""
    text, setting = shrunk(source(seed), Setting.of(seed))
    return Failure(seed, problem(text, setting) or said, text, setting)
