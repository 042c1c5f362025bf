"""The engine's compiler of constraints: which become automata, and that a mask and a step never disagree."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmc.backend.engine import automaton
from lmc.backend.engine.automaton import AutomatonMatcher, ConstraintCompiler
from lmc.errors import ConstraintError, Loc, SchemaWarning
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.store import Store
from lmc.fsm.vocabulary import Vocabulary
from lmc.segments import Constraint

EOS, SPECIAL = 256, 257
TOKENS = [bytes([i]) for i in range(256)] + [b"</s>", b"<|im_start|>", b"at", b"ab", "é".encode()]


def compiler(store: Store | None = None) -> ConstraintCompiler:
    return ConstraintCompiler(TOKENS, {SPECIAL}, EOS, len(TOKENS), store=store)


def allowed(matcher: AutomatonMatcher) -> list[int]:
    words = matcher.bits
    found = [i for i in range(len(TOKENS)) if words[i // 32] >> (i % 32) & 1]
    assert found == [i for i in range(len(TOKENS)) if matcher.allows(i)]
    return found


@pytest.mark.parametrize("pattern", [r"a*\Wa", r"(?u)\w{1,3}", r"[ab]{2,5}", r"(at|ab)+é?", r"(?i)yes|no"])
def test_every_allowed_token_can_be_taken_and_endings_match(pattern: str):
    made = compiler()
    made.check(Constraint("regex", pattern), None)
    flags = 0 if "(?u)" in pattern else re.ASCII
    frontier = [(made.matcher(Constraint("regex", pattern)), b"")]
    seen = 0
    while frontier and seen < 200:
        matcher, text = frontier.pop(0)
        seen += 1
        tokens = allowed(matcher)
        assert SPECIAL not in tokens
        assert (EOS in tokens) == matcher.complete
        if matcher.complete:
            assert re.fullmatch(pattern, text.decode(), flags)
        assert matcher.done == (tokens == [EOS])
        for token in tokens[:: max(1, len(tokens) // 6)]:
            if token != EOS:
                following = AutomatonMatcher(matcher._automaton)
                following.state = matcher.state
                following.accept(token)
                frontier.append((following, text + TOKENS[token]))


def test_a_token_outside_is_refused():
    matcher = compiler().matcher(Constraint("regex", "ab"))
    with pytest.raises(RuntimeError, match="outside the constraint"):
        matcher.accept(ord("x"))


def test_what_is_large_or_recurs_is_made_while_it_is_followed():
    made = compiler()
    for constraint in (Constraint("regex", "(a|b)*a(a|b){20}"), Constraint("lark", 'start: "a" start? "b"')):
        assert made.matcher(constraint).place is None  # no device has all of it
    assert made.info().automata == made.info().lazy == 2


def test_a_new_automaton_takes_the_place_of_a_worn_one(monkeypatch: pytest.MonkeyPatch):
    made, nested = compiler(), Constraint("lark", 'start: "a" start? "b"')
    first = made.matcher(nested)
    assert made.matcher(nested)._automaton is first._automaton
    monkeypatch.setattr("lmc.fsm.lazy.WORN_ROWS", 1)
    second = made.matcher(nested)
    assert second._automaton is not first._automaton and made.info().automata == 1
    first.accept(TOKENS.index(b"a"))  # who follows the old one goes on with it
    assert allowed(first) == allowed_after(second, b"a")


def allowed_after(matcher: AutomatonMatcher, text: bytes) -> list[int]:
    matcher.accept(TOKENS.index(text))
    return allowed(matcher)


def test_what_takes_too_long_fails_the_answer_that_needs_it(monkeypatch: pytest.MonkeyPatch):
    made, regex = compiler(), Constraint("regex", "(a|b)*a(a|b){20}")
    matcher = made.matcher(regex)
    monkeypatch.setattr("lmc.fsm.lazy.MOST_FORMS", 3)
    with pytest.raises(ConstraintError, match="takes too long"):
        for _ in range(30):
            matcher.accept(TOKENS.index(b"a"))
            _ = matcher.bits
    monkeypatch.undo()
    assert made.matcher(regex).bits.any()  # others go on


class NothingCanonical:
    """Rows that take too long to find."""

    def narrowed(self, *of):
        raise ConstraintError("following this constraint takes too long")

    may_narrow = narrowed


@pytest.mark.parametrize("ask", [lambda of: of.allows(TOKENS.index(b"a")), lambda of: of.row, lambda of: of.done])
def test_what_a_sampler_asks_of_an_answer_that_fails_takes_no_others_along(ask, monkeypatch: pytest.MonkeyPatch):
    """`bits` was expected to raise; that `allows`, `row` and `done` did ended the engine."""
    matcher = compiler().matcher(Constraint("regex", "(a|b)*(a(a|b){20}c)?"))
    for text in (b"a", b"b"):
        matcher.accept(TOKENS.index(text))
    monkeypatch.setattr("lmc.fsm.lazy.MOST_FORMS", 0)
    matcher._automaton.dfa.begin()
    matcher._automaton.known[matcher.state] = compiler().matcher(Constraint("regex", "[ab]"))._automaton.row(0)
    matcher._canonical = NothingCanonical()
    assert not ask(matcher)
    monkeypatch.undo()
    matcher._canonical = None
    for again in (matcher, matcher.fork()):  # what could be found now does not let it go on
        with pytest.raises(ConstraintError, match="takes too long"):
            _ = again.bits
        assert not again.allows(TOKENS.index(b"a")) and again.row is None


def test_what_only_the_whole_answer_shows_is_checked_at_its_end():
    made = compiler()
    compile_schema.cache_clear()  # it warns of a source that it does not know yet
    schema = Constraint("json_schema", '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}')
    with pytest.warns(SchemaWarning, match="/uniqueItems is about"):
        matcher = made.matcher(schema)
    matcher.check('["a", "b"]')
    with pytest.raises(ConstraintError, match="is not valid: / must satisfy 'uniqueItems': true"):
        matcher.check('["a", "b", "a"]')


def test_an_invalid_regex_names_the_place():
    with pytest.raises(ConstraintError, match=r"prog\.py:7"):
        compiler().check(Constraint("regex", r"(a)\1"), Loc("prog.py", 7))


def test_compiled_automata_are_kept_for_other_processes(tmp_path, monkeypatch: pytest.MonkeyPatch):
    regex = Constraint("regex", r'\{"grade": "[ABCD]"\}')
    first = compiler(store=Store(tmp_path))
    masks = followed(first.matcher(regex))
    first.close()
    monkeypatch.setattr("lmc.fsm.sources.build", lambda *_: pytest.fail("built again"))
    second = compiler(store=Store(tmp_path))
    assert followed(second.matcher(regex)) == masks
    assert first.info().rows_built > 0 == second.info().rows_built
    assert second.info().automata == 1 and second.info().bytes > 1000


def test_closing_again_writes_nothing(tmp_path, monkeypatch: pytest.MonkeyPatch):
    made = compiler(store=Store(tmp_path))
    followed(made.matcher(Constraint("regex", "a{1,5}")))
    made.close()
    monkeypatch.setattr(Store, "save", lambda *_: pytest.fail("written again"))
    made.close()


def test_64_answers_of_one_regex_build_each_row_once(monkeypatch: pytest.MonkeyPatch):
    made, built = compiler(), []
    walked = Vocabulary.walked
    monkeypatch.setattr(Vocabulary, "walked", lambda *args: (built.append(args), walked(*args))[1])
    regex = Constraint("regex", r"[ab]{1,9}é?")
    once = followed(made.matcher(regex))
    rows = made.info().rows_built
    assert all(followed(made.matcher(regex)) == once for _ in range(63))
    assert len(built) == made.info().rows_built == rows > 0 and made.info().automata == 1


def followed(matcher: AutomatonMatcher) -> list[list[int]]:
    """The masks along the first allowed tokens."""
    masks: list[list[int]] = []
    while not matcher.done and len(masks) < 12:
        masks.append(allowed(matcher))
        matcher.accept(next(t for t in masks[-1] if t != EOS))
    return masks


def test_while_a_constraint_is_compiled_others_are_at_hand(monkeypatch):
    """The engine's loop asks for matchers; it must not wait for what another thread compiles."""
    shared = compiler()
    began, go_on, made = threading.Event(), threading.Event(), []
    real = automaton.machine_of

    def slow(kind: str, source: str):
        made.append(source)
        if source == "slow":
            began.set()
            assert go_on.wait(60)
        return real(kind, source)

    monkeypatch.setattr(automaton, "machine_of", slow)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(shared.matcher, Constraint("regex", "slow")) for _ in range(2)]
        assert began.wait(60)
        shared.matcher(Constraint("regex", "quick"))
        assert not any(w.done() for w in waiting)
        go_on.set()
        assert [w.result().complete for w in waiting] == [False, False]
    assert sorted(made) == ["quick", "slow"]  # who asked second waited for the first
