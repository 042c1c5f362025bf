"""Roles to text: `role.begin` and `role.end` become appends of the target's chat template, with marks where a message's content begins and ends.

For message APIs the template is empty, and only the marks remain.

The template is the model's own, cut into constants by rendering short conversations (`backend/engine/chat_template.py`).
The pieces produce exactly the text of the whole template, which is tested for ChatML, Llama 2 and 3, Mistral, Gemma, Phi 3, Qwen
2.5 and 3, Zephyr and DeepSeek V3, on conversations of up to eleven messages. A template that is not a chain of constants and
contents (one that numbers messages, drops old ones, repeats one, escapes contents or inspects them) is refused
where a role is used; lmc finds out by rendering long conversations, odd contents, and every text and number that
occurs in the template's own code. A template that trims contents, leaves out empty
messages, or removes the reasoning from earlier answers is tolerated and logged as `lmc.chat`; lmc writes what the program wrote.

An answer begins immediately after the text that prompts it. So if a family of models begins its answers with white space (a space in Llama 2, a
newline in Zephyr), that is part of the answer, and text appended in place of an answer has to include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.chat import ChatTemplate, get_chat_template
from lmc.errors import LmcError
from lmc.ir.builder import Rewriter, rewrite
from lmc.ir.core import Graph, Op
from lmc.passes.base import Pass, PassContext, register
from lmc.segments import Mark, Part


@register
@dataclass(frozen=True)
class LowerChat(Pass):
    """Lower roles by the target's chat template, or by the one named by the option `template`."""

    name: ClassVar[str] = "lower-chat"
    template: str = ""

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        template = get_chat_template(self.template) if self.template else ctx.target.template

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            if op.kind not in ("role.begin", "role.end"):
                return None
            ctx.count("roles lowered")
            return (Op("append", (*op.operands, *_parts(op, template)), op.results, {}, (), op.loc),)

        return rewrite(graph, rule)


def _parts(op: Op, template: ChatTemplate) -> tuple[Part, ...]:
    """Return the parts that a role op appends. A template's error about the role gets the location in the program."""
    role: str = op.attrs["role"]  # pyright: ignore[reportAssignmentType]
    try:
        if op.kind == "role.begin":
            return (*template.begin(role, op.attr("previous")), Mark(role, "begin"))
        return (Mark(role, "end"), *template.end(role))
    except LmcError as e:
        e.loc = e.loc or op.loc
        raise
