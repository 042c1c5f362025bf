"""Constraints: a regex, JSON schema or grammar becomes a matcher that masks tokens and knows when the answer is complete.

source ──normalise──► xgrammar grammar ──compile, once per (kind, source)──► CompiledGrammar ──► one matcher a sequence

Regexes are Python's dialect with ASCII classes (semantics.md §3). xgrammar reads another dialect and is silently
wrong on parts of ours, so a regex is parsed by `lmc.fsm.regex` and written out again from its tree, with every class
as explicit code-point ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lmc.backend.engine.once import Once
from lmc.errors import ConstraintError, Loc
from lmc.extras import require
from lmc.fsm.bounds import check_ebnf
from lmc.fsm.charset import Ranges
from lmc.fsm.dfa import sets
from lmc.fsm.forced import Encode, no_tokens
from lmc.fsm.jumps import Jumps
from lmc.fsm.regex import Chars, Concat, Node, Repeat, Union, parse
from lmc.fsm.sources import ebnf_of
from lmc.fsm.structural_tag import normalised
from lmc.fsm.tokens import Row, TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.prompt import Constraint

_LIMIT = 256 << 20  # bytes of compiled grammars that are kept; the least recently used go
_MOST_RANGES = 300  # of a class; those under (?u) have up to 700, for which xgrammar would take minutes
KINDS = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})


class Matcher(Protocol):
    """Follows one answer through its language. Not thread-safe: used by the scheduler thread only."""

    @property
    def bits(self) -> np.ndarray:
        """The allowed next tokens: uint32 [ceil(vocab / 32)], token i is bit i % 32 of word i // 32. To be read before
        the next `accept`, and never written."""
        ...

    refused: int
    """How firmly the model was seen to want what is not allowed; kept here by whoever samples (masking.py)."""

    @property
    def row(self) -> Row | None:
        """`bits` and what else is known of them, where they are at hand; None where they would have to be made."""
        ...

    @property
    def place(self) -> tuple[TokenAutomaton, int] | None:
        """The automaton, and the state in it, from which a device can follow the answer by itself; None: only the host can."""
        ...

    @property
    def surprise(self) -> float:
        """How likely it is that tokens are forced behind the next one, 0 to 1."""
        ...

    def allows(self, token: int) -> bool:
        """One bit of `bits`, without the others where that is cheaper."""
        ...

    def accept(self, token: int) -> None:
        """Moves on by a token that the mask allowed."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever is sampled (fsm/forced.py); does not move. None behind a forced run."""
        ...

    def accept_forced(self, tokens: Sequence[int]) -> None:
        """Moves on by all that `forced` has just given."""
        ...

    @property
    def complete(self) -> bool:
        """The text so far is in the language."""
        ...

    @property
    def done(self) -> bool:
        """Complete, and nothing may follow."""
        ...


class Compiler(Protocol):
    """Turns a constraint into matchers; compiled forms are shared by all requests."""

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        """Compiles; raises ConstraintError with the place if the source is invalid or not supported."""
        ...

    def matcher(self, constraint: Constraint) -> Matcher: ...

    def info(self) -> ConstraintInfo: ...

    def close(self) -> None:
        """Keeps for other processes what is worth keeping."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintInfo:
    """What a compiler holds: compiled constraints of either kind, mask rows built so far, and the memory of it all."""

    automata: int = 0
    rows_built: int = 0
    grammars: int = 0
    bytes: int = 0


# -- xgrammar ----------------------------------------------------------------------------------------------------


class XGrammarCompiler:
    """Compiles by xgrammar over one vocabulary. Thread-safe.

    token_bytes  bytes of each token id; special ids are blanked, so that no mask ever allows one (xgrammar would
                 allow their spelling inside JSON strings)
    eos          the token that ends an answer which could go on
    encode       ids of plain text in the middle of a sequence; None forces nothing
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_ids: Iterable[int],
        eos: int,
        vocab_size: int,
        encode: Encode | None = None,
    ) -> None:
        require("a grammar that is not regular", "grammar")
        import xgrammar

        special = set(special_ids) | {eos}
        vocab = [b"" if i in special else b for i, b in enumerate(token_bytes)]
        info = xgrammar.TokenizerInfo(vocab, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[eos])  # pyright: ignore[reportArgumentType]
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)  # its own has no bound
        self._words = (vocab_size + 31) // 32
        self._eos_words = np.zeros(self._words, np.uint32)
        self._eos_words[eos // 32] = np.uint32(1 << (eos % 32))
        self._jumps = Jumps(Vocabulary(vocab, (eos,), special, vocab_size), encode) if encode is not None else None
        self._compiled = Once(self._compile, lambda compiled: compiled.memory_size_bytes, _LIMIT)

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        self._get(constraint, loc)

    def matcher(self, constraint: Constraint) -> Matcher:
        return _XGrammarMatcher(
            self._xgrammar.GrammarMatcher(self._get(constraint, None)), self._eos_words, self._jumps
        )

    def info(self) -> ConstraintInfo:
        found = self._compiled.items()
        return ConstraintInfo(grammars=len(found), bytes=sum(c.memory_size_bytes for _, c in found))

    def close(self) -> None: ...

    def _get(self, constraint: Constraint, loc: Loc | None) -> Any:
        try:
            return self._compiled.get(constraint)
        except ConstraintError as error:
            raise ConstraintError(error.message, loc=loc) from error.__cause__

    def _compile(self, constraint: Constraint) -> Any:
        kind, source = constraint.kind, constraint.source
        if kind not in _COMPILE:
            raise ConstraintError(f"the engine has no {kind} constraints; it has {', '.join(_COMPILE)}")
        try:
            compiled = _COMPILE[kind](self._compiler, source)
        except (RuntimeError, ValueError) as e:  # what xgrammar raises for sources it refuses
            reason = re.sub(r"^\[[\d:]+\] \S+: ", "", str(e)).strip()
            raise ConstraintError(f"{kind} {_short(source)} is not usable: {reason}") from e
        if not self._starts(compiled):
            raise ConstraintError(f"{kind} {_short(source)} allows no text that the model could begin")
        return compiled

    def _starts(self, compiled: Any) -> bool:
        """Whether some token may come first."""
        return bool(_XGrammarMatcher(self._xgrammar.GrammarMatcher(compiled), self._eos_words, None).bits.any())


def _compile_regex(compiler: Any, source: str) -> Any:
    regex = normalise_regex(source)
    check_ebnf("regex", source, regex)
    return compiler.compile_regex(regex)


def _compile_json_schema(compiler: Any, source: str) -> Any:
    """Ours, written as EBNF: xgrammar's own reading of schemas ignores some keywords."""
    return compiler.compile_grammar(ebnf_of("json_schema", source))


def _compile_lark(compiler: Any, source: str) -> Any:
    return compiler.compile_grammar(ebnf_of("lark", source))


def _compile_ebnf(compiler: Any, source: str) -> Any:
    check_ebnf("ebnf", source, source)
    return compiler.compile_grammar(source)


def _compile_structural_tag(compiler: Any, source: str) -> Any:
    check_ebnf("structural_tag", source, source)
    return compiler.compile_structural_tag(normalised(source))


_COMPILE: dict[str, Callable[[Any, str], Any]] = {
    "regex": _compile_regex,
    "json_schema": _compile_json_schema,
    "ebnf": _compile_ebnf,
    "lark": _compile_lark,
    "structural_tag": _compile_structural_tag,
}


class _XGrammarMatcher:
    """One answer's position in an xgrammar grammar.

    The matcher is made to want its stop token (EOS): with `terminate_without_stop_token` it would end at the first
    complete prefix, and `[0-9]+` would be one digit for ever.
    """

    row = place = None
    surprise = 1.0

    def __init__(self, matcher: Any, eos_words: np.ndarray, jumps: Jumps | None) -> None:
        import torch

        self._matcher, self._jumps = matcher, jumps
        self._recent, self.refused = no_tokens(), 0
        self._eos_words = eos_words
        self._row = torch.zeros((1, len(eos_words)), dtype=torch.int32)  # the mask at the present position
        self.bits = self._row.numpy().view(np.uint32)[0]
        self._refill()

    def _refill(self) -> None:
        self._row.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._row, 0)
        self.complete = bool(self._matcher.is_completed())
        self.done = self.complete and not bool((self.bits & ~self._eos_words).any())

    def allows(self, token: int) -> bool:
        return bool(self.bits[token // 32] >> np.uint32(token % 32) & np.uint32(1))

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self._recent.append(token)
        self._refill()

    def accept_forced(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.accept(token)

    def forced(self) -> Sequence[int]:
        if self._jumps is None or self.complete:
            return ()
        try:
            text = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # the forced bytes begin or end inside a character; xgrammar has them as text only
            return ()
        return self._jumps.behind(self._recent, text)


# -- regexes: Python's dialect in, xgrammar's out ----------------------------------------------------------------


def normalise_regex(pattern: str) -> str:
    """The same language (that of `re.fullmatch(pattern, text, re.ASCII)`) in the syntax that xgrammar reads rightly.

    Raises ConstraintError for what `lmc.fsm.regex.parse` refuses, and for Unicode classes.
    """
    tree = parse(pattern)
    if any(len(s.ranges) > _MOST_RANGES for s in sets(tree)):
        raise ConstraintError(
            f"regex {_short(pattern)} has Unicode classes (?u) and needs too large an automaton: "
            f"write + or * and a max_tokens instead of a large repeat, list the ranges that you need, or leave (?u) out"
        )
    return _written(tree)


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


def _short(source: str) -> str:
    return repr(source if len(source) <= 80 else source[:77] + "…")
