"""The state of a running program: what `s += …`, `s["x"]` and `s.fork()` mean.

All bookkeeping is here and none of it knows a model: a state writes to an `Emitter`, which is the backend (the
interpreter), the graph being traced, or nothing further (a state that a compiled run returns).
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import index
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Self, TypeVar, cast, overload

from lmc.arguments import shown
from lmc.backend.usage import Usage
from lmc.errors import ArgumentError, AttributeMissing, LmcError, ParameterError, message_of
from lmc.frontend import streaming
from lmc.frontend.active import home, next_fork
from lmc.frontend.appending import AppendedState, append, without
from lmc.frontend.each import each
from lmc.frontend.emitter import Ctx, Emitter, GatheredAnswers, Scoped, Stored, Taken, flat
from lmc.frontend.expressions import (
    OMITTED,
    Expr,
    RoleBegin,
    RoleEnd,
    VarScopeBegin,
    VarScopeEnd,
    as_expr,
    caller_loc,
)
from lmc.frontend.host import RECORDING
from lmc.frontend.typed import R
from lmc.frontend.values import Symbolic
from lmc.prompt import Prompt
from lmc.tracebacks import AnswersByName, hide, users_frames

V = TypeVar("V")

_MEANT: Mapping[str, str] = {
    **{name: f"append the expression: s += lmc.{name}(…)" for name in ("gen", "gen_int", "gen_string", "select", "image", "video", "document", "special")},
    **dict.fromkeys(("append", "add", "write", "extend"), "text and expressions are appended with s += …"),
}
"""What is written in place of a method that a state does not have."""
_INTERNAL = frozenset("asked calls ctx emitter failure home ordinal previous progress scopes tasks types".split())
_MOST_COPIES = 1_000_000  # of a fork: a mistyped number would take all memory
_NO_TASKS: Mapping[str, int] = {}
_NO_TYPES: Mapping[str | None, Any] = {}
_NO_SCOPES: Mapping[str, tuple[Scoped, ...]] = {}


_READ = "read an answer with s['name'], what its program returned with s.ret_value"


class State(AnswersByName, Generic[R]):
    """A prompt that grows, the variables in it, and the open role. Appending never waits; reading does.

    Programs are given theirs; they append to it (`s += …`), fork it, and read it: `s["name"]`, `s.text()`, `s.ret_value`.
    """

    __slots__ = (
        "__weakref__", "_value", "asked", "calls", "ctx", "emitter", "failure", "forks", "home", "name", "ordinal",
        "previous", "progress", "role", "scopes", "stream", "tasks", "types", "variables",
    )  # fmt: skip

    def __init__(
        self,
        emitter: Emitter,
        ctx: Ctx = None,
        *,
        variables: Mapping[str | None, Any] | None = None,
        stream: str = "",
        ordinal: int = 0,
        forks: int = 0,
        calls: int = 0,
        role: str | None = None,
        previous: str | None = None,
        asked: list[Any] | None = None,
        name: str = "",
        ret_value: Any = None,
    ) -> None:
        """`ctx` None is the empty prompt; `asked` are the answers that count as this state's usage, in nested lists."""
        self.emitter = emitter
        self.ctx = emitter.root() if ctx is None else ctx
        self.variables: dict[str | None, Any] = dict(variables) if variables else {}
        self.stream, self.ordinal, self.forks, self.calls = stream, ordinal, forks, calls
        self.home = home()  # the task that made it
        self.tasks: Mapping[str, int] = _NO_TASKS  # that its program has created, by name; replaced, never changed
        self.role: str | None = role
        self.previous: str | None = previous
        self.asked: list[Any] = [] if asked is None else asked
        self.types: Mapping[str | None, Any] = _NO_TYPES  # requested types of typed answers, by name; replaced, never changed
        self.scopes: Mapping[str, tuple[Scoped, ...]] = _NO_SCOPES  # open scopes of each name, innermost last; likewise
        self.progress: streaming.Progress | None = None  # of a run with stream=True
        self.failure: BaseException | None = None  # of a batch item whose program raised
        self.name = name
        self._value = ret_value

    @property
    def prefix(self) -> str:
        """Return the beginning of the streams of its forks and sub-programs."""
        return f"{self.stream}/"

    # -- appending

    def __iadd__(self, other: Expr | str | Symbolic) -> Self:
        """Append text or an expression. If it raises, prompt and open role are what they were before."""
        if other.__class__ is str:
            if other:
                self.ctx = self.emitter.append(self.ctx, other)  # pyright: ignore[reportArgumentType]  # it is a str
        else:
            before = self.ctx, self.role, self.previous
            try:
                append(self, as_expr(other, "append"))
            except BaseException:
                self.ctx, self.role, self.previous = before
                raise
        if self.progress is not None:
            self.progress.notify()
        return self

    @users_frames
    def __add__(self, other: object) -> Never:
        raise ArgumentError(f"a state is no text: append to it in place, with s += …; {_READ}", loc=caller_loc())

    __radd__ = __add__
    __hash__ = object.__hash__

    @users_frames
    def __eq__(self, other: object) -> bool:
        """Return whether both are one state; comparing it with text is a mistake."""
        if isinstance(other, str):
            raise ArgumentError(f"a state equals no text: {_READ}; if it may be either, ask isinstance(x, lmc.State) first", loc=caller_loc())
        return self is other or NotImplemented

    if not TYPE_CHECKING:  # a type checker knows which attributes exist

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name in State.__slots__:
                raise AttributeError(f"'State' object has no attribute {name!r}")
            if isinstance(found := getattr(State, name, None), property):  # which raised an AttributeError: the program's own
                return found.__get__(self)
            held = name in self.variables
            near = [] if held else difflib.get_close_matches(name, [n for n in dir(State) if not n.startswith("_") and n not in _INTERNAL], 1, 0.7)
            variable = _MEANT.get(name) or (
                "the program's result is s.ret_value, and an answer s['name']" if hasattr(str, name) else f"a variable is read as s[{name!r}]"
            )
            mean = f"; did you mean {near[0]!r}?" if near else f"; {variable}"
            raise AttributeMissing(f"'State' object has no attribute {name!r}{mean}", loc=caller_loc())

    # -- roles and scopes

    def system(self, expr: Expr | str | Symbolic = OMITTED) -> Any:
        """Append a system message; without `expr`, a context manager around its content."""
        return self._message("system", expr)

    def user(self, expr: Expr | str | Symbolic = OMITTED) -> Any:
        """Append a user message; without `expr`, a context manager around its content."""
        return self._message("user", expr)

    def assistant(self, expr: Expr | str | Symbolic = OMITTED) -> Any:
        """Append an assistant message; without `expr`, a context manager around its content."""
        return self._message("assistant", expr)

    def _message(self, role: str, expr: Any) -> Any:
        loc = caller_loc()
        if expr is OMITTED:
            return self._open(role, loc)
        message = RoleBegin(role, loc) + as_expr(expr, "append") + RoleEnd(role, loc)
        self.__iadd__(message)
        return AppendedState(message, self)

    @contextmanager
    def _open(self, role: str, loc: Any) -> Generator[State]:
        self.__iadd__(RoleBegin(role, loc))
        try:
            yield self
        except BaseException:
            if self.role == role:  # not when the body closed it by hand
                self.__iadd__(RoleEnd(role, loc))
            raise
        self.__iadd__(RoleEnd(role, loc))

    @contextmanager
    def var_scope(self, name: str) -> Generator[State]:
        """Make everything appended inside, as text, the variable `name`."""
        self.__iadd__(VarScopeBegin(name))
        try:
            yield self
        finally:
            self.__iadd__(VarScopeEnd(name))

    # -- forks

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> StateGroup:
        """Return `size` copies that continue from here independently and in parallel. `position_ids_offset` is accepted and not used.

        Raises ArgumentError for a size that is no whole number, ParameterError for one below 0 or above a million.
        """
        count: object = size
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise ArgumentError(f"fork() takes a number of copies, not {size!r}", loc=caller_loc())
        size = index(size)
        if size < 0:
            raise ParameterError(f"fork({size}): cannot make fewer than 0 copies", loc=caller_loc())
        if size > _MOST_COPIES:
            raise ParameterError(f"fork({shown(size)}): cannot make more than {_MOST_COPIES:,} copies", loc=caller_loc())
        stream = next_fork(self)
        ctx = self.ctx.fork(size) if size > 1 and isinstance(self.ctx, Prompt) else self.ctx
        return StateGroup([self._child(f"{stream}.{i}", ctx) for i in range(size)], self)

    def _child(self, stream: str, ctx: Any) -> State:
        child = State(
            self.emitter,
            ctx,
            variables=self.variables,
            stream=stream,
            role=self.role,
            previous=self.previous,
            name=self.name,
        )
        child.types = self.types
        if self.scopes:
            child.scopes = {name: tuple([Scoped(scope.since) for scope in open_]) for name, open_ in self.scopes.items()}
        self.asked.append(child.asked)
        return child

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Generator[State]:
        """Enter one fork as a context manager; its variables are joined back (as lists of one) when the block ends.
        `position_ids_offset` is accepted and not used."""
        group = self.fork(1, position_ids_offset)
        try:
            yield group[0]
        finally:
            group.join()

    # -- variables

    def _item(self, name: str | None) -> Any:
        """Return the latest value of the variable `name`; wait for it and raise its error. Raises UnknownVariable, a KeyError, if there is none."""
        try:
            held = self.variables[name] if name in self.variables else self._await(name)
            if held.__class__ is Stored:
                return held.value
            value = self._read(held)
        except (Exception, KeyboardInterrupt) as error:
            hide(error)
            raise
        if value.__class__ is list:  # one list object from now on, so that the program's changes to it persist
            self.variables[name] = Stored(value, held)
        return value

    if not TYPE_CHECKING:  # type checkers have it from `AnswersByName`
        __getitem__ = _item

    def _read(self, held: Any) -> Any:
        if held.__class__ is Stored:
            return held.value
        if held.__class__ is GatheredAnswers:
            return [self._read(item) for item in held.items]
        if held.__class__ is Scoped:
            return self.emitter.text(held.until, held.since)
        if held.__class__ is Taken:
            return self.emitter.read_part(held.answer, held.take)
        return self.emitter.read(held)

    def _await(self, name: str | None) -> Any:
        """Wait for a variable that is not known yet: only a watcher of a streaming run can wait for it."""
        if isinstance(name, int):  # s[0] is how Python iterates what has no __iter__, and unpacks it: `a, b = program(…)`
            raise ArgumentError(f"a state has no items: {_READ}, its text as it comes with s.text_iter()", loc=caller_loc())
        if self.progress is not None and self.progress.elsewhere():
            self.progress.wait_until(lambda: name in self.variables)
            if name in self.variables:
                return self.variables[name]
            if self.progress.error is not None:
                raise self.progress.error
        if self.failure is not None:
            raise self.failure
        raise self._unknown(name)

    def _unknown(self, name: str | None) -> KeyError:
        names = [n for n in self.variables if n is not None]
        known = f"there are: {', '.join(map(repr, names))}" if names else "there is none that has a name" if self.variables else "there is none yet"
        near = difflib.get_close_matches(name, names, 1) if isinstance(name, str) else []
        of_forks = "; those of a fork are its own until forks.join()" if self.forks else f"; s += lmc.gen({name!r}, …) makes one"
        mean = f"; did you mean {near[0]!r}?" if near else of_forks if self.forks or not names else ""
        place = caller_loc()
        return UnknownVariable(f"{f'{place}: ' if place else ''}no variable {name!r}; {known}{mean}")

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Expr):
            raise ArgumentError(
                f"s[{name!r}] = … stores a value, and asks nothing; append the expression, which names it: s += lmc.gen({name!r}, …)", loc=caller_loc()
            )
        held: Any = self.variables.get(name)
        self.variables[name] = Stored(value, held.source if held.__class__ is Stored else held)
        self.types = without(self.types, name)

    def __delitem__(self, name: str | None) -> None:
        raise ArgumentError(f"a state's variables cannot be deleted; to clear one write s[{name!r}] = None", loc=caller_loc())

    def __contains__(self, name: str | None) -> bool:
        """Return whether a gen, select, scope or assignment of this name precedes this point of the program."""
        return name in self.variables

    def get_var(self, name: str | None) -> Any:
        """Return `self[name]`."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """Set `self[name]` to `value`."""
        self[name] = value

    @users_frames
    def get_meta_info(self, name: str | None) -> Any:
        """Return the meta info of the answer stored under `name`, a list of them when n > 1; waits for it."""
        held = self.variables[name] if name in self.variables else self._await(name)
        return self._meta(name, held)

    def _meta(self, name: str | None, held: Any) -> Any:
        if held.__class__ is GatheredAnswers:
            return [self._meta(name, item) for item in held.items]
        if held.__class__ is Stored:
            return self._meta(name, held.source)
        if held is None or held.__class__ is Scoped:
            place = caller_loc()
            raise UnknownVariable(f"{f'{place}: ' if place else ''}{name!r} was not generated, so it has no meta info")
        if held.__class__ is Taken:
            held = held.answer
        return self.emitter.meta(held)

    @overload
    def parsed(self, name: str | None) -> Any: ...
    @overload
    def parsed(self, name: str | None, dtype: type[V]) -> V: ...
    @overload
    def parsed(self, name: str | None, dtype: Any) -> Any: ...  # a union, a Literal: no class, and no type has a name for what they are
    @users_frames
    def parsed(self, name: str | None, dtype: Any = None) -> Any:
        """Return the object that the text of the typed answer `name` parses to: a validated instance of its `dtype`; for
        a `json_schema`, plain JSON.

        dtype  the type, for type checkers and for answers requested without one

        Waits for the answer; of `n > 1` and of joined forks a list. Raises IncompleteAnswer, with the text so far, if
        the limit has cut the answer, AnswerError if it does not parse as such an object, and the errors of a model's
        own validators.
        """
        held = self.variables[name] if name in self.variables else self._await(name)
        asked = self.types.get(name) if dtype is None else dtype
        if asked is None:
            raise ArgumentError(
                f"{name!r} was asked for without a type; give it one with gen({name!r}, dtype=…), or write s.parsed({name!r}, int)", loc=caller_loc()
            )
        value, metas = self[name], None if held.__class__ is Scoped or (held.__class__ is Stored and held.source is None) else self._meta(name, held)
        return _parsed(asked, value, metas)

    # -- reading

    @users_frames
    def text(self) -> str:
        """Return the whole prompt as text, with its answers; waits for them."""
        self._finish()
        return self.emitter.text(self.ctx)

    @users_frames
    def messages(self) -> list[dict[str, Any]]:
        """Return the closed messages as `{"role": …, "content": …}`; waits for the answers in them."""
        self._finish()
        return self.emitter.messages(self.ctx)

    @users_frames
    def sync(self) -> None:
        """Wait for every answer of this state; errors are raised where the answers are read."""
        self._finish()
        self.emitter.wait(self.ctx)

    @users_frames
    def error(self) -> BaseException | None:
        """Return the error that ended this state's program, or the first of its answers', or None; waits."""
        self._finish()
        found = self.failure
        if found is None and self.progress is not None:
            found = self.progress.error
        if found is None:
            found = self.emitter.error(self.ctx)
        if found is not None:
            hide(found)
        return found

    @property
    @users_frames
    def usage(self) -> Usage:
        """Return the usage of this state, its forks and the sub-programs it called; waits for them."""
        self._finish()
        return self.emitter.usage(flat(self.asked), self.stream)

    @property
    @users_frames
    def ret_value(self) -> R:
        """Return the program's return value, None for an item of a batch that failed; for a streaming run, wait for it and raise the program's error."""
        self._finish()
        if self.progress is not None and self.progress.error is not None:
            raise self.progress.error
        return self._value

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._value = value

    def _finish(self) -> None:
        """Wait for the end of a streaming run, unless called by the program itself."""
        if self.progress is not None and self.progress.elsewhere():
            self.progress.wait_until(lambda: False)

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield the text, or the variable `var_name`, in pieces as they arrive, in program order."""
        return streaming.text_iter(self, var_name)

    @overload
    def text_async_iter(self, var_name: str | None = None, return_meta_data: Literal[False] = False) -> AsyncIterator[str]: ...
    @overload
    def text_async_iter(self, var_name: str | None = None, *, return_meta_data: Literal[True]) -> AsyncIterator[tuple[str, dict[str, Any]]]: ...
    @overload
    def text_async_iter(self, var_name: str | None, return_meta_data: Literal[True]) -> AsyncIterator[tuple[str, dict[str, Any]]]: ...
    def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """As `text_iter`, for async code: the text, or the variable `var_name`; with `return_meta_data`, pairs of text and the meta info known so far."""
        return streaming.text_async_iter(self, var_name, return_meta_data)

    @recursive_repr()
    def __repr__(self) -> str:
        parts = [self.name or "State"]
        if self.stream:
            parts.append(f"fork {self.stream}")
        if self.role:
            parts.append(f"open {self.role}")
        names = ", ".join(repr(n) for n in self.variables if n is not None)
        failed = "" if self.failure is None else f"; failed with {type(self.failure).__name__}({message_of(self.failure)!r:.100})"
        return f"<{' '.join(parts)}: {streaming.so_far(self.ctx)!r}; variables: {names or 'none'}{failed}>"

    def explain(self, format: str = "text") -> str:
        """Return the cost of the run's requests so far.

        format: "text", or "html": a page for a browser with the conversation, the source with bars, and a timeline.
        Raises ParameterError for another format.
        """
        from lmc import report

        made = report.text_of if format == "text" else report.page_of if format == "html" else None
        if made is None:
            raise ParameterError(f"format={format!r}: must be 'text' or 'html'", loc=caller_loc())
        return made(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raises ArgumentError: a state is neither pickled nor copied."""
        raise ArgumentError(f"a state cannot be pickled or copied ({self!r}): take what you need, such as s['name'], s.text() or s.ret_value")

    def _repr_html_(self) -> str:
        """Return the conversation so far for a notebook, without waiting for it."""
        from lmc.frontend.notebook import state_html

        return state_html(self)

    @users_frames
    def _ipython_display_(self) -> None:
        """Display in a notebook: for a stream, the text as it grows."""
        from lmc.frontend.notebook import display

        display(self)


def _parsed(asked: Any, value: Any, meta: Any) -> Any:
    """Parse one text, or each in nested lists; `meta` has the same form, or is None if the program made the text."""
    from lmc import answers  # needed by typed answers only

    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_parsed(asked, *pair) for pair in zip(items, [None] * len(items) if meta is None else meta, strict=True)]
    try:
        if meta is not None:
            answers.check_whole(asked, value, meta, caller_loc())
        return answers.parse(asked, value)
    except LmcError as error:
        error.loc = error.loc or caller_loc()
        raise


class UnknownVariable(KeyError):
    """A name that nothing before this point of the program has given a value."""

    def __str__(self) -> str:  # KeyError shows the repr of its message
        return str(self.args[0])


# -- forks -----------------------------------------------------------------------------------------------------------


class StateGroup:
    """The states of one fork."""

    __slots__ = ("__weakref__", "messages", "parent", "since", "states")

    def __init__(self, states: list[State], parent: State) -> None:
        self.states, self.parent = states, parent
        self.since, self.messages = parent.ctx, (parent.role, parent.previous)

    @overload
    def __getitem__(self, i: int) -> State: ...
    @overload
    def __getitem__(self, i: slice) -> list[State]: ...
    def __getitem__(self, i: int | slice) -> State | list[State]:
        if isinstance(i, str):
            raise ArgumentError(
                f"forks are numbered, and each has its own variables; write [f[{i!r}] for f in forks], or s[{i!r}] after forks.join()", loc=caller_loc()
            )
        return self.states[i]

    def __setitem__(self, i: int, state: State) -> None:
        """Accept the assignment that makes `forks[i] += expr` work."""
        self.states[i] = state

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __iadd__(self, other: Expr | str | Symbolic | Sequence[Expr | str | Symbolic] | Callable[[int], Expr | str | Symbolic]) -> StateGroup:
        """Append to every state: one expression to all, `other(i)` to each, or one item of a list to each."""
        for i, (state, item) in enumerate(zip(self.states, self._items(other), strict=True)):
            state += item
            self.states[i] = state
        return self

    def _items(self, other: object) -> Iterable[Any]:
        if isinstance(other, (list, tuple)):
            items = cast(list[Any], other)
            if len(items) != len(self):
                raise ParameterError(f"{len(items)} items for {len(self)} forks", loc=caller_loc())
            return items
        if callable(other) and not isinstance(other, (Expr, Symbolic)):
            recorder = RECORDING.get()
            return map(cast(Callable[[int], Any], other if recorder is None else recorder.callback(other)), range(len(self)))
        return repeat(other, len(self))

    # A body that returns an answer, which is Any, would match the overload of coroutines: only Any and Never are a Never, so it matches the first.
    @overload
    def each(self, body: Callable[..., Never], *items: Iterable[Any]) -> list[Any]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def each(self, body: Callable[..., Coroutine[Any, Any, V]], *items: Iterable[Any]) -> Coroutine[Any, Any, list[V]]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def each(self, body: Callable[..., V], *items: Iterable[Any]) -> list[V]: ...
    def each(self, body: Callable[..., Any], *items: Iterable[Any]) -> Any:
        """Run `body(fork)` for each fork, concurrently; with `items`, `body(fork, item, …)`, as `map` pairs them.
        Return a list of the results.

        A plain body runs on a thread, in a copy of the context; an `async def` body is a task: `await forks.each(body)`. When all have ended,
        the first exception in the order of the forks is raised.
        """
        return each(self.states, body, items)

    def join(self, mode: str = "gather_variable") -> None:
        """Merge the children into the parent.

        mode  "gather_variable": names that the parent lacks become lists, one item for each child that has the name, in order;
              "concate_and_append": the parent continues with the text that each child appended, in order

        Raises ParameterError for another mode.
        """
        if mode == "gather_variable":
            self._gather()
        elif mode == "concate_and_append":
            self._concatenate()
        else:
            raise ParameterError(f"join({mode!r}): must be 'gather_variable' or 'concate_and_append'", loc=caller_loc())

    def _gather(self) -> None:
        found: dict[str | None, list[Any]] = {}
        for child in self.states:
            for name, held in child.variables.items():
                if name not in self.parent.variables:
                    found.setdefault(name, []).append(held)
                    if name in child.types:
                        self.parent.types = {**self.parent.types, name: child.types[name]}
        for name, items in found.items():
            self.parent.variables[name] = GatheredAnswers(tuple(items))

    def _concatenate(self) -> None:
        parent = self.parent
        for child in self.states:
            parent.ctx = parent.emitter.splice(parent.ctx, child.ctx, self.since)
            if (child.role, child.previous) != self.messages:  # else the parent's own message, if any, stays open
                parent.role, parent.previous = child.role, child.previous
        if parent.progress is not None:
            parent.progress.notify()

    def __repr__(self) -> str:
        return f"<{len(self)} forks of {self.parent!r}>"


ProgramState = State
ProgramStateGroup = StateGroup
