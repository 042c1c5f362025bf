"""Chat templates: the text before and after a message's content, by role.

A template is cut once into constant prefixes and suffixes, so that appending a message never renders the
conversation again. `previous` is the role of the message before, None for the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, overload

from lmc.errors import ArgumentError, ProgramError
from lmc.segments import Image, Part, Special


class ChatTemplate(Protocol):
    """The chat template of a model family."""

    @property
    def name(self) -> str: ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Return the strings that end an assistant turn besides the model's EOS."""
        ...

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        """Return the text before the content of `role`; for a first message it includes the template's default system
        message."""
        ...

    def end(self, role: str) -> tuple[Part, ...]:
        """Return the text after the content of `role`."""
        ...


@dataclass(frozen=True)
class RoleTemplate:
    """A template given by prefix and suffix per role.

    default_system  system message that opens a conversation whose first message is not the system's
    stop            strings that end an assistant turn; a backend adds them to the stops of every gen
    first           prefixes that differ at the start of a conversation (BOS)
    after           prefixes that depend on the message before: (previous role, role) → prefix
    """

    name: str
    roles: Mapping[str, tuple[tuple[Part, ...], tuple[Part, ...]]]
    default_system: tuple[Part, ...] = ()
    stop: tuple[str, ...] = ()
    first: Mapping[str, tuple[Part, ...]] = field(default_factory=dict[str, tuple[Part, ...]])
    after: Mapping[tuple[str, str], tuple[Part, ...]] = field(default_factory=dict[tuple[str, str], tuple[Part, ...]])

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        prefix = self._role(role)[0]
        if previous is not None:
            return self.after.get((previous, role), prefix)
        prefix = self.first.get(role, prefix)
        return prefix if role == "system" else self.default_system + prefix

    def end(self, role: str) -> tuple[Part, ...]:
        return self._role(role)[1]

    def _role(self, role: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        if role == "tool" and role not in self.roles:
            role = "user"  # a tool's result, rendered by the model's whole template if it has one
        try:
            return self.roles[role]
        except KeyError:
            known = ", ".join(self.roles)
            raise ProgramError(f"the chat template {self.name!r} has no role {role!r}; it has {known}") from None


@overload
def conversation(template: ChatTemplate, messages: Iterable[tuple[str, str]]) -> tuple[Part, ...]: ...
@overload
def conversation(template: ChatTemplate, messages: Iterable[tuple[str, str | Sequence[str | Image]]]) -> tuple[Part | Image, ...]: ...
def conversation(template: ChatTemplate, messages: Iterable[tuple[str, str | Sequence[str | Image]]]) -> tuple[Part | Image, ...]:
    """Render messages (role, content) as a prompt, up to where the assistant's answer begins. Contents are plain text,
    and images."""
    found: list[Part | Image] = []
    previous: str | None = None
    for role, content in messages:
        found += [*template.begin(role, previous), *((content,) if isinstance(content, str) else content), *template.end(role)]
        previous = role
    return (*found, *template.begin("assistant", previous))


# -- named templates -------------------------------------------------------------------------------------------------

_SPECIAL = re.compile(r"<\|[^|<>]+\|>|<｜[^｜]+｜>|</?s>|<bos>|<(?:start|end)_of_turn>|<BOS_TOKEN>|\[/?(?:INST|SYSTEM_PROMPT)\]")


def parts(text: str, pattern: re.Pattern[str] = _SPECIAL) -> tuple[Part, ...]:
    """Split a template's own text into parts; what looks like a special token of a known family is one."""
    found: list[Part] = []
    at = 0
    for match in pattern.finditer(text):
        found += [text[at : match.start()]] if match.start() > at else []
        found.append(Special(match.group()))
        at = match.end()
    return tuple(found + ([text[at:]] if at < len(text) else []))


def _template(
    name: str,
    roles: Mapping[str, tuple[str, str]],
    *,
    bos: str = "",
    system: str = "",
    stop: tuple[str, ...] = (),
    after: Mapping[tuple[str, str], str] = MappingProxyType({}),
    specials: re.Pattern[str] = _SPECIAL,
) -> RoleTemplate:
    """Build a template from text. `bos` opens the conversation; `system` is the system message it inserts itself."""

    def cut(text: str) -> tuple[Part, ...]:
        return parts(text, specials)

    edges = {role: (cut(prefix), cut(suffix)) for role, (prefix, suffix) in roles.items()}
    default = cut(bos + roles["system"][0] + system + roles["system"][1]) if system else ()
    opened = {role: cut(bos + prefix) for role, (prefix, _) in roles.items() if bos and (role == "system" or not system)}
    return RoleTemplate(name, edges, default, stop, opened, {pair: cut(text) for pair, text in after.items()})


def _marked(begin: str, end: str, roles: str = "system user assistant tool") -> dict[str, tuple[str, str]]:
    return {role: (begin.format(role), end) for role in roles.split()}


_CHATML_ROLES = _marked("<|im_start|>{}\n", "<|im_end|>\n")
CHATML = _template("chatml", _CHATML_ROLES)

_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's questions."
)

_templates: dict[str, ChatTemplate] = {
    template.name: template
    for template in (
        CHATML,
        _template("default", {"system": ("SYSTEM:", "\n"), "user": ("USER:", "\n"), "assistant": ("ASSISTANT:", "\n")}),
        _template("claude", {"system": ("", ""), "user": ("\n\nHuman: ", ""), "assistant": ("\n\nAssistant:", "")}),
        _template("qwen", _CHATML_ROLES, system="You are a helpful assistant.", stop=("<|im_end|>",)),
        _template(
            "vicuna_v1.1",
            {"system": ("", " "), "user": ("USER:", " "), "assistant": ("ASSISTANT:", "</s>")},
            bos="<s>",
            system=_VICUNA,
            stop=("</s>",),
        ),
        _template(
            "llama-2-chat",
            {
                "system": ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
                "user": ("[INST] ", " [/INST]"),
                "assistant": (" ", " </s>"),
            },
            bos="<s>",
            stop=("</s>",),
            after={("system", "user"): "", ("assistant", "user"): "<s>[INST] "},
            specials=re.compile("</?s>"),  # [INST] is ordinary text to this family, unlike Mistral's
        ),
        _template(
            "llama-3-instruct",
            _marked("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
            bos="<|begin_of_text|>",
            stop=("<|eot_id|>",),
        ),
        _template(
            "llama-4",
            _marked("<|header_start|>{}<|header_end|>\n\n", "<|eot|>"),
            bos="<|begin_of_text|>",
            stop=("<|eot|>",),
        ),
        _template(
            "mistral",
            {
                "system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
                "user": ("[INST]", "[/INST]"),
                "assistant": ("", "</s>"),
            },
            bos="<s>",
            stop=("</s>",),
        ),
        _template(
            "gemma-it",
            {
                "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
                "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
            },
            bos="<bos>",
            stop=("<end_of_turn>",),
        ),
        _template(
            "deepseek-v3",
            {"system": ("", ""), "user": ("<｜User｜>", ""), "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")},
            bos="<｜begin▁of▁sentence｜>",
            stop=("<｜end▁of▁sentence｜>",),
        ),
        _template(
            "c4ai-command-r",
            {
                role: (f"<|START_OF_TURN_TOKEN|><|{token}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
                for role, token in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))
            },
            bos="<BOS_TOKEN>",
            stop=("<|END_OF_TURN_TOKEN|>",),
        ),
        _template(
            "granite-3-instruct",
            _marked("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>\n"),
            stop=("<|end_of_text|>",),
        ),
    )
}


def get_chat_template(name: str) -> ChatTemplate:
    """Return a template by name. Raises ProgramError, which lists the known names."""
    try:
        return _templates[name]
    except KeyError:
        raise ProgramError(f"no chat template {name!r}; there are {', '.join(sorted(_templates))}") from None


def known_chat_template(template: ChatTemplate) -> bool:
    """Return whether `get_chat_template` gives this very template for its name."""
    return _templates.get(template.name) is template


def register_chat_template(template: ChatTemplate) -> ChatTemplate:
    """Register a template by its name, replacing any other of that name; return it.

    Most are a `RoleTemplate(name, {role: (prefix, suffix)})`. Raises ArgumentError for anything that is not a template.
    """
    if not (hasattr(template, "name") and hasattr(template, "begin") and hasattr(template, "end")):
        raise ArgumentError(f"register_chat_template() takes a template such as lmc.chat.RoleTemplate(…), not {template!r}")
    _templates[template.name] = template
    return template
