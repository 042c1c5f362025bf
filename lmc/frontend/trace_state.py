"""What a traced state writes to: the graph. Prompts and answers are named by IR values."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from lmc.errors import LmcError, Loc
from lmc.frontend.emitter import taken
from lmc.frontend.hostops import Known
from lmc.frontend.options import Options
from lmc.frontend.primitives import GenExpr, SelectExpr
from lmc.frontend.values import TraceEscape, Value
from lmc.ir.core import Attr, Operand, Type
from lmc.ir.core import Value as IRValue
from lmc.prompt import Special

if TYPE_CHECKING:
    from lmc.frontend.state import State
    from lmc.frontend.trace_record import Recorder

NOT_AN_ATTRIBUTE: Any = object()


class Ctx:
    """A traced prompt state."""

    __slots__ = ("__weakref__", "ir")

    def __init__(self, ir: IRValue) -> None:
        self.ir = ir


class Answer:
    """A traced answer of the model: its value and its meta info, read at most once each."""

    __slots__ = ("__weakref__", "domain", "ir", "meta", "read_meta", "read_value")

    def __init__(self, ir: IRValue, meta: IRValue, domain: tuple[str, ...] | None) -> None:
        self.ir, self.meta, self.domain = ir, meta, domain
        self.read_value: Value | None = None
        self.read_meta: Value | None = None


class Shows:
    """The `progress` of a state whose text others see while the program runs: records what they see, and when."""

    done, error = False, None

    def __init__(self, trace: Recorder, state: State) -> None:
        self._trace, self._state = trace, state
        self._number = 0
        self._held: dict[str | None, Any] = {}  # what was shown of each variable
        self._open: list[str] = []  # names of the scopes that are open

    def elsewhere(self) -> bool:
        return False

    def notify(self) -> None:
        """The program appended to its prompt."""
        state = self._state
        attrs: dict[str, Attr] = {}
        now = [name for name, open_ in state.scopes.items() for _ in open_]
        if len(now) > len(self._open):
            attrs["opens"] = (name := _extra(now, self._open))
        elif len(now) < len(self._open):
            attrs["closes"] = (name := _extra(self._open, now))
            self._held[name] = state.variables[name]  # its value is the scope, which is shown already
        fresh = {name: held for name, held in state.variables.items() if self._held.get(name) is not held}
        self._number, self._held, self._open = self._number + 1, self._held | fresh, now
        operands: list[Operand] = [state.ctx.ir]
        for held in fresh.values():
            operands += self._trace.held(held)
        self._trace.emit("show", operands, {"vars": tuple(fresh), "number": self._number, **attrs}, ())


def _extra(more: list[str], fewer: list[str]) -> str:
    """The name that is in one list once more than in the other."""
    return next(name for name in more if more.count(name) > fewer.count(name))


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are given: None is as good as nothing."""
    return {name: value for name, value in given.items() if value is not None}


def listed(values: list[Any]) -> list[Any]:
    """What every reading of n answers, or of what is known of them, gives anew."""
    return list(values)


def copied(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What every reading of the messages gives anew."""
    return copy.deepcopy(messages)



class TraceEmitter:
    """What a traced state writes to: the graph."""

    def __init__(self, trace: Recorder, sampling: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`sampling`: defaults of its gens, over those of the run."""
        self.trace, self.sampling = trace, sampling

    def sampling_as(self, given: Mapping[str, Any]) -> TraceEmitter:
        """The same for a sub-program that is called with sampling defaults of its own."""
        try:
            Options.of(given)
        except LmcError as error:
            raise TraceEscape(f"calls a program with an option that is refused: {error.message}") from None
        return TraceEmitter(self.trace, {**self.sampling, **_named(given)})

    def _ctx(self, kind: str, operands: Sequence[Operand], **attrs: Attr) -> Ctx:
        return self.trace.keep(Ctx(self.trace.emit(kind, operands, attrs, ("ctx",))[0]))

    def root(self) -> Ctx:
        """The empty prompt; the program's own begins where the program does."""
        start, self.trace.start = self.trace.start, None
        return self.trace.keep(Ctx(self.trace.emit("ctx.new", (), {}, ("ctx",), loc=start)[0]))

    def append(self, ctx: Ctx, text: str | Value | Special) -> Ctx:
        return self._ctx("append", (ctx.ir, self.trace.text_operand(text)))

    def image(self, ctx: Ctx, source: Any, num_frames: Any = None) -> Ctx:
        if num_frames is None:
            return self._ctx("image", (ctx.ir, self.trace.operand(source)))
        return self._ctx("video", (ctx.ir, self.trace.operand(source), self.trace.concrete(num_frames)))

    def role_begin(self, ctx: Ctx, role: str, previous: str | None) -> Ctx:
        return self._ctx("role.begin", (ctx.ir,), role=role, previous=previous)

    def role_end(self, ctx: Ctx, role: str) -> Ctx:
        return self._ctx("role.end", (ctx.ir,), role=role)

    def gen(self, ctx: Ctx, expr: GenExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]:
        attrs: dict[str, Attr] = {"name": expr.name, "stream": stream, "ordinal": ordinal}
        operands: list[Operand] = [ctx.ir]
        params: list[str] = []
        for key, given in {**self.sampling, **_named(expr.given)}.items() if self.sampling else expr.given.items():
            attr = self.trace.attribute(given)
            if attr is NOT_AN_ATTRIBUTE:
                params.append(key)
                operands.append(self.trace.operand(given))
            else:
                attrs[key] = attr
        if params:
            attrs["params"] = tuple(params)
        kind: Type = "str" if expr.given.get("n", 1) == 1 else "any"
        return self._ask("gen", operands, attrs, kind, expr.name, expr.loc, None)

    def select(self, ctx: Ctx, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]:
        attrs: dict[str, Attr] = {"name": expr.name, "stream": stream, "ordinal": ordinal}
        operands: list[Operand] = [ctx.ir, *map(self.trace.text_operand, expr.choices)]
        params: list[str] = []
        for key, given in (("method", expr.choices_method), ("temperature", expr.temperature)):
            if isinstance(given, Value):
                params.append(key)
                operands.append(given.ir)
            else:
                attrs[key] = str(given) if key == "method" else given
        if params:
            attrs["params"] = tuple(params)
        constant = all(isinstance(c, str) for c in expr.choices)
        domain = tuple(dict.fromkeys(c for c in expr.choices if isinstance(c, str))) if constant else None
        return self._ask("select", operands, attrs, "str", expr.name, expr.loc, domain)

    def _ask(
        self, kind: str, operands: list[Operand], attrs: dict[str, Attr], result: Type, name: str | None, loc: Loc | None, domain: Any
    ) -> tuple[Ctx, Answer]:
        ctx, value, meta = self.trace.emit(kind, operands, attrs, ("ctx", result, "any"), (None, name, "m"), loc)
        return self.trace.keep(Ctx(ctx)), self.trace.keep(Answer(value, meta, domain))

    def splice(self, ctx: Ctx, other: Ctx, since: Ctx) -> Ctx:
        ir = ctx.ir
        for op in self.trace.chain(other.ir, since.ir):
            if op.kind in ("gen", "select"):
                value = self._read(op.results[1])
                ir = self.trace.emit("append", (ir, self.trace.first_text(value)), {}, ("ctx",))[0]
            else:
                ir = self.trace.emit(op.kind, (ir, *op.operands[1:]), op.attrs, ("ctx",))[0]
        return self.trace.keep(Ctx(ir))

    def separate_reasoning(self, before: Ctx, after: Ctx, take: Callable[[str], str]) -> Ctx:
        (answer,) = self.trace.chain(after.ir, before.ir)
        text = self._taken(self.trace.first_text(self._read(answer.results[1])), take)
        return self._ctx("append", (before.ir, text))

    def _taken(self, text: IRValue, take: Callable[[str], str]) -> IRValue:
        return self.trace.emit("host.call", (self.trace.own(take), text), {"pure": True, "total": True}, ("str",))[0]

    def _read(self, answer: IRValue) -> IRValue:
        return self.trace.emit("read", (answer,), {}, (answer.type,), (answer.name,))[0]

    def read_part(self, answer: Answer, take: Callable[[str], str]) -> Value:
        if answer.ir.type == "str":
            return self.trace.value(self._taken(self.read(answer).ir, take))
        return self._owned(taken, self._read_once(answer).ir, self.trace.own(take))

    def read(self, answer: Answer) -> Value:
        value = self._read_once(answer)
        return value if answer.ir.type == "str" else self._owned(listed, value.ir)

    def _read_once(self, answer: Answer) -> Value:
        if answer.read_value is None:
            ir = self.trace.attempt("read", (answer.ir,), {}, answer.ir.type, answer.ir.name)
            answer.read_value = self.trace.value(ir, domain=answer.domain)
        return answer.read_value

    def _owned(self, make: Callable[..., Any], *operands: Operand) -> Value:
        """A list that each reading makes anew. The program may change it, so a replay finds the one of the run."""
        return self.trace.host(self.trace.own(make), operands, Known(fresh=True), "ordered", key=self.trace.owned_key())

    def meta(self, answer: Answer) -> Value:
        if answer.read_meta is None:
            ir = self.trace.attempt("read", (answer.meta,), {}, "any", "meta")
            answer.read_meta = self.trace.value(ir)
        return answer.read_meta if answer.ir.type == "str" else self._owned(listed, answer.read_meta.ir)

    def text(self, ctx: Ctx, since: Ctx | None = None) -> Value:
        if since is None:
            return self.trace.value(self.trace.attempt("ctx.text", (ctx.ir,), {}, "str"))
        return self.trace.value(self.trace.attempt("ctx.slice", (ctx.ir, since.ir), {}, "str"))

    def messages(self, ctx: Ctx) -> Value:
        return self._owned(copied, self.trace.attempt("ctx.messages", (ctx.ir,), {}, "any"))

    def error(self, ctx: Ctx) -> Value:
        """What reading the prompt raises, as a value."""
        _, _, error = self.trace.emit("ctx.text", (ctx.ir,), {"catch": True}, ("str", "any", "any"), (None, "raised", "error"))
        return self.trace.value(error)

    def wait(self, ctx: Ctx) -> None:
        self.trace.emit("ctx.text", (ctx.ir,), {}, ("str",))

    def __getattr__(self, name: str) -> NoReturn:
        raise TraceEscape(f"{name} of a state")
