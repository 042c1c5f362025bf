"""Templates that compute for ever, or take all memory: the model loads without its template, and says why; nothing hangs."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from lmc.backend.engine import template_sandbox, template_worker
from lmc.backend.engine.chat_template import MissingTemplate, cut
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.engine.whole_template import whole
from lmc.errors import ProgramError
from tests.searching import some
from tests.templates_here import templates_here as templates_here

HOSTILE = {
    "a long text": ("{{ 'a' * 10**10 }}", "repeats a sequence"),
    "a long text, the other way": ("{{ 10**10 * 'a' }}", "repeats a sequence"),
    "a long list": ("{{ ([0] * 10**9) | length }}", "repeats a sequence"),
    "a power": ("{{ 2 ** (2 ** 40) }}", "large power"),
    "a power of texts' lengths": ("{% set n = messages | length %}{{ (n + 9) ** (9 ** 9) }}", "large power"),
    "ranges in ranges": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    "a macro that calls itself twice": ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}", "steps"),
    "much text": ("{% for i in range(99999) %}{{ 'abcdefghij' * 100 }}{% endfor %}", "characters"),
    "a text that doubles": ("{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
    "a wide text": ("{{ 'a' | center(10**10) }}", "memory|large power"),
    "a list within itself": ("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}", "memory|too long"),
    "a wide format": ("{{ '%9999999999d' % 1 }}", "memory|too long|refuses"),
    "deep brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "does not parse|too long"),
    "no end": ("{% for", "does not parse"),
}


@pytest.fixture(scope="module")
def tokens():
    raw = RawTokenizer(models.BPE())
    raw.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(raw, eos_token_ids=(1,), bos_token_id=0)


@some("name", HOSTILE, 9)
def test_a_hostile_template_is_left_out_with_a_reason(tokens, name):
    source, why = HOSTILE[name]
    found = cut(source, tokens, name="m")
    assert isinstance(found, MissingTemplate)
    with pytest.raises(ProgramError, match=f"(?s)user messages need a chat template, and m has one.*({why})"):
        found.begin("user", None)


def test_a_hostile_template_ends_a_conversation_with_tools_and_nothing_else(tokens):
    template = whole("{% if tools %}{{ 'a' * 10**10 }}{% else %}{{ messages[0].content }}{% endif %}", tokens, name="m")
    for _ in range(2):
        with pytest.raises(ProgramError, match="the chat template of m cannot be run: it repeats a sequence"):
            template.render([{"role": "user", "content": "Hi"}], [{"name": "f"}])
        assert template.render([{"role": "user", "content": "Hi"}], []) == ("Hi",)


def test_a_process_that_was_ended_is_started_again(tokens):
    sandbox = template_sandbox.Sandbox("{{ messages[0] }}{{ [1] * messages[1] | int }}", {})
    assert sandbox.render(["a", 1], False) == "a[1]"
    sandbox._process.kill()
    sandbox._process.wait()
    assert sandbox.render(["b", 2], False) == "b[1, 1]"
    process = sandbox._process
    del sandbox
    assert process.wait(60) is not None, "it ends with whoever holds it"


@pytest.mark.usefixtures("templates_here")
def test_the_sandbox_reads_nothing():
    for source in ("{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{% include '/etc/passwd' %}", "{{ lipsum.__globals__ }}"):
        try:
            assert template_sandbox.Sandbox(source, {}).render([], False) == ""
        except template_sandbox.TemplateRefusal:
            continue


def test_what_a_template_may_do_it_may_do_for_long():
    """The limits are per rendering, not for a server's life."""
    sandbox = template_sandbox.Sandbox("{% for m in messages %}{{ m }}{% endfor %}", {})
    many = ["x"] * (template_worker.STEPS // 2)
    assert all(sandbox.render(many, False) == "x" * len(many) for _ in range(3))
