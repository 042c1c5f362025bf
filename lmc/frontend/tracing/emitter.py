"""The emitter of an evaluation that builds a graph: each prompt is a value, each operation an op."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from lmc.constraints import dtype_constraint
from lmc.errors import LmcError, Loc
from lmc.frontend.capture.code import Evaluator
from lmc.frontend.capture.outside import ATOMS
from lmc.frontend.capture.unknown import Deps, Unknown
from lmc.frontend.capture.values import Object
from lmc.frontend.emitter import GatheredAnswers, Scoped, Stored, Taken
from lmc.frontend.expressions import GenExpr, SelectExpr
from lmc.frontend.host import HostFunction
from lmc.frontend.options import Options
from lmc.frontend.state import State, StateGroup
from lmc.ir.builder import Builder
from lmc.ir.core import Attr, Operand, Type, Value
from lmc.parameters import fixed
from lmc.segments import Special

LATER: Deps = frozenset(["a run"])
"""Dependencies of values that are modelled, and known as soon as a run begins."""
_LITERALS = (str, int, float, bool, bytes, type(None))
_MOST = 32
"""Most items of a list that are named one by one."""
_LONGEST = 32
"""Most bytes of a constant that a graph holds as it is."""
STEPS_PER_OP = 8
"""Steps that an op counts as: passes look at it, too."""
_TEXTS = frozenset(
    "str repr format strip lstrip rstrip lower upper title capitalize casefold replace join removeprefix removesuffix zfill center ljust rjust".split()
)
_TESTS = frozenset("eq ne lt le gt ge in not_in is is_not not all any startswith endswith isdigit isalpha isinstance bool".split())


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt: a value of the graph."""

    value: Value


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: its value and its meta info in the graph, and where it was requested."""

    value: Operand
    meta: Operand
    deps: Deps = None


class GraphEmitter:
    """Writes ops to a builder. A value is used only where it is defined on every path: elsewhere an `unknown` replaces
    it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.evaluation: Evaluator | None = None
        self.shifted: set[str] = set()  # streams whose number of requests so far is undecided
        self.adrift: set[str] = set()  # prefixes of streams whose number is undecided
        self.above: dict[str, str] = {}  # by block, the block that names it
        self.read_values = set[Operand]()  # answers that the program reads, whatever becomes of them
        self._home: dict[Value, str] = {}
        self._leaves: dict[Value, None] = {}  # prompts that nothing extends yet

    @property
    def loc(self) -> Loc | None:
        loc = self.evaluation.loc if self.evaluation is not None else None
        return loc if loc is not None and loc.line else None

    def save(self) -> Callable[[], None]:
        """Return a function that undoes everything written from here on. All of it is copied, which counts as steps."""
        if self.evaluation is not None:
            self.evaluation.count(len(self._home) >> 3)
        builder, above, home, leaves = self.builder.save(), dict(self.above), dict(self._home), dict(self._leaves)
        shifted, adrift = set(self.shifted), set(self.adrift)

        def restore() -> None:
            builder()
            self.above, self._home, self._leaves, self.shifted, self.adrift = above, home, leaves, shifted, adrift

        return restore

    # -- ops

    def emit(self, kind: str, operands: Sequence[Operand] = (), attrs: Mapping[str, Attr] | None = None, *,
             types: Sequence[Type] | None = None, loc: Loc | None = None) -> tuple[Value, ...]:  # fmt: skip
        if self.evaluation is not None:
            self.evaluation.steps += STEPS_PER_OP  # checked by the next step
        results = self.builder.emit(kind, operands, attrs, loc or self.loc, types=types)
        for v in results:
            self.define(v)
        for v in operands:
            if isinstance(v, Value):
                self._leaves.pop(v, None)
        return results

    def define(self, value: Value) -> Value:
        """Define a value of the current block, such as one of its parameters."""
        self._home[value] = self.builder.current
        if value.type == "ctx":
            self._leaves[value] = None
        return value

    def parameter(self, name: str, type: Type) -> Value:
        """Add a parameter of the graph."""
        value = self.builder.param(name, type)
        self._home[value] = self.builder.current
        return value

    def leaves(self) -> list[Value]:
        """Return the prompts that nothing extends, as far as they are defined here."""
        return [v for v in self._leaves if self.sees(v)]

    def sees(self, value: Value) -> bool:
        """Return whether a value is defined on every path to here."""
        home, label = self._home.get(value), self.builder.current
        while label != home:
            if label not in self.above:
                return False
            label = self.above[label]
        return True

    def unknown(self, reason: str, operands: Sequence[Operand] = (), calls: str | None = None, loc: Loc | None = None) -> Value:
        attrs: dict[str, Attr] = {"reason": reason} if calls is None else {"calls": calls, "reason": reason}
        return self.emit("unknown", operands, attrs, loc=loc)[0]

    def operand(self, x: Any) -> Operand:
        """Return a value of the evaluation as an operand."""
        if type(x) in _LITERALS:
            return self._file(x) if type(x) is bytes and len(x) > _LONGEST else x
        if isinstance(x, Unknown):
            if type(x.note) in _LITERALS and x.note is not None:
                return self.operand(x.note)
            return x.note if isinstance(x.note, Value) and self.sees(x.note) else self.unknown("only Python knows")
        if isinstance(x, Context):
            return self.seen(x)
        if isinstance(x, State):
            return self.seen(x.ctx)
        if isinstance(x, Answered):
            return self.operand(Unknown(x.deps, x.value)) if isinstance(x.value, Value) else x.value
        if isinstance(x, Stored):
            return self.operand(x.value)
        if isinstance(x, GatheredAnswers):
            return self.emit("py.list", [self.operand(i) for i in x.items])[0]
        if isinstance(x, Taken):
            return self.emit("py.part", [self.operand(x.answer)], types=["str"])[0]
        if isinstance(x, Scoped):
            return self._slice(x.until, x.since) if x.until is not None else self.unknown("an open scope")
        if self.evaluation is not None and self.evaluation.is_lost(x):
            return self.unknown("changed by what cannot be followed")
        if type(x) in (list, tuple, dict) and len(x) <= _MOST and not self._holds_itself(x, ()):
            items = [i for pair in x.items() for i in pair] if type(x) is dict else x
            return self.emit(f"py.{type(x).__name__}", [self.operand(i) for i in items])[0]
        return self.unknown(f"of type {type(x).__name__}", [*dict.fromkeys(self._prompts(x, set()))])

    def _prompts(self, x: Any, seen: set[int]) -> Iterator[Value]:
        """Yield the prompts of the states in a value."""
        if type(x) in ATOMS or id(x) in seen:
            return
        seen.add(id(x))
        match x:
            case State():
                yield self.seen(x.ctx)
            case list() | tuple() | set() | frozenset() | deque():
                yield from (prompt for item in x for prompt in self._prompts(item, seen))
            case dict():
                yield from self._prompts([*x, *x.values()], seen)
            case StateGroup() | Object():
                yield from self._prompts(x.states if isinstance(x, StateGroup) else x.attributes, seen)
            case _:
                pass

    def _file(self, content: bytes) -> Value:
        """Return a long constant as its beginning, length and digest: nothing but its identity is read of a graph."""
        return self.emit("py.bytes", [content[:8], len(content), blake2b(content, digest_size=8).hexdigest()])[0]

    def _holds_itself(self, x: Any, above: tuple[int, ...]) -> bool:
        if type(x) not in (list, tuple, dict):
            return False
        inside = x.values() if type(x) is dict else x
        return id(x) in above or len(above) > 3 or any(self._holds_itself(i, (*above, id(x))) for i in inside)

    def seen(self, ctx: Context) -> Value:
        """Return a prompt as seen here; one that is not defined on every path is lost."""
        return ctx.value if self.sees(ctx.value) else self.lost(None).value

    # -- prompts

    def root(self) -> Context:
        return Context(self.emit("ctx.new")[0])

    def lost(self, deps: Deps) -> Context:
        """Return a prompt of which nothing is known. It may depend on every prompt that exists."""
        text = self.unknown("unknown code may have extended the prompt", self.leaves())
        return Context(self.emit("append", (*self.emit("ctx.new"), text))[0])

    def append(self, ctx: Context, text: str | Special | Unknown) -> Context:
        piece = text if isinstance(text, Special) else self.operand(text)
        return Context(self.emit("append", (self.seen(ctx), self._text(piece)))[0])

    @staticmethod
    def _text(x: Operand | Special) -> Operand:
        return x if isinstance(x, (Value, str, Special)) else str(x)

    def image(self, ctx: Context, source: Any, detail: str = "auto", loc: Loc | None = None) -> Context:
        return Context(self.emit("image", (self.seen(ctx), self.operand(source)))[0])

    def video(self, ctx: Context, source: Any, num_frames: Any = None, fps: Any = None, loc: Loc | None = None) -> Context:
        return Context(self.emit("video", (self.seen(ctx), *map(self.operand, (source, num_frames, fps))))[0])

    def role_begin(self, ctx: Context, role: str, previous: str | None) -> Context:
        return Context(self.emit("role.begin", (self.seen(ctx),), {"role": role, "previous": previous})[0])

    def role_end(self, ctx: Context, role: str) -> Context:
        return Context(self.emit("role.end", (self.seen(ctx),), {"role": role})[0])

    def splice(self, ctx: Context, other: Context, since: Context) -> Context:
        return Context(self.emit("append", (self.seen(ctx), self._slice(other, since)))[0])

    def _slice(self, ctx: Context, since: Context) -> Value:
        return self.emit("ctx.slice", (self.seen(ctx), self.seen(since)))[0] if self._reaches(ctx, since) else self.unknown("text of a prompt")

    def _reaches(self, ctx: Context, since: Context) -> bool:
        """Return whether one prompt extends the other in the graph so far."""
        if not self.sees(ctx.value) or not self.sees(since.value):
            return False
        node: Operand | None = ctx.value
        while node is not None and node != since.value:
            node = self.builder.parent(node)
        return node is not None

    def separate_reasoning(self, before: Context, after: Context, take: Callable[[str], str]) -> Context:
        part = self.emit("py.part", [self._slice(after, before)], types=["str"])[0]
        return Context(self.emit("append", (self.seen(before), part))[0])

    # -- requests

    def gen(self, ctx: Context, expr: GenExpr, stream: str, ordinal: int) -> tuple[Context, Answered]:
        attrs, params, given = self._request({**expr.given, "name": expr.name} if isinstance(expr.name, Unknown) else expr.given)
        return self._ask("gen", ctx, given, self._identity(expr, stream, ordinal), {**attrs, **params}, expr.loc)

    def select(self, ctx: Context, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Context, Answered]:
        choices = expr.choices
        texts = [self.operand(choices)] if isinstance(choices, Unknown) else [self.operand(c) for c in choices]
        attrs: dict[str, Attr] = {}
        given: list[Operand] = []
        names: list[str] = []
        if isinstance(expr.name, Unknown):
            given.append(self.operand(expr.name))
            names.append("name")
        known: dict[str, Any] = {"method": expr.choices_method, "temperature": expr.temperature, **({} if expr.adapter is None else {"adapter": expr.adapter})}
        for name, x in known.items():
            if isinstance(x, Unknown):
                given.append(self.operand(x))
                names.append(name)
            else:
                attrs[name] = x if name == "temperature" else str(x)
        if names:
            attrs["params"] = tuple(names)
        return self._ask("select", ctx, [*texts, *given], self._identity(expr, stream, ordinal), attrs, expr.loc)

    def _ask(
        self, kind: str, ctx: Context, operands: Sequence[Operand], identity: Mapping[str, Attr], attrs: Mapping[str, Attr], loc: Loc | None
    ) -> tuple[Context, Answered]:
        several = attrs.get("n", 1) != 1
        types: tuple[Type, ...] = ("ctx", "any" if several else "str", "any")
        after, value, meta = self.emit(kind, (self.seen(ctx), *operands), {**identity, **attrs}, types=types, loc=loc)
        return Context(after), Answered(value, meta, frozenset([(identity["stream"], identity["ordinal"])]))

    def _identity(self, expr: GenExpr | SelectExpr, stream: str, ordinal: int) -> dict[str, Attr]:
        adrift = stream in self.shifted or any(stream.startswith(s) for s in self.adrift)
        name: dict[str, Attr] = {} if isinstance(expr.name, Unknown) else {"name": expr.name}
        return {**name, "stream": stream, "ordinal": ordinal, **({"shifted": True} if adrift else {})}

    def _request(self, given: Mapping[str, Any]) -> tuple[dict[str, Attr], dict[str, Attr], list[Operand]]:
        """Return the parameters of a gen as attributes; unknown ones by name, with their operands."""
        attrs: dict[str, Attr] = {}
        unknown: dict[str, Operand] = {}
        for name, x in given.items():
            if x is None:
                continue
            if isinstance(x, Unknown) or (type(x) in (list, tuple, dict) and _holds_unknown(x)):
                unknown[name] = self.operand(x)
                continue
            try:
                attrs.update(_fixed(name, x))
            except LmcError:  # reported where the program makes the request
                unknown[name] = self.operand(x)
        return attrs, {"params": tuple(unknown)} if unknown else {}, [*unknown.values()]

    # -- reading

    def read(self, answer: Answered) -> Unknown:
        self.read_values.add(answer.value)
        return Unknown(answer.deps, answer.value)

    def read_part(self, answer: Answered, take: Callable[[str], str]) -> Unknown:
        return Unknown(answer.deps, self.emit("py.part", [self.operand(answer)], types=["str"])[0])

    def meta(self, answer: Answered) -> Unknown:
        self.read_values.add(answer.meta)
        return Unknown(answer.deps, answer.meta)

    def text(self, ctx: Context, since: Context | None = None) -> Unknown:
        text = self.emit("ctx.text", (self.seen(ctx),))[0] if since is None else self._slice(ctx, since)
        return Unknown(LATER, text)

    def messages(self, ctx: Context) -> Unknown:
        return Unknown(LATER, self.emit("ctx.messages", (self.seen(ctx),))[0])

    def wait(self, ctx: Context) -> None:
        self.unknown("waits for the answers", [self.seen(ctx)])

    def error(self, ctx: Context) -> Unknown:
        return Unknown(LATER, self.unknown("an error, if there is one", [self.seen(ctx)]))

    def usage(self, answers: Iterable[Any], stream: str = "") -> Unknown:
        return Unknown(LATER, self.unknown("what answers cost"))

    def nested(self, options: Options) -> GraphEmitter:
        return self

    def is_asked(self, stream: str, ctx: Context, answers: Sequence[Any]) -> bool:
        return False  # each call has ops of its own

    def pure(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Unknown:
        given = [self.operand(x) for x in (*args, *kwargs.values())]
        return Unknown(LATER, self.unknown("declared pure", given, fn.name))

    def operation(self, name: str, operands: Sequence[Any], deps: Deps) -> Unknown:
        """Emit an op for a pure operation; a concatenation of texts is a `concat`, whatever Python calls it."""
        name = name.lstrip(".").replace(" ", "_")
        text = self._concatenated(name, operands)
        if text is not None:
            return Unknown(deps, text[0] if len(text) == 1 and isinstance(text[0], Value) else self.emit("concat", text)[0])
        given = [self.operand(x) for x in operands]
        kind: Type = "str" if name in _TEXTS else "bool" if name in _TESTS else "any"
        return Unknown(deps, self.emit(f"py.{name}", given, types=[kind])[0])

    def _concatenated(self, name: str, operands: Sequence[Any]) -> list[Operand] | None:
        """Return the texts that an operation concatenates, if that is all it does."""
        match name, tuple(operands):
            case "fstring", parts:
                return [self._text(self.operand(x)) for x in parts]
            case ("format", (x, str() as how)) if not how and self._is_text(x):
                return [self.operand(x)]
            case ("str", (x,)) if self._is_text(x):
                return [self.operand(x)]
            case (("add" | "iadd"), (a, b)) if self._is_text(a) or self._is_text(b):
                return [self._text(self.operand(a)), self._text(self.operand(b))]
            case "join", (str() as separator, [*items]) if 0 < len(items) <= _MOST:
                return [self._text(self.operand(x)) for item in items for x in (separator, item)][1:]
            case _:
                return None

    @staticmethod
    def _is_text(x: Any) -> bool:
        return isinstance(x, str) or (isinstance(x, Unknown) and (isinstance(x.note, str) or (isinstance(x.note, Value) and x.note.type == "str")))


def _holds_unknown(x: Any) -> bool:
    inside = x.values() if type(x) is dict else x
    return any(isinstance(i, Unknown) or (type(i) in (list, tuple, dict) and _holds_unknown(i)) for i in inside)


def _fixed(name: str, x: Any) -> dict[str, Attr]:
    """Return a parameter of a gen as an attribute."""
    if name == "dtype":
        if isinstance(x, str) or x in (int, float, bool, str):
            return {name: x if isinstance(x, str) else x.__name__}
        constraint, _ = dtype_constraint(x)
        return {constraint.kind: constraint.source}
    value = fixed(name, x)
    return {name: _literal(value)}


def _literal(x: Any) -> Attr:
    if type(x) in _LITERALS:
        return x
    if isinstance(x, (tuple, list)):
        return tuple(_literal(i) for i in x)
    return str(x)
