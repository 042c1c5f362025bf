"""`lmc.compile` and `Program`: what users have of a compiled program. Its parts are put together here."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.base import Backend
from lmc.chat import CHATML
from lmc.config import default_backend, has_default_backend
from lmc.errors import ArgumentError, ParameterError, ProgramError
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.options import PROGRAM_OPTIONS, Options, backend_of
from lmc.frontend.primitives import caller_loc
from lmc.frontend.state import State
from lmc.frontend.tree import Tree
from lmc.ir.core import Graph
from lmc.jit.driving import Driver
from lmc.jit.notices import Notices, Stats
from lmc.jit.owner import Owner
from lmc.jit.planning import Planner, target_of
from lmc.jit.streams import stream
from lmc.jit.traced import Plan, Traced
from lmc.jit.trees import Trees
from lmc.passes.manager import Planned, Target, print_pipeline, run_pipeline
from lmc.saved import SavedFile, SavedFunction, encoded, write
from lmc.tracebacks import note_item, users_frames


@users_frames
def compile(  # the name of the field: torch.compile, re.compile
    fn: Function, *, backend: Backend | str | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False
) -> Program:
    """A program that means what `fn` means, compiled as it runs.

    backend  where it runs when a call names none (default: `set_default_backend`'s); a backend or the name of one, such as "mock"
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
    return Program(fn, backend=backend_of(backend), outputs=outputs, opt=opt, aggressive=aggressive)


@users_frames
def load(path: str | os.PathLike[str], *, backend: Backend | str | None = None) -> Program:
    """The program that `program.save(path)` wrote. Reading the file executes nothing.

    Its first call looks up the functions that it calls (module:name) and raises ProgramError, naming the function and its place, if one is
    not there or has another source now. Paths that were not saved need the program's own source, which is looked up in the same way.
    Raises ProgramError for a file that is none, is damaged or has another format.
    """
    return program_of(SavedFile.read(Path(path)).function, backend_of(backend))


def program_of(fn: Function, backend: Backend | None = None) -> Program:
    """`compile(fn)`; of the function of a file, the program that was saved."""
    if not isinstance(fn, SavedFunction):
        return Program(fn, backend=backend)
    saved = fn.file
    program = Program(fn, backend=backend, outputs=saved.outputs, opt=saved.opt, aggressive=saved.aggressive)
    program._trees.use(saved)
    return program


class Program:
    """A compiled program. Calls are thread-safe; `program(**kw)` runs one binding, `program.batch(items)` many."""

    def __init__(
        self, fn: Function, *, backend: Backend | None = None, outputs: Sequence[str] | None = None, opt: int = 1, aggressive: bool = False
    ) -> None:
        self.function, self.backend, self.opt, self.aggressive = fn, backend, opt, aggressive
        self.outputs = None if outputs is None else tuple(outputs)
        self.stats = Stats()
        self._notices = Notices(fn)
        self._trees = Trees(fn, self.stats, self._notices)
        self._planner = Planner(self.outputs, opt, aggressive, self.stats, self._trees.lock)
        self._owner = Owner(self._trees, self._planner, caller_loc())
        self._driver = Driver(self._owner)

    # -- running

    @users_frames
    def __call__(self, *args: Any, **kwargs: Any) -> State:
        """Runs the program and returns its state, as `fn.run` does. Sampling defaults, `backend` and `seed` as there."""
        arguments, options = self.function.split(kwargs, PROGRAM_OPTIONS)
        return self._call(self.function.arguments(args, arguments), self._options(options))

    @users_frames
    def stream(self, *args: Any, **kwargs: Any) -> State:
        """As calling it, but returns at once: a state whose `text_iter` and `text_async_iter` follow the compiled run.

        Text comes in program order. Reading the state waits; what the program raises is raised where it is read. When
        nobody holds the state any more, the run is stopped and what it asked is cancelled.
        """
        arguments, given = self.function.split(kwargs, PROGRAM_OPTIONS)
        return stream(self._owner, self.function.arguments(args, arguments), self._options(given))

    @users_frames
    async def acall(self, *args: Any, **kwargs: Any) -> State:
        """As calling it, for async code: holds neither the event loop nor a thread while it waits for answers.

        What an `async def` program awaits is awaited on the caller's loop; blocking tools of any other run on a pool. All
        answers are there when it returns. Cancelling it cancels what it asked and what it awaits.
        """
        arguments, given = self.function.split(kwargs, PROGRAM_OPTIONS)
        bound, options = self.function.arguments(args, arguments), self._options(given)
        with self._journaled(options, (bound,)) as options:
            return await self._driver.acall(bound, options)

    @users_frames
    async def abatch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: str = "raise", **options: Any
    ) -> list[State]:
        """As `batch`, for async code: see `acall`."""
        bound, given = self._items(items, errors), self._options(options, "abatch()")
        states: dict[int, State] = {}
        if bound:
            with self._journaled(given, bound, range(len(bound)), batch=True) as given:
                async with contextlib.aclosing(self._driver.abatch(bound, range(len(bound)), given, progress)) as done:
                    states = {index: state async for index, state in done}
        return _in_order(states, bound, errors)

    @users_frames
    def call(self, args: Mapping[str, Any], **options: Any) -> State:
        """As calling it, with the program's arguments apart from the options."""
        return self._call(self.function.arguments((), args), self._options(options))

    @users_frames
    def batch(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, progress: bool = False, errors: str = "raise", **options: Any
    ) -> list[State]:
        """Runs the program for each item (a dict, or a tuple of positional arguments); states in input order.

        errors="raise": every item runs, then the first exception is raised; "return": it is the item's `state.error()`.
        """
        given, bound = self._options(options, "batch()"), self._items(items, errors)
        return _in_order(dict(self._completed(bound, range(len(bound)), given, progress)), bound, errors)

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
        return self._completed(bound, numbers, options, progress)

    def _completed(self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool) -> Iterator[tuple[int, State]]:
        if not bound:
            return iter(())
        if isinstance(options.journal, str):
            return self._journaled_batch(bound, numbers, options, progress)
        return self._driver.batch(bound, numbers, options, progress)

    def _call(self, bound: inspect.BoundArguments, options: Options) -> State:
        if options.journal is None:
            return self._driver.call(bound, options)
        with self._journaled(options, (bound,)) as options:
            return self._driver.call(bound, options)

    def _journaled_batch(
        self, bound: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, progress: bool
    ) -> Iterator[tuple[int, State]]:
        with self._journaled(options, bound, numbers, batch=True) as options:
            yield from self._driver.batch(bound, numbers, options, progress)

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

    def _options(self, given: Mapping[str, Any], what: str = "a program") -> Options:
        options = Options.of(given, PROGRAM_OPTIONS, f"{self.function.described}: {what}")
        if ACTIVE.get() is not None:
            return options
        if (saved := self._trees.saved) is not None and saved.sampling:
            options = replace(options, sampling={**saved.sampling, **options.sampling})
        if self.backend is not None and options.backend is None:
            return replace(options, backend=self.backend)
        return options

    # -- as a file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was traced so far to a file, for `lmc.load`: data, without code of the program. A file that is there is replaced.

        Nothing traced yet: traced now, for arguments of the annotated types. Raises ProgramError, with the place in the program, for
        what a file cannot hold: a function that is local to another one or that the program makes, an object of this process.
        """
        write(Path(path), self._encoded() if self._trees.saved is None else self._content(self._trees.saved))

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raises ProgramError: a program is neither pickled nor copied."""
        raise ProgramError(
            f"{self.function.described} cannot be pickled or copied once it is compiled: program.save(path) writes it to a file, and lmc.load(path) reads that "
            "in another process", loc=caller_loc())  # fmt: skip

    def _encoded(self) -> bytes:
        """All that was traced, as the bytes of a file."""
        described = self.function.described
        self._trees.ensure()
        if self.interpreted is not None:
            raise ProgramError(f"{described} cannot be saved: it runs in the interpreter: {self.interpreted}", loc=self.function.loc)
        with self._trees.lock:
            if self.outputs is None:
                self._trees.trace_streams()
            trees, target = self._trees.current(), self.target
            compiled = {
                "opt": self.opt, "outputs": None if self.outputs is None else list(self.outputs), "aggressive": self.aggressive,
                "pipeline": print_pipeline(self._planner.pipeline(target)),
            }  # fmt: skip
            return encoded(self.function, trees, compiled, target.template)

    def _content(self, saved: SavedFile) -> bytes:
        """The file that the program is of, if that is still all of it."""
        if not all(traced.saved for traced in self.traces()):
            name = self.function.name
            what = f"{self.function.described} was loaded and has traced more since; save lmc.compile({name}) instead"
            raise ProgramError(what, loc=caller_loc())
        return saved.content

    # -- looking at it

    def lower(self, **example: Any) -> Program:
        """Traces ahead of time for arguments like these, without a model."""
        traced = self._trees.find(*self._trees.completed(self.function.arguments((), example)))
        if traced is not None:
            self._owner.check_outputs(traced)
        return self

    def graph(self) -> Graph:
        """All that has been traced so far for the latest list of argument types; traced now if nothing was."""
        self._trees.ensure()
        latest = self._trees.latest()
        if latest is None:
            raise ProgramError(f"{self.function.described} runs in the interpreter: {self.interpreted}", loc=self.function.loc)
        return latest.graph()

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
        return _named(formats, format)(graph)

    @property
    def target(self) -> Target:
        """What it is compiled for when a call names no other backend."""
        backend = self.backend or (default_backend() if has_default_backend() else None)
        if backend is None:
            saved = self._trees.saved
            return Target("tokens", CHATML if saved is None else saved.template)
        return target_of(backend)

    def explain(self, format: str = "text") -> str:
        """What was captured, what the passes did with it, what each op is expected to cost and, after runs, what it did cost.

        format: "text", "html" (a page for a browser, with the tree of prompts) or "json".
        """
        from lmc import explain

        formats: dict[str, Callable[[Program], str]] = {"text": explain.explain, "html": explain.to_html, "json": explain.to_json}
        return _named(formats, format)(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of `explain(format="html")` without its script."""
        from lmc.explain import to_fragment

        return to_fragment(self)

    def plans(self) -> list[tuple[Tree, Plan | None]]:
        """Every tree with its first plan."""
        return [(t.tree, next(iter(t.plans.values()), None)) for t in self.traces()]

    def traces(self) -> list[Traced]:
        """Every tree with what is known of its runs, for `explain`."""
        return self._trees.all()

    def planned(self, traced: Traced) -> Planned:
        """All of a trace after the pipeline, for `explain`."""
        return self._planner.planned(traced.tree.graph(), self.target)

    @property
    def interpreted(self) -> str | None:
        """Why every call runs in the interpreter, or None."""
        return self._trees.interpreted

    def close(self) -> None:
        """Ends the pins of what all runs begin with, in every backend it ran on. A later call pins them anew."""
        self._planner.pins.close()

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


def _in_order(states: Mapping[int, State], items: Sequence[inspect.BoundArguments], errors: str) -> list[State]:
    """The states of a batch; raises the first exception unless `errors` says that it is returned."""
    in_order = [states[i] for i in range(len(states))]
    if errors == "raise":
        for index, state in enumerate(in_order):
            if state.failure is not None:
                note_item(state.failure, index, items[index])
                raise state.failure
    return in_order


def _named(formats: Mapping[str, Callable[[Any], str]], format: str) -> Callable[[Any], str]:
    if format not in formats:
        raise ParameterError(f"format={format!r}: one of {', '.join(formats)}")
    return formats[format]
