"""A model in a directory, as on the hub: config.json, safetensors and tokenizer.json; or with random weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.engine import tokenizer as tokenizers
from lmc.backend.engine.kv_pool import LayerShape
from lmc.backend.engine.memory import check_fits
from lmc.backend.engine.models import config as configs
from lmc.backend.engine.models import llama_weights, transformers_config
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.files import SOURCES, check_layers, json_of, json_or_none, other_files, read_safetensors, shards_of, template_source
from lmc.backend.engine.models.quantization import is_fp8, of_modelopt
from lmc.backend.engine.models.weights import ModelSource, WeightStorage, builder, check_positions, fused
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lmc.backend.engine.attention.base import CausalModel
    from lmc.backend.engine.tokenizer import Tokenizer

log = logging.getLogger("lmc.models")

SEEING = ("llava", "llava_next", "llava_next_video", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "smolvlm")
"""Model types whose pictures go through a tower of transformers (vision.py, FAMILIES)."""
SEEING_BY_INTERFACE = ("gemma3",)
"""Those of them whose text goes through transformers' attention interface; the others run in our own code."""
_MODELOPT = "hf_quant_config.json"


def read(path: Path, layout: WeightStorage, parse_special: bool, dummy_on: torch.device | None = None) -> ModelSource:
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path}: this directory has no config.json{other_files(path)}; {SOURCES}")
    raw, generation = json_of(path / "config.json"), json_or_none(path / "generation_config.json")
    if (path / _MODELOPT).is_file() and not raw.get("quantization_config"):
        raw["quantization_config"] = of_modelopt(json_of(path / _MODELOPT))
    sees = raw.get("model_type") in SEEING
    if quantized := is_fp8(raw, str(path / "config.json")):
        if layout.int4:
            raise ModelLoadError(f"{path}: its weights are in FP8; leave quantization='int4' out, or take the unquantized ones")
        layout = layout.in_fp8
        if sees:
            raise ModelLoadError(f"{path / 'config.json'}: quantized weights of a model that sees are not supported; take the unquantized ones")
    try:
        text = _vision().text_config(path, raw) if sees else raw
        config, theirs = configs.from_hf(text, str(path / "config.json"), generation), None
    except configs.UnfusedError as reason:
        if sees and raw["model_type"] not in SEEING_BY_INTERFACE:
            raise ModelLoadError(f"{reason.message}: as the decoder behind a vision tower") from None
        if layout.group is not None:
            raise ModelLoadError(
                f"{reason.message}: with tp={layout.group.ranks}, which families of ours alone can be spread by; dp=… takes any model"
            ) from None
        if layout.fp8 or layout.int4:
            how = "quantized weights are" if quantized else "quantization= is"
            raise ModelLoadError(f"{reason.message}: {how} for the families alone that lmc computes itself") from None
        config, theirs = _theirs(path, raw, generation, reason)
        layout = layout.unpacked
    if sees and layout.group is not None:
        raise ModelLoadError(f"{path}: a model that sees cannot be spread over ranks (tp={layout.group.ranks}) yet; dp=… takes it")
    layout.check(config, path.name)
    share = None if theirs is not None else layout.share(config)
    whole, config = config, config if share is None else share.config
    check_positions(path, config, layout.device)
    if dummy_on is None:
        check_layers(path, "num_hidden_layers", config.num_layers)
    else:
        unquantized = replace(layout, fp8=False)  # random matrices are made before they are quantized
        check_fits(path, unquantized.size(llama_weights.shapes(config)) if theirs is None else 0, unquantized.matrix_dtype, layout.device, layout.ranks)
    options = json_or_none(path / "tokenizer_config.json") or {}
    tokens = _tokenizer(path, config, options, parse_special)
    if dummy_on is None:
        _check_room(path, raw, layout, config)
    size = 0
    if theirs is not None:
        build = _their_builder(path, theirs, config, layout, dummy_on)
    elif dummy_on is not None:
        weights = _random(config, layout, dummy_on)
        size, build = layout.stored(weights), builder(weights, config, layout, share)
    else:
        state = read_safetensors(path)
        small = next((name for name, tensor in state.items() if tensor.is_floating_point() and tensor.dtype.itemsize == 1), None)
        if small is not None and not layout.fp8:
            raise ModelLoadError(f"{path / 'config.json'} has no quantization_config, but {small!r} is quantized ({state[small].dtype}); download it again")
        if sees:
            state = {text: tensor for name, tensor in state.items() if (text := _vision().text_name(name)) is not None}
        weights = fused(path, lambda _: state, whole, layout, share)
        size, build = layout.stored(weights), builder(weights, config, layout, share)
    vision = (lambda where, words: _vision().load(path, layout.activations, where, words, random=dummy_on is not None)) if sees else None
    return ModelSource(path.name, config, build, tokens, template_source(path, options), layout, share, size, vision, theirs is not None)


def _tokenizer(path: Path, config: ModelConfig, options: Mapping[str, Any], parse_special: bool) -> Tokenizer:
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(
            f"{path}: tokenizer.json is missing; write it with transformers: AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    return tokenizers.from_file(
        path / "tokenizer.json",
        limit=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        bos_token_id=config.bos_token_id,
        add_bos=bool(options.get("add_bos_token", False)),
        parse_special=parse_special,
    )


def words(path: Path, *, parse_special: bool) -> tuple[Tokenizer, str | None, bool]:
    """Return a model's tokenizer, its own chat template, and whether it sees; no weights are read."""
    raw, generation = json_of(path / "config.json"), json_or_none(path / "generation_config.json")
    sees = raw.get("model_type") in SEEING
    try:
        config = configs.from_hf(_vision().text_config(path, raw) if sees else raw, str(path / "config.json"), generation)
    except configs.UnfusedError as reason:
        config, _ = _theirs(path, raw, generation, reason)
    options = json_or_none(path / "tokenizer_config.json") or {}
    return _tokenizer(path, config, options, parse_special), template_source(path, options), sees


def _vision() -> Any:
    from lmc.backend.engine.models import vision

    return vision


def _theirs(path: Path, raw: Mapping[str, Any], generation: Mapping[str, Any] | None, reason: ModelLoadError) -> tuple[ModelConfig, Any]:
    """Return the configuration for transformers' own code; `reason`: why ours does not support the model."""
    transformers_config.check_cheaply(path, raw)
    theirs, config = transformers_config.read_config(path, generation)
    log.info("%s: running transformers' own code, which is slower", reason)
    return config, theirs


def _their_builder(
    path: Path, theirs: Any, config: ModelConfig, layout: WeightStorage, dummy_on: torch.device | None
) -> Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]:
    from lmc.backend.engine.models import transformers_model

    def build(where: torch.device) -> tuple[CausalModel, tuple[LayerShape, ...]]:
        make = transformers_model.build if dummy_on is None else transformers_model.random
        model = make(path, theirs, config, layout.activations, where)
        return model, model.layers

    return build


_DUMMY_SEED, _DUMMY_SCALE = 0, 0.02  # the scale of transformers' own initial weights


def _random(config: ModelConfig, layout: WeightStorage, device: torch.device) -> dict[str, Tensor]:
    """Return fused weights from a fixed seed, made on their device: norms 1, biases 0, the rest normal."""
    import torch

    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)

    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            make = torch.zeros if name.endswith("bias") else torch.ones
            return make(shape, dtype=layout.activations, device=device)
        dtype = layout.activations if name == "embed" else layout.matrices
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, _DUMMY_SCALE, generator=generator)

    return {name: weight(name, shape) for name, shape in llama_weights.shapes(config).items()}


def _check_room(path: Path, raw: Mapping[str, Any], layout: WeightStorage, config: ModelConfig) -> None:
    """Refuse weights that do not fit into memory, before any of them is read."""
    stored = 4 if str(raw.get("dtype", raw.get("torch_dtype"))) in ("float32", "None") else 2
    size = sum(shard.stat().st_size for shard in shards_of(path) if shard.is_file())  # missing files are reported later
    need = layout.size(llama_weights.shapes(config)) if layout.fp8 else size * layout.matrices.itemsize // stored // layout.ranks
    check_fits(path, need, layout.matrix_dtype, layout.device, layout.ranks)
