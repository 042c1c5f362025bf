"""Dialects: what servers that speak OpenAI's API take beyond OpenAI's own parameters, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BASE = frozenset({
    "max_new_tokens", "n", "stop", "stop_regex", "temperature", "top_p", "frequency_penalty", "presence_penalty", "return_logprob",
    "top_logprobs_num", "return_text_in_logprobs", "logit_bias",
})  # fmt: skip
"""Parameters of OpenAI's API, by their fields of SamplingParams."""


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """Additional features of a compatible server.

    params      fields of SamplingParams with the server's names
    constraint  kinds of constraints, with the path in the body for their source
    continues   continues a last assistant message instead of answering it
    defaults    its own defaults may differ from OpenAI's, so that every parameter is sent
    neutral     parameters beyond OpenAI's that may default to the model's configuration (`generation_config.json`)
                unless sent
    same        takes n > 1 where all n answers are the same, at temperature 0; else one is requested
    """

    params: Mapping[str, str] = field(default_factory=dict[str, str])
    constraint: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    continues: bool = False
    defaults: bool = True
    neutral: Mapping[str, float] = field(default_factory=dict[str, float])
    same: bool = True


_COMMON = {"top_k": "top_k", "min_p": "min_p", "min_new_tokens": "min_tokens", "stop_token_ids": "stop_token_ids", "ignore_eos": "ignore_eos"}
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

SERVERS: Mapping[str, ServerDialect] = {
    "openai": ServerDialect(defaults=False),
    "compatible": ServerDialect(),
    "vllm": ServerDialect(
        _COMMON,
        {
            "regex": ("structured_outputs", "regex"),
            "json_schema": ("structured_outputs", "json"),
            "ebnf": ("structured_outputs", "grammar"),
            "lark": ("structured_outputs", "grammar"),
            "structural_tag": ("structured_outputs", "structural_tag"),
        },
        continues=True,
        neutral=_NEUTRAL,
        same=False,
    ),
    "sglang": ServerDialect(
        {**_COMMON, "stop_regex": "stop_regex"},
        {"regex": ("regex",), "json_schema": ("json_schema",), "ebnf": ("ebnf",), "structural_tag": ("response_format",)},
        continues=True,
        neutral=_NEUTRAL,
    ),
}
"""Servers by name."""

SHOWN = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
"""Names of such fields in `gen`, for messages."""
OPENAI_DEFAULTS: Mapping[str, Any] = {"n": 1, "temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""Parameters that are left out where they have these values."""
