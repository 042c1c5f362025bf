"""SentencePiece's BPE out of GGUF metadata: the ids of a merge by score, and of transformers' tokenizer of the same pieces."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as RawTokenizer

from lmc.backend.engine.encoding import Encoder
from lmc.backend.engine.gguf_tokenizer import from_gguf
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.errors import ModelLoadError
from lmc.segments import Special

CORPUS = """The cat and the other cat sat in the hat, then that cat ran to the other hat and sat there. "Don't!" said the hat; 12 cats
cannot sit in 1 hat.  There were    spaces, aaaaaaaa lot of aaa's, and banana bandanas. naïve café: déjà vu. 世界和平世界."""


@cache
def vocabulary(seed: int = 0, size: int = 220) -> tuple[list[str], list[float], list[int]]:
    """Pieces as SentencePiece trains them: the pair that is seen most becomes a piece of the next lower score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    types = [2, 3, 3] + [6] * 256
    rng = random.Random(seed)
    words = [list(("▁" + line).replace(" ", "▁")) for line in CORPUS.split("\n") for _ in range(2)]
    words += [["▁"] * 9, list("a" * 7), list("ab" * 6)]
    pieces: list[str] = []
    while len(pieces) < size:
        seen = Counter(
            (a, b)
            for word in words
            for a, b in pairwise(word)
            if "和" not in a + b and ("▁" not in b or not a.strip("▁"))
        )
        if not seen:
            break
        a, b = rng.choice([pair for pair, _ in seen.most_common(3)])
        if a + b not in pieces:
            pieces.append(a + b)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if word[i] + word[i + 1] == a + b:
                    word[i : i + 2] = [a + b]
                i += 1
    letters = sorted(set(CORPUS.replace(" ", "▁").replace("\n", "")) - {"和"})  # one is bytes
    tokens += [*pieces, *letters, "<tool>"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) + len(letters))] + [0.0]
    return tokens, scores, types + [1] * (len(pieces) + len(letters)) + [4]


def meta(seed: int = 0, **changes: Any) -> dict[str, Any]:
    tokens, scores, types = map(list, vocabulary(seed))
    base = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types, "bos_token_id": 1, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{k}": v for k, v in (base | changes).items() if v is not None}


def reference(text: str, seed: int = 0) -> list[int]:
    """SentencePiece's definition: of all neighbours that are a piece together those of the highest score, the leftmost first."""
    tokens, scores, types = vocabulary(seed)
    ids = {t: i for i, t in enumerate(tokens)}
    score = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == 1}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return [i for s in symbols for i in ([ids[s]] if s in score else [ids[f"<0x{b:02X}>"] for b in s.encode()])]


def random_text(rng: random.Random) -> str:
    words = [*CORPUS.split(), "aaaaa", "abab", "和", "\n", "\t", "🙂", "", " ", "   ", "the", "<0x41>", "▁", "bananas", "CAT"]
    return "".join(rng.choice(words) + rng.choice([" ", " ", "", "  "]) for _ in range(rng.randrange(1, 12)))


def quiet(tokens: Tokenizer, *parts: str | Special, at_start: bool = True) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tokens.encode(parts, at_start=at_start)


@pytest.fixture(scope="module")
def tokens():
    return from_gguf(meta(), "m.gguf", eos_token_ids=(2,))


def test_ids_are_those_of_a_merge_by_score():
    for seed in range(3):
        made, rng = from_gguf(meta(seed), "m.gguf"), random.Random(seed)
        assert len({i for _ in range(20) for i in quiet(made, random_text(rng))}) > 30
        for _ in range(60):
            text = random_text(rng)
            assert quiet(made, text) == reference("▁" + text, seed), text
            assert quiet(made, text, at_start=False) == reference(text, seed), text


def test_text_goes_there_and_back(tokens):
    rng = random.Random(1)
    for _ in range(80):
        text = random_text(rng).replace("▁", "")
        ids = quiet(tokens, text)
        assert tokens.decode(ids) == text
        later = quiet(tokens, text, at_start=False)
        assert b"".join(map(tokens.token_bytes, later)).decode() == text == tokens.decode(later, at_start=False)
        stream = tokens.detokenizer()  # behind a prompt: a space before the first word is the answer's own
        assert "".join(map(stream.push, later)) + stream.flush() == text


def test_bytes_of_tokens_are_what_constraints_see(tokens):
    ids = {tokens.spelling(i): i for i in range(tokens.vocab_size)}
    table = tokens.byte_table
    assert (table[ids["<0x0A>"]], table[ids["<0xE5>"]], table[ids["▁the"]]) == (b"\n", b"\xe5", b" the")
    assert table[ids["世界"]] == "世界".encode() and table[ids["▁▁"]] == b"  "
    assert [table[i] for i in sorted(tokens.special_ids)] == [b"", b"", b""]


def test_special_and_added_tokens(tokens):
    assert tokens.special_ids == {0, 1, 2}
    assert (tokens.bos_token_id, tokens.add_bos) == (1, True)
    assert quiet(tokens, "the<tool>", at_start=False) == [*reference("the"), tokens.id_of("<tool>")]
    assert not set(quiet(tokens, "a</s>b<s><unk>")) & {0, 1, 2}, "text is never special"
    assert tokens.decode(quiet(tokens, "a</s>b")) == "a</s>b"
    encoder = Encoder(tokens)
    assert encoder.encode(("the",), at_start=True).tolist() == [1, *reference("▁the")]
    assert encoder.encode((Special("<s>"), "the"), at_start=True).tolist() == [1, *reference("▁the")]
    assert encoder.encode((Special("</s>"), "the"), at_start=False).tolist() == [2, *reference("▁the")]
    assert encoder.encode(("the",), at_start=False).tolist() == reference("the")
    assert from_gguf(meta(add_bos_token=False), "m.gguf").add_bos is False


def test_a_vocabulary_without_the_first_space():
    made = from_gguf(meta(add_space_prefix=False), "m.gguf")
    assert quiet(made, "the cat") == reference("the cat")
    assert made.decode(quiet(made, " the")) == " the"


def test_long_texts_are_cut_at_words(tokens):
    text = CORPUS.replace("\n", " ") * 12
    blocks = tokens.blocks(text)
    assert len(blocks) > 5
    assert [i for n, b in enumerate(blocks) for i in quiet(tokens, b, at_start=n == 0)] == quiet(tokens, text)
    changed = meta()
    changed["tokenizer.ggml.tokens"][-2] = "the▁"
    assert len(from_gguf(changed, "m.gguf").blocks(text)) == 1


def test_pieces_of_one_score_are_told(caplog):
    scores = vocabulary()[1]
    from_gguf(meta(scores=scores[:259] + [0.0] * (len(scores) - 259)), "m.gguf")
    assert "pieces of the vocabulary have another's score" in caplog.text
    caplog.clear()
    from_gguf(meta(), "m.gguf")
    assert not caplog.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": None}, r"m\.gguf: the metadata lacks tokenizer\.ggml\.scores"),
        ({"scores": [0.0]}, r"m\.gguf: its vocabulary is not consistent"),
        ({"unknown_token_id": 10**6}, r"m\.gguf: tokenizer\.ggml\.unknown_token_id is 1000000; expected a whole number from 0 to"),
    ],
)
def test_incomplete_metadata_is_named(change, says):
    with pytest.raises(ModelLoadError, match=says):
        from_gguf(meta(**change), "m.gguf")


def test_older_tokenizer_files_put_a_space_before_text_but_not_behind_an_answer():
    """Llama's tokenizer.json of before 2024: a normalizer puts the space, also behind special tokens."""
    raw = RawTokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(["<unk>", "▁", "a", "▁a"])}, merges=[("▁", "a")], unk_token="<unk>")
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)])
    raw.add_special_tokens([AddedToken("<s>", special=True)])
    made = Tokenizer(raw)
    assert quiet(made, "a a") == [3, 3]
    assert quiet(made, Special("<s>"), "a a") == [4, 3, 3]
    assert quiet(made, "a a", at_start=False) == [2, 3]
    assert quiet(made, "a", Special("<s>"), "a", at_start=False) == [2, 4, 3]
    assert Encoder(made).encode(("a", Special("<s>"), "a"), at_start=False).tolist() == [2, 4, 3]


@pytest.mark.model
def test_ids_equal_those_of_transformers(tokens):
    pytest.importorskip("transformers")
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    names, scores, types = vocabulary()
    ids = {t: i for i, t in enumerate(names)}
    skipped = {t for t, kind in zip(names, types, strict=True) if kind != 1}
    merges = generate_merges(ids, dict(zip(names, scores, strict=True)), skipped)
    theirs = LlamaTokenizer(vocab=ids, merges=merges)
    rng = random.Random(3)
    for _ in range(300):
        text = random_text(rng).lstrip(" ▁")  # to which theirs adds no space
        assert quiet(tokens, text) == theirs.encode(text, add_special_tokens=False), text
