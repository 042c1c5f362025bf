"""The domain of an evaluation: its treatment of unknown values, and its emitter; the protocol shared by run-ahead and
the graph. And the state of an evaluation, which is restored between arms.

`Domain` is run-ahead's: an undecided arm is skipped. The graph builder overrides the hooks: it evaluates both arms, and the body of an unknown loop, once.

A hook that returns a `Signal` says how control continues after the statement: None (the next statement), BREAK,
CONTINUE, or RETURN (`frame.result` is the value).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmc.errors import Loc
from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture.code import Evaluator, Frame
from lmc.frontend.capture.outside import ATOMS, any_of
from lmc.frontend.capture.scan import PossibleEffects
from lmc.frontend.capture.unknown import MISSING, Abandoned, Deps, Raised, Stop, Undecided, Unknown, join
from lmc.frontend.capture.values import BoundMethod, Closure, Object
from lmc.frontend.emitter import Ctx, Emitter, GatheredAnswers, Scoped, Stored
from lmc.frontend.host import HostFunction
from lmc.frontend.options import Options
from lmc.frontend.state import State, StateGroup

Signal = str | None
BREAK, CONTINUE, RETURN = "break", "continue", "return"


class Asking(Emitter, Protocol):
    """The emitter of an evaluation's states: the ledger (run-ahead) or the graph builder.

    It gets `Unknown` wherever text or a parameter is not known: a prompt with a hole. It reads `evaluation.certain` and `evaluation.shifted` at each request,
    calls `evaluation.blocked(deps)` when answers would fill a hole, and `evaluation.confirm()` when Python has made this very request already (address and
    source line): Python has passed everything undecided before it. Reading a missing answer gives `Unknown(frozenset([address]))`; lists and dicts that it
    returns are copies, which the program may change.

    nested   the emitter of a sub-program called with these options; None if it cannot be determined
    is_asked  whether all requests of a sub-program are made, by Python or ahead, and have these answers; guesses among them are kept
    lost     a prompt of which nothing is known: unknown code had the state
    pure     a copy of the result of an `@lmc.pure` function on known arguments, or Unknown. It changes and keeps none of them
    """

    def nested(self, options: Options) -> Asking | None: ...
    def is_asked(self, stream: str, ctx: Ctx, answers: Sequence[Any]) -> bool: ...
    def lost(self, deps: Deps) -> Ctx: ...
    def pure(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Arm:
    """A part of a program that may or may not run: `run(frame)` gives a Signal, or an expression arm's value."""

    run: Callable[[Frame], Any]
    effects: PossibleEffects
    loc: Loc


@dataclass(frozen=True, slots=True)
class BranchStatement:
    """An `if`, a conditional expression, `and` and `or`, a case of a `match`: of two arms one runs."""

    loc: Loc
    then: Arm
    orelse: Arm


@dataclass(frozen=True, slots=True)
class LoopStatement:
    """A loop: `bind(frame, item)` binds the target of a `for` (None: a `while`, whose test is part of `body`)."""

    loc: Loc
    bind: Callable[[Frame, Any], None] | None
    body: Arm
    orelse: Arm
    effects: PossibleEffects  # effects of target, body and else


DEEPEST_ARM = 2
"""Most nested arms of undecided branches that are explored."""
PASSES = 8
"""Times a conditional `raise` must have been passed before it no longer ends certainty."""


class Domain:
    skips = True
    """Whether a comprehension goes on behind items of which it is undecided whether they are in it."""

    def turn(self, frame: Frame, site: LoopStatement) -> None:
        """Begin a turn of a loop whose test is a constant."""

    def operation(self, evaluation: Evaluator, name: str, operands: Sequence[Any], deps: Deps) -> Any:
        """Return the result of a pure operation (`name` as in the table: "add", "str.strip", "json.loads" …) with some unknown operands."""
        begins = _beginning(operands) if name in ("add", "fstring") else ""
        return Unknown(deps, begins=begins, of=any_of(operands).of if name in _PARTS else ())

    def appended(self, evaluation: Evaluator, to: Unknown) -> Any:
        """Return what `to += expr` binds: `to` may be forks of unknown number, or any state."""
        return Unknown(to.deps)

    def call(self, evaluation: Evaluator, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of unknown code. Its mutable arguments are unknown already."""
        return Unknown(None, of=fn.of if type(fn) is Unknown else ())

    def branch(self, evaluation: Evaluator, frame: Frame, test: Unknown, site: BranchStatement) -> Signal:
        """Handle an undecided `if`: the bindings of its arms are unknown. An arm that always leaves is predicted not taken."""
        arms = (site.then, site.orelse)
        left = [arm for arm in arms if arm.effects.leaves]
        if not left or all(arm.effects.leaves == "return" for arm in arms):
            for kind in [kind for arm in arms for kind in arm.effects.exits] if not left else ():
                self.leave(evaluation, frame, kind, site.loc, test.deps)
            self._either(evaluation, frame, test, site)
            if left:
                frame.result = Unknown(test.deps)
            return RETURN if left else None
        leaving = left[0] if len(left) == 1 or site.orelse.effects.leaves != "raise" else site.orelse
        for kind in leaving.effects.exits:
            self.leave(evaluation, frame, kind, site.loc, test.deps)
        self.explore(evaluation, frame, leaving)
        return (site.orelse if leaving is site.then else site.then).run(frame)

    def explore(self, evaluation: Evaluator, frame: Frame, arm: Arm) -> None:
        """If likely requests are wanted, make the requests of an arm, and undo all its other effects."""
        if not evaluation.explores or evaluation.exploring >= DEEPEST_ARM or not evaluation.may_ask(frame, arm.effects):
            return
        before, changed, names, tasks = Heap(evaluation, frame), set(evaluation.snapshot.changed), dict(evaluation.globals), [*evaluation.tasks]
        flags = evaluation.certain, evaluation.shifted, frame.result, frame.undecided
        evaluation.exploring += 1
        evaluation.certain = False
        try:
            arm.run(frame)
        except (Raised, Undecided, Abandoned):
            pass  # the arm ends here
        except Stop:
            if evaluation.stops:
                raise
        finally:
            evaluation.exploring -= 1
            before.restore()
            evaluation.snapshot.changed.intersection_update(changed)
            evaluation.globals, evaluation.tasks = names, tasks
            evaluation.certain, evaluation.shifted, frame.result, frame.undecided = flags

    def choice(self, evaluation: Evaluator, frame: Frame, test: Unknown, site: BranchStatement) -> Any:
        self._either(evaluation, frame, test, site)
        return any_of((test, *(frame.peek(name) for arm in (site.then, site.orelse) for name in arm.effects.scan.gives)), test.deps)

    def _either(self, evaluation: Evaluator, frame: Frame, test: Unknown, site: BranchStatement) -> None:
        for arm in (site.then, site.orelse):
            self.explore(evaluation, frame, arm)
        for arm in (site.then, site.orelse):
            evaluation.havoc(frame, arm.effects, test.deps)

    def loop(self, evaluation: Evaluator, frame: Frame, items: Unknown, site: LoopStatement) -> Signal:
        """Handle a loop over unknown items, or with an unknown condition: it is skipped."""
        for kind in sorted(site.effects.exits & {"return", "raise"}, reverse=True):
            self.leave(evaluation, frame, kind, site.loc, items.deps)
        evaluation.havoc(frame, site.effects, items.deps)
        return None

    def comprehension(self, evaluation: Evaluator, frame: Frame, items: Unknown, site: LoopStatement) -> Any:
        evaluation.havoc(frame, site.effects, items.deps)
        return any_of((items, *map(frame.peek, site.effects.scan.gives)), items.deps)

    def handlers(self, evaluation: Evaluator, frame: Frame, deps: Deps, handlers: Sequence[Arm], loc: Loc) -> Signal:
        """Handle a `try` whose body may have raised because of an unknown value: the bindings of its handlers are unknown."""
        for arm in handlers:
            for kind in arm.effects.exits - {"raise"}:  # raising in a handler only replaces the exception
                self.leave(evaluation, frame, kind, arm.loc, deps)
            evaluation.havoc(frame, arm.effects, deps)
        return None

    def leave(self, evaluation: Evaluator, frame: Frame, kind: str, loc: Loc, deps: Deps) -> None:
        """Handle an undecided return, break, continue or raise: skip the loop or helper function, or end certainty (docs/run-ahead.md)."""
        if kind == "raise":
            if evaluation.tries or evaluation.passes(loc) < PASSES:
                evaluation.certain = False
                evaluation.blocked(deps)
            return
        target = frame.loops[-1] if kind != "return" and frame.loops else frame
        if evaluation.may_skip(frame, target):
            raise Abandoned(target, deps)
        if kind == "return":
            frame.undecided = deps if frame.undecided is False else join(frame.undecided, deps)
        evaluation.certain = False
        evaluation.blocked(deps)


_PARTS = frozenset((
    "add or mul item attribute getattr unpack rest iter zip enumerate filter chain islice reduce next list tuple set dict min max sorted reversed class "
    ".get .pop .popleft .setdefault .values .items .copy"
).split())  # fmt: skip
"""Operations that give something of their operands."""


def _beginning(operands: Sequence[Any]) -> str:
    """Return the known beginning of a text, some of whose parts are unknown."""
    begins = ""
    for x in operands:
        if x.__class__ is not str:
            return begins + (x.begins if isinstance(x, Unknown) else "")
        begins += x
    return begins


# -- the state that arms change

_NUMBERS = ("forks", "calls", "tasks")
_BOOKS: Mapping[type, Sequence[str]] = {
    State: ("ctx", "ordinal", *_NUMBERS, "role", "previous", "types", "scopes", "_value"), TaskOfRun: _NUMBERS, Scoped: ("until",)}  # fmt: skip
"""Attributes that change as a program goes on."""
_INSIDE: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    State: lambda x: (x.variables, *x.scopes.values(), x._value), StateGroup: lambda x: [x.states], Object: lambda x: [x.attributes],
    Closure: lambda x: [x.attributes, *(frame.vars for frame in (x.outer.around() if x.outer else ()))],
    BoundMethod: lambda x: (x.receiver, x.function), Stored: lambda x: [x.value], GatheredAnswers: lambda x: x.items,
}  # fmt: skip
"""Objects that others hold."""


class Heap:
    """All mutable objects that a frame reaches, with their contents when this was made."""

    def __init__(self, evaluation: Evaluator, frame: Frame) -> None:
        self.held: dict[int, tuple[Any, Any]] = {}
        todo: list[Any] = [evaluation.states, evaluation.lost, evaluation.given, [each.vars for each in frame.around()], tuple(evaluation.globals.values())]
        todo += evaluation.made_tasks
        while todo:
            x = todo.pop()
            if id(x) in self.held or type(x) in ATOMS or isinstance(x, Unknown):
                continue
            todo.extend(self._take(x))

    def _take(self, x: Any) -> Iterable[Any]:
        """Copy the contents of `x`, and return the objects to visit in it."""
        if type(x) in _BOOKS:
            self.held[id(x)] = x, {name: getattr(x, name) for name in _BOOKS[type(x)]}
        elif isinstance(x, (dict, list, deque, set)):
            self.held[id(x)] = x, dict[Any, Any](x) if isinstance(x, dict) else list[Any](x)
        if isinstance(x, (dict, list, deque, set, tuple, frozenset, KeysView, ItemsView)):
            return x.values() if isinstance(x, dict) else x
        return _INSIDE.get(type(x), lambda _: ())(x)

    def restore(self) -> None:
        for x, held in self.held.values():
            if type(x) in _BOOKS:
                for name, value in held.items():
                    setattr(x, name, value)
            else:
                x.clear()
                (x.update if isinstance(x, (dict, set)) else x.extend)(held)

    def of(self, x: Any) -> Any:
        """Return the saved contents of an object; MISSING if it was not reached."""
        return self.held.get(id(x), (None, MISSING))[1]
