"""Any decoder of transformers, through its attention interface: slower than our own families, and equally correct.

transformers computes everything but attention. Its attention layers call `_attend`, which writes K and V to the pool's
slots and attends over spans; nothing else may keep state of earlier tokens. This is verified once per load: a short
text through transformers' own attention, and in two chunks through ours.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import ForwardBatch, PictureRows, Span
from lmc.backend.engine.attention.torch_ref import FastPlan, LonePlan, attend_span, fast, span_mask
from lmc.backend.engine.kv_pool import KVPool, LayerShape
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.transformers_config import SUPPORTED
from lmc.errors import ModelLoadError

_NAME = "lmc"  # of our attention among transformers'
_TRIED = 24  # tokens of the trial
_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-3}  # of logits, against their spread; wrong ones differ by about 1
_ROUNDING_HALF = 0.2
_FAR = 1 << 20  # a position at which every window and chunk shows


# -- one pass ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pass:
    """Data of the current pass for attention layers."""

    batch: ForwardBatch
    kv: KVPool
    windows: Mapping[int, int | None]  # of each layer
    plans: dict[int | None, FastPlan | LonePlan] = field(default_factory=dict)

    def plan(self, window: int | None) -> FastPlan | LonePlan:
        if window not in self.plans:
            self.plans[window] = fast(self.batch.spans, window)
        return self.plans[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: _How) -> Tensor:
        """q [T, heads, key_dim], k and v [T, kv_heads, dim] → [T, heads, value_dim]."""
        keys, values = self.kv.key(layer), self.kv.value(layer)
        keys.index_copy_(0, self.batch.out_slots, k.to(keys.dtype))
        values.index_copy_(0, self.batch.out_slots, v.to(values.dtype))
        window = self.windows[layer]
        if how.is_plain and k.shape == v.shape:
            ordinary = 1 / math.sqrt(q.shape[-1])
            q = q if math.isclose(how.scaling, ordinary) else q * (how.scaling / ordinary)
            return self.plan(window).attend(q.contiguous(), keys, values)
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        for span in self.batch.spans:
            rows = slice(span.start, span.start + span.length)
            out[rows] = attend_span(q[rows], keys[span.slots].to(q.dtype), values[span.slots].to(q.dtype), span_mask(span, window), *how)
        return out


class _How(NamedTuple):
    """See `attend_span`."""

    scaling: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


class _Current:
    """Current pass of a model's attention layers. Each of them holds it, because not every model passes its arguments
    on to them."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work: _Pass | _AttentionProbe | None = None


_CURRENT = "_lmc_current"  # the attribute of modules


def _attend(
    module: Any,
    query: Tensor,  # [1, heads, T, key_dim]
    key: Tensor,  # [1, kv_heads, T, key_dim]
    value: Tensor,  # [1, kv_heads, T, value_dim]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' attention interface → [1, T, heads, value_dim]."""
    work = getattr(module, _CURRENT).work
    assert work is not None, "attention outside of a pass"
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    how = _How(q.shape[-1] ** -0.5 if scaling is None else float(scaling), softcap, s_aux)
    if isinstance(work, _AttentionProbe):
        work.note(module, k, v, attention_mask, others)
        return query.new_zeros(1, len(q), q.shape[1], v.shape[-1]), None
    return work.attend(module.layer_idx, q, k, v, how)[None], None


# -- layer probes -----------------------------------------------------------------------------------------------

_HARMLESS = ("position_ids", "cache_position", "position_embeddings")  # tensors that attention may ignore


@dataclass(slots=True)
class _AttentionProbe:
    """Replaces a pass once, to find the attention layers."""

    found: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    def note(self, module: Any, k: Tensor, v: Tensor, mask: Tensor | None, others: Mapping[str, Any]) -> None:
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.found:
            raise ModelLoadError("its attention layers are not numbered one by one; shared layers are not supported")
        unknown = [name for name, value in others.items() if isinstance(value, Tensor) and name not in _HARMLESS]
        if unknown:
            raise ModelLoadError(f"its attention uses {', '.join(unknown)}")
        self.found[layer] = LayerShape(k.shape[1], k.shape[2], v.shape[2])
        self.windows[layer] = _window_of(mask, others.get("sliding_window"))


def _window_of(mask: Tensor | None, said: int | None) -> int | None:
    """Return how many tokens a row sees, itself included; None for all. By the mask, else by the layer's own
    setting."""
    if mask is None:
        return said or None
    window = int(mask.flatten()[0]) if mask.dtype == torch.int64 and mask.numel() == 1 else _STRANGE
    if window == _STRANGE:
        raise ModelLoadError("its attention mask is neither causal nor a sliding window")
    return window or None


_STRANGE = -1


def _describe_mask(*_: Any, mask_function: Callable[..., Any] | None = None, **__: Any) -> Tensor | None:
    """Implement transformers' mask interface: return the window as a number in place of a mask, 0 for none, for the
    layers to pass on."""
    if mask_function is None:
        return None
    back = torch.arange(_FAR)
    seen = {_seen(mask_function(0, 0, torch.tensor(_FAR + at), _FAR + at - back)) for at in (0, 1, 37)}
    window = _STRANGE if len(seen) > 1 else seen.pop()
    return torch.tensor([[[[0 if window == _FAR else window]]]])


def _seen(visible: Tensor) -> int:
    """Return how many of the tokens from the row backwards are seen, if these are the nearest ones."""
    count = int(visible.sum())
    return count if bool(visible[:count].all()) else _STRANGE


_adopting = threading.Lock()  # the mask interface is global


@contextmanager
def _masks_described() -> Iterator[None]:
    """Register our attention with transformers; within, masks are numbers, and none are built after that."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, _attend)
    with _adopting:
        AttentionMaskInterface.register(_NAME, _describe_mask)
        try:
            yield
        finally:
            AttentionMaskInterface.register(_NAME, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    return None


# -- longrope ------------------------------------------------------------------------------------------------------------


class _LongRope:
    """Rotary embeddings with two lists of factors, chosen by the length of a sequence (arXiv 2402.13753). transformers
    chooses by the longest sequence of a call, which here may mix several; so each call has sequences of one kind.

    near  tokens up to which the short factors hold; None: no module of the model has any others
    """

    def __init__(self, model: Any) -> None:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        self.near: int | None = None
        self._modules: list[tuple[Any, Tensor, Tensor]] = []
        for module in model.modules():
            kind = getattr(module, "rope_type", None)
            if isinstance(kind, Mapping) and "longrope" in kind.values():
                raise ModelLoadError("its RoPE (longrope) differs between layers, which is not supported")
            if kind != "longrope":
                continue
            near = int(module.config.rope_parameters["original_max_position_embeddings"])
            if self.near not in (None, near):
                raise ModelLoadError("its RoPE (longrope) changes at several lengths, which is not supported")
            short = module.original_inv_freq.clone()
            long, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, short.device, seq_len=near + 1)
            self._modules.append((module, short, long))
            self.near, module.rope_type = near, "default"  # it ignores lengths from here on

    def turn(self, is_far: bool) -> None:
        """Set whether the next calls are of sequences of more than `near` tokens, or of none such."""
        for module, short, long in self._modules:
            module.inv_freq.copy_(long if is_far else short)


# -- the model -----------------------------------------------------------------------------------------------------------


class TransformersModel:
    """A CausalModel around a model of transformers, with our attention from here on."""

    def __init__(self, model: Any, vocab_size: int) -> None:
        self._model, self._vocab_size = model, vocab_size
        self._slices = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._current = _Current()
        self._rope = _LongRope(model)
        for module in model.modules():
            setattr(module, _CURRENT, self._current)
        self.layers, self.windows = self._adopt()  # how far each sees, in tokens; None for all

    def _adopt(self) -> tuple[tuple[LayerShape, ...], Mapping[int, int | None]]:
        probe = _AttentionProbe()
        self._rope.turn(self._rope.near is not None and self._rope.near < _TRIED)
        with torch.inference_mode():
            theirs, device = self._trial(lambda ids: self._call(ids, None)), self._model.device
            with _masks_described():
                self._model.set_attn_implementation(self._in_decoder(_NAME))
                one = torch.zeros(1, dtype=torch.int64, device=device)
                self._call(one, one, probe)
            if sorted(probe.found) != list(range(len(probe.found))) or not probe.found:
                raise ModelLoadError("its attention does not go through transformers' attention interface")
            layers = tuple(probe.found[i] for i in range(len(probe.found)))
            kv = KVPool.of(layers, _TRIED, self._model.dtype, str(device))
            self._check(theirs, self._trial(lambda ids: self._in_chunks(ids, kv, probe.windows)))
        return layers, probe.windows

    def _in_decoder(self, attention: str) -> str | dict[str, str]:
        """Return the setting by which the decoder has this attention. A model that sees may have a tower, which keeps its own."""
        config = self._model.config
        text = config.get_text_config(decoder=True)
        return next(({name: attention} for name in config.sub_configs if getattr(config, name) is text), attention)

    def _trial(self, run: Callable[[Tensor], Tensor]) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self._vocab_size, (_TRIED,), generator=generator)
        return run(ids.to(self._model.device)).float()

    def _in_chunks(self, ids: Tensor, kv: KVPool, windows: Mapping[int, int | None]) -> Tensor:
        """Return logits [n, vocab] computed in two passes."""
        every = torch.arange(len(ids), device=ids.device)
        found: list[Tensor] = []
        for begin, end in ((0, len(ids) // 2), (len(ids) // 2, len(ids))):
            own = every[begin:end]
            batch = ForwardBatch(ids[own], own, own, (Span(0, len(own), every[:end]),), own - begin)
            found.append(self._call(batch.token_ids, batch.positions, _Pass(batch, kv, windows)))
        return torch.cat(found)

    def _check(self, theirs: Tensor, ours: Tensor) -> None:
        error = float((theirs - ours).square().mean().sqrt() / theirs.std().clamp_min(1e-6))
        allowed = _ROUNDING.get(self._model.dtype, _ROUNDING_HALF)
        if not error <= allowed:
            raise ModelLoadError(
                "it computes something else with lmc's attention than with its own "
                f"(logits differ by {error:.2g} of their spread): it keeps more than keys and values of earlier tokens"
            )

    def _call(self, ids: Tensor, positions: Tensor | None, work: _Pass | _AttentionProbe | None = None, **options: Any) -> Tensor:
        """Return logits [T, vocab], or of the rows `logits_to_keep`. Without `work`: by transformers' own attention."""
        where = {} if positions is None else {"position_ids": positions[None]}
        seen = work.batch.seen if isinstance(work, _Pass) else None
        given = {"input_ids": ids[None]} if seen is None else {"inputs_embeds": self._embedded(ids, seen)[None]}
        self._current.work = work
        try:
            return self._model(**given, use_cache=False, **where, **options).logits[0]
        finally:
            self._current.work = None

    def _embedded(self, ids: Tensor, seen: PictureRows) -> Tensor:
        """Return [T, hidden_size], with the features of pictures in their rows."""
        found = self._model.get_input_embeddings()(ids)
        found[seen.rows] = seen.features.to(found.dtype)
        return found

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KVPool) -> Tensor:
        """Write the rows' K and V to their slots; return logits [R, vocab_size] float32."""
        if self._rope.near is None:
            return self._logits(batch, kv)
        logits = torch.empty(len(batch.logit_rows), self._vocab_size, device=batch.token_ids.device)
        for is_far in {span.is_far for span in batch.spans}:
            part, wanted = batch.part([span for span in batch.spans if span.is_far is is_far])
            self._rope.turn(is_far)
            logits[wanted] = self._logits(part, kv)
        return logits

    def _logits(self, batch: ForwardBatch, kv: KVPool) -> Tensor:
        work = _Pass(batch, kv, self.windows)
        if self._slices:
            return self._call(batch.token_ids, batch.positions, work, logits_to_keep=batch.logit_rows).float()
        return self._call(batch.token_ids, batch.positions, work)[batch.logit_rows].float()


# -- from files ----------------------------------------------------------------------------------------------------------


def build(path: Path, theirs: Any, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> TransformersModel:
    """Build the model of a directory. Raises ModelLoadError for missing files and unsupported models."""
    from transformers import AutoModelForCausalLM

    from lmc.backend.engine.models.vision import drop

    read: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        model, info = read(str(path), config=theirs, dtype=dtype, **options)
    except Exception as error:  # errors of shapes, and of its own code on the configuration
        raise ModelLoadError(f"{path}: the weights cannot be read: {type(error).__name__}: {error}") from error
    if hasattr(model, "model"):
        drop(model.model, "vision_tower", "multi_modal_projector")  # vision.py has its own, under another attention
    if missing := sorted(info["missing_keys"]):  # transformers would use random ones
        raise ModelLoadError(f"{path}: the weights lack {missing[0]!r} ({len(missing)} in all); is the download complete?")
    return adopt(model, config, device, str(path))


def random(path: Path, theirs: Any, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> TransformersModel:
    """Build the model of a directory's config with random weights from a fixed seed."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(theirs, dtype=dtype)
    return adopt(model, config, device, str(path))


def adopt(model: Any, config: ModelConfig, device: torch.device, where: str) -> TransformersModel:
    """Put a loaded model under our attention. Raises ModelLoadError with the reason if that is impossible."""
    try:
        return TransformersModel(model.eval().to(device), config.vocab_size)
    except Exception as error:  # in its own code, too
        raise ModelLoadError(f"{where}: model_type {config.architecture!r} cannot be run: {error}. Models that can: {SUPPORTED}") from error
