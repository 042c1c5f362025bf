"""lmc.compile: a program traced, planned and executed, with the interpreter behind it.

Composes the parts: tracer → trace tree → passes → executor. A `Program` keeps one trace tree for each list of argument
types and state of the outside (guards); trees grow when a run takes a path that no run took before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc import measured
from lmc.backend import recording
from lmc.backend.base import Backend, Counters, TakeOver
from lmc.backend.code import Code
from lmc.backend.executor import Execution
from lmc.backend.instructions import Exit, Instruction, Run, Scheduler, case_key
from lmc.backend.loop import LoopExecution
from lmc.backend.pins import Pins
from lmc.chat import CHATML
from lmc.config import default_backend, has_default_backend, log, logs, settings
from lmc.errors import ArgumentError, CaptureWarning, LmcError, Loc, ParameterError, ProgramError
from lmc.frontend import aio, reach, tracer
from lmc.frontend.arguments import Parameters
from lmc.frontend.emitter import Scoped
from lmc.frontend.interpreter import ACTIVE, Function, LiveEmitter, watch
from lmc.frontend.options import PROGRAM_OPTIONS, Options
from lmc.frontend.primitives import caller_loc
from lmc.frontend.replay import ReplayEmitter, areplay, replay
from lmc.frontend.state import State
from lmc.frontend.streaming import Mirror, on_abandoned
from lmc.frontend.trace_outside import GuardFailed
from lmc.frontend.tree import Decision, Node, Site, Switch, Tree, decision_of
from lmc.frontend.values import TraceEscape
from lmc.growth import AT_ONCE, Growth, Start
from lmc.ir.core import Graph
from lmc.ir.core import Value as IRValue
from lmc.measured import Ledger
from lmc.passes.manager import PassManager, Planned, Target, pipeline_for, print_pipeline, run_pipeline
from lmc.prompt import suggestion
from lmc.saved import SavedFile, SavedFunction, encoded, write

MAX_TREES = 8
"""Trace trees of one program for one list of argument types; further states of the outside run in the interpreter."""
MAX_SHAPES = 64
"""Lists of argument types, lengths of `*args` and names of `**kwargs` of one program; further ones run in the interpreter."""
MAX_OPS = 50_000
"""Ops of one tree; beyond it the paths least recently used are dropped, down to half of it."""
MAX_ARMS = 64
"""Answers of one decision that have a path of their own; at a further one the least recently used half is dropped."""
AHEAD_DEPTH = 3
AHEAD_TRACES = 8
"""How far arms of decisions with few answers are explored before a run takes them."""


@dataclass
class Stats:
    """What a program has done so far."""

    runs: int = 0
    replays: int = 0
    traces: int = 0
    trace_seconds: float = 0.0
    plan_seconds: float = 0.0
    run_seconds: float = 0.0
    wasted: int = 0  # requests for arms that were not taken (speculate="branches")
    counters: Counters = field(default_factory=Counters)
    """The backend's work during the last call or batch."""


@dataclass(eq=False)
class Plan:
    """A tree compiled for one target. In-flight runs keep the code they started with."""

    target: Target
    code: Code
    size: int
    served: int  # runs that the tree had served by then
    stats: Mapping[str, int]
    notes: tuple[str, ...] = ()  # what the passes have to say about it


@dataclass(eq=False)
class Traced:
    """A tree with the arguments it was first traced with, and its plans by chat template."""

    tree: Tree
    arguments: inspect.BoundArguments
    plans: dict[tuple[str, int, bool], Plan] = field(default_factory=dict[tuple[str, int, bool], Plan])
    growth: Growth = field(default_factory=Growth)
    ledger: Ledger = field(default_factory=Ledger)
    checked: int = -1  # the tree's size when `outputs` was last looked up in it
    crowded: bool = False  # whether it is worth while to note which paths runs take
    saved: bool = False  # of a file: what is not in it is traced in a tree of its own
    retired: bool = False  # a run came to such a path, and the source is there
    clock: int = 0

    def took(self, path: Iterable[Any]) -> None:
        """A run took a path."""
        self.clock += 1
        self.tree.touch(map(decision_of, path), self.clock)

    def make_room(self, switch: Switch) -> str | None:
        """Drops what was not used for longest if a new arm of a decision would be too much; says what if so."""
        tree, arms = self.tree, len(switch.arms)
        self.crowded = self.crowded or arms >= MAX_ARMS // 4 or tree.size > MAX_OPS // 4
        if arms < MAX_ARMS and tree.size <= MAX_OPS:
            return None
        if arms >= MAX_ARMS:
            tree.thin(switch, MAX_ARMS // 2)
        if tree.size > MAX_OPS:
            tree.shrink(MAX_OPS // 2)
        self.plans.clear()  # runs on their way keep the code that they are on
        return f"{arms} answers at {switch.op.loc}" if arms >= MAX_ARMS else f"more than {MAX_OPS} ops traced"

    def applies(self) -> bool:
        for guard in tuple(self.tree.guards.values()):  # noqa: SIM110  # a loop is the fastest here
            if not guard.holds():
                return False
        return True

    @property
    def outgrown(self) -> bool:
        """Whether a trace found containers of the program that should be objects of the run from the start."""
        return self.retired or self.tree.wanted != self.tree.sites

    def missed(self) -> str:
        """What it was traced with and no longer holds, and where the program reads that."""
        return next((f"{guard.what}, read at {guard.loc}" for guard in self.tree.guards.values() if not guard.holds()), "")


def compile(  # the name of the field: torch.compile, re.compile
    fn: Function, *, backend: Backend | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False
) -> Program:
    """A program that means what `fn` means, compiled as it runs.

    backend  where it runs when a call names none (default: `set_default_backend`'s)
    outputs  names of the only variables that will be read; whatever they do not need is not generated. A name that no path of
             the program makes is a ParameterError at its first call
    opt      0: nothing removed, merged or reordered; 1: the default pipeline
    aggressive  also changes prompts: constant paragraphs move in front of arguments, so that runs share more. `explain`
             shows what was moved. Answers may differ from those of the program as it was written
    """
    if not isinstance(fn, Function):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"lmc.compile takes a function decorated with @lmc.function, not {fn!r}", loc=caller_loc())
    if opt not in (0, 1):
        raise ParameterError(f"opt={opt!r}: 0 or 1", loc=caller_loc())
    if isinstance(outputs, str):
        raise ParameterError(f"outputs={outputs!r}: a list of names of variables, such as [{outputs!r}]", loc=caller_loc())
    return Program(fn, backend=backend, outputs=outputs, opt=opt, aggressive=aggressive)


def load(path: str | os.PathLike[str], *, backend: Backend | None = None) -> Program:
    """The program that `program.save(path)` wrote. Reading the file executes nothing.

    Its first call looks up the functions that it calls (module:name) and raises ProgramError, naming the function and its place, if one is
    not there or has another source now. Paths that were not saved need the program's own source, which is looked up in the same way.
    Raises ProgramError for a file that is none, is damaged or has another format.
    """
    return program_of(SavedFile.read(Path(path)).function, backend)


def program_of(fn: Function, backend: Backend | None = None) -> Program:
    """`compile(fn)`; of the function of a file, the program that was saved."""
    if not isinstance(fn, SavedFunction):
        return Program(fn, backend=backend)
    saved = fn.file
    program = Program(fn, backend=backend, outputs=saved.outputs, opt=saved.opt, aggressive=saved.aggressive)
    program._use(saved)  # pyright: ignore[reportPrivateUsage]
    return program


class Program:
    """A compiled program. Calls are thread-safe; `program(**kw)` runs one binding, `program.batch(items)` many."""

    def __init__(
        self, fn: Function, *, backend: Backend | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False
    ) -> None:
        self.function, self.backend, self.opt = fn, backend, opt
        self.outputs = None if outputs is None else tuple(outputs)
        self.aggressive = aggressive
        self._made_at = caller_loc()
        self.stats = Stats()
        self._trees: dict[tuple[str, ...], list[Traced]] = {}
        self._lock = threading.RLock()
        self._pins = Pins()
        self._interpreted: str | None = None  # why, if nothing of it can be captured
        self._said: set[str] = set()
        self._parameters = Parameters(fn.signature)
        self._saved: SavedFile | None = None

    # -- running

    def __call__(self, *args: Any, **kwargs: Any) -> State:
        """Runs the program and returns its state, as `fn.run` does. Sampling defaults, `backend` and `seed` as there."""
        arguments, options = self.function.split(kwargs, PROGRAM_OPTIONS)
        return self._call(self.function.arguments(args, arguments), self._options(options))

    def stream(self, *args: Any, **kwargs: Any) -> State:
        """As calling it, but returns at once: a state whose `text_iter` and `text_async_iter` follow the compiled run.

        Text comes in program order. Reading the state waits; what the program raises is raised where it is read. When
        nobody holds the state any more, the run is stopped and what it asked is cancelled.
        """
        arguments, given = self.function.split(kwargs, PROGRAM_OPTIONS)
        return self._stream(self.function.arguments(args, arguments), self._options(given))

    async def acall(self, *args: Any, **kwargs: Any) -> State:
        """As calling it, for async code: holds neither the event loop nor a thread while it waits for answers.

        What an `async def` program awaits is awaited on the caller's loop; blocking tools of any other run on a pool. All
        answers are there when it returns. Cancelling it cancels what it asked and what it awaits.
        """
        arguments, given = self.function.split(kwargs, PROGRAM_OPTIONS)
        bound, options = self.function.arguments(args, arguments), self._options(given)
        return await self._acall(bound, options)

    async def abatch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: str = "raise", **options: Any
    ) -> list[State]:
        """As `batch`, for async code: see `acall`."""
        bound = self._items(items, errors)
        given = self._options(options, "abatch()")
        states: dict[int, State] = {}
        if bound:
            with self._journaled(given, bound, range(len(bound)), batch=True) as given:
                async with contextlib.aclosing(self._abatch(bound, range(len(bound)), given, progress)) as done:
                    states = {index: state async for index, state in done}
        return self._in_order(states, errors)

    def call(self, args: Mapping[str, Any], **options: Any) -> State:
        """As calling it, with the program's arguments apart from the options."""
        return self._call(self.function.arguments((), args), self._options(options))

    def batch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: str = "raise", **options: Any
    ) -> list[State]:
        """Runs the program for each item (a dict, or a tuple of positional arguments); states in input order.

        errors="raise": every item runs, then the first exception is raised; "return": it is the item's `state.error()`.
        """
        return self._in_order(dict(self.as_completed(items, progress=progress, errors=errors, **options)), errors)

    def _in_order(self, states: Mapping[int, State], errors: str) -> list[State]:
        in_order = [states[i] for i in range(len(states))]
        if errors == "raise":
            for state in in_order:
                if state.failure is not None:
                    raise state.failure
        return in_order

    def as_completed(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: str = "return",
        numbers: Sequence[int] | None = None, **given: Any,
    ) -> Iterator[tuple[int, State]]:  # fmt: skip
        """As `batch`, giving (index, state) of each item as soon as it is done, answers included; failures are in the states.

        numbers  of the items in the batch that they belong to (default: 0, 1, …). An item's seeds derive from the batch's
                 seed and its number, so that the rest of a batch that was interrupted gets the answers it would have got
        """
        options = self._options(given, "batch()")
        bound = self._items(items, errors)
        numbers = range(len(bound)) if numbers is None else numbers
        if len(numbers) != len(bound):
            raise ArgumentError(f"{len(numbers)} numbers for {len(bound)} items", loc=caller_loc())
        if not bound:
            return iter(())
        return self._completed(bound, numbers, options, progress)

    def _completed(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool
    ) -> Iterator[tuple[int, State]]:
        if isinstance(options.journal, str):
            return self._completed_with_journal(bound, numbers, options, progress)
        if self.function.is_async:
            return aio.iterate(lambda: self._abatch(bound, numbers, options, progress), f"lmc-{self.function.name}")
        if self._plain():
            return enumerate(self.function._batch(bound, numbers, options, {"progress_bar": progress}))
        return self._as_completed(bound, numbers, options, progress)

    def _completed_with_journal(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool
    ) -> Iterator[tuple[int, State]]:
        with self._journaled(options, bound, numbers, batch=True) as options:
            yield from self._completed(bound, numbers, options, progress)

    def _journaled(
        self, options: Options, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int] = (0,), *, batch: bool = False
    ) -> contextlib.AbstractContextManager[Options]:
        """The options of a call, with its journal open if it has one."""
        if not isinstance(options.journal, str):
            return contextlib.nullcontext(options)
        compiled = [*(["aggressive=True"] if self.aggressive else []), *([f"outputs={list(self.outputs)}"] if self.outputs is not None else [])]
        return self.function._journaled(options, bound, numbers, batch=batch, compiled=", ".join(compiled), backend=self.backend)

    def _items(self, items: Iterable[Mapping[str, Any] | Sequence[Any]], errors: str) -> list[inspect.BoundArguments]:
        if errors not in ("raise", "return"):
            raise ParameterError(f"errors={errors!r}: 'raise' or 'return'", loc=caller_loc())
        return self.function._bind_all(items)

    def _stream(self, bound: inspect.BoundArguments, options: Options) -> State:
        if self.outputs is not None:
            raise ProgramError(
                f"{self.function.described} was compiled with outputs={list(self.outputs)}, so it has no text to stream; compile it without",
                loc=caller_loc(),
            )
        if options.journal is not None:
            raise ParameterError("journal= of a stream: a stream is not journaled; leave journal= out, or call the program", loc=caller_loc())
        own = self.function._state(options)
        state, _ = watch(own)
        stream = _Stream(self, Root(own, bound, 0, False, weakref.ref(state)))
        on_abandoned(state, stream.stop)
        name = f"lmc-{self.function.name}"
        threading.Thread(target=contextvars.copy_context().run, args=(stream.work,), name=name, daemon=True).start()
        return state

    async def _acall(self, bound: inspect.BoundArguments, options: Options) -> State:
        if isinstance(options.journal, str):
            with self._journaled(options, (bound,)) as options:
                return await self._acall(bound, options)
        if options.stream:
            return self._stream(bound, options)
        (found,) = [run async for run in self._arun([self.function._state(options)], [bound], options)]
        if found.error is not None:
            raise found.error
        return found.result

    async def _abatch(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool
    ) -> AsyncGenerator[tuple[int, State]]:
        with _counted(len(bound), progress) as finished:
            roots = self.function._batch_states(numbers, options)
            async with contextlib.aclosing(self._arun(roots, bound, options)) as runs:
                async for run in runs:
                    finished()
                    yield run.root.index, self._state_of(run)

    async def _arun(self, roots: list[State], bound: list[inspect.BoundArguments], options: Options) -> AsyncGenerator[Run]:
        """Drives runs on the running loop."""
        backend: Backend = roots[0].emitter.run.backend  # type: ignore[attr-defined]
        before, start = backend.counters(), time.perf_counter()
        self._plain()  # says why
        execution = LoopExecution(on_loop=self.function.is_async, workers=_workers(len(bound)))
        try:
            async with contextlib.aclosing(execution.arun(self._runs(roots, bound))) as runs:
                async for run in runs:
                    _note(run)
                    yield run
        finally:
            self._measured(len(bound), before, start, backend)

    def _call(self, bound: inspect.BoundArguments, options: Options) -> State:
        if isinstance(options.journal, str):
            with self._journaled(options, (bound,)) as options:
                return self._call(bound, options)
        if options.stream:
            return self._stream(bound, options)
        if self.function.is_async:
            instead = f"await {self.function.name}.acall(…)"
            return aio.run_here(lambda: self._acall(bound, options), self.function.described, instead)
        root = self.function._state(options)
        if self._plain():
            return self.function._finished(root, bound)
        before, start = root.emitter.run.backend.counters(), time.perf_counter()  # type: ignore[attr-defined]
        token = ACTIVE.set(root)
        try:
            (run,) = Execution(parallel=False).run(self._runs([root], [bound]))
        finally:
            ACTIVE.reset(token)
        _note(run)
        self._measured(1, before, start, run.backend)
        if run.error is not None:
            raise run.error
        return run.result

    def _as_completed(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool
    ) -> Iterator[tuple[int, State]]:
        roots = self.function._batch_states(numbers, options)
        backend: Backend = roots[0].emitter.run.backend  # type: ignore[attr-defined]
        before, start = backend.counters(), time.perf_counter()
        execution = Execution(parallel=True, workers=_workers(len(bound)))
        try:
            with _counted(len(bound), progress) as finished:
                for run in execution.run(self._runs(roots, bound)):
                    _note(run)
                    finished()
                    yield run.root.index, self._state_of(run)
        finally:
            self._measured(len(bound), before, start, backend)

    def _state_of(self, run: Run) -> State:
        """The state of a run that is over; with `failure` if the program raised."""
        if run.error is not None and not isinstance(run.error, Exception | asyncio.CancelledError):
            raise run.error
        state: State = run.root.state if run.result is None else run.result
        if run.error is not None:
            state.failure = run.error
        return state

    def _options(self, given: Mapping[str, Any], what: str = "a program") -> Options:
        options = Options.of(given, PROGRAM_OPTIONS, f"{self.function.described}: {what}")
        if ACTIVE.get() is not None:
            return options
        if self._saved is not None and self._saved.sampling:
            options = replace(options, sampling={**self._saved.sampling, **options.sampling})
        if self.backend is not None and options.backend is None:
            return replace(options, backend=self.backend)
        return options

    def _plain(self) -> bool:
        """Whether calls go to the interpreter: nothing can be captured, or LMC_JIT=0."""
        if self._interpreted is not None:
            self._say(f"{self.function.name} runs in the interpreter: {self._interpreted}")
            return True
        return not settings().jit

    def _say(self, message: str) -> None:
        """Says, once per program, why something of it is not compiled."""
        if message not in self._said:
            self._said.add(message)
            if logs("exits"):
                log("exits", message)
            else:
                where = self.function.loc or Loc("<unknown>", 1)
                text = f"{message} (right, but at the interpreter's speed)"
                warnings.warn_explicit(text, CaptureWarning, where.file, where.line)

    def _measured(self, runs: int, before: Counters, start: float, backend: Backend) -> None:
        self.stats.runs += runs
        self.stats.run_seconds = time.perf_counter() - start
        self.stats.counters = backend.counters() - before

    # -- one run

    def _runs(self, roots: Sequence[State], bound: Sequence[inspect.BoundArguments]) -> Iterator[Run]:
        for index, (root, arguments) in enumerate(zip(roots, bound, strict=True)):
            self._parameters.complete(arguments)
            run = self._begin(Root(root, arguments, index, len(roots) > 1))
            run.more = index < len(roots) - 1
            yield run

    def _begin(self, root: Root) -> Run:
        live, arguments = root.live.run, root.arguments
        values = self._parameters.values(arguments)
        run = Run(self, live.backend, live.defaults, live.seed, live.item, values, root.state.stream, live.limits, live.journal)
        if live.limits is not None:
            live.limits.begin()
        run.root = root
        run.spare, run.watched = live.spare, live.watched or root.watched is not None
        run.branches = live.branches and live.limits is None and live.journal is None
        traced = self._find(arguments, values, watched=root.watched is not None)
        if traced is None:
            run.pending = [_LEAVE]
            return run
        self._check_outputs(traced)
        root.start = traced.growth.begin()
        if root.start is Start.INTERPRETER:
            run.pending = [_LEAVE]
            return run
        try:
            plan = self._plan(traced, live.backend, live.defaults.temperature == 0)
        except LmcError as error:  # such as a role that the template lacks: raised where the program gets there, if it does
            self._say(f"{self.function.name} runs in the interpreter: {error}")
            run.pending = [_LEAVE]
            return run
        run.root.traced = traced
        run.root.target = plan.target
        run.enter(plan.code)
        return run

    def _find(self, arguments: inspect.BoundArguments, values: Sequence[Any], watched: bool = False) -> Traced | None:
        """The tree for these arguments and the outside as it is now; a new one if there is none."""
        if self._interpreted is not None or not settings().jit:
            return None
        for value in values:
            if value.__class__ is not str and reach.holds_language(value):
                self._say(f"{self.function.name} runs in the interpreter when it is handed a state or an expression")
                return None
        if self._saved is not None and not self._saved.linked:
            self._link(self._saved)
        types = tuple([_type_of(v) for v in values])
        key = (*types, *self._parameters.shape(arguments), *(("watched",) if watched else ()))
        for traced in self._trees.get(key, ()):
            if traced.applies() and not traced.outgrown:
                return traced
        with self._lock:
            if self._parameters.open and len(self._trees) >= MAX_SHAPES and key not in self._trees:
                self._say(f"{self.function.name}: more than {MAX_SHAPES} forms of *args and **kwargs; further ones run in the interpreter")
                return None
            trees = self._trees.setdefault(key, [])
            sites: frozenset[Site] = frozenset()
            for traced in tuple(trees):
                if not traced.applies():
                    log("guards", f"{self.function.name}: a trace does not apply any more: {traced.missed()}")
                elif traced.outgrown:  # runs on it end in the interpreter; new ones get a better tree
                    sites |= traced.tree.wanted
                    trees.remove(traced)
                else:
                    return traced
            if len(trees) >= MAX_TREES:
                self._say(f"{self.function.name}: more than {MAX_TREES} states of the outside; further ones run in the interpreter")
                return None
            params = tuple(IRValue(n, t) for n, t in zip(self._parameters.names(arguments), types, strict=True))  # type: ignore[arg-type]
            while True:
                traced = Traced(Tree(self.function.name, params, sites, watched), arguments)
                if self._grow(traced, ()) is not None:
                    return None
                if not traced.outgrown:
                    trees.insert(0, traced)
                    return traced
                sites = traced.tree.wanted

    def _check_outputs(self, traced: Traced) -> None:
        """Refuses `outputs` with a name that nothing in the program can make: no path of a complete tree, no text in the code.

        While a tree has paths that no run took, any of them may make it; then reading it from the state says what there is.
        """
        if not self.outputs or traced.checked == traced.tree.size:
            return
        traced.checked = traced.tree.size
        made, complete = traced.tree.variables()
        unknown = [name for name in self.outputs if name not in made]
        if unknown and complete and not reach.texts(self.function.func).intersection(unknown):
            near = suggestion(unknown[0], sorted(name for name in made if isinstance(name, str)))
            raise ParameterError(f"outputs={list(self.outputs)}: {self.function.described} makes no variable {unknown[0]!r}{near}", loc=self._made_at)

    def _grow(self, traced: Traced, path: tuple[Decision, ...]) -> str | None:
        """Traces a path, and explores the arms of decisions with few answers ahead. If the interpreter runs it: why."""
        start, before = time.perf_counter(), self.stats.traces
        try:
            self._explore(traced, path)
            return None
        except TraceEscape as escape:
            self._interpreted = escape.reason
            self._say(f"{self.function.name} runs in the interpreter: {escape.reason}")
            return str(escape.reason)
        except tracer.Diverged as error:
            self._say(f"{self.function.name}: {error}; this path runs in the interpreter")
            return str(error)
        finally:
            took = time.perf_counter() - start
            self.stats.trace_seconds += took
            if logs("trace"):
                shown = ", ".join(f"{p.name}: {p.type}" for p in traced.tree.params)
                log("trace", f"{self.function.name}: {self.stats.traces - before} traces for ({shown}), {traced.tree.size} ops, {took * 1e3:.1f} ms")

    def _explore(self, traced: Traced, path: tuple[Decision, ...]) -> None:
        tree, todo = traced.tree, [(path, 0)]
        for count in range(AHEAD_TRACES):
            if not todo or (count and tree.size > MAX_OPS):
                break
            here, depth = todo.pop(0)
            self.stats.traces += 1
            traced.growth.traced()
            try:
                tracer.trace(tree, self.function, traced.arguments, here)
            except tracer.Diverged:
                if not depth:
                    raise
                continue  # the run that comes there says it
            node = tree.node(here)
            while node is not None and isinstance(node.end, Switch) and node.end.expected in node.end.arms:
                here, node = (*here, node.end.expected), node.end.arms[node.end.expected]
            if node is not None and isinstance(node.end, Switch) and node.end.domain and depth < AHEAD_DEPTH and traced.growth.ahead:
                keys = [decision_of(x) for x in node.end.domain]
                todo += [((*here, k), depth + 1) for k in keys if k is not None and k not in node.end.arms]

    def _plan(self, traced: Traced, backend: Backend, greedy: bool) -> Plan:
        """The tree compiled for a backend and a default temperature; again once it has grown by half and runs take its paths again.

        Until then the paths that were traced since are planned one by one, each where it was linked.
        """
        template = backend.chat_template
        key = (_kind(backend), id(template), greedy)
        plan = traced.plans.get(key)
        if plan is None or (traced.tree.size > 1.5 * plan.size + 8 and traced.growth.served > plan.served):
            with self._lock:
                target = Target(key[0], template, greedy, _tokens(backend))
                code, planned = self._compiled(traced.tree.graph(), target)
                plan = traced.plans[key] = Plan(target, code, traced.tree.size, traced.growth.served, planned.stats, planned.notes)
        return plan

    def _compiled(self, graph: Graph, target: Target, bound: Sequence[Any] | None = None, first: int = 0) -> tuple[Code, Planned]:
        start = time.perf_counter()
        manager = PassManager(pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive))
        planned = manager.plan(graph, target)
        code = Code(planned.graph, strict=self.opt == 0, bound=bound, first=first, pins=self._pins)
        self.stats.plan_seconds += time.perf_counter() - start
        return code, planned

    # -- what the executor asks of its owner

    def extend(self, run: Run, exit: Exit) -> Sequence[Instruction] | None:
        """The continuation for the last decision of the run: traced if it is new, planned, and linked to the switch."""
        root: Root = run.root
        assert root.traced is not None and root.target is not None and exit.switch is not None
        path = tuple(decision_of(x) for x in run.path)
        if None in path:
            root.why = f"a decision on a {type(run.path[-1]).__name__}"
            self._say(f"{self.function.name}: {root.why}; this path runs in the interpreter")
            return None
        tree = root.traced.tree
        with self._lock:
            known = exit.switch.arms.get(case_key(run.path[-1]))
            if known is not None:
                return known
            node = self._node(root, run, path)  # type: ignore[arg-type]
            if node is None:
                return None
            before = tree.node(path[:-1])  # type: ignore[arg-type]
            assert before is not None and isinstance(before.end, Switch)
            if len(before.end.live) != len(exit.operands):
                root.why = f"was traced again since, and not as before ({exit.loc})"
                log("exits", f"{self.function.name} {root.why}; the interpreter goes on")
                return None
            graph = tree.graph(node, before.end.live)
            try:
                code, _ = self._compiled(graph, root.target, exit.operands, exit.code.slots)
            except LmcError as error:
                root.why = str(error)
                self._say(f"{self.function.name} goes on in the interpreter: {error}")
                return None
            exit.switch.arms[case_key(run.path[-1])] = code.entry
            root.traced.ledger.extended[str(exit.loc)] += 1
            log("exits", f"{self.function.name}: {_shown(run.path[-1])} at {exit.loc}: a new path of {len(list(graph.ops()))} ops")
            return code.entry

    def _node(self, root: Root, run: Run, path: tuple[Decision, ...]) -> Node | None:
        """Where a path leads, traced now if no run took it before and it may be; None: the interpreter goes on."""
        traced = root.traced
        assert traced is not None
        node = traced.tree.node(path)
        if node is not None:
            return node
        if traced.saved:
            root.why = "a path that is not in the file"
            return None
        if not traced.growth.affordable and root.start is not Start.TRIAL:
            traced.growth.left()
            root.why = "runs seldom take a path again"
            log("exits", f"{self.function.name}: runs seldom take a path again; one more goes on in the interpreter")
            return None
        if root.grew >= AT_ONCE:
            root.why = f"{AT_ONCE} new decisions in one run; the next one traces further"
            log("exits", f"{self.function.name}: {root.why}")
            return None
        root.grew += 1
        traced.took(run.path[:-1])
        before = traced.tree.node(path[:-1])
        if before is not None and isinstance(before.end, Switch):
            dropped = traced.make_room(before.end)
            if dropped is not None:
                log("exits", f"{self.function.name}: {dropped}; the paths that were not used for longest are dropped")
        root.why = self._grow(traced, path) or ""
        return None if root.why else traced.tree.node(path)

    def finish(self, run: Run, value: Any, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any]) -> State:
        root: Root = run.root
        if root.traced is not None and not root.grew:
            root.traced.growth.carried()
        if root.traced is not None and root.traced.crowded:
            root.traced.took(run.path)
        variables = {
            name: tracer.held_of(held[2 * i], held[2 * i + 1])
            for i, name in enumerate(attrs["vars"])
            if self.outputs is None or name in self.outputs
        }
        asked: list[Any] = list(dict.fromkeys([after.result for _, _, after in run.answers.values()]))  # merged ones once
        emitter = root.state.emitter if self.outputs is None else Narrowed(root.live.run, self.outputs)
        state = State(
            emitter, prompt, variables=variables, stream=run.stream, ordinal=attrs["ordinal"], forks=attrs["forks"],
            calls=attrs["calls"], role=attrs["role"], previous=attrs["previous"], asked=[*asked, root.state.asked], name=self.function.name,
        )  # fmt: skip
        state.ret_value = self._result(run, state, value)
        return state

    def _result(self, run: Run, state: State, value: Any) -> Any:
        """What the program returned, with states for what stands for them. `state` is the one that returns it."""
        if value is tracer.SELF:
            return state
        if type(value) is tuple and any(x is tracer.SELF or isinstance(x, tracer.Returned) for x in value):
            return tuple([self._result(run, state, x) for x in value])
        if not isinstance(value, tracer.Returned):
            return value
        own = run.stream + value.stream
        asked = [after.result for (stream, _), (_, _, after) in run.answers.items() if f"{stream}/".startswith(f"{own}/")]
        other = State(
            state.emitter, value.prompt, variables=value.variables, stream=own, ordinal=value.ordinal, forks=value.forks,
            calls=value.calls, role=value.role, previous=value.previous, asked=asked, name=value.name,
        )  # fmt: skip
        other.ret_value = self._result(run, other, value.value)
        return other

    def replay(self, run: Run) -> State:
        root: Root = run.root
        self._need_source(run)
        if self._taken_over(run):
            self.function._call(root.state, root.arguments)
        else:
            replay(self.function, root.state, root.arguments, run.record, root.traced.tree if root.traced else None, run.ahead, _changed(run))
        self._went_on(run)
        if root.batch:  # its answers are awaited here, on the replay's own thread
            root.state.sync()
        return root.state

    async def areplay(self, run: Run) -> State:
        root: Root = run.root
        self._need_source(run)
        if self._taken_over(run):
            await self.function._acall(root.state, root.arguments)
        else:
            await areplay(self.function, root.state, root.arguments, run.record, root.traced.tree if root.traced else None, run.ahead, _changed(run))
        self._went_on(run)
        await aio.after(aio.unanswered_in(root.state.ctx), lambda: None)
        return root.state

    def _went_on(self, run: Run) -> None:
        """The interpreter finished what left the graph because of an exception: the program handles it, and that was not captured."""
        if _raised(run):
            self._say(f"{self.function.name} goes on in the interpreter: {_reason(run)}")

    def _taken_over(self, run: Run) -> bool:
        """Makes the run's state ready for the interpreter; whether nothing at all has been done yet."""
        root: Root = run.root
        reason = _reason(run)
        if _raised(run):  # what the program does, not what capture lacks, unless the program goes on
            log("exits", f"{self.function.name} {reason}; the interpreter goes on")
        elif root.traced is not None and root.traced.outgrown:  # the next run gets a better tree
            log("exits", f"{self.function.name} goes on in the interpreter once: {reason}")
        elif str(run.failure):
            self._say(f"{self.function.name} goes on in the interpreter: {reason}")
        self.stats.replays += 1
        if root.traced is not None:
            root.traced.ledger.replayed[reason] += 1
        if not run.record and not run.ahead and not run.answers and not root.shown:
            return True
        if run.limits is not None:
            run.limits.restart([prompt.result for _, _, prompt in run.answers.values() if prompt.result is not None])
        emitter = ReplayEmitter(root.live.run, run.answers)
        root.state = State(emitter, stream=run.stream, name=self.function.name, asked=[root.state.asked])
        if root.watched is not None:
            root.state.progress = Mirror(root.state, root.watched, root.shown)
        return False

    def show(self, run: Run, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        root: Root = run.root
        assert root.watched is not None, "only runs that are watched show anything"
        root.shown = attrs["number"]
        state = root.watched()
        if state is None:
            return  # the run is being stopped
        state.ctx = prompt
        for i, name in enumerate(attrs["vars"]):
            state.variables[name] = tracer.held_of(held[2 * i], held[2 * i + 1])
        if opened := attrs.get("opens"):
            state.scopes.setdefault(opened, []).append(Scoped(prompt))
        if closed := attrs.get("closes"):
            scope = state.variables[closed] = state.scopes[closed].pop()
            scope.until = prompt
            if not state.scopes[closed]:
                del state.scopes[closed]
        assert state.progress is not None
        state.progress.notify()

    def cancel(self, run: Run) -> None:
        root: Root = run.root
        root.live.cancel()

    def context(self, run: Run) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(ACTIVE.set, run.root.state)
        return context

    # -- as a file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was traced so far to a file, for `lmc.load`: data, without code of the program. A file that is there is replaced.

        Nothing traced yet: traced now, for arguments of the annotated types. Raises ProgramError, with the place in the program, for
        what a file cannot hold: a function that is local to another one or that the program makes, an object of this process.
        """
        if self._saved is not None:
            if not all(traced.saved for traced in self.traces()):
                raise ProgramError(
                    f"{self.function.described} was loaded and has traced more since; save lmc.compile({self.function.name}) instead", loc=caller_loc())  # fmt: skip
            return write(Path(path), self._saved.content)
        if not self._trees and self._interpreted is None:
            self._find(*self._guessed())
        if self._interpreted is not None:
            raise ProgramError(f"{self.function.described} cannot be saved: it runs in the interpreter: {self._interpreted}", loc=self.function.loc)
        with self._lock:
            trees = self._current()
            target = self.target
            passes = pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive)
            compiled = {
                "opt": self.opt, "outputs": None if self.outputs is None else list(self.outputs), "aggressive": self.aggressive,
                "pipeline": print_pipeline(passes),
            }  # fmt: skip
            data = encoded(self.function, trees, compiled, target.template)
        write(Path(path), data)

    def _current(self) -> dict[tuple[str, ...], Tree]:
        """The trees that apply now, and what a stream of each looks like."""
        if self.outputs is None:
            for key, trees in tuple(self._trees.items()):
                if not trees or trees[0].tree.watched or (*key, "watched") in self._trees:
                    continue
                values = self._parameters.values(trees[0].arguments)
                watched = self._find(trees[0].arguments, values, watched=True)
                if watched is not None:
                    for path in trees[0].tree.paths():
                        with contextlib.suppress(tracer.Diverged, TraceEscape):  # a stream that comes there needs the source
                            self._explore(watched, path)
        found = {key: next((t.tree for t in trees if t.applies() and not t.outgrown), None) for key, trees in self._trees.items()}
        if not any(found.values()):
            raise ProgramError(f"{self.function.described} cannot be saved: what it read of the outside has changed since; call it first", loc=caller_loc())
        return {key: tree for key, tree in found.items() if tree is not None}

    def _use(self, saved: SavedFile) -> None:
        """The trees of a file."""
        self._saved = saved
        self._trees = {
            key: [Traced(tree, inspect.BoundArguments(self.function.signature, OrderedDict()), saved=True)] for key, tree in saved.trees()}  # fmt: skip

    def _link(self, saved: SavedFile) -> None:
        """Before the first call of a program of a file."""
        with self._lock:
            if not saved.linked:
                saved.link()
                self._use(saved)

    def _need_source(self, run: Run) -> None:
        """A run of a program of a file goes on in the interpreter. Raises what it failed with, or why its source is not to be had."""
        if self._saved is None:
            return
        reason = f"the run came to {_reason(run) or 'a path that is not in the file'}"
        try:
            self._saved.source(reason)
            if run.record or run.ahead:
                self._saved.check_counted_alike(reason)
        except ProgramError as missing:
            if run.failure is None or isinstance(run.failure, TakeOver):
                raise
            run.failure.add_note(f"(whether the program handles it, only its source says: {missing.message})")
            raise run.failure from None
        if run.root.traced is not None and run.root.traced.saved and isinstance(run.failure, TakeOver):
            run.root.traced.retired = True

    # -- looking at it

    def lower(self, **example: Any) -> Program:
        """Traces ahead of time for arguments like these, without a model."""
        bound = self.function.arguments((), example)
        bound.apply_defaults()
        if (traced := self._find(bound, self._parameters.values(bound))) is not None:
            self._check_outputs(traced)
        return self

    def graph(self) -> Graph:
        """All that has been traced so far for the latest list of argument types; traced now if nothing was."""
        if not self._trees and self._interpreted is None:
            self._find(*self._guessed())
        if not any(self._trees.values()):
            raise ProgramError(f"{self.function.described} runs in the interpreter: {self._interpreted}", loc=self.function.loc)
        trees = [trees[0].tree for trees in reversed(self._trees.values()) if trees]
        return next((tree for tree in trees if not tree.watched), trees[0]).graph()

    def _guessed(self) -> tuple[inspect.BoundArguments, list[Any]]:
        """Arguments of the annotated types (text where nothing is said), to trace with before any call."""
        samples = {str: "", int: 0, float: 0.0, bool: False, "str": "", "int": 0, "float": 0.0, "bool": False}
        given: dict[str, Any] = {}
        for name, parameter in list(self.function.signature.parameters.items())[1:]:
            if parameter.default is parameter.empty and name not in self.function.bound and parameter.kind not in _STARS:
                known = parameter.annotation is parameter.empty or parameter.annotation in samples
                given[name] = samples.get(parameter.annotation, "") if known else object()
        bound = self.function.arguments((), given)
        bound.apply_defaults()
        return bound, self._parameters.values(bound)

    def dump_ir(self, after: str | None = None, format: str = "text") -> str:
        """The graph after its pipeline, or as it stands after the pass `after` ("trace": before any).

        format: "text", "dot", "html" or "json".
        """
        from lmc.ir import render, text

        if format == "html" and after is None:
            return self.explain(format="html")
        target = self.target
        graph = run_pipeline(
            self.graph(), None, template=target.template, kind=target.kind, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive,
            after=after,
        )
        formats: dict[str, Callable[[Graph], str]] = {
            "text": text.print_graph, "dot": render.to_dot, "html": render.to_html, "json": render.to_json,
        }  # fmt: skip
        if format not in formats:
            raise ParameterError(f"format={format!r}: one of {', '.join(formats)}")
        return formats[format](graph)

    @property
    def target(self) -> Target:
        """What it is compiled for when a call names no other backend."""
        backend = self.backend or (default_backend() if has_default_backend() else None)
        if backend is None:
            return Target("tokens", CHATML if self._saved is None else self._saved.template)
        return Target(_kind(backend), backend.chat_template, tokens=_tokens(backend))

    def explain(self, format: str = "text") -> str:
        """What was captured, what the passes did with it, what each op is expected to cost and, after runs, what it did cost.

        format: "text", "html" (a page for a browser, with the tree of prompts) or "json".
        """
        from lmc import explain

        formats: dict[str, Callable[[Program], str]] = {"text": explain.explain, "html": explain.to_html, "json": explain.to_json}
        if format not in formats:
            raise ParameterError(f"format={format!r}: one of {', '.join(formats)}")
        return formats[format](self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of `explain(format="html")` without its script."""
        from lmc.explain import to_fragment

        return to_fragment(self)

    def plans(self) -> list[tuple[Tree, Plan | None]]:
        """Every tree with its first plan."""
        return [(t.tree, next(iter(t.plans.values()), None)) for t in self.traces()]

    def traces(self) -> list[Traced]:
        """Every tree with what is known of its runs, for `explain`."""
        return [t for trees in self._trees.values() for t in trees]

    def planned(self, traced: Traced) -> Planned:
        """All of a trace after the pipeline, for `explain`."""
        target = self.target
        manager = PassManager(pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive))
        return manager.plan(traced.tree.graph(), target)

    @property
    def interpreted(self) -> str | None:
        """Why every call runs in the interpreter, or None."""
        return self._interpreted

    def close(self) -> None:
        """Ends the pins of what all runs begin with, in every backend it ran on. A later call pins them anew."""
        self._pins.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<compiled {self.function.described}>"

    if not TYPE_CHECKING:  # type checkers shall see that such a name is not there

        def __getattr__(self, name: str) -> Any:
            remedy = f"; write {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"a compiled program has no {name!r}{remedy}", name=name, obj=self)


_INSTEAD: Mapping[str, str] = {
    "run": "program(…)", "run_batch": "program.batch(items)", "arun": "await program.acall(…)", "bind": "lmc.compile(fn.bind(…))",
    "trace": "program.dump_ir()", "cache": "fn.cache(backend)",
}  # fmt: skip
"""What a `Function` has and a `Program` has under another name."""


@dataclass(eq=False, slots=True)
class Root:
    """What the owner keeps of a run: its live state, its arguments, its place in the batch, and the tree it runs on."""

    state: State
    arguments: inspect.BoundArguments
    index: int
    batch: bool
    watched: weakref.ref[State] | None = None  # what others see of the run while it goes on
    shown: int = 0  # how many appends they have seen
    traced: Traced | None = None
    target: Target | None = None
    start: Start = Start.GRAPH
    grew: int = 0  # how often the tree did for this run
    why: str = ""  # it left the graph at a decision

    @property
    def live(self) -> LiveEmitter:
        """The emitter that knows backend, sampling defaults and seed of the run."""
        return self.state.emitter  # type: ignore[return-value]  # states of runs are live


class _Stream:
    """A run that is watched: it goes on a thread of its own until it is over, or nobody watches it any more."""

    def __init__(self, program: Program, root: Root) -> None:
        self.program, self.root = program, root
        self._stopped = threading.Event()
        self._driven: tuple[Execution, Run] | None = None

    def stop(self) -> None:
        """From any thread."""
        self._stopped.set()
        self.root.live.cancel()
        if self._driven is not None:
            execution, run = self._driven
            execution.stop(run)

    def work(self) -> None:
        program, root = self.program, self.root
        backend = root.live.run.backend
        before, start = backend.counters(), time.perf_counter()
        error: BaseException | None = None
        result: State | None = None
        token = ACTIVE.set(root.state)
        try:
            run = asyncio.run(self._adrive()) if program.function.is_async else self._drive()
            _note(run)
            error, result = run.error, None if run.result is root.state else run.result
        except BaseException as raised:  # handed to whoever reads the state
            error = raised
        finally:
            ACTIVE.reset(token)
        program._measured(1, before, start, backend)
        mirror = root.state.progress
        assert isinstance(mirror, Mirror)
        mirror.finish(error, result)

    def _drive(self) -> Run:
        execution = Execution(parallel=False)
        (run,) = execution.run(iter([self._begun(execution)]))
        return run

    async def _adrive(self) -> Run:
        execution = LoopExecution(on_loop=True)
        async with contextlib.aclosing(execution.arun(iter([self._begun(execution)]))) as runs:
            (run,) = [run async for run in runs]
        return run

    def _begun(self, execution: Execution) -> Run:
        self.root.arguments.apply_defaults()
        run = self.program._begin(self.root)
        self._driven = execution, run
        if self._stopped.is_set():
            execution.stop(run)
        return run


class Narrowed(LiveEmitter):
    """For the states of programs compiled with `outputs`, whose prompts are not complete."""

    __slots__ = ("_outputs",)

    def __init__(self, run: Any, outputs: Sequence[str]) -> None:
        super().__init__(run)
        self._outputs = outputs

    def _refuse(self, what: str) -> ProgramError:
        return ProgramError(
            f"this program was compiled with outputs={list(self._outputs)}, so its {what} is not complete; compile it without outputs",
            loc=caller_loc(),
        )

    def text(self, ctx: Any, since: Any = None) -> str:
        raise self._refuse("text")

    def messages(self, ctx: Any) -> list[dict[str, str]]:
        raise self._refuse("list of messages")


class _Leave(Instruction):
    """For runs without a tree: the interpreter runs all of it."""

    def execute(self, run: Run, x: Scheduler) -> bool:
        raise TakeOver("")


_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LEAVE = _Leave((), 0, 0, None)


def _note(run: Run) -> None:
    """A run is over: what it cost goes to the ledger of its tree, and its journal is told."""
    if run.wasted:
        program: Any = run.owner
        program.stats.wasted += run.wasted
    root: Root = run.root
    if run.journal is not None and not run.stream:
        run.error = root.live.run.journal.ended(run.error)  # type: ignore[union-attr]  # the same
    if root.traced is not None:
        root.traced.ledger.note(run)
    if recording.recorder is not None:
        name = run.owner.function.name if isinstance(run.owner, Program) else root.state.name
        recording.recorder.runs.append(measured.recorded(run, name, root.index, root.traced.tree.graph() if root.traced else None))


def _kind(backend: Backend) -> str:
    """The kind of target that a backend is."""
    able = backend.capabilities
    return "chat" if not able.raw_text else "text" if able.lookahead else "tokens"


def _tokens(backend: Backend) -> Callable[[str], int] | None:
    """How many tokens of the backend's a text is, where it has a tokenizer here."""
    return getattr(backend, "count_tokens", None)


def _raised(run: Run) -> bool:
    """Whether a run left the graph because of an exception that is the program's."""
    return not isinstance(run.failure, TakeOver) or str(run.failure).startswith("raises ")


def _reason(run: Run) -> str:
    """Why a run left the graph, and where."""
    failure = run.failure
    loc: Loc | None = getattr(failure, "loc", None)
    if not isinstance(failure, TakeOver):
        what = f"raises {type(failure).__name__}"
    else:
        what = str(failure) or run.root.why
    return f"{what} ({loc})" if isinstance(loc, Loc) and what and str(loc) not in what else what


def _changed(run: Run) -> int | None:
    """The hook call where a run found the outside changed, if that is why it left the graph."""
    return run.failure.tick if isinstance(run.failure, GuardFailed) else None


def _type_of(x: Any) -> str:
    return x.__class__.__name__ if x.__class__ in (str, int, float, bool) else "any"


def _workers(programs: int) -> int:
    """Blocking host calls at once."""
    return settings().host_threads or max(64, min(256, programs))


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 40 else text[:37] + "…"


@contextlib.contextmanager
def _counted(total: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """What to call for each finished item; with a bar if it is to be shown."""
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total) as bar:
        yield bar.update
