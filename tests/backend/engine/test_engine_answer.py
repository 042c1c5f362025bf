"""Where answers end: stop strings across every token seam, half characters, streams that never take back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.backend.engine.answer import Answer
from lmc.backend.engine.token_ids import TokenLogprob
from lmc.segments import Constraint, SamplingParams
from tests.backend.engine_fakes import EOS, FIRST_MERGE, MERGES, FakeWords, automata, ids_of
from tests.searching import search

WORDS = FakeWords()
COMPILER = automata(WORDS)


def token(data: bytes) -> int:
    return FIRST_MERGE + MERGES.index(data) if data in MERGES else data[0]


def run(tokens, *, stop_ids=(EOS,), **params):
    """The ending, and the deltas that were streamed before it."""
    fed: list[str] = []
    answer = Answer(
        WORDS, SamplingParams(**{"max_new_tokens": 1000} | params), frozenset(stop_ids), on_text=lambda delta, _: fed.append(delta)
    )
    answer.streams = True
    for i, t in enumerate(tokens):
        ending = answer.push(t)
        answer.speak()
        if ending is not None:
            assert i == answer.sampled - 1
            assert "".join(fed) == ending.text
            return ending, fed
    return None, fed


A, CHARACTER = ord("a"), tuple("世".encode())
ENDINGS = {
    "a stop that begins inside a token keeps the rest of it": ([A, token(b"aE"), *b"ND"], {"stop": ("END",)}, ("aa", (A, A), 1), ("stop", "matched", "END")),
    "eos is not part of it": ([A, EOS], {}, ("a", (A,), 1), ("stop", "matched", EOS)),
    "a length counts every token": ([A] * 9, {"max_new_tokens": 3}, ("aaa", (A,) * 3, 3), ("length", "length", 3)),
    "a length leaves no half a character": ([A, *CHARACTER], {"max_new_tokens": 3}, ("a", (A,), 1), ("length", "length", 3)),
    "half a character that the model ends with is readable": ([A, CHARACTER[0], EOS], {}, ("a\ufffd", (A, CHARACTER[0]), 2), ("stop", "matched", EOS)),
    "a cut before a character drops all its tokens": ([A, *CHARACTER, ord("b")], {"stop": ("世b",)}, ("a", (A,), 1), ("stop", "matched", "世b")),
    "a cut after a character keeps them": ([A, *CHARACTER, ord("b")], {"stop": ("b",)}, ("a世", (A, *CHARACTER), 4), ("stop", "matched", "b")),
}


@pytest.mark.parametrize("what", ENDINGS)
def test_where_an_answer_ends(what):
    tokens, params, kept, (kind, of, value) = ENDINGS[what]
    ending, _ = run(tokens, **params)
    assert ending is not None and ((ending.text, ending.ids, ending.keep), ending.reason) == (kept, {"type": kind, of: value})


def test_half_a_character_is_held_back_until_it_is_whole():
    data = "世界".encode()
    ending, fed = run([token(b"\xe4\xb8"), *data[2:], EOS])
    assert ending is not None and ending.text == "世界" and fed == ["世", "界"]


def test_streams_hold_back_what_a_stop_may_still_take():
    _, fed = run([token(b"x"), token(b"E"), token(b"N")], stop=("END",))
    assert "".join(fed) == "x"


def test_stop_regex_cuts_at_its_match_and_streams_nothing_before():
    ending, fed = run([*b"ab12cd", EOS], stop_regex=("[0-9]{2}",))
    assert ending is not None and ending.text == "ab" and ending.reason["matched"] == "[0-9]{2}" and fed == ["ab"]


STOPS = [{}, {"stop": ("ab", "bcb")}, {"stop_regex": ("a[bc]",)}, {"stop_regex": ("b(?=c)", "c{2}")}, {"stop": ("cab",), "stop_regex": ("bb",)}]


@search(30, 400)
@given(st.text("abc", min_size=1, max_size=12), st.text("abc", max_size=4), st.sampled_from(STOPS), st.integers(1, 12))
def test_looking_ahead_tells_how_an_answer_ends_and_leaves_it_as_it_is(text, other, stops, most):
    tokens = [*text.encode(), EOS]
    ending, _ = run(tokens, max_new_tokens=most, **stops)
    answer = Answer(WORDS, SamplingParams(max_new_tokens=most, **stops), frozenset((EOS,)))
    for t in tokens:
        answer.ended_by(list(other.encode()))
        if (ended := answer.push(t)) is not None:
            assert ended == ending
            break
    last = answer.sampled - 1
    for i in range(last + 1):
        answer = Answer(WORDS, SamplingParams(max_new_tokens=most, **stops), frozenset((EOS,)))
        assert not any(map(answer.push, tokens[:i])) and answer.ended_by(tokens[i:]) == (ending, last - i)


def test_looking_ahead_does_not_fail():
    """A search that takes too long fails the answer if it comes so far."""
    answer = Answer(WORDS, SamplingParams(max_new_tokens=999, stop_regex=("^(?:a|aa)+$b",)), frozenset((EOS,)))
    assert answer.push(A) is None and answer.ended_by([A] * 200 + [EOS]) is None


@search(15, 200)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_any_seams_give_the_text_before_the_first_stop(text, stops, data):
    pieces = [m.decode() for m in (b"ab",)] + ["a", "b"]
    tokens, rest = [], text
    while rest:
        piece = data.draw(st.sampled_from([p for p in pieces if rest.startswith(p)]))
        tokens.append(token(piece.encode()))
        rest = rest[len(piece) :]
    ending, _ = run([*tokens, EOS], stop=tuple(stops))
    assert ending is not None
    # the first moment at which a stop is complete decides, and of those complete then the earliest one
    shown = ""
    expected = text
    for t in tokens:
        shown += WORDS.token_bytes(t).decode()
        found = [shown.find(s) for s in stops if s in shown]
        if found:
            expected = text[: min(found)]
            break
    assert ending.text == expected
    assert WORDS.decode(ending.ids) == expected
    assert list(ending.ids[: ending.keep]) == tokens[: ending.keep]


def test_a_stream_has_each_tokens_log_probability_with_its_text():
    """Also where a stop string may begin inside of a token, a character has several tokens, and scores come late."""
    late, fed = [token(b"EN"), token(b"D")], []  # forced: their scores come with the next pass
    tokens = [token(b"x"), *"世".encode(), token(b"E"), token(b"y"), *late, token(b"z"), EOS]
    scores: list[TokenLogprob] = []
    answer = Answer(
        WORDS, SamplingParams(max_new_tokens=99, stop=("Ez",)), frozenset([EOS]), scores=scores,
        on_text=lambda delta, tokens: fed.append((delta, [t.token for t in tokens])),
    )  # fmt: skip
    answer.streams = True
    for i, t in enumerate(tokens):
        if t not in late:
            scores += [TokenLogprob(each, -1.0) for each in tokens[len(scores) : i + 1]]
        ending = answer.push(t)
        answer.speak()
    assert ending is not None
    assert ending.text == "x世EyENDz"
    assert fed == [("x", [token(b"x")]), ("世", list("世".encode())), ("Ey", [*b"Ey"]), ("ENDz", [*late, *b"z"])]


@given(seed=st.integers(0, 2**32), n=st.integers(1, 40), regex=st.sampled_from(["(yes|no), [a-c]{1,9}", '\\{"name": "[a-z ]{1,9}", "ok": (true|false)\\}']))
@search(9, 100)
def test_an_answer_whose_text_comes_later_is_the_same(seed, n, regex):
    """Nobody looks at the text of the one while it grows; that of the other is looked at for a stop that never comes."""
    rng, told = random.Random(seed), {True: "", False: ""}
    made = {}
    for late in told:

        def tell(delta, _, late=late):
            told[late] += delta

        params = SamplingParams(max_new_tokens=n, stop=() if late else ("never",))
        answer = Answer(WORDS, params, frozenset([EOS]), matcher=COMPILER.matcher(Constraint("regex", regex)), on_text=tell)
        assert answer.late == late
        answer.streams = True
        made[late] = answer
    late, heard = made[True], made[False]
    endings = None, None
    assert late.follow() == heard.follow()
    while endings[0] is None:
        token = rng.choice(ids_of(late.matcher.bits))
        endings = late.push(token), heard.push(token)
        assert endings[0] == endings[1]
        if endings[0] is None:
            (forced, end), also = late.follow(), heard.follow()
            assert (tuple(forced), end) == (tuple(also[0]), also[1])
            endings = end, also[1]
        heard.speak()
        if rng.random() < 0.5:
            late.speak()
            assert told[True].startswith(told[False]), "the other may hold back what begins its stop"
    assert endings[0] is not None and told[True] == told[False] == endings[0].text
