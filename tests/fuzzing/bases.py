"""Small models that load and answer, as the parts from which files are made: each part can be made wrong before it is written."""

from __future__ import annotations

import copy
import json
import random
import struct
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

WIDTH, HEADS, KV, HEAD, INNER, LAYERS, WORDS, CONTEXT, EXPERTS = 32, 4, 2, 8, 48, 2, 97, 64, 4
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOKENS = ["<|im_start|>", "<|im_end|>", *(chr(33 + i) for i in range(93)), "Ġ", "ab"]
PIECES = ["<unk>", "<s>", "</s>", *(chr(33 + i) for i in range(92)), "\u2581", "ab"]


def shapes(*, biased: bool = False, normed: bool = False, experts: str = "") -> dict[str, tuple[int, ...]]:
    """Tensors by transformers' names. `experts`: the family, for MLPs that are mixtures of them."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD)):
            found[f"{layer}self_attn.{name}_proj.weight"] = (rows, WIDTH)
            if biased:
                found[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        if normed:
            found |= {f"{layer}self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
        found[f"{layer}self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD)
        found |= _experts(layer, experts) if experts else _mlp(f"{layer}mlp.", "gate_proj", "up_proj", "down_proj")
        found |= {f"{layer}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    return found


def _mlp(place: str, gate: str, up: str, down: str) -> dict[str, tuple[int, ...]]:
    return {**{f"{place}{name}.weight": (INNER, WIDTH) for name in (gate, up)}, f"{place}{down}.weight": (WIDTH, INNER)}


def _experts(layer: str, family: str) -> dict[str, tuple[int, ...]]:
    place, names = ("block_sparse_moe", ("w1", "w3", "w2")) if family == "mixtral" else ("mlp", ("gate_proj", "up_proj", "down_proj"))
    found: dict[str, tuple[int, ...]] = {f"{layer}{place}.gate.weight": (EXPERTS, WIDTH)}
    for i in range(EXPERTS):
        found |= _mlp(f"{layer}{place}.experts.{i}.", *names)
    return found


def floats(shape: tuple[int, ...], rng: random.Random) -> bytes:
    count = 1
    for size in shape:
        count *= size
    return struct.pack(f"<{count}f", *(rng.gauss(0, 0.2) for _ in range(count)))


@dataclass
class Tensor:
    """`shape` row-major; `kind`: a type code (GGUF) or a dtype (safetensors)."""

    shape: tuple[int, ...]
    kind: Any
    data: bytes
    shift: int = 0  # of the offset that is written


# -- GGUF --------------------------------------------------------------------------------------------------------------

_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


@dataclass
class Gguf:
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(self.bytes())
        return path

    def bytes(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
        head += b"".join(_text(key) + _value(value) for key, value in self.metadata.items())
        offset, blobs = 0, b""
        for name, tensor in self.tensors.items():
            head += _text(name) + struct.pack("<I", len(tensor.shape)) + struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
            head += struct.pack("<IQ", tensor.kind, (offset + tensor.shift) % (1 << 64))
            padded = tensor.data + b"\0" * (-len(tensor.data) % 32)
            blobs, offset = blobs + padded, offset + len(padded)
        return head + b"\0" * (-len(head) % 32) + blobs


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 1 << 32 else struct.pack("<IQ", 10, value) if value > 0 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind = _value(value[0])[:4] if value else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + b"".join(_value(item)[4:] for item in value)


def gguf(rng: random.Random) -> Gguf:
    arch = rng.choice(("llama", "qwen2", "qwen3", "smollm3"))
    sizes = {
        "block_count": LAYERS, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV, "attention.key_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    }  # fmt: skip
    meta: dict[str, Any] = {"general.architecture": arch, "general.alignment": 32, **{f"{arch}.{key}": value for key, value in sizes.items()}}
    if rng.random() < 0.3:
        meta |= {
            f"{arch}.rope.scaling.type": rng.choice(("linear", "yarn")),
            f"{arch}.rope.scaling.factor": 2.0,
            f"{arch}.rope.scaling.original_context_length": 32,
        }
    words = "tokenizer.ggml."
    if rng.random() < 0.5:
        meta |= {f"{words}model": "gpt2", f"{words}pre": "gpt-2", f"{words}tokens": list(TOKENS), f"{words}merges": ["a b"]}
        meta |= {f"{words}token_type": [3, 3, *[1] * (WORDS - 2)], f"{words}eos_token_id": 1, f"{words}bos_token_id": 0}
    else:
        scores = [0.0] * 3 + [-float(i) for i in range(WORDS - 3)]
        meta |= {f"{words}model": "llama", f"{words}tokens": list(PIECES), f"{words}scores": scores, f"{words}token_type": [2, 3, 3, *[1] * (WORDS - 3)]}
        meta |= {f"{words}eos_token_id": 2, f"{words}bos_token_id": 1, f"{words}unknown_token_id": 0, f"{words}add_bos_token": True}
    meta["tokenizer.chat_template"] = CHATML
    tensors = {_gguf_name(name): Tensor(shape, 0, floats(shape, rng)) for name, shape in shapes(biased=arch == "qwen2", normed=arch == "qwen3").items()}
    if rng.random() < 0.3:
        tensors["rope_freqs.weight"] = Tensor((HEAD // 2,), 0, struct.pack(f"<{HEAD // 2}f", *[1.0, 2.0] * (HEAD // 4)))
    return Gguf(meta, tensors)


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, _, index, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{index}.{_NAMES[stem]}.{kind}"


# -- directories -------------------------------------------------------------------------------------------------------


@dataclass
class Folder:
    """A directory of transformers': JSON files by name, the weights, and files of text."""

    files: dict[str, Any]
    tensors: dict[str, Tensor]
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    header: dict[str, Any] = field(default_factory=dict[str, Any])  # what the weights' header says beside

    def write(self, folder: Path) -> Path:
        path = folder / "model"
        path.mkdir()
        for name, content in self.files.items():
            (path / name).write_text(json.dumps(content), encoding="utf-8")
        (path / "model.safetensors").write_bytes(self._weights())
        for name, content in self.texts.items():
            (path / name).write_bytes(content)
        return path

    def _weights(self) -> bytes:
        header, offset, blobs = dict(self.header), 0, b""
        for name, tensor in self.tensors.items():
            begin = offset + tensor.shift
            header[name] = {"dtype": tensor.kind, "shape": list(tensor.shape), "data_offsets": [begin, begin + len(tensor.data)]}
            blobs, offset = blobs + tensor.data, offset + len(tensor.data)
        head = json.dumps(header).encode()
        return struct.pack("<Q", len(head)) + head + blobs


DENSE, MIXED, FP8, SEEING = ("llama", "mistral", "qwen2", "qwen3", "smollm3"), ("mixtral", "qwen3_moe"), "fp8", "llava"


def folder(rng: random.Random) -> Folder:
    """One of the families, dense, of experts, quantized, or one that sees."""
    kind = rng.choice((*DENSE, *MIXED, FP8, SEEING))
    if kind == SEEING:
        return copy.deepcopy(_seeing())
    family = "qwen3" if kind == FP8 else kind
    config = {
        "model_type": family, "architectures": ["XForCausalLM"], "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": [1], "hidden_act": "silu", "torch_dtype": "float32",
        "rope_parameters": copy.deepcopy(rng.choice(_ROPES)), "sliding_window": None, "attention_bias": False,
    }  # fmt: skip
    if kind in MIXED:
        config |= {
            "num_local_experts" if kind == "mixtral" else "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": INNER,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if kind == FP8:
        config["quantization_config"] = copy.deepcopy(_COMPRESSED)
    made = shapes(biased=kind == "qwen2", normed=family in ("qwen3", "qwen3_moe"), experts=kind if kind in MIXED else "")
    tensors = {name: Tensor(shape, "F32", floats(shape, rng)) for name, shape in made.items()}
    if kind == FP8:
        _quantize(tensors, rng)
    files = {
        "config.json": config,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {"chat_template": CHATML, "add_bos_token": False},
        "generation_config.json": {"eos_token_id": [1]},
    }
    return Folder(files, tensors)


_COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, "targets": ["Linear"],
    }},
}  # fmt: skip


def _quantize(tensors: dict[str, Tensor], rng: random.Random) -> None:
    """Matrices of layers in e4m3, with a scale for each row."""
    for name, tensor in list(tensors.items()):
        if "_proj.weight" in name:
            rows, columns = tensor.shape
            tensor.kind, tensor.data = "F8_E4M3", bytes(rng.randrange(0x20, 0x48) | rng.choice((0, 0x80)) for _ in range(rows * columns))
            tensors[name.replace(".weight", ".weight_scale")] = Tensor((rows, 1), "F32", struct.pack(f"<{rows}f", *[0.1] * rows))


@cache
def _seeing() -> Folder:
    """LLaVA's shape, as transformers saves it."""
    from tests.backend.engine import seeing

    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        seeing.llava(path)
        files = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in path.glob("*.json")}
        texts = {file.name: file.read_bytes() for file in path.glob("*.jinja")}
        data = (path / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    beside = {"__metadata__": header.pop("__metadata__")} if "__metadata__" in header else {}
    begin = 8 + size
    tensors = {
        name: Tensor(tuple(said["shape"]), said["dtype"], data[begin + said["data_offsets"][0] : begin + said["data_offsets"][1]])
        for name, said in header.items()
    }
    return Folder(files, tensors, texts, beside)


_ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
)


def _tokenizer() -> dict[str, Any]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    raw = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(TOKENS)}, merges=[("a", "b")]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS[:2]])
    return json.loads(raw.to_str())
