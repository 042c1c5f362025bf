"""The interpreter: programs run as Python, one op after another, against a backend. The reference for compiled runs.

No thread waits for a model here: submitting returns at once and reading waits, so the forks and sub-programs of a
program run in parallel as far as the program itself lets them.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import reprlib
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, Protocol, cast, overload

from lmc.backend.base import Backend
from lmc.config import compiler, default_backend
from lmc.errors import ArgumentError, AttributeMissing, Loc, ParameterError, ProgramError
from lmc.frontend import aio
from lmc.frontend.active import ACTIVE
from lmc.frontend.batches import PendingBatch, failure_of, in_flight
from lmc.frontend.beginning import backend_of_run, run_of, state_of_run, states_of_batch
from lmc.frontend.digest import source_digest
from lmc.frontend.expressions import caller_loc
from lmc.frontend.live import LiveEmitter, Run, fresh_seed
from lmc.frontend.mirrors import on_abandoned, watch
from lmc.frontend.options import BATCH_OPTIONS, RUN_OPTIONS, Options, backend_of, checked, signature
from lmc.frontend.prefix import Traced, constant_prefix
from lmc.frontend.state import (
    Emitter,
    GatheredAnswers,
    ProgramState,
    ProgramStateGroup,
    Scoped,
    State,
    StateGroup,
    Stored,
    UnknownVariable,
)
from lmc.frontend.typed import Call, P, R, S, awaits_state, gives_state
from lmc.observing import observer
from lmc.parameters import suggestion
from lmc.prompt import Prompt
from lmc.signatures import signature_of
from lmc.tracebacks import note_item, users_frames, warn
from lmc.waiting import running

if TYPE_CHECKING:
    from typing_extensions import Unpack  # type checkers bring it

    from lmc.frontend.typed import BatchOptions, RunOptions

__all__ = [
    "ACTIVE", "RUN_OPTIONS", "Emitter", "Function", "GatheredAnswers", "LiveEmitter", "ProgramState", "ProgramStateGroup", "Run",
    "Scoped", "State", "StateGroup", "Stored", "UnknownVariable", "fresh_seed", "function",
]  # fmt: skip


# -- programs --------------------------------------------------------------------------------------------------------


class Function(Call[P, "State[R]"], Generic[P, R]):
    """A language-model program: a Python function whose first parameter is the state; of a method, the one after `self`
    or `cls`. `lmc.function` makes one.

    P  its parameters after the state
    R  its return type
    """

    _is_global = False
    """Whether its name is one of its module's; not of a nested function or a method, nor of one that was told of."""

    _made: tuple[Any, tuple[Any, ...]] | None = None
    """How another process makes it from a program that has a name; None: it has one."""

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ProgramError when `func` has no parameter for the state, or yields. `bound` are arguments given by `bind`, `given` options by `options`."""
        self._wrapper: type[Any] | None = type(func) if type(func) in (classmethod, staticmethod) else None
        if self._wrapper is not None:
            func = cast(Any, func).__func__
        if not callable(func) or isinstance(func, type):
            raise ArgumentError(f"lmc.function decorates a Python function, not {func!r}", loc=caller_loc())
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bound: Mapping[str, Any] = dict(bound or {})
        self.given: Mapping[str, Any] = dict(given or {})
        self._without_options: Function[P, R] | None = None
        self.is_method = False
        self._prefix: Prompt | None = None  # computed by `cache`; its handle keeps it alive
        functools.update_wrapper(self, func)
        self.name: str = getattr(func, "__name__", type(func).__name__)
        code = getattr(func, "__code__", None)
        self.loc = Loc(code.co_filename, code.co_firstlineno) if code is not None else None
        signature = signature_of(func)
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].kind not in (
            parameters[0].POSITIONAL_ONLY,
            parameters[0].POSITIONAL_OR_KEYWORD,
        ):
            raise ProgramError(f"{self.name}() needs a first parameter for the state, as in def {self.name}(s, …)", loc=self.loc)
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise ProgramError(
                f"{self.name}() yields, and a call of it would run nothing: return a value instead; run(stream=True) and text_iter() give answers as they come",
                loc=self.loc,
            )
        self._takes(signature)
        if getattr(func, "__qualname__", "") == self.name:
            self._is_global = hasattr(func, "__globals__")  # no attribute holds the module: decorators copy all that there are
        self.is_async = aio.is_async(func)
        """Whether it is `async def`: run it by `run` where no event loop is running, else by `await … .arun(…)`."""

    def _takes(self, signature: inspect.Signature) -> None:
        """Set the attributes derived from the parameters, the state's included."""
        self.signature = self.__signature__ = signature
        parameters = list(signature.parameters.values())
        self.params: tuple[str, ...] = tuple(p.name for p in parameters[1:])
        self.defaults: Mapping[str, Any] = {p.name: p.default for p in parameters[1:] if p.default is not p.empty}
        self._named = frozenset(p.name for p in parameters[1:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._first = parameters[0].name
        self._plain = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters[1:])

    @property
    def digest(self) -> str:
        """Return a hash of its source."""
        return self._own_digest

    @functools.cached_property
    def _own_digest(self) -> str:
        return source_digest(self.func)

    # -- arguments

    def arguments(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> inspect.BoundArguments:
        """Return the program's arguments, given as those of a call (`args`, `kwargs`), bound ones included, without defaults.
        Raises ArgumentError that names the program."""
        given = {**self.bound, **kwargs} if self.bound else dict(kwargs)
        self.check_names(given)
        if self._is_global and (named := self.func.__globals__.get(self.name)) is not self:
            self._check_current(named)
        if not args and self._plain and len(given) == len(self.params):  # all by name, like items of batches: nothing to bind
            by_name = {self._first: None, **{name: given[name] for name in self.params}}
            return inspect.BoundArguments(self.signature, by_name)  # type: ignore[arg-type]  # a dict is ordered
        try:
            bound = self.signature.bind(None, *args, **given)
        except TypeError as error:
            if self._first == "cls" and not self.is_method:
                raise ProgramError(f"{self.name}() is a class method: write @lmc.function above @classmethod", loc=self.loc) from None
            state = f"; {self._first!r} is the state, which lmc supplies" if str(error) == "too many positional arguments" else ""
            raise ArgumentError(f"{self.described}: {error}{state}", loc=caller_loc()) from None
        return bound

    def _check_current(self, named: Any) -> None:
        """Warn, once, if its name stands for another program by now: its module was reloaded, or its cell run again, and
        whoever imported or compiled it before has the old prompts."""
        newer = getattr(named, "function", named)  # of a compiled one
        code, old = (getattr(fn, "__code__", None) for fn in (getattr(newer, "func", None), self.func))
        if not isinstance(newer, Function) or code is old or getattr(code, "co_name", None) != self.name:  # the same code: programs made in a loop
            return
        self._is_global = False
        warn(f"{self.described} was defined again (at {newer.loc}), and this is the old one: import or compile it again, unless that is what you mean")

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Raise ArgumentError for a name in `given` that is no parameter of the program."""
        if self._open:
            return
        for name in given:
            if name not in self._named:
                raise ArgumentError(f"{self.described} has no parameter {name!r}{self._meant(name)}", loc=caller_loc())

    def _meant(self, name: str) -> str:
        """Return a suggestion for a name that is no parameter: a parameter, or an option of `run`."""
        if name == self._first:
            return f"; {name!r}, its first parameter, is the state, which lmc supplies: arguments come after it"
        own = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}.get(name, name)
        parameters = [p for p in self.params if p in self._named]
        found = suggestion(own, (*parameters, *RUN_OPTIONS))
        return found if "did you mean" in found else suggestion(name, parameters)

    @functools.cached_property
    def described(self) -> str:
        """Return the program with its parameters and its location, for messages."""
        shown = ", ".join(str(p).split(":")[0].split("=")[0].strip() for p in list(self.signature.parameters.values())[1:])
        return f"program {self.name}({shown})" + (f" at {self.loc}" if self.loc else "")

    def split(self, kwargs: Mapping[str, Any], known: frozenset[str] = RUN_OPTIONS) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split `kwargs` into program arguments and options, of those that are `known`.

        A program's own parameter wins over an option of the same name; an option wins over `**kwargs`, which gets the rest.
        """
        arguments: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            (options if name in known and name not in self._named else arguments)[name] = value
        return arguments, options

    # -- as a method

    def __set_name__(self, owner: type, name: str) -> None:
        """Mark as a method if it is defined in this class; a program from elsewhere is only held by the class."""
        here = getattr(self.func, "__qualname__", "") == f"{owner.__qualname__}.{self.name}"
        self.is_method = here and self._wrapper is not staticmethod

    @property
    def is_class_method(self) -> bool:
        """Return whether the parameter before the state is the class."""
        return self.is_method and self._wrapper is classmethod

    if not TYPE_CHECKING:  # type checkers have it from `Method`

        def __get__(self, obj: Any, owner: Any = None) -> Function:
            receiver = owner if self.is_class_method else obj
            return self.bound_to(receiver) if self.is_method and receiver is not None else self

    def bound_to(self, obj: Any) -> Function[P, R]:
        """Return the program of a method, bound to the object `obj`; of a class method, to the class."""
        found: Function[P, R] = Function(MethodType(self.func, obj), self.num_api_spec_tokens, self.bound, self.given)
        found._made = Function.bound_to, (self, obj)
        return found

    def _derived(self, bound: Mapping[str, Any], given: Mapping[str, Any]) -> Function[P, R]:
        found: Function[P, R] = Function(self.func, self.num_api_spec_tokens, {**self.bound, **bound}, {**self.given, **given})
        origin = self._made[1][0] if self._made is not None and self._made[0] is Function._derived else self  # a chain of them would live on
        found._made = Function._derived, (origin, found.bound, found.given)
        return found

    @users_frames
    def bind(self, /, **kwargs: Any) -> Function[..., R]:
        """Return this program with some arguments fixed; a call may still give others."""
        self.check_names(kwargs)
        return self._derived(kwargs, {})

    @users_frames
    def options(self, **options: Unpack[RunOptions]) -> Function[P, R]:
        """This program with some options of `run` fixed; a call may still give others.

        It takes the program's own arguments, which type checkers check in full: `fn.options(temperature=0).run(question="…")`.
        Raises ArgumentError, ParameterError for what is no option of a run.
        """
        given = checked(options, RUN_OPTIONS, f"{self.described}: options()")
        found = self._derived({}, given)
        found._without_options = self._without_options or self
        return found

    # -- running

    @gives_state
    @users_frames
    def run(self, /, *args: Any, **kwargs: Any) -> State:
        """Run the program and return its state when the function returns; reading the state waits for answers.

        Besides the program's own arguments it takes defaults for every gen (`max_new_tokens=128, n=1, stop,
        stop_token_ids, stop_regex, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, frequency_penalty,
        presence_penalty, ignore_eos, return_logprob, logprob_start_len, top_logprobs_num, return_text_in_logprobs`),
        `backend`, `seed`, `stream` (return at once; watch with `text_iter`), `use_thread` (accepted, without effect),
        `budget` (an `lmc.Budget`) and `timeout` in seconds. Inside a running program it is a sub-program: it inherits
        backend, defaults and seed from the caller, and its spending counts towards the caller's.

        An `async def` program runs on an event loop of its own; where one is running already, ProgramError: use `arun`.
        """
        arguments, given = self.split(kwargs)
        bound = self.arguments(args, arguments)
        with self._journaled(self._run_options(given), (bound,)) as options:
            return self._run(bound, options)

    def _run_options(self, given: Mapping[str, Any], known: Iterable[str] = RUN_OPTIONS, what: str = "a run") -> Options:
        """Return the options of a run in the interpreter, which makes requests ahead only if `ahead=` says so."""
        options = Options.of({**self.given, **given}, known, what)
        if options.ahead in (None, "off"):
            return options
        return replace(options, begin=self._compiled.beginning(options.ahead))

    @functools.cached_property
    def _compiled(self) -> Any:
        """The compiled program of runs with `ahead=`: they learn from one another, whatever their options are."""
        return compiler()(self) if self._without_options is None else self._without_options._compiled

    def _run(self, bound: inspect.BoundArguments, options: Options) -> State:
        state = state_of_run(self, options)
        if options.stream:
            return self._stream(state, bound)
        with self._ending(state):
            self._call(state, bound)
        return state

    @contextlib.contextmanager
    def _ending(self, state: State) -> Generator[None]:
        """End a run with the block. Raises the block's error, or that of the journal, if the run ended with one."""
        with _counted_by(state):
            try:
                yield
            except BaseException as error:
                _cancel(state)  # it will not be read
                self._ends(state, error)
                raise
            self._ends(state, None)

    def _journaled(
        self, options: Options, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int] = (0,), *, batch: bool = False, compiled: str = "",
        backend: Backend | None = None,
    ) -> AbstractContextManager[Options]:  # fmt: skip
        """Yield the options of a call with its journal open, if it has one."""
        if not isinstance(options.journal, str):
            return contextlib.nullcontext(options)
        from lmc.durable.opening import journaled

        backend = options.backend or backend or self._backend(options)
        return journaled(self, options, backend, bound, numbers, functools.partial(fresh_seed, backend), batch=batch, compiled=compiled)

    def _backend(self, options: Options) -> Backend:
        """Return the backend of a run with these options: a sub-program's is its caller's, any other's the default."""
        caller = ACTIVE.get()
        return backend_of_run(options, None if caller is None else run_of(caller))

    def _ends(self, state: State, error: BaseException | None) -> None:
        """End a run. Raises the journal's error, if it ended with one."""
        failure = self._ended(state, error)
        if failure is not None and failure is not error:
            raise failure

    def _ended(self, state: State, error: BaseException | None) -> BaseException | None:
        """End a run; return its error, which of a journaled run may be the journal's."""
        journal = run_of(state).journal
        return error if journal is None or state.stream else journal.ended(error)

    @awaits_state
    @users_frames
    async def arun(self, /, *args: Any, **kwargs: Any) -> State:
        """As `run`, for async code: an async program runs on the loop of the caller, any other on a thread.

        Cancelling it cancels the program's awaits and its requests.
        """
        arguments, given = self.split(kwargs)
        bound = self.arguments(args, arguments)
        with self._journaled(self._run_options(given), (bound,)) as options:
            return await self._arun(bound, options)

    async def _arun(self, bound: inspect.BoundArguments, options: Options) -> State:
        state = state_of_run(self, options)
        if options.stream:
            return self._stream(state, bound)
        with self._ending(state):
            if self.is_async:
                await self._acall(state, bound)
            else:
                await aio.on_thread(lambda: self._call(state, bound))
        return state

    if not TYPE_CHECKING:  # type checkers have it from `Call`

        @users_frames
        def __call__(self, /, *args: Any, **kwargs: Any) -> State:
            return self.run(*args, **kwargs)

    async def _acall(self, state: State, bound: inspect.BoundArguments) -> None:
        """Run an async program on the running loop, without blocking it while it reads an answer."""
        from lmc.frontend.suspending import prepare, suspendable  # imports greenlets, which only async programs need

        prepare()
        run = run_of(state)
        limits = None if run.journal is not None else run.limits  # a journaled run's calls are timed one by one
        with _running(self, state, bound), self._recorded(state) as func:
            running: Any = suspendable(func(state, *bound.args[1:], **bound.kwargs))
            if limits is not None and limits.timed:
                running = limits.wait(running, self._awaits_at)
            state.ret_value = await running
        if run.journal is not None:
            await aio.after(run.journal.unanswered(), lambda: None)

    def _awaits_at(self, error: BaseException) -> Loc | None:
        """Return where in the program an exception came out of an await."""
        found, at = self.loc, error.__traceback__
        while at is not None:
            if at.tb_frame.f_code is getattr(self.func, "__code__", None):
                found = Loc(at.tb_frame.f_code.co_filename, at.tb_lineno)
            at = at.tb_next
        return found

    def _call(self, state: State, bound: inspect.BoundArguments) -> None:
        if self.is_async:
            return aio.run_here(lambda: self._acall(state, bound), self.described, f"await {self.name}.arun(…)")
        with _running(self, state, bound), self._recorded(state) as func:
            state.ret_value = func(state, *bound.args[1:], **bound.kwargs)

    def _recorded(self, state: State) -> AbstractContextManager[Callable[..., Any]]:
        """Return the function to run with `state`: the user's own, or in a journaled run the same with its calls
        recorded."""
        run = run_of(state)
        if run.journal is None:
            return contextlib.nullcontext(self.func)
        from lmc.durable.recorder import recording

        return recording(self.func, self.described, run.journal, state, run.limits)

    def _stream(self, own: State, bound: inspect.BoundArguments) -> State:
        state, mirror = watch(own)

        def work() -> None:
            try:
                self._call(own, bound)
            except BaseException as error:  # raised to the reader of the state
                mirror.finish(error)
            else:
                mirror.finish(None)

        on_abandoned(state, lambda: _cancel(own))
        threading.Thread(target=copy_context().run, args=(work,), name=f"lmc-{self.name}", daemon=True).start()
        return state

    # -- looking ahead

    @users_frames
    def trace(self, *, backend: Backend | str | None = None, **kwargs: Any) -> Traced:
        """Return the program's graph, to look at, without running it: `print(fn.trace(question="…"))`.

        Arguments that are not given are unknown text; `backend` is accepted and not used. Raises ProgramError if the program cannot be traced.
        """
        return Traced(compiler()(self.bind(**kwargs)).graph())

    @users_frames
    def cache(self, backend: Backend | str | None = None) -> None:
        """Compute the common prefix of all runs' prompts (constants and bound arguments) on `backend`, by default that of
        runs, and keep it there.

        It stays as long as this program does, or until its next `cache`.
        """
        where = backend_of(backend) or self.given.get("backend") or default_backend()
        prompt = constant_prefix(self.trace().graph, LiveEmitter(Run(where)), self.bound)
        self._prefix = prompt.prefill(where) if prompt.tail else None

    # -- batches

    @overload
    def run_batch(self, batch: Iterable[Any], *, generator_style: Literal[True], **options: Unpack[BatchOptions]) -> Iterator[State[R]]: ...
    @overload
    def run_batch(self, batch: Iterable[Any], *, generator_style: Literal[False] = False, **options: Unpack[BatchOptions]) -> list[State[R]]: ...
    @users_frames
    def run_batch(self, batch: Iterable[Any], *, generator_style: bool = False, **options: Unpack[BatchOptions]) -> list[State] | Iterator[State]:
        """Run the program for each item of `batch` (a dict, or a tuple of positional arguments); return results in the order of the inputs.

        Takes the sampling defaults of `run`, `backend`, `seed`, and: `num_threads="auto"`; `progress_bar=False`;
        `generator_style=False` (yield each state when it and those before it are done); `errors="raise"` (every item
        runs, then the first exception is raised) or `"return"` (the item's state has it as `state.error()`).
        """
        run_options = self._run_options(options, BATCH_OPTIONS, "run_batch()")
        errors = options.get("errors", "raise")
        if errors not in ("raise", "return"):
            raise ParameterError(f"errors={errors!r}: must be 'raise' or 'return'", loc=caller_loc())
        bound = self._bind_all(batch)
        results = self._batch(bound, range(len(bound)), run_options, {**options, "generator_style": generator_style})
        if generator_style:
            return raising(results, bound) if errors == "raise" else results
        return all_succeeded(list(results), bound) if errors == "raise" else list(results)

    @users_frames
    def run_some(self, items: Mapping[int, Any], **options: Any) -> Iterator[State]:
        """As `run_batch(generator_style=True, errors="return")` of some items of a batch, each under its index in the
        batch.

        An item's seeds derive from the batch's seed and its index, so it gets the same answers as in the whole batch.
        """
        run_options = self._run_options(options, BATCH_OPTIONS, "run_some()")
        return self._batch(self._bind_all(items.values()), tuple(items), run_options, options)

    def _bind_all(self, batch: Iterable[Any]) -> list[inspect.BoundArguments]:
        """Bind every item's arguments, so that an invalid item is found before the first one runs."""
        kind = type(batch)
        if issubclass(kind, str | Mapping) or not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            what = "text" if kind is str else kind.__name__
            raise ArgumentError(f"a batch is a list of items, each a dict or a tuple, not one {what}", loc=caller_loc())
        if kind.__name__ == "DataFrame":  # iterates over the names of its columns
            rows = "df.to_dicts()" if hasattr(kind, "to_dicts") else 'df.to_dict("records")'
            raise ArgumentError(f"a batch is a list of items, each a dict or a tuple: of a DataFrame, {rows}", loc=caller_loc())
        bound: list[inspect.BoundArguments] = []
        for i, item in enumerate(batch):
            try:
                if isinstance(item, Mapping):
                    bound.append(self.arguments((), item))  # pyright: ignore[reportUnknownArgumentType]
                elif hasattr(item, "_asdict"):  # a named tuple, such as a row of a table: the order of its columns means nothing
                    bound.append(self.arguments((), item._asdict()))
                elif isinstance(item, tuple) and len(item) == 2 and type(item[1]).__name__ == "Series":  # pyright: ignore[reportUnknownArgumentType]
                    raise ArgumentError('an index and a row of df.iterrows(), which has its values by name: write df.to_dict("records")', loc=caller_loc())
                elif isinstance(item, (tuple, list)):
                    bound.append(self.arguments(item))  # pyright: ignore[reportUnknownArgumentType]
                else:
                    by_name = f"{{{next(iter(self.params), 'name')!r}: …}}"
                    raise ArgumentError(f"{self.described}: an item must be a dict or a tuple, not {reprlib.repr(item)}; write {by_name}", loc=caller_loc())
            except ArgumentError as error:
                error.message = f"item {i} of the batch: {error.message}"
                raise
        return bound

    def _batch(self, items: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, given: Mapping[str, Any]) -> Iterator[State]:
        if not items:
            return iter(())
        if isinstance(options.journal, str):
            return self._journaled_batch(items, numbers, options, given)
        batch = self._in_flight(items, numbers, options, given.get("num_threads", "auto"), bool(given.get("progress_bar")))
        return batch.in_order(here=not given.get("generator_style", True))

    def _in_flight(
        self, items: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, limit: Any = "auto", progress: bool = False
    ) -> PendingBatch:
        """A batch that is about to run. Its journal is open, if it has one."""
        from lmc.frontend.closed import is_closed  # imports the table of all functions that are known

        traced = threading.gettrace() is not None  # by coverage, or a debugger: they keep a stack of frames for each thread
        fibers = not self.is_async and options.journal is None and not traced and is_closed(self, [item.arguments for item in items], Function)
        limit = min(in_flight(limit, fibers, waves=options.desk is not None), len(items))
        return PendingBatch(self, items, states_of_batch(self, numbers, options), limit=limit, fibers=fibers, progress=progress, desk=options.desk)

    def _journaled_batch(self, items: list[inspect.BoundArguments], numbers: Sequence[int], options: Options, given: Mapping[str, Any]) -> Iterator[State]:
        with self._journaled(options, items, numbers, batch=True) as options:
            yield from self._batch(items, numbers, options, given)

    def __reduce__(self) -> Any:
        """Pickle by name, as Python's functions are: another process finds it in its module. With bound arguments, options or an object: with those."""
        return self._made or vars(self)["__qualname__"]

    def __repr__(self) -> str:
        return f"<lmc {self.described}>"

    if not TYPE_CHECKING:  # type checkers should report an unknown name

        @users_frames
        def __getattr__(self, name: str) -> Any:
            raise no_attribute("a program", self, name, _INSTEAD)


def no_attribute(what: str, of: object, name: str, instead: Mapping[str, str]) -> AttributeMissing:
    """Return the error of an attribute that `of` does not have; `instead` has the remedies for some."""
    known = [known for known in dir(type(of)) if not known.startswith("_")]
    near = name if name in instead else next(iter(difflib.get_close_matches(name, [*known, *instead], 1, 0.7)), "")
    remedy = f"; write {instead[near]}" if near in instead else f"; did you mean {near!r}?" if near else ""
    return AttributeMissing(f"{what} has no {name!r}{remedy}", loc=caller_loc())


_INSTEAD: Mapping[str, str] = {
    "compile": "lmc.compile(fn)", "batch": "fn.run_batch(items), or lmc.compile(fn).batch(items)", "acall": "await fn.arun(…)",
    "stream": "fn.run(…, stream=True)",
    **{name: f"lmc.compile(fn).{name}(…)" for name in ("abatch", "as_completed", "lower", "dump_ir", "explain", "save")},
}  # fmt: skip
"""Names that a `Program` has and a `Function` lacks, or has under another name."""


Function.run.__signature__ = signature("*args", RUN_OPTIONS)  # pyright: ignore[reportFunctionMemberAccess]
Function.options.__signature__ = signature("", RUN_OPTIONS)  # pyright: ignore[reportFunctionMemberAccess]
Function.run_batch.__signature__ = signature("batch", {*BATCH_OPTIONS, "generator_style"})  # pyright: ignore[reportFunctionMemberAccess]


@contextlib.contextmanager
def _running(function: Function, state: State, bound: inspect.BoundArguments) -> Generator[None]:
    """Begin the run of a program; its state is the one that sub-programs inherit from."""
    own = None
    if (begin := run_of(state).begin) is not None:
        begin(state, bound)
        own = run_of(state).ledger
    if (limits := run_of(state).limits) is not None:
        limits.begin()
    token = ACTIVE.set(state)
    try:
        with _NOBODY if (watching := observer()) is None else watching.run(function, state):
            yield
    finally:
        ACTIVE.reset(token)
        if own is not None:
            own.close()
        if (whole := run_of(state).whole) is not None and ACTIVE.get() is None:
            whole.end()


@contextlib.contextmanager
def _counted_by(state: State) -> Generator[None]:
    """Count, in the block, a program that is no item of a batch: with a deadline, its waits count."""
    whole = run_of(state).whole
    if whole is None or whole.desk is None or ACTIVE.get() is not None:
        yield
        return
    with whole.desk.waited_for(), running(whole.desk):
        yield


_NOBODY = contextlib.nullcontext()


def _cancel(state: State) -> None:
    if isinstance(state.emitter, LiveEmitter):
        state.emitter.cancel()


@users_frames
def raising(states: Iterator[State], items: Sequence[inspect.BoundArguments]) -> Iterator[State]:
    """Yield the states; raise the first failure in its place, after every item has run."""
    for index, state in enumerate(states):
        if failure_of(state) is not None:
            for _ in states:
                pass  # the others run to their end: one failing item never stops the rest
            all_succeeded([state], items[index:], index)
        yield state


def all_succeeded(states: list[State[R]], items: Sequence[inspect.BoundArguments], first: int = 0) -> list[State[R]]:
    """Return the states, of items from `first` on; raise the first failure. No generator, which could not raise StopIteration."""
    for index, state in enumerate(states):
        if (failure := failure_of(state)) is not None:
            note_item(failure, first + index, items[index])
            raise failure
    return states


class Method(Protocol[S, P, R]):  # pyright: ignore[reportInvalidTypeVarUse]  # it is, but for `self` of the first overload
    """A program that is a method: of an object it is a `Function` without `self`, of a class method's class and its objects without `cls`."""

    @overload
    def __get__(self: Method[type[Any], P, R], obj: Any, owner: Any, /) -> Function[P, R]: ...
    @overload
    def __get__(self, obj: None, owner: Any, /) -> Any: ...
    @overload
    def __get__(self, obj: S, owner: Any, /) -> Function[P, R]: ...
    def __get__(self, obj: Any, owner: Any, /) -> Any: ...


class Decorator(Protocol):
    """Type of `lmc.function(num_api_spec_tokens=…)`."""

    @overload
    def __call__(self, func: Callable[Concatenate[State[Any], P], Coroutine[Any, Any, R]], /) -> Function[P, R]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[State[Any], P], R], /) -> Function[P, R]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[S, State[Any], P], Coroutine[Any, Any, R]], /) -> Method[S, P, R]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[S, State[Any], P], R], /) -> Method[S, P, R]: ...
    def __call__(self, func: Any, /) -> Any: ...


@overload
def function(func: Callable[Concatenate[State[Any], P], Coroutine[Any, Any, R]], num_api_spec_tokens: int | None = None) -> Function[P, R]: ...
@overload
def function(func: Callable[Concatenate[State[Any], P], R], num_api_spec_tokens: int | None = None) -> Function[P, R]: ...
@overload
def function(func: Callable[Concatenate[S, State[Any], P], Coroutine[Any, Any, R]], num_api_spec_tokens: int | None = None) -> Method[S, P, R]: ...
@overload
def function(func: Callable[Concatenate[S, State[Any], P], R], num_api_spec_tokens: int | None = None) -> Method[S, P, R]: ...
@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Decorator: ...
@users_frames
def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Decorator, bare or with arguments: turn the Python function `func` into a language-model program. Its first parameter is the state.

    A method's is the one after `self` (`obj.method.run(…)`, `lmc.compile(obj.method)`), a class method's the one after
    `cls`. Write it above `@classmethod` or `@staticmethod`. With `num_api_spec_tokens` each request to an API for text may continue for so
    many tokens beyond its answer, as in SGLang. Raises ProgramError for a function without a parameter for the state, or that yields.
    """
    if func is not None:
        return Function(func, num_api_spec_tokens)
    return functools.partial(Function, num_api_spec_tokens=num_api_spec_tokens)
