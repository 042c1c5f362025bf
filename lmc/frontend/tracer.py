"""The tracer: runs a program on symbolic values and records what it does into a trace tree.

It never calls the model and never runs the program's host effects, so it can run as often as it likes. Where Python
needs a concrete answer, the decisions given for the path so far are used; at the first one missing the trace stops.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from lmc.backend.base import Meta, Result
from lmc.errors import Loc
from lmc.frontend import hostops, reach
from lmc.frontend.hooks import LAZY, CountingMode, Key, Shape, hooks, targets
from lmc.frontend.hostops import Known
from lmc.frontend.instrument import instrument
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.state import Gathered, Scoped, State, Stored
from lmc.frontend.primitives import Expr, GenExpr, Lit, SelectExpr, Seq, caller_loc
from lmc.frontend.tree import Decision, Escape, Guard, Node, Return, Switch, Tree, answer_of
from lmc.frontend.values import TraceEscape, Value, active
from lmc.ir.core import Attr, Op, Operand, Symbol, Type
from lmc.ir.core import Value as IRValue
from lmc.prompt import Special

MAX_OPS = 20_000
"""Ops on one path; a longer one goes on in the interpreter."""


class StopTrace(BaseException):  # not an Exception: the program must not catch it
    """The trace reached a decision whose answer is not known yet."""


class Diverged(Exception):
    """The program did something else than in an earlier trace with the same decisions."""


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


# -- states while tracing --------------------------------------------------------------------------------------------


class TraceEmitter:
    """What a traced state writes to: the graph."""

    def __init__(self, trace: TraceMode) -> None:
        self.trace = trace

    def _ctx(self, kind: str, operands: Sequence[Operand], **attrs: Attr) -> Ctx:
        return self.trace.keep(Ctx(self.trace.emit(kind, operands, attrs, ("ctx",))[0]))

    def root(self) -> Ctx:
        return self._ctx("ctx.new", ())

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
        for key, given in expr.given.items():
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

    def read(self, answer: Answer) -> Value:
        if answer.read_value is None:
            (ir,) = self.trace.emit("read", (answer.ir,), {}, (answer.ir.type,), (answer.ir.name,))
            answer.read_value = self.trace.value(ir, domain=answer.domain)
        return answer.read_value

    def meta(self, answer: Answer) -> Value:
        if answer.read_meta is None:
            (ir,) = self.trace.emit("read", (answer.meta,), {}, ("any",), ("meta",))
            answer.read_meta = self.trace.value(ir)
        return answer.read_meta

    def text(self, ctx: Ctx, since: Ctx | None = None) -> Value:
        if since is None:
            return self.trace.value(self.trace.emit("ctx.text", (ctx.ir,), {}, ("str",))[0])
        return self.trace.value(self.trace.emit("ctx.slice", (ctx.ir, since.ir), {}, ("str",))[0])

    def messages(self, ctx: Ctx) -> Value:
        return self.trace.value(self.trace.emit("ctx.messages", (ctx.ir,), {}, ("any",))[0])

    def wait(self, ctx: Ctx) -> None:
        self.trace.emit("ctx.text", (ctx.ir,), {}, ("str",))

    def __getattr__(self, name: str) -> NoReturn:
        raise TraceEscape(f"{name} of a state")


NOT_AN_ATTRIBUTE: Any = object()
SELF = object()
"""Stands for the program's own state as its return value."""
NO_KEY = ()
"""For host operations that a replay neither answers nor repeats: checks of the trace itself."""


# -- the mode ----------------------------------------------------------------------------------------------------------


class TraceMode(CountingMode):
    """Hooks that record. One instance is one run of the tracer along one path."""

    def __init__(self, tree: Tree, path: Sequence[Decision]) -> None:
        super().__init__()
        self.tree = tree
        self.node: Node = tree.root
        self.at = 0  # ops of the node already passed
        self.path = list(path)
        self.taken = 0
        self.ops = 0
        self.dead: BaseException | None = None
        self.foreign = 0  # how many ops so far may have run foreign code
        self.checked: dict[int, int] = {}  # outside containers: `foreign` when last known to be unchanged
        self.snapshots: dict[int, tuple[Any, Any]] = {}
        self.local: dict[int, Any] = {}  # containers and instances that the program itself made
        self.alive: list[weakref.ref[Any]] = []

    def escape(self, reason: TraceEscape) -> None:
        if self.dead is None:
            self.dead = reason

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.dead is not None:
            raise self.dead  # the program went on in a `finally` or a bare `except`
        return super().dispatch(name, args, kwargs)

    @contextlib.contextmanager
    def auxiliary(self) -> Iterator[None]:
        """Host operations in here are not the hook call's own result; a replay does them again."""
        main, self.main = self.main, False
        try:
            yield
        finally:
            self.main = main

    # -- recording

    def emit(
        self,
        kind: str,
        operands: Sequence[Operand],
        attrs: dict[str, Attr],
        types: Sequence[Type],
        hints: Sequence[str | None] = (),
        loc: Loc | None = None,
    ) -> tuple[IRValue, ...]:
        """The next op on the path: the recorded one, which must be the same, or a new one."""
        self.ops += 1
        if self.ops > MAX_OPS:
            raise TraceEscape(f"the path has more than {MAX_OPS} operations")
        node, index = self.node, self.at
        self.at += 1
        if index < len(node.ops):
            known = node.ops[index]
            if known.kind != kind or known.operands != tuple(operands) or known.attrs != attrs:
                raise self.diverged(known)
            return known.results
        if node.end is not None:
            raise self.diverged(None)
        results = tuple(
            IRValue(self.tree.names.hinted(hint) if hint else self.tree.names.numbered(_PREFIX.get(t, "v")), t)
            for t, hint in itertools.zip_longest(types, hints[: len(types)])
        )
        node.ops.append(Op(kind, tuple(operands), results, attrs, (), loc or caller_loc()))
        self.tree.size += 1
        return results

    def diverged(self, known: Op | None) -> TraceEscape:
        where = f" near {known.loc}" if known is not None and known.loc else ""
        return TraceEscape(f"the program did something else than before with the same answers{where}")

    def keep(self, x: Any) -> Any:
        """Registers something that the program can reach as long as Python keeps it."""
        self.alive.append(weakref.ref(x))
        return x

    def value(self, ir: IRValue, immutable: bool = False, items: str | None = None, domain: tuple[Any, ...] | None = None) -> Value:
        return self.keep(Value(ir, immutable, items, domain))

    def reachable(self) -> tuple[IRValue, ...]:
        """The values that the program can still reach: those whose Python objects are alive."""
        found: dict[IRValue, None] = dict.fromkeys(self.tree.params)
        for ref in self.alive:
            x = ref()
            if isinstance(x, Answer):
                found[x.ir] = found[x.meta] = None
            elif x is not None:
                found[x.ir] = None
        return tuple(found)

    def decide(self, value: Value) -> Any:
        """The concrete answer for a value on this path; stops the trace where it is not known yet."""
        node = self.node
        if self.at < len(node.ops):
            raise self.diverged(node.ops[self.at])
        if node.end is None:
            op = Op("switch", (value.ir,), (), {}, (), caller_loc())
            node.end = Switch(value.ir, self.reachable(), self.tree.switch_id(), op, value.domain)
        if not isinstance(node.end, Switch) or node.end.cond != value.ir:
            raise self.diverged(None)
        if self.taken == len(self.path):
            self.dead = StopTrace()
            raise self.dead
        key = self.path[self.taken]
        self.taken += 1
        self.node, self.at = node.end.arms.setdefault(key, Node()), 0
        return answer_of(key)

    # -- the end of the path

    def finish(self, state: State, result: Any) -> None:
        """The program returned."""
        if self.dead is not None:
            raise self.dead
        if state.scopes:
            raise TraceEscape("returns inside an open scope")
        operands: list[Operand] = [self.result_operand(state, result), state.ctx.ir]
        for held in state.variables.values():
            operands += self.held(held)
        attrs: dict[str, Attr] = {
            "vars": tuple(state.variables), "ordinal": state.ordinal, "forks": state.forks, "calls": state.calls, "role": state.role,
            "previous": state.previous,
        }  # fmt: skip
        self.end(Return(Op("return", tuple(operands), (), attrs)))

    def held(self, held: Any) -> tuple[Operand, Operand]:
        """What a variable holds: its value and its meta info."""
        match held:
            case Answer():
                return held.ir, held.meta
            case Stored():
                return self.operand(held.value), self.source(held.source)
            case Gathered():
                items = [x for item in held.items for x in self.held(item)]
                return self.emit("host.call", (self.own(_gathered), *items), {"pure": True, "total": True}, ("any",))[0], None
            case Scoped():
                ctxs = (held.since.ir, held.until.ir)
                return self.emit("host.call", (self.own(_scoped), *ctxs), {"pure": True, "total": True}, ("any",))[0], None
            case _:
                raise TraceEscape(f"returns with a {type(held).__name__} in a variable")

    def source(self, held: Any) -> Operand:
        """Where the meta info of an overwritten variable comes from."""
        value, meta = (None, None) if held is None else self.held(held)
        return value if isinstance(held, Gathered) else meta

    def own(self, fn: Callable[..., Any]) -> Symbol:
        """A function of lmc itself."""
        return self.tree.symbol(("op", fn), "lmc." + fn.__name__.strip("_"), fn)

    def result_operand(self, state: State, result: Any) -> Operand:
        if result is state:
            return self.tree.symbol(("op", "self"), "lmc.state", SELF)
        return self.operand(result)

    def end(self, end: Return | Escape) -> None:
        """Ends the path here, as it ended before if it was seen before."""
        if self.node.end is None and self.at == len(self.node.ops):
            self.node.end = end
        elif not (isinstance(end, Return) and isinstance(self.node.end, Return) and self.node.end.op == end.op):
            raise Diverged(f"{self.tree.name} ended otherwise than before with the same answers")

    def give_up(self, reason: str) -> bool:
        """From here on the interpreter runs. False where the tree already knows another way to go on."""
        if self.node.end is None and self.at >= len(self.node.ops):
            self.node.end = Escape(reason, self.tree.switch_id())
        return isinstance(self.node.end, Escape)

    # -- operands

    def type_of(self, x: Any) -> str:
        """str, int, float or bool; "imm" for other immutable objects, "any" for the rest."""
        if isinstance(x, Value):
            return x.ir.type if x.ir.type != "any" else "imm" if x.immutable else "any"
        if type(x) in (str, int, float, bool):
            return type(x).__name__
        if type(x) is tuple:
            return "imm" if all(self.type_of(i) != "any" for i in x) else "any"
        if hostops.is_immutable(x) or isinstance(x, type | types.FunctionType | types.BuiltinFunctionType):
            return "imm"
        return "any"

    def attribute(self, x: Any) -> Any:
        """A gen's argument as an attribute, or NOT_AN_ATTRIBUTE."""
        if isinstance(x, type) and x in (int, float, str, bool):
            return x.__name__
        if type(x) in hostops.LITERALS:
            return x
        if type(x) is tuple:
            items = tuple(self.attribute(i) for i in x)
            return NOT_AN_ATTRIBUTE if NOT_AN_ATTRIBUTE in items else items
        return NOT_AN_ATTRIBUTE

    def operand(self, x: Any) -> Operand:
        """An object as an operand: literals as they are, containers of the program rebuilt for each run, others by reference."""
        if isinstance(x, Value):
            return x.ir
        if type(x) in hostops.LITERALS:
            return x
        if type(x) is tuple and x and not hostops.is_immutable(x):
            return self.build("py.tuple", x)
        if id(x) in self.local:
            return self.rebuilt(x)
        if type(x) is slice and reach.holds_value(x):
            return self.build("py.slice", (x.start, x.stop, x.step))
        if type(x) is types.FunctionType and reach.is_instrumented(x):
            return self.function_operand(x)
        if isinstance(x, (*LAZY, types.MethodType)) and not self._is_outside(x):
            raise TraceEscape(f"hands a {type(x).__name__} it made to host code")
        if reach.holds_language(x):
            raise TraceEscape(f"hands a {type(x).__name__} of the language to host code")
        if reach.holds_value(x):
            raise TraceEscape(f"hands a {type(x).__name__} that holds traced values to host code")
        return self.constant(x)

    def _is_outside(self, x: Any) -> bool:
        return isinstance(x, types.MethodType) and not reach.holds_value(x.__self__) and id(x.__self__) not in self.local

    def constant(self, x: Any) -> Symbol:
        """A host object by reference; immutable ones are the same in every trace if they are equal."""
        key: object
        if isinstance(x, slice):
            key = ("slice", x.start, x.stop, x.step)  # not hashable
        else:
            key = (type(x), x) if hostops.is_immutable(x) else ("id", id(x))
        name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None) or type(x).__name__
        module = getattr(x, "__module__", None)
        if isinstance(x, types.FunctionType | types.BuiltinFunctionType | type) and isinstance(module, str):
            name = name if module in ("builtins", "__main__") else f"{module}.{name}"
        return self.tree.symbol(key, _symbol_name(str(name)), x)

    def function_operand(self, fn: types.FunctionType) -> Operand:
        """A function that the program made itself, handed to host code: only if it closes over nothing of this run."""
        for cell in fn.__closure__ or ():
            with contextlib.suppress(ValueError):
                x = cell.cell_contents
                if x is not hooks and (reach.holds_value(x) or reach.holds_language(x) or not self._stable(x)):
                    raise TraceEscape(f"hands {fn.__qualname__}, which closes over values of this run, to host code")
        return self.tree.symbol(("code", fn.__code__), _symbol_name(fn.__qualname__), fn)

    def _stable(self, x: Any) -> bool:
        return hostops.is_immutable(x) or isinstance(x, type | types.ModuleType | types.BuiltinFunctionType) or (
            isinstance(x, types.FunctionType) and not reach.is_instrumented(x))

    def rebuilt(self, x: Any) -> Operand:
        """A container of the program as a new object of the run."""
        match x:
            case list():
                return self.build("py.list", x)
            case tuple():
                return self.build("py.tuple", x)
            case set():
                return self.build("py.set", tuple(x))
            case dict():
                return self.build("py.dict", tuple(itertools.chain.from_iterable(x.items())))
            case _:
                raise TraceEscape(f"hands a {type(x).__name__} it made to host code")

    def build(self, name: str, items: Iterable[Any]) -> IRValue:
        items = tuple(items)
        pure = name in ("py.tuple", "py.slice")
        attrs: dict[str, Attr] = {"pure": True, "total": True} if pure else {"ordered": True, "inline": True}
        if name == "py.list":
            attrs["total"] = True
        return self.emit("host.call", (self.operation(name), *map(self.operand, items)), attrs, ("any",))[0]

    def text_operand(self, x: Any) -> Operand:
        """Something appended to a prompt."""
        if isinstance(x, Value) and x.type != "str":
            return self.simple("py.text", x).ir
        return x.ir if isinstance(x, Value) else x

    def operation(self, name: str) -> Symbol:
        return self.tree.symbol(("op", name), name, hostops.OPERATIONS[name])

    # -- host operations

    def host(
        self, fn: Symbol, operands: Sequence[Operand], known: Known, kind: str, key: Key | tuple[()] | None = None, kwargs: tuple[str, ...] = (),
        hint: str | None = None, inline: bool = True,
    ) -> Value:  # fmt: skip
        """Records a host call. kind: "pure", "ordered" or "effect".

        What is not pure happens once: its result is kept under `key`, or as the hook call's own if this is its main one.
        """
        attrs: dict[str, Attr] = {}
        if kind != "effect":
            attrs[kind] = True
        if known.total and kind == "pure":
            attrs["total"] = True
        if kind != "pure":
            if key is None and self.main:
                key = (self.tick, 0, 0)
            if key:
                attrs["ord"] = key
            elif kind == "effect":
                raise TraceEscape("an effect outside of the program's own code")
            self.foreign += 1
            if inline:
                attrs["inline"] = True
        if kwargs:
            attrs["kwargs"] = kwargs
        (ir,) = self.emit("host.call", (fn, *operands), attrs, (known.type,), (hint,))
        return self.value(ir, immutable=kind == "pure" and not known.fresh, items=known.items)

    def simple(self, name: str, *args: Any, key: Key | None = None) -> Value:
        """One of Python's own operations."""
        types_ = [self.type_of(a) for a in args]
        if "any" not in types_:
            known = hostops.operation(name, types_)
            return self.host(self.operation(name), [self.operand(a) for a in args], known, "ordered" if known.fresh else "pure", key)
        known = _ON_ANY.get(name, Known())
        if name in ("py.is", "py.is_not"):
            return self.host(self.operation(name), [self.operand(a) for a in args], known, "pure", key)
        owner = args[0] if args else None
        if name == "py.getitem" and isinstance(owner, Value) and owner.items == "str" and self.type_of(args[1]) == "int":
            known = Known("str")
        return self.host(self.operation(name), [self.operand(a) for a in args], known, "ordered", key)

    def effect(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """A call of host code that may do anything."""
        self.no_containers(fn, args, kwargs)
        operands = [self.operand(a) for a in (*args, *kwargs.values())]
        if isinstance(fn, Value):
            return self.host(self.operation("py.call"), [fn.ir, *operands], Known(), "effect", kwargs=tuple(kwargs), inline=False)
        return self.host(self.callee(fn), operands, Known(), "effect", kwargs=tuple(kwargs), inline=False)

    def no_containers(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Host code may keep or change a container that it is handed; then the program's own copy would differ."""
        if any(fn is reader for reader in _READERS):
            return
        for x in (*args, *kwargs.values()):
            if reach.holds(x, lambda y: id(y) in self.local and isinstance(y, list | dict | set)):
                raise TraceEscape(f"hands a {type(x).__name__} that it made to {getattr(fn, '__qualname__', fn)}")

    def callee(self, fn: Any) -> Symbol:
        operand = self.operand(fn)
        if not isinstance(operand, Symbol):
            raise TraceEscape(f"calls a {type(fn).__name__} made by the program")
        return operand

    # -- names and attributes

    def glob(self, name: str, value: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_PACKAGE):
            assert frame.f_back is not None
            frame = frame.f_back
        names = frame.f_globals
        if name not in names:
            return value  # a builtin
        return self.outside(
            (id(names), name), f"global {name}", value, lambda: names.get(name, _MISSING),
            lambda: self.host(self.operation("py.getitem"), [self.tree.symbol(("globals", id(names)), "globals", names), name], Known(), "ordered"),
        )  # fmt: skip

    def free(self, name: str, value: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_PACKAGE):
            assert frame.f_back is not None
            frame = frame.f_back
        key = ("free", id(frame.f_code), name)
        cell = self.cells.get((frame.f_code, name))
        if cell is None:
            return value  # a variable of a function around this one that is traced too

        def read() -> Any:
            try:
                return cell.cell_contents
            except ValueError:
                return _MISSING

        return self.outside(
            key, f"closure variable {name}", value, read,
            lambda: self.host(self.operation("py.getattr"), [self.tree.symbol(("cell", id(cell)), f"cell.{name}", cell), "cell_contents"], Known(), "ordered"),
        )  # fmt: skip

    @functools.cached_property
    def cells(self) -> dict[tuple[types.CodeType, str], Any]:
        return {}

    def outside(self, key: object, what: str, value: Any, read: Callable[[], Any], emit_read: Callable[[], Value]) -> Any:
        """Something of the outside world that the program reads: a guard at entry, or a read in place once foreign code ran."""
        if isinstance(value, Value) or id(value) in self.local:
            return value
        data = hostops.is_immutable(value)
        if data and self.foreign and not isinstance(value, types.ModuleType):
            return emit_read()
        if key not in self.tree.guards:
            if data:
                self.tree.guards[key] = Guard(f"{what} == {value!r:.60}", lambda: _same(read(), value))
            else:
                self.tree.guards[key] = Guard(f"{what} is {_described(value)}", lambda: read() is value)
        elif not data and self.foreign and not _is_definition(value):
            self.host(self.own(_unchanged), [
                self.tree.symbol(("read", key), f"read.{_symbol_name(what)}", read), self.constant(value)], Known(), "ordered", key=NO_KEY)  # fmt: skip
        return value

    def store_global(self, name: str, value: Any, names: dict[str, Any]) -> None:
        if isinstance(value, list | dict | set) and id(value) in self.local:
            raise TraceEscape(f"stores a container that it made in the global {name}")
        owner = self.tree.symbol(("globals", id(names)), "globals", names)
        self.host(self.operation("py.setitem"), [owner, name, self.operand(value)], Known(), "effect")

    def getattr(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Value):
            if owner.type == "any" and not owner.immutable:
                return self.host(self.operation("py.getattr"), [owner.ir, name], Known(), "ordered", hint=name)
            return self.host(self.operation("py.getattr"), [owner.ir, name], Known(), "pure", hint=name)
        if self.is_plain(owner):
            return self.fresh(getattr(owner, name))
        if isinstance(owner, types.ModuleType | type):
            value = getattr(owner, name)
            if isinstance(owner, type) and not isinstance(value, str | int | float | bool | list | dict | set):
                return value
            return self.outside(
                ("attr", id(owner), name), f"{owner.__name__}.{name}", value, lambda: getattr(owner, name, _MISSING),
                lambda: self.host(self.operation("py.getattr"), [self.constant(owner), name], Known(), "ordered", hint=name),
            )  # fmt: skip
        if isinstance(owner, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
            return getattr(owner, name)
        for base in type(owner).__mro__:
            member = base.__dict__.get(name)
            if isinstance(member, types.FunctionType | staticmethod | classmethod) and name not in getattr(owner, "__dict__", {}):
                return getattr(owner, name)
        if _is_enum_member(owner):
            return getattr(owner, name)
        return self.host(self.operation("py.getattr"), [self.operand(owner), name], Known(), "ordered", hint=name)

    def is_plain(self, x: Any) -> bool:
        """Whether Python itself may work on an object while tracing: constants, the program's own objects, the language."""
        return hostops.is_immutable(x) or id(x) in self.local or type(x) is tuple or self.is_language(x) or isinstance(
            x, types.GeneratorType | map | filter | zip | enumerate | reversed | range | _DICT_VIEWS | BaseException)

    def is_language(self, x: Any) -> bool:
        return reach.is_language(x)

    def fresh(self, x: Any) -> Any:
        """Registers a container that the program just got as its own."""
        if type(x) in (list, dict, set):
            self.local[id(x)] = x
        return x

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        if self.is_plain(owner):
            setattr(owner, name, value)
        else:
            self.mutate("py.setattr", owner, name, value)

    def delattr(self, owner: Any, name: str) -> None:
        if self.is_plain(owner):
            delattr(owner, name)
        else:
            self.mutate("py.delattr", owner, name)

    def mutate(self, name: str, owner: Any, *args: Any) -> None:
        """A change of an object of the host."""
        self.no_containers(owner, args, {})
        kind = "ordered" if isinstance(owner, Value) else "effect"
        self.host(self.operation(name), [self.operand(owner), *map(self.operand, args)], Known(), kind)

    # -- items

    def getitem(self, owner: Any, key: Any) -> Any:
        if self.is_language(owner):
            with self.auxiliary():
                return self.fresh(owner[self.concrete(key)])
        if isinstance(owner, type):
            return owner[key]  # type: ignore[index]
        if not isinstance(owner, Value) and self.is_plain(owner):
            if not reach.holds_value(key):
                return self.fresh(owner[key])
            if reach.holds_language(owner) or any(callable(x) for x in (owner.values() if isinstance(owner, dict) else owner)):
                return self.fresh(owner[self.concrete(key)])
        return self.simple("py.getitem", owner, key)

    def setitem(self, owner: Any, key: Any, value: Any) -> None:
        if self.is_language(owner):
            owner[self.concrete(key)] = value
        elif not isinstance(owner, Value) and self.is_plain(owner):
            if reach.holds_value(key):
                raise TraceEscape("stores under a traced key in a container that it made")
            owner[key] = value
        else:
            self.mutate("py.setitem", owner, key, value)

    def delitem(self, owner: Any, key: Any) -> None:
        if not isinstance(owner, Value) and self.is_plain(owner):
            del owner[self.concrete(key)]
        else:
            self.mutate("py.delitem", owner, key)

    def slice_(self, start: Any, stop: Any, step: Any) -> Any:
        if any(isinstance(x, Value) for x in (start, stop, step)):
            return self.value(self.build("py.slice", (start, stop, step)), immutable=True)
        return slice(start, stop, step)

    # -- operators

    def binop(self, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, Expr) or isinstance(b, Expr):
            return b.__radd__(a) if op == "+" and isinstance(a, Value) else hostops.OPERATIONS[hostops.BINARY[op]](a, b)
        symbolic = isinstance(a, Value) or isinstance(b, Value)
        if not symbolic and self.is_plain(a) and self.is_plain(b):
            containers = isinstance(a, list | tuple) and op in ("+", "*")
            if containers or not (reach.holds_value(a) or reach.holds_value(b)):
                return self.fresh(hostops.OPERATIONS[hostops.BINARY[op]](a, b))
        return self.simple(hostops.BINARY[op], a, b)

    def iop(self, op: str, a: Any, b: Any) -> Any:
        if self.is_language(a):
            with self.auxiliary():
                return hostops.OPERATIONS[hostops.INPLACE[op]](a, b)
        if id(a) in self.local and isinstance(a, list) and op == "+":
            with self.auxiliary():
                a.extend(self.star(b))
            return a
        if not isinstance(a, Value) and self.is_plain(a) and hostops.is_immutable(a):
            return self.binop(op, a, b)
        if isinstance(a, Value) and a.immutable:
            return self.binop(op, a, b)
        if not isinstance(a, Value) and self.is_plain(a) and not reach.holds_value((a, b)):
            return self.fresh(hostops.OPERATIONS[hostops.INPLACE[op]](a, b))
        return self.simple(hostops.INPLACE[op], a, b)

    def unary(self, op: str, a: Any) -> Any:
        return self.simple(hostops.UNARY[op], a) if isinstance(a, Value) else hostops.OPERATIONS[hostops.UNARY[op]](a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        name = hostops.COMPARE[op]
        symbolic = reach.holds_value(a) or reach.holds_value(b)
        if op in ("is", "is not"):
            direct = isinstance(a, Value) or isinstance(b, Value)
            return self.simple(name, a, b) if direct else hostops.OPERATIONS[name](a, b)
        if op in ("in", "not in"):
            if self.is_language(b):
                return hostops.OPERATIONS[name](self.concrete(a), b)
            if isinstance(b, dict) and symbolic and self.is_plain(b):
                b = tuple(b)
            if isinstance(b, types.GeneratorType | _DICT_VIEWS):
                b = tuple(b)
        if not symbolic and self.is_plain(a) and self.is_plain(b):
            return hostops.OPERATIONS[name](a, b)
        if not symbolic and op in ("==", "!=") and (self._by_identity(a) or self._by_identity(b)):
            return hostops.OPERATIONS[name](a, b)
        if self.is_language(a) or self.is_language(b):
            raise TraceEscape("compares a state with a traced value")
        if id(b) in self.local and isinstance(b, list | set) and op in ("in", "not in"):
            b = tuple(b)
        return self.simple(name, a, b)

    def _by_identity(self, x: Any) -> bool:
        return isinstance(x, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType) or _is_enum_member(x)

    def not_(self, a: Any) -> Any:
        if isinstance(a, Value):
            return self.simple("py.not", a)
        with self.auxiliary():
            return not self.truth(a)

    def truth(self, a: Any) -> bool:
        if isinstance(a, Value):
            return self.decide(a if a.type == "bool" else self.simple("py.bool", a))
        if self.is_plain(a) or isinstance(a, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType | types.MethodType):
            return bool(a)
        if self.steady(a):
            return bool(a)
        return self.decide(self.host(self.operation("py.bool"), [self.operand(a)], Known("bool"), "ordered"))

    def concrete(self, a: Any) -> Any:
        """A value made concrete: one arm of the trace tree per answer seen."""
        if isinstance(a, Value):
            return self.decide(a)
        if type(a) is tuple and reach.holds_value(a):
            return tuple(self.concrete(x) for x in a)
        if type(a) is slice and reach.holds_value(a):
            return slice(self.concrete(a.start), self.concrete(a.stop), self.concrete(a.step))
        return a

    def fstring(self, *parts: Any) -> Any:
        pieces: list[Operand] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                pieces.append(part)
                continue
            value, conversion, spec = part
            if isinstance(value, Value) and value.type == "str" and not spec and conversion in ("", "s"):
                pieces.append(value.ir)
            elif reach.holds_value(value) or isinstance(spec, Value) or not (self.is_plain(value) or self._by_identity(value)):
                pieces.append(self.simple("py.format", value, conversion, spec, key=(self.tick, i + 1, 0)).ir)
            else:
                pieces.append(hostops.OPERATIONS["py.format"](value, conversion, spec))
        return self.joined(pieces)

    def joined(self, pieces: list[Operand]) -> Any:
        merged: list[Operand] = []
        for piece in pieces:
            if isinstance(piece, str) and merged and isinstance(merged[-1], str):
                merged[-1] += piece
            elif piece != "":
                merged.append(piece)
        if not merged:
            return ""
        if len(merged) == 1 and isinstance(merged[0], str):
            return merged[0]
        return self.value(self.emit("concat", merged, {}, ("str",))[0])

    # -- building and taking apart

    def made(self, container: list[Any]) -> list[Any]:
        return self.fresh(container)

    def build_set(self, items: list[Any]) -> Any:
        if not reach.holds_value(items):
            return self.fresh(set(items))
        return self.simple("py.set", *items)

    def build_dict(self, items: list[Any]) -> Any:
        if any(isinstance(i, Value) or (isinstance(i, tuple) and reach.holds_value(i[0])) for i in items):
            if any(not isinstance(i, tuple) for i in items):
                raise TraceEscape("merges a traced mapping into a dict")
            return self.simple("py.dict", *itertools.chain.from_iterable(items))
        built: dict[Any, Any] = {}
        for item in items:
            if isinstance(item, tuple):
                built[item[0]] = item[1]
            elif self.is_plain(item) or self.steady(item):
                built.update(item)
            else:
                raise TraceEscape("merges a mapping of the host into a dict")
        return self.fresh(built)

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        items = self.items(value)
        return items if shape is None else (self.unpacked(item, shape) for item in items)

    def items(self, value: Any, which: int = 0) -> Iterable[Any]:
        """Iterates anything, one decision per step or per length where the value is traced. `which` numbers the argument."""
        if isinstance(value, Value):
            return self._text_items(value) if value.type == "str" else self._host_items(value.ir, value.items, which)
        if self.is_plain(value) or isinstance(value, type):
            return value
        if isinstance(value, itertools.chain | itertools.islice | itertools.product | itertools.count):
            return value
        if self.steady(value):
            return self._steady_items(value)
        return self._host_items(self.operand(value), None, which)

    def _text_items(self, value: Value) -> Iterator[Any]:
        length = self.decide(self.host(self.constant(len), [value.ir], Known("int", total=True), "pure"))
        for i in range(length):
            yield self.simple("py.getitem", value, i)

    def _host_items(self, operand: Operand, items: str | None, which: int) -> Iterator[Any]:
        tick = self.tick
        iterator = self.host(self.operation("py.iter"), [operand], Known(), "ordered", key=(tick, which + 1, 0))
        return self._host_steps(iterator, items, tick, which)

    def _host_steps(self, iterator: Value, items: str | None, tick: int, which: int) -> Iterator[Any]:
        kind: Type = "str" if items == "str" else "any"
        for index in itertools.count(1):
            step = self.host(self.operation("py.next"), [iterator.ir], Known(), "ordered", key=(tick, which + 1, index))
            more = self.host(self.operation("py.getitem"), [step.ir, 0], Known("bool", total=True), "pure")
            if not self.decide(more):
                return
            item = self.host(self.operation("py.getitem"), [step.ir, 1], Known(kind, total=True), "pure")
            item.immutable = kind == "str"
            yield item

    def steady(self, x: Any) -> bool:
        """Whether an outside container of constants may be read while tracing: guarded at entry, checked after foreign code."""
        if type(x) not in (list, dict, set) or len(x) > 256 or not hostops.is_immutable(_frozen(x)):
            return False
        if self.checked.get(id(x)) == self.foreign:
            return True
        if self.foreign:
            return False
        snapshot = _frozen(x)
        self.snapshots[id(x)] = (x, snapshot)
        self.checked[id(x)] = 0
        self.tree.guards.setdefault(("content", id(x)), Guard(f"{type(x).__name__} {x!r:.40} is unchanged", lambda: _same(_frozen(x), snapshot)))
        return True

    def _steady_items(self, x: Any) -> Iterator[Any]:
        before = self.foreign
        for item in tuple(x):
            if self.foreign != before:  # foreign code ran in the loop: the container must not have changed
                before = self.foreign
                self.host(
                    self.own(_same_content),
                    [self.constant(x), self.constant(self.snapshots[id(x)][1])], Known(), "ordered", key=NO_KEY)  # fmt: skip
                before = self.foreign
            yield item

    def unpack(self, value: Any, shape: Shape) -> Any:
        return self.unpacked(value, shape)

    def unpacked(self, value: Any, shape: Shape) -> Any:
        before, after = targets(shape)
        nested = any(isinstance(s, tuple) for s in shape)
        if isinstance(value, Value):
            return self._unpacked_value(value, shape, before, after)
        if not nested or not (isinstance(value, tuple | list) and len(value) == len(shape)):
            return value
        return tuple(self.unpacked(v, s) if isinstance(s, tuple) else v for v, s in zip(value, shape, strict=True))

    def _unpacked_value(self, value: Value, shape: Shape, before: int, after: int) -> Any:
        items = self.simple("py.unpack", value, before, after)
        count = before if after < 0 else before + 1 + after
        found: list[Any] = []
        for i in range(count):
            kind: Type = "str" if value.items == "str" and not (after >= 0 and i == before) else "any"
            item = self.host(self.operation("py.getitem"), [items.ir, i], Known(kind, total=True), "pure")
            item.immutable = kind == "str" or (value.immutable and after < 0)
            found.append(self.unpacked(item, shape[i]) if isinstance(shape[i], tuple) else item)
        if after >= 0:
            with self.auxiliary():
                starred = self.star(found[before])
            return (*found[:before], *starred, *found[before + 1 :])
        return tuple(found)

    def star(self, value: Any) -> Iterable[Any]:
        if isinstance(value, Value):
            items = self.simple("py.as_tuple", value)
            length = self.decide(self.host(self.constant(len), [items.ir], Known("int", total=True), "pure"))
            kind: Type = "str" if value.items == "str" or value.type == "str" else "any"
            return [self.host(self.operation("py.getitem"), [items.ir, i], Known(kind, total=True), "pure") for i in range(length)]
        return self.items(value)

    def dstar(self, value: Any) -> Any:
        if isinstance(value, Value):
            raise TraceEscape("passes a traced mapping as keyword arguments")
        return value

    # -- statements

    def enter(self, manager: Any) -> Any:
        if self.is_language(manager) or _is_own_manager(manager):
            return manager
        raise TraceEscape(f"enters a {type(manager).__name__} of the host")

    def raise_(self, error: Any) -> Any:
        if isinstance(error, Value):
            raise TraceEscape("raises an exception that holds traced values")
        return error

    def eval_(self, text: Any, inside: dict[str, Any], outside: dict[str, Any]) -> Any:
        raise TraceEscape("calls eval")

    # -- calls

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.calls(fn, args, kwargs)

    def calls(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of anything."""
        if isinstance(fn, Value):
            if any(map(reach.holds_language, args)) or any(map(reach.holds_language, kwargs.values())):
                return self.calls(self.decide(fn), args, kwargs)
            return self.effect(fn, args, kwargs)
        handler = _handler(fn)
        if handler is not None:
            if fn in _MAIN:
                return handler(self, args, kwargs)
            with self.auxiliary():
                return handler(self, args, kwargs)
        if isinstance(fn, Function):
            if fn.split(kwargs)[1]:
                raise TraceEscape(f"calls the program {fn.name} with options of its own")
            return self.sub_program(fn, args, kwargs)
        if reach.is_own(fn) or self.is_language(fn) or self.is_language(getattr(fn, "__self__", None)):
            return self.language_call(fn, args, kwargs)
        if isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and getattr(fn, "__self__", None) is not None and not isinstance(
            fn.__self__, types.ModuleType | type
        ):
            return self.methods(fn.__self__, fn.__name__, args, kwargs)
        twin = reach.traced_twin(fn, args, kwargs, hooks)
        if twin is not None:
            if fn not in (object,) and not (isinstance(fn, type) and hasattr(fn, "__dataclass_fields__")):
                self.entered(fn)
            result = twin(*args, **kwargs)
            if isinstance(fn, type):
                self.local[id(result)] = result
            return result
        known = hostops.pure_function(fn)
        if known is not None:
            return self.known_call(fn, known, args, kwargs)
        if isinstance(fn, type) and issubclass(fn, BaseException) and not reach.holds_value((args, tuple(kwargs.values()))):
            return fn(*args, **kwargs)
        return self.effect(fn, args, kwargs)

    def created(self, instance: Any) -> None:
        self.local[id(instance)] = instance

    def language_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(fn, "__name__", "")
        if name in _CONCRETE_FIRST and args:
            args = (self.concrete(args[0]), *args[1:])
        for key in ("name", "size"):
            if key in kwargs:
                kwargs = {**kwargs, key: self.concrete(kwargs[key])}
        with self.auxiliary():
            return self.fresh(fn(*args, **kwargs))

    def entered(self, fn: Any) -> None:
        """Remembers the closure cells of a function that is traced through: variables of the outside."""
        while isinstance(fn, types.MethodType | functools.partial):
            fn = fn.__func__ if isinstance(fn, types.MethodType) else fn.func
        if isinstance(fn, type):
            fn = fn.__init__
        if isinstance(fn, types.FunctionType) and not reach.is_instrumented(fn):
            code = instrument(fn, hooks).__code__
            for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
                self.cells[code, name] = cell

    def known_call(self, fn: Any, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A library function that only reads its arguments."""
        args = tuple([self.fresh(list(self.items(a))) if isinstance(a, LAZY) else a for a in args])
        everything = (*args, *kwargs.values())
        plain = all(self.is_plain(a) or self._by_identity(a) or self.steady(a) for a in everything)
        if plain and not any(map(reach.holds_value, everything)):
            return self.fresh(fn(*args, **kwargs))
        types_ = [self.type_of(self.snapshot(a)) for a in everything]
        operands = [self.operand(self.snapshot(a)) for a in everything]
        pure = "any" not in types_
        if fn in (str, repr, format) or (fn is len and pure):
            known = Known(known.type, total=types_ and types_[0] in ("str", "int", "float", "bool") and len(types_) == 1)
        return self.host(self.callee(fn), operands, known, "pure" if pure and not known.fresh else "ordered", kwargs=tuple(kwargs))

    def snapshot(self, x: Any) -> Any:
        """A list of the program as a tuple where the difference cannot be seen."""
        return x

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.methods(owner, name, args, kwargs)

    def methods(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a method of anything."""
        if isinstance(owner, Value):
            return self.value_method(owner, name, args, kwargs)
        if isinstance(owner, Function) and name == "run":
            return self.calls(owner, args, kwargs)
        if self.is_language(owner):
            return self.language_call(getattr(owner, name), args, kwargs)
        if isinstance(owner, types.ModuleType | type):
            return self.calls(self.getattr(owner, name), args, kwargs)
        if type(owner) in (list, dict, set) and id(owner) in self.local:
            return self.container_method(owner, name, args, kwargs)
        if hostops.is_immutable(owner) or type(owner) is tuple:
            return self.constant_method(owner, name, args, kwargs)
        if isinstance(owner, types.GeneratorType | _DICT_VIEWS | BaseException):
            return getattr(owner, name)(*args, **kwargs)
        return self.object_method(owner, name, args, kwargs)

    def value_method(self, owner: Value, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        everything = (*args, *kwargs.values())
        if any(map(reach.holds_language, everything)):
            raise TraceEscape(f"hands a state to .{name}() of a traced value")
        args = tuple([self.fresh(list(self.items(a))) if isinstance(a, LAZY) else a for a in args])
        types_ = [self.type_of(a) for a in (owner, *args, *kwargs.values())]
        if owner.type == "str":
            return self.text_method(owner, name, args, kwargs, types_)
        if owner.immutable and "any" not in types_:
            return self.host(self.operation("py.call_method"), [owner.ir, name, *map(self.operand, everything)], Known(), "pure", kwargs=tuple(kwargs))
        self.no_containers(f".{name}", args, kwargs)
        return self.host(
            self.operation("py.call_method"), [owner.ir, name, *map(self.operand, everything)], Known(), "ordered" if owner.items else "effect",
            kwargs=tuple(kwargs), inline=bool(owner.items))  # fmt: skip

    def text_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], types_: list[str]) -> Any:
        """A method of str on operands some of which are traced."""
        known = hostops.str_method(name, types_) if not kwargs else hostops.str_method(name, ["str", "any"])
        if known is None:
            raise TraceEscape(f"str has no method {name}")  # the interpreter raises what Python raises
        fn = getattr(str, name)
        symbol = self.tree.symbol(("id", id(fn)), f"str.{name}", fn)
        operands = [self.operand(a) for a in (owner, *args, *kwargs.values())]
        pure = "any" not in types_ and not known.fresh
        return self.host(symbol, operands, known, "pure" if pure else "ordered", kwargs=tuple(kwargs))

    def constant_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple([self.fresh(list(self.items(a))) if isinstance(a, LAZY) else a for a in args])
        everything = (*args, *kwargs.values())
        if any(map(reach.holds_language, everything)) and type(owner) is not tuple:
            raise TraceEscape(f"hands a state to {type(owner).__name__}.{name}")
        args = tuple(tuple(a) if name == "join" and isinstance(a, list) and id(a) in self.local else a for a in args)
        everything = (*args, *kwargs.values())
        if not any(map(reach.holds_value, everything)) and not reach.holds_value(owner) and all(
            self.is_plain(a) or self.steady(a) or callable(a) for a in everything
        ):
            return self.fresh(getattr(owner, name)(*args, **kwargs))
        types_ = [self.type_of(a) for a in (owner, *everything)]
        if type(owner) is str:
            return self.text_method(owner, name, args, kwargs, types_)
        pure = "any" not in types_
        return self.host(
            self.operation("py.call_method"), [self.operand(owner), name, *map(self.operand, everything)], Known(), "pure" if pure else "ordered",
            kwargs=tuple(kwargs))  # fmt: skip

    def container_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a list, dict or set that the program made."""
        if isinstance(owner, list):
            match name, args:
                case "extend", (items,):
                    return owner.extend(self.items(items))
                case "sort", ():
                    owner[:] = _sorted(self, (owner,), kwargs)
                    return None
                case ("append" | "insert" | "clear" | "copy" | "reverse" | "pop", _):
                    return self.fresh(getattr(owner, name)(*map(self.concrete, args[:-1]), *args[-1:]) if name == "insert" else
                                      getattr(owner, name)(*(map(self.concrete, args) if name == "pop" else args)))
        elif isinstance(owner, dict) and name in ("keys", "values", "items", "copy", "clear", "get", "pop", "setdefault", "update", "popitem"):
            if name == "update" and args and not (self.is_plain(args[0]) and isinstance(args[0], dict)):
                raise TraceEscape("updates a dict it made from host data")
            if name in ("get", "pop", "setdefault") and args:
                args = (self.concrete(args[0]), *args[1:])
            return self.fresh(getattr(owner, name)(*args, **kwargs))
        if not reach.holds_value((owner, args)):
            args = tuple(list(self.items(a)) if isinstance(a, types.GeneratorType) else a for a in args)
            return self.fresh(getattr(owner, name)(*args, **kwargs))
        if name in ("count", "index") and isinstance(owner, list) and not reach.holds_language(owner):
            return self.simple_method(tuple(owner), name, args)
        raise TraceEscape(f"{type(owner).__name__}.{name} with traced values")

    def simple_method(self, owner: tuple[Any, ...], name: str, args: tuple[Any, ...]) -> Value:
        types_ = [self.type_of(a) for a in (owner, *args)]
        return self.host(
            self.operation("py.call_method"), [self.operand(owner), name, *map(self.operand, args)], Known("int"),
            "pure" if "any" not in types_ else "ordered")  # fmt: skip

    def object_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of an instance: the program's own, traced through if it reaches the language, or the host's."""
        if id(owner) in self.local:
            return self.calls(getattr(owner, name), args, kwargs)
        method = getattr(type(owner), name, None)
        if isinstance(method, types.FunctionType) and name not in getattr(owner, "__dict__", {}):
            bound = getattr(owner, name)
            if isinstance(bound, types.MethodType) and reach.traced_twin(bound, args, kwargs, hooks) is not None:
                return self.calls(bound, args, kwargs)
        if any(map(reach.holds_language, (*args, *kwargs.values()))):
            return self.calls(getattr(owner, name), args, kwargs)
        self.no_containers(f".{name}", args, kwargs)
        operands = [self.operand(owner), name, *map(self.operand, (*args, *kwargs.values()))]
        return self.host(self.operation("py.call_method"), operands, Known(), "effect", kwargs=tuple(kwargs), inline=False)


# -- builtins that the tracer knows --------------------------------------------------------------------------------------

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def _isinstance(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    x, cls = args
    if not isinstance(x, Value):
        return isinstance(x, cls)
    if x.type != "any" and x.type != "bool":
        return issubclass({"str": str, "int": int, "float": float}[x.type], cls)
    return t.host(t.constant(isinstance), [x.ir, t.operand(cls)], Known("bool"), "pure" if x.immutable else "ordered")


def _range(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return range(*map(t.concrete, args))


def _key(t: TraceMode, kwargs: _Kwargs) -> Callable[[Any], Any]:
    key = kwargs.get("key")
    return (lambda x: x) if key is None else t.callback(key)


def _extreme(name: str, native: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        if len(args) == 1 and isinstance(args[0], Value) and not kwargs:
            t.main = True
            return t.known_call(native, Known(), args, kwargs)
        items = list(t.items(args[0])) if len(args) == 1 else list(args)
        if not items:
            return native([], **{k: v for k, v in kwargs.items() if k == "default"})
        key = _key(t, kwargs)
        keys = [key(x) for x in items]
        if not reach.holds_value(keys):
            return items[native(range(len(keys)), key=keys.__getitem__)]
        if len(items) == 1:
            return items[0]
        best = t.simple(name, tuple(keys))
        best.domain = tuple(range(len(items)))
        if kwargs.get("key") is None and not any(map(reach.holds_language, items)):
            return t.simple("py.getitem", tuple(items), best)
        return items[t.decide(best)]

    return handler


def _sorted(t: TraceMode, args: _Args, kwargs: _Kwargs) -> list[Any]:
    items = list(t.items(args[0]))
    key = _key(t, kwargs)
    keys = [key(x) for x in items]
    reverse = bool(t.truth(kwargs.get("reverse", False)))
    if not reach.holds_value(keys):
        order: Iterable[int] = sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)
    elif len(items) < 2:
        order = range(len(items))
    else:
        order = t.decide(t.simple("py.argsort", tuple(keys), reverse))
    return t.fresh([items[i] for i in order])


def _sorted_call(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if isinstance(args[0], Value) and kwargs.get("key") is None:
        t.main = True
        return t.known_call(sorted, Known(fresh=True, items=args[0].items), args, kwargs)
    return _sorted(t, args, kwargs)


def _any(t: TraceMode, args: _Args, kwargs: _Kwargs) -> bool:
    return any(t.truth(x) for x in t.items(args[0]))


def _all(t: TraceMode, args: _Args, kwargs: _Kwargs) -> bool:
    return all(t.truth(x) for x in t.items(args[0]))


def _sum(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if isinstance(args[0], Value):
        t.main = True
        return t.known_call(sum, Known(), args, kwargs)
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    for x in t.items(args[0]):
        total = t.binop("+", total, x)
    return total


def _map(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, *iterables = args
    call = t.callback(fn)
    return (call(*xs) for xs in zip(*[t.items(x, n + 1) for n, x in enumerate(iterables)], strict=False))


def _filter(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, items = args
    call = t.callback(fn) if fn is not None else lambda x: x
    return (x for x in t.items(items, 1) if t.truth(call(x)))


def _enumerate(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return enumerate(t.items(args[0]), *args[1:], **kwargs)


def _zip(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return zip(*[t.items(x, n) for n, x in enumerate(args)], **kwargs)


def _reversed(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    x = args[0]
    return iter(list(t.items(x))[::-1]) if isinstance(x, Value) or not t.is_plain(x) else reversed(x)


def _collect(native: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """list, tuple: of the program's own items as they are, of a traced value as a host operation."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        if args and isinstance(args[0], Value):
            items = "str" if args[0].type == "str" else args[0].items
            t.main = True
            return t.known_call(native, Known(fresh=native is list, items=items), args, kwargs)
        return t.fresh(native(*[t.items(a) for a in args]))

    return handler


def _set(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if args and isinstance(args[0], Value):
        t.main = True
        return t.known_call(set, Known(fresh=True), args, kwargs)
    return t.build_set(list(t.items(args[0])) if args else [])


def _dict(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if args and isinstance(args[0], Value):
        t.main = True
        return t.known_call(dict, Known(fresh=True), args, kwargs)
    source = args[0] if args else {}
    pairs = list(source.items()) if isinstance(source, dict) else [tuple(p) for p in t.items(source)]
    return t.build_dict([*pairs, *kwargs.items()])


def _iter(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if len(args) == 2:
        return iter(t.callback(args[0]), args[1])
    return iter(t.items(args[0]))


def _next(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if isinstance(args[0], Value):
        raise TraceEscape("calls next on an iterator of the host")
    return next(*args)


def _getattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if len(args) == 3:
        owner, name, default = args
        if not t.is_plain(owner) or isinstance(owner, Value):
            raise TraceEscape("getattr with a default on an object of the host")
        return getattr(owner, t.concrete(name), default)
    return t.getattr(args[0], t.concrete(args[1]))


def _setattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> None:
    t.setattr(args[0], t.concrete(args[1]), args[2])


def _hash_or_id(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    raise TraceEscape("takes the hash or identity of an object")


def _hasattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if isinstance(args[0], Value):
        return t.host(t.constant(hasattr), [args[0].ir, t.operand(args[1])], Known("bool"), "ordered")
    return hasattr(*args)


def _type(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if len(args) != 1:
        raise TraceEscape("makes a class")
    x = args[0]
    if not isinstance(x, Value):
        return type(x)
    if x.type != "any":
        return {"str": str, "int": int, "float": float, "bool": bool}[x.type]
    return t.decide(t.host(t.constant(type), [x.ir], Known(), "pure"))


def _super(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return super(*args)


def _print(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return t.effect(print, args, kwargs)


_HANDLERS: dict[Any, Callable[[TraceMode, _Args, _Kwargs], Any]] = {
    isinstance: _isinstance, range: _range, max: _extreme("py.argmax", max), min: _extreme("py.argmin", min), sorted: _sorted_call, any: _any,
    all: _all, sum: _sum, map: _map, filter: _filter, enumerate: _enumerate, zip: _zip, reversed: _reversed, list: _collect(list),
    tuple: _collect(tuple), set: _set, dict: _dict, iter: _iter, next: _next, getattr: _getattr, setattr: _setattr, hasattr: _hasattr,
    hash: _hash_or_id, id: _hash_or_id, type: _type, super: _super, print: _print,
}  # fmt: skip
_MAIN = frozenset({isinstance, hasattr, print, getattr, setattr})  # their one host operation is their result


def _handler(fn: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any] | None:
    try:
        return _HANDLERS.get(fn)
    except TypeError:
        return None


_ON_ANY = {
    "py.bool": Known("bool"), "py.not": Known("bool"), "py.in": Known("bool"), "py.not_in": Known("bool"), "py.format": Known("str"),
    "py.text": Known("str"), "py.is": Known("bool", total=True), "py.is_not": Known("bool", total=True), "py.argmin": Known("int"),
    "py.argmax": Known("int"),
}  # fmt: skip
_PREFIX = {"ctx": "c", "str": "x", "bool": "p", "int": "n", "float": "r"}
_CONCRETE_FIRST = frozenset({"fork", "get_var", "set_var", "get_meta_info", "var_scope", "gen", "select", "gen_int", "gen_string", "copy"})
_READERS: tuple[Any, ...] = (print,)
_DICT_VIEWS = type({}.keys()) | type({}.values()) | type({}.items()) | type(iter([])) | type(iter(())) | type(iter("")) | type(iter({}))
_MISSING = object()
_PACKAGE = __file__.rsplit("frontend", 1)[0]


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def _frozen(x: Any) -> Any:
    if isinstance(x, dict):
        return tuple((k, _frozen(v)) for k, v in x.items())
    if isinstance(x, list | set):
        return tuple(_frozen(i) for i in x)
    return x


def _described(x: Any) -> str:
    return getattr(x, "__qualname__", None) or getattr(x, "__name__", None) or f"a {type(x).__name__}"


def _symbol_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in name.replace(".<locals>.", ".")) or "object"


def _is_definition(x: Any) -> bool:
    return isinstance(x, types.FunctionType | type | types.ModuleType | types.BuiltinFunctionType) or reach.is_language(x)


def _is_enum_member(x: Any) -> bool:
    import enum

    return isinstance(x, enum.Enum)


def _is_own_manager(x: Any) -> bool:
    generator = getattr(x, "gen", None)
    return isinstance(generator, types.GeneratorType) and generator.gi_code.co_filename.startswith(_PACKAGE)


class GuardFailed(Exception):
    """The outside changed while the program ran; the run goes on in the interpreter."""


def _gathered(*pairs: Any) -> Gathered:
    """Run time: what the children of a fork hold under a name, from values and meta infos in turn."""
    return Gathered(tuple(held_of(value, meta) for value, meta in zip(pairs[::2], pairs[1::2], strict=True)))


def _scoped(since: Any, until: Any) -> Scoped:
    """Run time: the text between two prompts."""
    return Scoped(since, until)


def held_of(value: Any, meta: Any) -> Any:
    """Run time: a variable's content from the two operands that stand for it."""
    if isinstance(value, Result | Gathered | Scoped):
        return value
    return Stored(value, meta.result if isinstance(meta, Meta) else meta)


def _unchanged(read: Callable[[], Any], value: Any) -> None:
    if read() is not value:
        raise GuardFailed


def _same_content(container: Any, snapshot: Any) -> None:
    if not _same(_frozen(container), snapshot):
        raise GuardFailed


# -- one trace -------------------------------------------------------------------------------------------------------------


def trace(tree: Tree, program: Function, arguments: inspect.BoundArguments, path: Sequence[Decision]) -> bool:
    """Runs the program on symbolic values along a path of decisions and records what is new into the tree.

    Arguments are the tree's parameters by name. False when the program did not do what it did in an earlier trace.
    """
    twin = instrument(_plain_function(program), hooks)
    mode = TraceMode(tree, path)
    mode.entered(program.func)
    token = active.set(mode)
    state = State(TraceEmitter(mode), name=program.name)
    state_token = ACTIVE.set(state)
    try:
        values = {p.name: mode.value(p) for p in tree.params}
        args = [values[n] if n in values else x for n, x in zip(program.params, arguments.args[1:], strict=False)]
        kwargs = {n: values.get(n, x) for n, x in arguments.kwargs.items()}
        result = twin(state, *args, **kwargs)
        mode.finish(state, result)
    except StopTrace:
        return True
    except TraceEscape as escape:
        return mode.give_up(escape.reason)
    except Exception as error:  # the program raised: the interpreter raises it again, with its own traceback
        if isinstance(mode.dead, StopTrace):
            return True
        return mode.give_up(mode.dead.reason if isinstance(mode.dead, TraceEscape) else f"raises {type(error).__name__}: {error}")
    finally:
        ACTIVE.reset(state_token)
        active.reset(token)
    return True


def _plain_function(program: Function) -> types.FunctionType:
    if not isinstance(program.func, types.FunctionType):
        raise TraceEscape(f"{program.name} is a {type(program.func).__name__}, not a Python function")
    return program.func
