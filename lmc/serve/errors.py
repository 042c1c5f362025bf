"""Errors in the form of OpenAI's API: a status, a type, a message, the parameter at fault."""

from __future__ import annotations

import json
import logging
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

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
    UnsupportedOpError,
)
from lmc.prompt import suggestion

log = logging.getLogger("lmc.serve")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An error response. `headers` are sent with it."""

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
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind = kind or _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


_BY_ERROR: tuple[tuple[type[LmcError], int, str | None], ...] = (  # the first match wins
    (PromptTooLongError, 400, "context_length_exceeded"),
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
    (JournalError, 409, "journal"),
    (InDoubtEffect, 409, "in_doubt"),
    (Interrupted, 409, "waiting"),  # for a person: lmc.serve.runs adds details
)


def as_api_error(error: BaseException, request: str = "") -> ApiError:
    """Return the error that a client gets. An internal error is logged, and its text is not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError) and not isinstance(error, LmcError):
        return ApiError(504, "the request took longer than this server allows")
    for kind, status, code in _BY_ERROR:
        if isinstance(error, kind):
            return ApiError(status, error.message, code=code, headers={"Retry-After": "1"} if status == 503 else None)
    log.error("the request %s failed", request, exc_info=error)
    return ApiError(500, f"internal error; the server's log has it{f' as {request}' if request else ''}")


M = TypeVar("M", bound=BaseModel)


def parsed(kind: type[M], body: bytes, *, lenient: bool = False) -> M:
    """Parse a request's body as its type, or raise ApiError that names the fault. `lenient`: unknown fields are
    ignored."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        unknown = [e["loc"] for e in error.errors(include_url=False, include_context=False, include_input=False) if e["type"] == "extra_forbidden"]
        if lenient and unknown:
            return parsed(kind, _without(body, unknown))
        raise of_validation(error, tuple(f.alias or name for name, f in kind.model_fields.items())) from None


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
            log.info("left out of a request: %s", ".".join(map(str, place)))
    return json.dumps(found).encode()


def _within(value: Any, step: int | str) -> Any:
    """Return the child of a JSON value at a step; the value itself for a step that is not its own."""
    if isinstance(value, list) and isinstance(step, int):
        return cast("list[Any]", value)[step]
    return cast("dict[Any, Any]", value).get(step, value) if isinstance(value, dict) else value


def of_validation(error: ValidationError, known: tuple[str, ...]) -> ApiError:
    """Return the first error in a request's body: location, message, and a suggestion. `known`: its fields."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(x) for x in first["loc"]) or None
    if first["type"] == "json_invalid":
        return bad(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return bad(f"unknown parameter {where!r}{suggestion(str(where), known)}", where, "unknown_parameter")
    return bad(f"{where}: {first['msg']}" if where else first["msg"], where)
