"""Requests of DSPy in lmc's terms: their prompts, sampling parameters and constraints, and lmc's errors in DSPy's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dspy import lm15

from lmc import images
from lmc.backend.base import Backend
from lmc.chat import conversation
from lmc.constraints import make_constraint
from lmc.errors import ConstraintError, LmcError, ParameterError, PromptTooLongError, UnsupportedOpError
from lmc.parameters import sampling
from lmc.segments import Constraint, Image, Part, SamplingParams, derive_seed

MAX_TOKENS = 1024
"""Default token limit of an answer, or of each output field."""

EXTENSION = "lmc_fields"
"""The entry of `Config.extensions` that holds the fields of an answer's template."""


def prompt_of(request: Any, backend: Backend) -> tuple[Part | Image, ...]:
    if request.tools:
        raise lm15.UnsupportedFeatureError("tools: this engine writes no tool calls of its own; dspy.ReAct needs none")
    turns = [] if request.system is None else [("system", _content(request.system))]
    turns += [("system" if m.role == "developer" else m.role, _content(m.parts)) for m in request.messages]
    return conversation(backend.chat_template, turns)


def _content(parts: Any) -> list[str | Image]:
    return [parts] if isinstance(parts, str) else [_piece(part) for part in parts]


def _piece(part: Any) -> str | Image:
    """Return text as it is, an image read. Raises its errors."""
    if isinstance(part, lm15.TextPart):
        return part.text
    if not isinstance(part, lm15.ImagePart) or part.file_id is not None:
        what = "image of an API's file store" if isinstance(part, lm15.ImagePart) else f"part of the type {part.type}"
        raise lm15.UnsupportedFeatureError(f"a message has a {what}; this engine takes text and images")
    source = part.url or part.path or part.bytes
    return images.read(Image(source, detail=part.detail or "auto"))


def params_of(request: Any) -> SamplingParams:
    config = request.config
    for name in ("tool_choice", "reasoning", "probabilities"):
        if getattr(config, name, None) is not None:
            raise lm15.UnsupportedFeatureError(f"Config.{name}: this engine does not support it")
    if unknown := set(config.extensions or {}) - {EXTENSION}:
        raise lm15.UnsupportedFeatureError(f"Config.extensions: this engine does not know {', '.join(sorted(unknown))}")
    return sampling(SamplingParams(), {name: value for name, value in given_of(request).items() if name != "seed"})  # that is _seed's


def given_of(request: Any) -> dict[str, Any]:
    """Return its given sampling parameters."""
    config = request.config
    scored = config.logprobs is not None
    given = {
        "max_tokens": MAX_TOKENS if config.max_tokens is None else config.max_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "stop": config.stop or None,
        "frequency_penalty": config.frequency_penalty,
        "presence_penalty": config.presence_penalty,
        "return_logprob": scored or None,
        "return_text_in_logprobs": scored or None,
        "top_logprobs_num": config.logprobs or None,
        "seed": None if config.seed is None else derive_seed(config.seed % (1 << 63), 0, "dspy", 0),  # as outside of a compiled module
    }
    return {name: value for name, value in given.items() if value is not None}


def constraint_of(request: Any) -> Constraint | None:
    wanted: Mapping[str, Any] | None = request.config.response_format
    if wanted is None or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_object":
        return make_constraint("json_schema", {"type": "object"})
    schema = wanted.get("schema") or (wanted.get("json_schema") or {}).get("schema")
    if wanted.get("type") != "json_schema" or schema is None:
        raise lm15.UnsupportedFeatureError(f"response_format {json.dumps(dict(wanted))[:80]}: this engine takes a json_schema")
    return make_constraint("json_schema", schema)


@contextmanager
def as_dspy_errors() -> Iterator[None]:
    """Translate lmc's errors to DSPy's: it retries transient ones, and raises the rest."""
    try:
        yield
    except PromptTooLongError as error:
        raise lm15.ContextLengthError(str(error)) from error
    except UnsupportedOpError as error:
        raise lm15.UnsupportedFeatureError(str(error)) from error
    except (ConstraintError, ParameterError) as error:
        raise lm15.InvalidRequestError(str(error)) from error
    except LmcError as error:
        raise lm15.ServerError(str(error)) from error
