"""Messages: prompts in the form of chat APIs. Marks delimit messages; there is no template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmc.backend.api.place import PromptNode
from lmc.chat import ChatTemplate, RoleTemplate
from lmc.errors import UnsupportedOpError
from lmc.images import data_url
from lmc.segments import DOCUMENT, Image, Mark, Part, Special, Text, plain
from lmc.tools import with_calls

Message = dict[str, Any]

MESSAGES = RoleTemplate("messages", dict.fromkeys(("system", "user", "assistant", "tool", "developer"), ((), ())))
"""The template of chat APIs: roles write only marks."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt of messages.

    closed  complete messages in OpenAI's form
    role    of the open message, None between messages
    begun   the open message's text so far
    """

    closed: tuple[Message, ...]
    role: str | None
    begun: str

    def with_begun(self) -> list[Message]:
        """Return the messages, with the begun one last if it has text."""
        return [*self.closed, *([{"role": self.role, "content": self.begun}] if self.begun else [])]


def conversation(place: PromptNode, target: str, template: ChatTemplate = MESSAGES) -> Conversation:
    """Return the messages of a prompt; `template` has written the text between them.

    An answer that came with blocks has them as "thinking_blocks", LiteLLM's name, which each API converts.

    Raises UnsupportedOpError for parts outside of messages: other text between messages, special tokens.
    """
    blocks = place.blocks_of_messages()
    closed: list[Message] = []
    role: str | None = None
    last: str | None = None  # role of the message before
    content: list[str | Image] = []
    between: list[Part] = []
    for piece in place.pieces():
        if isinstance(piece, Mark):
            if piece.edge == "begin":
                _check_between(between, (*_ending(template, last), *template.begin(piece.role, last)), target)
                role, content = piece.role, []
            else:
                text, kept = blocks.get(len(closed), ("", ()))
                written = _content(content)
                closed.append({"role": piece.role, "content": written, **({"thinking_blocks": kept} if kept and written == text else {})})
                role, last, content, between = None, piece.role, [], []
        elif isinstance(piece, Special) and (role is not None or template is MESSAGES):
            raise UnsupportedOpError(f"special tokens ({piece.spelling})", target, "messages are text; write roles with lmc.user(…) and the like")
        elif role is not None:
            content.append(piece)  # type: ignore[arg-type]  # no Special: the case above
        elif isinstance(piece, Image):
            raise outside(target)
        else:
            between.append(piece)
    if role is None:
        _check_between(between, _ending(template, last), target)
    begun = _content(content)
    if not isinstance(begun, str):
        raise UnsupportedOpError("a gen after an image in the same message", target, "close the message first")
    return Conversation(tuple(with_calls(closed)), role, begun)


def _ending(template: ChatTemplate, role: str | None) -> tuple[Part, ...]:
    return () if role is None else template.end(role)


def _check_between(found: Sequence[Part], written: Sequence[Part], target: str) -> None:
    """Check that only white space is between messages besides the template's text there."""
    if plain(found).strip() != plain(written).strip():
        raise outside(target)


def role_after(role: str | None, text: Text, raw_text: bool, target: str) -> str | None:
    """Return the role of the message that is open after a text. Raises for text outside of messages, unless `raw_text`."""
    for part in text.parts:
        if isinstance(part, Mark):
            role = part.role if part.edge == "begin" else None
        elif not raw_text and role is None and (not isinstance(part, str) or part.strip()):
            raise outside(target)
    return role


def outside(target: str) -> UnsupportedOpError:
    """Return the error for text that belongs to no message."""
    return UnsupportedOpError("text outside of messages", target, "write it with lmc.system(…), lmc.user(…) or lmc.assistant(…)")


def _content(content: list[str | Image]) -> str | list[Message]:
    if not any(isinstance(piece, Image) for piece in content):
        return "".join(piece for piece in content if isinstance(piece, str))
    parts: list[Message] = []
    for piece in content:
        if isinstance(piece, Image) and piece.detail == DOCUMENT:
            parts.append({"type": "file", "file": {"filename": "document.pdf", "file_data": data_url(piece)}})
        elif isinstance(piece, Image):
            detail = {} if piece.detail == "auto" else {"detail": piece.detail}
            parts.append({"type": "image_url", "image_url": {"url": data_url(piece), **detail}})
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += piece
        else:
            parts.append({"type": "text", "text": piece})
    return parts
