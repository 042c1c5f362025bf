"""The server's description of itself: OpenAPI 3.1, from the types of requests and the signatures of programs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import lmc
from lmc.serve.messages_api import CountTokensRequest, MessagesRequest
from lmc.serve.openai_protocol import ChatRequest, CompletionRequest
from lmc.serve.responses_api import ResponsesRequest
from lmc.serve.runs import AnswerBody
from lmc.serve.tokenizing import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from lmc.serve.programs import DescribedProgram

Json = dict[str, Any]
_REFS = "#/components/schemas/{model}"

_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR_OF_MESSAGES: Json = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": {"type": "string"}, "message": {"type": "string"}}},
    },
}
_COMPLETION: Json = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["chat.completion", "text_completion"]},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "finish_reason"]}},
        "usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
    },
}
_COUNT: Json = {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}}
_RECORD: Json = {
    "type": "object",
    "required": ["index", "return_value", "variables", "text", "usage"],
    "properties": {
        "index": {"type": "integer"},
        "return_value": {},
        "variables": {"type": "object"},
        "text": {"type": "string"},
        "usage": {"type": "object"},
    },
}
_BATCH: Json = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": {"type": "array", "items": {"anyOf": [_RECORD, _ERROR]}}},
}
_REFUSALS = {
    "400": "The request cannot be answered as it stands.",
    "401": "No valid API key.",
    "403": "The key does not allow this.",
    "404": "There is no such thing.",
    "408": "The request did not arrive in time.",
    "415": "The body is not said to be JSON.",
    "421": "The server does not have this name.",
    "413": "The request is too large.",
    "429": "Too many requests are being answered.",
    "500": "The model or the program failed.",
    "503": "The server is shutting down.",
    "504": "The answer took too long.",
}
_OPTIONS: list[Json] = [
    {"name": "seed", "in": "query", "description": "Makes sampling repeatable.",
     "schema": {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}},
    {"name": "temperature", "in": "query", "description": "Default of every gen.", "schema": {"type": "number", "minimum": 0}},
    {"name": "max_new_tokens", "in": "query", "description": "Default length limit of every gen.",
     "schema": {"type": "integer", "minimum": 1, "maximum": 1 << 31}},
]  # fmt: skip


def document(programs: Sequence[DescribedProgram], *, with_keys: bool) -> Json:
    """Build the whole description. `with_keys`: requests need an API key."""
    bodies: list[type[BaseModel]] = [
        CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest, CountTokensRequest, TokenizeRequest, DetokenizeRequest,
    ]  # fmt: skip
    for program in programs:
        bodies += [program.arguments, program.items, *([AnswerBody] if program.runs is not None and AnswerBody not in bodies else [])]
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_REFS)
    paths: Json = {
        "/health": {"get": _health("Whether requests are answered: 503 if not.")},
        "/health/ready": {"get": _health("Whether requests are answered: 503 if not.")},
        "/health/live": {"get": _health("Whether the process runs.")},
        "/": {"get": _operation("What this server is.", {"type": "object"})},
        "/metrics": {"get": _operation("Counters for Prometheus.", None, content_type="text/plain")},
        "/openapi.json": {"get": _operation("This description.", {"type": "object"})},
        "/v1/models": {"get": _operation("The models that may be asked.", {"type": "object", "required": ["object", "data"]})},
        "/v1/models/{model}": {"get": _operation("One model.", {"type": "object"}, parameters=[_MODEL])},
        "/v1/completions": {"post": _operation("Continues a prompt.", _COMPLETION, body=CompletionRequest, streams=True)},
        "/v1/chat/completions": {"post": _operation("Answers a conversation.", _COMPLETION, body=ChatRequest, streams=True)},
        "/v1/responses": {"post": _operation("Answers a conversation, as the Responses API does.", {"type": "object"}, body=ResponsesRequest, streams=True)},
        "/v1/responses/input_tokens": {"post": _operation("Counts a conversation's tokens, as the Responses API does.", _COUNT, body=ResponsesRequest)},
        "/tokenize": {"post": _operation("The tokens of a text, or of a conversation's prompt.", {"type": "object"}, body=TokenizeRequest)},
        "/detokenize": {"post": _operation("The text of tokens.", {"type": "object"}, body=DetokenizeRequest)},
        "/tokenizer_info": {"get": _operation("The special tokens of the model's prompts, and its chat template.", {"type": "object"})},
        "/v1/messages": {
            "post": _operation(
                "Answers a conversation, as Anthropic's API does.", {"type": "object"}, body=MessagesRequest, streams=True, error=_ERROR_OF_MESSAGES
            )
        },
        "/v1/messages/count_tokens": {
            "post": _operation("Counts a conversation's tokens, as Anthropic's API does.", _COUNT, body=CountTokensRequest, error=_ERROR_OF_MESSAGES)
        },
    }
    for program in programs:
        paths |= _of_program(program)
    made: Json = {
        "openapi": "3.1.0",
        "info": {"title": "lmc", "version": lmc.__version__, "description": "Language models, and programs that ask them."},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }
    if with_keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
        for path in ("/health", "/health/ready", "/health/live"):
            paths[path]["get"]["security"] = []
    return made


def _health(summary: str) -> Json:
    made = _operation(summary, {"type": "object"})
    made["responses"]["503"] = {"description": "Requests would not be answered.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return made


_MODEL: Json = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


def _of_program(program: DescribedProgram) -> Json:
    summary, _, rest = (inspect.getdoc(program.function) or f"Runs {program.name}.").partition("\n")
    at = f"/programs/{program.name}"

    def post(what: str, result: Json | None, body: type[BaseModel], **how: Any) -> Json:
        made = _operation(f"{summary.removesuffix('.')}{what}.", result, body=body, parameters=_OPTIONS, **how)
        return {"post": {**made, "description": rest.strip()}}

    found: Json = {
        at: post("", _RECORD, program.arguments),
        f"{at}/stream": post(", as a stream of its variables", None, program.arguments, content_type="text/event-stream"),
        f"{at}/batch": post(", for many items", _BATCH, program.items),
    }
    if program.runs is not None:
        one = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
        found[at]["post"]["parameters"] = [*_OPTIONS, {**one, "in": "query", "required": False, "description": "Keep the run under this id."}]
        found[at]["post"]["responses"]["202"] = _RUN
        answers = _operation("Answers a question of a run, which then resumes.", _RECORD, body=AnswerBody, parameters=[one])
        answers["responses"]["202"] = _RUN
        found[f"{at}/runs"] = {"get": _operation("The runs that were kept.", {"type": "object"})}
        found[f"{at}/runs/{{run}}"] = {"get": _operation("How a run stands, and what it asks.", {"type": "object"}, parameters=[one])}
        found[f"{at}/runs/{{run}}/answers"] = {"post": answers}
    return found


_RUN: Json = {
    "description": "The run waits for a person's answer.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["run", "status", "questions"]}}},
}


def _operation(
    summary: str,
    result: Json | None,
    *,
    body: type[BaseModel] | None = None,
    parameters: list[Json] | None = None,
    content_type: str = "application/json",
    streams: bool = False,
    error: Json = _ERROR,
) -> Json:
    content: Json = {content_type: {} if result is None else {"schema": result}}
    if streams:
        content["text/event-stream"] = {}
    made: Json = {"summary": summary, "responses": {"200": {"description": "The answer.", "content": content}}}
    for status, description in _REFUSALS.items():
        made["responses"][status] = {"description": description, "content": {"application/json": {"schema": error}}}
    if body is not None:
        schema = {"$ref": _REFS.format(model=body.__name__)}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if parameters:
        made["parameters"] = parameters
    return made
