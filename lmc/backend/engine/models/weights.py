"""Weights on their way from files to a model: how they are stored, fused, sharded among ranks, and built from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.engine.attention.tiles import group_of
from lmc.backend.engine.distributed.shares import RankShard, Slices, shares
from lmc.backend.engine.kv_pool import LayerShape
from lmc.backend.engine.memory import free_memory
from lmc.backend.engine.models import llama_weights
from lmc.backend.engine.models.fp8 import fits, quantize_weight
from lmc.backend.engine.models.linear import fits_half, spread
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lmc.backend.engine.attention.base import CausalModel
    from lmc.backend.engine.distributed.group import RankGroup
    from lmc.backend.engine.models.config import ModelConfig
    from lmc.backend.engine.models.linear import Linear
    from lmc.backend.engine.models.vision import Vision
    from lmc.backend.engine.tokenizer import Tokenizer

log = logging.getLogger("lmc.models")


@dataclass(frozen=True)
class WeightStorage:
    """Storage of weights: matrices in one dtype, norms (and with them activations and KV) in another; and their
    owner."""

    matrices: torch.dtype
    activations: torch.dtype
    pack_half: bool  # matrices go into FBGEMM's float16 packing
    device: torch.device
    group: RankGroup | None = None  # whose ranks have a shard each; None: not sharded
    fp8: bool = False  # matrices of layers are converted to FP8 on their way to the device, unless they are already
    int4: bool = False  # matrices of layers are packed in 4 bits instead of float16
    fixed: bool = False  # a row's numbers do not depend on what else is in its pass

    def share(self, config: ModelConfig) -> RankShard | None:
        """Return this rank's part of a model. Raises ModelLoadError if it cannot be divided among the ranks."""
        if self.group is None:
            return None
        every = shares(config, self.group.ranks)
        if self.device.type == "cuda" and len({group_of(len(s.heads), len(s.kv_heads)) for s in every}) > 1:
            raise ModelLoadError(
                f"tp={self.group.ranks}: {config.num_heads} heads, of which {config.num_heads // config.num_kv_heads} share one of k and v, "
                f"cannot be spread so that attention is cut alike on all GPUs; take tp={config.num_kv_heads} or less"
            )
        return every[self.group.rank]

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else self.group.ranks

    @property
    def in_fp8(self) -> WeightStorage:
        return replace(self.unpacked, fp8=True)

    @property
    def unpacked(self) -> WeightStorage:
        return replace(self, matrices=self.activations, pack_half=False, int4=False)

    @property
    def name(self) -> str:
        return str(self.matrices).removeprefix("torch.") + (" packed" if self.pack_half else "") + (", int4 packed" if self.int4 else "")

    @property
    def matrix_dtype(self) -> str:
        """Return the dtype that matrices of layers have in the end."""
        return "float8_e4m3fn" if self.fp8 else str(self.matrices).removeprefix("torch.")

    def dtype_of(self, name: str, tensor: Tensor) -> torch.dtype:
        import torch

        if name.endswith(".scale"):
            return torch.float32
        if tensor.dtype.itemsize == 1:  # e4m3 with its scales
            return tensor.dtype
        return self.matrices if _is_matrix(name) and (not self.pack_half or fits_half(tensor)) else self.activations

    def size(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return bytes of weights of these shapes."""
        return sum(self._size(name, shape, self.matrices if _is_matrix(name) else self.activations) for name, shape in shapes.items())

    def stored(self, weights: Mapping[str, Tensor]) -> int:
        """Return bytes of these weights once a model is built of them."""
        return sum(self._size(name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items())

    def _size(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return prod(shape) + 4 * shape[0] if self.quantizes(name, shape, dtype) else prod(shape) * dtype.itemsize

    def quantizes(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Return whether this weight is quantized to FP8 on its way to the device."""
        return self.fp8 and dtype.itemsize > 1 and name.startswith("layers.") and name.endswith(".weight") and fits(shape)

    def check(self, config: ModelConfig, name: str) -> None:
        """Refuse, before any weights are read, a model that cannot be stored so."""
        if config.num_experts and (self.fp8 or self.int4):
            how = "FP8" if self.fp8 else "4 bits"
            raise ModelLoadError(f"{name}: a mixture of experts in {how} is not supported; leave quantization= out, or take unquantized weights")


def _is_matrix(name: str) -> bool:
    return name == "head" or name.endswith(".weight")


@dataclass(frozen=True)
class ModelSource:
    """A model's files as read, before it is built."""

    name: str
    config: ModelConfig
    build: Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]
    tokenizer: Tokenizer
    template: str | None  # Jinja source
    layout: WeightStorage
    share: RankShard | None = None
    weight_bytes: int = 0
    vision: Callable[[torch.device, Tokenizer], Vision] | None = None
    theirs: bool = False  # through transformers' own code


def check_positions(where: Path, config: ModelConfig, device: torch.device) -> None:
    """Refuse a context whose positions take more memory than there is: its length is only the file's claim."""
    need, free = config.max_context * (config.head_dim // 2) * 16, free_memory(device)
    if need > free:
        raise ModelLoadError(
            f"{where}: a context of {config.max_context} tokens needs {need >> 20} MiB for its positions, and {device} has {free >> 20} MiB free; "
            "is context_length (max_position_embeddings) right? a copy of the model with a smaller one needs less"
        )


def fused(
    path: Path, states: Callable[[int | None], Mapping[str, Tensor]], config: ModelConfig, layout: WeightStorage, share: RankShard | None = None
) -> dict[str, Tensor]:
    """Return fused weights in the layout's dtypes; the embedding stays in the activations' (it is read by rows).

    `states(i)` gives the weights of layer i under transformers' names, `states(None)` those outside the layers.
    `share`: only its slices of them.
    """
    shapes = {} if share is None else llama_weights.their_shapes(config)
    config = config if share is None else share.config

    def part(index: int | None) -> dict[str, Tensor]:
        state = states(index)
        if share is not None:
            state = Slices(state, share, shapes)
        found = llama_weights.fuse_ends(state, config) if index is None else llama_weights.fuse_layer(state, config, index)
        return {name: tensor.to(layout.dtype_of(name, tensor)).contiguous() for name, tensor in found.items()}

    weights: dict[str, Tensor] = {}
    try:
        for found in spread(part, [None, *range(config.num_layers)]):
            weights |= found
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    return weights


def builder(
    weights: Mapping[str, Tensor], config: ModelConfig, layout: WeightStorage, share: RankShard | None = None
) -> Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]:
    """Return a builder of a models/llama.py model from weights in its fused layout: all of them, or those of a
    share."""

    def build(where: torch.device) -> tuple[CausalModel, tuple[LayerShape, ...]]:
        there = dict(_moved(weights, layout, where))
        shape = LayerShape(config.num_kv_heads, config.head_dim, config.head_dim)
        wrap: dict[str, Any] = {}
        if share is not None:
            assert layout.group is not None
            if "head" not in there:  # its rows are the embedding's
                there["head"] = there["embed"][share.vocabulary.start : share.vocabulary.stop]
            wrap["wrap"] = _spread(share, layout.group)
        if layout.fixed and where.type == "cuda":
            from lmc.backend.engine.kernels.fixed import fixed_products

            wrap = {"wrap": fixed_products(where)}
        elif layout.fixed:
            from lmc.backend.engine.attention.fixed import FixedAttention
            from lmc.backend.engine.models.fixed import silu

            wrap = {"wrap": _fixed(config), "plan": FixedAttention(config.num_heads, config.num_kv_heads, config.head_dim), "silu": silu}
        return llama_weights.build(there, config, pack_half=layout.pack_half, pack_four=layout.int4, quantized=layout.fp8, **wrap), (shape,) * config.num_layers

    return build


def _fixed(config: ModelConfig) -> Callable[[str, Linear], Linear]:
    """Matrices as they are used where a row's numbers are its own: of each kind it is tried once which numbers of rows agree."""
    from lmc.backend.engine.models.fixed import Fixed, agreeing
    from lmc.backend.engine.models.linear import Dense

    columns = {"o": config.q_size, "down": config.intermediate_size}
    known: dict[tuple[str, bool], tuple[int, ...]] = {}

    def wrap(name: str, matrix: Linear) -> Linear:
        kind = name.rpartition(".")[2]
        key = kind, isinstance(matrix, Dense)
        if key not in known:
            known[key] = agreeing(matrix, columns.get(kind, config.hidden_size), _MOST_LOGITS if kind == "head" else _MOST_ROWS)
            log.info("%s: %s rows at a time", kind, ", ".join(map(str, known[key])))
        return Fixed(matrix, known[key])

    return wrap


_MOST_ROWS, _MOST_LOGITS = 256, 64  # that are multiplied at once


def _spread(share: RankShard, group: RankGroup) -> Callable[[str, Linear], Linear]:
    """Wrap matrices for use on several ranks, if they are sharded."""
    from lmc.backend.engine.distributed.group import GatheredHead, Summed

    def wrap(name: str, matrix: Linear) -> Linear:
        if name == "head":
            return GatheredHead(matrix, group, share.width, share.whole.vocab_size)
        return Summed(matrix, group, 0 if name.endswith(".o") else 1) if name.endswith((".o", ".down", ".experts")) else matrix

    return wrap


def _moved(weights: Mapping[str, Tensor], layout: WeightStorage, where: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield weights on their device, where matrices are quantized one after the other, so that there never is much more than what stays."""
    for name, tensor in weights.items():
        if not layout.quantizes(name, tensor.shape, tensor.dtype):
            yield name, tensor.to(where)
            continue
        rows, scales = quantize_weight(tensor.to(where))
        yield name, rows
        yield name.removesuffix("weight") + "scale", scales[:, 0]
