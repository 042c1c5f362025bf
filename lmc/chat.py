"""Chat templates: what a role puts before and after its content.

A template is cut once into constant prefixes and suffixes, so that appending a message never renders the
conversation again. `previous` is the role of the message before, None for the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lmc.prompt import Part, Special


class ChatTemplate(Protocol):
    """How one model family writes a conversation."""

    @property
    def name(self) -> str: ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an assistant turn besides the model's EOS."""
        ...

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        """Before the content of `role`; for a first message it includes the template's default system message."""
        ...

    def end(self, role: str) -> tuple[Part, ...]:
        """After the content of `role`."""
        ...


@dataclass(frozen=True)
class RoleTemplate:
    """A template given by prefix and suffix per role, and the system message it inserts when the first is another."""

    name: str
    roles: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]]
    default_system: tuple[Part, ...] = ()
    stop: tuple[str, ...] = ()
    first: dict[str, tuple[Part, ...]] = field(default_factory=dict)  # prefixes that differ at the start

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        prefix = self.roles[role][0] if role in self.roles else ()
        if previous is None:
            prefix = self.first.get(role, prefix)
            if role != "system":
                return self.default_system + prefix
        return prefix

    def end(self, role: str) -> tuple[Part, ...]:
        return self.roles[role][1] if role in self.roles else ()


def _chatml_role(role: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    return (Special("<|im_start|>"), f"{role}\n"), (Special("<|im_end|>"), "\n")


CHATML = RoleTemplate("chatml", {role: _chatml_role(role) for role in ("system", "user", "assistant", "tool")})
