"""Fields of requests of all APIs of the model.

Unknown fields are refused: an ignored parameter would change answers silently.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, LiteralString, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

Probability = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1 << 31)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A body has room for millions of wrong items, and each would be an error of some 400 bytes: the first is enough."""


def supported(
    value: Any,
    check: ValidatorFunctionWrapHandler,
    kind: Literal["unsupported", "unsupported_field"] = "unsupported",
    why: LiteralString = " by this server; leave it out",
) -> Any:
    """Check a value as its type does; one that it does not allow is not supported."""
    try:
        return check(value)
    except ValidationError:
        raise PydanticCustomError(kind, f"not supported{why}") from None


ONLY = WrapValidator(supported)
"""Annotation of a field with one supported value, which changes nothing: clients and routers write it."""

Stored = Annotated[None, WrapValidator(partial(supported, why=", since nothing is stored; send the earlier items as input, and store: false"))]
"""Type of a field that refers to what an earlier request has stored."""

Absent = Annotated[None, WrapValidator(partial(supported, kind="unsupported_field"))]
"""Type of a field of an API that is not supported at all: one that a lenient server leaves out, as those that it does not know."""


class RequestBody(BaseModel):
    """A JSON object with known fields, each of exactly its type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class OpenAIBody(RequestBody):
    """The fields that requests of OpenAI's APIs share. Those from `metadata` on have no effect: nothing is stored, and prompts are cached anyway."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    moderation: Absent = None
