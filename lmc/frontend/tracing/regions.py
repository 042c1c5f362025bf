"""Undecided control flow of an evaluation that builds a graph: both arms, and each loop's body once, as regions.

Between two arms all that they can change is restored (`Heap`); where they join, differing values are parameters of the
following block. Facts that a graph cannot express are left out, since it is advice: an undecided `return` of a helper,
and an undecided `break` or `continue` of a loop over known items, are taken to fall through; the arms they end are in
the switch's `leaves`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.errors import Loc
from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture.code import Evaluator, Frame
from lmc.frontend.capture.domain import BREAK, CONTINUE, RETURN, Arm, BranchStatement, Domain, Heap, LoopStatement, Signal
from lmc.frontend.capture.unknown import MISSING, Abandoned, Deps, Raised, Stop, Undecided, Unknown, join
from lmc.frontend.capture.values import Object
from lmc.frontend.emitter import Scoped
from lmc.frontend.state import State, StateGroup
from lmc.frontend.tracing.emitter import LATER, Answered, Context, GraphEmitter
from lmc.frontend.tracing.slots import Slot, changed, get, put, same
from lmc.ir.core import DEFAULT, Case, Operand, Value

TURNS = 4
"""Iterations shown of a loop without an end."""
MOST_TURNS = 64
"""Iterations of `while True` with unknown code that has an exit, or without either; then the evaluation stops."""
DEEPEST = 12
"""Depth of nested regions; undecided code nested deeper is skipped."""
_OBJECTS = (State, StateGroup, list, dict, set)
_BOOKS = frozenset({"ordinal", "forks", "calls", "tasks", "role", "previous", "types", "scopes"})
"""Attributes of a state or a task that are not values of the graph."""
_COUNTS = frozenset({"ordinal", "forks", "calls", "tasks"})


def _total(count: int | Mapping[str, int]) -> int:
    return count if isinstance(count, int) else sum(count.values())


@dataclass
class UnknownIteration:
    """A loop over unknown items whose body is being evaluated.

    slots    loop-carried slots with their initial values; None while they are being determined
    collect  the values of a comprehension, carried last; None: not a comprehension
    heaps    the heap at the end of each turn
    """

    site: LoopStatement
    slots: list[tuple[Slot, Any]] | None = None
    collect: list[Any] | None = None
    heaps: list[Heap] = field(default_factory=list[Heap])


@dataclass
class Ended:
    """The end of an arm: `signal` if it continues at `label`; `error` if it raised; `left` if it does not continue."""

    label: str
    heap: Heap
    signal: Signal = None
    value: Any = None
    left: bool = False
    error: Raised | None = None
    returned: bool = False
    turned: bool = False


ARMS_COST = 200
"""Steps of the budget that an undecided branch takes: each revisits the whole graph built so far."""


class OneForAll(list[State]):
    """Forks of unknown number, shown as one branch: it stands for each of them."""

    def __getitem__(self, at: Any) -> Any:
        return [*self] if isinstance(at, slice) else next(iter(self))


def is_branch(x: Any) -> bool:
    return isinstance(x, StateGroup) and isinstance(x.states, OneForAll)


class GraphDomain(Domain):
    """Makes regions of undecided control flow."""

    skips = False

    def __init__(self, emitter: GraphEmitter) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.turns: list[UnknownIteration] = []
        self.depth = 0
        self.followed: Counter[int] = Counter()  # by frame
        self.unknown_code = 0  # calls and raises of it
        self.turned: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By frame and loop: its turns, those with unknown code, and how much of that there was before the last one."""

    # -- values

    def operation(self, evaluation: Evaluator, name: str, operands: Sequence[Any], deps: Deps) -> Any:
        if name == "zip" and any(map(is_branch, operands)):
            beside = [x for x in operands if type(x) is not bool]  # that is `strict=`
            return [tuple([x.states[0] if is_branch(x) else self.operation(evaluation, "item", (x, 0), deps) for x in beside])]
        if name == "item" and is_branch(operands[0]):
            return operands[0].states[0]
        if name in ("unpack", "rest") and is_branch(operands[0]):
            forks = evaluation.state_method(operands[0].states[0], "fork", [Unknown(deps)], {})
            return forks.states[0] if name == "unpack" else forks
        return self.emitter.operation(name, operands, deps)

    def appended(self, evaluation: Evaluator, to: Unknown) -> Any:
        """Say that a request is not shown, and that any state may have its answer."""
        self.emitter.unknown("unknown state is extended", [*dict.fromkeys(self.emitter.operand(state) for state in evaluation.states)])
        for state in evaluation.states:
            evaluation.forked.setdefault(id(state), to.deps)
        return Unknown(to.deps)

    def turn(self, frame: Frame, site: LoopStatement) -> None:
        key, exits = (id(frame), id(site)), site.body.effects.exits & {"break", "return", "raise"}
        turns, unknown, before = self.turned.get(key, (0, 0, self.unknown_code))
        unknown += self.unknown_code > before
        if unknown >= (MOST_TURNS if exits else TURNS) or (turns >= MOST_TURNS and not exits):
            raise Stop("a loop that only an exception ends", site.loc)
        self.turned[key] = turns + 1, unknown, self.unknown_code

    def call(self, evaluation: Evaluator, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.unknown_code += 1
        given = [self.emitter.operand(x) for x in (*args, *kwargs.values()) if isinstance(x, Unknown) or not callable(x)]
        if isinstance(fn, Unknown):
            name = "a value"
        elif type(fn) is Object:  # whose attributes are the program's
            name = fn.cls.__name__
        else:
            name = getattr(fn, "name", None) or getattr(fn, "__name__", None)
        return Unknown(None, self.emitter.unknown("unknown code", given, name if isinstance(name, str) else type(fn).__name__))

    # -- branches

    def _is_left(self, evaluation: Evaluator, frame: Frame, deps: Deps) -> bool:
        """Return whether undecided control flow is skipped here, being nested too deep. A helper that makes no requests
        becomes one value."""
        if evaluation.may_skip(function := frame.function, function):
            raise Abandoned(function, deps)
        return self.depth >= DEEPEST

    def branch(self, evaluation: Evaluator, frame: Frame, test: Unknown, site: BranchStatement) -> Signal:
        if self._is_left(evaluation, frame, test.deps):
            return super().branch(evaluation, frame, test, site)
        ended = self._arms(evaluation, frame, test, site.loc, (site.then, site.orelse))
        exits = site.then.effects.exits | site.orelse.effects.exits
        if ended.signal is None and exits & {"break", "return", "raise"} and self._is_enough(frame):
            return BREAK
        return ended.signal

    def _is_enough(self, frame: Frame) -> bool:
        """Return whether a loop with only undecided exits (`while True`) has been followed for as many turns as are
        shown."""
        if not frame.loops or frame.loops[-1].bind is not None or (self.turns and frame.loops[-1] is self.turns[-1].site):
            return False
        self.followed[id(frame)] += 1
        return self.followed[id(frame)] >= TURNS

    def choice(self, evaluation: Evaluator, frame: Frame, test: Unknown, site: BranchStatement) -> Any:
        if self._is_left(evaluation, frame, test.deps):
            return super().choice(evaluation, frame, test, site)
        return self._arms(evaluation, frame, test, site.loc, (site.then, site.orelse), values=True).value

    def handlers(self, evaluation: Evaluator, frame: Frame, deps: Deps, handlers: Sequence[Arm], loc: Loc) -> Signal:
        evaluation.blocked(deps)
        self.unknown_code += 1
        if self._is_left(evaluation, frame, deps):
            return super().handlers(evaluation, frame, deps, handlers, loc)
        for arm in handlers:
            raised = Unknown(deps, self.emitter.unknown("something raised"))
            empty = Arm(lambda _: None, arm.effects, arm.loc)
            self._arms(evaluation, frame, raised, arm.loc, (arm, empty))
            if arm.effects.exits & {"break", "return", "raise"} and self._is_enough(frame):
                if "break" in arm.effects.exits:
                    return BREAK
                raise Stop("a loop that only an exception ends", loc)
        return None

    def leave(self, evaluation: Evaluator, frame: Frame, kind: str, loc: Loc, deps: Deps) -> None:
        evaluation.certain = False

    def _arms(self, evaluation: Evaluator, frame: Frame, test: Unknown, loc: Loc, arms: tuple[Arm, Arm], *, values: bool = False) -> Ended:
        """Evaluate both arms; continue after them."""
        evaluation.count(ARMS_COST)
        evaluation.blocked(test.deps)
        emitter, b = self.emitter, self.builder
        on = emitter.operand(test)
        home, before, undo = b.current, Heap(evaluation, frame), emitter.save()
        labels = [b.label(), b.label()]
        ends: list[Ended] = []
        self.depth += 1
        for label, arm in zip(labels, arms, strict=True):
            before.restore()
            emitter.above[label] = home
            b.at(label)
            ends.append(self._arm(evaluation, frame, arm, values=values))
        self.depth -= 1
        cases: list[tuple[Case, str]] = [(True, labels[0]), (DEFAULT, labels[1])]
        going = [end for end in ends if not end.left]
        if values and len(going) == 2 and all(map(b.is_empty, labels)) and not any([*changed(before, end.heap)] for end in ends):
            undo()
            picked = emitter.operation("choice", (test, *(end.value for end in ends)), test.deps)
            return Ended(home, before, None, picked)
        b.at(home)
        if not going:
            b.terminate("switch", (on,), loc=loc, cases=cases)
            return self._all_left(evaluation, frame, ends)
        if len(going) == 1 and self.depth == 0:
            (end,) = going
            b.terminate("switch", (on,), loc=loc, cases=cases)
            b.at(end.label)
            end.heap.restore()
            return end
        return self._joined(evaluation, frame, home, on, cases, ends, before, loc, values=values)

    def _arm(self, evaluation: Evaluator, frame: Frame, arm: Arm, *, values: bool) -> Ended:
        emitter, b = self.emitter, self.builder
        ended = Ended(b.current, Heap(evaluation, frame))
        try:
            found = arm.run(frame)
            ended.signal, ended.value = (None, found) if values else (found, None)
        except Raised as error:
            ended.error = error
        except Stop as stop:
            if not b.terminated:
                ended.error = Raised(stop.reason)
                emitter.unknown(f"the evaluation stopped: {stop.reason}")
            if evaluation.outcome.paused:
                raise
        except (Undecided, Abandoned) as undecided:
            if isinstance(undecided, Abandoned) and evaluation.may_skip(frame.function, frame.function):
                raise
            evaluation.havoc(frame, arm.effects, undecided.deps)
            ended.value = Unknown(undecided.deps)
        ended.label, ended.heap = b.current, Heap(evaluation, frame)
        if b.terminated:
            ended.left, ended.returned, ended.turned = True, ended.signal is RETURN, ended.signal in (BREAK, CONTINUE)
        elif ended.error is not None:
            self.raises(ended.error.value)
            ended.left = True
        elif ended.signal is RETURN and self._is_program(evaluation, frame):
            self.returns(evaluation, frame.result)
            ended.left = ended.returned = True
        elif ended.signal in (BREAK, CONTINUE) and self.turns and frame.loops and frame.loops[-1] is self.turns[-1].site:
            self._turn_ends(evaluation, frame, "break" if ended.signal == BREAK else "continue")
            ended.left = ended.turned = True
        return ended

    def _is_program(self, evaluation: Evaluator, frame: Frame) -> bool:
        """Return whether a frame is the program's own, whose return ends the run."""
        return frame.is_program and evaluation.current is evaluation.states[0]

    def returns(self, evaluation: Evaluator, value: Any) -> None:
        """End the run here."""
        emitter, state = self.emitter, evaluation.states[0]
        names = [name for name in state.variables if isinstance(name, str)]
        held = [emitter.operand(state.variables[name]) for name in names]
        operands = (emitter.operand(value), emitter.seen(state.ctx), *held)
        self.builder.terminate("return", operands, {"vars": tuple(names)}, emitter.loc)

    def raises(self, error: Any) -> None:
        """End the run here, with an exception: its message, or the name of its class."""
        message = error.args[0] if isinstance(error, BaseException) and error.args else error
        if isinstance(message, Object):
            message = message.args[0] if message.args else getattr(message.cls, "name", None) or message.cls.__name__
        if isinstance(message, BaseException):
            message = type(message).__name__
        self.builder.terminate("raise", (self.emitter.operand(message),), loc=self.emitter.loc)

    def _all_left(self, evaluation: Evaluator, frame: Frame, ends: Sequence[Ended]) -> Ended:
        """End the path: nothing continues here. Leave as one of the arms did."""
        last = ends[-1]
        last.heap.restore()
        self.builder.at_end(last.label)
        if any(end.turned for end in ends):
            last.signal = CONTINUE
            return last
        if any(end.returned for end in ends):
            frame.result = Unknown(None)
            last.signal = RETURN
            return last
        error = next((end.error for end in ends if end.error is not None), None)
        raise error if error is not None else Stop("nothing goes on")

    def _joined(
        self, evaluation: Evaluator, frame: Frame, home: str, on: Operand, cases: list[tuple[Case, str]], ends: Sequence[Ended], before: Heap, loc: Loc,
        *, values: bool,
    ) -> Ended:  # fmt: skip
        emitter, b = self.emitter, self.builder
        then = b.label()
        emitter.above[then] = home
        b.at(home)
        going = [end for end in ends if not end.left]
        leaves = tuple(k for k, end in enumerate(ends) if not end.left and end.signal is not None)
        b.terminate("switch", (on,), {"leaves": leaves} if leaves and len({end.signal for end in going}) > 1 else {}, loc=loc, cases=cases, then=then)
        heaps = [end.heap for end in going]
        slots = [slot for slot in self._slots(evaluation, before, heaps) if self._differs(slot, heaps, before)]
        columns = [[self._held(slot, heap, before) for heap in heaps] for slot in slots]
        if values:
            columns.append([end.value for end in going])
        kept = [self._one_object(column) for column in columns]
        for k, end in enumerate(going):
            b.at(end.label)
            given = [self._operands(column[k], column) for column, one in zip(columns, kept, strict=True) if one is None]
            b.terminate("yield", [operand for operands in given for operand in operands])
        b.at(then)
        heaps[0].restore()
        for heap in heaps[1:]:
            evaluation.lost.update(heap.of(evaluation.lost))
        self._shift(before, heaps)
        found = [self._param(column, then) if one is None else one for column, one in zip(columns, kept, strict=True)]
        for slot, x in zip(slots, found, strict=False):
            put(slot, x)
        signals = {end.signal for end in going}
        if RETURN in signals and len(signals) > 1:
            frame.undecided = join(frame.undecided, None) if frame.undecided is not False else None
        signal = signals.pop() if len(signals) == 1 else None
        if signal is RETURN:
            frame.result = Unknown(None)
        return Ended(then, before, signal, found[-1] if values else None)

    # -- values of arms

    def _slots(self, evaluation: Evaluator, before: Heap, heaps: Sequence[Heap]) -> list[Slot]:
        """Return the slots whose values differ between the heaps; a change without a slot is lost."""
        slots: dict[tuple[int, Any], Slot] = {}
        for heap in heaps:
            for x, key in changed(before, heap):
                if x is evaluation.lost or x is evaluation.states:
                    continue
                if key is MISSING:
                    evaluation.lose(x, None)
                elif not isinstance(x, Scoped) and not (isinstance(x, State | TaskOfRun) and key in _BOOKS):
                    slots[id(x), key] = (x, key)
        return [*slots.values()]

    def _differs(self, slot: Slot, heaps: Sequence[Heap], before: Heap) -> bool:
        first, *others = [self._held(slot, heap, before) for heap in heaps]
        return first is MISSING or not self._sees(first) or not all(same(first, x) for x in others)

    def _sees(self, x: Any) -> bool:
        value = x.value if isinstance(x, (Context, Answered)) else x.note if isinstance(x, Unknown) else None
        return not isinstance(value, Value) or self.emitter.sees(value)

    def _shift(self, before: Heap, heaps: Sequence[Heap]) -> None:
        """Leave later addresses undecided if arms differ in their numbers of requests, forks or sub-programs."""
        for x, held in before.held.values():
            if not isinstance(x, State | TaskOfRun):
                continue
            for name in _COUNTS.intersection(held):
                counts = [self._held((x, name), heap, before) for heap in heaps] or [held[name]]
                if any(count != counts[0] for count in counts):
                    if isinstance(x, State) and name == "ordinal":
                        self.emitter.shifted.add(x.stream)
                    else:
                        self.emitter.adrift.add(f"{x.prefix}{'c' if name == 'calls' else ''}")
                setattr(x, name, max(counts, key=_total))

    @staticmethod
    def _held(slot: Slot, heap: Heap, before: Heap) -> Any:
        x, key = slot
        held = heap.of(x)
        held = before.of(x) if held is MISSING else held
        if isinstance(held, dict):
            return held.get(key, MISSING)
        return held[key] if key < len(held) else MISSING

    @staticmethod
    def _one_object(column: Sequence[Any]) -> Any:
        """Return the object bound in only one arm, or known to be the same in all: it is assumed to exist."""
        there = [x for x in column if x is not MISSING]
        if there and isinstance(there[0], _OBJECTS) and all(x is there[0] for x in there):
            return there[0]
        return None

    def _operands(self, x: Any, column: Sequence[Any]) -> list[Operand]:
        """Return the operands that an arm yields for a slot."""
        if any(isinstance(c, Context) for c in column):
            return [self.emitter.seen(x) if isinstance(x, Context) else self.emitter.lost(None).value]
        if x is MISSING:
            x = None
        if any(isinstance(c, Answered) for c in column):
            meta = x.meta if isinstance(x, Answered) and isinstance(x.meta, Value) and self.emitter.sees(x.meta) else None
            return [self.emitter.operand(x), meta]
        return [self._value(x)]

    def _value(self, x: Any) -> Operand:
        """Return the operand of a slot of type `any`, which no ctx can be."""
        return self.emitter.unknown("a state") if isinstance(x, State | Context) else self.emitter.operand(x)

    def _param(self, column: Sequence[Any], label: str) -> Any:
        """Return the value that joins a slot of several arms."""
        deps = join(LATER, *(x.deps for x in column if isinstance(x, (Unknown, Answered))))
        if any(isinstance(x, Context) for x in column):
            return Context(self._new("ctx", label))
        if any(isinstance(x, Answered) for x in column):
            return Answered(self._new("any", label), self._new("any", label), deps)
        return Unknown(deps, self._new("any", label))

    def _new(self, type: Any, label: str) -> Value:
        return self.emitter.define(self.builder.block_param(type, label))

    # -- loops

    def loop(self, evaluation: Evaluator, frame: Frame, items: Unknown, site: LoopStatement) -> Signal:
        if self._is_left(evaluation, frame, items.deps):
            return super().loop(evaluation, frame, items, site)

        def turn(over: Operand) -> Signal:
            if site.bind is not None:
                site.bind(frame, Unknown(items.deps, self.emitter.unknown("an item", [over], loc=site.loc)))
            return site.body.run(frame)

        self._loop(evaluation, frame, items if site.bind is not None else None, site, turn)
        return site.orelse.run(frame)

    def comprehension(self, evaluation: Evaluator, frame: Frame, items: Unknown, site: LoopStatement) -> Any:
        if self._is_left(evaluation, frame, items.deps):
            return super().comprehension(evaluation, frame, items, site)
        found: list[Any] = []

        def turn(over: Operand) -> Signal:
            inner = frame.inner({})
            assert site.bind is not None, "a comprehension binds its items"
            site.bind(inner, Unknown(items.deps, self.emitter.unknown("an item", [over], loc=site.loc)))
            found.append(site.body.run(inner))
            return None

        elements = self._loop(evaluation, frame, items, site, turn, found)
        code = frame.function.code
        for name in site.effects.scan.bound & (code.bound if code is not None else frozenset()):  # by a condition, which is not shown
            frame.function.vars[name] = Unknown(items.deps)
        return Unknown(items.deps, elements)

    def _loop(
        self,
        evaluation: Evaluator,
        frame: Frame,
        items: Unknown | None,
        site: LoopStatement,
        run: Callable[[Operand], Signal],
        collected: list[Any] | None = None,
    ) -> Value | None:
        """Evaluate the body once, for all turns: first to find the loop-carried slots, then for good."""
        if items is not None:
            evaluation.blocked(items.deps)
        emitter, b = self.emitter, self.builder
        over = None if items is None else emitter.operand(items)
        home, before, undo = b.current, Heap(evaluation, frame), emitter.save()
        tried = UnknownIteration(site)
        self._turn(evaluation, frame, tried, home, b.label(), over, run)
        undo()
        before.restore()
        slots = [(slot, x) for slot in self._slots(evaluation, before, tried.heaps) if (x := self._held(slot, before, before)) is not MISSING]
        carried = [(slot, x) for slot, x in slots if not isinstance(x, _OBJECTS)]
        body, then = b.label("body"), b.label("after")
        begins = [operand for _, x in carried for operand in self._operands(x, [x])]
        emitter.above[body] = emitter.above[then] = home
        begins += [None] if collected is not None else []
        b.terminate("loop", (over, *begins), loc=site.loc, cases=[(DEFAULT, body)], then=then)
        b.at(body)
        self._carry(slots, body)
        if collected is not None:
            collected.clear()
            self._new("any", body)
        final = UnknownIteration(site, carried, collected)
        self._turn(evaluation, frame, final, home, body, over, run)
        b.at(then)
        (final.heaps or [before])[-1].restore()
        self._shift(before, [before, *tried.heaps])
        self._carry(slots, then)
        return self._new("any", then) if collected is not None else None

    def _carry(self, slots: Sequence[tuple[Slot, Any]], label: str) -> None:
        """Put block parameters where turns change a slot."""
        for slot, x in slots:
            put(slot, Unknown(None) if isinstance(x, _OBJECTS) else self._param([x], label))

    def _turn(
        self, evaluation: Evaluator, frame: Frame, turn: UnknownIteration, home: str, label: str, over: Operand, run: Callable[[Operand], Signal]
    ) -> None:
        """Evaluate the body at `label`, and end the turn."""
        b = self.builder
        self.emitter.above[label] = home
        b.at(label)
        self.turns.append(turn)
        self.depth += 1
        added = not frame.loops or frame.loops[-1] is not turn.site
        if added:
            frame.loops.append(turn.site)
        try:
            self._arm(evaluation, frame, Arm(lambda _: run(over), turn.site.effects, turn.site.loc), values=False)
            if not b.terminated:
                self._turn_ends(evaluation, frame, "yield")
        finally:
            if added:
                frame.loops.pop()
            self.depth -= 1
            self.turns.pop()

    def _turn_ends(self, evaluation: Evaluator, frame: Frame, kind: str) -> None:
        """End the innermost turn here."""
        turn = self.turns[-1]
        turn.heaps.append(Heap(evaluation, frame))
        if turn.slots is None:
            self.builder.terminate("raise", (None,))  # undone
            return
        values = [operand for slot, x in turn.slots for operand in self._operands(get(slot), [x])]  # as many as its first value has
        if turn.collect is not None:
            values.append(self._value(turn.collect[-1]) if turn.collect else None)
        self.builder.terminate(kind, values)
