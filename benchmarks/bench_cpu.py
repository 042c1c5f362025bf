"""Compares lmc with transformers' own `generate` on the small model on a CPU: decoding at batch 1 and 8, and prefill.

    python -m benchmarks.bench_cpu                     # the table, about four minutes on two cores
    python -m benchmarks.bench_cpu --reps 7 --json out.json
    python -m benchmarks.bench_cpu --llama-cpp other/bin/python --threads 1     # beside llama.cpp on the same file

Both run the same weights (the GGUF, dequantized; transformers gets them as its own LlamaForCausalLM in float32), the
same prompts and lengths, greedily, one after the other within each repetition. "lmc model" is our model under a bare
loop, "lmc engine" the whole backend (scheduler, radix tree, sampler), also with matrices packed in 4 bits, as the file has
them. A speed counts only if every token of ours is within 0.1 logit of the reference's best by teacher forcing (but for 4
bits, whose texts may be others); otherwise the exit code is 1.

llama.cpp runs in the process of another interpreter, which has llama-cpp-python or xllamacpp; one sequence at a time. On a busy machine
compare tokens per second of CPU time, of one thread: llama.cpp's threads spin while they wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from lmc.backend.engine.attention.base import ForwardBatch, Span
from lmc.backend.engine.models import gguf, gguf_model, loader
from lmc.backend.engine.models.loader import LoadedModel, load

Ids = list[int]
Generate = Callable[[Sequence[Ids], int], list[Ids]]  # (prompts of one length, new tokens) → new tokens of each
System = tuple[Generate, Callable[[], float]]  # and a clock of the CPU time that it has taken


@dataclass(frozen=True)
class Case:
    """`batch` prompts of `prompt` tokens, `new` tokens each. Prefill cases ask for one token and count prompts."""

    name: str
    batch: int
    prompt: int
    new: int

    @property
    def tokens(self) -> int:
        return self.batch * (self.prompt if self.new == 1 else self.new)


CASES = (Case("decode, batch 1", 1, 32, 48), Case("decode, batch 8", 8, 32, 48), Case("prefill, 512 tokens", 1, 512, 1))


@dataclass(frozen=True)
class Row:
    """Tokens per second over all repetitions. `ratio` is the median against transformers'."""

    case: str
    system: str
    median: float
    low: float
    high: float
    ratio: float
    per_cpu: float  # tokens per second of CPU time, the median


# -- the systems -------------------------------------------------------------------------------------------------------


def reference_model() -> Any:
    """transformers' LlamaForCausalLM over our dequantized weights, float32 (its own GGUF loader takes half a minute)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    file = gguf.read(gguf.embedded_path())
    c = gguf_model.config_of(file)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads,
            num_key_value_heads=c.num_kv_heads,
            max_position_embeddings=c.max_context,
            rms_norm_eps=c.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            tie_word_embeddings=True,
        )
    ).eval()
    model.load_state_dict(gguf_model.state_of(file, c), strict=False)
    model.tie_weights()
    return model


def transformers_generate(model: Any) -> Generate:
    def generate(prompts: Sequence[Ids], new: int) -> list[Ids]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        return out[:, ids.shape[1] :].tolist()

    return generate


class _KV:
    """Slots for every token of the run, [layers, slots, heads, dim]."""

    def __init__(self, loaded: LoadedModel, slots: int) -> None:
        c = loaded.config
        self.keys, self.values = torch.zeros(2, c.num_layers, slots, c.num_kv_heads, c.head_dim, dtype=loaded.dtype)

    def key(self, layer: int) -> torch.Tensor:
        return self.keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self.values[layer]

    def pair(self, layer: int) -> None: ...


def bare_loop(loaded: LoadedModel) -> Generate:
    """One prefill pass, then one decode pass per token."""

    def generate(prompts: Sequence[Ids], new: int) -> list[Ids]:
        count, length = len(prompts), len(prompts[0])
        room = length + new
        kv = _KV(loaded, count * room)
        slots = torch.arange(count * room).view(count, room)
        spans = tuple(Span(i * length, length, slots[i, :length]) for i in range(count))
        flat = ForwardBatch(
            torch.tensor(prompts).flatten(),
            torch.arange(length).repeat(count),
            slots[:, :length].flatten(),
            spans,
            torch.arange(1, count + 1) * length - 1,
        )
        token = loaded.model.forward(flat, kv).argmax(-1)
        found = [token]
        for at in range(length, room - 1):
            spans = tuple(Span(i, 1, slots[i, : at + 1]) for i in range(count))
            step = ForwardBatch(token, torch.full((count,), at), slots[:, at], spans, torch.arange(count))
            token = loaded.model.forward(step, kv).argmax(-1)
            found.append(token)
        return torch.stack(found, 1).tolist()

    return generate


def engine(loaded: LoadedModel, **options: Any) -> Generate:
    """The whole backend, by text (the prompts' own tokens)."""
    import lmc
    from lmc.segments import Gen, SamplingParams, Text

    backend = lmc.Engine(loader.EMBEDDED, **options)

    def generate(prompts: Sequence[Ids], new: int) -> list[Ids]:
        backend.flush_cache()
        ask = Gen(SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True))
        texts = [loaded.tokenizer.decode(p) for p in prompts]
        handles = [backend.submit(None, [Text((text,)), ask]) for text in texts]
        for handle in handles:
            handle.results[0].output()
        return []

    return generate


_LLAMA_CPP = """
import json, sys, time
path, threads = sys.argv[1], int(sys.argv[2])
try:
    import llama_cpp
except ImportError:
    import xllamacpp as llama_cpp
    params = llama_cpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = path, 2048, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = llama_cpp.Server(params)

    def answer(ids, new):
        server.handle_completions({"prompt": ids, "max_tokens": new, "temperature": 0, "ignore_eos": True, "cache_prompt": False})
else:
    model = llama_cpp.Llama(model_path=path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def answer(ids, new):
        for made, _ in enumerate(model.generate(ids, top_k=1, temp=0.0, repeat_penalty=1.0), 1):
            if made == new:
                break
print(llama_cpp.__version__, flush=True)
for line in sys.stdin:
    answer(*json.loads(line))
    print(time.process_time(), flush=True)
"""


class LlamaCpp:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, threads: int) -> None:
        command = [python, "-c", _LLAMA_CPP, str(gguf.embedded_path()), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._line().strip()
        self.cpu = 0.0

    def generate(self, prompts: Sequence[Ids], new: int) -> list[Ids]:
        for ids in prompts:
            assert self._process.stdin is not None
            print(json.dumps([list(ids), new]), file=self._process.stdin, flush=True)
            self.cpu = float(self._line())
        return []

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"llama.cpp's process ended with {self._process.wait()}")
        return line

    def close(self) -> None:
        self._process.communicate()


# -- measuring ---------------------------------------------------------------------------------------------------------


def prompts_of(case: Case, loaded: LoadedModel, seed: int) -> list[Ids]:
    """Fresh English-like text of exactly `case.prompt` tokens each, which decoding and encoding leave as it is."""
    import random

    from benchmarks.workloads import WORDS

    rng, found = random.Random(seed), []
    while len(found) < case.batch:
        text = " ".join(rng.choice(WORDS) for _ in range(2 * case.prompt))
        ids = loaded.tokenizer.encode([text])[: case.prompt]
        if loaded.tokenizer.encode([loaded.tokenizer.decode(ids)]) == ids:
            found.append(ids)
    return found


def worst_margin(model: Any, prompts: Sequence[Ids], answers: Sequence[Ids]) -> float:
    """How far, in logits, a token of ours lies below the reference's best, teacher-forced."""
    worst = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        ours = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        worst = max(worst, float((logits.max(1).values - ours).max()))
    return worst


def read_bandwidth() -> float:
    """GB/s of reading memory, best of five sums over half a gigabyte."""
    data = torch.ones(1 << 27)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return data.nbytes / best / 1e9


def bench(case: Case, systems: dict[str, System], loaded: LoadedModel, reps: int, seed: int) -> list[Row]:
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for rep in range(-1, reps):  # the first is a warm-up
        prompts = prompts_of(case, loaded, seed + rep)
        for name, (generate, cpu) in systems.items():
            start, spent = time.perf_counter(), cpu()
            generate(prompts, case.new)
            seconds, spent = time.perf_counter() - start, cpu() - spent
            if rep >= 0:
                speeds[name].append((case.tokens / seconds, case.tokens / spent))
    base = statistics.median(speed for speed, _ in speeds["transformers"])
    return [_row(case, name, found, base) for name, found in speeds.items()]


def _row(case: Case, system: str, found: list[tuple[float, float]], base: float) -> Row:
    speeds, per_cpu = zip(*found, strict=True)
    middle = statistics.median(speeds)
    return Row(case.name, system, middle, min(speeds), max(speeds), middle / base, statistics.median(per_cpu))


def where() -> dict[str, str]:
    """Return the machine and versions that the figures belong to."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
        "commit": git.stdout.strip() or "unknown",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5, help="timed repetitions, each with fresh text (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as data, too")
    parser.add_argument("--threads", type=int, help="torch's and llama.cpp's threads")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python or xllamacpp, to measure it, too")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    about = where()
    start = time.perf_counter()
    loaded = load(loader.EMBEDDED)
    seconds = time.perf_counter() - start
    print(*(f"{k:9}{v}" for k, v in about.items()), sep="\n")
    print(f"{'load':9}{seconds:.2f} s; matrices {loaded.weights}")
    judge = reference_model()
    ours = {
        "transformers": transformers_generate(judge),
        "lmc model": bare_loop(loaded),
        "lmc engine": engine(loaded),
        "lmc, int4": engine(loaded, quantization="int4"),
    }
    systems: dict[str, System] = {name: (generate, time.process_time) for name, generate in ours.items()}
    peer = LlamaCpp(options.llama_cpp, torch.get_num_threads()) if options.llama_cpp else None
    if peer is not None:
        systems["llama.cpp"] = peer.generate, lambda: peer.cpu
        print(f"{'llama.cpp':9} {peer.version}")
    prompts = prompts_of(CASES[1], loaded, options.seed)
    margin = worst_margin(judge, prompts, bare_loop(loaded)(prompts, CASES[1].new))
    print(f"{'margin':9}worst token {margin:.3f} logits below the reference's best (at most 0.1)")
    bandwidth, parameters = read_bandwidth(), sum(p.numel() for p in judge.parameters())
    limits = {name: bandwidth * 1e9 / parameters / size for name, size in (("float32", 4), ("float16", 2))}
    shown = ", ".join(f"{name} {limit:.0f} tokens/s" for name, limit in limits.items())
    print(f"{'limit':9}at batch 1, reading the weights once a token at {bandwidth:.1f} GB/s: {shown}\n")
    print(f"{'case':22}{'system':14}{'tokens/s':>9}  {'range':>15}{'ratio':>8}{'per CPU s':>11}")
    rows: list[Row] = []
    for case in CASES:
        found = bench(case, systems, loaded, options.reps, options.seed)
        rows += found
        for row in found:
            span = f"{row.low:.1f}–{row.high:.1f}"
            print(f"{row.case:22}{row.system:14}{row.median:9.1f}  {span:>15}{row.ratio:7.2f}×{row.per_cpu:11.1f}", flush=True)
    if peer is not None:
        peer.close()
    if options.json:
        data = {**about, "load_s": seconds, "margin": margin, "limits": limits, "rows": [asdict(r) for r in rows]}
        options.json.write_text(json.dumps(data, indent=2))
    return 0 if margin <= 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
