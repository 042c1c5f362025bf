"""A KV store and a greedy loop for tests of models: no scheduler, no radix tree, one sequence per call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lmc.backend.engine.attention.base import ForwardBatch, Span
from lmc.backend.engine.models.loader import LoadedModel


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
