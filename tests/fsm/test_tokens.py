"""Token automata: masks and targets are those of stepping every token, rows are built once and shared."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from hypothesis import given

from lmc.errors import ConstraintError
from lmc.fsm import vocabulary as vocabulary_module
from lmc.fsm.arrays import LONG, ArrayDFA, LazyArrays
from lmc.fsm.dfa import DEAD
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_text import WITHIN_STRINGS
from lmc.fsm.lazy import UNMADE
from lmc.fsm.regex import compile_regex, parse
from lmc.fsm.runs import ClassRun, Tail
from lmc.fsm.sources import begun, lazily
from lmc.fsm.strings import StringRun
from lmc.fsm.tokens import FEW, FEW_REFUSED, TokenAutomaton
from lmc.fsm.trie import ByteTrie
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.patterns import CHARACTER, HAND_WRITTEN, JUDGE, regexes
from tests.fsm.small_vocabulary import EOS, SPECIAL, legal, set_bits, small, stepped
from tests.searching import search, some


def automaton(pattern: str, vocabulary: Vocabulary | None = None) -> TokenAutomaton:
    return TokenAutomaton(compile_regex(pattern), vocabulary or small()[0])


def allowed(row: np.ndarray) -> set[int]:
    return set(set_bits(row))


def walked(a: TokenAutomaton, state: int) -> list[int]:
    """The legal tokens as a walk of the whole trie finds them."""
    v = a.vocabulary
    long = [i for i in v.long_ids if a.dfa.step(state, v.tokens[i]) >= 0]
    return sorted({*set_bits(v.bits(v.trie.walk(a.dfa, state))), *long, *(v.eos if a.is_final(state) else ())})


def brute_force(a: TokenAutomaton, state: int) -> dict[int, int]:
    """Every allowed token and the state behind it, byte by byte."""
    ends = {EOS: state} if a.dfa.final[state] else {}
    for token, text in enumerate(a.vocabulary.tokens):
        at = state
        for byte in text:
            at = a.dfa.row(at)[byte] if at >= 0 else DEAD
        if text and at >= 0:
            ends[token] = int(at)
    return ends


def check_rows(pattern: str, most: int) -> None:
    a = automaton(pattern)
    for state in random.Random(pattern).sample(range(a.dfa.states), min(most, a.dfa.states)):
        ends = brute_force(a, state)
        assert allowed(a.mask(state)) == set(ends)
        targets = a.targets(state)
        assert {t: int(targets[t]) for t in np.flatnonzero(targets >= 0)} == ends
        assert all(a.next(state, t) == ends.get(t, DEAD) for t in (EOS, SPECIAL, *range(2, a.vocabulary.size, 17)))


@some("pattern", HAND_WRITTEN, 4)
def test_rows_are_those_of_stepping_every_token(pattern):
    check_rows(pattern, 6)


@search(9, 200)
@given(regexes)
def test_rows_of_any_regex_are_those_of_stepping_every_token(pattern):
    check_rows(pattern, 3)


def test_special_tokens_and_padding_are_never_allowed():
    a = automaton("(?s).*")
    assert SPECIAL not in allowed(a.mask(0)) and max(allowed(a.mask(0))) < len(a.vocabulary.tokens)
    assert a.next(0, SPECIAL) == a.next(0, a.vocabulary.size - 1) == DEAD


def test_tokens_of_equal_bytes_are_equal():
    ids = [i for i, text in enumerate(small()[0].tokens) if text == b"order"]
    a = automaton("orders?")
    assert len(ids) == 2 and set(ids) < allowed(a.mask(0)) and a.next(0, ids[0]) == a.next(0, ids[1])


def test_eos_where_the_text_may_end():
    a = automaton("ab?")
    letter = {text: i for i, text in enumerate(a.vocabulary.tokens)}
    state = a.next(a.start, letter[b"a"])
    assert a.is_final(state) and not a.is_done(state) and EOS in allowed(a.mask(state)) and a.next(state, EOS) == state
    end = a.next(state, letter[b"b"])
    assert a.is_done(end) and allowed(a.mask(end)) == {EOS}
    assert EOS not in allowed(a.mask(a.start)) and a.next(a.start, EOS) == DEAD


def test_long_tokens_are_tokens_like_others():
    texts = [b"</s>", b"a", b" " * 40, b" " * 17, b" " * 16, b"a" * 100, "世".encode() * 7]
    a = automaton("a{1,60}| {1,30}|世+", Vocabulary(texts, [0]))
    assert allowed(a.mask(0)) == {1, 3, 4, 6}
    assert a.next(0, 2) == a.next(0, 5) == DEAD and a.is_final(a.next(0, 6))


def test_rows_far_from_a_bound_are_one_row():
    a = automaton(r"[\w\s]{1,200}")
    masks = [a.mask(state) for state in range(a.dfa.states)]
    assert a.rows_built <= LONG + 1
    assert masks[1] is masks[100] and masks[0] is not masks[1]
    assert allowed(masks[100]) == set(brute_force(a, 100))


def test_rows_of_counted_unicode_classes_are_few():
    a = automaton(r"(?u)[\w\s]{1,200}")
    masks = [a.mask(state) for state in np.flatnonzero(a.dfa.final).tolist()]
    assert a.rows_built <= LONG + 1 and masks[1] is masks[100] and a.nbytes < 2_000_000
    assert allowed(masks[100]) == set(brute_force(a, int(np.flatnonzero(a.dfa.final)[100])))
    inside = a.dfa.step(0, "世".encode()[:2])
    assert allowed(a.mask(inside)) == set(brute_force(a, inside))


def test_memory_is_counted():
    a = automaton(JUDGE)
    before = a.nbytes
    a.mask(0)
    assert a.mask(0).nbytes == a.vocabulary.words * 4
    assert a.nbytes - before == a.known[0].nbytes
    a.mask(0)
    assert a.nbytes - before == a.known[0].nbytes


def test_few_allowed_tokens_are_listed_with_their_row():
    a = automaton(r"(yes|no|[a-z ]{3,40})\d+")
    assert not a.known
    for state in range(a.dfa.states):
        ids = np.array(sorted(allowed(a.mask(state))))
        few = a.known[state].few
        assert (few is not None and np.array_equal(few, ids)) if len(ids) <= FEW else few is None


def test_few_refused_tokens_are_listed_with_their_row():
    words = [b"</s>", b"!", *(f"{i:x}".encode() for i in range(max(FEW, FEW_REFUSED) + 2)), b"?"]
    a = automaton(r"\w+!?", Vocabulary(words, [0], size=len(words) + 40))
    row = a.row(0)
    assert len(allowed(row.bits)) > FEW and row.few is None
    assert row.refused is not None and row.refused.tolist() == [0, 1, len(words) - 1, *range(len(words), len(words) + 40)]
    half = automaton(r"[0-7]\w*!?", Vocabulary(words * 6, [0])).row(0)
    assert half.few is None and half.refused is None


def test_masks_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        automaton("a").mask(0)[0] = 1


def test_ways_that_no_token_can_finish_are_closed():
    a = automaton("a(é|b|世x)", Vocabulary([b"</s>", b"a", b"b", b"\xe4", b"\xb8\x96", b"\xc3"], [0]))
    assert allowed(a.mask(a.next(0, 1))) == {2}


def test_a_vocabulary_without_the_characters_is_an_error():
    with pytest.raises(ConstraintError, match="no token has byte 0x96, 0xa9, 0xb8, 0xc3, 0xe4"):
        automaton("a[é世]", Vocabulary([b"</s>", b"a", b"b"], [0]))


def test_a_character_that_no_token_begins_with_is_an_error_when_reached():
    a = automaton("abc", Vocabulary([b"</s>", b"a", b"ab", b"xbc"], [0]))
    with pytest.raises(ConstraintError, match="begins with byte 0x62"):
        a.mask(a.next(0, 1))


def test_a_vocabulary_has_to_fit_its_logits():
    with pytest.raises(ValueError, match="does not fit 2 logits"):
        Vocabulary([b"a", b"b", b"c"], [0], size=2)


def test_many_threads_build_each_row_once(monkeypatch):
    a = automaton(CHARACTER)
    errors: list[Exception] = []
    built: list[object] = []
    walked = Vocabulary.walked

    def slowly_walked(vocabulary: Vocabulary, dfa, state: int):
        built.append(state)
        time.sleep(0.001)  # the others come meanwhile
        return walked(vocabulary, dfa, state)

    monkeypatch.setattr(Vocabulary, "walked", slowly_walked)

    def follow(seed: int) -> None:
        rng, state = random.Random(seed), a.start
        try:
            while not a.is_done(state):
                state = a.next(state, rng.choice(sorted(allowed(a.mask(state)) - {EOS})))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=follow, args=(i % 3,)) for i in range(9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(built) == a.rows_built <= len(a.known)


RUNS = [
    {"type": "string"},
    {"type": "string", "minLength": 3, "maxLength": 200},
    {"type": "string", "minLength": 4},
    {"type": "string", "minLength": 5, "maxLength": 254, "pattern": "^[^@\\s]+@([a-zé]+x1)+$"},
    {"type": "string", "pattern": '^[a-zA-Zéß世\u2000-\u2010]+(-[^"x\\\\]*)?$'},
    *(
        {"type": "string", "pattern": p}
        for p in ("^[0-9a-fx]{2,7}$", "^[a-z](-?[a-z]){2,9}1?$", "^[a-zé](-?[a-zé]){0,5}1?$", "^[a-z-]{1,3}[a-z]*$", "^[a-z](ab|[a-z]){1,4}$")
    ),
    {"type": "array", "items": {"type": "string", "format": "hostname"}},
    {"type": "object", "properties": {"name": {"type": "string"}, "né": {"type": "integer"}}, "additionalProperties": {"type": "string", "maxLength": 9}},
    {"$defs": {"a": {"type": "object", "properties": {"s": {"type": "string"}, "next": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
]
PIECES = ["{", '"', "name", "né", '": ', '", "', "}", "\\n", "\\u00e9", " ", "世界", "é", "\u2005", "-", "x", "abc", ", ", '"}', "1"]


@cache
def pieces_of_texts(few: bool) -> Vocabulary:
    """One of each, since a vocabulary remembers what was found in it."""
    pieces = sorted(
        {"".join(p) for n in (1, 2, 3) for p in itertools.product(PIECES, repeat=n)} | {"世世" * 4 + "-" * n for n in (1, 9)} | {"ab" * 12, 'ab"' * 9, "é" * 30}
    )
    cut = [p.encode()[:-1] for p in pieces if ord(p[-1]) > 127]  # tokens that end inside of a character
    return Vocabulary([b"</s>", *(p.encode() for p in pieces), *cut, *(bytes([i]) for i in range(256))], [0])


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@some("schema", RUNS, 6, ids=str)
def test_what_is_found_by_runs_is_what_a_walk_of_the_whole_trie_finds(schema, few, monkeypatch):
    """Whether few or many tokens leave a run or are longer than the trie's."""
    for name in ("_MANY_TAILS", "_MANY_LONG"):
        monkeypatch.setattr(vocabulary_module, name, 10_000 if few else 1)
    vocabulary = pieces_of_texts(few)
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    rng, looked = random.Random(str(schema)), 0
    for begin in (b"", *[b'"', b'"a', b'["a.b', b'{"s": "a', b'{"nam', b'{"next": {"s": "'] * 2):
        if (state := made.dfa.step(made.start, begin)) < 0:
            continue
        for _ in range(15):
            found = walked(made, state)
            assert legal(made, state) == found
            looked += any(find(made.dfa.representative(state)) is not None for find in (made.dfa.loop, made.dfa.turns))
            if made.is_done(state):
                break
            state = made.next(state, rng.choice([i for i in found if i]))
            if state < 0:
                break
    assert looked >= 2


def test_a_key_that_may_be_any_is_found_by_a_run_beside_the_names(monkeypatch):
    """A key that is no name, or no longer the beginning of one, is in the loop of all other keys: no level of the trie is walked for it."""
    vocabulary, _ = small()
    names = ["name", "né", "order", "orderId", "n"]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "additionalProperties": {"type": "string"}}
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    key = made.dfa.step(made.start, b'{"')
    found = walked(made, key)
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    key = made.dfa.step(made.start, b'{"')
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    for walk in ("walk", "from_all"):
        monkeypatch.setattr(ByteTrie, walk, None)
    assert legal(made, key) == found
    assert made.dfa.states < 80


def test_names_of_any_length_are_left_out_of_keys_without_states_for_their_letters():
    """One of more than 64 characters had each beginning of each name looked at: 15 ms for a first key. None of it needs a row of the key."""
    vocabulary, _ = small()
    names = [f"{name}_{'order_' * 12}{i}" for name in ("a", "b", "order", "name") for i in range(9)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "additionalProperties": {"type": "string"}}
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    key = made.dfa.step(made.start, b'{"')
    assert made.dfa.string(key).but == tuple(sorted(f'{name}"'.encode() for name in names))
    mask = made.mask(key)
    assert made.dfa.lazy.places[key] == UNMADE
    assert allowed(mask) == {i for i in range(len(vocabulary.tokens)) if made.next(key, i) >= 0}
    for text in (names[0], names[0][:40], names[1] + "x", "nobody", "a\\n"):
        for end in ("", '"', '": 1', '": "'):
            at = key
            for byte in (text + end).encode():
                at = at if at < 0 else made.dfa.after(at, byte)
            assert made.dfa.step(key, (text + end).encode()) == at, text + end


@pytest.mark.parametrize("low, high", [(1, 255), (3, 12), (0, 16)])
def test_counted_keys_of_a_class_beside_names_are_read_as_strings(low, high, monkeypatch):
    """Each count had a state, each of which was made for the letters of each name."""
    vocabulary, _ = small()
    names = ["id", "createdAt", "a", "Order"]
    schema = {"properties": {name: {"const": 1} for name in names}, "patternProperties": {f"^[0-9a-zA-Z_-]{{{low},{high}}}$": {"type": "integer"}}}
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    texts = ["id", "i", "ide", "a", "a-b", "createdA", "createdAt", "createdAts", "Or", "b" * 9, "b" * 10, "", "!", "é", "a\\n"]
    for begun_with in (b'{"', b'{"c', b'{"x', b'{"id', b'{"a": 1, "b'):
        key = made.dfa.step(made.start, begun_with)
        with monkeypatch.context() as patched:
            patched.setattr(ByteTrie, "walk", None)
            mask = made.mask(key)
        assert allowed(mask) == {i for i in range(len(vocabulary.tokens)) if made.next(key, i) >= 0}
        for text in texts:
            for end in ("", '"', '": 1', '": 2'):
                at = key
                for byte in (text + end).encode():
                    at = at if at < 0 else made.dfa.after(at, byte)
                assert made.dfa.step(key, (text + end).encode()) == at, (begun_with, text + end)


@pytest.mark.parametrize("schema", [{"type": "string", "minLength": 4}, {"type": "string", "minLength": 5, "maxLength": 254, "pattern": "^[^@\\s]+@[a-z]+$"}])
def test_what_is_yet_to_be_counted_is_found_by_a_run(schema, monkeypatch):
    """A least length without a greatest, and a pattern beside lengths: no level of the trie is walked."""
    vocabulary, _ = small()
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    monkeypatch.setattr(ByteTrie, "walk", None)
    made.mask(made.dfa.step(made.start, b'"'))
    assert made.dfa.states < 200


@pytest.mark.parametrize("pattern", ["([^a]{2})*", "([a-z]{2}){0,5}1", "([a-z]{1,3}){3,9}", "(.{3})*b", "[ -~]{1,3}[a-z]{2}", "[a-é]{2}.?"])
def test_turns_are_counted_only_where_nothing_else_goes_on_with_their_characters(pattern):
    """A token of three characters was refused where two turns are left and what follows is more of the same."""
    vocabulary, _ = small()
    made = TokenAutomaton(lazily(Grammar(parse(pattern))), vocabulary)
    for text in (b"", b"b", b"bc", b"bcd"):
        state = made.dfa.step(made.start, text)
        ends = {EOS} if made.is_final(state) else set()
        assert allowed(made.mask(state)) == ends | {i for i in range(2, len(vocabulary.tokens)) if made.next(state, i) >= 0}, text


@pytest.mark.parametrize("regex", ["[^é]{2}é", "[^é]{1,2}é", "x?[^é]{17}é", "[^é]{20}(?:éa|ß)"])
def test_half_a_character_behind_a_full_count_may_be_one_that_is_not_counted(regex):
    """`bc\\xc3` was not legal in the first one: its half could be of the counted class."""
    letters = "bcdfghijklmnopqrstuvwyz"
    halves = [b"b" * chars + half for chars in (1, 2, 3, 16, 17, 18, 19, 20, 21) for half in (b"\xc3", b"\xc4")]
    vocabulary = Vocabulary([b"</s>", *(bytes([b]) for b in range(256)), *(f"{a}{b}".encode() for a, b in itertools.product(letters, repeat=2)), *halves], [0])
    automaton = TokenAutomaton(begun("regex", regex), vocabulary)
    assert automaton.dfa.turns(0) is not None or regex[0] == "x"
    for text in (b"", b"c", b"c" * 16):
        if (state := automaton.dfa.step(0, text)) >= 0:
            assert legal(automaton, state) == stepped(automaton, state)


def test_a_state_that_only_a_long_count_tells_apart_needs_no_states_for_its_row():
    """Each token of a string with a large maxLength built the states behind it once more, for tokens above LONG bytes: 0.4 ms."""
    words, _ = small()
    made = TokenAutomaton(begun("json_schema", '{"type": "string", "maxLength": 32767}'), Vocabulary([*words.tokens, b"x" * 40, b'y" ' * 20], words.eos))
    state = made.dfa.step(made.start, b'"ab')
    row = made.mask(state)
    for text in (b"cd", b"efg", b"h"):
        state = made.dfa.step(state, text)
        before = made.dfa.states
        assert made.mask(state) is row
        assert made.dfa.states - before <= 1  # the representative


def test_a_prepared_vocabulary_has_the_run_of_strings(monkeypatch):
    """Its first string had a mask of 20 ms and more, of which the vocabulary's spelling was most."""
    words, _ = small()
    vocabulary = Vocabulary(words.tokens, words.eos).prepare()
    made = TokenAutomaton(begun("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'), vocabulary)
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    monkeypatch.setattr(ClassRun, "of", None)
    made.mask(made.dfa.step(made.start, b'{"a": "b'))


CLASSES = [r'[^"\\\x00-\x1f]', "[a-z0-9]", "[abé]", "[世a]", "[\u0080-\u07ff😀]", "[^é世]", "[\u0800-\u0fff]", "[\U00010000-\U0010ffff]"]


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_run_has_the_tokens_that_its_automaton_reads(pattern):
    """Of tokens of any bytes, UTF-8 or not, in the trie or above it."""
    rng = random.Random(pattern)
    parts = [*(bytes([i]) for i in range(256)), *(c.encode() for c in 'abc09é世界😀"\u2005\u0fff\ue000')]
    texts = {b"".join(rng.choices(parts[192:] if rng.random() < 0.8 else parts, k=rng.randint(1, 12))) for _ in range(3000)}
    vocabulary = Vocabulary([b"", *sorted({*texts, *parts})], [0])
    dfa = ArrayDFA.of(compile_regex(f"({pattern})*"))
    run = vocabulary.run(parse(pattern).ranges)
    inside = set(run.ids.tolist())
    for i, text in enumerate(vocabulary.tokens):
        if text and i not in vocabulary.long_ids:
            assert (i in inside) == (bool(run.firsts[text[0]]) and dfa.step(0, text) >= 0), text
    begun_ = {i for i in inside if (at := dfa.step(0, vocabulary.tokens[i])) != 0 and dfa.ways_at(at) == 1}
    assert set(run.begun.tolist()) == begun_
    above = run.texts.long_in(parse(pattern).ranges)
    long = {i: vocabulary.tokens[i] for i in vocabulary.long_ids if above.heads[vocabulary.tokens[i][0]]}
    assert long.keys() == {*above.inside, *(i for i, *_ in above.leaving)}
    assert [long[i][0] for i in above.inside] == list(above.firsts)
    for i, chars in zip(above.inside, above.chars):
        assert dfa.step(0, long[i]) >= 0 and len(long[i].decode(errors="replace")) == chars
    for i, first, until, chars in above.leaving:  # up to the last boundary before it leaves
        text = long[i]
        assert first == text[0] and dfa.step(0, text) < 0
        assert dfa.step(0, text[:until]) == 0 and len(text[:until].decode()) == chars
        assert all(dfa.step(0, text[: until + n]) != 0 for n in range(1, 5) if until + n <= len(text))


def test_a_row_of_a_whole_automaton_is_one_walk(monkeypatch):
    """Whole levels of the trie, with lists of the nodes that are legal only where few are: those took 3 ms of a row's 4."""
    vocabulary, _ = small()
    automaton = TokenAutomaton(compile_regex(r'"([^"\\]|\\.)*"'), vocabulary)
    listed, real = list[int](), ByteTrie.from_all
    monkeypatch.setattr(ByteTrie, "from_all", lambda self, dfa, nodes, states: listed.append(len(nodes)) or real(self, dfa, nodes, states))
    inside = automaton.dfa.step(0, b'"a')
    assert legal(automaton, inside) == stepped(automaton, inside)
    assert sum(listed) < 200


@pytest.mark.parametrize("pattern", ["[!-~]*", "[ -~é]*", "(?u)[\\w.]*x", "([a-z ]{1,4}-)*é", "世*", " ?the.*", "[0-9é世]{2,9}"])
def test_a_walk_steps_each_node(pattern):
    """Also where nothing is legal between first bytes that are."""
    vocabulary, _ = small()
    dfa, trie = ArrayDFA.of(compile_regex(pattern)), vocabulary.trie
    behind, expected = trie.walk(dfa, 0), np.full(len(trie.byte), -1)
    for node in range(1, len(trie.byte)):
        above = int(expected[trie.parent[node]]) if trie.parent[node] else 0
        expected[node] = dfa.after(above, int(trie.byte[node])) if above >= 0 else -1
    assert np.array_equal(behind, expected)


def test_tokens_of_objects_of_several_kinds_are_those_of_each():
    """Beside a key that may be any but those of a pattern, all kinds were looked at together wherever some name goes on."""
    vocabulary, _ = small()
    names = ["dependencies", "exceptionHandlers", "fuses", "module", "name", "next", "resource"]
    text = {"type": "string"}
    kinds = [{"properties": dict.fromkeys([*names, f"kind{i}"], text), "additionalProperties": True, "required": [f"kind{i}"]} for i in range(8)]
    others = {"patternProperties": {"^/": {"type": "null"}}, "additionalProperties": {"type": "null"}}
    kinds.append({"properties": dict.fromkeys(names, text), **others})
    schema = json.dumps({"anyOf": [{"type": "object", **kind} for kind in kinds]})
    other, *several = (TokenAutomaton(begun("json_schema", schema), vocabulary) for _ in range(9))
    spent: set[int] = set()
    for made in several:
        key = made.dfa.step(made.start, b'{"')
        before = made.dfa.lazy._terms.spent
        row = made.row(key)
        spent.add(made.dfa.lazy._terms.spent - before)
        assert made.row(key) is row
    assert len(spent) == 1, "work depends on where in memory the terms are"
    assert max(spent) < 400
    state = other.dfa.step(0, b'{"')
    assert set_bits(row.bits) == walked(other, state) != []


@pytest.mark.parametrize(
    "rules",
    [
        {"patternProperties": {"^[0-9a-z_-]{1,9}$": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^/": {"type": "string"}, "x": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"patternProperties": {"a$": {"type": "string"}}, "additionalProperties": {"type": "null"}, "propertyNames": {"maxLength": 5}},
        {"additionalProperties": {"type": "string", "pattern": "id.*(na|b)"}},
        {"additionalProperties": {"anyOf": [{"type": "string", "pattern": "[\\n\\\\]a"}, {"type": "string", "not": {"pattern": "^.{2}$"}}]}},
    ],
    ids=str,
)
@some("begin", ['{"', '{"na', '{"zz": "', '{"zz":1,"id', '{"a": "', '{"a": "\\n', '{"a": "id', '{"/", '], 2)
def test_where_any_characters_may_follow_only_tokens_with_a_quote_are_followed(begin, rules):
    """All levels of the vocabulary were looked at wherever a key or a string is in several languages at once, and letters of names had states."""
    vocabulary = pieces_of_names()
    schema = json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in NAMES[:4]}, **rules})
    made, other = (TokenAutomaton(begun("json_schema", schema), vocabulary) for _ in range(2))
    state = made.dfa.step(made.start, begin.encode())
    if state >= 0:
        assert legal(made, state) == stepped(other, other.dfa.step(other.start, begin.encode()))


def test_keys_that_a_pattern_does_not_match_have_no_states_of_their_own():
    rules = {"^[0-9a-zA-Z_-]{1,255}$": {"type": "string"}}
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "null"}}, "patternProperties": rules, "x-lmc": {"additional": True}})
    made = TokenAutomaton(begun("json_schema", schema), small()[0])
    for begin in ('{"', '{"id', '{"some_name'):
        state = made.dfa.step(made.start, begin.encode())
        assert made.dfa.covered(state) is not None
        before = made.dfa.lazy._made
        made.mask(state)
        assert made.dfa.lazy._made - before < 16


def test_a_part_without_tokens_leaves_those_of_the_others():
    vocabulary = Vocabulary([*(bytes([b]) for b in range(0x21, 0x7F)), b"<eos>"], [0x7F - 0x21])
    made = TokenAutomaton(lazily(Grammar(parse("[!-~]+x|[\\u0400-\\u0430]+|é"))), vocabulary)
    assert len(made.dfa.parts(made.start)) != 1 and allowed(made.mask(made.start)) == set(range(0x7F - 0x21))


@pytest.mark.parametrize("additional", [False, True])
def test_the_turns_of_a_key_that_is_no_name_have_no_states_of_their_own(additional):
    """Each of 60 characters of the longest token had one: 4 ms for a first key; with further properties, whose names do not match the pattern, each
    character of the others, too."""
    words, _ = small()
    vocabulary = Vocabulary([*words.tokens, *(b"-" * n for n in range(17, 70))], words.eos)
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"id": {"type": "null"}},
            "patternProperties": {"^[0-9a-zA-Z_-]{1,255}$": {"type": "string"}},
            "x-lmc": {"additional": additional},
        }
    )
    made, key = TokenAutomaton(begun("json_schema", schema), vocabulary), b'{"'
    before = made.dfa.step(made.start, key)
    states = made.dfa.states
    row = made.mask(before)
    assert made.dfa.states - states < 30
    assert allowed(row) == {i for i in range(len(vocabulary.tokens)) if made.next(before, i) >= 0}
    long = TokenAutomaton(begun("json_schema", schema), vocabulary)
    state = long.dfa.step(long.start, key + b"x" * 210)  # of 45 more characters some tokens are too long
    assert legal(long, state) == stepped(long, state)


def test_repeats_that_tokens_do_not_read_to_their_ends_are_one_state():
    """Each set of the places of an `a` in a token had a state of its own: 30 ms for a mask, and an error after nine."""
    rng = random.Random(1)
    words = {bytes(rng.choices(b"etaoinshrdlu", k=rng.randint(1, 28))) for _ in range(1500)}
    vocabulary = Vocabulary([b"", *sorted(words | {bytes([i]) for i in range(32, 127)})], [0])
    made = TokenAutomaton(begun("regex", "(.*a.{30}){3}"), vocabulary)
    state = made.start
    for byte in b"hello a world and all that":
        mask = made.mask(state)
        state = made.next(state, vocabulary.tokens.index(bytes([byte])))
    last = made.dfa.step(made.start, b"hello a world and all tha")
    some = [i for i in range(len(vocabulary.tokens)) if i % 50 == 0]
    assert allowed(mask) & {*some} == {i for i in some if vocabulary.tokens[i] and made.dfa.step(last, vocabulary.tokens[i]) >= 0}


def test_lists_of_a_row_are_made_when_they_are_asked_for():
    made = automaton("[a-c]")
    row = made.row(0)
    small_size = row.nbytes
    assert row.few is not None and len(row.few) == 3 and row.nbytes > small_size


NAMES = ["name", "id", "idx", "order", "orderId", "a", "ab", "address", "na", "n", "status", "zip"]


@cache
def pieces_of_names() -> Vocabulary:
    pieces = sorted(
        {
            "".join(p)
            for n in (1, 2, 3)
            for p in itertools.product(["na", "me", "id", "x", "order", 'id"', '"', '":', '": ', ": 1", "a", "b", "z", "\\n", "é"], repeat=n)
        }
    )
    return Vocabulary([b"</s>", *(p.encode() for p in pieces), b"order" * 4, b'orderId": "abcdefgh', *(bytes([i]) for i in range(256))], [0])


@pytest.mark.parametrize("others", [False, True, {"type": "integer"}, {"type": "string", "maxLength": 3}], ids=str)
@some("begin", ['{"', '{"na', '{"zz": 1, "', '{"zz":1,"id', '{"id": "x", "order'], 2)
def test_names_are_followed_without_a_state_for_each_letter(begin, others):
    """Where other keys may stand beside them, another token is legal only behind a name."""
    vocabulary = pieces_of_names()
    schema = json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in NAMES}, "additionalProperties": others})
    made, other = (TokenAutomaton(begun("json_schema", schema), vocabulary) for _ in range(2))
    if made.dfa.step(made.start, begin.encode()) < 0:
        begin = begin.replace("zz", "id").replace(": 1", ': "x"').replace(":1", ':"x"')
    key = made.dfa.step(made.start, begin.encode())
    before = made.dfa.states
    row = made.row(key)
    assert made.dfa.states - before < 120  # 12 names of up to 7 letters, and what follows them
    assert set_bits(row.bits) == walked(other, other.dfa.step(0, begin.encode())) != []


def test_deep_levels_of_few_nodes_are_not_computed_with_arrays(monkeypatch):
    """Some 90 levels of one node each took most of a row's time within an e-mail address, for the tokens above 16 bytes."""
    texts = sorted([b"-" * n for n in range(1, 90)] + [bytes(pair) for pair in itertools.product(b"abcdefghijklmnopqrst", repeat=2)])
    trie = ByteTrie.of(texts)
    dfa = LazyArrays(lazily(Grammar(parse("[a-s-]*"))))
    levels = []
    monkeypatch.setattr(ByteTrie, "follow", lambda *args, _follow=ByteTrie.follow: (levels.append(level) or level for level in _follow(*args)))
    found = set(trie.from_all(dfa, np.array([0]), np.array([0]))[0].tolist())
    assert [text for text, node in zip(texts, trie.node_of.tolist()) if node in found] == [text for text in texts if b"t" not in text]
    assert len(levels) < 4


@pytest.mark.parametrize("many", [0, 9, 60, 10**9])
def test_tokens_that_leave_a_run_by_many_bytes_are_listed_up_to_a_number_in_all(many, monkeypatch):
    """Each of 26 letters that leave a run of all others had fewer than that number, and all of them 8,000: 20 ms."""
    monkeypatch.setattr(vocabulary_module, "_MANY_TAILS", many)
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    vocabulary, _ = small()
    automaton = TokenAutomaton(begun("json_schema", '{"type": "string", "pattern": "[e-z][a-z]?[a-z]"}'), vocabulary)
    for text in (b'"', b'"A', b'"A\xc3'):
        state = automaton.dfa.step(automaton.start, text)
        assert legal(automaton, state) == stepped(automaton, state)
        running = vocabulary._run_at(automaton.dfa, 0, state)
        if running is not None:
            counts, (few, others) = running[0].run.leaving, running[0]._leaving(automaton.dfa)
            assert sum(counts[byte] for byte in few) < max(many, 1) and bool(others) == (sum(counts[byte] for byte in few + others) >= many)


def test_a_run_that_most_tokens_leave_is_looked_at_level_by_level(monkeypatch):
    """All of the vocabulary was followed as lists of nodes: 10 ms."""
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    letters = "bcdfghjaeiou"
    tokens = [b"</s>", *(letter.encode() for letter in letters), *(f"{a}{b}{c}".encode() for a, b, c in itertools.product(letters, "aeiou", letters)), b"bak"]
    vocabulary = Vocabulary(tokens, [0])
    for regex, is_run in (("[^aeiou]*[aeiou].*", False), ("[^k]*k.*", True)):
        automaton = TokenAutomaton(begun("regex", regex), vocabulary)
        assert automaton.dfa.loop(0) is not None and (vocabulary._run_at(automaton.dfa, 0, 0) is not None) == is_run
        assert legal(automaton, 0) == stepped(automaton, 0)


@pytest.mark.parametrize("kind", range(len(WITHIN_STRINGS)))
def test_runs_within_strings_below_a_node_are_parts_of_that_of_all(kind):
    """Behind a space it took 13 ms of 131,072 tokens to follow them again."""
    words, _ = small()
    vocabulary = Vocabulary([*words.tokens, *words.tokens[::5], b"a\\n\\", "aé".encode(), "aé".encode()[:2], b'ab\\u00"', b'a", "b', b'aa"'], words.eos)
    texts = vocabulary._texts
    for node in np.flatnonzero(vocabulary.trie.count).tolist():
        part, alone = vocabulary._find_string_run(kind, node), StringRun.of(kind, texts, node)
        for found, expected in ((part.bits, alone.bits), (part.chars, alone.chars), (part.whole, alone.whole), (part.begun, alone.begun)):
            assert np.array_equal(found, expected)
        for low, high in ((0, 40), (1, 2)):
            assert np.array_equal(part.up_to(high), alone.up_to(high))
            assert texts_of(part.in_string(low, high)) == texts_of(alone.in_string(low, high))


def texts_of(tails: Iterable[Tail]) -> list[tuple[bytes, list[int]]]:
    found, todo = list[tuple[bytes, list[int]]](), [(b"", tail) for tail in tails]
    while todo:
        text, tail = todo.pop()
        found.append((text, tail.ids))
        todo += [(text + bytes([byte]), further) for byte, further in tail.ways.items()]
    return sorted(found)


def test_a_key_of_a_pattern_beside_one_that_may_be_any_is_no_name(monkeypatch):
    """A key that is no literal was taken for an empty name, and a token that goes on behind such a key as it alone may was refused."""
    monkeypatch.setattr(vocabulary_module, "_FEW_TEXTS", 1)
    words, _ = small()
    vocabulary = Vocabulary([*words.tokens, b'a": 1', b'b": 1', b'a": "', b'b": "'], words.eos)
    some = {"type": "object", "properties": {"name": {"type": "null"}}, "additionalProperties": {"type": "string"}}
    schema = {"anyOf": [some, {"type": "object", "patternProperties": {"^[ac-h]{1,3}$": {"type": "integer"}}, "additionalProperties": False}]}
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    key = made.dfa.step(made.start, b'{"')
    assert legal(made, key) == stepped(made, key)
    assert [made.next(key, len(words.tokens) + i) >= 0 for i in range(4)] == [True, False, True, True]


@pytest.mark.parametrize(("counts", "word"), [("{6}", "none"), ("{3}", "a"), ("{3,8}", "x"), ("{3}", "abd")])
def test_words_that_a_counted_class_does_not_have_leave_its_count_alone(counts, word):
    """Steps of several characters, without a mask in between, end where those of single ones do."""
    schema = json.dumps({"type": "string", "pattern": f"^[a-z]{counts}$", "not": {"const": word}})
    whole, single = (TokenAutomaton(begun("json_schema", schema), small()[0]).dfa for _ in range(2))
    for pieces in (('"', "abc", '"'), ('"', "the", "the", "the"), ('"', "abcdefgh", '"'), ('"', "abd", '"'), ('"', "abc", "def", '"')):
        ours = theirs = 0
        for piece in pieces:
            ours = whole.step(ours, piece.encode())
            for char in piece:
                theirs = single.step(theirs, char.encode())
            assert (ours == DEAD) == (theirs == DEAD) and (ours == DEAD or whole.is_final(ours) == single.is_final(theirs)), pieces
            if ours == DEAD:
                break
