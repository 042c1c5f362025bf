"""The executions that `conform` leaves out: on a loop, streamed, journaled and resumed."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.runahead.program import Program
from tests.conformance.harness import MODES, Case, differences, eager, late, run, scripted_in_order

Way = Callable[..., lmc.State]


def check_ways(found: Case, compiled: Program, tmp: Path) -> None:
    """Assert that two items of each variant give in them what the interpreter gives."""
    for variant, (items, given) in enumerate(found.variants):
        options = {"seed": 7, **given}
        backend, reset, outside = options.pop("backend", Mock), options.pop("reset", lambda: None), options.pop("outside", lambda: None)
        apart = {mode: options.pop(mode, True) for mode in MODES}
        in_order = scripted_in_order(backend())

        def seen(call: Way, item: dict[str, Any]) -> Any:
            reset()
            mock = backend()
            if not in_order and not found.program.is_async:  # which of several tasks is first depends on when answers come
                late(mock)
            try:
                return run(call, item, outside, {**options, "backend": mock})
            finally:
                mock.close()

        for i, item in enumerate(items[:2]):
            expected = seen(found.program.run, item)
            for how, call in _ways(found.program, compiled, tmp / f"{variant}{i}", apart, in_order, set(item)).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("error", lmc.JournalWarning)
                    got = seen(call, item)
                if how == "journaled" and apart["journal"] == "refused":  # said once a call site
                    assert i or got.error is not None and got.error[0].startswith("Journal"), f"{how}, {item}: a journal holds it"
                    break
                if how == "resumed":
                    got.effects, got.outside = expected.effects, expected.outside  # they are not made again
                assert got == expected, f"{how}, {item}: {differences(got, expected)}"


def _ways(program: Any, compiled: Program, path: Path, apart: dict[str, Any], in_order: bool, names: set[str]) -> dict[str, Way]:
    fast = lmc.compile(program)
    ahead = fast if in_order or not apart["ahead"] else eager(lmc.compile(program, ahead="likely"), compiled.planner)
    fast.planner = compiled.planner

    def streamed(**given: Any) -> lmc.State:
        state = ahead.stream(**given)
        shown = "".join(state.text_iter())
        assert shown == state.text()
        state.ret_value  # noqa: B018
        return state

    def in_a_batch(**given: Any) -> lmc.State:
        item = {name: given.pop(name) for name in names}
        return asyncio.run(fast.abatch([item], **given))[0]

    ways: dict[str, Way] = {
        "acall": lambda **given: asyncio.run(ahead.acall(**given)),
        "arun": lambda **given: asyncio.run(program.arun(**given)),
        "stream": streamed,
    }
    if apart["batch"]:
        ways["abatch"] = in_a_batch
    if apart["journal"]:
        ways |= {"journaled": lambda **given: fast(**given, journal=path), "resumed": lambda **given: ahead(**given, journal=path)}
    return ways
