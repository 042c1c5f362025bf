"""Calls of Python's own that are recomputed when a run is resumed: what only computes, makes plain objects, or looks at frames."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import string
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import lmc
from tests.durable.resuming import CALLS, resumes_anywhere

NUMBER = re.compile(r"\d")


@lmc.host(idempotent=True)
def noted(x: Any) -> Any:
    CALLS.append(("noted", repr(x)))
    return x


@lmc.function
def computes(s, q):
    s += q + lmc.gen("a", max_tokens=4)
    letters = [m.start() for m in re.finditer("[a-m]", s["a"])], [m[0] for m in NUMBER.finditer(s["a"])], re.match(".", s["a"])[0]
    noted(letters)
    chained = list(itertools.chain.from_iterable([[q], s["a"]]))
    text = string.Template("$a b").substitute(a=s["a"])
    s += text + lmc.gen("b", max_tokens=4)
    return noted(chained), text, s["b"]


@lmc.function
def caches(s, q):
    @functools.lru_cache
    def asked(text):
        s.__iadd__(text + lmc.gen("a", max_tokens=4))
        return s["a"]

    found = noted([asked("x"), asked("x"), asked("y")])
    info = asked.cache_info()
    asked.cache_clear()
    return found, info.hits, info.misses, asked.cache_info().currsize


@lmc.function
def looks_at_frames(s, q):
    def helper():
        return inspect.stack(0)[1].function, sys._getframe(1).f_code.co_name, traceback.extract_stack()[-1].name

    s += q + lmc.gen("a", max_tokens=4)
    items = (x for x in "ab")
    seen = [inspect.stack(0)[0].function, *helper(), inspect.getgeneratorstate(items)]
    try:
        noted(int("x"))
    except ValueError as error:
        return noted(seen), traceback.format_exc().splitlines()[-1], traceback.extract_tb(error.__traceback__)[-1].name


@pytest.mark.parametrize("program", [computes, caches, looks_at_frames])
def test_resumes_behind_what_is_made_again(program: Any, tmp_path: Path):
    resumes_anywhere(program, {"q": "q"}, tmp_path)


def test_frames_are_those_of_the_program(tmp_path: Path):
    seen, message, name = looks_at_frames.run("q", backend=lmc.Mock(), journal=tmp_path / "journal").ret_value
    assert seen == ["looks_at_frames", "looks_at_frames", "looks_at_frames", "helper", "GEN_CREATED"]
    assert message == "ValueError: invalid literal for int() with base 10: 'x'" and name == "looks_at_frames"
