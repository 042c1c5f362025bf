"""Errors in the form of OpenAI's API: a status, a type, a message, the parameter at fault."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from lmc.errors import (
    BackendEnded,
    BackendError,
    BudgetExceeded,
    CancelledError,
    ConstraintError,
    Filtered,
    InDoubtEffect,
    Interrupted,
    JournalError,
    LmcError,
    ProgramError,
    PromptTooLongError,
    Refused,
    RunTimeout,
    UnmetConstraint,
    UnsupportedOpError,
)
from lmc.parameters import suggestion

log = logging.getLogger("lmc.serve")

_MOST_SAID = 4000  # characters of a message: it may quote the request
_MOST_WRONG = 1000  # values of one body of which each is looked at: to list millions takes minutes and gigabytes
_MOST_READ_AGAIN = 1 << 20  # bytes of a wrong body
_SMALL = 1 << 16  # bytes of a body that are parsed in a few milliseconds

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_LATER, _NEVER = {"Retry-After": "1"}, {"X-Should-Retry": "false"}
_AGAIN = {429: _LATER, 503: _LATER, 501: _NEVER, 502: _NEVER}
"""What clients are told about sending a request again: the official ones would after each 5xx, and pay once more for what an API behind this server said."""


class ApiError(Exception):
    """An error response. `headers` are sent with it; None: what its status says about sending the request again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message.encode("utf-8", "replace").decode()  # a program's exception may contain half a surrogate pair
        if len(message) > _MOST_SAID:
            message = f"{message[:_MOST_SAID]}… ({len(message):,} characters)"
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param and param[:_MOST_SAID], code
        self.kind = kind or _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = _AGAIN.get(status, {}) if headers is None else headers

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


_BY_ERROR: tuple[tuple[type[LmcError], int, str | None], ...] = (  # the first match wins
    (PromptTooLongError, 400, "context_length_exceeded"),
    (UnmetConstraint, 502, "unmet_constraint"),
    (ConstraintError, 400, None),
    (UnsupportedOpError, 400, "unsupported"),
    (ProgramError, 400, None),
    (RunTimeout, 504, None),
    (BudgetExceeded, 400, "budget_exceeded"),
    (CancelledError, 503, "cancelled"),
    (InDoubtEffect, 409, "in_doubt"),
    (Interrupted, 409, "interrupted"),
    (JournalError, 409, "journal"),
    (Refused, 502, "refusal"),
    (Filtered, 502, "content_filter"),
    (BackendEnded, 503, None),
    (BackendError, 500, None),
)


def status_of_journal(error: BaseException) -> int:
    """Return the status of a journal's error: 409 if the request is at fault, 507 or 500 if it cannot be read or
    written."""
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return 409
    return 507 if cause.errno in (errno.ENOSPC, errno.EDQUOT) else 500


def as_api_error(error: BaseException, request: str = "") -> ApiError:
    """Return the error that a client gets. An internal error is logged, and its text is not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError) and not isinstance(error, LmcError):
        return ApiError(504, "the request took longer than this server allows")
    for kind, status, code in _BY_ERROR:
        if isinstance(error, kind):
            if isinstance(error, JournalError):
                status = status_of_journal(error)
            param = error.param if status == 400 else None
            return ApiError(status, error.message, param=param, code=code, headers=_NEVER if getattr(error, "final", False) else None)
    log.error("the request %s failed", request, exc_info=error)
    return ApiError(500, f"internal error; the server's log has it{f' as {request}' if request else ''}")


@contextmanager
def naming(fields: Mapping[type[LmcError], str | None]) -> Iterator[None]:
    """Name the field of a request in errors that do not know theirs, by their class."""
    try:
        yield
    except LmcError as error:
        if error.param is None:
            error.param = next((field for kind, field in fields.items() if isinstance(error, kind)), None)
        raise


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Name the fields of errors as another API does. `names`: its field for each path that it calls otherwise."""
    try:
        yield
    except (ApiError, LmcError) as error:
        told = as_api_error(error)
        place = told.param or ""
        known = max((name for name in names if f"{place}.".startswith(f"{name}.")), key=len, default=None)
        if known is None:
            raise
        param = names[known] + place[len(known) :]
        message = param + told.message[len(place) :] if told.message.startswith(place) else told.message
        raise ApiError(told.status, message, param=param, code=told.code, kind=told.kind, headers=told.headers) from None


M = TypeVar("M", bound=BaseModel)


def parsed(kind: type[M], body: bytes, *, lenient: bool = False) -> M:
    """Parse a request's body as its type, or raise ApiError that names the fault. `lenient`: fields that are unknown,
    or not supported at all, are ignored."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if lenient and (unknown := [e["loc"] for e in _errors(error) if e["type"] in ("extra_forbidden", "unsupported_field")]):
            return parsed(kind, _without(body, unknown))
        raise of_validation(error, tuple(f.alias or name for name, f in kind.model_fields.items()), body) from None


async def parsed_on(pool: Executor, kind: type[M], body: bytes, *, lenient: bool = False) -> M:
    """As `parsed`, on the event loop: a large body is parsed on the pool."""
    if len(body) <= _SMALL:
        return parsed(kind, body, lenient=lenient)
    return await asyncio.get_running_loop().run_in_executor(pool, partial(parsed, kind, body, lenient=lenient))


def _without(body: bytes, places: list[tuple[int | str, ...]]) -> bytes:
    """Return a JSON object without the fields at these locations; unions add steps to a location that are not
    fields."""
    found: Any = json.loads(body)
    for place in places:
        parent: Any = found
        for step in place[:-1]:
            parent = _within(parent, step)
        if isinstance(parent, dict):
            cast("dict[Any, Any]", parent).pop(place[-1], None)
    log.info("left out of a request: %.1000r", [".".join(map(str, place)) for place in places])
    return json.dumps(found).encode()


def _within(value: Any, step: int | str) -> Any:
    """Return the child of a JSON value at a step; the value itself for a step that is not its own."""
    if isinstance(value, list) and isinstance(step, int):
        return cast("list[Any]", value)[step]
    return cast("dict[Any, Any]", value).get(step, value) if isinstance(value, dict) else value


def of_validation(error: ValidationError, known: tuple[str, ...], given: Any) -> ApiError:
    """Return the first error in a request: location, message, and a suggestion.

    known  its fields;  given: what was validated, bytes if it is JSON
    """
    errors = _errors(error)
    first = errors[0]
    if first["type"] == "json_invalid":
        return bad(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if isinstance(given, bytes):  # to read a large one once more takes a second
        given = from_json(given) if len(given) <= _MOST_READ_AGAIN else None
    field, union = _place(first, given)
    if union:  # of all that the field may be, what the value comes closest to
        first = max(
            (e for e in errors if _place(e, given)[0][: len(field)] == field), key=lambda e: (not e["type"].endswith("_type"), len(_place(e, given)[0]))
        )
    where = ".".join(map(str, _place(first, given)[0])) or None
    if first["type"] == "extra_forbidden":
        if len(first["loc"]) == 1:
            return bad(f"unknown parameter {where!r}{suggestion(str(where), known)}", where, "unknown_parameter")
        return bad(f"{where}: unknown parameter; leave it out (GET /openapi.json lists those that there are)", where, "unknown_parameter")
    return bad(f"{where}: {first['msg']}" if where else first["msg"], where, "unsupported" if first["type"] in ("unsupported", "unsupported_field") else None)


def _errors(error: ValidationError) -> Sequence[Any]:
    """Return the errors in a request. Raises ApiError if there are too many to list."""
    if error.error_count() > _MOST_WRONG:
        raise bad(f"{error.error_count():,} values of the request are not what they must be, or unknown; GET /openapi.json says what it may be") from None
    return error.errors(include_url=False, include_context=False, include_input=False)


def _place(error: Any, given: Any) -> tuple[tuple[int | str, ...], bool]:
    """Return the location of an error in what was given, if that is known, and whether it is of a union, which adds
    steps that are not the value's own."""
    if given is None:
        return error["loc"], False
    place: list[int | str] = []
    union = False
    for i, step in enumerate(error["loc"]):
        last = i == len(error["loc"]) - 1
        if isinstance(given, list) and isinstance(step, int) and step < len(given):  # pyright: ignore[reportUnknownArgumentType]
            given = cast("list[Any]", given)[step]
        elif isinstance(given, dict) and step in given:
            given = cast("dict[Any, Any]", given)[step]
        elif not (last and error["type"] == "missing"):
            union = True
            continue
        place.append(step)
    return tuple(place), union
