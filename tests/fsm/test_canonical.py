"""Which tokens a tokenizer never puts behind which others, against the tokenizer itself."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lmc.backend.engine.automaton import AutomatonMatcher
from lmc.backend.engine.tokenizer import Tokenizer as Words
from lmc.backend.engine.tokenizer_rules import LLAMA3_SPLIT, QWEN2_SPLIT
from lmc.fsm.canonical import Canonical
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.regex import compile_regex
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.forced_oracle import CHARACTER_TEXT, FINITE
from tests.fsm.small_vocabulary import TEXT
from tests.searching import size, some

MORE = [
    *TEXT,
    "xxx",
    CHARACTER_TEXT,
    "we'll see, don't they're I'VE 'set' —'s \"it's\" 12 345 6789 ½²",
    "aa aaa aaaa   a\n\n\n b\t\tc --- -- ===",
    "été école naïve ﷽ Привет привет",
]


def split(pattern: str):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


CUTS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama3": split(LLAMA3_SPLIT),
    "qwen2": split(QWEN2_SPLIT),
    "spaces": pre_tokenizers.Metaspace(prepend_scheme="never"),
    "none": None,
}


@functools.cache
def words(name: str, size: int = 700) -> Words:
    return trained(name, size)


def trained(name: str, size: int = 700) -> Words:
    """A tokenizer of that kind, trained on a few lines."""
    raw = Tokenizer(models.BPE())
    pieces = name in ("spaces", "none")
    if CUTS[name] is not None:
        raw.pre_tokenizer = CUTS[name]
    else:
        raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Metaspace() if pieces else decoders.ByteLevel()
    alphabet = sorted({"▁", *"".join(MORE).replace(" ", "▁")}) if pieces else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    raw.train_from_iterator(MORE * 2, trainer)
    raw.encode_special_tokens = True
    return Words(raw, eos_token_ids=(0,))


def canonical_of(of: Words, size: int) -> Canonical:
    found = of.canonical(size)
    assert found is not None
    return found


def encode(of: Words, text: str) -> tuple[int, ...]:
    return tuple(of.encode((text,), at_start=False))


@some("name", CUTS, 3)
def test_no_token_is_refused_that_an_encoding_has_there(name):
    of = words(name)
    canonical = canonical_of(of, of.vocab_size)
    rng = random.Random(name)
    letters = sorted(set("".join(MORE)))
    texts = [*MORE, *("".join(rng.choices(letters, k=40)) for _ in range(300)), *("".join(rng.choices("ab' sS'tlre\n-1", k=40)) for _ in range(300))]
    for text in texts:
        for a, b in itertools.pairwise(encode(of, text)):
            assert canonical.allows(a, b), (text, of.token_bytes(a), of.token_bytes(b))


@some("name", CUTS, 6)
def test_two_letters_words_are_told_exactly(name):
    """Within a word there is no doubt: what is not the encoding of both together is refused."""
    of = words(name)
    canonical = canonical_of(of, of.vocab_size)
    spelled = {i: of.token_bytes(i).decode() for i in range(1, of.vocab_size) if of.token_bytes(i).isalpha() and of.token_bytes(i).isascii()}
    assert len(spelled) > 40
    refused = 0
    for a, b in itertools.product(spelled, repeat=2):
        if spelled[a].lower() in ("s", "t", "m", "d", "re", "ve", "ll", "r", "v", "l", "e"):
            continue  # behind an apostrophe a word may begin
        both = encode(of, spelled[a] + spelled[b]) == (a, b)
        refused += not both
        assert canonical.allows(a, b) == both, (spelled[a], spelled[b])
    assert refused > 100


@some("name", CUTS, 3)
def test_rows_say_what_pairs_say(name):
    of = words(name)
    size = of.vocab_size + 40
    canonical = canonical_of(of, size)
    for before in range(0, of.vocab_size, 7):
        row = canonical.refused(before)
        assert row.ids.tolist() == [i for i in range(size) if not canonical.allows(before, i)]
        assert row.ids.tolist() == [i for i in range(size) if row.bits[i // 32] >> (i % 32) & 1]
        column = canonical.refused_before(before)
        assert column.ids.tolist() == [i for i in range(size) if not canonical.allows(i, before)]


def test_several_ways_to_make_a_token_are_told_apart():
    """As in vocabularies that were counted in bytes and written as pairs: each way to cut a token is a merge."""
    vocab = {"</s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6, "cab": 7}
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("c", "ab")]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    of = Words(raw, eos_token_ids=(0,))
    canonical = canonical_of(of, len(vocab))
    for a, b in itertools.product(range(1, 8), repeat=2):
        assert canonical.allows(a, b) == (encode(of, of.spelling(a) + of.spelling(b)) == (a, b)), (of.spelling(a), of.spelling(b))


def test_a_tokenizer_that_is_not_understood_has_none():
    of = trained("gpt2")
    of.raw.pre_tokenizer = pre_tokenizers.Whitespace()
    assert of.canonical(of.vocab_size) is None
    of.raw.pre_tokenizer, of.raw.normalizer = CUTS["gpt2"], normalizers.Lowercase()
    assert of.canonical(of.vocab_size) is None
    assert Words(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).canonical(1) is None


def parts(name: str, pattern: str, forced: bool):
    of = words(name)
    vocabulary = Vocabulary(of.byte_table, (0,), (), of.vocab_size)
    automaton = TokenAutomaton(compile_regex(pattern), vocabulary)
    runs = ForcedTokens(automaton, lambda text: of.encode((text,), at_start=False)) if forced else None
    canonical = canonical_of(of, of.vocab_size)
    rows = CanonicalRows(automaton, canonical)
    return of, lambda: AutomatonMatcher(automaton, runs, canonical=rows)


@pytest.mark.parametrize("forced", [True, False])
@some("pattern", [*FINITE, r'"(student|teacher|auror|minister)", "\w{1,3}"', r"—'s|''s", r"( |\n){1,6}[a-c']{1,4}", r"[ab' sl]{1,9}"], 8)
@pytest.mark.parametrize("name", ["gpt2", "llama3", "none"])
def test_every_answer_can_be_given_and_no_answer_gets_stuck(name, pattern, forced):
    """Whatever is drawn of what is allowed leads to a legal text; canonical encodings of legal texts are never cut off."""
    of, matcher = parts(name, pattern, forced)
    rng = random.Random(pattern)
    texts: set[bytes] = set()
    for _ in range(size(4, 40)):
        m, out = matcher(), []
        while not m.done and len(out) < 60:
            if m.forced():
                run = m.forced()
                m.accept_forced(run)
                out += run
                continue
            bits = m.bits
            tokens = [i for i in range(of.vocab_size) if bits[i // 32] >> (i % 32) & 1]
            assert tokens and tokens == [i for i in range(of.vocab_size) if m.allows(i)]
            row = m.row
            assert row is None or row.few is None or row.few.tolist() == tokens
            token = rng.choice(tokens)
            if token == 0:
                break
            m.accept(token)
            out.append(token)
        assert m.complete
        texts.add(b"".join(of.token_bytes(i) for i in out))
    for text in texts:
        m, ids = matcher(), list(encode(of, text.decode()))
        if b"".join(map(of.token_bytes, ids)) != text:
            continue  # the tokenizer changes it
        for token in ids:
            assert m.allows(token), (text, ids)
            m.accept(token)
