"""Searches with regular expressions that may take long, by a matcher that can be interrupted: `re` holds the interpreter until it is done, and so
the answer that its program waits for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from inspect import signature
from time import thread_time
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture import scan
from lmc.frontend.capture.outside import ATOMS
from lmc.frontend.capture.unknown import Raised, Stop, Undecided

LONGEST = 0.1
"""Seconds of a search after which its result is unknown."""
SEARCHES = frozenset("compile match search fullmatch findall finditer split sub subn".split())
STANDS_FOR: dict[type, type] = {}
"""Types of the matcher, once it is loaded, with those of `re` that they replace."""
_POSITIONAL = {"split": 2, "sub": 3, "subn": 3}
"""Number of arguments that `re`'s functions take by position without a warning; else all of them."""
_OTHERWISE = re.compile(r"\[\[|--|&&|~~|\|\||(?<!\\)\{[\d\s]*[idse<]")
"""In a pattern: nested sets, of which `re` warns, and `a{i<2}`, which means something else to the matcher."""
_COUNTS = re.compile(r"\{(?:\d*,)?(\d+)\}")
_REPEATED_GROUP = re.compile(r"\)\s*[*+?{]|\(\?[a-z]*x")
"""In a pattern: a group that is repeated, or that may hold comments."""
_CHOICES = re.compile(r"[*+?{|]")
MOST_STEPS = 1_000_000
"""Steps of `re` that take no longer than a matcher of its own takes to load."""
MOST_REPEATED = 10_000
"""Product of the counts of repetitions: the matcher writes them out as it compiles a pattern."""


def search(fn: Callable[..., Any], how: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of `re`, or a method of a pattern, on known arguments. Raises Undecided if that takes long, fails, or `re` would warn."""
    pattern = getattr(fn, "__self__", None)
    if not isinstance(pattern, re.Pattern):
        kwargs = dict(op.native(_signature(fn).bind, *args, **kwargs).arguments)
        given, flags = kwargs.pop("pattern"), kwargs.pop("flags", 0)
        if len(args) > _POSITIONAL.get(how, 4) or not _reads_alike(given):
            raise Undecided(None)
        pattern, args = op.native(re.compile, given, flags), ()
    if how == "compile":
        return pattern
    sizes = [len(x) for x in (*args, *kwargs.values()) if isinstance(x, (str, bytes, bytearray, memoryview))]
    if how in ("sub", "subn") and math.prod(sizes) > op.LARGEST_TEXT:
        raise Stop("a text is too large")
    try:
        if _is_quick(pattern, sum(sizes)):
            found = op.native(getattr(pattern, how), *args, **kwargs)
        else:
            found = op.native(getattr(_interruptible(pattern), how), *args, **kwargs, timeout=LONGEST)
    except Raised:
        raise Undecided(None) from None
    return iter(list(found)) if how == "finditer" else found


_signature = lru_cache(signature)


def _is_quick(pattern: re.Pattern[Any], size: int) -> bool:
    """Return whether `re` takes few steps on a text of a size, even if it tries each choice at each character."""
    written = str(pattern.pattern)
    if pattern.flags & re.VERBOSE or _REPEATED_GROUP.search(written):
        return False
    return (size + 1) ** (1 + len(_CHOICES.findall(written))) <= MOST_STEPS


def _reads_alike(pattern: Any) -> bool:
    return not _OTHERWISE.search(str(pattern)) and math.prod([int(n) for n in _COUNTS.findall(str(pattern))]) <= MOST_REPEATED


@lru_cache(256)
def _interruptible(pattern: re.Pattern[Any]) -> Any:
    """Return a pattern of the matcher's. Raises Undecided for one that it does not read as `re` does."""
    if not _reads_alike(pattern.pattern):
        raise Undecided(None)
    began = thread_time()
    regex: Any = import_module("regex")
    ATOMS.add(regex.Match)
    STANDS_FOR[regex.Match] = re.Match
    flags = pattern.flags & ~(re.ASCII | re.DEBUG) | (regex.A if pattern.flags & re.ASCII else 0)
    try:
        return op.native(regex.compile, pattern.pattern, flags, cache_pattern=False)
    except Raised:
        raise Undecided(None) from None
    finally:
        scan.spent += thread_time() - began
