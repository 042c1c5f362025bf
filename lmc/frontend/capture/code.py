"""Compiled functions, the frames of their calls, and the evaluation that runs them, as its rules see it."""

from __future__ import annotations

import ast
import builtins
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

from lmc.errors import Loc
from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture.scan import PossibleEffects, own
from lmc.frontend.capture.unknown import MISSING, Deps, GivenParts, Raised, Stop, Unknown
from lmc.frontend.scopes import Comprehension
from lmc.frontend.source import FunctionNode
from lmc.frontend.state import State

Eval = Callable[["Frame"], Any]
"""An expression, compiled: its value in a frame. Of a statement: its Signal."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int, str]
"""Of a function: file, first line and name. A journaled run has code of its own at the same place."""


def place_of(code: types.CodeType) -> Place:
    return code.co_filename, code.co_firstlineno, code.co_name


def as_def(node: FunctionNode) -> Function:
    """Return a lambda as the function that it is, any other as it is."""
    if not isinstance(node, ast.Lambda):
        return node
    result = ast.copy_location(ast.Return(node.body), node.body)
    return ast.copy_location(ast.FunctionDef("<lambda>", node.args, [result], []), node)


class NotUnderstood(Exception):
    """A function whose source is missing, or that uses something the evaluator does not know: unknown code."""


class Scope:
    """The names of a function or comprehension while it is compiled."""

    def __init__(self, bindings: Any, parent: Scope | None, file: str, free: Sequence[str] = (), class_name: str | None = None) -> None:
        self.bindings, self.parent, self.file, self.class_name = bindings, parent, file, class_name
        self.free = frozenset(free)  # of a function of the outside: names in its cells
        self.is_comprehension = isinstance(bindings, Comprehension)

    def kind(self, name: str) -> str:
        """Return where a name lives: "local", "outer" (an enclosing frame) or "global"."""
        if name in self.bindings.global_:
            return "global"
        if name in self.bindings.bound:
            return "local"
        return "outer" if self._is_free(name) else "global"

    def _is_free(self, name: str) -> bool:
        return name in self.free or (self.parent is not None and (name in self.parent.bindings.bound or self.parent._is_free(name)))

    @property
    def function(self) -> Scope:
        """Return the scope of the function that a comprehension is in; of a function, its own."""
        return self.parent.function if self.is_comprehension and self.parent is not None else self

    def loc(self, node: ast.AST) -> Loc:
        return Loc(self.file, node.lineno, node.col_offset)  # pyright: ignore[reportAttributeAccessIssue]

    def mangled(self, name: str) -> str:
        """Return a private name as it is stored: `__x` in class C is `_C__x`."""
        if self.class_name and name.startswith("__") and not name.endswith("__"):
            return f"_{self.class_name.lstrip('_')}{name}"
        return name


class Code:
    """A function: `body(frame)` runs it."""

    def __init__(self, node: Function, scope: Scope, python: types.CodeType | None, body: Eval) -> None:
        self.name = node.name
        self.place = None if python is None else place_of(python)
        a = node.args
        self.positional = tuple(p.arg for p in (*a.posonlyargs, *a.args))
        self.names = (*self.positional, *(p.arg for p in a.kwonlyargs))
        self.rest = tuple(p.arg for p in (a.vararg, a.kwarg) if p)
        self.binder = _binder(a, scope)
        self.effects = PossibleEffects(node.body)
        self.is_generator = any(isinstance(part, ast.Yield | ast.YieldFrom) for part, _ in own(node.body))
        self.is_async = isinstance(node, ast.AsyncFunctionDef)
        self.writes_globals, self.nonlocals = frozenset(scope.bindings.global_), frozenset(scope.bindings.nonlocal_)
        self.bindings, self.bound = scope.bindings, frozenset(scope.bindings.bound)
        self.body = body

    @cached_property
    def once(self) -> frozenset[str]:
        """Return the names that it binds by one statement outside of loops, to what it does not change: Python's frame has it as it was bound."""
        whole, inside = self.effects.scan.flow(frozenset()).changed
        return frozenset(name for name, n in self.bindings.bound.items() if n == 1) - whole - inside - self.effects.scan.nonlocals


def _binder(a: ast.arguments, scope: Scope) -> types.CodeType:
    """Return the code of a function with these parameters that returns its arguments by name."""
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    code = (lambda: locals()).__code__
    return code.replace(
        co_posonlyargcount=len(a.posonlyargs), co_argcount=len(a.posonlyargs) + len(a.args), co_kwonlyargcount=len(a.kwonlyargs), co_nlocals=len(named),
        co_varnames=tuple([scope.mangled(p.arg) for p in named]), co_flags=code.co_flags | CO_VARARGS * bool(a.vararg) | CO_VARKEYWORDS * bool(a.kwarg),
    )  # fmt: skip


class Frame:
    """The names of a call or a comprehension.

    live       locals of the Python frame that runs this function now; None: there is none
    undecided  an answer may decide that it has returned already (False: none can)
    goes_on    in a comprehension: whether to go on behind an element of which it is undecided whether it belongs to it
    """

    __slots__ = ("cells", "code", "ev", "goes_on", "is_program", "live", "loops", "module", "outer", "result", "undecided", "vars")

    def __init__(self, ev: Evaluator, vars: dict[str, Any], outer: Any, code: Code | None, module: dict[str, Any]) -> None:
        self.ev, self.vars, self.outer, self.code, self.module = ev, vars, outer, code, module
        self.result: Any = None
        self.loops: list[Any] = []
        self.undecided: Any = False
        self.live: Any = None
        self.is_program = False
        self.cells: Mapping[str, Any] | None = None  # the cells of an outside function that this frame represents
        self.goes_on: Callable[[Frame], bool] | None = None

    def inner(self, vars: dict[str, Any]) -> Frame:
        return Frame(self.ev, vars, self, self.code, self.module)

    @property
    def function(self) -> Frame:
        """Return the frame of the call that it belongs to: its own, except for a comprehension's."""
        frame = self
        while frame.outer is not None and frame.outer.code is frame.code:
            frame = frame.outer
        return frame

    def around(self) -> Iterator[Frame]:
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.outer

    def holder(self, name: str) -> Frame | None:
        """Return the innermost of these frames in which a name is bound."""
        frame: Frame | None = self
        while frame is not None and name not in frame.vars:
            frame = frame.outer
        return frame

    def peek(self, name: str) -> Any:
        """Return the value of a name; None if unbound."""
        holder, code = self.holder(name), self.code
        if code is not None and name in code.bound and (holder is None or holder.code is not code):
            return None
        try:
            return holder.vars[name] if holder is not None else self.ev.global_value(self.module, name)
        except Raised:
            return None

    def outer_value(self, name: str) -> Any:
        if self.outer is not None and (holder := self.outer.holder(name)) is not None:
            return holder.vars[name]
        raise Raised(NameError(f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"))

    def store(self, name: str, x: Any, kind: str) -> None:
        if kind == "local":
            self.vars[name] = self.from_python(name, x) if self.live is not None and isinstance(x, Unknown) and x.deps is None else x
        elif kind == "global":
            self.ev.set_global(self.module, name, x)
        else:
            holder = self.outer.holder(name) or self.outer
            holder.vars[name] = x
            self.ev.changed.append(holder)
            if holder.cells is not None and name in holder.cells:
                self.ev.snapshot.changed.add(id(holder.cells[name]))
                holder.vars[name] = Unknown(None, of=(x,))

    def from_python(self, name: str, x: Unknown) -> Any:
        """Return the value in Python's own frame of a name that is bound once, if only Python knows it."""
        assert self.live is not None and self.code is not None
        found = self.live.get(name, x) if name in self.code.once else x
        return x if found is x else self.ev.locals.adopt(found)


@dataclass
class Outcome:
    """The outcome of an evaluation.

    stopped_at  where it stopped, and why; None if it did not
    paused      it stopped on request
    waits       sets of answers, each of which would let it continue
    passed      how often an `if` or `assert` was known to be passed by, by its place: it may raise
    """

    stopped_at: Loc | None = None
    reason: str = ""
    paused: bool = False
    waits: list[frozenset[Any]] = field(default_factory=list[frozenset[Any]])
    passed: Counter[Loc] = field(default_factory=Counter[Loc])
    raised: Any = None
    value: Any = None
    steps: int = 0


MOST_MISSED = 128
"""Requests of one evaluation that it does not make: a loop may go on for ever, and what is open is bounded (`MAX_OPEN`)."""
UNCERTAIN_MISS = 16
"""As how many of them one behind something undecided counts, such as each turn of an agent's loop."""


class Evaluator:
    """An evaluation as the rules of the language see it: its flags and its budget. The emitter reads `certain` and `shifted` at each request.

    certain   only an exception could keep Python from making a request here
    shifted   the addresses of requests here depend on something undecided
    lost      by id, containers and states of which nothing is known any longer, with the answers that would tell
    given     by id, what some of them may hold besides what they did: parts of an unknown value
    later     what functions in skipped code do, by the ids of a frame and of its effects
    forked    by id, states that an unknown number of forks may be joined into
    risks     dependencies of what may have raised, of operations and skipped code
    changed   objects that it has changed, one after another
    classes   those of the objects that it has made; `iterating`: the number of iterators that are not over
    explores  it looks into arms of undecided branches, too; `exploring`: the number of nested ones that it is in
    frames    locals of the frames of Python's that run functions of the program now, by their places
    locals    contents of these: none of it is kept after the evaluation
    """

    adopt: Callable[[Any], Any]
    locals: Any

    def __init__(
        self, loc: Loc, emitter: Any, domain: Any, snapshot: Any, *, budget: int = 50_000, paused: Callable[[], bool] = lambda: False,
        passes: Callable[[Loc], int] = lambda _: 0, frames: Mapping[Any, Any] = {}, explores: bool = False,
    ) -> None:  # fmt: skip
        self.loc, self.emitter, self.domain, self.snapshot = loc, emitter, domain, snapshot
        self.paused, self.passes, self.frames, self.explores = paused, passes, frames, explores
        self.certain, self.shifted, self.outcome = True, False, Outcome()
        self.lost, self.forked = dict[int, Deps](), dict[int, Deps]()
        self.given, self.later = dict[int, GivenParts](), dict[tuple[int, int], Any]()
        self.risks, self.changed, self.handled = list[Deps](), list[Any](), list[Any]()
        self.classes, self.iterating = set[type](), 0
        self.exploring = self.tries = self.depth = self.steps = self.misses = 0
        self.states, self.tasks, self.made_tasks = list[State](), list[Any](), list[TaskOfRun]()
        self.current: State | None = None
        self.globals, self.functions = dict[tuple[int, str], Any](), dict[int, Any]()
        self._budget, self.check_at = budget, 64

    def count(self, n: int) -> None:
        self.steps += n
        if self.steps >= self.check_at:
            self.check()

    def check(self) -> None:
        """Stop if the budget is spent, or on request."""
        self.check_at = self.steps + 64
        if self.steps > self._budget:
            raise Stop(f"{self._budget} steps")
        if self.paused():
            self.outcome.paused = True
            raise Stop("paused")

    def blocked(self, deps: Deps) -> None:
        """Record that these answers would let the evaluation see more: certain requests, their addresses, or a whole prompt."""
        if deps and deps not in self.outcome.waits:
            self.outcome.waits.append(deps)

    def confirm(self) -> None:
        """Record that Python has made the current request: it has passed everything undecided."""
        self.certain, self.shifted = True, False

    def miss(self) -> None:
        """Record that a request is not made ahead. Ends the evaluation after many."""
        self.misses += 1 if self.certain else UNCERTAIN_MISS
        if self.misses > MOST_MISSED and not self.exploring:
            self._budget = self.steps - 1
            raise Stop("too many requests that are not made ahead")

    def may_raise(self, deps: Deps) -> None:
        """Record that something unknown may have raised here."""
        if self.tries:
            self.risks.append(deps)

    def operation(self, name: str, operands: Sequence[Any], deps: Deps) -> Any:
        """Return the result of a pure operation with some unknown operands."""
        if self.tries:
            self.may_raise(deps)
        return self.domain.operation(self, name, operands, deps)

    @property
    def stops(self) -> bool:
        """Return whether the whole evaluation has to end: on request, or with its budget spent."""
        return self.outcome.paused or self.steps > self._budget

    def is_lost(self, x: Any) -> bool:
        return bool(self.lost) and id(x) in self.lost

    def global_value(self, module: dict[str, Any], name: str) -> Any:
        key = (id(module), name)
        found = self.globals.get(key, MISSING)
        if found is not MISSING:
            return found
        if name in module:
            raw = self.snapshot.first(key, module[name])
            found = Unknown(None) if key in self.snapshot.changed else self.adopt(raw)
        elif hasattr(builtins, name):
            found = getattr(builtins, name)
        else:
            raise Raised(NameError(f"name '{name}' is not defined"))
        self.globals[key] = found
        return found

    def set_global(self, module: dict[str, Any], name: str, x: Any) -> None:
        key = (id(module), name)
        self.changed.append(module)
        self.snapshot.changed.add(key)
        self.globals[key] = Unknown(None, of=(x,)) if key in self.snapshot.names else x  # Python may have been here before the name was first read

    # -- rules of the language, each in its module (evaluation.py)

    def attribute(self, /, x: Any, name: str) -> Any: ...
    def call(self, /, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def call_method(self, /, x: Any, name: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def call_settled(self, /, kept: list[tuple[Any, ...]], callee: Any, method: str | None, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def call_with_unknown(self, /, callee: Any, method: str | None, args: list[Any], deps: Deps) -> Any: ...
    def catches(self, /, kinds: Any, value: Any) -> bool: ...
    def changes(self, /, x: Any) -> None: ...
    def class_of(self, /, x: Any) -> Any: ...
    def give(self, /, xs: Collection[Any], given: Unknown | None) -> None: ...
    def hand_over(self, /, values: Iterable[Any], deps: Deps = None) -> None: ...
    def havoc(self, /, frame: Frame, effects: PossibleEffects, deps: Deps) -> None: ...
    def is_instance(self, /, x: Any, kinds: Any) -> Any: ...
    def language(self, /, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def left_off(self, /, values: Sequence[Any], deps: Deps) -> None: ...
    def lose(self, /, x: Any, deps: Deps, given: Unknown | None = None, stores: Iterable[str] = ()) -> None: ...
    def may_ask(self, /, frame: Frame, effects: PossibleEffects) -> bool: ...
    def may_ask_in(self, /, values: Iterable[Any]) -> bool: ...
    def may_skip(self, /, frame: Frame, target: Any) -> bool: ...
    def run_frame(self, /, frame: Frame) -> Any: ...
    def set_attribute(self, /, x: Any, name: str, value: Any) -> None: ...
    def special(self, /, x: Any, name: str) -> Any: ...
    def state_method(self, /, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def unknown_code(self, /, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...
