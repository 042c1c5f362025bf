"""`lmc.Engine`: the local backend with a model loaded into this process, by what its device and its memory allow."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from lmc.arguments import path as check_path
from lmc.backend.engine.drafts import Setting, check_setting
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.memory import all_or_nothing, closed, opened, room_for
from lmc.backend.engine.pace import Pace
from lmc.backend.engine.policy import Begin, Cache, Eviction, Policy, Schedule, host_size
from lmc.backend.engine.runner import Runner
from lmc.backend.local import LocalBackend, await_closed, check_numbers
from lmc.errors import ParameterError

if TYPE_CHECKING:
    import torch

    from lmc.backend.engine.distributed.start import Started
    from lmc.backend.engine.draft_model import DraftModel
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.models.loader import LoadedModel


def check_count(option: str, value: object) -> None:
    """Refuse an invalid number of devices or processes."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ParameterError(f"Engine: {option} is {value!r}; it must be a whole number from 1 on")


def check_adapters(given: object) -> Mapping[str, str]:
    """Return the adapters by name. Raises ParameterError for what is no mapping from names to paths."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(f"Engine: adapters is {given!r:.80}; it must map names to directories, as in {{'sql': 'path/to/adapter'}}")
    for name, path in given.items():
        if not (isinstance(name, str) and name and name.isprintable()) or not isinstance(path, str | os.PathLike):
            raise ParameterError(f"Engine: adapters has {name!r:.80}: {path!r:.80}; a name is text, and names a directory")
    return {name: os.fspath(path) for name, path in given.items()}


class Engine(LocalBackend):
    """lmc's own runtime in this process.

    model        a .gguf file, a directory with safetensors, a hub id, or "smollm2" (embedded)
    tp           tensor parallel: number of devices to shard the model over, from `device` on; a process each, besides
                 this one
    dp           replicas: number of engines, of `tp` devices each, run as processes behind one backend
                 (replicas/backend.py), which is then not a LocalBackend
    device       "cpu", "cuda", "cuda:1", …; "auto" is a GPU if there is one, else the CPU
    dtype        "float32", "bfloat16", "float16"; None: by the device
    quantization  "fp8": the matrices of the layers in FP8 (e4m3), each output with a scale of its own, and activations
                  quantized by row at run time: half of bfloat16's bytes, different answers. A GPU from Hopper on; on a
                  CPU for trying it out, slowly. "int4": those matrices packed in 4 bits, 32 weights by a scale and a
                  zero, and the head in 8, on a CPU: one answer at a time comes sooner, different answers. None: as the weights are
    kv_dtype     "fp8": KV in FP8 (e4m3), K and V of each token and head with a scale of their own: room for about twice as many tokens as in
                 bfloat16, half of its bytes to read, different answers. A GPU from Ada on; on a CPU for trying it out. None: as activations
    max_tokens   size of the KV pool in tokens; None: a part of the free memory
    max_batch    sequences that run together; None: 64 on a CPU, 512 on a GPU
    chunk        prompt tokens computed in one pass; None: 512 on a CPU, 4096 on a GPU, 2048 on one of less than 40 GiB
    pass_seconds  how long a pass may take, by what earlier ones took: it has no more prompt tokens than that allows. None: half a second on a
                 CPU; on a GPU as long as `chunk` takes it, and 50 ms while somebody reads an answer as it grows
    schedule     "program": runs of programs have memory as wholes, and keep what they will use again. To compare with: "lpm" (requests, by
                 their longest cached prefix), "fcfs", "random"
    cache        "tree": KV of all that prompts have in common is used again. To compare with: "table" (of whole earlier requests), "off"
    eviction     "next-use": what is known to be used next is evicted last. To compare with: "lru"
    admission    "cost": a run begins that does not fit beside the open ones, if what those that are away have to compute again for it costs less than
                 another run in flight gains. To compare with: "fit" (only those begin that fit)
    host_memory  bytes (an int, or "16GB", "8GiB") of the host's memory for KV that has to leave the device while a run is away, and that comes
                 back when it goes on, where that is faster than computing it again. It is allocated when it is needed. None: on a GPU at most as
                 much as it leaves free on the machine, on a CPU 0. Needs schedule="program", cache="tree" and one device (tp=1)
    seed         mixed into the seed of every sampling op
    parse_special  encode a special token's spelling in plain text as that token (unsafe with foreign text)
    seam         "token", or "text" to re-encode answers with the following text
    forced       False samples every token of a constrained answer, also those that its regex forces
    canonical    of the legal tokens of a constrained answer, sample those that the tokenizer itself may put after the
                 last one: True, False, or None to do so only if answers are followed on the CPU. A GPU does not follow
                 such answers by itself
    model_path   SGLang's name for `model`
    drafts       tokens that are run beside an answer's last one because they probably come next, and kept as far as they are what is drawn, so that
                 answers are the same: "auto" (as many as pay), a number (at most so many, always), "off" (docs/drafts.md). None: "auto" if
                 there is a draft_model, else "off"
    draft_model  a smaller model of the same vocabulary that guesses drafts where nothing that was said does; by any name that `model` takes
    deterministic  a token's logits have the same bits whatever other requests are in its passes, and however its prompt was cut and cached, on the same
                 machine with the same threads; slower (docs/determinism.md). On one device
    adapters     LoRA adapters in PEFT's format, by the name that `gen(adapter=…)` gives: directories (docs/adapters.md)
    load_format  "auto", or "dummy" for random weights with a directory's config and tokenizer, to measure with

    `close()`, or the end of `with`, gives back all that it has when it returns (docs/memory.md).

    Raises ModelLoadError if the model cannot be loaded, memory runs out or the device does not exist; ParameterError for an
    impossible number.
    """

    def __new__(cls, model: str = "smollm2", **options: Any) -> Self:
        """Create; with `dp` a backend of another class, with the interface of `Backend`, `topology`, and the needs of
        servers."""
        dp = options.pop("dp", 1)
        check_count("dp", dp)
        if dp == 1:
            return super().__new__(cls)
        from lmc.backend.replicas.start import start

        inspect.signature(cls.__init__).bind(None, model, **options)  # a wrong name is a TypeError here
        check_count("tp", options.get("tp", 1))
        return cast("Self", start(model, dp, {**options, "adapters": dict(check_adapters(options.get("adapters")))}))

    def __init__(
        self,
        model: str = "smollm2",
        *,
        device: str = "auto",
        dtype: str | None = None,
        quantization: Literal["fp8", "int4"] | None = None,
        kv_dtype: Literal["fp8"] | None = None,
        max_tokens: int | None = None,
        max_batch: int | None = None,
        chunk: int | None = None,
        seed: int = 0,
        parse_special: bool = False,
        seam: Literal["token", "text"] = "token",
        forced: bool = True,
        canonical: bool | None = None,
        model_path: str | None = None,
        load_format: Literal["auto", "dummy"] = "auto",
        pass_seconds: float | None = None,
        schedule: Schedule = "program",
        cache: Cache = "tree",
        eviction: Eviction = "next-use",
        admission: Begin = "cost",
        host_memory: int | str | None = None,
        drafts: Setting | None = None,
        draft_model: str | None = None,
        adapters: Mapping[str, str] | None = None,
        deterministic: bool = False,
        tp: int = 1,
        dp: int = 1,
    ) -> None:
        drafts = check_setting(("off" if draft_model is None else "auto") if drafts is None else drafts)
        if draft_model is not None and not (isinstance(draft_model, str | os.PathLike) and str(draft_model)):
            raise ParameterError(f"Engine: draft_model is {draft_model!r:.80}; it names a model, as the first argument does")
        adapters = check_adapters(adapters)
        if not isinstance(deterministic, bool):
            raise ParameterError(f"Engine: deterministic is {deterministic!r:.80}; it can be True or False")
        if adapters and deterministic:
            raise ParameterError("Engine: adapters with deterministic=True are not supported; leave one of them out")
        check_count("tp", tp)
        check_numbers(max_tokens=max_tokens, max_batch=max_batch, chunk=chunk, seed=seed)  # before seconds of loading
        if pass_seconds is not None and not 0 < pass_seconds < float("inf"):
            raise ParameterError(f"Engine: pass_seconds is {pass_seconds}; it must be a number of seconds above 0")
        policy = Policy(schedule, cache, eviction, admission)
        host_bytes = host_size(host_memory, policy)
        if host_bytes and tp > 1:
            raise ParameterError("Engine: host_memory is for one device; leave it out where tp is more than 1")
        check_path("model", model_path or model)
        source = str(model_path or model)
        options = {
            "dtype": dtype, "parse_special": parse_special, "load_format": load_format, "quantization": quantization, "kv_dtype": kv_dtype,
            "deterministic": deterministic,
        }  # fmt: skip
        await_closed()
        with all_or_nothing():
            parts = _parts(
                source, options, device=device, tp=tp, adapters=adapters, draft_model=draft_model and str(draft_model), max_tokens=max_tokens,
                max_batch=max_batch, chunk=chunk, pass_seconds=pass_seconds, forced=forced, canonical=canonical, host_bytes=host_bytes,
            )  # fmt: skip
        super().__init__(seed=seed, seam=seam, policy=policy, drafts=drafts, adapters=tuple(adapters), **parts.of_backend)
        self.whole_template = parts.loaded.whole_template
        self._kv_dtype = str(parts.loaded.kv_dtype).removeprefix("torch.")
        self._topology: tuple[str, ...] = ()
        opened(self, f"{parts.loaded.name} on {parts.loaded.device}")
        if parts.started is not None:
            self._topology = parts.started.topology
            parts.started.crew.watched_by(self._core.fail)

    def close(self) -> None:
        super().close()
        closed(self)

    @property
    def topology(self) -> tuple[str, ...]:
        """Return the placement, in lines for people; empty for an engine on one device."""
        return self._topology

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), "kv_dtype": self._kv_dtype, **({"topology": list(self._topology)} if self._topology else {})}

    def warm_up(self) -> None:
        """Wait until everything that later passes would use is compiled: on a GPU FlashInfer's kernels, once on a
        machine some two minutes.

        Without it the engine uses kernels of its own meanwhile, and adopts those when nothing runs.
        """
        self._core.warm_up()


class EngineParts(NamedTuple):
    """The parts of an engine that have memory of the model's size; of_backend: LocalBackend's parameters that are made of them."""

    loaded: LoadedModel
    started: Started | None  # several ranks
    of_backend: dict[str, Any]


def _parts(
    source: str, options: dict[str, Any], *, device: str, tp: int, adapters: Mapping[str, str], draft_model: str | None, max_tokens: int | None,
    max_batch: int | None, chunk: int | None, pass_seconds: float | None, forced: bool, canonical: bool | None, host_bytes: int | None,
) -> EngineParts:  # fmt: skip
    """Load the model and take memory for all else. Raises ModelLoadError if there is too little."""
    from lmc.backend.engine.automaton import ConstraintCompiler
    from lmc.backend.engine.kv_copy import KVMover
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.mask_prefetcher import MaskPrefetcher
    from lmc.backend.engine.memory import check_host, check_pool, default_pool
    from lmc.backend.engine.models.loader import load
    from lmc.fsm.sources import begun, machine_of
    from lmc.fsm.store import default_store

    check_host(host_bytes or 0)
    started = None
    with room_for(source, "its weights", device):
        small = None if draft_model is None else _load_small(draft_model, device, options, tp)
    options = {**options, "adapters": adapters}
    if tp > 1:
        from lmc.backend.engine.distributed.start import start

        with room_for(source, "its ranks", device):
            started = start(source, device, tp, options, max_tokens)
        loaded, pool, slots = started.loaded, started.pool, started.slots
    else:
        with room_for(source, "its weights", device):
            loaded = load(source, device=device, **options)
        slots = default_pool(loaded.device, loaded.kv_bytes) if max_tokens is None else max_tokens
        check_pool(slots, loaded.kv_bytes, loaded.device)
        with room_for(source, f"its KV pool of {slots} tokens", device, slots * loaded.kv_bytes):
            pool = KVPool.of(loaded.layers, slots, loaded.kv_dtype, str(loaded.device))
    if host_bytes is None and (tp > 1 or loaded.device.type != "cuda"):
        host_bytes = 0
    config, words = loaded.config, loaded.tokenizer
    of = [words.token_bytes(i) for i in range(words.vocab_size)], words.special_ids, _eos(loaded), config.vocab_size
    encode = (lambda text: words.encode((text,), at_start=False)) if forced else None
    host_follows = loaded.device.type == "cpu" if canonical is None else canonical
    batch, rows = _default_batch(loaded.device)
    eyes = None if loaded.vision is None else Eyes(loaded.vision)
    with room_for(source, "buffers and graphs of its passes", device):
        runner = _runner(loaded, pool, words.vocab_size, eyes, chunk or rows) if started is None else started.runner
        mover = None if host_bytes == 0 else KVMover(pool, host_bytes)
        guesses = None if small is None else _guesses(small, loaded, slots, chunk or rows)
    return EngineParts(loaded, started, {
        "name": loaded.name,
        "vocabulary": words,
        "chat_template": loaded.chat_template,
        "runner": runner,
        "compiler": ConstraintCompiler(
            *of,
            encode=encode,
            store=default_store(),
            # beside a GPU its turns at the interpreter might delay launches, which is not measured yet
            prefetcher=MaskPrefetcher() if loaded.device.type == "cpu" else None,
            canonical=lambda: words.canonical(config.vocab_size) if host_follows else None,
            first=begun if loaded.device.type == "cpu" else machine_of,  # a GPU follows whole automata by itself
        ),
        "max_tokens": slots,
        "max_context": config.max_context,
        "near_context": config.near_context,
        "embedded": config.vocab_size,
        "eyes": eyes,
        "max_batch": max_batch or batch,
        "chunk": chunk or rows,
        "pace": _pace(chunk or rows, pass_seconds, loaded.device),
        "mover": mover,
        "draft_row": _GPU_ROW if loaded.device.type == "cuda" else _CPU_ROW,
        "draft_model": guesses,
    })  # fmt: skip


def _runner(loaded: LoadedModel, pool: KVPool, vocab_size: int, eyes: Eyes | None, chunk: int) -> Runner:
    """Return the runner of passes of up to `chunk` rows: fused kernels and CUDA graphs on a GPU in half precision; torch's own operations elsewhere."""
    from lmc.backend.engine.model_runner import ModelRunner
    from lmc.backend.engine.models.llama import LlamaModel
    from lmc.backend.engine.sampler import Sampler

    if loaded.device.type == "cuda" and loaded.dtype.itemsize == 2 and isinstance(loaded.model, LlamaModel):
        import torch

        from lmc.backend.engine.cuda_runner import CudaRunner, buckets_of
        from lmc.backend.engine.device_automata import kernels

        with torch.cuda.device(loaded.device):  # kernels are launched, and graphs captured, on the current one
            runner = CudaRunner(loaded.model, pool, Sampler(vocab_size, kernels()), eyes, buckets=buckets_of(loaded.model, pool, chunk))
            runner.capture()
        return runner
    return ModelRunner(loaded.model, pool, Sampler(vocab_size), str(loaded.device), eyes)


def _load_small(source: str, device: str, options: Mapping[str, Any], tp: int) -> LoadedModel:
    """A draft model, where rank 0 is. It is loaded first, so that what the pool takes is what is left."""
    from lmc.backend.engine.models.loader import load

    if tp > 1:
        from lmc.backend.engine.distributed.start import devices_of

        device = devices_of(device, tp)[0]
    found = load(source, device=device, **{**options, "quantization": None, "kv_dtype": None, "deterministic": False})
    if found.vision is not None or found.config.near_context is not None:
        raise ParameterError(f"Engine: draft_model {found.name} is a vision model, or scales positions in long texts; take another one")
    return found


def _guesses(small: LoadedModel, loaded: LoadedModel, slots: int, chunk: int) -> DraftModel:
    from lmc.backend.engine.draft_model import DraftModel, check_vocabulary, slots_for
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.memory import check_pool
    from lmc.backend.engine.model_runner import ModelRunner
    from lmc.backend.engine.sampler import Sampler

    words = loaded.tokenizer
    check_vocabulary(loaded.name, words, small.name, small.tokenizer, small.config.vocab_size)
    room = slots_for(small, slots)
    check_pool(room, small.kv_bytes, small.device)
    runner = _runner(small, KVPool.of(small.layers, room, small.kv_dtype, str(small.device)), words.vocab_size, None, chunk)
    assert isinstance(runner, ModelRunner)
    return DraftModel(runner, Sampler(words.vocab_size), room, small.config.max_context, chunk)


def _eos(loaded: LoadedModel) -> int:
    from lmc.errors import ModelLoadError

    if not loaded.tokenizer.eos_token_ids:
        raise ModelLoadError(f"{loaded.name}: the model's files name no end-of-text token (eos_token_id)")
    return loaded.tokenizer.eos_token_ids[0]


_CPU_ROW, _GPU_ROW = 0.2, 0.005
"""Cost of a further row, relative to a pass with one, until passes have been measured (Costs)."""


_ROOMY = 40 << 30  # GPU memory from which on a larger pass's activations fit beside the pool


def _default_batch(device: torch.device) -> tuple[int, int]:
    """Return sequences that run together, and rows of a pass. Larger passes take a GPU less time for each row
    (docs/performance.md)."""
    if device.type != "cuda":
        return 64, 512
    import torch

    return 512, 4096 if torch.cuda.get_device_properties(device).total_memory >= _ROOMY else 2048


_CPU_PASS, _STREAMING = 0.5, 0.05  # seconds


def _pace(chunk: int, seconds: float | None, device: torch.device) -> Pace:
    if device.type == "cuda":
        return Pace(chunk, seconds, _STREAMING)
    return Pace(chunk, _CPU_PASS if seconds is None else seconds)
