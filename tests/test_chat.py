"""Named chat templates: what they write, and where their special tokens are."""

from __future__ import annotations

import pytest

from lmc.chat import CHATML, ChatTemplate, RoleTemplate, get_chat_template, parts, register_chat_template
from lmc.errors import ProgramError
from lmc.segments import Part, Special, plain


def conversation(template: ChatTemplate, *messages: tuple[str, str]) -> str:
    found: list[Part] = []
    previous = None
    for role, content in messages:
        found += [*template.begin(role, previous), content, *template.end(role)]
        previous = role
    return plain(found)


TALK = (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
                   "<|im_start|>user\nV<|im_end|>\n"),
        ("default", "SYSTEM:S\nUSER:U\nASSISTANT:A\nUSER:V\n"),
        ("llama-2-chat", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]"),
        ("mistral", "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]A</s>[INST]V[/INST]"),
        ("claude", "S\n\nHuman: U\n\nAssistant:A\n\nHuman: V"),
    ],
)  # fmt: skip
def test_a_conversation(name: str, written: str) -> None:
    assert conversation(get_chat_template(name), *TALK) == written


def test_bos_comes_once() -> None:
    text = conversation(get_chat_template("llama-3-instruct"), *TALK)
    assert text.count("<|begin_of_text|>") == 1
    assert text.startswith("<|begin_of_text|><|start_header_id|>system")
    without = conversation(get_chat_template("llama-3-instruct"), ("user", "U"))
    assert without.startswith("<|begin_of_text|><|start_header_id|>user")


def test_default_system_message_only_where_none_is_given() -> None:
    qwen = get_chat_template("qwen")
    assert conversation(qwen, ("user", "U")).startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
    assert "helpful" not in conversation(qwen, ("system", "S"), ("user", "U"))


def test_template_tokens_are_special_and_text_is_not() -> None:
    assert CHATML.begin("user", None) == (Special("<|im_start|>"), "user\n")
    assert parts("[INST] hi</s>") == (Special("[INST]"), " hi", Special("</s>"))
    assert get_chat_template("llama-2-chat").begin("user", None) == (Special("<s>"), "[INST] ")


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ProgramError, match=r"no chat template 'chatlm'; there are .*chatml"):
        get_chat_template("chatlm")
    with pytest.raises(ProgramError, match="'gemma-it' has no role 'system'"):
        get_chat_template("gemma-it").begin("system", None)


def test_registered_templates_are_found_by_name() -> None:
    mine = RoleTemplate("test-mine", {"user": (("U:",), ("\n",))})
    assert register_chat_template(mine) is mine
    assert get_chat_template("test-mine") is mine
