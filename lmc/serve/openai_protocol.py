"""The requests of OpenAI's API as types, with the extensions of vLLM and SGLang; their conversion to sampling
parameters."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from lmc.constraints import MAX_SOURCE, make_constraint
from lmc.errors import LmcError
from lmc.parameters import sampling
from lmc.segments import Constraint, SamplingParams
from lmc.serve.errors import bad, naming
from lmc.serve.fields import ONLY, Absent, Count, ListOf, OpenAIBody, RequestBody, TemplateVariable, TokenId

_PROMPTS = Field(max_length=4096)  # before they are counted with their answers


# -- parts of requests -------------------------------------------------------------------------------------------------


class StreamOptions(RequestBody):
    include_usage: bool = False
    continuous_usage_stats: Annotated[Literal[False], ONLY] = False
    include_obfuscation: bool = False


class JsonSchemaFormat(RequestBody):
    name: str = ""
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestBody):
    """vLLM's structured outputs."""

    regex: str | None = None
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    grammar: str | None = None
    choice: ListOf[str] | None = None
    structural_tag: dict[str, Any] | str | None = None
    json_object: bool | None = None


class FunctionDef(RequestBody):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestBody):
    type: Literal["function"]
    function: FunctionDef


class FunctionName(RequestBody):
    name: str


class NamedTool(RequestBody):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestBody):
    """Those of the tools that may be called, or must be. The others stay in the prompt, whose KV is cached."""

    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[NamedTool], Field(min_length=1)]


class ToolChoice(RequestBody):
    """The tool that must be called, or several of them: the field that `type` names."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(RequestBody):
    name: str
    arguments: str


class ToolCall(RequestBody):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ImageUrl(RequestBody):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ContentPart(RequestBody):
    """A text, a picture, or what an assistant refused with: one of these fields, as `type` says. The rest has no effect: prompts are cached anyway."""

    type: Literal["text", "image_url", "refusal"]
    text: str | None = None
    image_url: ImageUrl | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None  # Anthropic's, which routers pass on
    role: Literal["assistant"] | None = None  # OpenAI's agents SDK for JavaScript copies these fields of an answer into its part
    annotations: ListOf[dict[str, Any]] | None = None
    tool_calls: ListOf[ToolCall] | None = None


Parts = ListOf[ContentPart]
_KINDS = ("text", "image_url", "refusal")


def _known_parts(content: Any) -> Any:
    """Report the error in a part, where a union would only list the expected types."""
    for i, part in enumerate(content if isinstance(content, list) else ()):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        kind: Any = part.get("type") if isinstance(part, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(kind, str):
            continue  # an error of the part's own
        if kind not in _KINDS:
            raise PydanticCustomError("no_part", "part {at} is of the type {kind}; this server takes text and image_url", {"at": i, "kind": kind})
        if {name for name in _KINDS if part.get(name) is not None} != {kind}:  # pyright: ignore[reportUnknownMemberType]
            raise PydanticCustomError("no_part", "part {at} is of the type {kind}; it must have the field {kind} and no other", {"at": i, "kind": kind})
    return content  # pyright: ignore[reportUnknownVariableType]


class Message(RequestBody):
    """A message, also as an SDK writes the one that it got: with all fields of an answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | Parts | None, BeforeValidator(_known_parts, json_schema_input_type=str | Parts | None)] = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: ListOf[ToolCall] | None = None
    tool_call_id: str | None = None
    annotations: ListOf[dict[str, Any]] | None = None  # of the content, which is complete without them
    audio: Absent = None
    function_call: Absent = None

    @property
    def text(self) -> str:
        if self.content is None:
            return self.refusal or ""
        return self.content if isinstance(self.content, str) else "".join(part.text or part.refusal or "" for part in self.content)

    @property
    def has_images(self) -> bool:
        return isinstance(self.content, list) and any(part.image_url is not None for part in self.content)


# -- common parameters ------------------------------------------------------------------------------------------


class Sampled(OpenAIBody):
    """Parameters of sampling and of constraints. Names are OpenAI's, then vLLM's and SGLang's."""

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    stop: str | ListOf[str] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None
    modalities: Annotated[ListOf[Literal["text"]], Field(min_length=1)] | None = None
    # vLLM's and SGLang's
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None  # cached KV is shared with equal salts only
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: ListOf[TokenId] | None = None
    stop_regex: str | Annotated[ListOf[str], Field(max_length=16)] | None = None  # each is an automaton
    repetition_penalty: Annotated[Annotated[float, Field(ge=1, le=1)] | None, ONLY] = None
    regex: str | None = None
    json_schema: dict[str, Any] | str | None = None
    ebnf: str | None = None
    lark: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_grammar: str | None = None
    guided_choice: ListOf[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    # written into every request by routers, with the only value that this server supports
    skip_special_tokens: Annotated[Literal[True] | None, ONLY] = None
    spaces_between_special_tokens: Annotated[Literal[True] | None, ONLY] = None
    include_stop_str_in_output: Annotated[Literal[False] | None, ONLY] = None
    no_stop_trim: Annotated[Literal[False] | None, ONLY] = None
    return_hidden_states: Annotated[Literal[False] | None, ONLY] = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def unknown_usage(self) -> dict[str, None]:
        """Return the usage field of the earlier pieces of a stream that ends with its usage."""
        return {"usage": None} if self.wants_usage else {}

    def limit(self) -> int | None:
        """Return the token limit of the request, if given."""
        return self.max_tokens

    def params(self, most: int, **more: Any) -> SamplingParams:
        """Return the sampling parameters of each answer; `most` tokens if the request sets no limit."""
        if self.stream_options is not None and not self.stream:
            raise bad("stream_options needs stream=true", "stream_options")
        given = {name: getattr(self, name) for name in _AS_THEY_ARE} | {
            "max_tokens": most if self.limit() is None else self.limit(),
            "stop": None if self.stop in ("", []) else self.stop,
            "logit_bias": self.logit_bias or None,
            "top_k": -1 if self.top_k == 0 else self.top_k,  # vLLM's 0 and -1 both mean the whole vocabulary
            **more,
        }
        return sampling(SamplingParams(), given)

    def constraint(self) -> tuple[str | None, Constraint | None]:
        """Return the constraint on the answer, and the field that gives it. Only one may."""
        found = [(field, kind, source) for field, kind, source in self._constraints() if source is not None]
        if len(found) > 1:
            raise bad(f"{' and '.join(field for field, _, _ in found)} exclude each other: an answer has one constraint", found[-1][0])
        for field, kind, source in found:
            with naming({LmcError: field}):
                return field, make_constraint(kind, source)
        return None, None

    def _constraints(self) -> list[tuple[str, str, Any]]:
        """Return each field that may give a constraint, the kind, and its source, None if it is not given."""
        structured = self.structured_outputs or StructuredOutputs()
        return [
            ("response_format", "json_schema", _of_format(self.response_format)),
            ("regex", "regex", self.regex),
            ("json_schema", "json_schema", self.json_schema),
            ("ebnf", "ebnf", self.ebnf),
            ("lark", "lark", self.lark),
            ("structural_tag", "structural_tag", self.structural_tag),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_json", "json_schema", self.guided_json),
            ("guided_grammar", "ebnf", self.guided_grammar),
            ("guided_choice", "regex", _choice(self.guided_choice, "guided_choice")),
            ("structured_outputs.regex", "regex", structured.regex),
            ("structured_outputs.json", "json_schema", structured.json_),
            ("structured_outputs.grammar", "ebnf", structured.grammar),
            ("structured_outputs.choice", "regex", _choice(structured.choice, "structured_outputs.choice")),
            ("structured_outputs.structural_tag", "structural_tag", structured.structural_tag),
            ("structured_outputs.json_object", "json_schema", _ANY_OBJECT if structured.json_object else None),
        ]


_AS_THEY_ARE = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "min_tokens", "ignore_eos", "stop_token_ids", "stop_regex")
_ANY_OBJECT = {"type": "object"}


def _choice(choices: list[str] | None, param: str) -> str | None:
    if choices is None:
        return None
    if not choices or "" in choices:
        raise bad(f"{param}: at least one choice, and none of them empty", param)
    pattern = "|".join(map(re.escape, choices))
    if len(pattern) > MAX_SOURCE:
        raise bad(f"{param}: the pattern of {len(choices):,} choices has {len(pattern):,} characters, and at most {MAX_SOURCE:,} are allowed", param)
    return pattern


def _of_format(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return _ANY_OBJECT
    if wanted.json_schema is None or wanted.json_schema.json_schema is None:
        raise bad("response_format: type json_schema needs json_schema.schema", "response_format")
    return wanted.json_schema.json_schema


# -- the endpoints -----------------------------------------------------------------------------------------------------


class CompletionRequest(Sampled):
    """POST /v1/completions."""

    prompt: str | Annotated[ListOf[str], _PROMPTS] | ListOf[TokenId] | Annotated[ListOf[ListOf[TokenId]], _PROMPTS]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Annotated[Literal[""] | None, ONLY] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise bad("prompt: an empty list asks nothing", "prompt")
        if isinstance(prompt[0], int):
            return [prompt]  # pyright: ignore[reportReturnType]
        return prompt  # pyright: ignore[reportReturnType]

    def asked_params(self, most: int) -> SamplingParams:
        if self.best_of not in (None, self.choices):
            raise bad("best_of other than n is not supported: ask for n answers and choose", "best_of")
        scored = self.logprobs is not None
        if self.echo and self.stream and scored:
            raise bad("logprobs of an echo are not streamed; leave out one of echo, stream and logprobs", "echo")
        return self.params(most, **_scoring(scored, self.logprobs), **({"logprob_start_len": 0} if scored and self.echo else {}))


class ChatRequest(Sampled):
    """POST /v1/chat/completions."""

    messages: Annotated[ListOf[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Absent = None
    function_call: Absent = None
    audio: Absent = None
    web_search_options: Absent = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    separate_reasoning: bool | None = None  # routers write these three; an answer's reasoning is part of its content here
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[dict[TemplateVariable, Any], Field(max_length=64)] | None = None

    def limit(self) -> int | None:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise bad("max_tokens and max_completion_tokens differ; give one", "max_tokens")
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    def asked_params(self, most: int) -> SamplingParams:
        if self.top_logprobs and not self.logprobs:
            raise bad("top_logprobs needs logprobs=true", "top_logprobs")
        return self.params(most, **_scoring(bool(self.logprobs), self.top_logprobs))


def _scoring(scored: bool, likeliest: int | None) -> dict[str, Any]:
    """Return the parameters of log-probabilities: whether they are listed, and so many of the likeliest tokens."""
    return {"return_logprob": scored, "return_text_in_logprobs": scored, **({"top_logprobs_num": likeliest} if scored and likeliest else {})}
