"""Constraints: a regex, JSON schema or grammar becomes a matcher that masks tokens and knows when the answer is complete.

source ──normalise──► xgrammar grammar ──compile, once per (kind, source)──► CompiledGrammar ──► one matcher a sequence

Regexes are Python's dialect with ASCII classes (semantics.md §3). xgrammar reads another dialect and is silently
wrong on parts of ours, so a regex is parsed by Python's own parser and written out again from its syntax tree, with
every class as explicit code-point ranges.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lmc.errors import ConstraintError, Loc
from lmc.prompt import Constraint

if TYPE_CHECKING:
    import torch

KINDS = frozenset({"regex", "json_schema", "ebnf"})

_MAX_CHAR = 0x10FFFF
_MAX_REPEAT = 10_000  # xgrammar unrolls bounded repeats
Ranges = list[tuple[int, int]]


class Matcher(Protocol):
    """Follows one answer through its language. Not thread-safe: used by the scheduler thread only."""

    def fill(self, mask: torch.Tensor, row: int) -> None:
        """Writes the allowed next tokens into row `row` of a packed bit mask [rows, ceil(vocab / 32)] int32."""
        ...

    def accept(self, token: int) -> None:
        """Moves on by a token that the mask allowed."""
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


# -- xgrammar ----------------------------------------------------------------------------------------------------


class XGrammarCompiler:
    """Compiles by xgrammar over one vocabulary. Thread-safe.

    token_bytes  bytes of each token id; special ids are blanked, so that no mask ever allows one (xgrammar would
                 allow their spelling inside JSON strings)
    eos          the token that ends an answer which could go on
    JSON schemas are compiled with `any_whitespace=False`: one canonical layout, `", "` and `": "` as separators.
    """

    def __init__(self, token_bytes: Sequence[bytes], special_ids: Iterable[int], eos: int, vocab_size: int) -> None:
        import xgrammar

        special = set(special_ids) | {eos}
        vocab = [b"" if i in special else b for i, b in enumerate(token_bytes)]
        info = xgrammar.TokenizerInfo(vocab, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[eos])  # pyright: ignore[reportArgumentType]
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2)
        self._words = (vocab_size + 31) // 32
        self._eos_words = np.zeros(self._words, np.uint32)
        self._eos_words[eos // 32] = np.uint32(1 << (eos % 32))
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        self._get(constraint, loc)

    def matcher(self, constraint: Constraint) -> Matcher:
        return _XGrammarMatcher(self._xgrammar.GrammarMatcher(self._get(constraint, None)), self._eos_words)

    def _get(self, constraint: Constraint, loc: Loc | None) -> Any:
        with self._lock:
            if constraint in self._compiled:
                self._compiled.move_to_end(constraint)
                return self._compiled[constraint]
            compiled = self._compile(constraint, loc)
            self._compiled[constraint] = compiled
            if len(self._compiled) > 512:
                self._compiled.popitem(last=False)
            return compiled

    def _compile(self, constraint: Constraint, loc: Loc | None) -> Any:
        if constraint.kind not in _COMPILE:
            raise ConstraintError(
                f"the engine has no {constraint.kind} constraints; it has {', '.join(_COMPILE)}", loc=loc
            )
        try:
            return _COMPILE[constraint.kind](self._compiler, constraint.source)
        except ConstraintError as e:
            raise ConstraintError(e.message, loc=loc) from None
        except (RuntimeError, ValueError) as e:  # what xgrammar raises for sources it refuses
            reason = re.sub(r"^\[[\d:]+\] \S+: ", "", str(e)).strip()
            raise ConstraintError(
                f"{constraint.kind} {_short(constraint.source)} is not usable: {reason}", loc=loc
            ) from e


def _compile_regex(compiler: Any, source: str) -> Any:
    return compiler.compile_regex(normalise_regex(source))


def _compile_json_schema(compiler: Any, source: str) -> Any:
    try:
        schema = json.loads(source)
    except json.JSONDecodeError as e:
        raise ConstraintError(f"json_schema is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    if not isinstance(schema, dict | bool):
        raise ConstraintError(f"json_schema must be a JSON object, not {type(schema).__name__}")
    return compiler.compile_json_schema(source, any_whitespace=False)


def _compile_ebnf(compiler: Any, source: str) -> Any:
    return compiler.compile_grammar(source)


_COMPILE: dict[str, Callable[[Any, str], Any]] = {
    "regex": _compile_regex,
    "json_schema": _compile_json_schema,
    "ebnf": _compile_ebnf,
}


class _XGrammarMatcher:
    """One answer's position in an xgrammar grammar.

    The matcher is made to want its stop token (EOS): with `terminate_without_stop_token` it would end at the first
    complete prefix, and `[0-9]+` would be one digit for ever.
    """

    def __init__(self, matcher: Any, eos_words: np.ndarray) -> None:
        import torch

        self._matcher = matcher
        self._eos_words = eos_words
        self._row = torch.zeros((1, len(eos_words)), dtype=torch.int32)  # the mask at the present position
        self._words = self._row.numpy().view(np.uint32)[0]
        self._refill()

    def _refill(self) -> None:
        self._row.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._row, 0)
        self.complete = bool(self._matcher.is_completed())
        self.done = self.complete and not bool((self._words & ~self._eos_words).any())

    def fill(self, mask: torch.Tensor, row: int) -> None:
        mask[row] = self._row[0]

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self._refill()


# -- regexes: Python's dialect in, xgrammar's out ----------------------------------------------------------------

_parser: Any = re._parser  # type: ignore[attr-defined]  # pyright: ignore
_sre: Any = re._constants  # type: ignore[attr-defined]  # pyright: ignore

_ASCII_WORD: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
_CATEGORY: dict[Any, Ranges] = {
    _sre.CATEGORY_DIGIT: [(48, 57)],
    _sre.CATEGORY_SPACE: [(9, 13), (32, 32)],
    _sre.CATEGORY_WORD: _ASCII_WORD,
}
_NEGATED = {
    _sre.CATEGORY_NOT_DIGIT: _sre.CATEGORY_DIGIT,
    _sre.CATEGORY_NOT_SPACE: _sre.CATEGORY_SPACE,
    _sre.CATEGORY_NOT_WORD: _sre.CATEGORY_WORD,
}
_WHY_NOT = {
    "ASSERT": "look-ahead and look-behind",
    "ASSERT_NOT": "look-ahead and look-behind",
    "GROUPREF": "back-references",
    "GROUPREF_EXISTS": "conditional groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repeats",
}


def normalise_regex(pattern: str) -> str:
    """The same language (that of `re.fullmatch(pattern, text, re.ASCII)`) in the syntax that xgrammar reads rightly.

    Raises ConstraintError, with the position in the pattern where one is known, for what is invalid or not regular
    (look-around, back-references, word boundaries, atomic groups) and for anchors that are not at the ends.
    """
    try:
        tree = _parser.parse(pattern, 0)
    except re.error as e:
        where = (
            f" at position {e.pos}\n    {pattern}\n    {' ' * e.pos}^"
            if e.pos is not None and "\n" not in pattern
            else ""
        )
        raise ConstraintError(f"invalid regex {_short(pattern)}: {e.msg}{where}") from None
    except (OverflowError, RecursionError) as e:
        raise ConstraintError(f"invalid regex {_short(pattern)}: {e}") from None
    flags = int(tree.state.flags)
    if flags & re.MULTILINE:
        raise ConstraintError(f"regex {_short(pattern)}: the flag (?m) is not supported in a constraint")
    if "(?u" in pattern:
        raise ConstraintError(
            f"regex {_short(pattern)}: (?u) (Unicode classes) is not supported by this engine; list the ranges"
        )
    return _Writer(pattern, flags).sequence(list(tree), at_start=True, at_end=True)


class _Writer:
    """Writes one syntax tree of `re._parser` as an xgrammar regex."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def sequence(self, items: list[tuple[Any, Any]], *, at_start: bool, at_end: bool) -> str:
        """Items one after another; `at_start`, `at_end`: nothing can precede or follow them, so anchors are void."""
        while (
            at_start
            and items
            and items[0][0] is _sre.AT
            and items[0][1] in (_sre.AT_BEGINNING, _sre.AT_BEGINNING_STRING)
        ):
            items = items[1:]
        while at_end and items and items[-1][0] is _sre.AT and items[-1][1] in (_sre.AT_END, _sre.AT_END_STRING):
            items = items[:-1]
        last = len(items) - 1
        return "".join(
            self.item(op, arg, at_start=at_start and i == 0, at_end=at_end and i == last)
            for i, (op, arg) in enumerate(items)
        )

    def item(self, op: Any, arg: Any, *, at_start: bool, at_end: bool) -> str:
        if op is _sre.LITERAL:
            return self.ranges([(arg, arg)])
        if op is _sre.NOT_LITERAL:
            return self.ranges(_complement(self.folded([(arg, arg)])))
        if op is _sre.ANY:
            return self.ranges([(0, _MAX_CHAR)] if self.flags & re.DOTALL else _complement([(10, 10)]))
        if op is _sre.IN:
            return self.ranges(self.char_class(arg))
        if op is _sre.BRANCH:
            arms = [self.sequence(list(arm), at_start=at_start, at_end=at_end) for arm in arg[1]]
            return f"(?:{'|'.join(arms)})"
        if op is _sre.SUBPATTERN:
            _, add, remove, body = arg
            inner = _Writer(self.pattern, (self.flags | add) & ~remove)
            if (add | remove) & re.MULTILINE:
                raise self.refuse("the flag (?m)")
            if add & re.UNICODE:
                raise self.refuse("(?u)")
            return f"(?:{inner.sequence(list(body), at_start=at_start, at_end=at_end)})"
        if op in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):  # laziness does not change the language
            return self.repeat(*arg)
        if op is _sre.AT:
            raise self.refuse(
                "word boundaries"
                if arg in (_sre.AT_BOUNDARY, _sre.AT_NON_BOUNDARY)
                else "an anchor that is not at an end"
            )
        raise self.refuse(_WHY_NOT.get(str(op), str(op)))

    def repeat(self, low: int, high: int, body: Any) -> str:
        unbounded = high is _sre.MAXREPEAT
        if low > _MAX_REPEAT or (not unbounded and high > _MAX_REPEAT):
            raise self.refuse(f"a repeat of more than {_MAX_REPEAT}")
        inner = self.sequence(list(body), at_start=False, at_end=False)
        if not inner or high == 0:
            return ""
        count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, None if unbounded else high))
        if count is None:
            count = f"{{{low},}}" if unbounded else f"{{{low},{high}}}"
        return f"(?:{inner}){count}"

    def char_class(self, items: list[tuple[Any, Any]]) -> Ranges:
        found: Ranges = []
        negate = False
        for op, arg in items:
            if op is _sre.NEGATE:
                negate = True
            elif op is _sre.LITERAL:
                found += self.folded([(arg, arg)])
            elif op is _sre.RANGE:
                found += self.folded([arg])
            elif op is _sre.CATEGORY:
                found += _complement(_CATEGORY[_NEGATED[arg]]) if arg in _NEGATED else _CATEGORY[arg]
            else:
                raise self.refuse(str(op))
        return _complement(found) if negate else _merged(found)

    def folded(self, ranges: Ranges) -> Ranges:
        """Under (?i), with the other case of every ASCII letter (as re.IGNORECASE | re.ASCII does)."""
        if not self.flags & re.IGNORECASE:
            return ranges
        extra: Ranges = []
        for low, high in ranges:
            for first, shift in ((65, 32), (97, -32)):
                a, b = max(low, first), min(high, first + 25)
                if a <= b:
                    extra.append((a + shift, b + shift))
        return ranges + extra

    def ranges(self, ranges: Ranges) -> str:
        """One character out of `ranges`. Surrogates are left out: no UTF-8 text has them."""
        ranges = self.folded(ranges) if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else ranges
        kept = _without_surrogates(_merged(ranges))
        if not kept:
            raise self.refuse("a character class without characters")
        if len(kept) == 1 and kept[0][0] == kept[0][1]:
            return _char(kept[0][0])
        return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in kept) + "]"

    def refuse(self, what: str) -> ConstraintError:
        return ConstraintError(
            f"regex {_short(self.pattern)}: {what} cannot be used in a constraint; "
            f"rewrite it with classes, groups, alternatives and repeats, or check the answer afterwards"
        )


def _char(code: int) -> str:
    """One character, safe inside and outside of a class."""
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\u{{{code:x}}}"


def _merged(ranges: Ranges) -> Ranges:
    out: Ranges = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _complement(ranges: Ranges) -> Ranges:
    out: Ranges = []
    at = 0
    for low, high in _merged(ranges):
        if at < low:
            out.append((at, low - 1))
        at = high + 1
    if at <= _MAX_CHAR:
        out.append((at, _MAX_CHAR))
    return out


def _without_surrogates(ranges: Ranges) -> Ranges:
    out: Ranges = []
    for low, high in ranges:
        if low < 0xD800:
            out.append((low, min(high, 0xD7FF)))
        if high > 0xDFFF:
            out.append((max(low, 0xE000), high))
    return out


def _short(source: str) -> str:
    return repr(source if len(source) <= 80 else source[:77] + "…")
