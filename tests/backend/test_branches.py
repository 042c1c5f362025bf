"""Arms of decisions asked ahead: same answers, fewer waits, what was in vain is counted; never an effect."""

from __future__ import annotations

import pytest

import lmc

called: list[str] = []


@lmc.function
def triage(s, q):
    s += "Q: " + q + "\n"
    (check,) = s.fork(1)
    check += "Hard?" + lmc.select("hard", ["yes", "no"])
    if check["hard"] == "yes":
        s += "Think:" + lmc.gen("a", max_tokens=8)
    else:
        s += "Say:" + lmc.gen("a", max_tokens=8)
    return s["a"]


@lmc.function
def acts(s, q):
    s += q
    (check,) = s.fork(1)
    check += "?" + lmc.select("do", ["yes", "no"])
    if check["do"] == "yes":
        called.append(q)
        s += "Done:" + lmc.gen("a", max_tokens=8)
    else:
        s += "Left:" + lmc.gen("a", max_tokens=8)
    return s["a"]


class Recorder:
    """A mock whose handles say which were cancelled."""

    def __init__(self, **options):
        self.mock = lmc.Mock(**options)
        self.guessed = 0

    def submit(self, parent, segments, hints=None):
        self.guessed += hints is not None and hints.guess
        return self.mock.submit(parent, segments, hints)

    def __getattr__(self, name):
        return getattr(self.mock, name)


def _answers(hard):
    return lambda prompt, ask: hard if ask.name in ("hard", "do") else None


@pytest.mark.parametrize("hard", ("yes", "no"))
def test_both_arms_are_asked_before_the_decision(hard):
    backend = Recorder(answers=_answers(hard), latency=0.01)
    fast = lmc.compile(triage, backend=backend)
    expected = [fast(q=q, seed=3).ret_value for q in ("a", "b")]
    before = len(backend.call_log)
    assert [fast(q=q, seed=3, speculate="branches").ret_value for q in ("a", "b")] == expected
    assert backend.guessed == 4 and len(backend.call_log) - before <= 6
    assert fast.stats.wasted == 2


def test_off_by_default():
    backend = Recorder(answers=_answers("yes"), latency=0.01)
    fast = lmc.compile(triage, backend=backend)
    fast(q="a"), fast(q="b")
    assert not backend.guessed and len(backend.call_log) == 4 and not fast.stats.wasted


def test_a_batch():
    backend = Recorder(answers=lambda prompt, ask: ("yes" if "b" in prompt else "no") if ask.name == "hard" else None, latency=0.01)
    fast = lmc.compile(triage, backend=backend)
    items = [{"q": q} for q in "abcb"]
    expected = [s.ret_value for s in fast.batch(items, seed=1)]
    assert [s.ret_value for s in fast.batch(items, seed=1, speculate="branches")] == expected
    assert backend.guessed == 8 and fast.stats.wasted == 4


def test_never_an_effect_nor_what_stands_behind_one():
    called.clear()
    backend = Recorder(answers=_answers("no"), latency=0.01)
    fast = lmc.compile(acts, backend=backend)
    for q in "ab":
        fast(q=q, speculate="branches")
    assert not called and fast.stats.wasted == 0
    other = Recorder(answers=_answers("yes"), latency=0.01)
    fast(q="c", speculate="branches", backend=other)
    assert called == ["c"]


@lmc.function
def goes_on(s):
    s += lmc.select("x", ["yes", "no"])
    if s["x"] == "yes":
        s += lmc.gen("a", max_tokens=4)
    else:
        s += lmc.gen("b", max_tokens=4)


def test_nothing_whose_prompt_is_not_known_yet():
    """It would begin no sooner."""
    backend = Recorder(latency=0.01)
    fast = lmc.compile(goes_on, backend=backend)
    fast(), fast(speculate="branches")
    assert not backend.guessed


def test_another_value_is_refused():
    with pytest.raises(lmc.ParameterError, match="'branches'"):
        lmc.compile(triage)("a", speculate="all")
