"""The rules of a `tokenizer.json`: where texts are cut into words, and what is put before the first one."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from lmc.errors import ModelLoadError
from lmc.fsm.canonical import Cuts


def spec_of(part: Any) -> str:
    """Return a part of a tokenizer as compact JSON: its pickled state, without writing out the vocabulary."""
    return "" if part is None else part.__getstate__().decode().replace(" ", "")


_LEGACY = '"Prepend"', '"prepend_scheme":"always"'


def is_legacy(raw: RawTokenizer) -> bool:
    """Return whether a space is put before every text, also one that goes on from a special token."""
    return any(sign in spec_of(part) for part in (raw.normalizer, raw.pre_tokenizer) for sign in _LEGACY)


def without_prefix(raw: RawTokenizer) -> RawTokenizer:
    """Return the same rules for text that is not at the start: without sentencepiece's space before the first word."""
    if not is_legacy(raw) and '"prepend_scheme":"first"' not in spec_of(raw.pre_tokenizer):
        return raw
    found = json.loads(raw.to_str())
    splits, rules = parts_of(raw.pre_tokenizer, "pretokenizers"), parts_of(raw.normalizer, "normalizers")
    for split in splits:
        if "prepend_scheme" in split:
            split["prepend_scheme"] = "never"
    rules = [rule for rule in rules if rule["type"] != "Prepend"]
    found["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits} if splits else None
    found["normalizer"] = {"type": "Sequence", "normalizers": rules} if rules else None
    return RawTokenizer.from_str(json.dumps(found))


def parts_of(part: Any, name: str) -> list[dict[str, Any]]:
    """Return the specifications of the components of a part of a tokenizer."""
    spec = {} if part is None else json.loads(part.__getstate__())
    return spec.get(name, [spec] if spec else [])


def check_charsmaps(data: bytes) -> None:
    """Raise ModelLoadError for a `tokenizer.json` with a precompiled normalizer that claims to be larger than it is: the library takes memory for
    what it claims."""
    if b"charsmap" not in data and _ESCAPED.search(data) is None:
        return
    rules = [json.loads(data).get("normalizer")]
    for rule in rules:
        if isinstance(rule, dict):
            rules += rule.get("normalizers", ())
            if isinstance(said := rule.get("precompiled_charsmap"), str):
                found = base64.b64decode(said)
                if int.from_bytes(found[:4], "little") > len(found) - 4:
                    raise ModelLoadError("its precompiled_charsmap is cut off, or made to do damage: download it again from its source")


_ESCAPED = re.compile(rb"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])")
"""A letter, or _, which JSON need not escape."""


def check_rules(raw: RawTokenizer) -> None:
    """Raise ModelLoadError for rules at which the library panics."""
    for rule in parts_of(raw.pre_tokenizer, "pretokenizers"):
        if rule["type"] == "FixedLength" and rule["length"] == 0:
            raise ModelLoadError("its pre-tokenizer cuts texts into pieces of no length; download it again from its source")
    for rule in parts_of(raw.decoder, "decoders"):
        if rule["type"] == "Strip" and rule["stop"] > 0:  # from a token of fewer characters
            raise ModelLoadError("its decoder takes characters away at the end of tokens, which is not supported; use another tokenizer")


def check_ids(raw: RawTokenizer, limit: int | None) -> None:
    if limit is None or raw.get_vocab_size(with_added_tokens=True) == 0:
        return
    added = raw.get_added_tokens_decoder()
    beyond = {token: i for token, i in raw.get_vocab(with_added_tokens=True).items() if i >= limit and not (i in added and added[i].special)}
    if beyond:
        token, i = min(beyond.items(), key=lambda pair: pair[1])
        raise ModelLoadError(f"the token {token!r:.40} has the id {i}, and the model has {limit} tokens; do tokenizer and weights belong to the same model?")


def failed_in_library(error: BaseException) -> bool:
    """Return whether the tokenizers library has failed: with a bare Exception, or a panic, which is not even that."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


_MOST_GROWTH = 4096


def check_growth(raw: RawTokenizer) -> None:
    """Raise ModelLoadError for rules that make texts far longer: forty that write `aa` for `a` make a terabyte of one letter."""
    normalizer, pre_tokenizer, decoder = map(_growth_by, (raw.normalizer, raw.pre_tokenizer, raw.decoder))
    for name, times in (("normalizer", normalizer), ("pre-tokenizer", normalizer * pre_tokenizer), ("decoder", decoder)):
        if times > _MOST_GROWTH:
            raise ModelLoadError(
                f"its {name} may make a text {times:,} times as long; the file is damaged, or made to do damage: download it again from its source"
            )


def _growth_by(part: Any) -> int:
    return 1 if part is None else _growth(json.loads(part.__getstate__()))


def _growth(rule: dict[str, Any]) -> int:
    """Return how many times as long a rule may make a text."""
    for several in ("normalizers", "pretokenizers", "decoders"):
        if several in rule:
            return math.prod(map(_growth, rule[several]))
    if rule["type"] == "Prepend":
        return 1 + len(rule["prepend"])
    if rule["type"] != "Replace":
        return _PER_LETTER.get(rule["type"], 1)  # but for a constant factor
    literal = rule["pattern"].get("String")
    return max(1, math.ceil(len(rule["content"]) / len(literal))) if literal else 1 + len(rule["content"])  # an empty one is found between all letters


_PER_LETTER = {"ByteLevel": 3, "Metaspace": 2}  # a space before it, and two letters for a byte


LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def cuts_of(raw: RawTokenizer) -> Cuts | None:
    """Return how a tokenizer cuts texts into words; None if in no supported way, or if it changes texts other than by
    spaces."""
    if any(
        rule["type"] not in ("Prepend", "Replace", "NFC") or rule.get("pattern", {"String": " "}) != {"String": " "}
        for rule in parts_of(raw.normalizer, "normalizers")
    ):
        return None
    match parts_of(raw.pre_tokenizer, "pretokenizers"):
        case []:
            return "none"
        case [{"type": "Metaspace"} as last]:
            return "spaces" if last.get("split", True) else "none"
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return "gpt2"
        case [{"type": "Digits"}, {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return "gpt2-digits"
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"} as split,
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ]:
            return "llama3" if pattern in (LLAMA3_SPLIT, QWEN2_SPLIT) and not split.get("invert") else None
        case _:
            return None
