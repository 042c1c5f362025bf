"""Prediction of the next requests: evaluates the program abstractly from its first line with the answers so far, and makes the requests ahead."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import cached_property
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from lmc.backend.results import Result
from lmc.config import log
from lmc.errors import LmcError
from lmc.frontend.capture import scan
from lmc.frontend.capture.code import Outcome, Place
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.capture.outside import ATOMS, OutsideSnapshot
from lmc.frontend.capture.unknown import NOTHING, Deps, Undecided, Unknown, join
from lmc.frontend.emitter import taken
from lmc.frontend.expressions import GenExpr, SelectExpr, adapter_of
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.live import Run
from lmc.frontend.options import NO_OPTIONS, Options
from lmc.frontend.state import State
from lmc.parameters import Origin, make_gen, make_select
from lmc.prompt import Excerpt, Prompt
from lmc.runahead.calls import is_data
from lmc.runahead.frames import Locals, frames
from lmc.runahead.ledger import AheadPolicy, Ledger, repeatable
from lmc.runahead.records import Address
from lmc.segments import Gen, Select, Special, mark


def hole(deps: Deps, known: Any = None) -> Unknown:
    """Return a partly known prompt: `deps` are the answers it depends on, its note is its known beginning, that of `known`."""
    return Unknown(deps, known.note if isinstance(known, Unknown) else known)


class Pending(NamedTuple):
    """An answer in an evaluation: its address, and its result if it was requested."""

    address: Address
    result: Result | None


class AheadEmitter:
    """The emitter of an evaluation: requests go to the ledger, as guesses."""

    def __init__(self, ledger: Ledger, run: Run, evaluation: Evaluation | None = None, places: dict[Result, Address] | None = None) -> None:
        self.ledger, self.run, self.evaluation = ledger, run, evaluation
        self._template, self._edges = run.backend.chat_template, dict[tuple[str, str | None], tuple[Any, ...]]()
        self._places: dict[Result, Address] = {} if places is None else places

    def nested(self, options: Options) -> AheadEmitter | None:
        if options is NO_OPTIONS:
            return self
        if options.budget is not None or options.timeout is not None or options.stream or options.journal is not None:
            return None
        run = self.run._replace(defaults=options.defaults(self.run.defaults), backend=options.backend or self.run.backend)
        if options.seed is not None:
            run = run._replace(seed=options.seed, item=0)
        return AheadEmitter(self.ledger, run, self.evaluation, self._places)

    # -- prompts

    def root(self) -> Prompt | Unknown:
        return Prompt()

    def is_asked(self, stream: str, ctx: Any, answers: Sequence[Pending]) -> bool:
        if isinstance(ctx, Unknown):
            return False
        for i, (_, result) in enumerate(answers):
            place: Address = (self.run.seed, self.run.item, stream, i)
            if result is None or not self.ledger.reaches(place, result):
                return False
            self._places.setdefault(result, place)
        return True

    def lost(self, deps: Deps) -> Unknown:
        return hole(deps)

    def append(self, ctx: Any, text: str | Special | Unknown) -> Any:
        if isinstance(text, Unknown):
            return hole(join(_deps(ctx), text.deps), ctx.append(text.begins) if text.begins and isinstance(ctx, Prompt) else ctx)
        return ctx if isinstance(ctx, Unknown) else ctx.append(text)

    def image(self, ctx: Any, source: Any, *_: Any, **__: Any) -> Unknown:
        return hole(None)  # a file is read when the request is made

    video = image

    def role_begin(self, ctx: Any, role: str, previous: str | None) -> Any:
        parts = self._edges.get((role, previous))
        if parts is None:  # raises for a role that the template lacks, in the evaluation, too
            parts = self._edges[role, previous] = (*self._template.begin(role, previous), mark(role, "begin"))
        return ctx if isinstance(ctx, Unknown) else ctx.append(*parts)

    def role_end(self, ctx: Any, role: str) -> Any:
        return ctx if isinstance(ctx, Unknown) else ctx.append(mark(role, "end"), *self._template.end(role))

    def splice(self, ctx: Any, other: Any, since: Any) -> Any:
        found = self._nodes(other, since)
        if isinstance(found, Unknown):
            return hole(join(_deps(ctx), found.deps), ctx)
        if isinstance(ctx, Unknown):
            return ctx
        for node in found:
            if node.parts:
                ctx = ctx.append(*node.parts)
            if node.result is not None:
                ctx = ctx.append(node.result.output().text)
        return ctx

    def separate_reasoning(self, before: Any, after: Any, take: Callable[[str], str]) -> Any:
        if isinstance(before, Unknown) or isinstance(after, Unknown):
            return hole(join(_deps(before), _deps(after)), before)
        if not _there(after.result):
            return hole(self._needed(after.result), before)
        return before.append(Excerpt(after, take))

    # -- requests

    def gen(self, ctx: Any, expr: GenExpr, stream: str, ordinal: int) -> tuple[Any, Pending]:
        deps = _deps_of([*expr.given.values(), expr.name])
        make = lambda origin: make_gen(self.run.defaults, expr.given, origin, expr.name, expr.loc)
        return self._ask(ctx, make, deps, expr, stream, ordinal)

    def select(self, ctx: Any, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Any, Pending]:
        choices = expr.choices
        deps = _deps_of([*([choices] if isinstance(choices, Unknown) else choices), expr.name, expr.temperature, expr.choices_method, expr.adapter])
        make = lambda origin: make_select(expr.choices, expr.temperature, expr.choices_method, origin, expr.name, expr.loc, adapter_of(expr, self.run.defaults))
        return self._ask(ctx, make, deps, expr, stream, ordinal)

    def _ask(self, ctx: Any, make: Callable[[Origin], Gen | Select], deps: Deps, expr: GenExpr | SelectExpr, stream: str, ordinal: int) -> tuple[Any, Pending]:
        run, evaluation = self.run, self.evaluation
        assert evaluation is not None
        address: Address = (run.seed, run.item, stream, ordinal)
        entry = self.ledger.asked.get(address)
        if entry is not None and entry.ask.loc != expr.loc:  # Python has taken another arm, or appended requests that the evaluation does not know of
            if evaluation.exploring:
                raise Undecided(None)
            evaluation.shifted, entry = True, None
        if evaluation.shifted:  # the request may have another address, and the address be another's
            known = not (isinstance(ctx, Unknown) or deps is None or deps)
            made = self._made(ctx, make, address) if known else None
            if made is not None and not (entry and made.result is entry.result):
                return made, self._pending(address, made)
            if entry is not None and ((not isinstance(expr.name, Unknown) and entry.ask.name != expr.name) or (known and made is None)):
                entry = None
        if entry is not None:  # Python was here: its prompt and answer replace any guess
            after = self.ledger.after(entry)
            evaluation.confirm()
            return after, self._pending(address, after)
        try:
            after = self._guessed(ctx, make, deps, address)
        except LmcError:  # Python raises it here; no request is made
            return hole(None), Pending(address, None)
        if after is not None:
            return after, self._pending(address, after)
        self.ledger.missed.add(None if evaluation.shifted else address)
        evaluation.miss()
        return hole(frozenset([address])), Pending(address, None)

    def _made(self, ctx: Any, make: Callable[[Origin], Gen | Select], address: Address) -> Prompt | None:
        """Return the prompt with the answer of an equal request, if Python has made one."""
        try:
            return self.ledger.made(ctx, make(Origin(*address)))
        except LmcError:
            return None

    def _guessed(self, ctx: Any, make: Callable[[Origin], Gen | Select], deps: Deps, address: Address) -> Prompt | None:
        """Make a request ahead, if it is known and allowed."""
        run, evaluation = self.run, self.evaluation
        assert evaluation is not None
        if isinstance(ctx, Unknown) or deps is None or deps:
            evaluation.blocked(join(_deps(ctx), deps))
            known = ctx.note if isinstance(ctx, Unknown) else ctx
            if known is not None and evaluation.certain and not evaluation.exploring:
                self.ledger.prefill(known, run)
            return None
        ask = make(Origin(*address))
        if evaluation.shifted and not repeatable(ask):
            return None
        return self.ledger.guess(address, ctx, ask, run, certain=evaluation.certain, in_arm=evaluation.exploring > 0)

    def _pending(self, address: Address, after: Prompt) -> Pending:
        assert after.result is not None
        return Pending(self._places.setdefault(after.result, address), after.result)  # first of equal requests sharing an answer

    # -- reading

    def _needed(self, *results: Result | None) -> Deps:
        """Return the addresses of missing answers."""
        deps: Deps = NOTHING
        for result in results:
            place = None if result is None or result.error is not None else self._places.get(result)  # one that failed never arrives
            deps = join(deps, None if place is None else frozenset([place]))
        return deps

    def _nodes(self, ctx: Any, since: Any) -> list[Prompt] | Unknown:
        """Return the nodes of a prompt after an ancestor, if all of them are known."""
        if isinstance(ctx, Unknown):
            return ctx
        if isinstance(since, Unknown):
            return hole(None)
        try:
            nodes = ctx.nodes_after(since)
        except ValueError:  # the prompt is Python's own, and the ancestor was predicted
            return hole(None)
        answers = [node.result for node in nodes if node.result is not None]
        answers += [part.result for node in nodes for part in node.parts if isinstance(part, Excerpt)]
        missing = [answer for answer in answers if not _there(answer)]
        return hole(self._needed(*missing)) if missing else nodes

    def read(self, answer: Pending) -> Any:
        return self._of(answer, lambda output: output.value)

    def read_part(self, answer: Pending, take: Callable[[str], str]) -> Any:
        return self._of(answer, lambda output: taken(output.value, take))

    def meta(self, answer: Pending) -> Any:
        return self._of(answer, lambda output: copy.deepcopy(output.meta))

    def _of(self, answer: Pending, part: Callable[[Any], Any]) -> Any:
        result = answer.result
        if result is None or not result.done:
            return Unknown(frozenset([answer.address]))
        return Unknown(None) if result.error is not None else part(result.output())

    def text(self, ctx: Any, since: Any = None) -> Any:
        return self._whole(ctx, since, lambda: ctx.text(since))

    def messages(self, ctx: Any) -> Any:
        return self._whole(ctx, None, lambda: ctx.messages())

    def wait(self, ctx: Any) -> None:
        return None

    def error(self, ctx: Any) -> Any:
        return self._whole(ctx, None, lambda: None)

    def _whole(self, ctx: Any, since: Any, read: Callable[[], Any]) -> Any:
        found = self._nodes(ctx, since)
        return Unknown(found.deps) if isinstance(found, Unknown) else read()

    def usage(self, answers: Iterable[Any], stream: str = "") -> Any:
        return Unknown(None)

    def pure(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        begun = self.ledger.calls.begin(fn, args, kwargs)
        if begun is None:
            return Unknown(None)
        key, future = begun
        if not future.done():
            return Unknown(frozenset([key]))
        if future.cancelled() or future.exception() is not None or not is_data(result := future.result()):
            return Unknown(None)
        return copy.deepcopy(result)


def _there(result: Result | None) -> bool:
    return result is not None and result.done and result.error is None


def _deps(ctx: Any) -> Deps:
    return ctx.deps if isinstance(ctx, Unknown) else NOTHING


def _deps_of(values: Iterable[Any]) -> Deps:
    """Return the dependencies of knowing several arguments, lists of texts included."""
    found: Deps = NOTHING
    for value in values:
        if isinstance(value, Unknown):
            found = join(found, value.deps)
        elif value.__class__ in (list, tuple):
            found = join(found, _deps_of(value))
        elif value.__class__ is dict:
            found = join(found, _deps_of(value.values()))
    return found


class ProgramSource:
    """Evaluates one run of a program. It reads outside values once, on first use.

    An evaluation runs in a greenlet of its own: one that has to stop, because Python goes on, is continued where it stopped while Python waits again.
    """

    def __init__(self, function: Function, bound: inspect.BoundArguments, state: State) -> None:
        self.function, self.stream = function, state.stream
        self._bound: inspect.BoundArguments | None = bound  # until it is closed
        if not ATOMS.issuperset(map(type, bound.arguments.values())):
            _ = self.snapshot  # before the program changes them
        self._running: dict[Place, Locals] = {}
        self._steps: greenlet | None = None  # the evaluation that is not over
        self._evaluation: Evaluation | None = None
        self._number = 0
        self._thread: threading.Thread | None = None  # not its number, which a later thread may have

    @cached_property
    def snapshot(self) -> OutsideSnapshot:
        """Return what the run's evaluations read of the outside."""
        assert self._bound is not None
        return OutsideSnapshot(self._bound.args[1:], self._bound.kwargs)

    def evaluate(self, ledger: Ledger, run: Run, stops: Callable[[], bool]) -> Sequence[frozenset[Any]] | None:
        compiled = scan.spent
        if (self._number, self._thread) != (ledger.evaluations, threading.current_thread()):
            self._abandon()
        with frames(self._running):
            outcome = self._begin(ledger, run) if self._steps is None else self._continue(self._steps)
            while outcome is None and self._steps is not None:
                before, stop = scan.spent, stops()
                compiled += scan.spent - before  # by other programs
                if stop:
                    self._evaluation.forget_locals()  # pyright: ignore[reportOptionalMemberAccess]
                    break
                outcome = self._steps.switch(False)
        ledger.once = scan.spent - compiled
        if outcome is None:
            return None
        assert self._evaluation is not None
        vars(self._evaluation).clear()  # or its cycles would be garbage until the next collection
        self._steps = self._evaluation = None
        ledger.profile.passed.update(outcome.passed)
        if outcome.stopped_at is not None and not outcome.paused:
            log("ahead", f"{self.function.name}: {outcome.reason} at {outcome.stopped_at}")
        return outcome.waits

    def _begin(self, ledger: Ledger, run: Run) -> Outcome | None:
        self._number, self._thread, passed = ledger.evaluations, threading.current_thread(), ledger.profile.passed
        emitter = AheadEmitter(ledger, run)
        self._evaluation = emitter.evaluation = Evaluation(
            self.function, self.snapshot, emitter, stream=self.stream, paused=self._pauses, passes=lambda loc: passed[loc], frames=self._running,
            explores=ledger.policy is AheadPolicy.LIKELY,
        )  # fmt: skip
        self._steps = greenlet(self._evaluation.run)
        self._steps.gr_context = copy_context()
        return self._steps.switch()

    def _pauses(self) -> bool:
        """Within an evaluation: let who drives it decide whether it continues now, later or (True) no more."""
        return self._steps.parent.switch(None)  # pyright: ignore[reportOptionalMemberAccess]

    @staticmethod
    def _continue(steps: greenlet, ends: bool = False) -> Outcome | None:
        steps.parent = getcurrent()
        return steps.switch(ends)

    def _abandon(self) -> None:
        """End an evaluation that is not continued."""
        steps, self._steps = self._steps, None
        if steps is not None and self._thread is threading.current_thread():  # else it ends in its own thread, as garbage
            self._continue(steps, ends=True)

    def close(self) -> None:
        self._abandon()
        self._bound = None
        if "snapshot" in vars(self):
            self.snapshot.forget()
