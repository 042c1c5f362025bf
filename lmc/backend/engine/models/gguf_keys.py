"""The meaning of each key of a GGUF file's metadata to lmc: read, required to have a value, or irrelevant. A key of the
model or tokenizer that is in no table is refused: it may change the meaning of the file.

    llama.rope.dimension_count = 64     must be head_dim, since lmc rotates whole heads
    llama.attention.causal = True       must be
    llama.attention.sinks = …           in no table: refused
    general.author, quantize.imatrix.…  of no matter

(cf. llama.cpp, gguf-py/gguf/constants.py; unlike llama.cpp, which ignores what it does not know.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lmc.backend.engine.models.claims import Claims
from lmc.backend.engine.models.config import ModelConfig
from lmc.errors import ModelLoadError

_REMEDY = "convert it again, take its safetensors, or correct the field with gguf-set-metadata (PyPI: gguf)"

READ = frozenset({
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
})  # fmt: skip
"""Keys of the architecture that `config.from_gguf` reads."""

NO_MATTER = frozenset({"tensor_data_layout", "rope.scaling.finetuned"})
"""Keys of the architecture that say how the file came to be."""

MUST_BE: Mapping[str, tuple[Callable[[ModelConfig], Any], str]] = {
    "vocab_size": (lambda c: c.vocab_size, "the rows of 'token_embd.weight'"),
    "rope.dimension_count": (lambda c: c.head_dim, "the size of a head: rotating a part of each is not supported"),
    "attention.value_length": (lambda c: c.head_dim, "the size of a head: values of another size than keys are not supported"),
    "attention.scale": (lambda c: 1 / math.sqrt(c.head_dim), "1 / √(size of a head): another scale is not supported"),
    **dict.fromkeys(("attention.causal",), (lambda c: True, "attention that looks back alone")),
    **dict.fromkeys(("use_parallel_residual",), (lambda c: False, "attention before the MLP, not beside it")),
    **dict.fromkeys(
        ("logit_scale", "residual_scale", "embedding_scale", "rope.scale_linear", "rope.scaling.yarn_attn_factor"),
        (lambda c: 1.0, "a scale that changes nothing; others are not supported"),
    ),
    "rope.scaling.yarn_ext_factor": (lambda c: 1.0, "interpolation of whole frequencies; another is not supported"),
    **dict.fromkeys(
        (
            "expert_count", "expert_used_count", "expert_shared_count", "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_group_count",
            "expert_group_used_count", "leading_dense_block_count", "interleave_moe_layer_step", "nextn_predict_layers",
        ),
        (lambda c: 0, "a dense model: experts of GGUF files are not supported; take the model's safetensors"),
    ),
    **dict.fromkeys(
        (
            "attention.clamp_kqv", "attention.max_alibi_bias", "attention.shared_kv_layers", "attention.q_lora_rank", "attention.kv_lora_rank",
            "attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier", "pooling_type",
        ),
        (lambda c: 0, "0: what it says is not supported"),
    ),
}  # fmt: skip
"""Keys of the architecture whose value has to be what lmc computes, and why."""

TOKENIZER_READ = frozenset({
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_space_prefix", "bos_token_id", "eos_token_id", "eot_token_id",
    "eom_token_id", "eos_token_ids", "unknown_token_id",
})  # fmt: skip
TOKENIZER_IDS = frozenset({
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id", "seperator_token_id",
    "separator_token_id", "mask_token_id", "cls_token_id", *(f"fim_{each}_token_id" for each in ("pre", "suf", "mid", "pad", "rep", "sep")),
    "prefix_token_id", "suffix_token_id", "middle_token_id",
})  # fmt: skip
"""Tokens by their use; those that lmc does not use must exist all the same."""
TOKENIZER_MUST_BE: Mapping[str, tuple[Any, str]] = {
    "add_eos_token": (False, "no end behind each prompt, which answers go on with"),
    "add_sep_token": (False, "no separator behind each prompt, which answers go on with"),
    "remove_extra_whitespaces": (False, "text taken as it is"),
    "precompiled_charsmap": ([], "text taken as it is"),
    "token_type_count": (0, "a decoder's vocabulary"),
}
TOKENIZER_NO_MATTER = frozenset({"add_padding_token", "add_unknown_token"})
_TRUTHS = frozenset({"add_bos_token", "add_space_prefix"})


def check_model(meta: Mapping[str, Any], config: ModelConfig, tensors: int, where: str) -> None:
    """Refuse metadata that say of a model what lmc would not compute. `tensors`: how many the file has. Raises ModelLoadError with the field and the remedy."""
    check_whole(meta, tensors, where)
    claims = Claims(meta, where, f"{config.architecture}.")
    for key, value in meta.items():
        name = key.removeprefix(claims.prefix)
        if name == key or name in READ or name in NO_MATTER:
            continue
        if name not in MUST_BE:
            raise ModelLoadError(f"{where}: {key} is {value!r:.60}, which lmc does not know, and which may change what the model computes; {_REMEDY}")
        wanted, why = MUST_BE[name]
        _must_be(key, value, wanted(config), why, where)


def check_whole(meta: Mapping[str, Any], tensors: int, where: str) -> None:
    """Refuse a file that is a part of a model's, or no model's."""
    claims = Claims(meta, where)
    if (kind := claims.text("general.type", "model")) != "model":
        raise ModelLoadError(f"{where}: general.type is {kind!r:.60}: the file is no model; take the model's own")
    parts = claims.whole("split.count", 1 << 16, 1, least=0)
    if parts > 1:
        raise ModelLoadError(f"{where}: split.count is {parts}: the file is one of {parts} parts of a model; make one of them with llama-gguf-split --merge")
    if claims.has("split.no"):
        _must_be("split.no", claims.raw("split.no"), 0, "the only part", where)
    if claims.has("split.tensors.count"):
        _must_be("split.tensors.count", claims.raw("split.tensors.count"), tensors, "the tensors that the file has", where)
    if claims.has("general.quantization_version"):
        _must_be("general.quantization_version", claims.raw("general.quantization_version"), 2, "the blocks that lmc reads", where)


def check_tokenizer(meta: Mapping[str, Any], size: int, where: str) -> None:
    """Refuse metadata that say of a vocabulary of `size` tokens what lmc would not do."""
    claims = Claims(meta, where, "tokenizer.ggml.")
    for key, value in meta.items():
        name = key.removeprefix(claims.prefix)
        if name == key:
            continue
        if name in _TRUTHS and not isinstance(value, bool):
            raise claims.wrong(name, value, "true or false")
        if name in TOKENIZER_IDS:
            claims.token(name, size)
        elif name in TOKENIZER_MUST_BE:
            _must_be(key, value, *TOKENIZER_MUST_BE[name], where)
        elif name not in TOKENIZER_READ and name not in TOKENIZER_NO_MATTER:
            raise ModelLoadError(
                f"{where}: {key} is {value!r:.60}, which lmc does not know, and which may change what a text's tokens are; "
                "use the model's directory with tokenizer.json"
            )


def _must_be(key: str, value: Any, wanted: Any, why: str, where: str) -> None:
    same = (
        type(value) in (int, float) and math.isclose(value, wanted, rel_tol=1e-3)
        if isinstance(wanted, float)
        else type(value) is type(wanted) and value == wanted
    )
    if not same:
        raise ModelLoadError(f"{where}: {key} is {value!r:.60}; expected {wanted!r}, {why}; {_REMEDY}")
