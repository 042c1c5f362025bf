"""Chat templates of the common kinds are cut into constants, or say clearly why they cannot be."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from lmc.backend.engine.chat_template import CutTemplate, MissingTemplate, cut
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.errors import ProgramError
from lmc.prompt import Special, plain

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ALTERNATE = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
LLAMA3 = r"""{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    + ALTERNATE
    + "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
LAST_SYSTEM = """{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}{%- set messages = messages[1:] %}{%- endif %}{{- bos_token }}{%- for message in messages %}{%- if message["role"] == "user" %}{%- if loop.last and system is defined %}{{- "[INST] " + system + "\n\n" + message["content"] + "[/INST]" }}{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}{%- else %}{{- " " + message["content"] + eos_token }}{%- endif %}{%- endfor %}"""
LLAMA2 = (
    r"""{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"""
    + ALTERNATE
    + r"""{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content + ' [/INST]' }}{% else %}{{ ' ' + content + ' ' + eos_token }}{% endif %}{% endfor %}"""
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    + ALTERNATE
    + r"""{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
)


@pytest.fixture(scope="module")
def tokens():
    raw = RawTokenizer(models.BPE())
    raw.add_special_tokens(SPECIALS)
    return Tokenizer(raw, eos_token_ids=(raw.token_to_id("</s>"),), bos_token_id=raw.token_to_id("<s>"))


@pytest.fixture
def cut_it(tokens):
    return lambda source, name="m": cut(source, tokens, name=name)


def written(template, *messages: tuple[str, str]) -> str:
    text, previous = "", None
    for role, content in messages:
        text += plain(template.begin(role, previous)) + content + plain(template.end(role))
        previous = role
    return text + plain(template.begin("assistant", previous))


def test_chatml_with_a_default_system_message(cut_it):
    template = cut_it(CHATML)
    assert template.begin("user", None) == (
        Special("<|im_start|>"),
        "system\nYou are helpful.",
        Special("<|im_end|>"),
        "\n",
        Special("<|im_start|>"),
        "user\n",
    )
    assert template.begin("system", None) == (Special("<|im_start|>"), "system\n")
    assert template.begin("assistant", "user") == (Special("<|im_start|>"), "assistant\n")
    assert template.end("user") == (Special("<|im_end|>"), "\n")
    assert template.notes == ()


def test_llama3_writes_bos_once_and_its_trimming_is_noted(cut_it):
    template = cut_it(LLAMA3)
    assert written(template, ("system", "S"), ("user", "U")) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert template.notes == ("trims or pads contents; lmc leaves them as they are",)


def test_mistral_has_no_prefix_for_the_assistant_and_refuses_system(cut_it):
    template = cut_it(MISTRAL)
    assert (
        written(template, ("user", "U"), ("assistant", "A"), ("user", "V"))
        == "<s>[INST] U [/INST]A</s>[INST] V [/INST]"
    )
    with pytest.raises(ProgramError, match="chat template of m cannot place a system message first: roles must alternate"):
        template.begin("system", None)


def test_a_system_message_that_is_written_elsewhere_is_refused_and_the_rest_is_kept(cut_it):
    template = cut_it(LAST_SYSTEM)
    assert (
        written(template, ("user", "U"), ("assistant", " A"), ("user", "V"))
        == "<s>[INST] U[/INST] A</s>[INST] V[/INST]"
    )
    with pytest.raises(ProgramError, match="cannot place a system message: it does not write it as it is where it stands"):
        template.begin("system", None)


def test_llama2_folds_the_system_message_into_the_first_turn(cut_it):
    template = cut_it(LLAMA2)
    assert written(template, ("system", "S"), ("user", "U"), ("assistant", " A"), ("user", "V")) == (
        "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]"
    )


def test_gemma_names_the_assistant_model(cut_it):
    template = cut_it(GEMMA)
    assert written(template, ("user", "U"), ("assistant", "A"), ("user", "V")) == (
        "<s><start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(ProgramError, match="System role not supported"):
        template.begin("system", None)


def test_an_order_that_the_template_refuses_uses_the_usual_prefix(cut_it):
    assert plain(cut_it(MISTRAL).begin("user", "user")) == "[INST] "


def test_an_unknown_role_names_the_known_ones(cut_it):
    with pytest.raises(ProgramError, match="cannot place a critic message: it knows system, user, assistant, tool"):
        cut_it(CHATML).begin("critic", "user")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for", "does not parse as Jinja"),
        ("{{ messages | length }} messages", "drops, repeats or reorders contents"),
        ("{% for m in messages %}{{ m.role }}{{ messages | length }}: {{ m.content }};{% endfor %}", "is not"),
        ("{{ raise_exception('never') }}", "never"),
    ],
)
def test_what_cannot_be_cut_says_why_when_a_role_is_used(cut_it, source, why):
    template = cut_it(source)
    assert isinstance(template, MissingTemplate)
    with pytest.raises(ProgramError, match=why):
        template.begin("user", None)


def test_a_base_model_has_no_roles(cut_it):
    with pytest.raises(ProgramError, match="user messages need a chat template, and m has none"):
        cut_it(None).begin("user", None)


def test_templates_run_in_a_sandbox(cut_it):
    template = cut_it(
        "{{ messages.__class__.__mro__[1].__subclasses__() }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert isinstance(template, MissingTemplate)


@pytest.mark.model
def test_the_small_models_own_template(cut_it):
    from lmc.backend.engine.models.loader import load

    template = load("smollm2").chat_template
    assert isinstance(template, CutTemplate)
    assert written(template, ("user", "Hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.notes == ()
