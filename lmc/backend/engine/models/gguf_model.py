"""A model in a GGUF file: its configuration, checked against its tensors, and its weights under transformers' names.

Weights are dequantized once; the result is kept in the user's cache (see `cache.py`) in the layout the model runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.backend.engine import gguf_tokenizer
from lmc.backend.engine import tokenizer as tokenizers
from lmc.backend.engine.distributed.shares import sliced_fused
from lmc.backend.engine.memory import check_fits
from lmc.backend.engine.models import cache, gguf, gguf_keys, llama_weights
from lmc.backend.engine.models import config as configs
from lmc.backend.engine.models.claims import check_finite
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.files import text_or_none
from lmc.backend.engine.models.layout import PARTS
from lmc.backend.engine.models.weights import ModelSource, WeightStorage, builder, check_positions, fused
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.backend.engine.tokenizer import Tokenizer

NAMES = {part.gguf: part.name for part in PARTS.values()}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_PERMUTED = ("llama", "mistral", "smollm3")  # architectures whose q and k rows GGUF keeps as rotary pairs


def hf_name(name: str, where: str) -> str:
    """Return transformers' name of a GGUF tensor."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    head, _, rest = name.partition(".")
    index, _, rest = rest.partition(".")
    stem, _, suffix = rest.rpartition(".")
    if head != "blk" or stem not in NAMES:
        raise ModelLoadError(f"{where}: tensor {name!r} does not belong to a supported architecture")
    return f"model.layers.{index}.{NAMES[stem]}.{suffix}"


def config_of(file: gguf.GgufFile) -> ModelConfig:
    where, tensors = str(file.path), file.tensors
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{where}: the tensor 'token_embd.weight' is missing; the file holds no language model")
    config = configs.from_gguf(
        file.metadata,
        where,
        tied="output.weight" not in tensors,
        vocab_size=tensors["token_embd.weight"].shape[0],
        biased="blk.0.attn_q.bias" in tensors,
        o_biased="blk.0.attn_output.bias" in tensors,
    )
    _check_tensors(file, config)
    gguf_keys.check_model(file.metadata, config, len(tensors), where)
    if _ROPE_FACTORS in tensors:
        factors = tuple(file.tensor(_ROPE_FACTORS).tolist())
        check_finite(_ROPE_FACTORS, factors, 1e-6, 1e6, where)
        config = replace(config, rope_scaling=configs.RopeScaling("factors", 1.0, factors=factors))
    return config


def _check_tensors(file: gguf.GgufFile, config: ModelConfig) -> None:
    """Refuse metadata that do not match the file's tensors, before anything is built from them: layers and shapes."""
    where, arch = str(file.path), config.architecture
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if layers != set(map(str, range(config.num_layers))):
        raise ModelLoadError(
            f"{where}: {arch}.block_count is {config.num_layers}, and the file has tensors of {len(layers)} layers; "
            "the file is damaged or incomplete: download it again"
        )
    if (words := file.metadata.get("tokenizer.ggml.tokens")) is not None and isinstance(words, list) and len(words) > config.vocab_size:
        raise ModelLoadError(f"{where}: tokenizer.ggml.tokens has {len(words)} tokens, and 'token_embd.weight' {config.vocab_size}; download it again")
    known = llama_weights.their_shapes(config)
    for source, info in file.tensors.items():
        wanted = (config.head_dim // 2,) if source == _ROPE_FACTORS else known.get(hf_name(source, where))
        if wanted is None:
            raise ModelLoadError(f"{where}: the tensor {source!r} is none that lmc reads of a {arch}, and would change its answers; take its safetensors")
        if info.shape != wanted:
            raise ModelLoadError(
                f"{where}: the tensor {source!r} is {list(info.shape)}, and the metadata say {list(wanted)}; "
                "do both belong to the same model? download it again"
            )


def state_of(file: gguf.GgufFile, config: ModelConfig, part: str = "") -> dict[str, Tensor]:
    """Return the weights whose GGUF names begin with `part`, in float32, under transformers' names and in its
    layout."""
    import torch

    where = str(file.path)
    state: dict[str, Tensor] = {}
    for source in file.tensors:
        if source == _ROPE_FACTORS or not source.startswith(part):
            continue
        name, weight = hf_name(source, where), torch.from_numpy(file.tensor(source))
        if config.architecture in _PERMUTED and (".q_proj." in name or ".k_proj." in name):
            weight = llama_weights.halve_rows(weight, config.head_dim)
        state[name] = weight
    return state


def _ends(file: gguf.GgufFile, config: ModelConfig) -> dict[str, Tensor]:
    return {n: w for source in TOP_NAMES if source in file.tensors for n, w in state_of(file, config, source).items()}


def read(path: Path, layout: WeightStorage, parse_special: bool, *, name: str) -> ModelSource:
    """Return the converted copy when there is one; else convert the file, and store the copy."""
    place = cache.entry(path, layout.name.replace(" ", "-"), lambda: _check(gguf.read(path), layout))
    if place and place.size:
        _check_converted(path, place.size // layout.ranks, layout)
    found = place.load() if place else None
    if found is None:
        found = _convert(gguf.read(path), layout)
        if place:
            place.store(found)
    layout.check(found.config, name)
    weights, config, share = found.weights, found.config, layout.share(found.config)
    if share is not None:
        weights, config = {name: part.contiguous() for name, part in sliced_fused(weights, share).items()}, share.config
    stored = layout.stored(weights)
    if layout.fp8:
        check_fits(path, stored, layout.matrix_dtype, layout.device, layout.ranks)
    tokens = tokenizers.from_json(
        found.tokenizer,
        str(path),
        limit=found.config.vocab_size,
        eos_token_ids=found.config.eos_token_ids,
        parse_special=parse_special,
        **found.tokenizer_options,
    )
    return ModelSource(name, config, builder(weights, config, layout, share), tokens, found.template, layout, share, stored)


def _check_converted(path: Path, size: int, layout: WeightStorage) -> None:
    """Refuse weights of `size` unquantized bytes before any is read; they go through the host's memory, and on the device may be quantized."""
    import torch

    for device in dict.fromkeys((layout.device, torch.device("cpu"))):
        if not layout.fp8 or device.type == "cpu":
            check_fits(path, size, replace(layout, fp8=False).matrix_dtype, device, layout.ranks)


def _check(file: gguf.GgufFile, layout: WeightStorage) -> ModelConfig:
    """Return the config of a model that is supported, and fits. Raises ModelLoadError before any weight is read."""
    config = config_of(file)
    layout.check(config, file.path.stem)
    check_positions(file.path, config, layout.device)
    _check_converted(file.path, replace(layout, fp8=False).size(llama_weights.shapes(config)) // layout.ranks, layout)
    return config


def _convert(file: gguf.GgufFile, layout: WeightStorage) -> cache.Converted:
    config = _check(file, layout)
    tokens = gguf_tokenizer.from_gguf(file.metadata, str(file.path))
    return cache.Converted(
        config,
        fused(file.path, lambda i: _ends(file, config) if i is None else state_of(file, config, f"blk.{i}."), config, layout),
        tokens.raw.to_str(),
        {"bos_token_id": tokens.bos_token_id, "add_bos": tokens.add_bos},
        text_or_none(file.metadata.get("tokenizer.chat_template"), f"{file.path}: tokenizer.chat_template"),
    )


def words(path: Path) -> tuple[Tokenizer, str | None]:
    """Return a model's tokenizer, and its own chat template; no weights are read."""
    file = gguf.read(path)
    return gguf_tokenizer.from_gguf(file.metadata, str(path)), text_or_none(file.metadata.get("tokenizer.chat_template"), f"{path}: tokenizer.chat_template")
