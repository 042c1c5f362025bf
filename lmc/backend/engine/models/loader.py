"""Loading: from a GGUF file, a directory of safetensors, a hub id, or "smollm2", to a model that is ready to run.

Families that `llama.py` computes run there, all other decoders through transformers (`transformers_model.py`).
GGUF weights are dequantized once; the result is kept in the user's cache (see `cache.py`) in the layout the model runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.engine import gguf_tokenizer, kv_fp8
from lmc.backend.engine import tokenizer as tokenizers
from lmc.backend.engine.attention.tiles import group_of
from lmc.backend.engine.chat_template import WholeTemplate, around, cut, whole
from lmc.backend.engine.distributed.shares import RankShard, Slices, shares, sliced_fused
from lmc.backend.engine.kv_pool import LayerShape
from lmc.backend.engine.memory import check_fits, free_memory
from lmc.backend.engine.models import cache, gguf, gguf_keys, llama
from lmc.backend.engine.models import config as configs
from lmc.backend.engine.models.claims import check_finite
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.files import SOURCES, download, json_of, json_or_none, other_files, read_safetensors, shards_of, template_source, text_or_none
from lmc.backend.engine.models.fp8 import E4M3
from lmc.backend.engine.models.linear import can_pack_half, fits_half, spread
from lmc.backend.engine.models.quantization import is_fp8, of_modelopt
from lmc.chat import ChatTemplate
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lmc.backend.engine.attention.base import CausalModel
    from lmc.backend.engine.distributed.group import RankGroup
    from lmc.backend.engine.models.linear import Linear
    from lmc.backend.engine.models.vision import Vision
    from lmc.backend.engine.tokenizer import Tokenizer

log = logging.getLogger("lmc.models")

EMBEDDED = "smollm2"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadedModel:
    """The parts of a loaded model that an engine needs."""

    model: CausalModel
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    whole_template: WholeTemplate | None
    name: str
    dtype: torch.dtype  # dtype of the activations
    kv_dtype: torch.dtype  # dtype of the KV store: that of the activations, or float8_e4m3fn
    device: torch.device
    weights: str  # how matrices are stored: a dtype's name, or "float16 packed"
    layers: tuple[LayerShape, ...]  # shape of a token in the KV pool
    vision: Vision | None = None  # of a vision model
    share: RankShard | None = None  # the shard, of a sharded model
    weight_bytes: int = 0  # of the loaded weights, as stored; 0: not known

    @property
    def kv_bytes(self) -> int:
        """Return the KV bytes of one token, on one device."""
        return sum(layer.bytes(self.kv_dtype) for layer in self.layers)


@dataclass(frozen=True)
class _WeightStorage:
    """Storage of weights: matrices in one dtype, norms (and with them activations and KV) in another; and their
    owner."""

    matrices: torch.dtype
    activations: torch.dtype
    pack_half: bool  # matrices go into FBGEMM's float16 packing
    device: torch.device
    group: RankGroup | None = None  # whose ranks have a shard each; None: not sharded
    fp8: bool = False  # matrices of layers are converted to FP8 when the model is built, unless they are already
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
    def in_fp8(self) -> _WeightStorage:
        return replace(self.unpacked, fp8=True)

    @property
    def unpacked(self) -> _WeightStorage:
        return replace(self, matrices=self.activations, pack_half=False, int4=False)

    @property
    def name(self) -> str:
        return str(self.matrices).removeprefix("torch.") + (" packed" if self.pack_half else "") + (", int4 packed" if self.int4 else "")

    def dtype_of(self, name: str, tensor: Tensor) -> torch.dtype:
        import torch

        if name.endswith(".scale"):
            return torch.float32
        if tensor.dtype.itemsize == 1:  # e4m3 with its scales
            return tensor.dtype
        return self.matrices if _is_matrix(name) and (not self.pack_half or fits_half(tensor)) else self.activations

    def size(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return bytes of weights of these shapes."""
        return sum(prod(s) * (self.matrices if _is_matrix(n) else self.activations).itemsize for n, s in shapes.items())


def _is_matrix(name: str) -> bool:
    return name == "head" or name.endswith(".weight")


@dataclass(frozen=True)
class _Source:
    """A model's files as read, before it is built."""

    name: str
    config: ModelConfig
    build: Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]
    tokenizer: Tokenizer
    template: str | None  # Jinja source
    layout: _WeightStorage
    share: RankShard | None = None
    weight_bytes: int = 0
    vision: Callable[[torch.device, Tokenizer], Vision] | None = None
    theirs: bool = False  # through transformers' own code


SEEING = ("llava", "llava_next", "llava_next_video", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "smolvlm")
"""Model types whose pictures go through a tower of transformers (vision.py, FAMILIES)."""
SEEING_BY_INTERFACE = ("gemma3",)
"""Those of them whose text goes through transformers' attention interface; the others run in our own code."""
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("fp8", "int4")
KV_DTYPES = ("fp8",)


def _check_alone(layout: _WeightStorage, name: str) -> None:
    """Refuse quantized weights on several devices."""
    if layout.group is not None:
        raise ModelLoadError(f"{name}: weights in FP8 are not spread over devices (tp={layout.group.ranks}) yet; take tp=1, dp=…, or unquantized weights")


def load(
    source: str,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    parse_special: bool = False,
    load_format: str = "auto",
    group: RankGroup | None = None,
    quantization: str | None = None,
    kv_dtype: str | None = None,
    deterministic: bool = False,
) -> LoadedModel:
    """Load `source`: a .gguf file, a directory with config.json, safetensors and tokenizer.json, a hub id, or
    "smollm2".

    `dtype`: "float32", "bfloat16" or "float16" for everything. None takes bfloat16 on a GPU; on a CPU it takes float32
    for activations and KV, and matrices packed as float16 where the CPU has kernels for that (linear.py), else float32.
    `quantization` "fp8": matrices of layers in e4m3 (fp8.py), made while loading; a checkpoint that has them so is read as it is either way.
    "int4": matrices of layers packed in 4 bits, on a CPU (linear.py).
    `kv_dtype` "fp8": KV in e4m3 (kv_fp8.py); None: in the dtype of activations.
    `load_format` "dummy": a directory's config and tokenizer with random weights, for measuring; no weights are read.
    `deterministic`: a row's logits have the same bits whatever else is in its pass, however its prompt was cut and cached (fixed.py); on a CPU.
    `group`: its rank's part of the model alone is read and built, and computes with those of the others once the group is connected.
    Raises ModelLoadError that names the file, what is wrong with it and what to do.
    """

    if dtype is not None and dtype not in DTYPES:
        raise ModelLoadError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    if load_format not in LOAD_FORMATS:
        raise ModelLoadError(f"load_format {load_format!r} is not supported; supported: {', '.join(LOAD_FORMATS)}")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ModelLoadError(f"quantization {quantization!r} is not supported; supported: {', '.join(QUANTIZATIONS)}")
    if kv_dtype is not None and kv_dtype not in KV_DTYPES:
        raise ModelLoadError(f"kv_dtype {kv_dtype!r} is not supported; supported: {', '.join(KV_DTYPES)}")
    where = _device(device)
    if kv_dtype is not None:
        kv_fp8.check_device(where)
    layout = replace(_layout(where, dtype), group=group)
    if quantization == "fp8":
        _check_alone(layout, source)
        layout = layout.in_fp8
    elif quantization == "int4":
        if not layout.pack_half or layout.group is not None:
            raise ModelLoadError(f"{source} in 4 bits: that is for one CPU with FBGEMM's kernels; take device='cpu' and tp=1, and leave dtype out")
        layout = replace(layout, int4=True)
    if deterministic:
        _check_fixable(layout, source)
        layout = replace(layout, fixed=True)
    found = _read(source, layout, parse_special, where if load_format == "dummy" else None)
    if found.layout.fp8:
        if found.config.num_experts:
            raise ModelLoadError(f"{found.name}: a mixture of experts in FP8 is not supported; leave quantization= out, or take unquantized weights")
        from lmc.backend.engine.models.fp8 import check_device

        check_device(where, f"{found.name} in FP8")
    if found.layout.int4 and found.config.num_experts:
        raise ModelLoadError(f"{found.name}: a mixture of experts in 4 bits is not supported; leave quantization= out")
    if found.layout.fixed and (why := _unfixable(found)) is not None:
        raise ModelLoadError(f"{found.name} with deterministic=True: {why} supported; leave deterministic out")
    model, layers = found.build(where)
    tokens = found.tokenizer
    vision = None if found.vision is None else found.vision(where, tokens)
    if vision is not None:
        vision.name = found.name
        vision.around = around(found.template, tokens, vision.marker, "image")
        if vision.video_marker is not None:
            vision.around_video = around(found.template, tokens, vision.video_marker, "video")
    return LoadedModel(
        model=model,
        config=found.config,
        tokenizer=tokens,
        chat_template=cut(found.template, tokens, name=found.name, in_parts=vision is not None),
        whole_template=whole(found.template, tokens, name=found.name, in_parts=vision is not None),
        name=found.name,
        dtype=found.layout.activations,
        kv_dtype=found.layout.activations if kv_dtype is None else E4M3,
        device=where,
        weights="float8_e4m3fn" if found.layout.fp8 else found.layout.name,
        layers=layers,
        vision=vision,
        share=found.share,
        weight_bytes=found.weight_bytes,
    )


def _check_fixable(layout: _WeightStorage, name: str) -> None:
    if layout.device.type != "cpu" or layout.group is not None:
        raise ModelLoadError(f"{name} with deterministic=True: that is for one CPU so far, device='cpu' and tp=1; leave deterministic out")
    if layout.activations.itemsize != 4:
        raise ModelLoadError(f"{name} with deterministic=True: it computes in float32; leave dtype out, or take 'float32'")


def _unfixable(found: _Source) -> str | None:
    """Return why a model cannot have fixed numerics; None if it can."""
    if found.layout.fp8 or found.layout.int4:
        return "FP8 is not" if found.layout.fp8 else "int4 is not"
    if found.vision is not None:
        return "models that see are not"
    if found.theirs:
        return "families that run through transformers' own code are not"
    if found.config.num_experts:
        return "mixtures of experts are not"
    return "sliding windows are not" if found.config.sliding_window is not None else None


def _device(name: str) -> torch.device:
    """Return the device of that name, if this process can use it; "auto" is a GPU if there is one, else the CPU."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    names = ["cpu", *(f"cuda:{i}" for i in range(gpus))]
    if str(name) in (*names, *(["cuda"] if gpus else [])):
        return torch.device(name)
    remedy = 'device="cpu" always is'
    if str(name).partition(":")[0] == "cuda" and not gpus:
        why = "was built without CUDA" if torch.version.cuda is None else "finds no GPU that it can use"
        remedy += f"; this PyTorch ({torch.__version__}) {why}"
    raise ModelLoadError(f"device {str(name)!r} is not available; available: {', '.join(names)}; {remedy}")


def _layout(device: torch.device, dtype: str | None) -> _WeightStorage:
    import torch

    if dtype is None and device.type == "cpu":
        pack = can_pack_half()
        return _WeightStorage(torch.float16 if pack else torch.float32, torch.float32, pack, device)
    same = getattr(torch, dtype or "bfloat16")
    return _WeightStorage(same, same, False, device)


def _fused(
    path: Path, states: Callable[[int | None], Mapping[str, Tensor]], config: ModelConfig, layout: _WeightStorage, share: RankShard | None = None
) -> dict[str, Tensor]:
    """Return fused weights in the layout's dtypes; the embedding stays in the activations' (it is read by rows).

    `states(i)` gives the weights of layer i under transformers' names, `states(None)` those outside the layers.
    `share`: only its slices of them.
    """
    shapes = {} if share is None else llama.their_shapes(config)
    config = config if share is None else share.config

    def part(index: int | None) -> dict[str, Tensor]:
        state = states(index)
        if share is not None:
            state = Slices(state, share, shapes)
        found = llama.fuse_ends(state, config) if index is None else llama.fuse_layer(state, config, index)
        return {name: tensor.to(layout.dtype_of(name, tensor)).contiguous() for name, tensor in found.items()}

    fused: dict[str, Tensor] = {}
    try:
        for found in spread(part, [None, *range(config.num_layers)]):
            fused |= found
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    return fused


def _builder(
    weights: Mapping[str, Tensor], config: ModelConfig, layout: _WeightStorage, share: RankShard | None = None
) -> Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]:
    """Return a builder of a models/llama.py model from weights in its fused layout: all of them, or those of a
    share."""

    def build(where: torch.device) -> tuple[CausalModel, tuple[LayerShape, ...]]:
        there = {name: tensor.to(where) for name, tensor in weights.items()}
        shape = LayerShape(config.num_kv_heads, config.head_dim, config.head_dim)
        wrap: dict[str, Any] = {}
        if share is not None:
            assert layout.group is not None
            if "head" not in there:  # its rows are the embedding's
                there["head"] = there["embed"][share.vocabulary.start : share.vocabulary.stop]
            wrap["wrap"] = _spread(share, layout.group)
        if layout.fixed:
            from lmc.backend.engine.attention.fixed import FixedAttention
            from lmc.backend.engine.models.fixed import silu

            wrap = {"wrap": _fixed(config), "plan": FixedAttention(config.num_heads, config.num_kv_heads, config.head_dim), "silu": silu}
        return llama.build(there, config, pack_half=layout.pack_half, pack_four=layout.int4, quantized=layout.fp8, **wrap), (shape,) * config.num_layers

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


def _bytes(weights: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def _read(source: str, layout: _WeightStorage, parse_special: bool, dummy_on: torch.device | None) -> _Source:
    path = Path(source).expanduser()
    if dummy_on is not None:
        folder = path if path.is_dir() else download(source)
        return replace(_read_directory(folder, layout, parse_special, dummy_on), name=f"{path.name} (random weights)")
    if source == EMBEDDED and not path.exists():
        return _read_gguf(gguf.embedded_path(), layout, parse_special, name=EMBEDDED)
    if path.is_dir():
        return _read_directory(path, layout, parse_special)
    if path.is_file():
        return _read_gguf(path, layout, parse_special, name=path.stem)
    return replace(_read_directory(download(source), layout, parse_special), name=source)


def local_source(source: str) -> str:
    """Return the same model by a local name: a hub id's files are downloaded now."""
    path = Path(source).expanduser()
    return str(download(source)) if source != EMBEDDED and not path.exists() else source


# -- GGUF ------------------------------------------------------------------------------------------------------------

_GGUF_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_GGUF_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_PERMUTED = ("llama", "mistral", "smollm3")  # architectures whose q and k rows GGUF keeps as rotary pairs


def hf_name(name: str, where: str) -> str:
    """Return transformers' name of a GGUF tensor."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    head, _, rest = name.partition(".")
    index, _, rest = rest.partition(".")
    stem, _, suffix = rest.rpartition(".")
    if head != "blk" or stem not in _GGUF_NAMES:
        raise ModelLoadError(f"{where}: tensor {name!r} does not belong to a supported architecture")
    return f"model.layers.{index}.{_GGUF_NAMES[stem]}.{suffix}"


def gguf_config(file: gguf.GgufFile) -> ModelConfig:
    where, tensors = str(file.path), file.tensors
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{where}: the tensor 'token_embd.weight' is missing; the file holds no language model")
    config = configs.from_gguf(
        file.metadata,
        where,
        tied="output.weight" not in tensors,
        vocab_size=tensors["token_embd.weight"].shape[0],
        biased="blk.0.attn_q.bias" in tensors,
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
    known = llama.their_shapes(config)
    for source, info in file.tensors.items():
        wanted = (config.head_dim // 2,) if source == _ROPE_FACTORS else known.get(hf_name(source, where))
        if wanted is not None and info.shape != wanted:
            raise ModelLoadError(
                f"{where}: the tensor {source!r} is {list(info.shape)}, and the metadata say {list(wanted)}; "
                "do both belong to the same model? download it again"
            )


def _check_positions(where: Path, config: ModelConfig, device: torch.device) -> None:
    """Refuse a context whose positions take more memory than there is: its length is only the file's claim."""
    need, free = config.max_context * (config.head_dim // 2) * 16, free_memory(device)
    if need > free:
        raise ModelLoadError(
            f"{where}: a context of {config.max_context} tokens needs {need >> 20} MiB for its positions, and {device} has {free >> 20} MiB free; "
            "is context_length (max_position_embeddings) right? a copy of the model with a smaller one needs less"
        )


def gguf_state(file: gguf.GgufFile, config: ModelConfig, part: str = "") -> dict[str, Tensor]:
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
            weight = llama.halve_rows(weight, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        state[name] = weight
    return state


def _ends(file: gguf.GgufFile, config: ModelConfig) -> dict[str, Tensor]:
    return {n: w for source in _GGUF_TOP if source in file.tensors for n, w in gguf_state(file, config, source).items()}


def _read_gguf(path: Path, layout: _WeightStorage, parse_special: bool, *, name: str) -> _Source:
    """Return the converted copy when there is one; else convert the file, and store the copy."""
    place = cache.entry(path, layout.name.replace(" ", "-"))
    if place and place.size:
        _check_converted(path, place.size // _ranks(layout), layout)
    found = place.load() if place else None
    if found is None:
        found = _convert(gguf.read(path), layout)
        if place:
            place.store(found)
    weights, config, share = found.weights, found.config, layout.share(found.config)
    if share is not None:
        weights, config = {name: part.contiguous() for name, part in sliced_fused(weights, share).items()}, share.config
    tokens = tokenizers.from_json(
        found.tokenizer,
        str(path),
        limit=found.config.vocab_size,
        eos_token_ids=found.config.eos_token_ids,
        parse_special=parse_special,
        **found.tokenizer_options,
    )
    return _Source(name, config, _builder(weights, config, layout, share), tokens, found.template, layout, share, _bytes(weights))


def _ranks(layout: _WeightStorage) -> int:
    return 1 if layout.group is None else layout.group.ranks


def _check_converted(path: Path, size: int, layout: _WeightStorage) -> None:
    """Refuse weights of `size` unquantized bytes before any is read; they go through the host's memory."""
    import torch

    for device in dict.fromkeys((layout.device, torch.device("cpu"))):
        check_fits(path, size, layout.matrices, device, _ranks(layout))


def _convert(file: gguf.GgufFile, layout: _WeightStorage) -> cache.Converted:
    config = gguf_config(file)
    _check_positions(file.path, config, layout.device)
    _check_converted(file.path, layout.size(llama.shapes(config)) // _ranks(layout), layout)
    tokens = gguf_tokenizer.from_gguf(file.metadata, str(file.path))
    return cache.Converted(
        config,
        _fused(file.path, lambda i: _ends(file, config) if i is None else gguf_state(file, config, f"blk.{i}."), config, layout),
        tokens.raw.to_str(),
        {"bos_token_id": tokens.bos_token_id, "add_bos": tokens.add_bos},
        text_or_none(file.metadata.get("tokenizer.chat_template"), f"{file.path}: tokenizer.chat_template"),
    )


# -- directories and the hub -------------------------------------------------------------------------------------------


_MODELOPT = "hf_quant_config.json"


def _read_directory(path: Path, layout: _WeightStorage, parse_special: bool, dummy_on: torch.device | None = None) -> _Source:
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path}: this directory has no config.json{other_files(path)}; {SOURCES}")
    raw, generation = json_of(path / "config.json"), json_or_none(path / "generation_config.json")
    if (path / _MODELOPT).is_file() and not raw.get("quantization_config"):
        raw["quantization_config"] = of_modelopt(json_of(path / _MODELOPT))
    sees = raw.get("model_type") in SEEING
    if quantized := is_fp8(raw, str(path / "config.json")):
        _check_alone(layout, str(path))
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
    share = None if theirs is not None else layout.share(config)
    whole, config = config, config if share is None else share.config
    _check_positions(path, config, layout.device)
    if dummy_on is None:
        _check_layers(path, config)
    else:
        check_fits(path, layout.size(llama.shapes(config)) if theirs is None else 0, layout.matrices, layout.device, _ranks(layout))
    options = json_or_none(path / "tokenizer_config.json") or {}
    tokens = _tokenizer(path, config, options, parse_special)
    if dummy_on is None:
        _check_room(path, raw, layout)
    size = 0
    if theirs is not None:
        build = _their_builder(path, theirs, config, layout, dummy_on)
    elif dummy_on is not None:
        weights = _random(config, layout, dummy_on)
        size, build = _bytes(weights), _builder(weights, config, layout, share)
    else:
        state = read_safetensors(path)
        small = next((name for name, tensor in state.items() if tensor.is_floating_point() and tensor.dtype.itemsize == 1), None)
        if small is not None and not layout.fp8:
            raise ModelLoadError(f"{path / 'config.json'} has no quantization_config, but {small!r} is quantized ({state[small].dtype}); download it again")
        if sees:
            state = {text: tensor for name, tensor in state.items() if (text := _vision().text_name(name)) is not None}
        weights = _fused(path, lambda _: state, whole, layout, share)
        size, build = _bytes(weights), _builder(weights, config, layout, share)
    vision = (lambda where, words: _vision().load(path, layout.activations, where, words, random=dummy_on is not None)) if sees else None
    return _Source(path.name, config, build, tokens, template_source(path, options), layout, share, size, vision, theirs is not None)


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


def words(source: str, *, parse_special: bool = False) -> tuple[Tokenizer, WholeTemplate | None]:
    """Return the tokenizer of a local model, and its own chat template; no weights are read. Raises ModelLoadError."""
    path = Path(source).expanduser()
    if path.is_dir():
        raw, generation = json_of(path / "config.json"), json_or_none(path / "generation_config.json")
        sees = raw.get("model_type") in SEEING
        try:
            config = configs.from_hf(_vision().text_config(path, raw) if sees else raw, str(path / "config.json"), generation)
        except configs.UnfusedError as reason:
            config, _ = _theirs(path, raw, generation, reason)
        options = json_or_none(path / "tokenizer_config.json") or {}
        tokens, template, name = _tokenizer(path, config, options, parse_special), template_source(path, options), path.name
    else:
        sees, path = False, gguf.embedded_path() if source == EMBEDDED and not path.exists() else path
        file = gguf.read(path)
        tokens, name = gguf_tokenizer.from_gguf(file.metadata, str(path)), path.stem
        template = text_or_none(file.metadata.get("tokenizer.chat_template"), f"{path}: tokenizer.chat_template")
    return tokens, whole(template, tokens, name=name, in_parts=sees)


def _vision() -> Any:
    from lmc.backend.engine.models import vision

    return vision


def _theirs(path: Path, raw: Mapping[str, Any], generation: Mapping[str, Any] | None, reason: ModelLoadError) -> tuple[ModelConfig, Any]:
    """Return the configuration for transformers' own code; `reason`: why ours does not support the model."""
    from lmc.backend.engine.models.transformers_model import check_cheaply, read_config

    check_cheaply(path, raw)
    theirs, config = read_config(path, generation)
    log.info("%s: running transformers' own code, which is slower", reason)
    return config, theirs


def _their_builder(
    path: Path, theirs: Any, config: ModelConfig, layout: _WeightStorage, dummy_on: torch.device | None
) -> Callable[[torch.device], tuple[CausalModel, tuple[LayerShape, ...]]]:
    from lmc.backend.engine.models import transformers_model

    def build(where: torch.device) -> tuple[CausalModel, tuple[LayerShape, ...]]:
        make = transformers_model.build if dummy_on is None else transformers_model.random
        model = make(path, theirs, config, layout.activations, where)
        return model, model.layers

    return build


_DUMMY_SEED, _DUMMY_SCALE = 0, 0.02  # the scale of transformers' own initial weights


def _random(config: ModelConfig, layout: _WeightStorage, device: torch.device) -> dict[str, Tensor]:
    """Return fused weights from a fixed seed, made on their device: norms 1, biases 0, the rest normal."""
    import torch

    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)

    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            make = torch.zeros if name.endswith("bias") else torch.ones
            return make(shape, dtype=layout.activations, device=device)
        dtype = layout.activations if name == "embed" else layout.matrices
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, _DUMMY_SCALE, generator=generator)

    return {name: weight(name, shape) for name, shape in llama.shapes(config).items()}


def _check_layers(path: Path, config: ModelConfig) -> None:
    """Refuse a configuration with more layers than the weights have tensors of; reads only their names."""
    from safetensors import SafetensorError, safe_open

    names = list[str]()
    for shard in shards_of(path):
        try:
            with safe_open(shard, framework="pt") as file:
                names += file.keys()
        except OSError as error:
            raise ModelLoadError(f"{shard}: the weights cannot be read: {error}") from error
        except SafetensorError as error:
            raise ModelLoadError(f"{shard}: damaged safetensors ({error}); download it again") from error
    if config.num_layers > len(names):
        raise ModelLoadError(
            f"{path / 'config.json'}: num_hidden_layers is {config.num_layers}, and the weights have {len(names)} tensors; do both belong to the same model?"
        )


def _check_room(path: Path, raw: Mapping[str, Any], layout: _WeightStorage) -> None:
    """Refuse weights that do not fit into memory, before any of them is read."""
    stored = 4 if str(raw.get("dtype", raw.get("torch_dtype"))) in ("float32", "None") else 2
    size = sum(shard.stat().st_size for shard in shards_of(path) if shard.is_file())  # missing files are reported later
    check_fits(path, size * layout.matrices.itemsize // stored // _ranks(layout), layout.matrices, layout.device, _ranks(layout))
