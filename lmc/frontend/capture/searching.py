"""Searches with regular expressions: those that are quick whatever the text. `re` holds the interpreter until it is done, and so the answer that its
program waits for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.unknown import Raised, Undecided

SEARCHES = frozenset("compile match search fullmatch findall finditer split sub subn".split())
MOST_STEPS = 10_000_000
"""Steps of a search, about 0.1 s."""
_POSITIONAL = {"split": 2, "sub": 3, "subn": 3}
"""Number of arguments that `re`'s functions take by position without a warning; else all of them."""
_WARNED_OF = re.compile(r"\[\[|--|&&|~~|\|\|")
"""In a pattern: nested sets."""
_COUNTS = re.compile(r"\{(?:\d*,)?(\d+)\}")
MOST_REPEATED = 10_000
"""Product of the counts of repetitions: a pattern is compiled with all of them."""
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]|\(\?[a-z]*x")
"""In a pattern: a group that is repeated, or that may hold comments."""
_CHOICES = re.compile(r"(?<![(*+?}])[*+?{|]")
"""In a pattern: repetitions, lazy or not, and alternatives."""


def search(fn: Callable[..., Any], how: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of `re`, or a method of a pattern, on known arguments. Raises Undecided if that may take long, fails, or `re` would warn."""
    pattern = getattr(fn, "__self__", None)
    if not isinstance(pattern, re.Pattern):
        kwargs = dict(op.native(_signature(fn).bind, *args, **kwargs).arguments)
        given, flags = kwargs.pop("pattern"), kwargs.pop("flags", 0)
        counts = [int(n) for n in _COUNTS.findall(str(given))]
        if len(args) > _POSITIONAL.get(how, 4) or _WARNED_OF.search(str(given)) or math.prod(counts) > MOST_REPEATED:
            raise Undecided(None)
        pattern, args = op.native(re.compile, given, flags), ()
    if how == "compile":
        return pattern
    sizes = [len(x) for x in (*args, *kwargs.values()) if isinstance(x, (str, bytes))]
    if how in ("sub", "subn"):
        op.fits(math.prod(sizes))
    if not _is_quick(pattern, sum(sizes)):
        raise Undecided(None)
    try:
        found = op.native(getattr(pattern, how), *args, **kwargs)
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
