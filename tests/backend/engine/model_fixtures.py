"""A KV store and a greedy loop for tests of models: no scheduler, no radix tree, one sequence per call."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import StorageWeakRef

from lmc.backend.engine.attention.base import ForwardBatch, Span
from lmc.backend.engine.models.loader import LoadedModel


class TensorsMade:
    """The memory of the tensors that are made from now on."""

    def __init__(self) -> None:
        self._before = set(self._now())
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    @staticmethod
    def _now() -> dict[int, tuple[StorageWeakRef, int]]:
        storages = [x.untyped_storage() for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and x.device.type != "meta"]
        return {s._cdata: (StorageWeakRef(s), s.nbytes()) for s in storages if s.nbytes()}

    def look(self) -> int:
        """Find those that there are now; return their bytes."""
        self._made |= {key: found for key, found in self._now().items() if key not in self._before}
        return self.alive

    @property
    def alive(self) -> int:
        """Return the bytes of those found that are still there, whoever has them."""
        return sum(nbytes for ref, nbytes in self._made.values() if not ref.expired())


class PlainKV:
    """One tensor per layer and side, [num_slots, num_kv_heads, head_dim]."""

    def __init__(self, loaded: LoadedModel, slots: int) -> None:
        c = loaded.config
        shape = (c.num_layers, slots, c.num_kv_heads, c.head_dim)
        self.keys = torch.zeros(shape, dtype=loaded.dtype)
        self.values = torch.zeros(shape, dtype=loaded.dtype)

    def key(self, layer: int) -> torch.Tensor:
        return self.keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self.values[layer]

    def pair(self, layer: int) -> None: ...


def batch(*rows: tuple[Sequence[int], Sequence[int]], logits: Sequence[int] | None = None) -> ForwardBatch:
    """A pass over (new ids, slots of the whole context) pairs; logits of each span's last row unless told."""
    ids, positions, out, spans, last = [], [], [], [], []
    for new, slots in rows:
        spans.append(Span(len(ids), len(new), torch.as_tensor(slots)))
        ids += new
        out += list(slots)[len(slots) - len(new) :]
        positions += range(len(slots) - len(new), len(slots))
        last.append(len(ids) - 1)
    wanted = last if logits is None else list(logits)
    ids, positions, out, wanted = (torch.tensor(x, dtype=torch.int64) for x in (ids, positions, out, wanted))
    return ForwardBatch(ids, positions, out, tuple(spans), wanted)


def all_logits(loaded: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits after every token of `ids`, in one pass."""
    kv = PlainKV(loaded, len(ids))
    return loaded.model.forward(batch((list(ids), range(len(ids))), logits=range(len(ids))), kv)


def greedy(loaded: LoadedModel, ids: Sequence[int], count: int) -> list[int]:
    """`count` tokens by argmax after `ids`."""
    kv, seen, new, found = PlainKV(loaded, len(ids) + count), 0, list(ids), []
    for _ in range(count):
        seen += len(new)
        new = [int(loaded.model.forward(batch((new, range(seen))), kv)[0].argmax())]
        found += new
    return found


def transformers_smollm2():
    """transformers' own model over our dequantized weights of the small model, float32."""
    import transformers

    from lmc.backend.engine.models import gguf, gguf_model

    file = gguf.read(gguf.embedded_path())
    config = gguf_model.config_of(file)
    theirs = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_context,
        rms_norm_eps=config.norm_eps,
        rope_theta=config.rope_theta,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(theirs).eval()
    missing, unexpected = model.load_state_dict(gguf_model.state_of(file, config), strict=False)
    assert (missing, unexpected) in ((["lm_head.weight"], []), ([], []))
    model.tie_weights()
    return model


def write_tiny_smollm2(folder: Path) -> None:
    """Write a random model of two thin layers with the small model's vocabulary and kinds of heads (9 of q, 3 of k and v)."""
    from lmc.backend.engine import gguf_tokenizer
    from lmc.backend.engine.models import gguf

    path = gguf.embedded_path()
    metadata = gguf.read(path).metadata
    words = gguf_tokenizer.from_gguf(metadata, str(path))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu", "vocab_size": words.vocab_size,
        "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"], "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }  # fmt: skip
    drawn = torch.Generator().manual_seed(5)
    weights = {"model.embed_tokens.weight": (words.vocab_size, 72), "model.norm.weight": (72,)}
    for i in range(2):
        layer = f"model.layers.{i}."
        weights |= {f"{layer}{name}.weight": (72,) for name in ("input_layernorm", "post_attention_layernorm")}
        weights |= {f"{layer}self_attn.{name}_proj.weight": (rows, 72) for name, rows in (("q", 72), ("k", 24), ("v", 24), ("o", 72))}
        weights |= {f"{layer}mlp.{name}_proj.weight": (96, 72) for name in ("gate", "up")} | {f"{layer}mlp.down_proj.weight": (72, 96)}
    made = {name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=drawn) * 0.3 for name, shape in weights.items()}
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    words.raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": metadata["tokenizer.chat_template"]}), "utf-8")
