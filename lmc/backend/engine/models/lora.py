"""LoRA: reads a model's adapters from PEFT's files (arXiv 2106.09685, rsLoRA 2312.03732).

adapter_config.json, adapter_model.safetensors ──read──► Factors of each merged matrix ──► Adapters of the model
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmc.backend.engine.distributed.shares import sliced
from lmc.backend.engine.memory import check_fits
from lmc.backend.engine.models.adapters import AdaptedRows, Adapter, Adapters, Factors
from lmc.backend.engine.models.claims import Claims
from lmc.backend.engine.models.files import json_of, local_path, safetensors_of
from lmc.backend.engine.models.layout import MATRICES, sizes
from lmc.backend.engine.models.llama import LlamaModel
from lmc.backend.engine.models.llama_weights import pair_rows
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from lmc.backend.engine.attention.base import CausalModel
    from lmc.backend.engine.distributed.shares import RankShard
    from lmc.backend.engine.models.config import ModelConfig

log = logging.getLogger("lmc.models")

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_RANK, _MOST_SCALE = 1 << 12, 1e6
_MEANINGLESS = frozenset(
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r lora_alpha lora_dropout use_rslora bias "
    "target_modules exclude_modules layers_to_transform layers_pattern init_lora_weights megatron_core eva_config qalora_group_size runtime_config "
    "loftq_config corda_config lora_ga_config ensure_weight_tying".split()
)
"""Fields that are read, or say how it was trained; what else a file says with a value would change what it computes."""
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Beginnings (`init_lora_weights`) that leave the model's own weights as they were."""
_NAME = re.compile(r"base_model\.model\.model\.layers\.([0-9]{1,5})\.(self_attn|mlp)\.(\w+)\.lora_(A|B)\.weight")
_OF_MODULE = {part.name: (matrix, i) for matrix, parts in MATRICES.items() for i, part in enumerate(parts)}


# -- from files -------------------------------------------------------------------------------------------------------


def load(paths: Mapping[str, str], name: str, model: CausalModel, config: ModelConfig, share: RankShard | None) -> None:
    """Give a model adapters: of each name, a directory as PEFT writes it; a shard has its part of them. Raises ModelLoadError that names the file and what is
    wrong."""
    if not isinstance(model, LlamaModel):
        raise ModelLoadError(f"{name}: adapters are for the families that lmc computes itself; merge one into the weights (PEFT's merge_and_unload)")
    found = [read(local_path(path), config, share) for path in paths.values()]
    model.adapters = Adapters(found, model.dtype, model.device)
    for given, adapter in zip(paths, found, strict=True):
        log.info("adapter %s: %d matrices", given, len(adapter))


def read(path: Path, config: ModelConfig, share: RankShard | None = None) -> Adapter:
    """Return an adapter's files, in float32 and in the layout of the merged matrices; of a shard, whose config is given then, its part of them."""
    if not path.is_dir():
        raise ModelLoadError(f"{path}: no such directory; an adapter is a directory with {_CONFIG} and {_WEIGHTS}, as PEFT's save_pretrained writes it")
    if not (path / _CONFIG).is_file():
        raise ModelLoadError(f"{path}: this directory has no {_CONFIG}; an adapter is what PEFT's save_pretrained writes")
    rank, scale = _read_config(path / _CONFIG)
    file = path / _WEIGHTS
    if not file.is_file():
        other = "; adapter_model.bin is a pickle, which could run code: save it again as safetensors" if (path / "adapter_model.bin").is_file() else ""
        raise ModelLoadError(f"{path}: this directory has no {_WEIGHTS}{other}")
    check_fits(file, file.stat().st_size, "float32", torch.device("cpu"))
    pairs = _pairs(safetensors_of(file), str(file), config if share is None else share.whole, rank)
    return {key: _merged(key[1], found, config, scale, share) for key, found in pairs.items()}


def _read_config(path: Path) -> tuple[int, float]:
    """The rank, and what products are scaled by."""
    raw, where = json_of(path), str(path)
    claims = Claims(raw, where)
    if claims.raw("peft_type", None) != "LORA":
        raise ModelLoadError(f"{where}: peft_type is {raw.get('peft_type')!r:.60}; supported: 'LORA'")
    if claims.raw("bias", "none") != "none":
        raise ModelLoadError(f"{where}: bias is {raw['bias']!r:.60}; supported: 'none'. Merge the adapter into the weights (PEFT's merge_and_unload)")
    if (start := raw.get("init_lora_weights", True)) not in _PLAIN_STARTS:
        raise ModelLoadError(
            f"{where}: init_lora_weights is {start!r:.60}, which changes the model's own weights, too; save it as a plain adapter "
            "(PEFT's path_initial_model_for_weight_conversion)"
        )
    for name, value in raw.items():
        if name not in _MEANINGLESS and value not in (None, False, {}, []):
            raise ModelLoadError(f"{where}: {name} is {value!r:.60}, which is not supported; merge the adapter into the weights (PEFT's merge_and_unload)")
    targets: Any = raw.get("target_modules")
    known = {part.split(".")[1] for part in _OF_MODULE}
    if isinstance(targets, list) and (odd := [t for t in targets if not isinstance(t, str) or t.split(".")[-1] not in known]):
        raise ModelLoadError(f"{where}: target_modules has {odd[0]!r:.60}; supported: {', '.join(sorted(known))}")
    rank = claims.whole("r", _MOST_RANK)
    alpha = claims.number("lora_alpha", -_MOST_SCALE, _MOST_SCALE, 8)
    root = claims.raw("use_rslora", False)
    if type(root) is not bool:
        raise claims.wrong("use_rslora", root, "true or false")
    return rank, alpha / (math.sqrt(rank) if root else rank)


_Pair = dict[str, Tensor]  # "A" [rank, in] and "B" [rows, rank]


def _pairs(state: Mapping[str, Tensor], where: str, config: ModelConfig, rank: int) -> dict[tuple[int, str], dict[int, _Pair]]:
    """By layer and merged matrix, then by part of that. Refuses what does not belong to the model."""
    found: dict[tuple[int, str], dict[int, _Pair]] = {}
    for name, tensor in state.items():
        match = _NAME.fullmatch(name)
        module = f"{match[2]}.{match[3]}" if match else ""
        if match is None or module not in _OF_MODULE:
            raise ModelLoadError(f"{where}: the tensor {name!r:.120} changes what no adapter here can; supported: {', '.join(_OF_MODULE)} of each layer")
        layer, (matrix, part) = int(match[1]), _OF_MODULE[module]
        if layer >= config.num_layers:
            raise ModelLoadError(f"{where}: {name!r} is of layer {layer}, and the model has {config.num_layers}; do both belong together?")
        if config.num_experts and matrix in ("gate_up", "down"):
            raise ModelLoadError(f"{where}: {name!r} changes an MLP, and the model's are mixtures of experts; only attention is supported there")
        rows, columns = sizes(config, matrix)
        wanted = (rank, columns) if match[4] == "A" else (rows[part], rank)
        if tuple(tensor.shape) != wanted:
            raise ModelLoadError(f"{where}: {name!r} is {list(tensor.shape)}, and model and {_CONFIG} say {list(wanted)}; do they belong together?")
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor.float()).all()):
            raise ModelLoadError(f"{where}: {name!r} holds what are no finite numbers; download it again")
        found.setdefault((layer, matrix), {}).setdefault(part, {})[match[4]] = tensor.float()
    for (layer, matrix), parts in found.items():
        for part, pair in parts.items():
            if missing := {"A", "B"} - pair.keys():
                raise ModelLoadError(f"{where}: lora_{missing.pop()} of {MATRICES[matrix][part].name} in layer {layer} is missing; is the download complete?")
    if not found:
        raise ModelLoadError(f"{where}: holds no tensors of an adapter; download it again")
    return found


def _merged(matrix: str, pairs: Mapping[int, _Pair], c: ModelConfig, scale: float, share: RankShard | None) -> Factors:
    """Beside a merged matrix, whose rows of q and k are kept in rotary pairs. Ranks have the rows of B that belong to their outputs, or the columns of A
    that belong to their inputs: what B makes of those is summed."""
    rows, _ = sizes(c, matrix)
    downs, ups = list[Tensor](), list[AdaptedRows]()
    for part, pair in sorted(pairs.items()):
        own, down, up = MATRICES[matrix][part], pair["A"], pair["B"] * scale
        if own.paired:
            up = pair_rows(up, c.head_dim)
        if share is not None:
            down, up = sliced(down, ("rank", own.columns), share), sliced(up, (own.rows, "rank"), share)
        downs.append(down)
        ups.append(AdaptedRows(sum(rows[:part]), up))
    return Factors(torch.cat(downs), tuple(ups))
