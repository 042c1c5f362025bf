"""Certificates: what two backends do the same of, how sure that is, and where they part."""

from __future__ import annotations

import json
import math

import pytest

import lmc
from lmc.certifying import least_share
from lmc.errors import ParameterError


@lmc.function
def triage(s, text):
    s += lmc.user("Is this urgent? " + text) + lmc.assistant(lmc.gen("urgent", max_tokens=4))
    if s["urgent"] == "yes":
        s += lmc.user("Who takes it?") + lmc.assistant(lmc.gen("who", max_tokens=4))
        return s["who"]
    s += lmc.user("Why not?") + lmc.assistant(lmc.gen("why", max_tokens=9))
    return "nobody"


ITEMS = [{"text": f"ticket {i}"} for i in range(20)]


def says(urgent: str = "yes", who: str = "ops", why: str = "it can wait"):
    """A backend: urgent are tickets with 1 in their number; `urgent` for the last of these."""

    def say(prompt: str, ask) -> str:
        if ask.name == "urgent":
            return urgent if "ticket 19" in prompt else "yes" if "ticket 1" in prompt else "no"
        return {"who": who, "why": why}[ask.name]

    return lmc.Mock(say)


@pytest.mark.parametrize("program", [triage, lmc.compile(triage, backend=lmc.Mock())], ids=["interpreted", "compiled"])
def test_equal_runs_are_certified(program):
    found = lmc.certify(program, ITEMS, says(), says())
    assert (found.values.equal, found.paths.equal, found.texts.equal, found.common) == (20, 20, 20, 1.0)
    assert not found.differing and not found.sites
    assert found.values.least == pytest.approx(0.05 ** (1 / 20))


@pytest.mark.parametrize("program", [triage, lmc.compile(triage, backend=lmc.Mock())], ids=["interpreted", "compiled"])
def test_an_item_on_another_way_is_named_with_where_it_parted(program):
    found = lmc.certify(program, ITEMS, says(), says(urgent="no"), confidence=0.9)
    assert (found.values.equal, found.paths.equal) == (19, 19)
    (item,) = found.differing
    assert item.index == 19 and item.values == ("'ops'", "'nobody'") and 0 < item.common < 1
    ((site, n),) = found.sites.items()
    assert (site.name, n) == ("urgent", 1) and site.loc is not None and site.loc.file == __file__
    assert "19 of 20 (95.0%), at least 81.9%" in str(found) and "item 19: 'ops' / 'nobody', from urgent (test_certifying.py:" in str(found)
    assert "keep it on mock (a)" in found.page()
    assert json.loads(found.json())["values"] == {"equal": 19, "least": found.values.least}


@pytest.mark.parametrize("program", [triage, lmc.compile(triage, backend=lmc.Mock())], ids=["interpreted", "compiled"])
def test_named_sites_are_kept_on_the_first_backend(program):
    exact, fast = says(), says(urgent="no", who="dev")
    found = lmc.certify(program, ITEMS, exact, fast)
    assert found.values.equal == 9 and {site.name for site in found.sites} == {"urgent", "who"}
    before = fast.counters()
    again = lmc.certify(program, ITEMS, exact, lmc.Routed(fast, dict.fromkeys(found.sites, exact)))
    assert again.values.equal == 20 and not again.sites and again.backends[1] == "Routed(mock, mock) (b)"
    assert (fast.counters() - before).calls == 9, "why, of those that are not urgent"


def test_free_text_may_differ_where_values_do_not():
    found = lmc.certify(triage, ITEMS, says(), says(why="no haste"))
    assert found.values.equal == found.paths.equal == 20
    assert 0 < found.texts.equal < 20 and not found.differing and 0.5 < found.common < 1


def test_programs_that_return_nothing_are_compared_by_their_variables():
    @lmc.function
    def plain(s, q):
        s += q + lmc.gen("x", max_tokens=3)

    def say(x):
        return lmc.Mock(lambda prompt, ask: x)

    assert lmc.certify(plain, [{"q": "a"}], say("1"), say("1")).values.equal == 1
    assert lmc.certify(plain, [{"q": "a"}], say("1"), say("2")).values.equal == 0


def test_an_answer_that_cannot_be_read_is_an_outcome():
    @lmc.function
    def record(s, q):
        s += q + lmc.gen("x", max_tokens=12, json_schema={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})

    whole, cut = lmc.Mock(lambda prompt, ask: '{"a":"b"}'), lmc.Mock(lambda prompt, ask: '{"a":"a long one"}')
    assert lmc.certify(record, [{"q": "a"}], cut, cut).values.equal == 1
    (item,) = lmc.certify(record, [{"q": "a"}], whole, cut).items
    assert not item.value and "IncompleteAnswer" in item.values[1] and "IncompleteAnswer" not in item.values[0]


def test_a_program_that_consumes_its_arguments_does_so_on_both():
    @lmc.function
    def emptied(s, given):
        for queue in given["queues"]:
            while queue:
                s += queue.pop(0) + lmc.gen("x", max_tokens=3)
        return s.text()

    found = lmc.certify(emptied, [{"given": {"queues": (["a", "b"], ["c"])}}], lmc.Mock(), lmc.Mock())
    assert found.values.equal == 1 and found.items[0].values[0] != "''"


@pytest.mark.model
def test_a_gen_that_fp8_changes_is_kept_in_float32():
    @lmc.function
    def described(s, word):
        s += f"A {word} is a kind of" + lmc.gen("kind", max_tokens=4) + ". Its colour is" + lmc.gen("colour", max_tokens=4)
        return s["kind"], s["colour"]

    items = [{"word": word} for word in ("stone", "gown", "storm", "fox")]
    with lmc.Engine("smollm2", max_tokens=512) as exact, lmc.Engine("smollm2", kv_dtype="fp8", max_tokens=512) as fast:
        found = lmc.certify(described, items, exact, fast, temperature=0)
        assert found.sites
        before = fast.counters().calls
        again = lmc.certify(described, items, exact, lmc.Routed(fast, dict.fromkeys(found.sites, exact)), temperature=0)
        assert not found.sites.keys() & again.sites.keys() and again.values.equal > found.values.equal
        assert fast.counters().calls - before == len(items) * (2 - len(found.sites))


def test_exceptions_are_outcomes():
    @lmc.function
    def number(s, q):
        s += q + lmc.gen("x", max_tokens=3)
        return int(s["x"])

    def say(x):
        return lmc.Mock(lambda prompt, ask: x)

    assert lmc.certify(number, [{"q": "a"}], say("u"), say("u")).values.equal == 1
    (item,) = lmc.certify(number, [{"q": "a"}], say("1"), say("u")).items
    assert not item.value and item.values[0] == "1" and "ValueError" in item.values[1]


@pytest.mark.parametrize("confidence", [0, 1, 1.5, -1])
def test_a_confidence_that_cannot_be_is_refused(confidence):
    with pytest.raises(ParameterError, match="confidence"):
        lmc.certify(triage, ITEMS, says(), says(), confidence=confidence)


def test_a_journal_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="the second backend would be given the first one's answers"):
        lmc.certify(triage, ITEMS, says(), says(urgent="no"), journal=str(tmp_path))
    assert not any(tmp_path.iterdir())


def test_without_items_nothing_is_certified():
    with pytest.raises(ParameterError, match="item"):
        lmc.certify(triage, [], says(), says())


@pytest.mark.parametrize(("equal", "n"), [(0, 5), (1, 5), (3, 5), (5, 5), (97, 100), (300, 300), (999, 1000)])
def test_the_bound_is_clopper_and_pearsons(equal, n):
    """So many or more are equal with a probability of exactly 5 % where the share is the bound."""
    p = least_share(equal, n, 0.95)
    assert 0 <= p <= equal / n
    if equal:
        tail = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(equal, n + 1))
        assert tail == pytest.approx(0.05, rel=1e-6)
