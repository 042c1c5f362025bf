"""lower-chat against the models' own templates: what the pieces of a cut template write is what Jinja renders for the whole.

The templates are those of the families' model cards, shortened where they speak of tools. Rendering here is Jinja alone,
not the code that cuts.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice, product

import pytest
from jinja2 import Environment, Template
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from lmc.backend.engine import chat_template
from lmc.backend.engine.chat_template import CutTemplate, MissingTemplate, cut
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.engine.whole_template import sandbox_of
from lmc.chat import ChatTemplate
from lmc.errors import ProgramError
from lmc.ir import Builder
from lmc.passes.base import Target
from lmc.passes.manager import PassManager, parse_pipeline
from lmc.segments import Mark, plain
from tests.searching import TIMES, some
from tests.templates_here import templates_here as templates_here

pytestmark = pytest.mark.usefixtures("templates_here")

SPECIALS = (
    "<s> </s> <|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <bos> <start_of_turn> "
    "<end_of_turn> <|system|> <|user|> <|assistant|> <|end|> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> [INST] [/INST]"
).split()

ALTERNATE = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"

FAMILIES: dict[str, str] = {
    "chatml": r"""{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "qwen2.5": r"""{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %}{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}{%- endif %}{%- for message in messages %}{%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
    "llama-2": r"""{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"""
    + ALTERNATE
    + r"""{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama-3": r"""{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "mistral": "{{ bos_token }}{% for message in messages %}"
    + ALTERNATE
    + """{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "gemma": r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"""
    + ALTERNATE
    + r"""{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}""",
    "phi-3": r"""{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}""",
    "zephyr": r"""{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + eos_token }}{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{% endfor %}""",
    "deepseek-v3": r"""{% set ns = namespace(is_first=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{{'<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{'<｜Assistant｜>'}}{% endif %}""",
    # one that thinks: earlier thoughts are taken out of the conversation
    "qwen3": r"""{%- set ns = namespace(last=0) %}{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for message in messages %}{%- if message.role == 'assistant' %}{%- if loop.index0 > ns.last %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message.content + '<|im_end|>\n' }}{%- else %}{{- '<|im_start|>assistant\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
}
BOS = {"llama-3": "<|begin_of_text|>", "gemma": "<bos>", "deepseek-v3": "<｜begin▁of▁sentence｜>"}
EOS = {"deepseek-v3": "<｜end▁of▁sentence｜>"}

LEAD = {"llama-2": " ", "zephyr": "\n"}
"""Text that these families expect the model to write itself before its answer: in lmc it is part of the answer."""

# no template that is cut may say anything else than the whole, however long the conversation
TURNS = [
    ("system",) * s + turns
    for s in (0, 1)
    for turns in [("user",), *(("user",) + ("assistant", "user") * n for n in (1, 2, 3, 4))]
]


@cache
def template_of(family: str) -> ChatTemplate:
    return cut(FAMILIES[family], tokenizer(family), name=family)


def tokenizer(family: str) -> Tokenizer:
    raw = RawTokenizer(models.BPE())
    raw.add_special_tokens(SPECIALS)
    eos, bos = raw.token_to_id(EOS.get(family, "</s>")), raw.token_to_id(BOS.get(family, "<s>"))
    return Tokenizer(raw, eos_token_ids=(eos,), bos_token_id=bos)


@cache
def whole_template(family: str) -> Template:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    env = Environment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = refuse
    return env.from_string(FAMILIES[family])


def rendered(family: str, messages: list[tuple[str, str]]) -> str:
    """The whole conversation by Jinja; raises TemplateError when the template refuses it."""
    return whole_template(family).render(
        messages=[{"role": role, "content": content} for role, content in messages],
        add_generation_prompt=True,
        bos_token=BOS.get(family, "<s>"),
        eos_token=EOS.get(family, "</s>"),
    )


def lowered(template: ChatTemplate, messages: list[tuple[str, str]]) -> str:
    """The conversation as a program's role ops, through the pass, as a person reads it."""
    b = Builder("chat")
    (ctx,) = b.emit("ctx.new")
    previous: str | None = None
    for role, content in messages:
        (ctx,) = b.emit("role.begin", (ctx,), {"role": role, "previous": previous})
        (ctx,) = b.emit("append", (ctx, content))
        (ctx,) = b.emit("role.end", (ctx,), {"role": role})
        previous = role
    (ctx,) = b.emit("role.begin", (ctx,), {"role": "assistant", "previous": previous})
    b.terminate("return", (None, ctx), {"vars": ()})
    graph = PassManager(parse_pipeline("lower-chat,canonicalize")).run(b.build(), Target(template=template))
    parts = [x for op in graph.ops() if op.kind == "append" for x in op.operands[1:]]
    return plain([p for p in parts if not isinstance(p, Mark)])  # pyright: ignore


@some("family", FAMILIES, 2)
def test_the_pieces_write_what_the_whole_template_renders(family: str) -> None:
    template = template_of(family)
    seen = 0
    for roles in TURNS:
        messages = [(role, f"Text {i}.\n  Of {role}") for i, role in enumerate(roles)]
        try:
            whole = rendered(family, messages)
        except TemplateError:
            continue  # the model's own template refuses it
        try:
            pieces = lowered(template, [(r, LEAD.get(family, "") + c if r == "assistant" else c) for r, c in messages])
        except ProgramError:
            continue  # refused, and said so: never wrong
        assert pieces == whole
        seen += 1
    assert seen or isinstance(template, MissingTemplate)


EXACT = {
    "chatml": 10,
    "qwen2.5": 10,
    "llama-2": 10,
    "llama-3": 10,
    "mistral": 5,
    "gemma": 5,
    "phi-3": 10,
    "zephyr": 10,
    "deepseek-v3": 10,
    "qwen3": 10,
}


@some("family", FAMILIES, 2)
def test_how_many_conversations_each_family_can_hold(family: str) -> None:
    """Of five without and five with a system message."""
    template, held = template_of(family), 0
    for roles in TURNS:
        try:
            lowered(template, [(role, "x") for role in roles])
            held += 1
        except ProgramError:
            pass
    assert held == EXACT[family]


TRAPS = {
    "counts the messages": "{% for m in messages %}{{ m.role }} {{ loop.length }}: {{ m.content }}\n{% endfor %}",
    "numbers the messages": "{% for m in messages %}{{ m.role }} {{ loop.index }}: {{ m.content }}\n{% endfor %}assistant {{ messages|length + 1 }}: ",
    "keeps the last three": "{% for m in messages[-3:] %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
    "writes the first user once more": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Remember: {{ messages[0].content }}\nassistant: ",
    "shouts": "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}assistant: ",
    "keeps the last eight": "{% for m in messages[-8:] %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
    "keeps the last thirty": "{% for m in messages[-30:] %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
    "numbers the eighth": "{% for m in messages %}{% if loop.index == 8 %}[8]{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
    "escapes": "{% for m in messages %}{{ m.role }}: {{ m.content|e }}\n{% endfor %}assistant: ",
    "quotes as JSON": "{% for m in messages %}{{ m.role }}: {{ m.content|tojson }}\n{% endfor %}assistant: ",
    "marks questions": "{% for m in messages %}{{ m.role }}: {% if '?' in m.content %}Q: {% endif %}{{ m.content }}\n{% endfor %}assistant: ",
    "obeys commands": "{% for m in messages %}{{ m.role }}: {% if m.content.startswith('/fast') %}!{% endif %}{{ m.content }}\n{% endfor %}assistant: ",
    "knows one text": "{% for m in messages %}{{ m.role }}: {% if m.content == 'Text' %}!{% endif %}{{ m.content }}\n{% endfor %}assistant: ",
    "cuts long contents": "{% for m in messages %}{{ m.role }}: {{ m.content|truncate(900) }}\n{% endfor %}assistant: ",
    "takes marks out": "{% for m in messages %}{{ m.role }}: {{ m.content.replace('##', '') }}\n{% endfor %}assistant: ",
    "says a text once": "{% for m in messages %}{% if loop.first or m.content != messages[0].content %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor "
                        "%}assistant: ",
}


@cache
def trapped(source: str) -> ChatTemplate:
    return cut(source, tokenizer("chatml"), name="trap")


@some("trap", TRAPS, 2)
def test_what_cannot_be_cut_is_never_written_wrong(trap: str) -> None:
    template = trapped(TRAPS[trap])
    for roles in islice(product(["user", "assistant", "system"], repeat=4), 0, None, 1 if TIMES else 8):
        messages = [(role, f"Text {i}") for i, role in enumerate(roles)]
        try:
            pieces = lowered(template, messages)
        except ProgramError:
            continue
        whole = _whole(TRAPS[trap]).render(messages=[{"role": r, "content": c} for r, c in messages])
        assert pieces == whole


CONTENTS = ["Text", "", "<&?\"'", "{{ x }}{% y %}", "é日本🙂", "/fast ##1", "word " * 300, "a\n\n  b", "\\n `x` http://a.b"]


_whole = cache(lambda source: Environment(trim_blocks=True, lstrip_blocks=True).from_string(source))


@some("trap", [*TRAPS, "none"], 2)
def test_long_conversations_and_odd_contents_are_never_written_wrong(trap: str) -> None:
    source = TRAPS.get(trap, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ")
    template = trapped(source)
    for content, length in product(CONTENTS, (1, 2, 9, 11, 33)) if TIMES else zip(CONTENTS, cycle((2, 11, 3))):
        messages = [(("user", "assistant")[i % 2], content) for i in range(length)]
        try:
            pieces = lowered(template, messages)
        except ProgramError:
            assert trap != "none"
            continue
        whole = _whole(source).render(messages=[{"role": r, "content": c} for r, c in messages])
        assert pieces == whole


@some("family", FAMILIES, 2)
def test_the_families_hold_long_conversations_and_odd_contents(family: str) -> None:
    template = template_of(family)
    roles = ["user", "assistant"] * 5 + ["user"]
    for content in CONTENTS:
        messages = [(role, content) for role in roles]
        pieces = lowered(template, [(r, LEAD.get(family, "") + c if r == "assistant" else c) for r, c in messages])
        assert "".join(pieces.split()) == "".join(rendered(family, messages).split())
        if content == content.strip():
            assert pieces == rendered(family, messages)


THINKS = (
    r"""{%- for message in messages %}{%- set content = message.content %}{%- if message.role == 'assistant' and '</think>' in content %}"""
    r"""{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"""
    r"""{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
)


def test_a_template_that_takes_thoughts_out_of_answers_is_used_and_says_so() -> None:
    template = cut(THINKS, tokenizer("chatml"), name="thinks")
    assert isinstance(template, CutTemplate)
    assert template.notes == ("takes thoughts out of earlier answers; lmc leaves them as they are",)


def test_one_that_takes_thoughts_out_of_all_messages_is_refused() -> None:
    source = THINKS.replace("message.role == 'assistant' and ", "")
    assert isinstance(cut(source, tokenizer("chatml"), name="thinks"), MissingTemplate)


def test_a_template_with_a_command_in_system_messages_refuses_these_alone() -> None:
    source = ("{% for m in messages %}{{ m.role }}: {% if m.role == 'system' %}{{ m.content.replace('/fast', '') }}{% else %}{{ m.content }}{% endif %}{{ "
              "'\n' }}{% endfor %}assistant: ")
    template = cut(source, tokenizer("chatml"), name="commands")
    assert isinstance(template, CutTemplate)
    assert lowered(template, [("user", "/fast")]) == "user: /fast\nassistant: "
    with pytest.raises(ProgramError, match="cannot place a system message: it does not write it as it is"):
        lowered(template, [("system", "Be kind.")])


def test_an_empty_message_that_is_left_out_is_noted() -> None:
    source = "{% for m in messages if m.content %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    template = cut(source, tokenizer("chatml"), name="empty")
    assert isinstance(template, CutTemplate)
    assert template.notes == ("writes messages without content in another way; lmc writes them like others",)


@pytest.mark.search
def test_looking_for_traps_costs_few_renderings() -> None:
    """Each is well below a millisecond."""
    counted: list[int] = []
    for family in list(FAMILIES)[:: 1 if TIMES else 4]:
        source, tok = FAMILIES[family], tokenizer(family)
        cutter = chat_template._Cutter(lambda m, a: "", tok, family, *sandbox_of(source, tok).open())  # pyright: ignore[reportPrivateUsage]
        counted.append(len(list(cutter._conversations())))  # pyright: ignore[reportPrivateUsage]
    assert max(counted) < 250
