"""Random programs, streamed: the pieces make up the interpreter's text, and the state ends as the interpreter's does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import given

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import EFFECTS, observe
from tests.conformance.programs import compiled, sources
from tests.conformance.search import ITEMS
from tests.searching import search


def watched(run: Any, item: dict[str, Any], look: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the pieces of a stream, how the program ended, and its effects."""
    EFFECTS.clear()
    shown: list[str] = []
    end: Any = None
    state = run(**copy.deepcopy(item), backend=Mock(), seed=7, temperature=0.8)
    try:
        shown.extend(state.text_iter())
        end = observe(state)
    except Exception as error:
        end = type(error).__name__, str(error)
    return "".join(shown), end, list(EFFECTS), look()


@search(3, 40)
@given(sources())
def test_random_streams(source: str) -> None:
    program, reset, look = compiled(source)
    fast = lmc.compile(program, opt=len(source) % 2)
    for item in ITEMS:
        reset()
        expected = watched(lambda **kw: program.run(stream=True, **kw), item, look)
        for _ in range(2):
            reset()
            assert watched(fast.stream, item, look) == expected
