"""Foresight: what answers need next is there before they ask, and answers are the same without it."""

from __future__ import annotations

import random
import threading

import pytest

from lmc.backend.engine.automaton import AutomatonMatcher
from lmc.backend.engine.mask_prefetcher import MaskPrefetcher, Prefetched
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.regex import compile_regex
from lmc.fsm.sources import begun as machine_begun
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.small_vocabulary import small

FORM = r'\{"name": "[a-z ]{1,20}", "grade": "[ABCD]", "order(Id|Name)": "\w{1,9}"\}'


def begun(regex: str) -> Prefetched:
    vocabulary, encode = small()
    automaton = TokenAutomaton(compile_regex(regex), vocabulary)
    return Prefetched(automaton, ForcedTokens(automaton, encode))


def followed(ahead: Prefetched, seed: int, prefetcher: MaskPrefetcher | None) -> list[int]:
    """The tokens of an answer at random; with a prefetcher, nothing may be built while the answer asks."""
    want = (lambda state: prefetcher.request(ahead, state)) if prefetcher is not None else None
    matcher = AutomatonMatcher(ahead.automaton, ahead.forced, want)
    tokens, rng = list(matcher.forced()), random.Random(seed)
    for token in tokens:
        matcher.accept(token)
    while not matcher.done:
        if prefetcher is not None:
            prefetcher.wait_idle()
            assert ahead.forced is not None and matcher.state in ahead.automaton.known
        bits = matcher.bits
        legal = [i for i in range(len(ahead.automaton.vocabulary.tokens)) if bits[i // 32] >> (i % 32) & 1]
        token = rng.choice(legal)
        if token in ahead.automaton.vocabulary.eos:
            break
        matcher.accept(token)
        assert prefetcher is None or matcher.done or matcher.state in ahead.forced._runs
        run = () if matcher.done else matcher.forced()
        for forced in run:
            matcher.accept(forced)
        tokens += [token, *run]
    return tokens


def test_what_answers_need_is_built_before_they_ask_and_they_say_the_same():
    with_, without, prefetcher = begun(FORM), begun(FORM), MaskPrefetcher()
    for seed in range(4):
        assert followed(with_, seed, prefetcher) == followed(without, seed, None)
    prefetcher.close()


def test_it_ends_by_itself_and_starts_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lmc.backend.engine.mask_prefetcher._LINGERS", 0.0)
    prefetcher, ahead = MaskPrefetcher(), begun("[ab]{1,9}")
    prefetcher.request(ahead, 0)
    while (thread := prefetcher.thread) is not None:
        thread.join(timeout=60)
    assert 0 in ahead.automaton.known
    state = ahead.automaton.dfa.step(0, b"aaaa")
    prefetcher.request(ahead, state)
    prefetcher.wait_idle()
    assert state in ahead.automaton.known
    prefetcher.close()


def test_closing_drops_what_is_not_begun():
    prefetcher = MaskPrefetcher()
    for n in range(9):
        prefetcher.request(begun(f"[a-z]{{1,{n + 1}}}"), 0)
    prefetcher.close()
    assert prefetcher.idle


def test_a_row_that_the_vocabulary_cannot_begin_is_the_answers_error():
    automaton = TokenAutomaton(compile_regex("abc"), Vocabulary([b"</s>", b"a", b"ab", b"xbc"], [0]))
    prefetcher = MaskPrefetcher()
    prefetcher.request(Prefetched(automaton, None), automaton.next(0, 1))
    prefetcher.request(Prefetched(automaton, None), 0)
    prefetcher.wait_idle()
    assert list(automaton.known) == [0]
    prefetcher.close()


def test_a_state_that_takes_too_long_is_the_answers_error(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Asking whether anything may follow ended the thread, and dropped what other answers need."""
    prefetcher, other = MaskPrefetcher(), begun("[ab]{1,9}")
    slow = TokenAutomaton(machine_begun("regex", "(a|b)*"), other.automaton.vocabulary)
    monkeypatch.setattr("lmc.fsm.lazy.MOST_FORMS", 0)
    slow.dfa.begin()
    prefetcher.request(Prefetched(slow, None), 0)
    prefetcher.request(other, 0)
    prefetcher.wait_idle()
    assert "failed" not in caplog.text and not slow.known and 0 in other.automaton.known
    prefetcher.close()


def test_a_failure_is_logged_and_answers_go_on(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    prefetcher, ahead = MaskPrefetcher(), begun("[ab]{1,9}")
    with monkeypatch.context() as broken:
        broken.setattr(TokenAutomaton, "build", lambda *_: 1 / 0)
        prefetcher.request(ahead, 0)
        prefetcher.wait_idle()
    assert "building ahead failed" in caplog.text and prefetcher.thread is None
    prefetcher.request(ahead, 1)
    prefetcher.wait_idle()
    assert 1 in ahead.automaton.known
    prefetcher.close()


def test_many_threads_walk_for_each_row_once(monkeypatch: pytest.MonkeyPatch):
    walked: list[int] = []
    walk, together = Vocabulary.walked, threading.Barrier(6)

    def counted(self, dfa, state):
        walked.append(int(dfa.window[state]))
        return walk(self, dfa, state)

    monkeypatch.setattr(Vocabulary, "walked", counted)
    automaton = begun(FORM).automaton

    def all_rows() -> None:
        together.wait(timeout=60)
        for state in range(automaton.dfa.states):
            automaton.mask(state)

    threads = [threading.Thread(target=all_rows) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(walked) == len(set(walked)) == automaton.rows_built
