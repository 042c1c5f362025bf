"""Reports: what servers say an answer has cost, and whether that can be, by what was sent and what came.

A token has at least a byte of what it stands for, so that a prompt has no more tokens than its request has bytes, but for what the
server itself puts there, which has a bound for each kind; an answer has no more than it was allowed, or than came of it.

    prompt ≤ bytes sent + _TEMPLATE for each prompt + so many for each picture, document and video; ≤ _CONTEXT where the server adds what it likes
    answer ≤ 2 × the limit + _ENDING for each answer + bytes sent (predictions that were not used) + bytes that came + reasoning that it says there was
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEMPLATE = 1 << 14  # tokens of a template and of what servers say of tools, for each prompt
_ENDING = 1 << 10  # tokens by which an answer may be longer than it was allowed
_ANSWER = 1 << 20  # tokens of an answer that has no limit
_REASONING = 1 << 17  # tokens of reasoning that no limit holds, where a server says that there were any
_CONTEXT = 1 << 24  # tokens of one request: beyond every context there is
_PARTS = {
    "image": 1 << 16, "image_url": 1 << 16, "input_image": 1 << 16, "document": 1 << 22, "file": 1 << 22, "input_file": 1 << 22, "video": 1 << 22,
    "video_url": 1 << 22, "input_audio": 1 << 20, "audio_url": 1 << 20,
}  # fmt: skip
"""Tokens that a part of a message may have, whatever its bytes."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_KNOWN = frozenset({
    *_LIMITS, "model", "messages", "prompt", "input", "system", "stream", "stream_options", "stop", "stop_sequences", "n", "best_of", "temperature", "top_p",
    "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "seed", "min_tokens",
    "stop_token_ids", "stop_regex", "ignore_eos", "response_format", "structured_outputs", "output_config", "text", "tools", "tool_choice",
    "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "cache_control", "service_tier", "reasoning", "reasoning_effort", "verbosity",
    "thinking", "store", "include", "metadata", "user", "safety_identifier", "prediction", "continue_final_message", "add_generation_prompt",
    "chat_template_kwargs", "echo", "questions", "return_token_ids", "prompt_logprobs", "logprob_token_ids", "return_tokens_as_token_ids", "stream_interval",
    "regex", "json_schema", "ebnf", "input_ids", "image_data", "sampling_params", "return_logprob", "return_text_in_logprobs", "logprob_start_len",
    "top_logprobs_num", "token_ids_logprob",
})  # fmt: skip
"""Fields of a request with which a server adds at most `_TEMPLATE` tokens to its prompt."""


def reasoned_of(body: Mapping[str, Any]) -> int | None:
    """Return the reasoning tokens of an answer, if a body reports them."""
    usage: Any = body.get("usage")
    details: Any = (usage.get("completion_tokens_details") or usage.get("output_tokens_details")) if isinstance(usage, dict) else None
    found = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return found if type(found) is int and found > 0 else None


def count_of(value: Any) -> int:
    """Return a number of tokens as a server reports it; missing is 0. Raises ValueError for anything but a whole
    number."""
    if value is None:
        return 0
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} tokens")
    return value


def why_not(prompt: int, answer: int, body: Mapping[str, Any], sent: Mapping[str, Any], came: int | None) -> str:
    """Return why reported tokens of a prompt and an answer are implausible; "" if they are plausible.

    body  that reports them;  sent: the request's;  came: bytes of the answer, about; None: it is all in `body`
    """
    if prompt > _TEMPLATE and prompt > (most := most_prompt(sent)):
        return f"{prompt} tokens of prompt, which has {most} at most"
    if answer > _ENDING and answer > (most := most_answer(sent, _size(body) if came is None else came, reasoned_of(body))):
        return f"{answer} tokens of answer, which has {most} at most"
    return ""


def most_prompt(sent: Mapping[str, Any]) -> int:
    """Return the tokens that the prompts of a request can have."""
    tools: Any = sent.get("tools") or ()
    runs = any(
        isinstance(tool, dict) and tool.get("type", "function") not in ("function", "custom") for tool in tools
    )  # what the server calls, and reads the results of
    if runs or not sent.keys() <= _KNOWN or isinstance(sent.get("prompt"), dict):
        return _CONTEXT
    size, prompts = _size(sent) + len(sent.get("image_data") or ()) * _PARTS["image"], _prompts(sent)
    return min(_CONTEXT * prompts, (size + _TEMPLATE * prompts) * _answers(sent))


def most_answer(sent: Mapping[str, Any], came: int, reasoned: int | None) -> int:
    """Return the tokens that the answers to a request can have, of which `came` bytes came and, as the server says, `reasoned` tokens were reasoning."""
    sampling: Any = sent.get("sampling_params") or {}
    limits = [each[key] for each in (sent, sampling) if isinstance(each, dict) for key in _LIMITS if type(each.get(key)) is int]
    thinking: Any = sent.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    limit = max(limits) + (budget if type(budget) is int else 0) if limits else _ANSWER
    answers = _answers(sent) * _prompts(sent)
    return answers * (2 * limit + _ENDING + min(reasoned or 0, _REASONING)) + came + _size(sent.get("prediction"))


def _answers(sent: Mapping[str, Any]) -> int:
    """Return how many times a server may count a prompt."""
    sampling: Any = sent.get("sampling_params") or {}
    found = [each.get(key) for each in (sent, sampling) if isinstance(each, dict) for key in ("n", "best_of")]
    return max([1, *[n for n in found if type(n) is int]])


def _prompts(sent: Mapping[str, Any]) -> int:
    """Return the number of prompts of a request without messages."""
    given: Any = sent.get("prompt") or sent.get("text") or sent.get("input_ids")
    return len(given) if isinstance(given, list) and given and isinstance(given[0], str | list) else 1


def _size(value: Any) -> int:
    """Tokens that a value of a request can have: its bytes, and what the parts in it are shown as."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")) + 1
    if isinstance(value, Mapping):
        return _PARTS.get(str(value.get("type")), 0) + sum([_size(key) + _size(each) for key, each in value.items()])
    if isinstance(value, list | tuple):
        return sum([_size(each) if not isinstance(each, int) else 1 for each in value])
    return 24  # a number, as JSON
