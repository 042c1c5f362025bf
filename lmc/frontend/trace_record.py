"""Recording: one run of the tracer along one path of a trace tree, op by op, decision by decision.

Knows ops, operands and decisions, and nothing of Python's statements and calls (tracer.py).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import contextlib
import enum
import inspect
import itertools
import operator
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmc.backend.base import Meta, Result, TakeOver
from lmc.config import log
from lmc.durable.snapshots import LAZY
from lmc.errors import LmcError, Loc
from lmc.frontend import hostops, raising, reach
from lmc.frontend.aio import Ready
from lmc.frontend.class_code import functions_of, made_with, may_change_classes, stays_of_its_class
from lmc.frontend.counting import CountingMode, program_frame
from lmc.frontend.emitter import Taken
from lmc.frontend.hooks import hooks
from lmc.frontend.host import HostFunction
from lmc.frontend.hostops import Known
from lmc.frontend.instrumented import is_instrumented, rebinds, stays
from lmc.frontend.keys import DEFINED, Key
from lmc.frontend.managers import is_generator_manager
from lmc.frontend.primitives import caller_loc
from lmc.frontend.source import tried
from lmc.frontend.state import Gathered, Scoped, State, StateGroup, Stored
from lmc.frontend.trace_state import NOT_AN_ATTRIBUTE, Answer
from lmc.frontend.tree import Decision, Escape, Node, Return, Site, Switch, Tree, answer_of, decision_of
from lmc.frontend.values import TraceEscape, Value
from lmc.ir.core import Attr, Op, Operand, Symbol, Type, exact
from lmc.ir.core import Value as IRValue

UNKNOWN = object()
"""No answer is expected of a decision."""
MAX_EXPECTED = 8
"""Expected answers at one place of the program that one trace goes on with: a loop may have no other end."""
MAX_OPS = 20_000
"""Ops on one path; a longer one goes on in the interpreter."""
EMPTY = object()
SELF = object()
"""Stands for the program's own state as its return value."""
NO_KEY = ()
"""For host operations that a replay neither answers nor repeats: checks of the trace itself."""
_NOTHING: Mapping[str, Attr] = {}
READERS: tuple[Any, ...] = (print,)
"""Functions that neither keep nor change what they are handed."""


class StopTrace(BaseException):  # not an Exception: the program must not catch it
    """The trace reached a decision whose answer is not known yet."""


class Diverged(Exception):
    """The program did something else than in an earlier trace with the same decisions."""


class Recorder(CountingMode):
    """Hooks that record. One instance is one run of the tracer along one path."""

    if TYPE_CHECKING:  # in trace_outside.py

        def steady(self, x: Any) -> bool: ...

    def __init__(self, tree: Tree, path: Sequence[Decision]) -> None:
        super().__init__()
        self.tree = tree
        self.node: Node = tree.root
        self.at = 0  # ops of the node already passed
        self.before: Sequence[IRValue] = tree.params  # what was in reach where the node begins
        self.path = list(path)
        self.taken = 0
        self.ops = 0
        self.dead: BaseException | None = None
        self.start: Loc | None = None  # where the program begins, until its prompt does
        self.foreign = 0  # how many ops so far may have run foreign code
        self.effects = 0  # how many of them are calls of it
        self.checked = 0  # as of how many effects the objects of the outside are known to be those that the trace saw
        self.local: dict[int, Any] = self.instances  # containers, iterators and instances that the program itself made
        self.texts: dict[IRValue, Value] = {}  # lists of the run that hold nothing but text, as far as nobody else has them
        self.given: dict[tuple[str, Operand], tuple[Node, int, IRValue]] = {}  # what asks were given: when, and what it was
        self.lent: dict[int, Any] = {}  # containers of the outside that the program stored in a state
        self.prompts: dict[IRValue, Op] = {}  # what made each prompt of the path
        self.sites: dict[int, Site] = {}  # where the program made a container
        self.made_at: dict[int, Site] = {}  # where it made a class that other traces have as well
        self.alive: list[weakref.ref[Any]] = []
        self.outermost = sys._getframe(1).f_code  # pyright: ignore[reportPrivateUsage]  # frames further out are not the program's
        self.outer_error = sys.exception()  # what the caller of the program is handling
        self.managers = 0  # open context managers of the host
        self.guards_open = 0  # and of the program's own, of those that may handle an exception
        self.entered_hosts = set[int]()  # their identities; some were open before
        self.expected: Counter[object] = Counter()  # answers that were assumed, by place
        self.functions: dict[int, tuple[types.FunctionType, Value]] = {}  # of the program's own, that host code was handed
        self.results: dict[int, Operand | None] | None = None  # at the end of the path: containers of the program as objects of the run
        self.within = set[int]()  # containers that are being looked through
        self.rebuilding = set[int]()  # containers that are being made anew for host code
        self.given_away = set[int]()  # classes of the program that host code was handed, by id
        self.changed = set[int]()  # those with attributes that the program stored
        self.at_once = False  # whether host code calls what it is handed now only before it returns
        self.suspended: list[types.GeneratorType[Any, Any, Any]] = []  # of the program's own, which do something at their end
        self.loose: weakref.ref[Any] | None = None  # what stands for such a one, until the next hook call runs it
        self.iterated = False  # whether the hook call before this one began to go through such a one
        self.coroutines: list[Any] = []  # made by the program's own async functions
        self.tasks: dict[int, Site] = {}  # where the program gathers its own, by the identity of the gathering
        self.in_task = False  # what is traced is a task of the program's own

    def is_dead(self) -> bool:
        return self.dead is not None

    def close(self) -> None:
        """The trace is over: nothing of it runs any more."""
        for coroutine in self.coroutines:
            if isinstance(coroutine, types.CoroutineType):
                coroutine.close()
        if self.suspended and self.dead is None:
            self.dead = StopTrace()
        for generator in self.suspended:
            with contextlib.suppress(StopTrace, TraceEscape, Exception):  # of code that no run comes to
                generator.close()

    def escape(self, reason: TraceEscape) -> None:
        if self.dead is None:
            self.dead = reason

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.dead is not None:
            raise self.dead  # the program went on in a `finally` or a bare `except`
        if self.loose is not None:
            whole, self.loose = self.loose(), None
            if whole is not None and not _runs(whole, name, args):
                raise TraceEscape("keeps a generator with `yield` inside of `try` or `with`")
            del whole
            self.iterated = name == "iter"
        elif self.iterated:
            self.iterated = False
            if name == "made" and type(args[0]) is types.GeneratorType:
                raise TraceEscape("keeps a generator with `yield` inside of `try` or `with` in a generator expression")
        try:
            return super().dispatch(name, args, kwargs)
        except Exception as error:
            fault = fault_of(error)
            if fault is None and isinstance(error, TypeError) and any(type(text) is str and "'Value'" in text for text in error.args):
                fault = f"hands a traced value to code that is not its own: {error}"  # what Python says of the run's own one, the interpreter finds out
            if fault is None:
                if raising.content(error) is None:
                    raising.mark_constant(error)
                raise
            log("exits", f"{self.tree.name}: {fault}")
            raise TraceEscape(fault) from error

    @contextlib.contextmanager
    def auxiliary(self) -> Generator[None]:
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
        attrs: Mapping[str, Attr],
        types: Sequence[Type],
        hints: Sequence[str | None] = (),
        loc: Loc | None = None,
    ) -> tuple[IRValue, ...]:
        """The next op on the path: the recorded one, which must be the same, or a new one."""
        if self.dead is not None:
            raise self.dead  # a context manager of the language ends its role or scope
        if self.texts and kind == "host.call":
            self._hands_on(operands)
        self.ops += 1
        if self.ops > MAX_OPS:
            raise TraceEscape(f"the path has more than {MAX_OPS} operations")
        node, index = self.node, self.at
        self.at += 1
        if index < len(node.ops):
            known = node.ops[index]
            same = known.operands == tuple(operands) or exact(known.operands) == exact(tuple(operands))  # nan is nan
            if known.kind != kind or not same or known.attrs != attrs:
                raise self.diverged(known)
            self._extends(known)
            return known.results
        if node.end is not None:
            raise self.diverged(None)
        results = tuple(
            IRValue(self.tree.names.hinted(hint) if hint else self.tree.names.numbered(_PREFIX.get(t, "v")), t)
            for t, hint in itertools.zip_longest(types, hints[: len(types)])
        )
        node.ops.append(Op(kind, tuple(operands), results, attrs, (), loc or caller_loc()))
        self._extends(node.ops[-1])
        self.tree.size += 1
        return results

    def holds_text(self, value: Value) -> None:
        """A list of the run holds nothing but text, until something else is put into it or somebody else has it."""
        value.items = "str"
        self.texts[value.ir] = value

    def _hands_on(self, operands: Sequence[Operand]) -> None:
        """Before a host call: what may change or keep a list of text that it is handed may put anything into it, now or later."""
        fn, *args = operands
        if isinstance(fn, Symbol) and id(self.tree.symbols[fn.name]) in hostops.READ_ALONE:
            return
        for arg in args:
            if isinstance(arg, IRValue) and (value := self.texts.pop(arg, None)) is not None:
                value.items = None

    def _extends(self, op: Op) -> None:
        if op.results and op.results[0].type == "ctx":
            self.prompts[op.results[0]] = op

    def diverged(self, known: Op | None) -> TraceEscape:
        where = f" near {known.loc}" if known is not None and known.loc else ""
        return TraceEscape(f"the program did something else than before with the same answers{where}")

    def chain(self, ctx: IRValue, since: IRValue) -> list[Op]:
        """The ops of this path that lead from one prompt to another, in order."""
        found: list[Op] = []
        while ctx != since:
            found.append(self.prompts[ctx])
            ctx = found[-1].operands[0]  # type: ignore[assignment]  # every such op extends its first operand
        return found[::-1]

    def first_text(self, value: IRValue) -> IRValue:
        """The text that a prompt continues with after an answer."""
        if value.type == "str":
            return value
        return self.emit("host.call", (self.own(_first_text), value), {"pure": True, "total": True}, ("str",))[0]

    def keep(self, x: Any) -> Any:
        """Registers something that the program can reach as long as Python keeps it."""
        self.alive.append(weakref.ref(x))
        return x

    def value(self, ir: IRValue, immutable: bool = False, items: str | None = None, domain: tuple[Any, ...] | None = None) -> Value:
        return self.keep(Value(ir, immutable, items, domain))

    def reachable(self) -> tuple[IRValue, ...]:
        """The values that the program can still reach: those whose Python objects are alive.

        What was out of reach at the decision before may only look alive again, as garbage that a traceback holds.
        """
        there = {*self.before, *[v for op in self.node.ops for v in op.results]}
        found: dict[IRValue, None] = dict.fromkeys(self.tree.params)
        for ref in self.alive:
            x = ref()
            if isinstance(x, Answer):
                found[x.ir] = found[x.meta] = None
            elif isinstance(x, StateGroup):  # may be joined: what its states appended can be appended again
                for op in itertools.chain.from_iterable(self.chain(child.ctx.ir, x.since.ir) for child in x.states):
                    found |= dict.fromkeys((*op.uses, *op.results))
            elif x is not None:
                found[x.ir] = None
        return tuple(v for v in found if v in there)

    def decide(self, value: Value, expected: Any = UNKNOWN) -> Any:
        """The concrete answer for a value on this path; stops the trace where it is neither known yet nor `expected`."""
        if self.in_task:
            raise TraceEscape("branches on an answer in a task, which would make the tasks after it wait")
        node = self.node
        if self.at < len(node.ops):
            raise self.diverged(node.ops[self.at])
        if node.end is None:
            op = Op("switch", (value.ir,), (), {}, (), caller_loc())
            known = None if expected is UNKNOWN else decision_of(expected)
            node.end = Switch(value.ir, self.reachable(), self.tree.switch_id(), op, value.domain, known)
        if not isinstance(node.end, Switch) or node.end.cond != value.ir:
            raise self.diverged(None)
        if self.taken == len(self.path):
            if node.end.expected is None or not self._may_expect():
                self.dead = StopTrace()
                raise self.dead
            self.path.append(node.end.expected)
        key = self.path[self.taken]
        self.taken += 1
        self.before = node.end.live
        self.node, self.at = node.end.arms.setdefault(key, Node()), 0
        return answer_of(key)

    def _may_expect(self) -> bool:
        frame = program_frame()
        place = frame.f_code, frame.f_lasti
        self.expected[place] += 1
        return self.expected[place] <= MAX_EXPECTED

    # -- exceptions

    def attempt(
        self, kind: str, operands: Sequence[Operand], attrs: Mapping[str, Attr], type: Type, hint: str | None = None
    ) -> IRValue:  # fmt: skip
        """`emit` of an op that can raise. Where the program may handle that, the path goes on by what it raises."""
        if not self.is_tried():
            return self.emit(kind, operands, attrs, (type,), (hint,))[0]
        results = self.emit(kind, operands, {**attrs, "catch": True}, (type, "any", "any"), (hint, "raised", "error"))
        result, error = self.value(results[0]), self.value(results[2])  # within reach of the program, in one of the arms
        cls = self.decide(Value(results[1]), expected=None)
        if cls is not None:
            self._recorded(error, attrs)
            self.throw(cls, error)
        return result.ir

    def _recorded(self, error: Value, attrs: Mapping[str, Attr]) -> None:
        """What a pure operation raised is an object that can change: a replay takes it from the record as well."""
        if attrs.get("pure") and self.main and self.count == self.tick:
            recorded: dict[str, Attr] = {"ordered": True, "inline": True, "catch": True, "ord": (self.tick, 0, 0)}
            self.emit("host.call", (self.own(raising.again), error.ir), recorded, ("any", "any", "any"))

    def is_tried(self) -> bool:
        """Whether the program may handle an exception that is raised here: inside `try`, or `with` of the host."""
        if self.managers or self.guards_open:
            return True
        frame: types.FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code is not self.outermost:
            lines = tried.get(frame.f_code.co_filename)
            if lines and frame.f_lineno in lines:
                return True
            frame = frame.f_back
        return False

    def throw(self, cls: type[BaseException], error: Value) -> None:
        """Raises, in the program, the exception `error` of the run, which has this class."""
        if issubclass(cls, StopIteration | StopAsyncIteration | GeneratorExit) and not self.main:
            raise TraceEscape(f"a {cls.__name__} inside of a builtin")
        self.note("chained", error, self.handled())
        raising.throw(raising.stand_in(cls, error))

    def handled(self) -> BaseException | None:
        """The exception that the program is handling."""
        error = sys.exception()
        return None if error is self.outer_error else error

    def note(self, what: str, error: Value, other: Any) -> None:
        """Writes into an exception of the run what Python would: what it comes from (`caused`), or what was being handled."""
        if what == "caused" or other is not None:
            fn = raising.cause_noted if what == "caused" else raising.chained
            attrs: dict[str, Attr] = {"ordered": True, "total": True, "inline": True}
            self.emit("host.call", (self.own(fn), error.ir, self.operand(other)), attrs, ("any",))

    # -- the end of the path

    def finish(self, state: State, result: Any) -> None:
        """The program returned."""
        if self.dead is not None:
            raise self.dead
        if state.scopes:
            raise TraceEscape("returns inside an open scope")
        self.results = {}
        self._end("return", self.result_operand(state, result), state)

    def fail(self, state: State, error: BaseException) -> None:
        """The program raised."""
        if self.dead is not None:
            raise self.dead
        if state.scopes:
            raise TraceEscape("raises inside an open scope")
        self._end("raise", self.located(error), state)

    def _end(self, kind: str, result: Operand, state: State) -> None:
        operands: list[Operand] = [result, state.ctx.ir]
        for held in state.variables.values():
            operands += self.held(held)
        attrs: dict[str, Attr] = {
            "vars": tuple(state.variables), "ordinal": state.ordinal, "forks": state.forks, "calls": state.calls, "role": state.role,
            "previous": state.previous,
        }  # fmt: skip
        self.end(Return(Op(kind, tuple(operands), (), attrs)))

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
            case Taken():
                operands = self.own(Taken), held.answer.ir, self.own(held.take)
                return self.emit("host.call", operands, {"pure": True, "total": True}, ("any",))[0], held.answer.meta
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
        if isinstance(result, State):
            return self.returned(result)
        if type(result) is tuple and any(isinstance(x, State) for x in result):
            items = [self.result_operand(state, x) for x in result]
            return self.emit("host.call", (self.operation("py.tuple"), *items), {"pure": True, "total": True}, ("any",))[0]
        return self.operand(result)

    def returned(self, state: State) -> IRValue:
        """A fork or a sub-program's state that the program returns."""
        if state.scopes:
            raise TraceEscape("returns a state with an open scope")
        if getattr(state.emitter, "sampling", None):
            raise TraceEscape("returns a state of a program that it called with options of its own")
        about = tuple(state.variables), state.stream, state.ordinal, state.forks, state.calls, state.role, state.previous, state.name
        held = itertools.chain.from_iterable(map(self.held, state.variables.values()))
        operands = self.own(Returned), self.constant(about), state.ctx.ir, self.result_operand(state, state.ret_value), *held
        return self.emit("host.call", operands, {"pure": True, "total": True}, ("any",))[0]

    def end(self, end: Return | Escape) -> None:
        """Ends the path here, as it ended before if it was seen before."""
        if self.node.end is None and self.at == len(self.node.ops):
            self.node.end = end
        elif not (isinstance(end, Return) and isinstance(self.node.end, Return) and self.node.end.op == end.op):
            raise Diverged(f"{self.tree.name} ended otherwise than before with the same answers")

    def give_up(self, reason: str, loc: Loc | None) -> None:
        """From here on the interpreter runs. Raises Diverged where the tree already knows another way to go on."""
        if self.node.end is None and self.at >= len(self.node.ops):
            self.node.end = Escape(reason, self.tree.switch_id(), loc)
        if not isinstance(self.node.end, Escape):
            raise Diverged(reason if loc is None or str(loc) in reason else f"{reason} ({loc})")

    # -- operands

    def type_of(self, x: Any) -> str:
        """str, int, float or bool; "imm" for other immutable objects, "any" for the rest."""
        if isinstance(x, Value):
            return x.ir.type if x.ir.type != "any" else "imm" if x.immutable else "any"
        if type(x) in (str, int, float, bool):
            return type(x).__name__
        if type(x) is tuple:
            return "imm" if all(self.type_of(i) != "any" for i in x) else "any"
        if type(x) is slice:
            return self.type_of((x.start, x.stop, x.step))
        if hostops.is_immutable(x) or isinstance(x, type | types.FunctionType | types.BuiltinFunctionType | HostFunction):
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
        if isinstance(x, types.CoroutineType | types.AsyncGeneratorType | Ready):
            raise TraceEscape(f"hands {getattr(x, '__qualname__', 'something awaitable')}(), which reaches the language, to host code")
        if type(x) is tuple and x and not hostops.is_immutable(x):
            return self.build("py.tuple", x)
        if id(x) in self.local:
            return self.rebuilt(x)
        if isinstance(x, BaseException):
            return self.error_operand(x) if self.results is None else self.located(x)
        if isinstance(x, types.TracebackType | types.FrameType):
            raise TraceEscape(f"hands a {type(x).__name__} to host code")
        if type(x) is slice and reach.holds_value(x):
            return self.build("py.slice", (x.start, x.stop, x.step))
        if type(x) is types.FunctionType and is_instrumented(x):
            return self.function_operand(x)
        if isinstance(x, type) and self.is_own_definition(x):
            self.class_handed(x)
        if isinstance(x, types.MethodType) and isinstance(x.__self__, type) and self.is_own_definition(x.__self__):
            self.class_handed(x.__self__)  # what it makes is of that class
        if isinstance(x, HostFunction):
            return self.marked(x)
        if is_generator_manager(x):
            raise TraceEscape("hands a context manager it made to host code")
        if isinstance(x, (*LAZY, types.MethodType)) and not self._is_outside(x):
            raise TraceEscape(f"hands a {type(x).__name__} it made to host code")
        if reach.holds_language(x):
            raise TraceEscape(f"hands a {type(x).__name__} of the language to host code")
        if reach.holds_value(x):
            raise TraceEscape(f"hands a {type(x).__name__} that holds traced values to host code")
        if reach.holds(x, self._is_method_of_own):
            raise TraceEscape("hands a method of a container that it made to host code")
        return self.constant(x)

    def marked(self, fn: HostFunction, *, shared: bool = False) -> Symbol:
        """A marked function, by what it marks; `shared`: the form of a pure one whose result several places may use."""
        same = id(fn.fn) if _is_definition(fn.fn) else self.callee(fn.fn)
        key = ("shared" if shared else "marked", same, fn.promises)
        return self.tree.symbol(key, _name_of(fn.fn), fn.steady if shared else fn)

    def error_operand(self, error: BaseException) -> Operand:
        value = raising.content(error)
        if value is not None:
            return value.ir
        if not raising.is_constant(error) and not raising.was_traced(error):
            return self.constant(error)
        if not raising.is_constant(error) or type(error) not in raising.PLAIN or not all(map(hostops.is_immutable, error.args)):
            raise TraceEscape(f"hands a {type(error).__name__} that is the same in every run to host code")
        known = raising.in_the_run(error)
        if known is None:
            made = (self.constant(type(error)), *map(self.operand, error.args))
            known = self.emit("host.call", made, {"ordered": True, "total": True, "inline": True}, ("any",))[0]
            raising.in_the_run(error, known)
        return known

    def located(self, error: BaseException) -> Operand:
        """The operand of an exception that host code may look at, with the traceback that it and those behind it have here."""
        for one in raising.chain(error):
            places = raising.places(one)
            stack = self.tree.symbol(("places", places), "places", places)
            attrs: dict[str, Attr] = {"ordered": True, "total": True, "inline": True}
            self.emit("host.call", (self.own(raising.located), self.error_operand(one), stack), attrs, ("any",))
        return self.error_operand(error)

    def _is_outside(self, x: Any) -> bool:
        return isinstance(x, types.MethodType) and not reach.holds_value(x.__self__) and id(x.__self__) not in self.local

    def _is_method_of_own(self, x: Any) -> bool:
        """Whether something is `rows.append` of a container of the program, which the next trace makes an object of the run."""
        if not isinstance(x, types.BuiltinMethodType | types.MethodWrapperType):
            return False
        return self.wants(x.__self__) or id(x.__self__) in self.local or (type(x.__self__) is tuple and reach.holds_value(x.__self__))

    def constant(self, x: Any) -> Symbol:
        """A host object by reference; immutable ones are the same in every trace if they are equal."""
        return self.tree.symbol(_same_in_every_trace(x), _name_of(x), x)

    def class_handed(self, cls: type) -> None:
        """Host code is handed a class that the program made: the same one in each run, so it must be the same in each."""
        for base in filter(self.is_own_definition, cls.__mro__):
            if id(base) in self.changed or any(self._is_of_the_run(member) for member in vars(base).values()):
                raise TraceEscape(f"hands the class {base.__name__}, whose attributes are of this run, to host code")
            if id(base) not in self.given_away:
                self._same_in_each_run(base)
                self.given_away.add(id(base))
                for other in filter(self.is_own_definition, made_with(base)):
                    self.class_handed(other)
                attrs: dict[str, Attr] = {"ordered": True, "total": True, "inline": True, "ord": (self.definitions[id(base)][1], DEFINED, 0)}
                self.emit("host.call", (self.own(itself), self.constant(base)), attrs, ("any",))  # a replay knows its instances

    def _same_in_each_run(self, cls: type) -> None:
        """Nothing that code of a class does, once host code has it, may be seen by another run."""
        if stays_of_its_class(cls) and not (isinstance(cls, enum.EnumType) and id(cls) in self.made_at):
            raise TraceEscape(f"hands the class {cls.__name__}, whose instances cannot become those of another class, to host code")
        if may_change_classes(cls):
            raise TraceEscape(f"hands the class {cls.__name__}, which its methods may change, to host code")
        for fn in itertools.chain.from_iterable(map(functions_of, vars(cls).values())):
            for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
                if name == "__class__" or self.cell(name) is cell or cell_content(cell) is hooks:
                    continue
                if not stays(fn.__code__, name):
                    raise TraceEscape(f"hands the class {cls.__name__}, whose methods close over {name}, which is stored more than once, to host code")

    def _is_of_the_run(self, member: Any) -> bool:
        """Whether something that a class has is another in each run, or reaches such a thing."""
        parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (getattr(member, "__func__", member),)
        return reach.holds(parts, lambda y: isinstance(y, Value) or id(y) in self.local or reach.is_language(y))

    def function_operand(self, fn: types.FunctionType) -> Operand:
        """A function that the program made itself, handed to host code: made for each run, with what it closes over there.

        Its variables are its own from then on, so nothing may store them again: neither the function, nor the program
        while the host can still call it.
        """
        if id(fn) in self.functions:
            return self.functions[id(fn)][1].ir
        if fn.__dict__.keys() - {"__wrapped__"}:
            raise TraceEscape(f"hands {fn.__qualname__}, whose attributes are of this run, to host code")
        if reach.names_language(fn):
            raise TraceEscape(f"hands {fn.__qualname__}, which reaches the language, to host code")
        about = f"hands {fn.__qualname__}, which closes over"
        positions: list[int] = []
        contents: list[Any] = []
        lasting = True
        for index, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
            if self.cell(name) is cell or (x := cell_content(cell)) is hooks:
                continue  # a variable of the outside is the same cell in every run
            if rebinds(fn.__code__, name) or x is EMPTY:
                raise TraceEscape(f"{about} {name} and stores it, to host code")
            if not stays(fn.__code__, name):
                lasting = False
                if not self.at_once:
                    raise TraceEscape(f"{about} {name}, a variable that is stored more than once, to host code")
            positions.append(index)
            contents.append(SELF if x is fn else x)
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        if not all(hostops.is_immutable(x) or _is_definition(x) for x in defaults) and (self.wants(defaults) or fn.__kwdefaults__):
            raise TraceEscape(f"hands {fn.__qualname__}, whose defaults are objects of this run, to host code")
        key = ("code", id(fn.__code__), *[("id", id(x)) if _is_definition(x) else (type(x), exact(x)) for x in defaults if not reach.holds_value(x)])
        template = self.tree.symbol(key, symbol_name(fn.__qualname__), fn)
        if self.at_once and not contents and not reach.holds_value(defaults):
            return template  # nobody can tell it from another one
        if not lasting and SELF in contents:
            raise TraceEscape(f"{about} itself and variables that are stored more than once, to host code")
        marker = self.tree.symbol(("op", "self"), "lmc.state", SELF)
        attrs: dict[str, Attr] = {"ordered": True, "total": True, "inline": True}
        if lasting and id(fn) in self.definitions:
            attrs["ord"] = self.definitions[id(fn)][1], DEFINED, 0  # a replay makes no other one
        with self.keeping():
            given = [self.operand(fn.__defaults__ or ()), self.operand(fn.__dict__.get("__wrapped__"))]
            operands = [*given, *[marker if x is SELF else self.operand(x) for x in contents]]
        made = self.emit("host.call", (self.own(_closure), template, self.constant(tuple(positions)), *operands), attrs, ("any",))[0]
        if lasting:
            self.functions[id(fn)] = fn, self.value(made)  # kept: the program may come back to it after any decision
        return made

    def handed_away(self, x: Any) -> Value | None:
        """What stands for a function that the program made, once host code was handed it: the attributes are the host's to change."""
        return self.functions[id(x)][1] if id(x) in self.functions else None

    def rebuilt(self, x: Any) -> Operand:
        """A container of the program as a new object of the run; at the end of the path one object wherever it is held."""
        if self.results is None:
            if id(x) in self.rebuilding:
                raise TraceEscape(f"hands a {type(x).__name__} that holds itself to host code")
            self.rebuilding.add(id(x))
            try:
                return self.new_container(x)
            finally:
                self.rebuilding.remove(id(x))
        if id(x) not in self.results:
            self.results[id(x)] = None  # while it is being made
            self.results[id(x)] = self.new_container(x)
        made = self.results[id(x)]
        if made is None:
            raise TraceEscape(f"returns a {type(x).__name__} that holds itself")
        return made

    def new_container(self, x: Any) -> Operand:
        match x:
            case list():
                return self.build("py.list", x)
            case tuple() if type(x) is tuple:
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
        x = self.as_text(x)
        return x.ir if isinstance(x, Value) else x

    def as_text(self, x: Any) -> Any:
        """What becomes a part of an expression: a value of the run has to be text there."""
        return self.simple("py.text", x) if isinstance(x, Value) and x.type != "str" else x

    def operation(self, name: str) -> Symbol:
        return self.tree.symbol(("op", name), name, hostops.OPERATIONS[name])

    # -- host operations

    def host(
        self, fn: Symbol, operands: Sequence[Operand], known: Known, kind: str, key: Key | tuple[()] | None = None, kwargs: tuple[str, ...] = (),
        hint: str | None = None, inline: bool = True, promised: Mapping[str, Attr] = _NOTHING, awaits: bool = False,
        within: bool = False,
    ) -> Value:  # fmt: skip
        """Records a host call. kind: "pure", "ordered" or "effect".

        What is not pure happens once: its result is kept under `key`, or as the hook call's own if this is its main one.
        `awaits`: what it gives is awaited. `within`: it enters or leaves a `with` of the host.
        """
        attrs: dict[str, Attr] = dict(promised)
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
            elif key is None:  # a replay does it again, so its operands must be what they were
                fn, operands = self.own(_on_immutable), (fn, *operands)
            if kind == "effect" and self.in_task:
                raise TraceEscape("does something in a task that can be seen outside, or has a context of its own")
            self.foreign += 1
            self.effects += kind == "effect"
            if within or self.managers:
                attrs["within"] = True
            elif inline:
                attrs["inline"] = True
            if awaits:
                attrs["awaits"] = True
        if kwargs:
            attrs["kwargs"] = kwargs
        if kind == "effect" and not inline and (error := self.handled()) is not None:
            fn, operands = self.own(raising.ahandling if awaits else raising.handling), (self.located(error), fn, *operands)
        if known.total or "unordered" in attrs:  # what need not wait for others must not make others wait for what it raises
            (ir,) = self.emit("host.call", (fn, *operands), attrs, (known.type,), (hint,))
        else:
            ir = self.attempt("host.call", (fn, *operands), attrs, known.type, hint)
        made = self.value(ir, immutable=kind == "pure" and not known.fresh, items=known.items)
        if known.items == "str" and known.fresh:
            made.kind = list
            self.holds_text(made)
        return made

    def simple(self, name: str, *args: Any, key: Key | tuple[()] | None = None) -> Value:
        """One of Python's own operations."""
        types_ = [self.type_of(a) for a in args]
        if "any" not in types_:
            known = hostops.operation(name, types_)
            return self.host(self.operation(name), [self.operand(a) for a in args], known, "ordered" if known.fresh else "pure", key)
        known = _ON_ANY.get(name, Known())
        if name in ("py.is", "py.is_not", "py.text"):  # what can change of an object does not matter
            return self.host(self.operation(name), [self.operand(a) for a in args], known, "pure", key)
        if name in _GIVE_ITEMS:
            self.gives_items(args)
        owner = args[0] if args else None
        if name == "py.getitem" and isinstance(owner, Value) and owner.items == "str" and self.type_of(args[1]) == "int":
            known = Known("str")
        return self.host(self.operation(name), [self.operand(a) for a in args], known, "ordered", key)

    def make_error(self, cls: type[BaseException], args: tuple[Any, ...], kwargs: dict[str, Any], key: Key | tuple[()] | None = None) -> Value:
        """A new exception of the run."""
        self.no_containers(cls, args, kwargs)
        operands = [self.operand(a) for a in (*args, *kwargs.values())]
        made = self.host(self.callee(cls), operands, Known(), "effect", key, tuple(kwargs))
        made.made = cls
        return made

    def effect(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """A call of host code that may do anything."""
        self.no_containers(fn, args, kwargs)
        operands = self.handed(fn, (*args, *kwargs.values()))
        if isinstance(fn, Value):
            return self.host(self.operation("py.call"), [fn.ir, *operands], Known(), "effect", kwargs=tuple(kwargs), inline=False)
        promised = _promised(fn) if isinstance(fn, HostFunction) else _NOTHING
        known = Known(hostops.said_type(fn.fn if isinstance(fn, HostFunction) else fn))
        return self.host(self.callee(fn), operands, known, "effect", kwargs=tuple(kwargs), inline=False, promised=promised)

    def handed(self, fn: Any, args: Iterable[Any]) -> list[Operand]:
        """The arguments of a call of host code."""
        with self.keeping(not isinstance(fn, Value) and hostops.calls_at_once(fn)):
            return [self.located(a) if isinstance(a, BaseException) else self.operand(a) for a in args]

    @contextlib.contextmanager
    def keeping(self, at_once: bool = False) -> Generator[None]:
        """What is handed over in here may be kept, or (`at_once`) is only called before the call that it is handed to returns."""
        outer, self.at_once = self.at_once, at_once
        try:
            yield
        finally:
            self.at_once = outer

    def no_containers(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Host code may keep or change a container that it is handed; then the program's own copy would differ."""
        if any(fn is reader for reader in READERS):
            return
        for x in (*args, *kwargs.values()):
            if reach.holds(x, lambda y: isinstance(y, type) and self.is_own_definition(y)):
                raise TraceEscape(f"hands a class that it made to {getattr(fn, '__qualname__', fn)}")
            if self.wants(x):
                raise TraceEscape(f"hands a {type(x).__name__} that it made to {getattr(fn, '__qualname__', fn)}")

    def gives_items(self, args: Iterable[Any]) -> None:
        """What is made of these may hold their very items: containers of the program among them have to be objects of the run."""
        items = [item for a in args if type(a) in _OF_ITEMS for item in (a.values() if type(a) is dict else a)]
        if self.wants(items):
            raise TraceEscape("takes a container that it made out of another one")

    def wants(self, x: Any) -> bool:
        """Whether an object holds containers of the program; the next trace makes them objects of the run from the start."""
        found: list[Any] = []

        def look(y: Any) -> bool:
            if id(y) in self.local and isinstance(y, list | dict | set):
                found.append(y)
            return False

        reach.holds(x, look)
        self.tree.wanted |= {self.sites[id(y)] for y in found if id(y) in self.sites}
        return bool(found)

    def callee(self, fn: Any) -> Symbol:
        operand = self.operand(fn)
        if not isinstance(operand, Symbol):
            raise TraceEscape(f"calls a {type(fn).__name__} made by the program")
        return operand


def _runs(generator: Any, hook: str, args: tuple[Any, ...]) -> bool:
    """Whether a hook call goes through a generator that nothing else holds, so that it is dropped where that ends."""
    match hook, args:
        case "iter", (items, *_):
            return items is generator and not any(x is generator for x in program_frame().f_locals.values())
        case "star", (items, *_):
            return items is generator
        case "call", (fn, items):
            return items is generator and any(fn is one for one in (list, tuple, set, sorted, sum))
        case "callm", (str(), "join", items):
            return items is generator
        case _:
            return False


def _same_in_every_trace(x: Any) -> object:
    """What equal objects of different traces have in common: what they are, or else which one."""
    if isinstance(x, slice):
        return "slice", *map(exact, (x.start, x.stop, x.step))  # not hashable
    if isinstance(x, operator.itemgetter | operator.attrgetter | operator.methodcaller) and hostops.is_immutable(x.__reduce__()[1]):
        return type(x), repr(x)
    if isinstance(x, types.MethodType):  # a method, such as `date.fromisoformat`: Python makes one each time
        return types.MethodType, id(x.__func__), id(x.__self__)
    if isinstance(x, types.BuiltinMethodType) and isinstance(x.__self__, type):
        return types.BuiltinMethodType, x.__name__, id(x.__self__)
    if hostops.is_type_form(x) and not _holds_objects(x):
        return type(x), repr(x), x  # equal unions may name their members in another order
    return (type(x), exact(x)) if hostops.is_immutable(x) else ("id", id(x))


def _holds_objects(x: Any) -> bool:
    """Whether a form of a type has objects in it, such as `Annotated`'s: they need not be hashable, or the same each time."""
    parts = (*getattr(x, "__metadata__", ()), *getattr(x, "__args__", ()))
    return any(_holds_objects(part) if hostops.is_type_form(part) else not (isinstance(part, type) or hostops.is_immutable(part)) for part in parts)


def _promised(fn: HostFunction) -> dict[str, Attr]:
    """What is said of a marked function, as attributes of its calls."""
    awaited = inspect.iscoroutinefunction(fn.fn)  # the call only makes a coroutine; awaiting is in order, as in Python
    said: dict[str, Attr] = {"unordered": True} if not fn.ordered and not awaited else {}
    if fn.idempotent:
        said["idempotent"] = True
    if fn.timeout is not None:
        said["timeout"] = fn.timeout
    return said


def _on_immutable(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run time: an operation that a replay will do again, on operands that will be the same then."""
    if not all(map(hostops.is_immutable, args)):
        raise TakeOver(f"{getattr(fn, '__name__', fn)} of an object that can change, inside of a builtin")
    return fn(*args, **kwargs)


def fault_of(error: Exception) -> str | None:
    """What to say of an exception that comes out of the tracer's own code; None for the program's own exceptions."""
    frame = error.__traceback__
    if frame is None or isinstance(error, LmcError):
        return None
    if isinstance(error, RecursionError):
        return "recurses too deeply to be traced"
    while frame.tb_next is not None:
        frame = frame.tb_next
    file = frame.tb_frame.f_code.co_filename
    if not file.startswith(_OWN) or file.removeprefix(_OWN).startswith(_THE_PROGRAMS):
        return None
    return f"internal error in {file.removeprefix(_OWN)}:{frame.tb_lineno}: {type(error).__name__}: {error}"


_OWN = __file__.rsplit("frontend", 1)[0]
_THE_PROGRAMS = tuple(f"frontend/{name}.py" for name in ("hostops", "state", "primitives", "interpreter", "streaming", "raising"))
"""Files whose exceptions are meant for the user: `hostops` makes the calls that the program asked for."""


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY  # not assigned yet


def itself(x: Any) -> Any:
    """Run time: an object of the outside, or one that every run shares, as a value."""
    return x


def _closure(
    template: types.FunctionType, positions: tuple[int, ...], defaults: tuple[Any, ...], wrapped: Any, *contents: Any
) -> types.FunctionType:
    """Run time: a function of the program with what it closes over in this run."""
    cells = list(template.__closure__ or ())
    for position in positions:
        cells[position] = types.CellType()
    made = types.FunctionType(template.__code__, template.__globals__, template.__name__, defaults or None, tuple(cells))
    made.__kwdefaults__, made.__qualname__ = template.__kwdefaults__, template.__qualname__
    made.__doc__, made.__module__, made.__annotations__ = template.__doc__, template.__module__, dict(template.__annotations__)
    if "__wrapped__" in template.__dict__:
        made.__wrapped__ = wrapped  # type: ignore[attr-defined]
    for position, content in zip(positions, contents, strict=True):
        cells[position].cell_contents = made if content is SELF else content
    return made


def _is_definition(x: Any) -> bool:
    return isinstance(x, type | types.ModuleType | types.BuiltinFunctionType | HostFunction) or (
        isinstance(x, types.FunctionType) and not is_instrumented(x))


def _name_of(x: Any) -> str:
    """What a host object is called in a graph."""
    name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None) or type(x).__name__
    module = getattr(x, "__module__", None)
    if isinstance(x, types.FunctionType | types.BuiltinFunctionType | type) and isinstance(module, str):
        name = name if module in ("builtins", "__main__") else f"{module}.{name}"
    return symbol_name(str(name))


def symbol_name(name: str) -> str:
    """A name of a host object as an IR symbol."""
    return "".join(c if c.isalnum() or c in "._" else "_" for c in name.replace(".<locals>.", ".")) or "object"


def _gathered(*pairs: Any) -> Gathered:
    """Run time: what the children of a fork hold under a name, from values and meta infos in turn."""
    return Gathered(tuple(held_of(value, meta) for value, meta in zip(pairs[::2], pairs[1::2], strict=True)))


def _first_text(texts: Sequence[str]) -> str:
    """Run time: of several answers, the one that the prompt goes on with."""
    return texts[0]


def _scoped(since: Any, until: Any) -> Scoped:
    """Run time: the text between two prompts."""
    return Scoped(since, until)


class Returned:
    """Run time: a state that the program returned besides its own, before the run's owner makes it one."""

    def __init__(self, about: tuple[Any, ...], prompt: Any, value: Any, *held: Any) -> None:
        self.prompt, self.value = prompt, value
        self.names, self.stream, self.ordinal, self.forks, self.calls, self.role, self.previous, self.name = about
        self.variables = {name: held_of(held[2 * i], held[2 * i + 1]) for i, name in enumerate(self.names)}


def held_of(value: Any, meta: Any) -> Any:
    """Run time: a variable's content from the two operands that stand for it."""
    if isinstance(value, Result | Gathered | Scoped | Taken):
        return value
    return Stored(value, meta.result if isinstance(meta, Meta) else meta)


_ON_ANY = {
    "py.bool": Known("bool"), "py.not": Known("bool"), "py.in": Known("bool"), "py.not_in": Known("bool"), "py.in_set": Known("bool"),
    "py.in_keys": Known("bool"), "py.format": Known("str"),
    "py.text": Known("str"), "py.is": Known("bool", total=True), "py.is_not": Known("bool", total=True), "py.argmin": Known("int"),
    "py.argmax": Known("int"),
}  # fmt: skip
_GIVE_ITEMS = frozenset({"py.getitem", "py.add", "py.mul", "py.or"})
"""Operations whose result is an item of an operand, or holds them."""
_OF_ITEMS = frozenset({list, dict, set, tuple, frozenset})
_PREFIX = {"ctx": "c", "str": "x", "bool": "p", "int": "n", "float": "r"}
