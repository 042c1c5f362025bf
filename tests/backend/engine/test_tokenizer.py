"""Tokens: plain text never becomes special, runs are maximal, incremental text equals decoded text."""

from __future__ import annotations

import json
import random
import tracemalloc
import warnings

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from lmc.backend.engine import tokenizer
from lmc.backend.engine.encoding import Encoder
from lmc.backend.engine.gguf_tokenizer import from_gguf
from lmc.backend.engine.tokenizer import Tokenizer, from_file
from lmc.errors import ModelLoadError, ProgramError
from lmc.segments import Mark, Special

MIXED = "Hello  world\n\tdef f(x): return x1234 + 0.5 # naïve café — 世界 🙂👩‍👩‍👧 Ünïcödé e\u0301 \u200b\x00 ١٢٣ don't I'LL\r\n"


def tiny(**options) -> Tokenizer:
    """A byte-level BPE of 300 tokens with two special tokens and one added plain one."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(["the cat and the other cat in the hat then"], trainer)
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    raw.add_tokens([AddedToken("<think>", special=False)])
    return Tokenizer(raw, eos_token_ids=(raw.token_to_id("<|im_end|>"),), **options)


@pytest.fixture(scope="module")
def tokens():
    return tiny()


def quiet(tokens: Tokenizer, parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tokens.encode(parts)


def test_text_goes_there_and_back(tokens):
    assert tokens.decode(tokens.encode([MIXED])) == MIXED


def test_a_special_part_is_one_token_and_is_skipped_in_text(tokens):
    ids = tokens.encode([Special("<|im_start|>"), "the cat"])
    assert ids[0] == tokens.id_of("<|im_start|>")
    assert tokens.decode(ids) == "the cat"
    assert tokens.decode(ids, with_specials=True) == "<|im_start|>the cat"


@pytest.mark.parametrize("cuts", [["<|im_end|>"], ["a <|im_", "end|> b"], ["<", "|im_start|", ">"]])
def test_the_spelling_in_plain_text_is_plain_however_it_is_cut(tokens, cuts):
    ids = quiet(tokens, cuts)
    assert not set(ids) & tokens.special_ids
    assert tokens.decode(ids) == "".join(cuts)


def test_the_spelling_in_plain_text_warns_once_and_names_the_remedy():
    tokens = tiny()
    with pytest.warns(UserWarning, match=r"lmc\.special\('<\|im_end\|>'\)"):
        tokens.encode(["x <|im_end|>"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens.encode(["x <|im_end|>"])


def test_parse_special_restores_the_old_habit():
    tokens = tiny(parse_special=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokens.encode(["<|im_end|>"]) == [tokens.id_of("<|im_end|>")]


def test_marks_and_cuts_do_not_change_the_tokens(tokens):
    parts = ["the c", Mark("user", "begin"), "at a", "nd th", Mark("user", "end"), "e hat"]
    assert tokens.encode(parts) == tokens.encode(["the cat and the hat"])


def test_specials_cut_runs(tokens):
    ids = tokens.encode(["the c", Special("<|im_end|>"), "at"])
    assert ids == [*tokens.encode(["the c"]), tokens.id_of("<|im_end|>"), *tokens.encode(["at"])]


def test_a_pattern_that_gives_up_is_an_error_of_the_file():
    raw = RawTokenizer(models.BPE(vocab={"a": 0, "<end>": 1}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+c"), "isolated")
    with pytest.raises(ProgramError, match=r"tokenizer.json cannot encode a text of 36 characters: .*retry-limit"):
        quiet(Tokenizer(raw, eos_token_ids=(1,)), ("a" * 36,))


def test_an_unknown_special_is_an_error_that_lists_the_known(tokens):
    with pytest.raises(ProgramError, match=r"no special token '<\|eot_id\|>'; it has: <think>, <\|im_end\|>"):
        tokens.encode([Special("<|eot_id|>")])


def test_token_bytes_concatenate_to_the_text(tokens):
    assert b"".join(map(tokens.token_bytes, tokens.encode([MIXED]))) == MIXED.encode()
    assert all(tokens.byte_table[i] == b"" for i in tokens.special_ids)


def test_incremental_text_equals_decoded_text_and_never_holds_half_characters(tokens):
    ids = tokens.encode([MIXED])
    stream, text = tokens.detokenizer(), ""
    for token in ids:
        delta = stream.push(token)
        assert "\ufffd" not in delta
        text += delta
    assert text + stream.flush() == MIXED


@pytest.mark.parametrize("seed", range(20))
def test_incremental_text_of_random_tokens_equals_decode(tokens, seed):
    rng = random.Random(seed)
    ids = [rng.randrange(tokens.vocab_size) for _ in range(60)]
    stream = tokens.detokenizer()
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == tokens.decode(ids)


def test_a_fork_goes_its_own_way(tokens):
    first, second = (tokens.encode([c]) for c in ("世", "丗"))
    assert first[:2] == second[:2]
    stream = tokens.detokenizer()
    assert "".join(map(stream.push, first[:2])) == ""
    other = stream.fork()
    assert "".join(map(stream.push, first[2:])) == "世"
    assert "".join(map(other.push, second[2:])) == "丗"


def test_a_tokenizer_file_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": ')
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not a readable tokenizer\.json"):
        from_file(path)


BROKEN = {
    "a charsmap that claims 4 GiB": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}, "charsmap is cut off"),
    "an escaped one in a sequence": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "/////w=="}]}},
        "charsmap is cut off",
    ),
    "one that is no trie": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "not a readable"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "pieces of no length"),
    "characters of shorter tokens": ({"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 2}}, "at the end of tokens"),
    "a prefix longer than tokens": (
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "continuing_subword_prefix": "#####"}},
        "not a readable",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_rules_at_which_the_library_panics_are_refused(tmp_path, case):
    change, message = BROKEN[case]
    text = json.dumps(json.loads(tiny().raw.to_str()) | change)
    path = tmp_path / "tokenizer.json"
    path.write_text(text.replace("charsmap", "ch\\u0061rsm\\u0061p") if "escaped" in case else text)
    with pytest.raises(ModelLoadError, match=rf"tokenizer\.json: .*{message}"):
        from_file(path)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"},
        {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False},
    ],
)
def test_a_text_that_a_tokenizer_cannot_encode_is_an_error_of_its_request(tmp_path, model):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(tiny().raw.to_str()), "model": model, "added_tokens": []}))
    tokens = from_file(path)
    with pytest.raises(ProgramError, match=r"(?i)cannot encode a text of 1 characters: .*unk"):
        tokens.encode(["b"])


def test_dropout_is_for_training(tmp_path):
    path = tmp_path / "tokenizer.json"
    found = json.loads(tiny().raw.to_str())
    found["model"]["dropout"] = 1.0
    path.write_text(json.dumps(found))
    assert from_file(path).encode(["the cat"]) == tiny().encode(["the cat"])


def test_sentencepiece_prefixes_only_the_start():
    vocab = {piece: i for i, piece in enumerate(["<unk>", "\u2581", "a", "\u2581a", "b", "<s>"])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[("\u2581", "a")], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    raw.add_special_tokens(["<s>"])
    tokens = Tokenizer(raw)
    assert tokens.encode(["a"]) == [3]
    assert tokens.encode([Special("<s>"), "a"]) == [5, 2]
    assert tokens.encode(["a"], at_start=False) == [2]
    assert raw.encode("<s>a", add_special_tokens=False).ids != [5, 3]


# -- from GGUF metadata ----------------------------------------------------------------------------------------------


def gguf_meta(**changes):
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "12", "<|end|>", "<tool>"]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": ["t h", "th e", "1 2"],
        "tokenizer.ggml.token_type": [1] * (len(words) - 2) + [3, 4],
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.ggml.add_bos_token": True,
    }
    return base | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}


def test_gguf_special_and_added_tokens():
    tokens = from_gguf(gguf_meta(), "m.gguf")
    assert tokens.special_ids == {tokens.id_of("<|end|>")}
    assert tokens.split_specials("a<|end|>b<tool>") == ("a", Special("<|end|>"), "b", Special("<tool>"))
    assert (tokens.bos_token_id, tokens.add_bos) == (5, True)


def test_smollm_splits_digits_and_others_do_not():
    smollm = from_gguf(gguf_meta(), "m.gguf")
    assert len(smollm.encode(["the12"])) == 3
    assert smollm.encode([" ١"])[0] == smollm.encode([" "])[0]
    assert len(from_gguf(gguf_meta(pre="gpt-2"), "m.gguf").encode(["the12"])) == 2
    assert len(from_gguf(gguf_meta(pre="qwen2"), "m.gguf").encode(["the12"])) == 3
    assert len(from_gguf(gguf_meta(pre="llama-bpe"), "m.gguf").encode(["the12"])) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pre": "klingon"}, r"m\.gguf: tokenizer\.ggml\.pre is 'klingon'; supported: smollm"),
        ({"merges": ["t h", "x y"]}, r"m\.gguf: its vocabulary is not consistent"),
        ({"merges": ["th"]}, r"m\.gguf: its vocabulary is not consistent"),
        ({"token_type": [1]}, r"m\.gguf: its vocabulary is not consistent"),
        ({"model": "bert"}, r"m\.gguf: tokenizer\.ggml\.model is 'bert'; supported: gpt2, llama"),
    ],
)
def test_unknown_gguf_tokenizers_are_errors(change, says):
    with pytest.raises(ModelLoadError, match=says):
        from_gguf(gguf_meta(**change), "m.gguf")


# -- the small real model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm():
    from lmc.backend.engine.models import gguf
    from lmc.backend.engine.models.gguf import embedded_path

    return from_gguf(gguf.read(embedded_path()).metadata, "smollm2", eos_token_ids=(2,))


def long_text(rng: random.Random, pieces: int) -> str:
    """Words, numbers, signs, other scripts and all kinds of space between them."""
    words = ["the", "cat", "don't", "I'LL", "x1234", "0.5", "naïve", "世界", "🙂👩‍👩‍👧", "e\u0301", "(a)", '"q"', "٣", "_", "<|im_end|>"]
    spaces = [" ", " ", " ", "  ", "\n", "\n\n ", "\t", "", "\u00a0", "\r\n"]
    return "".join(rng.choice(words) + rng.choice(spaces) for _ in range(pieces))


@pytest.fixture(params=["tiny", pytest.param("smollm", marks=pytest.mark.model)])
def vocabulary(request):
    """Each of them; and how often texts are tried: the small model is the one of which much is expected."""
    return (tiny(), 12) if request.param == "tiny" else (request.getfixturevalue("smollm"), 40)


def test_blocks_of_a_long_text_have_its_ids(vocabulary):
    tokens, seeds = vocabulary
    for seed in range(seeds // 2):
        text = long_text(random.Random(seed), 1200)
        blocks = tokens.blocks(text)
        assert len(blocks) > 2 and "".join(blocks) == text
        assert [i for block in blocks for i in quiet(tokens, [block])] == quiet(tokens, [text])
        longer = tokens.blocks(text + " and more")
        assert longer[: len(blocks) - 1] == blocks[:-1]  # what comes later moves no earlier cut


def test_known_words_have_the_ids_of_the_text(vocabulary, monkeypatch):
    """Words that are looked up, and few of which are known at once, have the ids that the vocabulary gives the whole text."""
    tokens, _ = vocabulary
    for most in (1 << 16, 5):
        monkeypatch.setattr(tokenizer, "_MOST_WORDS", most)
        for seed in range(60):
            text = long_text(random.Random(seed), 80)
            assert quiet(tokens, [text]) == tokens.raw.encode(text, add_special_tokens=False).ids
            middle = " " * (seed % 3) + text[seed:]  # as a text goes on that was cut
            assert tokens.encode([middle], at_start=False) == tokens._middle.encode(middle, add_special_tokens=False).ids
        assert tokens._words


def test_where_an_added_token_takes_spaces_no_words_are_looked_up():
    raw = tiny().raw
    raw.add_tokens([AddedToken("<pad>", special=False, lstrip=True, rstrip=True)])
    tokens, text = Tokenizer(raw), "the cat <pad> the cat in the hat " * 8
    assert quiet(tokens, [text]) == raw.encode(text, add_special_tokens=False).ids and not tokens._words


def test_parts_of_a_text_have_its_ids(vocabulary):
    """However a text is cut into parts, also within words and characters that belong together: its ids are its own."""
    tokens, seeds = vocabulary
    encoder = Encoder(tokens, capacity=5000)
    for seed in range(seeds):
        rng = random.Random(seed)
        text = long_text(rng, 250)
        expected = quiet(tokens, [text])
        for _ in range(4):
            at = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
            parts = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert encoder.encode(parts, at_start=True).tolist() == expected
        assert encoder._held == sum(len(piece) for piece, _ in encoder._known) <= 5000


def test_a_text_has_no_fewer_tokens_than_its_length_says(vocabulary):
    tokens, seeds = vocabulary
    assert tokens.least(["a" * 9999]) > 0
    for seed in range(seeds // 2):
        for text in (long_text(random.Random(seed), 400), " " * 999, "the" * 333, "\n" * 99, "=" * 999, "\x04\x1d\x7f" * 999, "\U00040000" * 999):
            assert tokens.least([text[:9], text[9:]]) <= len(quiet(tokens, [text]))


@pytest.mark.parametrize("text", ["a", "x", "\xe9", "\u4e16", "\u03b1\u0313\u0300\u0345"])  # of the last NFC makes one character
def test_where_characters_are_dropped_or_share_a_token_the_length_of_a_text_does_not_count(text):
    def made(model, **rules):
        raw = RawTokenizer(model)
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        for name, rule in rules.items():
            setattr(raw, name, rule)
        return Tokenizer(raw)

    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    ascii_, rest = ({letter: i for i, letter in enumerate(part)} for part in ("abc", [*alphabet][94:]))
    for tokens, known in (
        (made(models.BPE(alphabet, [])), True), (made(models.BPE(alphabet, []), normalizer=normalizers.NFC()), True),
        (made(models.BPE(rest, [])), True), (made(models.BPE({**rest, "<unk>": 999}, [], unk_token="<unk>", fuse_unk=True)), True),
        (made(models.BPE(ascii_, [])), False), (made(models.BPE({**ascii_, "<unk>": 9}, [], unk_token="<unk>", fuse_unk=True)), False),
        (made(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), False), (made(models.Unigram([("<unk>", 0.0)], 0)), False),
        (made(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), False), (made(models.BPE(alphabet, []), normalizer=normalizers.Strip()), False),
        (made(models.BPE(alphabet, [], end_of_word_suffix="\xc0")), False),
        (made(models.BPE(alphabet, []), pre_tokenizer=pre_tokenizers.Whitespace()), False),
    ):  # fmt: skip
        assert tokens.least([text * 999]) <= len(quiet(tokens, [text * 999]))
        assert (tokens.least(["\xc5" * 999]) > 0) is known


def test_only_a_text_that_begins_like_another_is_cut_into_blocks(monkeypatch):
    tokens = tiny()
    encoder, encoded = Encoder(tokens), []
    encode = tokens.encode
    monkeypatch.setattr(tokens, "encode", lambda parts, **options: encoded.append(parts[0]) or encode(parts, **options))
    shared = "the cat and the other cat in the hat then " * 40

    def calls(text: str) -> int:
        before = len(encoded)
        assert encoder.encode([text], at_start=True).tolist() == encode([text])
        return len(encoded) - before

    blocks = len(tokens.blocks(shared))
    assert blocks > 3
    assert calls(shared + "one") == 1 and calls("a " + shared) == 1, "a text of its own is one"
    assert calls(shared + "two") == blocks, "now its blocks are kept"
    assert calls(shared + "three") == 1, "the last, which no other has"
    assert calls(shared + "one") == 0


def test_a_vocabulary_that_may_merge_across_words_is_not_cut():
    text = "the cat " * 400
    for change in (
        lambda raw: setattr(raw, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        lambda raw: setattr(raw, "pre_tokenizer", None),
        lambda raw: setattr(raw, "normalizer", normalizers.Replace(" c", "c")),
        lambda raw: raw.add_tokens([AddedToken("the cat", special=False)]),
    ):
        raw = tiny().raw
        change(raw)
        assert Tokenizer(raw).blocks(text) == [text]


@pytest.mark.model
def test_ids_equal_those_of_transformers(smollm):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    from lmc.backend.engine.models.gguf import embedded_path

    path = embedded_path()
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # its GGUF reader leaves out the vocabulary's digit rule, which shows in digits beyond ASCII only
    plain = MIXED.replace("١٢٣", "")
    for text in (plain, "x" * 40 + "  \n\n  y", "1234567890 3.14", "The <b>end</b>."):
        assert smollm.encode([text]) == theirs.encode(text, add_special_tokens=False)
    special = "<|im_start|>user\nHi 7<|im_end|>\n<|im_start|>assistant\n"
    assert smollm.encode(smollm.split_specials(special)) == theirs.encode(special, add_special_tokens=False)


@pytest.mark.model
def test_no_special_token_comes_out_of_text(smollm):
    for token in smollm.special_ids:
        spelling = smollm.spelling(token)
        for cut in range(len(spelling)):
            ids = quiet(smollm, ["x", spelling[:cut], Mark("user", "end"), spelling[cut:], "y"])
            assert not set(ids) & smollm.special_ids
            assert smollm.decode(ids) == f"x{spelling}y"


def test_long_words_are_not_kept(tokens):
    texts = ["x" + chr(ord("a") + i) * 100_000 for i in range(4)]
    quiet(tokens, [texts[0]])
    tracemalloc.start()
    try:
        for text in texts[1:]:
            quiet(tokens, [text])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_long_text_has_its_ids_and_other_threads_run_meanwhile(monkeypatch, tokens):
    """`encode` holds the interpreter's lock: one request would stop the whole server."""
    text = "thecat" * 10_000
    expected = tokens.encode([text])  # also looks at the rules, once
    assert expected == tokens.raw.encode(text, add_special_tokens=False).ids
    batched = tokens.raw.encode_batch_fast

    class Raw:
        def encode(self, *_, **__):
            raise AssertionError("holds the lock")

        encode_batch_fast = staticmethod(batched)

    monkeypatch.setattr(tokens, "raw", Raw())
    monkeypatch.setattr(tokens, "_middle", tokens.raw)
    assert tokens.encode([text]) == expected
