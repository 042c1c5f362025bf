"""Bodies: reading answers of OpenAI's API, and of compatible servers. Raises Malformed for incomplete ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmc import json_data
from lmc.backend.api.exchange import Body, Fault, Malformed
from lmc.backend.api.reports import count_of
from lmc.backend.usage import Usage
from lmc.errors import IncompleteAnswer, UnsupportedOpError
from lmc.reasoning import content_start
from lmc.segments import Constraint, Gen
from lmc.tools import Call, call_of


def usage_of(body: Body) -> Usage | None:
    """Return the usage that a body reports, by the names of chat, completions and decisions; None if there is none."""
    usage: Any = body.get("usage")
    if not isinstance(usage, dict):
        return None
    details: Any = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, completion = (usage.get(f"{a}_tokens", usage.get(f"{b}_tokens")) for a, b in (("prompt", "input"), ("completion", "output")))
    if not prompt and not completion:  # no prompt has no tokens: LiteLLM writes zeros where its provider reports none
        return None
    written = count_of(usage.get("cache_creation_input_tokens"))  # LiteLLM's, for servers that charge for it
    return Usage(count_of(prompt), count_of(completion), count_of(cached), 0, 1, 0, written_tokens=written)


def check_whole(kind: str) -> None:
    """Raise Malformed for an answer that a fault of the server has cut."""
    if kind in ("error", "abort"):
        raise Malformed(f"the server ended the answer with {kind!r}")


def check_no_error(body: Mapping[str, Any]) -> None:
    """Raise Malformed for an error with a status of success, as gateways answer for the server behind them."""
    if error := body.get("error"):
        raise Malformed(f"the answer is an error: {error.get('message', error) if isinstance(error, dict) else error}")


def check_came(message: str, text: Any, finish: Mapping[str, Any], extra: Mapping[str, Any], reasoned: int | None = None) -> str:
    """Return the text of an answer that has one, or something in its place: calls of tools, a refusal, a filter.

    message   error message for an answer that has neither
    reasoned  tokens of reasoning, if reported

    Raises Malformed for an empty answer, and IncompleteAnswer for one that its limit ended before it began.
    """
    if text is not None and not isinstance(text, str):
        raise Malformed(f"the text of the answer is {text!r:.40}")
    kind = finish["type"]
    check_whole(kind)
    if kind == "length" and not text and not extra.get("tool_calls"):
        used = f" ({reasoned} tokens of it for reasoning)" if reasoned else " by reasoning" if extra.get("reasoning") else ""
        raise IncompleteAnswer(f"the token limit was used up{used} before the answer began; raise max_tokens, or let the model reason less")
    if not text and not extra.get("tool_calls") and kind in _CALLING:
        raise Malformed("the answer ended with a call of a tool that is not in it")
    if text is None and not extra.get("tool_calls") and kind not in (REFUSAL, FILTERED):
        raise Malformed(message)
    return text or ""


def content_of(message: Body) -> tuple[Any, str]:
    """Return the content of a message, or of a piece of one, and the reasoning in it: Mistral's may be a list of parts, text and thinking. Raises Malformed
    for other parts."""
    content: Any = message.get("content")
    if not isinstance(content, list):
        return content, ""
    found: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in content:
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        if kind not in found:
            raise Malformed(f"a part of the answer is {part!r:.40}")
        said: Any = part.get(kind)
        texts: list[Any] = (
            [piece.get("text", "") if isinstance(piece, dict) else piece for piece in said] if kind == "thinking" and isinstance(said, list) else [said]
        )
        if not all(isinstance(text, str) for text in texts):
            raise Malformed(f"a part of the answer is {part!r:.40}")
        found[kind] += texts
    return "".join(found["text"]) if found["text"] else None, "".join(found["thinking"])


def check_scored(ask: Gen, tokens: Sequence[Any] | None, text: str, name: str) -> None:
    """Raise UnsupportedOpError for an answer without the log-probabilities that were asked for: many servers ignore that, each time."""
    if ask.params.return_logprob and tokens is None and text:
        raise UnsupportedOpError("gen(return_logprob=True)", name, "its answers have no log-probabilities", loc=ask.loc)


_CALLING = ("tool_calls", "function_call")


REFUSAL, FILTERED = "refusal", "content_filter"
"""Ends of an answer (`meta["finish_reason"]["type"]`) that a model refused, or that a filter stopped."""


def choices_of(body: Body, n: int) -> list[Body]:
    """Return the n choices in order. Raises Malformed for more or fewer of them."""
    choices: Any = body.get("choices")
    if not isinstance(choices, list) or len(choices) != n or not all(isinstance(c, dict) for c in choices):
        check_no_error(body)
        raise Malformed(f"the answer has {len(choices) if isinstance(choices, list) else 'no'} choices instead of {n}")
    places: list[int] = [choice.get("index") or 0 for choice in choices]
    if len(set(places)) > 1 and sorted(places) != list(range(min(places), min(places) + n)):  # some servers number none of them
        raise Malformed(f"the answer's choices are numbered {places}")
    return [choices[i] for i in sorted(range(n), key=places.__getitem__)]


def calls_of(calls: Any) -> list[Call]:
    """Return the tool calls in a message."""
    if not isinstance(calls, list):
        raise Malformed(f"the calls of tools are {calls!r:.40}")
    try:
        return [call_of(str(c["id"]), str(c["function"]["name"]), c["function"]["arguments"]) for c in calls]
    except (KeyError, TypeError) as error:
        raise Malformed(f"a call of a tool has no {error}") from None


def check_asked(calls: Sequence[Any], offered: bool) -> None:
    """Raise Malformed for calls of tools in the answer to a request that offered none, whatever text is beside them."""
    if calls and not offered:
        raise Malformed(f"the answer has a call of a tool ({calls[0].get('name')!r:.40}), and the request has no tools")


def finish_of(choice: Body, tokens: Sequence[Any] | None) -> Mapping[str, Any]:
    """Return the end of an answer, in the form of the meta info."""
    reason = choice.get("finish_reason")
    if reason is not None and not isinstance(reason, str):
        raise Malformed(f"the answer ended with {reason!r:.40}")
    if reason == "length":
        return {"type": "length"} | ({"length": len(tokens)} if tokens is not None else {})
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    if reason in (None, "stop", "stop_sequence", "eos"):
        return {"type": "stop", "matched": matched}
    return {"type": reason, "matched": matched}


Listed = tuple[tuple[float | None, int | None, str], ...]


def tokens_of(logprobs: Any) -> tuple[Listed | None, tuple[tuple[tuple[float, int | None, str], ...], ...] | None]:
    """Return tokens and the likeliest alternatives of each, from either API's form."""
    if not isinstance(logprobs, dict):
        return None, None
    content: Any = logprobs.get("content")
    if isinstance(content, list):
        tokens: Listed = tuple(listed_token(t["logprob"], None, _token_text(t)) for t in content)
        top = tuple(_alternatives((a["logprob"], _token_text(a)) for a in t.get("top_logprobs") or ()) for t in content)
        return tokens, top if any(top) else None
    texts: Any = logprobs.get("tokens")
    if not isinstance(texts, list):
        return None, None
    values: Any = logprobs.get("token_logprobs") or [None] * len(texts)
    tokens = tuple(listed_token(lp, None, text) for lp, text in zip(values, texts, strict=True))
    rows: Any = logprobs.get("top_logprobs")
    top = tuple(_alternatives((lp, text) for text, lp in (row or {}).items()) for row in rows) if isinstance(rows, list) else ()
    return tokens, top if any(top) else None


def _alternatives(found: Iterable[tuple[Any, str]]) -> tuple[tuple[float, int | None, str], ...]:
    """Return the alternatives of a token, without those of no likelihood at all: minus infinity, which many servers write as null."""
    return tuple((logprob_of(logprob), None, text) for logprob, text in found if logprob is not None)


def logprob_of(value: Any) -> float:
    """Return a log-probability. Raises Malformed for what is none, by which no choice may be made."""
    if type(value) not in (int, float) or not value <= 1:  # not above 0, but for rounding; NaN is neither
        raise Malformed(f"a log-probability is {value!r:.40}")
    return value


def listed_token(logprob: Any, token: int | None, text: Any) -> tuple[float | None, int | None, str]:
    """Return a token of a list, whose log-probability may be missing, as that of a prompt's first one is. Raises Malformed."""
    if not isinstance(text, str):
        raise Malformed(f"the text of a token is {text!r:.40}")
    return None if logprob is None else logprob_of(logprob), token, text


def scored(row: Listed | None) -> Listed:
    """Return the tokens of a prompt that was to be scored. Raises Malformed if any but the first has no log-probability."""
    if row is None or any(logprob is None for logprob, _, _ in row[1:]):
        raise Malformed("the answer has not the log-probabilities that were asked for")
    return row


def _token_text(token: Mapping[str, Any]) -> str:
    """Return a token's text; from its bytes if it is part of a character."""
    data = token.get("bytes")
    return bytes(data).decode("utf-8", "surrogateescape") if isinstance(data, list) else str(token.get("token", ""))


def shared(prompt: Listed, row: Listed) -> int:
    """Return the length of the common prefix of two lists of tokens; always leaves one."""
    n = 0
    while n < min(len(prompt), len(row) - 1) and prompt[n][1:] == row[n][1:]:
        n += 1
    return n


def choice_in(text: str, choices: Sequence[str]) -> str | None:
    """Return the choice that an answer denotes: by JSON, by the text itself, or the longest one that it begins with."""
    try:
        value: Any = json_data.loads(text)
        if isinstance(value, dict) and value.get("choice") in choices:
            return value["choice"]
    except ValueError:
        pass  # plain text
    for found in (text, text.strip()):
        if found in choices:
            return found
    begun = [c for c in choices if c.strip() and text.lstrip().startswith(c.strip()) and not text.lstrip()[len(c.strip()) :][:1].isalnum()]
    return max(begun, key=len) if begun else None


def choice_schema(choices: Sequence[str]) -> Constraint:
    """Return the schema of an answer that is one of the choices, for servers that only have schemas."""
    properties = {"choice": {"type": "string", "enum": list(dict.fromkeys(choices))}}
    schema = {"type": "object", "properties": properties, "required": ["choice"], "additionalProperties": False}
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))


def is_object(schema: Any) -> bool:
    """Return whether a schema itself restricts values to objects, as `response_format` requires."""
    return isinstance(schema, dict) and schema.get("type") == "object" and not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}


def in_object(schema: Any) -> Body:
    """Return a schema as that of the property "answer" of an object. References to its root lead there; its definitions stay at the root."""
    inner: Any = _led(schema)
    kept = {key: inner.pop(key) for key in _DEFINITIONS if key in inner} if isinstance(inner, dict) else {}
    return {"type": "object", "properties": {"answer": inner}, "required": ["answer"], "additionalProperties": False, **kept}


_DEFINITIONS = ("$defs", "definitions")
_DATA = frozenset({"const", "enum", "default", "examples"})
_OF_SCHEMAS = frozenset({*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas"})


def _led(schema: Any) -> Any:
    """A copy of a schema whose references to what moves into the property lead there."""
    if isinstance(schema, list):
        return [_led(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: Body = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#") and not value.startswith(("#/$defs/", "#/definitions/")):
            found[key] = f"#/properties/answer{value[1:]}"
        elif key in _OF_SCHEMAS and isinstance(value, dict):
            found[key] = {name: _led(one) for name, one in value.items()}
        else:
            found[key] = value if key in _DATA else _led(value)
    return found


def out_of_object(text: str) -> str:
    """Return the answer in an object as `in_object` has it, as it is written there; of one that was cut, what came of it. Any other text as it is."""
    before, inner = _begun(text)
    if inner is None:
        return text
    try:
        return before + inner[: json.JSONDecoder().raw_decode(inner)[1]]
    except (ValueError, RecursionError):
        return before + inner


def growing_out_of_object(text: str) -> str:
    """Return the part of `out_of_object` of a growing text that is already certain."""
    before, inner = _begun(text)
    return text if inner is None else before + _MAY_END.sub("", inner)


_BEGINS = re.compile(r'\s*\{\s*"answer"\s*:\s*')
_MAY_END = re.compile(r"\s*\}?\s*\Z")


def _begun(text: str) -> tuple[str, str | None]:
    """Return the reasoning before the object, and the text after `{"answer":`, "" if none of it has arrived; None if the text begins differently."""
    for start in (0, content_start(text)):
        if found := _BEGINS.match(text, start):
            return text[:start], text[found.end() :]
        if '{"answer":'.startswith("".join(text[start:].split())):
            return text[:start], ""
    return "", None


def response_format(schema: Any, strict: bool) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **({"strict": True} if strict else {})}}


_STRICT_KEYS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "description", "title", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "$ref", "$defs",
})  # fmt: skip


def strict(schema: Any) -> bool:
    """Return whether OpenAI enforces a schema exactly: closed objects whose properties are all required, and known
    keywords."""
    if not isinstance(schema, dict):
        return False
    if not schema.keys() <= _STRICT_KEYS:
        return False
    properties = schema.get("properties", {})
    if (schema.get("type") == "object" or properties) and (
        schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties)
    ):
        return False
    inner = [*properties.values(), *schema.get("anyOf", ()), *schema.get("$defs", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return all(map(strict, inner))


_DOES_NOT_TAKE = re.compile(r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed", re.IGNORECASE)


def not_taken(fault: Fault, parameter: str) -> bool:
    """Return whether a refusal means that there is no such parameter, rather than that its value is too large."""
    return names(fault, parameter) and bool(_DOES_NOT_TAKE.search(f"{fault.code} {fault.message}"))


def names(fault: Fault, parameter: str) -> bool:
    """Return whether a refusal is about a parameter."""
    param = fault.param or ""
    if param:
        return param == parameter or (parameter == "logprobs" and param == "top_logprobs")
    words = fault.message.replace("'", " ").replace('"', " ").replace("`", " ").replace(":", " ").replace(",", " ").split()
    return parameter in words
