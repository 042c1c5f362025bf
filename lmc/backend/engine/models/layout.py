"""A layer of the Llama family as a table: merged matrices and norms, their parts by transformers' and GGUF's names, and the axes of each.

What reads a checkpoint, shares it out among ranks, or adds an adapter to it, goes by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lmc.backend.engine.models.config import ModelConfig


class Weight(NamedTuple):
    """A part of a merged matrix, or a norm, as checkpoints store it.

    rows, columns  axes, see `size`;  columns: "" of a norm
    paired         its rows are kept in rotary pairs
    """

    name: str
    gguf: str
    rows: str
    columns: str = ""
    paired: bool = False


MATRICES: Mapping[str, tuple[Weight, ...]] = {
    "qkv": (
        Weight("self_attn.q_proj", "attn_q", "q", "width", paired=True),
        Weight("self_attn.k_proj", "attn_k", "kv", "width", paired=True),
        Weight("self_attn.v_proj", "attn_v", "kv", "width"),
    ),
    "o": (Weight("self_attn.o_proj", "attn_output", "width", "q"),),
    "gate_up": (Weight("mlp.gate_proj", "ffn_gate", "inner", "width"), Weight("mlp.up_proj", "ffn_up", "inner", "width")),
    "down": (Weight("mlp.down_proj", "ffn_down", "width", "inner"),),
}
NORMS: Mapping[str, Weight] = {
    "q_norm": Weight("self_attn.q_norm", "attn_q_norm", "head", paired=True),
    "k_norm": Weight("self_attn.k_norm", "attn_k_norm", "head", paired=True),
    "input_norm": Weight("input_layernorm", "attn_norm", "width"),
    "post_norm": Weight("post_attention_layernorm", "ffn_norm", "width"),
}
PARTS: Mapping[str, Weight] = {part.name: part for parts in (*MATRICES.values(), NORMS.values()) for part in parts}


def size(config: ModelConfig, axis: str) -> int:
    """Return the length of an axis: of the heads of q, or of k, together; a head; what is between an MLP's matrices, or an expert's; a hidden state."""
    match axis:
        case "q":
            return config.q_size
        case "kv":
            return config.kv_size
        case "head":
            return config.head_dim
        case "inner":
            return config.expert_size or config.intermediate_size
        case _:
            return config.hidden_size


def sizes(config: ModelConfig, matrix: str) -> tuple[tuple[int, ...], int]:
    """Return the rows of each part of a merged matrix, and its columns."""
    parts = MATRICES[matrix]
    return tuple(size(config, part.rows) for part in parts), size(config, parts[0].columns)


def matrices(config: ModelConfig) -> Mapping[str, bool]:
    """Return the merged matrices of a layer, and whether each has a bias; without those of an MLP where experts are in its place."""
    found = {"qkv": config.qkv_bias, "o": config.o_bias}
    return found if config.num_experts else {**found, "gate_up": False, "down": False}


def norms(config: ModelConfig) -> Mapping[str, Weight]:
    return {name: part for name, part in NORMS.items() if config.qk_norm or part.rows != "head"}
