"""SentencePiece's BPE from pieces and scores, as in GGUF files of Llama 2, Mistral and similar models.

SentencePiece merges, of all neighbours that are a piece together, those with the highest score, the leftmost of equals
(google/sentencepiece, bpe_model.cc). `tokenizers` merges by rank: a pair's rank is here the index of its piece by
score, as in transformers' convert_slow_tokenizer.py. Text that no piece spells becomes bytes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as RawTokenizer

log = logging.getLogger("lmc.engine")

SPACE = "\u2581"
_LONGEST = 512  # most characters of a piece; each of its cuts is tried. SentencePiece itself allows 16 by default
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type, which is SentencePiece's


def bpe(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], unknown: int, *, prefix: bool) -> RawTokenizer:
    """unknown: the id of text that is neither a piece nor has bytes. prefix: whether a text, at the start or after a
    special token, is encoded as if a space preceded it, as llama.cpp does."""
    ids = {token: i for i, token in enumerate(tokens)}
    if max(map(len, tokens), default=0) > _LONGEST:
        raise ValueError(f"a piece has more than {_LONGEST} characters")
    pieces = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    model = models.BPE(vocab=ids, merges=_merges(pieces), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    raw = RawTokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    raw.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*text, decoders.Strip(" ", left=1)] if prefix else text)
    return raw


def add_others(raw: RawTokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Add special tokens, and user-defined ones, which are whole wherever they occur in a text."""
    of = list(zip(tokens, types, strict=True))
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in of if kind in (UNKNOWN, CONTROL)])
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in of if kind == USER_DEFINED])


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return pairs of pieces that form a piece, the first to be merged first."""
    found = [
        (score, piece[:cut], piece[cut:]) for piece, score in scores.items() for cut in range(1, len(piece)) if piece[:cut] in scores and piece[cut:] in scores
    ]
    alike = sum(n for n in Counter(score for score, _ in {(score, a + b) for score, a, b in found}).values() if n > 1)
    if alike:
        log.warning("%d pieces of the vocabulary have another's score: which of them comes first in a text is not defined", alike)
    found.sort(key=lambda pair: (pair[0], len(pair[1])), reverse=True)
    return [(a, b) for _, a, b in found]
