"""Configurations for transformers' own code: whether it can run a model, told before it is imported, and the engine's view of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmc.backend.engine.models.claims import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH, Claims
from lmc.backend.engine.models.config import ModelConfig, decoder_sizes, made
from lmc.errors import ModelLoadError

SUPPORTED = "decoders whose attention goes through transformers' attention interface, and remembers nothing else"

_SIZES: Mapping[str, int] = {
    name: most for most, names in (
        (LAYERS, "num_hidden_layers n_layer n_layers num_layers"), (HEADS, "num_attention_heads n_head n_heads num_heads num_key_value_heads head_dim"),
        (WIDTH, "hidden_size n_embd d_model intermediate_size n_inner"), (VOCABULARY, "vocab_size"), (CONTEXT, "max_position_embeddings n_positions n_ctx"),
    ) for name in names.split()
}  # fmt: skip


def check_cheaply(path: Path, raw: Mapping[str, Any]) -> None:
    """Raise ModelLoadError for a model that transformers evidently does not support, without importing it, which takes
    seconds."""
    where, kind = path / "config.json", raw.get("model_type")
    if not isinstance(kind, str) or not _is_named(kind):
        raise ModelLoadError(
            f"{where}: model_type {kind!r:.80} is not a causal language model that this version of transformers knows; a newer one may. Supported: {SUPPORTED}"
        )
    for fields in (raw, raw.get("text_config")):
        if isinstance(fields, Mapping):
            claims = Claims(fields, str(where))
            for name, most in _SIZES.items():
                if type(claims.fields.get(name)) is int:
                    claims.whole(name, most, least=0)


def _is_named(kind: str) -> bool:
    """Return whether transformers' list of models has a kind, by its source text."""
    found = importlib.util.find_spec("transformers")
    models = None if found is None or found.origin is None else Path(found.origin).parent / "models" / "auto" / "modeling_auto.py"
    return models is None or not models.is_file() or f'"{kind}"' in models.read_text()


def read_config(path: Path, generation: Mapping[str, Any] | None) -> tuple[Any, ModelConfig]:
    """Return transformers' config of a directory, and the engine's view of it. Raises ModelLoadError if it is no
    decoder."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as SEEING
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    from lmc.backend.engine.models.vision import FAMILIES

    where = path / "config.json"
    try:
        theirs = AutoConfig.from_pretrained(str(path), local_files_only=True)
        kind, text = theirs.model_type, theirs.get_text_config(decoder=True)
    except Exception as error:  # configurations raise various errors on unexpected values
        raise ModelLoadError(f"{where}: transformers cannot read it: {type(error).__name__}: {error}") from error
    if theirs.is_encoder_decoder:
        raise ModelLoadError(f"{where}: {kind!r} is an encoder-decoder; lmc runs decoder-only models")
    if kind not in DECODERS and kind in SEEING:
        known = ", ".join(FAMILIES)
        raise ModelLoadError(f"{where}: {kind!r} takes pictures in a way that lmc does not know; of models that see it runs {known}")
    if kind not in DECODERS:
        raise ModelLoadError(f"{where}: model_type {kind!r} is not a causal language model of this version of transformers")
    if kind in ENCODERS and not getattr(theirs, "is_decoder", False):
        raise ModelLoadError(f"{where}: {kind!r} is an encoder here, which sees what follows; lmc runs decoder-only models")
    claims = Claims({name: getattr(text, name, None) for name in _READ}, str(where))
    if not claims.has("num_attention_heads"):
        raise ModelLoadError(f"{where}: model_type {kind!r} cannot be run: it has no attention. Models that can: {SUPPORTED}")
    sizes = decoder_sizes(claims, widening=4)
    own = Claims({"eos_token_id": theirs.eos_token_id, "bos_token_id": theirs.bos_token_id}, str(where))
    ends = own if generation is None or "eos_token_id" not in generation else Claims(generation, str(path / "generation_config.json"))
    return theirs, made(
        str(where),
        architecture=kind,
        **sizes,
        max_context=claims.whole("max_position_embeddings", CONTEXT, 2048),
        near_context=_near_context(text, str(where)),
        eos_token_ids=ends.tokens("eos_token_id", sizes["vocab_size"]),
        bos_token_id=own.token("bos_token_id", sizes["vocab_size"]),
    )


_READ = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _near_context(config: Any, where: str) -> int | None:
    """Return the tokens up to which longrope uses its short factors, if there are longer sequences."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    near = Claims(rope, f"{where}: rope_parameters").whole("original_max_position_embeddings", CONTEXT)
    return near if near < int(config.max_position_embeddings) else None
