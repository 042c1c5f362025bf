"""Tokenizers of GGUF files, from their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from lmc.backend.engine import sentencepiece
from lmc.backend.engine.models.claims import Claims
from lmc.backend.engine.models.gguf_keys import check_tokenizer
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.engine.tokenizer_rules import LLAMA3_SPLIT, QWEN2_SPLIT
from lmc.errors import ModelLoadError


def _split(pattern: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def _pre_tokenizer(name: str, where: str) -> Any:
    """Return the rules that llama.cpp names by `tokenizer.ggml.pre` (its llama-vocab.cpp)."""
    if name == "smollm":
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name == "gpt-2":
        parts = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name in ("llama-bpe", "llama3", "llama-v3"):
        parts = _split(LLAMA3_SPLIT)
    elif name == "qwen2":
        parts = _split(QWEN2_SPLIT)
    else:
        known = "smollm, gpt-2, llama-bpe, qwen2"
        raise ModelLoadError(f"{where}: tokenizer.ggml.pre is {name!r}; supported: {known}. Use the model's directory with tokenizer.json")
    return pre_tokenizers.Sequence(parts)


def from_gguf(meta: Mapping[str, Any], where: str, **options: Any) -> Tokenizer:
    """Load from GGUF metadata: byte-level BPE ("gpt2") or SentencePiece's ("llama"). Options are those of Tokenizer."""
    kind = meta.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelLoadError(f"{where}: tokenizer.ggml.model is {kind!r}; supported: gpt2, llama. Use the model's directory with tokenizer.json")
    tokens = _listed(meta, "tokens", where)
    check_tokenizer(meta, len(tokens), where)
    claims = Claims(meta, where, "tokenizer.ggml.")
    bos = claims.token("bos_token_id", len(tokens))
    try:
        types = meta.get("tokenizer.ggml.token_type", [sentencepiece.NORMAL] * len(tokens))
        if kind == "llama":
            prefix, unknown = meta.get("tokenizer.ggml.add_space_prefix"), claims.token("unknown_token_id", len(tokens))
            scores = _listed(meta, "scores", where)
            raw = sentencepiece.bpe(tokens, scores, types, unknown or 0, prefix=prefix is None or bool(prefix))
        else:
            pre = str(meta.get("tokenizer.ggml.pre", "gpt-2"))
            raw = _byte_level_bpe(tokens, _listed(meta, "merges", where), pre, where)
        sentencepiece.add_others(raw, tokens, types)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{where}: its vocabulary is not consistent: {error}; download it again") from error
    return Tokenizer(
        raw,
        bos_token_id=bos,
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        **options,
    )


def _listed(meta: Mapping[str, Any], key: str, where: str) -> list[Any]:
    try:
        found = meta[f"tokenizer.ggml.{key}"]
    except KeyError as missing:
        raise ModelLoadError(f"{where}: the metadata lacks {missing.args[0]}") from None
    if not isinstance(found, list):
        raise ModelLoadError(f"{where}: tokenizer.ggml.{key} is {found!r:.60}; expected a list; download it again")
    return found


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: str, where: str) -> RawTokenizer:
    bpe = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[(m[0], m[1]) for m in (merge.split(" ", 1) for merge in merges)],
        ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3"),
    )
    raw = RawTokenizer(bpe)
    if pre == "qwen2":
        raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = _pre_tokenizer(pre, where)
    raw.decoder = decoders.ByteLevel()
    return raw
