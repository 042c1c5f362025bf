"""Model configuration: shape, position encoding and end tokens, read from `config.json` or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmc.backend.engine.models.claims import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH, Claims
from lmc.backend.engine.models.quantization import is_fp8
from lmc.errors import ModelLoadError


class UnfusedError(ModelLoadError):
    """A model that models/llama.py does not support; transformers' own code may."""


_EXPERTS = 1024  # most experts of a layer
_FACTOR = (1e-6, 1e6)  # range of a factor
_SMALLEST_THETA, _LARGEST_THETA = 2.0, 1e15

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")  # for models/llama.py; SmolLM2 is a llama
EXPERTS = ("mixtral", "qwen3_moe")  # those of them whose MLPs are experts; not from GGUF files


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies beyond the trained context (names as in transformers' config.json).

    "factors" divides each frequency by its own factor: how GGUF writes llama3 scaling. "yarn" (arXiv 2309.00071) also
    scales the rotated vectors, by `magnitude`.
    """

    kind: Literal["linear", "llama3", "factors", "yarn"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0

    def apply(self, inv_freq: list[float], theta: float) -> list[float]:
        """Return the scaled inverse frequencies (llama3: Meta's smooth interpolation by wavelength); unscaled they are
        powers of 1 / `theta`."""
        if self.kind == "linear":
            return [f / self.factor for f in inv_freq]
        if self.kind == "factors":
            return [f / factor for f, factor in zip(inv_freq, self.factors, strict=True)]
        if self.kind == "yarn":
            return self._yarn(inv_freq, theta)
        return [self._llama3(f) for f in inv_freq]

    def _yarn(self, inv_freq: list[float], theta: float) -> list[float]:
        """Keep high frequencies, interpolate low ones, and blend linearly by index in between."""
        size = 2 * len(inv_freq)

        def place(turns: float) -> float:
            """Return the index of the frequency with so many rotations over the trained context."""
            return size * math.log(self.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = place(self.beta_fast), place(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        width = high - low or 0.001
        slow = [min(1.0, max(0.0, (i - low) / width)) for i in range(len(inv_freq))]
        return [f / self.factor * s + f * (1 - s) for f, s in zip(inv_freq, slow, strict=True)]

    def _llama3(self, freq: float) -> float:
        turns = self.original_max_position * freq / (2 * math.pi)  # rotations over the trained context
        if turns < self.low_freq_factor:
            return freq / self.factor
        if turns > self.high_freq_factor:
            return freq
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - smooth) * freq / self.factor + smooth * freq


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder of the Llama family. Sizes in elements; contexts in tokens."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    near_context: int | None = None  # all positions of longer sequences are rotated differently (longrope)
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_axes: tuple[int, ...] = ()  # where rows of pictures have a time, a height and a width: which of them each frequency turns by
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    nope_layers: tuple[int, ...] = ()  # layers without any position encoding
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    num_experts: int = 0  # of each layer's MLP; 0: it is dense
    experts_per_token: int = 0
    expert_size: int = 0  # columns of each expert
    normed_experts: bool = True  # the weights of a token's experts sum to 1
    head_rows: int = 0  # of the head, if other devices have the rest; 0: all

    def __post_init__(self) -> None:
        sizes = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size")
        for name in (*sizes, "vocab_size", "max_context"):
            if getattr(self, name) <= 0:
                raise ModelLoadError(f"model config: {name} is {getattr(self, name)}, expected a positive number")
        if self.head_dim % 2:
            raise ModelLoadError(f"model config: head_dim is {self.head_dim}, expected an even number: positions rotate pairs")
        if not (0 <= self.norm_eps <= 1 and _SMALLEST_THETA <= self.rope_theta <= _LARGEST_THETA):  # NaN is not
            raise ModelLoadError(
                f"model config: norm_eps is {self.norm_eps} and rope_theta {self.rope_theta}; expected numbers from 0 to 1 and from {_SMALLEST_THETA:g}"
            )
        if any(not 0 <= i < self.vocab_size for i in (*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id]))):
            raise ModelLoadError(f"model config: the end or beginning token is not in the vocabulary of {self.vocab_size}")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"model config: {self.num_heads} heads are not a multiple of {self.num_kv_heads} key/value heads")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def inv_freq(self) -> list[float]:
        """Return rotary inverse frequencies, [head_dim / 2], scaling applied."""
        plain = [self.rope_theta ** -(2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return self.rope_scaling.apply(plain, self.rope_theta) if self.rope_scaling else plain


def made(where: str, **fields: Any) -> ModelConfig:
    """Build a configuration from a file's claims. Raises ModelLoadError that names the file."""
    try:
        return ModelConfig(**fields)
    except ModelLoadError as error:
        raise ModelLoadError(f"{where}: {error.message}; download it again") from None


def decoder_sizes(claims: Claims, *, widening: int | None = None) -> dict[str, Any]:
    """Return the fields of a configuration on sizes, by transformers' names. `widening`: of an MLP whose width is not said."""
    heads, hidden = claims.whole("num_attention_heads", HEADS), claims.whole("hidden_size", WIDTH)
    return {
        "num_layers": claims.whole("num_hidden_layers", LAYERS),
        "num_heads": heads,
        "num_kv_heads": claims.whole("num_key_value_heads", HEADS, heads),
        "head_dim": claims.whole("head_dim", WIDTH, hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": claims.whole("intermediate_size", WIDTH, *([] if widening is None else [widening * hidden])),
        "vocab_size": claims.whole("vocab_size", VOCABULARY),
    }


def from_hf(raw: Mapping[str, Any], where: str, generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Build from the content of `config.json`; `generation_config.json`'s end tokens win. `where` names the file in
    errors."""
    try:
        return _from_hf(Claims(raw, where), where, generation)
    except KeyError as missing:
        raise ModelLoadError(f"{where}: {missing.args[0]!r} is missing; is this a causal language model?") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as wrong:
        raise ModelLoadError(f"{where}: a value is not what it should be: {wrong}; download it again") from wrong


def _from_hf(claims: Claims, where: str, generation: Mapping[str, Any] | None) -> ModelConfig:
    raw = claims.fields
    kind = str(raw.get("model_type", "?"))
    if kind not in (*FAMILIES, *EXPERTS):
        raise UnfusedError(f"{where}: model_type {kind!r} is not supported; supported: {', '.join((*FAMILIES, *EXPERTS))}")
    for flag in ("mlp_bias", "use_mrope"):
        if raw.get(flag):
            raise UnfusedError(f"{where}: {flag} is not supported")
    is_fp8(raw, where)  # raises if unsupported
    rope = claims.part("rope_parameters" if raw.get("rope_parameters") else "rope_scaling")  # transformers 5 writes the first, 4 the second
    if (rope.raw("partial_rotary_factor", raw.get("partial_rotary_factor")) or 1) != 1:
        raise UnfusedError(f"{where}: rotating a part of each head (partial_rotary_factor) is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnfusedError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; supported: silu")
    sizes = decoder_sizes(claims)
    ends = claims if generation is None or "eos_token_id" not in generation else Claims(generation, where.replace("config.json", "generation_config.json"))
    theta = rope if rope.has("rope_theta") else claims
    return made(
        where,
        architecture=kind,
        **sizes,
        max_context=_hf_context(claims, rope),
        rope_theta=theta.number("rope_theta", _SMALLEST_THETA, _LARGEST_THETA, 10000.0),
        rope_scaling=_hf_scaling(rope, where, claims.whole("max_position_embeddings", CONTEXT, 2048)),
        rope_axes=_hf_axes(rope, sizes["head_dim"] // 2),
        norm_eps=claims.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(raw.get("attention_bias", False)),
        o_bias=kind != "qwen2" and bool(raw.get("attention_bias", False)),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        **(_hf_experts(claims, kind, where) if kind in EXPERTS else {}),
        sliding_window=_hf_window(claims, kind, where),
        nope_layers=_hf_nope(raw, kind, sizes["num_layers"]),
        eos_token_ids=ends.tokens("eos_token_id", sizes["vocab_size"]),
        bos_token_id=claims.token("bos_token_id", sizes["vocab_size"]),
    )


def _hf_experts(claims: Claims, kind: str, where: str) -> dict[str, Any]:
    """Return a configuration's fields on experts."""
    raw = claims.fields
    if raw.get("decoder_sparse_step", 1) != 1 or raw.get("mlp_only_layers"):
        raise UnfusedError(f"{where}: experts in some layers only are not supported")
    count = claims.whole("num_local_experts" if "num_local_experts" in raw else "num_experts", _EXPERTS)
    return {
        "num_experts": count,
        "experts_per_token": claims.whole("num_experts_per_tok", count),
        "expert_size": claims.whole("intermediate_size" if kind == "mixtral" else "moe_intermediate_size", WIDTH),
        "normed_experts": kind == "mixtral" or bool(raw.get("norm_topk_prob", False)),
    }


def _hf_window(claims: Claims, kind: str, where: str) -> int | None:
    """Return the window of every layer. Families that configure it per layer are supported only if all layers are
    alike."""
    raw = claims.fields
    if not raw.get("sliding_window") or not raw.get("use_sliding_window", kind in ("mistral", "mixtral")):
        return None
    alike = len(set(raw.get("layer_types") or ())) == 1 or (kind in ("mistral", "mixtral") and not raw.get("layer_types"))
    if not alike and raw.get("max_window_layers") != 0:
        raise UnfusedError(f"{where}: a sliding window in some layers only is not supported")
    return None if raw.get("layer_types") and "full_attention" in raw["layer_types"] else claims.whole("sliding_window", CONTEXT)


_NOPE_STEP = 4  # SmolLM3: every fourth layer


def _hf_nope(raw: Mapping[str, Any], kind: str, layers: int) -> tuple[int, ...]:
    """Return layers without rotation: transformers marks those that rotate with 1."""
    if kind != "smollm3":
        return ()
    marks = raw.get("no_rope_layers")
    step = int(raw.get("no_rope_layer_interval") or _NOPE_STEP)
    return tuple(i for i in range(layers) if (not marks[i] if marks else (i + 1) % step == 0))


def _hf_scaling(rope: Claims, where: str, max_position: int) -> RopeScaling | None:
    kind = rope.raw("rope_type", rope.raw("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor", *_FACTOR))
    if kind == "llama3":
        low, high = (rope.number(f"{name}_freq_factor", *_FACTOR) for name in ("low", "high"))
        if not low < high:
            raise rope.wrong("low_freq_factor", low, f"less than high_freq_factor, which is {high:g}")
        return RopeScaling(
            "llama3",
            rope.number("factor", *_FACTOR),
            low,
            high,
            rope.whole("original_max_position_embeddings", CONTEXT, max_position),
        )
    if kind == "yarn":
        factor, trained = _yarn_range(rope, max_position)
        return RopeScaling(
            "yarn",
            factor,
            original_max_position=trained,
            beta_fast=rope.number("beta_fast", *_FACTOR, 32),
            beta_slow=rope.number("beta_slow", *_FACTOR, 1),
            truncate=bool(rope.raw("truncate", True)),
            magnitude=_yarn_magnitude(rope, factor),
        )
    raise UnfusedError(f"{where}: rope scaling {kind!r} is not supported; supported: linear, llama3, yarn")


def _yarn_range(rope: Claims, max_position: int) -> tuple[float, int]:
    """Return the scaling factor, and the trained context."""
    trained = rope.whole("original_max_position_embeddings", CONTEXT, max_position)
    return rope.number("factor", *_FACTOR, max_position / trained), trained


def _yarn_magnitude(rope: Claims, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor", *_FACTOR)
    if rope.raw("mscale", 0) and rope.raw("mscale_all_dim", 0):
        return _yarn_scale(factor, rope.number("mscale", *_FACTOR)) / _yarn_scale(factor, rope.number("mscale_all_dim", *_FACTOR))
    return _yarn_scale(factor)


def _yarn_scale(factor: float, by: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1


def _hf_axes(rope: Claims, size: int) -> tuple[int, ...]:
    """Return the axis of each of `size` frequencies: of whole sections (Qwen2-VL), or interleaved (Qwen3-VL)."""
    section = rope.raw("mrope_section", None)
    if section is None:
        return ()
    if not (isinstance(section, list | tuple) and len(section) == 3 and all(isinstance(n, int) and n >= 0 for n in section) and sum(section) == size):
        raise rope.wrong("mrope_section", section, f"three whole numbers that are {size} together")
    if not rope.raw("mrope_interleaved", False):
        return tuple(axis for axis, count in enumerate(section) for _ in range(count))
    return tuple(axis if axis and i < 3 * section[axis] else 0 for i in range(size) for axis in (i % 3,))


def _hf_context(claims: Claims, rope: Claims) -> int:
    """Return the context in tokens. A config to which YaRN was added by hand, as model cards say, still has the trained
    context."""
    most = claims.whole("max_position_embeddings", CONTEXT, 2048)
    if rope.raw("rope_type", rope.raw("type", None)) != "yarn":
        return most
    factor, trained = _yarn_range(rope, most)
    if factor * trained > CONTEXT:
        raise rope.wrong("factor", factor, f"one that makes a context of {CONTEXT} tokens at most")
    return max(most, int(factor * trained))


def from_gguf(meta: Mapping[str, Any], where: str, *, tied: bool, vocab_size: int, biased: bool, o_biased: bool = False) -> ModelConfig:
    """Build from GGUF metadata. Facts that GGUF only has in its tensors are passed in: a tied head, biases, the
    vocabulary."""
    arch = str(meta.get("general.architecture", "?"))
    if arch not in FAMILIES:
        raise ModelLoadError(f"{where}: architecture {arch!r:.60} is not supported; supported: {', '.join(FAMILIES)}")
    claims, words = Claims(meta, where, f"{arch}."), Claims(meta, where, "tokenizer.ggml.")
    heads, hidden, layers = claims.whole("attention.head_count", HEADS), claims.whole("embedding_length", WIDTH), claims.whole("block_count", LAYERS)
    ends = [words.token(key, vocab_size) for key in ("eos_token_id", "eot_token_id", "eom_token_id")] + [*words.tokens("eos_token_ids", vocab_size)]
    return made(
        where,
        architecture=arch,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=claims.whole("attention.head_count_kv", HEADS, heads),
        head_dim=claims.whole("attention.key_length", WIDTH, hidden // heads),
        hidden_size=hidden,
        intermediate_size=claims.whole("feed_forward_length", WIDTH),
        vocab_size=vocab_size,
        max_context=claims.whole("context_length", CONTEXT),
        rope_theta=claims.number("rope.freq_base", _SMALLEST_THETA, _LARGEST_THETA, 10000.0),
        rope_scaling=_gguf_scaling(claims, where),
        norm_eps=claims.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        tie_embeddings=tied,
        qkv_bias=biased,
        o_bias=o_biased,
        qk_norm=arch == "qwen3",
        sliding_window=claims.whole("attention.sliding_window", CONTEXT) if claims.raw("attention.sliding_window", 0) else None,
        nope_layers=tuple(range(_NOPE_STEP - 1, layers, _NOPE_STEP)) if arch == "smollm3" else (),
        eos_token_ids=tuple(dict.fromkeys(e for e in ends if e is not None)),
        bos_token_id=words.token("bos_token_id", vocab_size),
    )


def _gguf_scaling(claims: Claims, where: str) -> RopeScaling | None:
    kind = claims.raw("rope.scaling.type", "none")
    if kind == "none":
        return None  # llama3 scaling comes as the tensor rope_freqs.weight
    if kind == "linear":
        return RopeScaling("linear", claims.number("rope.scaling.factor", *_FACTOR))
    if kind == "yarn":
        factor = claims.number("rope.scaling.factor", *_FACTOR)
        trained = claims.whole("rope.scaling.original_context_length", CONTEXT, claims.whole("context_length", CONTEXT))
        magnitude = _yarn_scale(factor) * claims.number("rope.scaling.attn_factor", *_FACTOR, 1.0)
        fast, slow = (claims.number(f"rope.scaling.yarn_beta_{name}", *_FACTOR, default) for name, default in (("fast", 32.0), ("slow", 1.0)))
        return RopeScaling("yarn", factor, original_max_position=trained, magnitude=magnitude, beta_fast=fast, beta_slow=slow)
    raise ModelLoadError(f"{where}: rope scaling {kind!r:.60} is not supported; supported: linear, llama3, yarn")
