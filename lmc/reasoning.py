"""Reasoning models: reasoning markers of each family, and the split of an answer into reasoning and content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmc.errors import Loc, ParameterError
from lmc.parameters import suggestion


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The reasoning format of a model family. The rules are those of SGLang's reasoning parser.

    begin, end  markers around the reasoning; `begin` may be missing if `always` holds
    always      the answer is reasoning from its first character on, because the chat template has already opened it
    also_ends   marker that ends the reasoning without `end`, and belongs to the content (a tool call)
    """

    begin: str = "<think>"
    end: str = "</think>"
    always: bool = False
    also_ends: str = ""

    def split(self, answer: str) -> tuple[str, str]:
        """Return (reasoning, content), each as the model wrote it; an answer cut off while reasoning has no content."""
        if not self.always and self.begin not in answer:
            return "", answer
        while answer.startswith(self.begin):
            answer = answer[len(self.begin) :]
        reasoning, end, content = answer.partition(self.end)
        if end or not self.also_ends:
            return reasoning, content
        reasoning, call, rest = answer.partition(self.also_ends)
        return reasoning, call + rest

    def reasoning(self, answer: str) -> str:
        return self.split(answer)[0]

    def content(self, answer: str) -> str:
        return self.split(answer)[1]


_OPENED = ReasoningFormat(always=True)
_CHOSEN = ReasoningFormat(also_ends="<tool_call>")

FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek-r1": _OPENED,
    "deepseek-v3": _CHOSEN,
    "glm45": _CHOSEN,
    "interns1": _CHOSEN,
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "kimi_k2": ReasoningFormat(also_ends="<|tool_calls_section_begin|>"),
    "mimo": _CHOSEN,
    "minimax": ReasoningFormat(always=True, also_ends="<tool_call>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "qwen3": _CHOSEN,
    "qwen3-thinking": ReasoningFormat(always=True, also_ends="<tool_call>"),
    "step3": _OPENED,
    "step3p5": _OPENED,
}
"""Formats by SGLang's names of the families."""
_ENDS = frozenset(known.end for known in FORMATS.values())


def content_start(answer: str) -> int:
    """Return where the content of an answer begins, behind the reasoning of a model of whatever family; 0 if there is none."""
    return max(at + len(end) if (at := answer.find(end)) >= 0 else 0 for end in _ENDS)


def reasoning_format(model_type: str, loc: Loc | None = None) -> ReasoningFormat:
    """Return the format of a family by its name, in any case; raises ParameterError that lists the known names."""
    found = FORMATS.get(model_type.lower())
    if found is None:
        raise ParameterError(f"separate_reasoning(model_type={model_type!r}): no such family{suggestion(model_type, list(FORMATS))}", loc=loc)
    return found


def reasoning_name(name: str) -> str:
    """Return the variable that holds the reasoning of the answer stored under `name`."""
    return f"{name}_reasoning_content"
