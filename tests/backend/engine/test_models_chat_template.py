"""Chat templates of the common kinds are cut into constants, or say clearly why they cannot be."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from lmc.backend.engine.chat_template import CutTemplate, MissingTemplate, cut
from lmc.backend.engine.prompt_pictures import Placed
from lmc.backend.engine.prompt_pictures import written as with_pictures
from lmc.backend.engine.template_sandbox import Sandbox
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.engine.whole_template import around
from lmc.errors import ProgramError
from lmc.segments import Mark, Special, plain
from tests.searching import some
from tests.templates_here import templates_here as templates_here

pytestmark = pytest.mark.usefixtures("templates_here")

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<image>"]
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


TRIMS = ("trims or pads contents; lmc leaves them as they are",)
TURNS = (("user", "U"), ("assistant", "A"), ("user", "V"))
SYSTEM = ("system", "S")


@pytest.mark.parametrize(
    ("source", "messages", "text", "notes", "without_system"),
    [
        (LLAMA3, (SYSTEM, ("user", "U")), "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n", TRIMS, None),  # the beginning is written once
        (MISTRAL, TURNS, "<s>[INST] U [/INST]A</s>[INST] V [/INST]", (), "chat template of m cannot place a system message first: roles must alternate"),
        (LAST_SYSTEM, (TURNS[0], ("assistant", " A"), TURNS[2]), "<s>[INST] U[/INST] A</s>[INST] V[/INST]", None,
         "cannot place a system message: it does not write it as it is where it stands"),
        (LLAMA2, (SYSTEM, TURNS[0], ("assistant", " A"), TURNS[2]), "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]", None, None),
        (GEMMA, TURNS, "<s><start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n"
         "<start_of_turn>model\n", TRIMS, "System role not supported"),
    ],
    ids=["llama3", "mistral", "the last system message", "llama2", "gemma"],
)  # fmt: skip
def test_templates_of_families(cut_it, source, messages, text, notes, without_system):
    template = cut_it(source)
    assert written(template, *messages) == text
    assert notes is None or template.notes == notes
    if without_system is not None:
        with pytest.raises(ProgramError, match=without_system):
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


# -- with pictures -----------------------------------------------------------------------------------------------------

IMAGES = "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
TEXTS = "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + part['text'] }}{% endfor %}"
ALL = "{% for part in message['content'] %}{{ part['text'] if part['type'] == 'text' else '<image>' }}{% endfor %}"
SEEING = {  # as the published ones of OneVision, SmolVLM and LLaVA write them
    "before each text": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}" + IMAGES + TEXTS + "<|im_end|>{% endfor %}{% if "
                                                                                                                       "add_generation_prompt %}{{ "
                                                                                                                       "'<|im_start|>assistant\n' }}{% endif %}",
    "instead of a space": "{{ '<|im_start|>' }}{% for message in messages %}{{ message['role'] | capitalize + (':' if message['content'][0]['type'] == "
                          "'image' else ': ') }}" + ALL + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "behind each picture": "{% for message in messages %}{{ message['role'] | upper + ': ' }}" + IMAGES.replace("<image>",
        "<image>\\n") + TEXTS.replace("'\n' + ", "") + " {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "special tokens around": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n" + ALL.replace("<image>",
        "<s><image></s>") + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}  # fmt: skip
CONTENTS = (
    ["What?"],
    ["<image>", "What?"],
    ["<image>", "<image>", "Which?"],
    ["<image>"],
    ["<image>", "<image>"],
    ["See ", "<image>", "!"],
    ["", "<image>", "What?"],
)


@some("kind", SEEING, 3)
def test_pictures_are_written_as_the_template_writes_them(tokens, kind):
    found, surroundings = cut(SEEING[kind], tokens, name="m", in_parts=True), around(SEEING[kind], tokens, "<image>", "image")
    sandbox = Sandbox(SEEING[kind], {})
    for content in CONTENTS:
        if "".join(content).startswith("See") and kind in ("before each text", "behind each picture"):
            continue  # the template moves it; in a program a picture stays where it is
        if "".join(content).endswith("<image>") and kind == "behind each picture":
            continue  # messages without text have the end of those with text, too
        message = [Placed((Special("<image>"),), surroundings) if part == "<image>" else part for part in content]
        run = []
        for role, parts, previous in (("user", message, None), ("assistant", ["So."], "user"), ("user", message, "assistant")):
            run += [*found.begin(role, previous), Mark(role, "begin"), *parts, Mark(role, "end"), *found.end(role)]
        run += found.begin("assistant", "user")
        given = [{"type": "image"} if part == "<image>" else {"type": "text", "text": part} for part in content if part]
        messages = [{"role": "user", "content": given}, {"role": "assistant", "content": [{"type": "text", "text": "So."}]}, {"role": "user", "content": given}]
        expected = sandbox.render(messages, True)
        for answer in ("Assistant: ", "<|im_start|>assistant \n", "ASSISTANT: "):  # an answer follows what it was asked behind
            expected = expected.replace(answer + "So.", answer.rstrip(" ").replace(" \n", "\n") + "So.")
        assert plain(with_pictures(run)) == expected
    sandbox.close()


def test_a_template_that_writes_parts_only_is_cut_for_text_as_well(cut_it):
    template = cut_it(SEEING["behind each picture"])
    assert written(template, ("user", "Hi"), ("assistant", "So."), ("user", "And?")) == "USER: Hi ASSISTANT:So. USER: And? ASSISTANT:"


def test_another_template_s_prefix_stays_whole(tokens):
    surroundings = around(SEEING["instead of a space"], tokens, "<image>", "image")
    picture = Placed((Special("<image>"),), surroundings)
    assert surroundings.replaces == (" ",)
    assert plain(with_pictures(["<user>\n", Mark("user", "begin"), picture, "What?"])) == "<user>\n<image>What?"


def test_what_is_behind_a_picture_waits_for_what_follows(tokens):
    picture = Placed((Special("<image>"),), around(SEEING["before each text"], tokens, "<image>", "image"))
    run = [Special("<|im_start|>"), "user \n", Mark("user", "begin"), picture]
    assert plain(with_pictures(run)) == "<|im_start|>user <image>\n"
    assert plain(with_pictures([*run, picture])) == "<|im_start|>user <image><image>\n"
    assert plain(with_pictures([*run, Mark("user", "end"), "."])) == "<|im_start|>user <image>."
