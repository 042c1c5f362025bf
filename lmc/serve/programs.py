"""Compiled programs as endpoints: arguments from JSON by the signature, variables as server-sent events, batches.

Programs run on an event loop of their own, on a thread of its own: tracing and the program's Python never hold the
server's loop. A run whose client leaves is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import operator
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from lmc.backend.base import Backend
from lmc.backend.results import AnswerReader, Result
from lmc.backend.usage import Usage
from lmc.errors import HostTimeout, JournalError, LmcError, ParameterError, ProgramError, ToolError, message_of
from lmc.frontend.interpreter import Function
from lmc.images import SERVED_HOSTS
from lmc.loading import program_of
from lmc.result_files import record_of
from lmc.serve.answering import Json, event
from lmc.serve.errors import ApiError, as_api_error, bad, of_validation, parsed_on
from lmc.serve.fields import ListOf
from lmc.serve.gate import EndpointCall, EndpointReply, Events
from lmc.serve.metrics import AHEAD
from lmc.serve.runs import JournaledRuns
from lmc.serve.spinning import RUN, RunEnded, RunningProgram
from lmc.tracebacks import hide
from lmc.userfiles import parameters

log = logging.getLogger("lmc.serve")

_MOST_ITEMS = 10_000  # of one batch
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class QueryOptions(BaseModel):
    """Options of a run, from the query string: they are not arguments of the program."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    seed: int | None = Field(None, ge=0, lt=1 << 63)
    temperature: float | None = Field(None, ge=0)
    max_new_tokens: int | None = Field(None, ge=1, le=1 << 31)
    run: str | None = None


class ProgramLoop:
    """An event loop on a thread of its own, started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of `work` on that loop. Cancelling the caller cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started()))

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._forever, args=(self._loop,), name="lmc-programs", daemon=True).start()
            return self._loop

    @staticmethod
    def _forever(loop: asyncio.AbstractEventLoop) -> None:
        """Run until `close`. A program's SystemExit propagates here, and the loop has other programs to run."""
        while True:
            try:
                return loop.run_forever()
            except (SystemExit, KeyboardInterrupt, RunEnded) as error:
                log.warning("a program raised %s, which ends its run and not the server", type(error).__name__)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


class DescribedProgram:
    """A program under its public name, with the types of its request bodies. Raises ProgramError for one whose
    arguments cannot be given as JSON."""

    def __init__(self, function: Function, pool: Executor, journals: Path | None = None) -> None:
        self.name, self.function = function.name, function
        self.runs = None if journals is None else JournaledRuns(journals / self.name, pool)
        """Its runs with an id, if the server keeps them."""
        self.arguments = arguments_model(function)
        several: Any = list.__class_getitem__(self.arguments)
        self.items: Any = create_model(f"{self.name}_items", __config__=_STRICT, items=(several, Field(min_length=1, max_length=_MOST_ITEMS)))


class Published(DescribedProgram):
    """One program with its three endpoints: a run, a run as a stream, a batch. `end` is called with abandoned runs;
    `hosts`: those that pictures may be fetched from."""

    def __init__(
        self,
        function: Function,
        backend: Backend,
        loop: ProgramLoop,
        pool: Executor,
        end: Callable[[RunningProgram], None],
        journals: Path | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        super().__init__(function, pool, journals)
        self._loop, self._pool, self._end, self._hosts = loop, pool, end, hosts
        self._program = program_of(function, backend)
        self._before = self._asked_ahead()

    def close(self) -> None:
        self._program.close()

    @property
    def ahead(self) -> Usage:
        """Return the usage ahead of its runs since it was published."""
        now = self._asked_ahead()
        return Usage(**{name: getattr(now, name) - getattr(self._before, name) for name in AHEAD})

    def _asked_ahead(self) -> Usage:
        profile = self._program.profile
        return Usage(ahead_asked=profile.asked, ahead_used=profile.used, ahead_wasted=profile.wasted, ahead_wasted_tokens=profile.wasted_tokens)

    # -- endpoints

    async def run(self, call: EndpointCall) -> EndpointReply:
        options, item = self._options(call), _values(await parsed_on(self._pool, self.arguments, call.body))
        run = options.pop("run", None)
        if run is not None and self.runs is None:
            raise bad("this server keeps no runs: start it with --journals FOLDER", "run")
        return await self._one(call, item, options, run)

    async def resume(self, call: EndpointCall) -> EndpointReply:
        """Resume a run with a person's answer."""
        assert self.runs is not None
        run, item = await self.runs.answered(call)
        return await self._one(call, item, {}, run)

    async def _one(self, call: EndpointCall, item: Mapping[str, Any], options: Json, run: str | None) -> EndpointReply:
        journal = {} if run is None or self.runs is None else {"journal": self.runs.begun(run)}
        with self._ended_with_the_request(kept=bool(journal)):
            (record,) = await self._loop.run(self._records([item], {**options, **call.share, **journal}))
        if "error" in record:
            if run is not None and self.runs is not None and (waits := self.runs.waits(run, record["cause"])) is not None:
                return waits
            raise record["error"]
        return EndpointReply(record if run is None else {"run": run, **record})

    async def batch(self, call: EndpointCall) -> EndpointReply:
        options = self._whole(call)
        items = [_values(item) for item in (await parsed_on(self._pool, self.items, call.body)).items]
        with self._ended_with_the_request():
            records = await self._loop.run(self._records(items, {**options, **call.share}))
        return EndpointReply({"results": [_with_error_told(record) for record in records]})

    async def stream(self, call: EndpointCall) -> Events:
        options, item = self._whole(call), _values(await parsed_on(self._pool, self.arguments, call.body))
        with self._ended_with_the_request() as run:
            begin = partial(copy_context().run, partial(self._program.call, item, stream=True, **options, **call.share))
            state = await asyncio.get_running_loop().run_in_executor(self._pool, begin)
        return Events(self._events([state]), partial(self._end, run))

    # -- runs

    @contextmanager
    def _ended_with_the_request(self, *, kept: bool = False) -> Iterator[RunningProgram]:
        """End the run if the request is cancelled."""
        run = RunningProgram(self.name)
        run.kept = kept
        RUN.set(run)  # set in the request's own task
        SERVED_HOSTS.set(self._hosts)
        try:
            yield run
        except asyncio.CancelledError:
            self._end(run)
            raise

    async def _records(self, items: Sequence[Mapping[str, Any]], options: Json) -> list[Json]:
        """Return one record per item, on the programs' loop; a failed one holds its exception as `error`."""
        try:
            states = await self._program.abatch(items, errors="return", **options)
        except (SystemExit, KeyboardInterrupt, RunEnded) as error:  # would end the awaiting task
            raise self._told(error) from None
        except JournalError as error:  # of other arguments, or in use
            return [{"index": i, "error": self._told(error), "cause": error} for i in range(len(items))]
        return [self._record(i, state) for i, state in enumerate(states)]

    def _record(self, index: int, state: Any) -> Json:
        error = state.error()
        if error is not None:
            return {"index": index, "error": self._told(error), "cause": error}
        record = record_of(index, state, {})
        record["return_value"] = record.pop("return")
        try:
            record = to_jsonable_python(record)
            json.dumps(record, ensure_ascii=False, allow_nan=False).encode()  # NaN, half a character, recursive data
            return record
        except (PydanticSerializationError, ValueError, RecursionError) as unknown:
            return {"index": index, "error": ApiError(500, f"{self.name} returned what JSON cannot write: {unknown}")}

    def _told(self, error: BaseException) -> ApiError:
        """Return the error of a run for a client: a program's own exceptions by class and message, all with their
        line."""
        at = self._place(error)
        own = isinstance(error, ProgramError | ToolError | HostTimeout) and not isinstance(error, ParameterError)  # a parameter may be the caller's: a picture
        if isinstance(error, LmcError) and not own:
            told = as_api_error(error)
            return ApiError(told.status, at + told.message, code=told.code, headers=told.headers)  # a parameter is the program's own
        hide(error)
        log.warning("program %s raised %s", self.name, type(error).__name__, exc_info=error)
        message = error.message if isinstance(error, LmcError) else message_of(error)
        return ApiError(500, f"{at}{type(error).__name__}: {message}", kind="program_error")

    def _place(self, error: BaseException) -> str:
        """Return `judge.py:17: `, of the program's file; nothing if the error came from elsewhere. Folders are not
        disclosed."""
        file = "" if self.function.loc is None else self.function.loc.file  # a partial has none
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        if isinstance(error, LmcError) and error.loc is not None:
            file, lines = error.loc.file, [error.loc.line]
        return f"{Path(file).name}:{lines[-1]}: " if lines else ""

    # -- streams

    async def _events(self, held: list[Any]) -> AsyncGenerator[bytes, None]:
        """Yield `delta` and `value` of each variable as it arrives, then `done`. Closing it drops the state, which ends
        the run."""
        state = held.pop()
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify(*_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        progress, seen = state.progress, list[tuple[str, AnswerReader]]()
        progress.watch(notify)
        while True:
            changed.clear()
            over = progress.done  # read first: its results come before the end
            for chunk in _news(state, seen, notify):
                yield chunk
            if over:
                break
            await changed.wait()
        record = await loop.run_in_executor(self._pool, self._record, 0, state)  # reading it waits for its answers
        for chunk in _news(state, seen, notify):
            yield chunk
        if "error" in record:
            raise record["error"]
        yield event(record, "done")

    def _whole(self, call: EndpointCall) -> Json:
        """Return the options of a run without an id."""
        options = self._options(call)
        if "run" in options:
            raise bad("a batch, or a stream, is not kept under an id; leave run= out", "run")
        return options

    def _options(self, call: EndpointCall) -> Json:
        try:
            options = QueryOptions.model_validate(dict(call.query))
        except ValidationError as error:
            raise of_validation(error, tuple(QueryOptions.model_fields), call.query) from None
        return options.model_dump(exclude_none=True)


def _news(state: Any, seen: list[tuple[str, AnswerReader]], notify: Any) -> Iterator[bytes]:
    """Yield unsent parts of the root's variables. A reused name starts over."""
    for name, held in tuple(state.variables.items()):
        if name is not None and isinstance(held, Result) and all(held is not reader.result for _, reader in seen):
            seen.append((name, AnswerReader(held)))
            held.on_change(notify)
    for name, reader in seen:
        text, _, output = ("", None, None) if reader.over else reader.news()  # an error ends the run
        if text:
            yield event({"variable": name, "delta": text}, "delta")
        if output is not None:
            yield event({"variable": name, "value": output.value}, "value")


def _with_error_told(record: Json) -> Json:
    return {"index": record["index"], **record["error"].body} if "error" in record else record


# -- arguments ---------------------------------------------------------------------------------------------------------


def arguments_model(function: Function) -> type[BaseModel]:
    """Return a model of the program's arguments by their annotations and defaults. Raises ProgramError for arguments
    that JSON cannot give."""
    fields: dict[str, Any] = {}
    open_ = False
    for i, (name, parameter) in enumerate(parameters(function).items()):
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise ProgramError(f"{function.described}: {name} is positional only, and JSON gives arguments by name")
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            fields[f"argument_{i}"] = _field(function, name, parameter)
    config = ConfigDict(**{**_STRICT, "extra": "allow" if open_ else "forbid"})
    try:
        return create_model(f"{function.name}_arguments", __config__=config, **fields)
    except PydanticSchemaGenerationError as error:
        raise ProgramError(f"{function.described}: JSON cannot give its arguments: {str(error).splitlines()[0]}") from None


def _field(function: Function, name: str, parameter: inspect.Parameter) -> tuple[Any, Any]:
    annotation = Any if parameter.annotation is parameter.empty else _failing_fast(parameter.annotation)
    bound = name in function.bound
    if parameter.default is parameter.empty and not bound:
        return annotation, Field(alias=name)
    default = function.bound.get(name, parameter.default)

    def describe(schema: dict[str, Any]) -> None:  # as a person would write it, or not at all
        schema.pop("default", None)
        try:
            schema["default"] = to_jsonable_python(default)
        except PydanticSerializationError:
            pass  # a default that is not JSON is the program's own affair

    return annotation, Field(default=None, alias=name, json_schema_extra=describe)


def _failing_fast(kind: Any) -> Any:
    """Return a type of which lists report their first wrong item only: a body has room for millions."""
    args = get_args(kind)
    if get_origin(kind) is list and len(args) == 1:
        return ListOf[_failing_fast(args[0])]
    if get_origin(kind) in (Union, UnionType):
        return functools.reduce(operator.or_, map(_failing_fast, args))
    return kind


def _values(given: BaseModel) -> Mapping[str, Any]:
    """Return the given arguments, by the program's names for them."""
    named = {field.alias or name: getattr(given, name) for name, field in type(given).model_fields.items() if name in given.model_fields_set}
    return {**named, **(given.model_extra or {})}
