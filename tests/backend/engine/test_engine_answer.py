"""Where answers end: stop strings across every token seam, half characters, streams that never take back."""

from __future__ import annotations

import itertools
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


SPLITS = [list(p) for p in (["x", "y", "E", "N", "D", "z"], ["x", "y", "EN", "D", "z"], ["x", "y", "END", "z"])]


@pytest.mark.parametrize("pieces", SPLITS)
def test_a_stop_is_found_whatever_tokens_spell_it(pieces):
    ending, _ = run([token(p.encode()) for p in pieces], stop=("END",))
    assert ending is not None
    assert (ending.text, ending.keep, ending.reason) == ("xy", 2, {"type": "stop", "matched": "END"})
    assert WORDS.decode(ending.ids) == "xy"


def test_a_stop_that_begins_inside_a_token_keeps_the_rest_of_it():
    ending, _ = run([token(b"x"), token(b"aE"), token(b"N"), token(b"D")], stop=("END",))
    assert ending is not None
    assert (ending.text, ending.keep, ending.ids) == ("xa", 1, (ord("x"), ord("a")))


def test_the_earliest_stop_wins():
    ending, _ = run([token(b"the "), token(b" cat")], stop=("cat", "he"))
    assert ending is not None and ending.text == "t"


def test_eos_and_stop_tokens_are_not_part_of_the_answer():
    ending, _ = run([97, EOS])
    assert ending is not None and (ending.text, ending.ids, ending.keep) == ("a", (97,), 1)
    assert ending.reason == {"type": "stop", "matched": EOS}


def test_length_counts_every_token():
    ending, _ = run([97] * 9, max_new_tokens=3)
    assert ending is not None and (ending.text, ending.reason) == ("aaa", {"type": "length", "length": 3})


def test_half_a_character_is_held_back_until_it_is_whole():
    data = "世界".encode()
    ending, fed = run([token(b"\xe4\xb8"), *data[2:], EOS])
    assert ending is not None and ending.text == "世界" and fed == ["世", "界"]


def test_an_answer_that_a_length_cuts_does_not_end_in_half_a_character():
    ending, _ = run([97, 0xE4, 0xB8], max_new_tokens=3)
    assert ending is not None and (ending.text, ending.ids, ending.keep) == ("a", (97,), 1)
    assert ending.reason == {"type": "length", "length": 3}


def test_half_a_character_that_the_model_ends_with_reads_as_the_replacement_character():
    ending, _ = run([97, 0xE4, EOS])
    assert ending is not None and ending.text == "a\ufffd"


def test_a_cut_before_a_character_drops_all_its_tokens():
    ending, _ = run([97, *"世".encode(), 98], stop=("世b",))
    assert ending is not None and (ending.text, ending.ids, ending.keep) == ("a", (97,), 1)


def test_a_cut_after_a_character_keeps_all_its_tokens():
    ending, _ = run([97, *"世".encode(), 98], stop=("b",))
    assert ending is not None and (ending.text, ending.keep) == ("a世", 4)


def test_streams_hold_back_what_a_stop_may_still_take():
    _, fed = run([token(b"x"), token(b"E"), token(b"N")], stop=("END",))
    assert "".join(fed) == "x"


def test_stop_regex_cuts_at_its_match_and_streams_nothing_before():
    ending, fed = run([*b"ab12cd", EOS], stop_regex=("[0-9]{2}",))
    assert ending is not None and ending.text == "ab" and ending.reason["matched"] == "[0-9]{2}" and fed == ["ab"]


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


def test_every_split_of_a_stop_over_bytes():
    for cuts in itertools.product([False, True], repeat=3):
        pieces, word = [], "x"
        for c, cut in zip("END", cuts, strict=True):
            if cut:
                pieces.append(word)
                word = ""
            word += c
        tokens = [t for p in [*pieces, word] for t in p.encode()]
        ending, _ = run(tokens, stop=("END",))
        assert ending is not None and ending.text == "x"


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
