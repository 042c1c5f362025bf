"""Static types of programs: parameters and result of the function, and the options that every call takes.

Python's types cannot add keywords to a function's own (PEP 612). So a call with only the program's arguments is checked in full; in a call with options too,
the options are checked statically and the program's arguments at run time. `fn.options(…)` takes the options apart, as Ray's remote functions do, and gives a
program whose calls are checked in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, overload

if TYPE_CHECKING:
    from typing_extensions import (  # bundled with type checkers; defaults of type variables are Python 3.13's
        ParamSpec,
        TypeVar,
    )

    from lmc.backend.base import Backend
    from lmc.limits import Budget

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any, covariant=True)
    T = TypeVar("T", default=Any, covariant=True)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R", covariant=True)
    T = TypeVar("T", covariant=True)

S = TypeVar("S", contravariant=True)

if TYPE_CHECKING:
    Texts = str | Sequence[str] | None

    class RunOptions(TypedDict, total=False):
        """The options of `fn.options`; see `Function.run`."""

        backend: Backend | str | None
        seed: int | None
        stream: bool
        budget: Budget | None
        timeout: float | None
        journal: str | os.PathLike[str] | None
        ahead: Literal["off", "certain", "likely"] | None
        priority: float
        account: str | None
        adapter: str
        deadline: Literal["24h"] | None
        use_thread: bool
        temperature: float
        max_new_tokens: int
        min_new_tokens: int
        n: int
        top_p: float
        top_k: int
        min_p: float
        frequency_penalty: float
        presence_penalty: float
        stop: Texts
        stop_token_ids: Sequence[int] | None
        stop_regex: Texts
        ignore_eos: bool
        logit_bias: Mapping[int, float] | None
        return_logprob: bool | None
        logprob_start_len: int | None
        top_logprobs_num: int | None
        return_text_in_logprobs: bool | None

    class BatchOptions(RunOptions, total=False):
        """The options of `fn.run_batch`."""

        num_threads: int | Literal["auto"]
        progress_bar: bool
        errors: Literal["raise", "return"]

    class Call(Generic[P, T]):
        """A call of a program: its own arguments, and options (`Function.run` lists them)."""

        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...
        @overload
        def __call__(self, *args: Any, backend: Backend | str | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, temperature: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, seed: int | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, max_new_tokens: int, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, stop: Texts, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, stream: bool, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, budget: Budget | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, timeout: float | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, journal: str | os.PathLike[str] | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, priority: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, account: str | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, deadline: Literal["24h"] | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, ahead: Literal["off", "certain", "likely"] | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, n: int, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, top_p: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, top_k: int, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, min_p: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, min_new_tokens: int, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, stop_token_ids: Sequence[int] | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, stop_regex: Texts, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, frequency_penalty: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, presence_penalty: float, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, ignore_eos: bool, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, logit_bias: Mapping[int, float] | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, adapter: str, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, return_logprob: bool | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, logprob_start_len: int | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, top_logprobs_num: int | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, return_text_in_logprobs: bool | None, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, use_thread: bool, **more: Any) -> T: ...
        @overload
        def __call__(self, *args: Any, speculate: Literal["branches"] | None, **more: Any) -> T: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

else:

    class Call(Generic[P, T]):
        """A call of a program."""

        __slots__ = ()


class GivesState(Protocol):
    """A method that takes a program's arguments and returns its state."""

    @overload
    def __get__(self, obj: None, owner: Any, /) -> Any: ...
    @overload
    def __get__(self, obj: Call[P, T], owner: Any, /) -> Call[P, T]: ...
    def __get__(self, obj: Any, owner: Any, /) -> Any: ...


class AwaitsState(Protocol):
    """As `GivesState`, of a coroutine function."""

    @overload
    def __get__(self, obj: None, owner: Any, /) -> Any: ...
    @overload
    def __get__(self, obj: Call[P, T], owner: Any, /) -> Call[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any, /) -> Any: ...


def gives_state(method: Callable[..., Any]) -> GivesState:
    """Decorate: `method` takes the program's parameters and options, and returns the state."""
    return method  # pyright: ignore[reportReturnType]


def awaits_state(method: Callable[..., Any]) -> AwaitsState:
    """Decorate: as `gives_state`, of a coroutine function."""
    return method  # pyright: ignore[reportReturnType]
