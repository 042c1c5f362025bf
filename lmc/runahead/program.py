"""`lmc.compile` and `Program`: the public interface of a compiled program, assembled from its parts here."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from lmc import arguments
from lmc.backend import recording
from lmc.backend.base import Backend
from lmc.errors import ArgumentError, ParameterError, ProgramError
from lmc.frontend import aio
from lmc.frontend.expressions import caller_loc
from lmc.frontend.interpreter import ACTIVE, Function, all_succeeded, no_attribute
from lmc.frontend.live import LiveEmitter, Run
from lmc.frontend.options import PROGRAM_OPTIONS, Options, backend_of
from lmc.frontend.state import State
from lmc.frontend.typed import Call, P, R, awaits_state, gives_state
from lmc.ir.core import Graph
from lmc.passes.base import Target
from lmc.passes.manager import run_pipeline
from lmc.runahead.annotations import NO_ANNOTATIONS
from lmc.runahead.compiled import Stats, wait_for
from lmc.runahead.evaluating import ProgramSource
from lmc.runahead.ledger import AheadPolicy, Ledger, Source
from lmc.runahead.planning import Planner, target_of
from lmc.runahead.profile import Profile
from lmc.runahead.submitting import RunPlan
from lmc.tracebacks import users_frames

if TYPE_CHECKING:
    from typing_extensions import Unpack  # type checkers bring it

    from lmc.frontend.typed import RunOptions

Errors = Literal["raise", "return"]


@users_frames
def compile(  # the field's name for it: torch.compile, re.compile
    fn: Function[P, R], *, backend: Backend | str | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False,
    ahead: Literal["off", "certain", "likely"] = "certain",
) -> Program[P, R]:  # fmt: skip
    """Return a program equivalent to `fn`: Python runs `fn`, and while it waits for an answer, its next requests are made already.

    backend  where it runs when a call names none (default: `set_default_backend`'s); a backend or the name of one, such as "mock"
    outputs  names of the only variables that will be read; everything else is requested only if it is read after all
    opt      0: nothing is planned, merged or left out; 1: the default pipeline
    aggressive  also changes what is sent: constant paragraphs move in front of arguments, so that runs share more. `explain`
             shows what moves; the state's text stays as it was written. Answers may differ from those of the program as it was written
    ahead    "off"; "certain" (what only an exception could keep the program from asking); "likely" (behind undecided branches, too)
    """
    if any(base.__name__ == "Module" and base.__module__.partition(".")[0] == "dspy" for base in type(fn).__mro__):
        return import_module("lmc.integrations.dspy.compiled").compile_module(fn, outputs=outputs, opt=opt, aggressive=aggressive, ahead=ahead)
    if not isinstance(fn, Function):  # pyright: ignore[reportUnnecessaryIsInstance]
        called = ": compile(fn), not compile(fn(…))" if isinstance(fn, State) else ""
        raise ArgumentError(f"lmc.compile takes a function decorated with @lmc.function, not {fn!r}{called}", loc=caller_loc())
    if opt not in (0, 1):
        raise ParameterError(f"opt={opt!r}: must be 0 or 1", loc=caller_loc())
    if isinstance(outputs, str):
        raise ParameterError(f"outputs={outputs!r}: must be a list of variable names, such as [{outputs!r}]", loc=caller_loc())
    return Program(fn, backend=backend_of(backend), outputs=outputs, opt=opt, aggressive=aggressive, ahead=ahead)


class Program(Call[P, "State[R]"], Generic[P, R]):
    """A compiled program. Calls are thread-safe; `program(**kw)` runs one binding, `program.batch(items)` many."""

    def __init__(
        self, fn: Function[P, R], *, backend: Backend | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False,
        ahead: str = "certain",
    ) -> None:  # fmt: skip
        self.function, self.backend, self.opt, self.aggressive = fn, backend, opt, aggressive
        functools.update_wrapper(self, fn, updated=())  # a signature, a name and a docstring, as the function's
        self.outputs = None if outputs is None else tuple(outputs)
        self.ahead = checked_ahead(ahead)
        self.counted = Stats()
        self.profile = Profile()
        self.planner = Planner(fn, self.outputs, opt, aggressive)
        self.make_source: Callable[[Function, inspect.BoundArguments, State], Source] = ProgramSource

    # -- running

    if not TYPE_CHECKING:  # type checkers have it from `Call`

        @users_frames
        def __call__(self, /, *args: Any, **kwargs: Any) -> State:
            """Run the program and return its state, as `fn.run` does. Sampling defaults, `backend` and `seed` as there."""
            return self._call(*self._split(args, kwargs))

    @users_frames
    def options(self, **options: Unpack[RunOptions]) -> Program[P, R]:
        """This program with some options of its calls fixed, as `fn.options` gives it; what runs have taught belongs to both."""
        found = object.__new__(type(self))
        vars(found).update(vars(self), function=self.function.options(**options))
        return found

    @users_frames
    def call(self, args: Mapping[str, Any], **options: Unpack[RunOptions]) -> State[R]:
        """Run as a call does, with the program's arguments in `args`, apart from the options."""
        return self._call(self.function.arguments((), args), self._options(options))

    @gives_state
    @users_frames
    def stream(self, /, *args: Any, **kwargs: Any) -> State:
        """Run as a call does, but return at once: a state whose `text_iter` and `text_async_iter` follow the run.

        Text comes in program order. Reading the state waits; the program's exception is raised where it is read. When
        the state is garbage-collected, the run is stopped and its requests are cancelled.
        """
        bound, options = self._split(args, kwargs)
        if options.journal is not None:
            raise ParameterError("journal= of a stream: a stream is not journaled; leave journal= out, or call the program", loc=caller_loc())
        if options.desk is not None:
            raise ParameterError("deadline= of a stream: a batch answers all at once; leave deadline= out, or call the program", loc=caller_loc())
        return self._call(bound, replace(options, stream=True))

    @awaits_state
    @users_frames
    async def acall(self, /, *args: Any, **kwargs: Any) -> State:
        """Run as a call does, for async code: an async program runs on the loop of the caller, any other on a thread.

        All answers have arrived when it returns. Cancelling it cancels its requests and awaits.
        """
        bound, options = self._split(args, kwargs)
        with self._during(options, (bound,)) as options:
            return await self.function._arun(bound, options)

    @users_frames
    async def abatch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: Errors = "raise", **options: Unpack[RunOptions]
    ) -> list[State[R]]:
        """As `batch`, with the same `items`, `progress` and `errors`, for async code: see `acall`."""
        given = self._options(options, "abatch()")
        bound = self._items(items, errors)
        states: dict[int, State] = {}
        if bound:
            numbers = range(len(bound))
            with self._during(given, bound, numbers, batch=True) as given:
                async with aclosing(self.function._in_flight(bound, numbers, given, progress=progress).acompleted()) as done:
                    states = {index: state async for index, state in done}
        return _in_order(states, bound, errors)

    @users_frames
    def batch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: Errors = "raise", **options: Unpack[RunOptions]
    ) -> list[State[R]]:
        """Run the program for each of `items` (a dict, or a tuple of positional arguments); return states in input order.

        progress=True: a bar on stderr.
        errors="raise": every item runs, then the first exception is raised; "return": it is the item's `state.error()`.
        """
        given, bound = self._options(options, "batch()"), self._items(items, errors)
        states = dict(self._batch(bound, range(len(bound)), given, progress, here=True)) if bound else {}
        return _in_order(states, bound, errors)

    @users_frames
    def as_completed(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: Errors = "return",
        numbers: Sequence[int] | None = None, **given: Unpack[RunOptions],
    ) -> Iterator[tuple[int, State[R]]]:  # fmt: skip
        """As `batch`, but yield (index, state) of each of `items` as soon as it is done, answers included; failures are in
        the states, whichever `errors` is given. `progress` as there.

        numbers  indices of the items in their batch (default: 0, 1, …). An item's seeds derive from the batch's seed
                 and its index, so that the rest of an interrupted batch gets the answers it would have got
        """
        options = self._options(given, "batch()")
        bound = self._items(items, errors)
        numbers = range(len(bound)) if numbers is None else numbers
        if len(numbers) != len(bound):
            raise ArgumentError(f"{len(numbers)} numbers for {len(bound)} items", loc=caller_loc())
        return self._batch(bound, numbers, options, progress) if bound else iter(())

    @users_frames
    def _batch(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool, here: bool = False
    ) -> Iterator[tuple[int, State]]:
        with (
            self._during(options, bound, numbers, batch=True) as options,
            closing(self.function._in_flight(bound, numbers, options, progress=progress).completed(here=here)) as done,
        ):
            yield from done

    def _call(self, bound: inspect.BoundArguments, options: Options) -> State:
        fn = self.function
        with self._during(options, (bound,)) as options:
            if fn.is_async and not options.stream:
                return aio.run_here(lambda: fn._arun(bound, options), fn.described, "await program.acall(…)")
            return fn._run(bound, options)

    def beginning(self, ahead: str | None) -> Callable[..., None]:
        """Return the function to call when a run begins whose requests are made ahead as far as `ahead` (None: as compiled)."""
        return functools.partial(self._begin, self.ahead if ahead is None else AheadPolicy(ahead))

    def _begin(self, policy: AheadPolicy, state: State, bound: inspect.BoundArguments) -> None:
        """Give a beginning run of this state its ledger."""
        emitter = state.emitter
        assert isinstance(emitter, LiveEmitter)
        run = emitter.run
        source = None if policy is AheadPolicy.OFF or self.profile.is_idle() else self.make_source(self.function, bound, state)
        greedy = run.defaults.temperature == 0
        annotations = self.planner.known(run.backend, greedy)
        plan = RunPlan(annotations or NO_ANNOTATIONS, self.planner.pins, run.backend, state.stream)
        prepare = functools.partial(self._prepare, run.backend, greedy) if annotations is None else None
        ledger = Ledger(run, policy, source, self.profile, plan, stream=state.stream, prepare=prepare)
        emitter.run = Run(*run[:-3], ledger, None, run.whole)
        self.profile.latest = weakref.ref(state)
        if recording.recorder is not None:
            recording.recorder.runs.append(
                recording.RecordedRun(self.function.name, run.item, perf_counter(), lambda: tuple(ledger.records), lambda: state.failure)
            )

    def _prepare(self, backend: Backend, greedy: bool) -> None:
        """Plan for later runs, while one waits."""
        began = thread_time()
        self.planner.prepare(backend, greedy)
        self.profile.spent += thread_time() - began

    @contextmanager
    def _during(self, options: Options, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int] = (0,), *, batch: bool = False) -> Generator[Options]:
        """Yield the options of a call or batch, with its journal open if it has one; record the cost, however it ends."""
        journaled: AbstractContextManager[Options] = nullcontext(options)
        if isinstance(options.journal, str):
            compiled = [*(["aggressive=True"] if self.aggressive else []), *([f"outputs={list(self.outputs)}"] if self.outputs is not None else [])]
            journaled = self.function._journaled(options, bound, numbers, batch=batch, compiled=", ".join(compiled), backend=self.backend)
        with journaled as options:
            backend, stats = self.function._backend(options), self.counted
            before, began = backend.counters(), perf_counter()
            try:
                yield options
            finally:
                stats.runs += len(bound)
                stats.counters = backend.counters() - before
                stats.span = began, perf_counter()
                stats.run_seconds = stats.span[1] - began
                stats.note = getattr(backend, "counts_alone", "")

    def _items(self, items: Iterable[Mapping[str, Any] | Sequence[Any]], errors: str) -> list[inspect.BoundArguments]:
        if errors not in ("raise", "return"):
            raise ParameterError(f"errors={errors!r}: must be 'raise' or 'return'", loc=caller_loc())
        return self.function._bind_all(items)

    def _split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[inspect.BoundArguments, Options]:
        """Return the arguments and the options of a call."""
        arguments, given = self.function.split(kwargs, PROGRAM_OPTIONS)
        return self.function.arguments(args, arguments), self._options(given)

    def _options(self, given: Mapping[str, Any], what: str = "a program") -> Options:
        options = Options.of({**self.function.given, **given}, PROGRAM_OPTIONS, f"{self.function.described}: {what}")
        options = replace(options, begin=self.beginning(options.ahead))
        if ACTIVE.get() is None and self.backend is not None and options.backend is None:
            return replace(options, backend=self.backend)
        return options

    # -- as a file

    @users_frames
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its compile options, graph and profile to a file at `path`, for `lmc.load`. An existing file is replaced.

        The file has the program's name (module:function) and a digest of its source, and none of its code. Raises
        ProgramError for a function that no other process could find, such as a nested one.
        """
        from lmc.saved_programs import write

        write(arguments.path("path", path), self)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raises ProgramError: a program is neither pickled nor copied."""
        raise ProgramError(
            f"{self.function.described} cannot be pickled or copied once it is compiled: program.save(path) writes it to a file, and lmc.load(path) reads that "
            "in another process", loc=caller_loc())  # fmt: skip

    # -- inspection

    @users_frames
    def lower(self, /, **example: Any) -> Self:
        """Trace the graph for these arguments, without a model. Arguments left out are their defaults, or unknown."""
        self.function.check_names(example)
        self.planner.lower(example)
        return self

    @property
    def stats(self) -> Stats:
        """Return the number of its runs, and the time and counters of the last call. Waits as `explain` does: in async code for nothing, and answers
        that have not arrived are not counted."""
        wait_for(self.profile.runs)
        return self.counted.completed(self.profile.runs)

    def graph(self) -> Graph:
        """Return the program's graph before any run: arguments are unknown unless `lower` was given examples."""
        return self.planner.graph()

    @users_frames
    def dump_ir(self, after: str | None = None, format: str = "text") -> str:
        """Return the graph after its pipeline, or as it is after the pass `after` ("trace": before any).

        format: "text", "dot", "html" or "json".
        """
        from lmc.ir import render, text

        if format == "html" and after is None:
            return self.explain(format="html")
        target = self.target
        graph = run_pipeline(
            self.graph(), None, template=target.template, kind=target.kind, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive, after=after
        )
        formats: dict[str, Callable[[Graph], str]] = {
            "text": text.print_graph, "dot": render.to_dot, "html": render.to_html, "json": render.to_json,
        }  # fmt: skip
        return _named(formats, format)(graph)

    @property
    def target(self) -> Target:
        """Return its target for calls that name no other backend."""
        return target_of(self.function.given.get("backend") or self.backend)

    @users_frames
    def explain(self, format: str = "text") -> str:
        """Report the graph, the plan of the passes, the requests made ahead, and the actual cost of each request.

        format: "text", "html" (a page for a browser, with the tree of prompts) or "json".
        """
        from lmc import explain

        formats: dict[str, Callable[[Program], str]] = {"text": explain.explain, "html": explain.to_html, "json": explain.to_json}
        return _named(formats, format)(self)

    def _repr_html_(self) -> str:
        """Return the notebook display: the program in a line, which opens to the page of `explain(format="html")` without its script."""
        from lmc.explain import to_fragment
        from lmc.frontend.notebook import never_raising

        return never_raising(self, functools.partial(to_fragment, self))

    def close(self) -> None:
        """End the pins of the prefixes shared by all runs, in every backend it ran on. A later call pins them again."""
        self.planner.pins.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<compiled {self.function.described}>"

    if not TYPE_CHECKING:  # type checkers should report an unknown name

        @users_frames
        def __getattr__(self, name: str) -> Any:
            raise no_attribute("a compiled program", self, name, _INSTEAD)


_INSTEAD: Mapping[str, str] = {
    "run": "program(…)", "run_batch": "program.batch(items)", "arun": "await program.acall(…)", "bind": "lmc.compile(fn.bind(…))",
    "trace": "program.dump_ir()", "cache": "fn.cache(backend)",
}  # fmt: skip
"""Attributes of a `Function` that a `Program` has under another name."""


def checked_ahead(ahead: str) -> AheadPolicy:
    """Return which requests to make ahead. Raises ParameterError."""
    try:
        return AheadPolicy(ahead)
    except ValueError:
        raise ParameterError(f"ahead={ahead!r}: {', '.join(map(repr, map(str, AheadPolicy)))}", loc=caller_loc()) from None


def _in_order(states: Mapping[int, State[R]], items: Sequence[inspect.BoundArguments], errors: str) -> list[State[R]]:
    """Return the states of a batch; raise the first exception unless `errors` says that it is returned."""
    in_order = [states[i] for i in range(len(states))]
    return all_succeeded(in_order, items) if errors == "raise" else in_order


def _named(formats: Mapping[str, Callable[[Any], str]], format: str) -> Callable[[Any], str]:
    if format not in formats:
        raise ParameterError(f"format={format!r}: one of {', '.join(formats)}")
    return formats[format]
