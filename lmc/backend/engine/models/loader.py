"""Loading: from a GGUF file, a directory of safetensors, a hub id, or "smollm2", to a model that is ready to run.

Families that `llama.py` computes run there, all other decoders through transformers (`transformers_model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmc.backend.engine import kv_fp8
from lmc.backend.engine.chat_template import cut
from lmc.backend.engine.models import directory, gguf, gguf_model
from lmc.backend.engine.models.files import download, local_path
from lmc.backend.engine.models.fp8 import E4M3
from lmc.backend.engine.models.linear import can_pack_half
from lmc.backend.engine.models.weights import ModelSource, WeightStorage
from lmc.backend.engine.whole_template import WholeTemplate, around, whole
from lmc.chat import ChatTemplate
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

    from lmc.backend.engine.attention.base import CausalModel
    from lmc.backend.engine.distributed.group import RankGroup
    from lmc.backend.engine.distributed.shares import RankShard
    from lmc.backend.engine.kv_pool import LayerShape
    from lmc.backend.engine.models.config import ModelConfig
    from lmc.backend.engine.models.vision import Vision
    from lmc.backend.engine.tokenizer import Tokenizer

EMBEDDED = "smollm2"
_SUPPORTED = {"dtype": ("float32", "bfloat16", "float16"), "load_format": ("auto", "dummy"), "quantization": ("fp8", "int4"), "kv_dtype": ("fp8",)}


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
    adapters: Mapping[str, str] | None = None,
) -> LoadedModel:
    """Load `source`: a .gguf file, a directory with config.json, safetensors and tokenizer.json, a hub id, or
    "smollm2".

    `dtype`: "float32", "bfloat16" or "float16" for everything. None takes bfloat16 on a GPU; on a CPU it takes float32
    for activations and KV, and matrices packed as float16 where the CPU has kernels for that (linear.py), else float32.
    `quantization` "fp8": matrices of layers in e4m3 (fp8.py), made while loading; a checkpoint that has them so is read as it is either way.
    "int4": matrices of layers packed in 4 bits, on a CPU (linear.py).
    `kv_dtype` "fp8": KV in e4m3 (kv_fp8.py); None: in the dtype of activations.
    `load_format` "dummy": a directory's config and tokenizer with random weights, for measuring; no weights are read.
    `deterministic`: a row's logits have the same bits whatever else is in its pass, however its prompt was cut and cached (fixed.py; on a GPU
        kernels/fixed.py).
    `adapters`: directories of LoRA adapters by name (lora.py).
    `group`: its rank's part of the model alone is read and built, and computes with those of the others once the group is connected.
    Raises ModelLoadError that names the file, what is wrong with it and what to do.
    """

    given = {"dtype": dtype, "load_format": str(load_format), "quantization": quantization, "kv_dtype": kv_dtype}
    for name, value in given.items():
        if value is not None and value not in _SUPPORTED[name]:
            raise ModelLoadError(f"{name} {value!r} is not supported; supported: {', '.join(_SUPPORTED[name])}")
    where = _device(device)
    if kv_dtype is not None:
        kv_fp8.check_device(where)
    layout = replace(_layout(where, dtype), group=group)
    if quantization == "fp8":
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
        from lmc.backend.engine.models.fp8 import check_device

        check_device(where, f"{found.name} in FP8")
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
    if adapters:
        from lmc.backend.engine.models import lora

        if vision is not None:
            raise ModelLoadError(f"{found.name}: adapters of a model that sees are not supported; merge one into the weights (PEFT's merge_and_unload)")
        lora.load(adapters, found.name, model, found.config, found.share)
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
        weights=found.layout.matrix_dtype if found.layout.fp8 else found.layout.name,
        layers=layers,
        vision=vision,
        share=found.share,
        weight_bytes=found.weight_bytes,
    )


_ALIGNED = 4  # logits: of a row that begins elsewhere, torch's softmax on a GPU adds in another order
_PERSISTENT = 1024  # logits up to which it does not


def _check_fixable(layout: WeightStorage, name: str) -> None:
    if layout.group is not None:
        raise ModelLoadError(f"{name} with deterministic=True: that is for one device, tp=1; leave deterministic out")
    if layout.device.type == "cpu" and layout.activations.itemsize != 4:
        raise ModelLoadError(f"{name} with deterministic=True: on a CPU it computes in float32; leave dtype out, or take 'float32'")
    if layout.device.type == "cuda" and layout.activations.itemsize != 2:
        raise ModelLoadError(f"{name} with deterministic=True: on a GPU it computes in half precision; leave dtype out, or take 'bfloat16' or 'float16'")


def _unfixable(found: ModelSource) -> str | None:
    """Return why a model cannot have fixed numerics; None if it can."""
    if found.layout.fp8 or found.layout.int4:
        return "FP8 is not" if found.layout.fp8 else "int4 is not"
    if found.vision is not None:
        return "models that see are not"
    if found.theirs:
        return "families that run through transformers' own code are not"
    if found.config.num_experts:
        return "mixtures of experts are not"
    if found.layout.device.type == "cuda" and found.config.vocab_size > _PERSISTENT and found.config.vocab_size % _ALIGNED:
        return f"a vocabulary that is no multiple of {_ALIGNED} is not"
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


def _layout(device: torch.device, dtype: str | None) -> WeightStorage:
    import torch

    if dtype is None and device.type == "cpu":
        pack = can_pack_half()
        return WeightStorage(torch.float16 if pack else torch.float32, torch.float32, pack, device)
    same = getattr(torch, dtype or "bfloat16")
    return WeightStorage(same, same, False, device)


def _read(source: str, layout: WeightStorage, parse_special: bool, dummy_on: torch.device | None) -> ModelSource:
    path = local_path(source)
    if dummy_on is not None:
        folder = path if path.is_dir() else download(source)
        return replace(directory.read(folder, layout, parse_special, dummy_on), name=f"{path.name} (random weights)")
    if source == EMBEDDED and not path.exists():
        return gguf_model.read(gguf.embedded_path(), layout, parse_special, name=EMBEDDED)
    if path.is_dir():
        return directory.read(path, layout, parse_special)
    if path.is_file():
        return gguf_model.read(path, layout, parse_special, name=path.stem)
    return replace(directory.read(download(source), layout, parse_special), name=source)


def local_source(source: str) -> str:
    """Return the same model by a local name: a hub id's files are downloaded now."""
    path = local_path(source)
    return str(download(source)) if source != EMBEDDED and not path.exists() else source


def words(source: str, *, parse_special: bool = False) -> tuple[Tokenizer, WholeTemplate | None]:
    """Return the tokenizer of a local model, and its own chat template; no weights are read. Raises ModelLoadError."""
    path, sees = local_path(source), False
    if path.is_dir():
        tokens, template, sees = directory.words(path, parse_special=parse_special)
        name = path.name
    else:
        path = gguf.embedded_path() if source == EMBEDDED and not path.exists() else path
        tokens, template = gguf_model.words(path)
        name = path.stem
    return tokens, whole(template, tokens, name=name, in_parts=sees)
