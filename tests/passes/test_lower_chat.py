"""Golden tests of lower-chat."""

from __future__ import annotations

import pytest

from lmc.chat import RoleTemplate
from lmc.errors import ProgramError
from lmc.passes.base import Target
from lmc.segments import Special
from tests.passes.filecheck import check

CHAT = """
    %c0 = ctx.new()
    %c1 = role.begin(%c0) {role = "user", previous = none} loc("chat.py":3)
    %c2 = append(%c1, %essay)
    %c3 = role.end(%c2) {role = "user"}
    %c4 = role.begin(%c3) {role = "assistant", previous = "user"}
    %c5, %x, %m = gen(%c4)
    return(none, %c5)
"""


def test_roles_become_the_templates_text_with_marks_inside() -> None:
    check("lower-chat", CHAT, """
        %c0 = ctx.new()
        %c1 = append(%c0, special("<|im_start|>"), "user\\n", begin("user")) loc("chat.py":3)
        %c2 = append(%c1, %essay)
        %c3 = append(%c2, end("user"), special("<|im_end|>"), "\\n")
        %c4 = append(%c3, special("<|im_start|>"), "assistant\\n", begin("assistant"))
        %c5, %x, %m = gen(%c4)
        return(none, %c5)
    """)  # fmt: skip


def test_the_first_message_brings_the_templates_default_system() -> None:
    template = RoleTemplate(
        "t", {"user": (("U:",), ("\n",)), "assistant": ((), ())}, default_system=(Special("<s>"), "Be kind.")
    )
    check("lower-chat,canonicalize", CHAT, """
        %c0 = ctx.new()
        %c4 = append(%c0, special("<s>"), "Be kind.U:", begin("user"), %essay, end("user"), "\\n", begin("assistant")) loc("chat.py":3)
        %c5, %x, %m = gen(%c4)
        return(none, %c5)
    """, target=Target(template=template))  # fmt: skip


def test_a_message_api_gets_marks_only() -> None:
    check("lower-chat,canonicalize", CHAT, """
        %c0 = ctx.new()
        %c4 = append(%c0, begin("user"), %essay, end("user"), begin("assistant")) loc("chat.py":3)
        %c5, %x, %m = gen(%c4)
        return(none, %c5)
    """, target=Target("chat", RoleTemplate("messages", dict.fromkeys(["user", "assistant"], ((), ())))))  # fmt: skip


def test_a_role_that_the_template_lacks_is_named_with_its_place() -> None:
    with pytest.raises(ProgramError, match="no role 'user'") as e:
        check("lower-chat", CHAT, "", target=Target(template=RoleTemplate("t", {"system": ((), ())})))
    assert e.value.loc is not None and e.value.loc.line == 3


def test_the_template_can_be_named() -> None:
    check("lower-chat{template = \"default\"},canonicalize", CHAT, """
        %c0 = ctx.new()
        %c4 = append(%c0, "USER:", begin("user"), %essay, end("user"), "\\nASSISTANT:", begin("assistant")) loc("chat.py":3)
        %c5, %x, %m = gen(%c4)
        return(none, %c5)
    """)  # fmt: skip
