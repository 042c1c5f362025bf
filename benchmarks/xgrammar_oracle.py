"""The mask oracle: xgrammar over our sources. Its dialect of regexes is another one, so ours are written out for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmc.fsm.charset import Ranges
from lmc.fsm.nodes import Chars, Concat, Node, Repeat, Union
from lmc.fsm.regex import parse_part


class Oracle:
    """Compiles regexes by xgrammar over one vocabulary."""

    def __init__(self, tokens: Sequence[bytes], eos: int, size: int) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        info = xgrammar.TokenizerInfo(list(tokens), xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[eos])  # pyright: ignore[reportArgumentType]
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self._words = (size + 31) // 32

    def regex(self, pattern: str) -> OracleMatcher:
        return OracleMatcher(self._xgrammar.GrammarMatcher(self._compiler.compile_regex(normalise_regex(pattern))), self._words)


class OracleMatcher:
    """One answer in xgrammar: `bits` are the tokens that may come next. It is made to want its stop token; with
    `terminate_without_stop_token` it would end at the first complete prefix."""

    def __init__(self, matcher: Any, words: int) -> None:
        import torch

        self._matcher = matcher
        self._row = torch.zeros((1, words), dtype=torch.int32)

    @property
    def bits(self) -> np.ndarray:
        self._row.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._row, 0)
        return self._row.numpy().view(np.uint32)[0].copy()

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> None:
        assert self._matcher.accept_token(token), f"token {token} is outside of the regex"


def normalise_regex(pattern: str) -> str:
    """The same language (that of `re.fullmatch(pattern, text, re.ASCII)`) in the syntax that xgrammar reads rightly."""
    return _written(parse_part(pattern))


def _written(tree: Node) -> str:
    if isinstance(tree, Chars):
        return _char_class(tree.ranges)
    if isinstance(tree, Concat):
        return "".join(map(_written, tree.parts))
    if isinstance(tree, Union):
        return f"(?:{'|'.join(map(_written, tree.arms))})"
    assert isinstance(tree, Repeat)
    inner = _written(tree.body)
    return f"(?:{inner}){_count(tree.low, tree.high)}" if inner else ""


def _count(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    return short or (f"{{{low},}}" if high is None else f"{{{low},{high}}}")


def _char_class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges) + "]"


def _char(code: int) -> str:
    """One character, safe inside and outside of a class."""
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\u{{{code:x}}}"
