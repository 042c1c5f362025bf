"""Instructions: ops made ready to execute on one run, and the run they execute on.

An instruction knows what it depends on, what it must wait for in program order, and what it holds back until it is
finished. It executes at once, is started, or waits for an answer; it never blocks.
"""

from __future__ import annotations

import copy
from asyncio import Task
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from lmc.backend import recording
from lmc.backend.base import Backend, Beyond, Handle, Hints, Meta, Result, TakeOver
from lmc.backend.pins import Pins
from lmc.checks import Site
from lmc.errors import LmcError, Loc
from lmc.ir.core import exact
from lmc.limits import Limits
from lmc.prompt import Prompt, SamplingParams, as_given

if TYPE_CHECKING:
    from lmc.backend.code import Code
    from lmc.backend.pool import HostThread


# What an unfinished op holds back, and what an op waits for (bit masks).
READ = 1  # may raise what the backend failed with
RAISE = 2  # may raise an exception of the program's own
EFFECT = 4  # touches the world, or an object that can change
LOOSE = 8  # an unordered effect, or what computes with its result: may raise
ASK = 16  # a request of a run that counts them in program order
ALL = READ | RAISE | EFFECT | LOOSE


class _Pending:
    def __repr__(self) -> str:
        return "PENDING"


PENDING = _Pending()


_numbers = count()


class Run:
    """One run of a program: a binding of its parameters and everything that has become known since.

    env      values by slot, PENDING until they are there
    pending  instructions of the path not finished yet, in program order
    path     the answers given to the decisions so far
    record   results of host operations that must not happen twice, by their key
    limits   budget and deadline, if it has any
    journal  where what becomes known is written, and read when the run is taken up again; None: nowhere
    mask     which marks are waited for
    more     whether other runs go on right after this one, for the hints of what it asks now
    ahead    of unordered calls, which may run before what stands before them: what was called, and its result
    answers  what was asked, by stream and ordinal: (prompt before, request, prompt after)
    spare    tokens that a request may generate beyond its answer, where the plan does not say
    watched  somebody reads the answers while they grow
    branches whether arms of decisions are asked ahead; guesses: what was; wasted: how many of them in vain
    """

    __slots__ = (
        "ahead", "answers", "backend", "began", "branches", "busy", "context", "defaults", "env", "error", "failure", "guesses", "inflight", "item", "journal", "limits",
        "mask", "more", "number", "owner", "path", "pending", "pins", "record", "result", "root", "seed", "spare", "stream", "taken", "thread", "wasted", "watched",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        backend: Backend,
        defaults: SamplingParams,
        seed: int,
        item: int,
        arguments: Sequence[Any],
        stream: str = "",
        limits: Limits | None = None,
        journal: Journaling | None = None,
    ) -> None:
        """`stream` is what the streams of the graph are relative to: "" unless this is a run inside of another program."""
        self.owner, self.backend, self.defaults, self.seed, self.item, self.stream = (
            owner,
            backend,
            defaults,
            seed,
            item,
            stream,
        )
        self.journal = journal
        self.began = perf_counter()
        self.number = next(_numbers)  # among all runs of the process
        self.root: Any = None  # the owner's
        self.limits, self.mask = limits, ~0 if limits is not None and limits.in_order else ~ASK
        self.more = False
        self.taken = False  # by the interpreter
        self.context: Context | None = None
        self.env: list[Any] = list(arguments)
        self.pending: list[Instruction] = []
        self.path: list[Any] = []
        self.record: dict[Any, tuple[bool, Any]] = {}
        self.ahead: dict[Any, Call] = {}
        self.answers: dict[tuple[str, int], tuple[Prompt, Any, Prompt]] = {}
        self.thread: HostThread | None = None  # on which calls inside a `with` of the host are made
        self.busy: set[Instruction] = set()  # started, or waiting for an answer
        self.inflight = 0  # of those, host calls running on the pool
        self.pins: list[Handle] = []
        self.spare, self.watched = 0, False
        self.branches = False
        self.guesses: dict[Ask, Guess] = {}
        self.wasted = 0
        self.failure: BaseException | None = None
        self.result: Any = None  # what the owner made of the end
        self.error: BaseException | None = None  # what the program raised

    def enter(self, code: Code) -> None:
        """Starts at the beginning of a compiled graph."""
        self.grow(code.slots)
        self.pending = list(code.entry)

    def ahead_of(self) -> Run:
        """A run that knows what this one knows: what is computed in it has not happened in this one."""
        return Run(self.owner, self.backend, self.defaults, self.seed, self.item, self.env, self.stream)

    def grow(self, slots: int) -> None:
        self.env.extend([PENDING] * (slots - len(self.env)))


class Guess(Protocol):
    """Something that was asked before it was known to be needed (lmc.backend.branches)."""

    @property
    def after(self) -> Prompt: ...

    def answers(self, before: Prompt, ask: Any) -> bool:
        """Whether it is this request."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A host call that was made: what was called, and (True, result) or (False, exception)."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outcome: tuple[bool, Any]


class Journaling(Protocol):
    """What is known of a run from an earlier time, and where what becomes known is written."""

    @property
    def resumed(self) -> bool:
        """Whether anything is known."""
        ...

    @property
    def broken(self) -> BaseException | None:
        """Why the run does nothing more."""
        ...

    def ask(self, before: Prompt, ask: Any, places: Sequence[tuple[str, int]], send: Callable[[], Prompt]) -> Prompt:
        """The prompt with the answer to `ask`: the known one, or the one that `send` asks for."""
        ...

    def asked(self, before: Prompt, ask: Any, places: Sequence[tuple[str, int]], result: Result) -> None:
        """Something was asked in a run of which nothing is known."""
        ...

    def asked_at(self, site: Site, env: list[Any], ask: Any, result: Result) -> None:
        """As `asked`, where a compiled run asks, with the values that it has."""
        ...

    def handed(self, args: Sequence[Any]) -> Sequence[Any]:
        """What a call is handed instead of these, so that it is known what it takes of them."""
        ...

    def call(self, stream: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
             call: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        """What a host call gives, (True, result) or (False, exception): the known outcome, or that of `call`."""
        ...

    async def wait(self, stream: str, awaitable: Any, loc: Loc | None) -> Any:
        """What an awaitable of host code gives: the known result, or its own."""
        ...

    def drives(self, *tasks: Task[Any] | None) -> None:
        """Tasks in which runs of the journal are."""
        ...


class Owner(Protocol):
    """Who started a run: knows the program, so it can extend the graph, take over, and say what a run returns."""

    def extend(self, run: Run, exit: Exit) -> Sequence[Instruction] | None:
        """The instructions that follow for the last decision of `run.path`; None: the interpreter takes over."""
        ...

    def finish(self, run: Run, value: Any, prompt: Prompt, held: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """What a run that returned, or raised, gives back. `held`: value and meta of each variable."""
        ...

    def replay(self, run: Run) -> Any:
        """Runs the rest in the interpreter, on the run's record; gives what the run gives back, or raises."""
        ...

    async def areplay(self, run: Run) -> Any:
        """As `replay`, for an async program, on the running loop."""
        ...

    def show(self, run: Run, prompt: Prompt, held: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        """Shows a prompt and variables to those who watch the run. `held`: value and meta of each of `attrs["vars"]`."""
        ...

    def context(self, run: Run) -> Context:
        """The context in which the run's host calls execute."""
        ...

    def cancel(self, run: Run) -> None:
        """The run is cut off: what the interpreter has asked for it is cancelled, and it asks no more."""
        ...


class Scheduler(Protocol):
    """What an instruction asks of the execution that drives it."""

    parallel: bool

    def check(self) -> None:
        """Raises if the execution is to end, before something happens in the calling thread."""
        ...

    def wait(self, run: Run, instruction: Instruction, answer: Result) -> bool:
        """Executes the instruction again when the answer is there; False."""
        ...

    def start(self, run: Run, instruction: HostCall, args: list[Any]) -> bool:
        """Runs a host call on the pool; False."""
        ...


class Const:
    """An operand that is known when the graph is compiled."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


Get = Callable[[list[Any]], Any]
"""An operand's value from a run's slots."""
Fetch = Callable[[list[Any]], list[Any]]
"""The values of several operands from a run's slots, as a new list."""


class Instruction:
    """An op made ready to execute. `execute` gives False when it has only been started or must wait for an answer."""

    __slots__ = ("deps", "loc", "marks", "waits")

    def __init__(self, deps: tuple[int, ...], waits: int, marks: int, loc: Loc | None) -> None:
        self.deps, self.waits, self.marks, self.loc = deps, waits, marks, loc

    def has_operands(self, env: list[Any]) -> bool:
        for slot in self.deps:  # noqa: SIM110  # a loop is the fastest here
            if env[slot] is PENDING:
                return False
        return True

    def execute(self, run: Run, x: Scheduler) -> bool:
        raise NotImplementedError


class Terminator(Instruction):
    """The end of a block. `drains`: only when everything before it is finished."""

    __slots__ = ()
    drains = True

    def follow(self, run: Run) -> Sequence[Instruction] | None:
        """The next instructions, or None when the run is over."""
        raise NotImplementedError


STOPPED = Instruction((), 0, 0, None)
"""Stands for the end of a run that nobody watches any more."""
RETURNED = Instruction((), 0, 0, None)
"""Stands for the end of a run that has returned but whose answers are not all there."""
INTERRUPTED = Instruction((), 0, 0, None)
"""Stands for a run whose task was cancelled while it waited for an answer."""


class Simple(Instruction):
    """An op that computes one value from its operands at once."""

    __slots__ = ("compute", "out")

    def __init__(
        self, deps: tuple[int, ...], marks: int, loc: Loc | None, out: int, compute: Callable[[Run], Any]
    ) -> None:
        super().__init__(deps, 0, marks, loc)
        self.out, self.compute = out, compute

    def execute(self, run: Run, x: Scheduler) -> bool:
        run.env[self.out] = self.compute(run)
        return True


class Visit:
    """When the plan wants an ask to be visited, and with whom: its hints, but for the run.

    order    the code's place among those of a run, and the ask's in the code
    group    number of the group in the code, or None;  members: its size;  way, reserve: see Hints
    covers   what one request may cover besides: the text before each of the gens that follow, and the gen's attributes
    """

    __slots__ = ("covers", "group", "members", "order", "reserve", "way")

    def __init__(
        self, order: tuple[int, int], group: int | None, members: int, way: tuple[int, int], reserve: int | None,
        covers: tuple[tuple[str, Mapping[str, Any]], ...] = (),
    ) -> None:  # fmt: skip
        self.order, self.group, self.members, self.way, self.reserve, self.covers = order, group, members, way, reserve, covers

    def hints(self, run: Run) -> Hints:
        if run.limits is not None and run.limits.in_order:  # one of them may wait for the answer to another
            return Hints(False, (run.item, *self.order), more=run.more)
        group = None if self.group is None else (run.number, self.order[0], self.group)
        beyond = self._beyond(run.defaults) if self.covers else Beyond(run.spare) if run.spare else None
        return Hints(False, (run.item, *self.order), group, self.members, self.way, self.reserve, run.more, beyond, run.watched)

    def _beyond(self, defaults: SamplingParams) -> Beyond:
        """What follows, under the run's defaults. Its last stops end the request unless something before could contain them."""
        tokens, stops = 0, tuple[str, ...]()
        for text, attrs in self.covers:
            limit, stop = attrs.get("max_tokens"), attrs.get("stop")
            tokens += len(text.encode("utf-8", "surrogatepass")) + (defaults.max_new_tokens if limit is None else limit)
            stops = defaults.stop if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        if any(stop in text for stop in stops for text, _ in self.covers):
            stops = ()
        return Beyond(tokens, len(self.covers), stops)


class Given(Instruction):
    """given: arguments of an ask as they are here. Like an ask it waits for what can raise, and holds back what can change them."""

    __slots__ = ("key", "names", "outs", "values")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, outs: tuple[int, ...], names: tuple[str, ...], values: Fetch, key: Any) -> None:
        super().__init__(deps, RAISE, READ, loc)
        self.outs, self.names, self.values, self.key = outs, names, values, key

    def execute(self, run: Run, x: Scheduler) -> bool:
        try:
            found = as_given(self.names, self.values(run.env))
        except LmcError as error:
            raise TakeOver(f"raises {type(error).__name__}") from None  # the interpreter says it in the user's words
        for out, value in zip(self.outs, found, strict=True):
            run.env[out] = value
        if self.key is not None:
            run.record[self.key] = True, dict(zip(self.names, found, strict=True))
        return True


class Ask(Instruction):
    """gen and select: submits at once, waits for nothing."""

    __slots__ = ("ctx", "keys", "make", "outs", "site", "visit")

    def __init__(self, deps: tuple[int, ...], waits: int, loc: Loc | None, outs: tuple[int, ...], ctx: int,
                 keys: tuple[tuple[str, int], ...], make: Callable[[Run], Any], visit: Visit, site: Site | None) -> None:  # fmt: skip
        super().__init__(deps, waits | ASK, READ | ASK, loc)
        self.outs, self.ctx, self.make, self.visit = outs, ctx, make, visit
        self.keys = keys  # its own identity, and those of the equal asks merged into it
        self.site = site  # where what the prompt has since its last answer is the same in every run

    def execute(self, run: Run, x: Scheduler) -> bool:
        env = run.env
        before: Prompt = env[self.ctx]
        ask = self.make(run)
        guess = run.guesses.get(self) if run.guesses else None
        if guess is not None and guess.answers(before, ask):
            after = guess.after
            del run.guesses[self]
        elif run.limits is None:
            after = self._sent(run, before, ask)
        else:
            after = run.limits.submit(ask, before, lambda: self._sent(run, before, ask))
            if not isinstance(after, Prompt):
                return x.wait(run, self, after)
        for stream, ordinal in self.keys:
            run.answers[run.stream + stream, ordinal] = (before, ask, after)
        self.know(env, after)
        return True

    def know(self, env: list[Any], after: Prompt) -> None:
        """It is asked: the prompt with the answer, the answer, and its meta info."""
        ctx, value, meta = self.outs
        env[ctx], env[value], env[meta] = after, after.result, Meta(after.result)  # type: ignore[arg-type]

    def _sent(self, run: Run, before: Prompt, ask: Any) -> Prompt:
        journal = run.journal
        if journal is None:
            return before.submit(run.backend, ask, self.visit.hints(run))
        if not journal.resumed and journal.broken is None:
            after = before.submit(run.backend, ask, self.visit.hints(run))
            if self.site is None or run.stream:
                journal.asked(before, ask, self._places(run), after.result)  # type: ignore[arg-type]  # an ask has one
            else:
                journal.asked_at(self.site, run.env, ask, after.result)  # type: ignore[arg-type]
            return after
        hints = Hints(False, (run.item, *self.visit.order))  # of a group, some may be known: then the others must not wait for them
        return journal.ask(before, ask, self._places(run), lambda: before.submit(run.backend, ask, hints))

    def _places(self, run: Run) -> Sequence[tuple[str, int]]:
        return tuple([(run.stream + stream, ordinal) for stream, ordinal in self.keys])


class Read(Instruction):
    """read: waits for an answer and raises what it failed with."""

    __slots__ = ("out", "source")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, source: int) -> None:
        super().__init__(deps, 0, READ, loc)
        self.out, self.source = out, source

    def execute(self, run: Run, x: Scheduler) -> bool:
        answer = run.env[self.source]
        if answer.__class__ is Meta:
            if not answer.result.done:
                return x.wait(run, self, answer.result)
            meta = answer.result.output().meta
            run.env[self.out] = meta if run.journal is None else copy.deepcopy(meta)  # a journal writes it a moment later
        elif isinstance(answer, Result):
            if not answer.done:
                return x.wait(run, self, answer)
            run.env[self.out] = answer.output().value
        else:
            run.env[self.out] = answer
        return True


class ReadPrompt(Instruction):
    """ctx.text, ctx.slice, ctx.messages: wait for every answer in the prompt."""

    __slots__ = ("ctx", "out", "view")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, ctx: int, view: Callable[[Run], Any]) -> None:
        super().__init__(deps, 0, READ, loc)
        self.out, self.ctx, self.view = out, ctx, view

    def execute(self, run: Run, x: Scheduler) -> bool:
        for node in run.env[self.ctx].nodes():
            if node.result is not None and not node.result.done:
                return x.wait(run, self, node.result)
        run.env[self.out] = self.view(run)
        return True


class HostCall(Instruction):
    """host.call, ordered or effect: in program order, and its result is recorded."""

    __slots__ = ("args", "effect", "fn", "inline", "key", "kind", "kwargs", "out", "within")
    unordered = False
    catches = False  # what it raises, it gives

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, fn: Callable[..., Any], args: Fetch, kwargs: tuple[str, ...],
                 key: Any, kind: type | None, inline: bool) -> None:  # fmt: skip
        """`kind`: the type that the graph takes the result to be of."""
        super().__init__(deps, ALL, ALL, loc)
        self.out, self.fn, self.args, self.kwargs, self.key, self.kind, self.inline = out, fn, args, kwargs, key, kind, inline
        self.within = False  # inside a `with` of the host
        self.effect = False  # may do something outside of the run

    def execute(self, run: Run, x: Scheduler) -> bool:
        args = self.args(run.env)
        if self.inline or not x.parallel:
            if not self.inline:
                x.check()
            recorder = recording.recorder
            if recorder is None:
                self.settle(run, args, self.made(run, run.context, args))
            else:
                self.settle(run, args, recorder.timed(run.number, self.fn, self.loc, lambda: self.made(run, run.context, args)))
            return True
        return x.start(run, self, args)

    def split(self, args: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and named arguments."""
        if not self.kwargs:
            return args, {}
        n = len(args) - len(self.kwargs)
        return args[:n], dict(zip(self.kwargs, args[n:], strict=True))

    def made(self, run: Run, context: Context | None, args: Sequence[Any]) -> tuple[bool, Any]:
        """As `call`, unless the run's journal has the outcome."""
        if run.journal is None or not self.effect:
            return self.call(context, args)
        args = run.journal.handed(args)
        values, named = self.split(args)
        try:
            return run.journal.call(run.stream, self.fn, values, named, lambda: self.call(context, args), self.loc)
        except LmcError as error:  # the journal's
            return False, error

    def call(self, context: Context | None, args: Sequence[Any]) -> tuple[bool, Any]:
        """(True, result) or (False, exception)."""
        args, named = self.split(args)
        try:
            if context is None:
                return True, self.fn(*args, **named)
            return True, context.run(self.fn, *args, **named)
        except Exception as error:
            return False, error

    def shown(self, args: Sequence[Any]) -> str:
        """The call, for a log."""
        values, named = self.split(args)
        text = ", ".join([f"{v!r:.40}" for v in values] + [f"{k}={v!r:.40}" for k, v in named.items()])
        return f"{getattr(self.fn, '__name__', self.fn)}({text})"

    def settle(self, run: Run, args: Sequence[Any], outcome: tuple[bool, Any]) -> None:
        """The call is over: its result becomes known, or what it raised is raised."""
        ok, value = outcome
        if isinstance(value, TakeOver):
            value.loc = value.loc or self.loc
        else:
            self.keep(run, args, outcome)
        if not ok:
            raise value
        if self.kind is not None and value.__class__ is not self.kind:
            raise TakeOver(f"{getattr(self.fn, '__name__', self.fn)}() is said to return {self.kind.__name__} and gave a {type(value).__name__}")
        run.env[self.out] = value

    def keep(self, run: Run, args: Sequence[Any], outcome: tuple[bool, Any]) -> None:
        if self.key is not None:
            run.record[self.key] = outcome


class Awaiting(HostCall):
    """host.call, awaited: gives what the awaitable gives that its function returns."""

    __slots__ = ()


class UnorderedCall(HostCall):
    """host.call, unordered: waits for its operands alone, on a thread of its own; only ordered calls wait for it."""

    __slots__ = ()
    unordered = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waits, self.marks = 0, LOOSE

    def execute(self, run: Run, x: Scheduler) -> bool:
        return x.start(run, self, self.args(run.env))

    def keep(self, run: Run, args: Sequence[Any], outcome: tuple[bool, Any]) -> None:
        run.ahead[self.key] = Call(self.fn, *self.split(args), outcome)


def _caught(run: Run, out: int, error: BaseException | None) -> None:
    """Fills the two slots that follow an instruction's own: the class of what it raised, and the exception."""
    if error is not None:
        run.env[out] = None
    run.env[out + 1] = None if error is None else type(error)
    run.env[out + 2] = error


class _Catching:
    """Mixed into an instruction that executes at once or is executed again: what it raises becomes two more values."""

    __slots__ = ()
    out: int

    def execute(self, run: Run, x: Scheduler) -> bool:
        try:
            done: bool = super().execute(run, x)  # type: ignore[misc]  # the instruction's
        except TakeOver:
            raise
        except Exception as error:
            _caught(run, self.out, error)
            return True
        if done:
            _caught(run, self.out, None)
        return done


class CatchingSimple(_Catching, Simple):
    __slots__ = ()


class CatchingRead(_Catching, Read):
    __slots__ = ()


class CatchingReadPrompt(_Catching, ReadPrompt):
    __slots__ = ()


class CatchingHostCall(HostCall):
    """A host call whose exception is a value. One that is not an `Exception` is raised by the interpreter, once more."""

    __slots__ = ()
    catches = True

    def call(self, context: Context | None, args: Sequence[Any]) -> tuple[bool, Any]:
        try:
            return super().call(context, args)
        except BaseException as error:  # SystemExit, KeyboardInterrupt: the program's `finally` still has to run
            return False, error

    def settle(self, run: Run, args: Sequence[Any], outcome: tuple[bool, Any]) -> None:
        ok, value = outcome
        if ok or isinstance(value, TakeOver):
            super().settle(run, args, outcome)
            _caught(run, self.out, None)
            return
        self.keep(run, args, outcome)
        if not isinstance(value, Exception):
            raise TakeOver(f"raises {type(value).__name__}")
        _caught(run, self.out, value)


class CatchingAwait(CatchingHostCall, Awaiting):
    __slots__ = ()


class Show(Instruction):
    """show: what is before it in the program has happened, and those who watch the run see it. Holds nothing back."""

    __slots__ = ("attrs", "held", "prompt")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, prompt: Get, held: Fetch, attrs: Mapping[str, Any]) -> None:
        super().__init__(deps, ALL, 0, loc)
        self.prompt, self.held, self.attrs = prompt, held, attrs

    def execute(self, run: Run, x: Scheduler) -> bool:
        run.owner.show(run, self.prompt(run.env), self.held(run.env), self.attrs)
        return True


class Prefill(Instruction):
    """prefill: hands the prompt's text to the backend and pins it. What follows builds on the prefilled prompt."""

    __slots__ = ("ctx", "hints", "shared")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, ctx: int, shared: Pins | None, spare: bool) -> None:
        super().__init__(deps, 0, 0, loc)
        self.ctx = ctx
        self.hints = Hints(pin=True, more=not spare, spare=spare)
        self.shared = shared  # where the pin stays for the runs that come, if it does

    def execute(self, run: Run, x: Scheduler) -> bool:
        if run.journal is not None and run.journal.resumed:
            return True  # what the prompt is for may be known
        prompt: Prompt = run.env[self.ctx]
        if self.shared is not None:
            handle = self.shared.get(run.backend, prompt.tail, lambda: _prefilled(prompt, run.backend))
            run.env[self.ctx] = Prompt(prompt, (), None, handle, ())
            return True
        prompt = run.env[self.ctx] = prompt.prefill(run.backend, self.hints)
        assert prompt.handle is not None
        run.pins.append(prompt.handle)
        return True


def _prefilled(prompt: Prompt, backend: Backend) -> Handle:
    handle = prompt.prefill(backend, Hints(pin=True, more=True)).handle
    assert handle is not None
    return handle


class Release(Instruction):
    """release: ends the pin of a prefilled prompt."""

    __slots__ = ("ctx",)

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, ctx: int) -> None:
        super().__init__(deps, READ, 0, loc)
        self.ctx = ctx

    def execute(self, run: Run, x: Scheduler) -> bool:
        handle = run.env[self.ctx].handle
        if handle in run.pins:
            run.pins.remove(handle)
            run.backend.release(handle)
        return True


class Enter(Instruction):
    """The first instruction of a continuation: makes room for its values."""

    __slots__ = ("slots",)

    def __init__(self, slots: int) -> None:
        super().__init__((), 0, 0, None)
        self.slots = slots

    def execute(self, run: Run, x: Scheduler) -> bool:
        run.grow(self.slots)
        return True


class Switch(Terminator):
    """switch: takes the arm of the operand's value."""

    __slots__ = ("arms", "cond", "default")
    drains = False

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, cond: Callable[[list[Any]], Any]) -> None:
        super().__init__(deps, 0, 0, loc)
        self.cond = cond
        self.arms: dict[Any, Sequence[Instruction]] = {}
        self.default: Sequence[Instruction] = ()

    def follow(self, run: Run) -> Sequence[Instruction]:
        answer = self.cond(run.env)
        run.path.append(answer)
        return self.arms.get(case_key(answer), self.default)


class Return(Terminator):
    __slots__ = ("attrs", "held", "prompt", "value")

    def __init__(
        self, deps: tuple[int, ...], loc: Loc | None, value: Get, prompt: Get, held: Fetch, attrs: Mapping[str, Any]
    ) -> None:
        super().__init__(deps, 0, 0, loc)
        self.value, self.prompt, self.held, self.attrs = value, prompt, held, attrs

    def follow(self, run: Run) -> None:
        env = run.env
        run.result = run.owner.finish(run, self.value(env), self.prompt(env), self.held(env), self.attrs)


class Raise(Terminator):
    """raise: the run is over, with an exception and the state that the program leaves."""

    __slots__ = ("attrs", "error", "held", "prompt")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, error: Get, prompt: Get, held: Fetch, attrs: Mapping[str, Any]) -> None:
        super().__init__(deps, 0, 0, loc)
        self.error, self.prompt, self.held, self.attrs = error, prompt, held, attrs

    def follow(self, run: Run) -> None:
        env = run.env
        run.error = self.error(env)
        run.result = run.owner.finish(run, None, self.prompt(env), self.held(env), self.attrs)


class Exit(Terminator):
    """exit: where the graph ends but the program goes on. `switch` is the decision it hangs on (None: an escape)."""

    __slots__ = ("code", "operands", "reason", "switch")

    def __init__(self, code: Code, loc: Loc | None, reason: str | None, operands: tuple[int | Const, ...]) -> None:
        super().__init__((), 0, 0, loc)
        self.code, self.reason, self.operands = code, reason, operands
        self.switch: Switch | None = None

    def follow(self, run: Run) -> Sequence[Instruction]:
        following = run.owner.extend(run, self) if self.switch is not None else None
        if following is None:
            run.record |= {key: call.outcome for key, call in run.ahead.items()}  # the program did get to all of them
            run.ahead.clear()
            left = TakeOver(self.reason or "")
            left.loc = self.loc
            raise left
        return following


def case_key(answer: Any) -> Any:
    """The key of a decision's answer: exact for literals, identity for other objects."""
    kind = answer.__class__
    if kind is bool or kind is str or kind is int:
        return kind, answer
    if kind in (float, bytes, type(None), tuple):
        return kind, exact(answer)
    return id(answer)


def unpin(run: Run) -> None:
    """Ends the run's pins that no release has ended."""
    for handle in run.pins:
        run.backend.release(handle)
    run.pins.clear()


def cancel(run: Run) -> None:
    """Cancels everything the run has asked."""
    for _, _, prompt in run.answers.values():
        if prompt.handle is not None and prompt.result is not None and not prompt.result.done:
            prompt.handle.cancel()
    unpin(run)
