"""The cost of `deterministic=True`: the same answers with and without it, in turns; on a CPU by processor seconds, which other processes change less than
wall time. Then how many of the answers have other log-probabilities in a batch than alone.

    python -m benchmarks.bench_deterministic [--model smollm2] [--batches 1,7,64] [--tokens 32] [--reps 3]
    python -m benchmarks.bench_deterministic --model DIR --load-format dummy --device cuda --words 800
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from itertools import cycle, islice
from statistics import median

import lmc
from lmc.segments import Gen, SamplingParams, Text

WORDS = "the river town has a mill that turns slowly and a bridge of grey stone where people meet on market days to talk about the weather "


def seconds(engine, batch: int, tokens: int, words: int, turn: int) -> tuple[float, float]:
    """Wall and processor seconds of so many answers together; `turn` makes their prompts new."""
    began, used = time.perf_counter(), time.process_time()
    gen = Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True))
    handles = [engine.submit(None, [Text((f"{turn} {i} {prompt(words)}",)), gen]) for i in range(batch)]
    for handle in handles:
        handle.results[0].output()
    return time.perf_counter() - began, time.process_time() - used


def prompt(words: int) -> str:
    return " ".join(islice(cycle(WORDS.split()), words))


def different(engine, tokens: int, words: int) -> dict[int, int]:
    """By batch: how many of 64 answers have other log-probabilities than alone."""
    gen = Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True, return_logprob=True))

    def told(batch: int) -> list[object]:
        engine.flush_cache()
        found: list[object] = []
        for first in range(0, 64, batch):
            handles = [engine.submit(None, [Text((f"{i} {prompt(words)}",)), gen]) for i in range(first, min(64, first + batch))]
            found += [handle.results[0].output().metas[0]["output_token_logprobs"] for handle in handles]
        return found

    alone = told(1)
    return {batch: sum(a != b for a, b in zip(told(batch), alone, strict=True)) for batch in (7, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--kv-dtype", choices=("fp8",))
    parser.add_argument("--words", type=int, default=len(WORDS.split()), help="of a prompt")
    parser.add_argument("--batches", default="1,7,64")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    options = {"device": args.device, "load_format": args.load_format, "kv_dtype": args.kv_dtype, "max_tokens": 64 * (2 * args.words + args.tokens + 128)}
    engines = {fixed: lmc.Engine(args.model, **options, deterministic=fixed) for fixed in (False, True)}
    print(f"{args.model}, {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    print("| batch | without: s, CPU s | deterministic: s, CPU s | ratio |\n|---|---|---|---|")
    turn = 0
    for batch in map(int, args.batches.split(",")):
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(args.reps):
            turn += 1
            for fixed, engine in engines.items():
                found[fixed].append(seconds(engine, batch, args.tokens, args.words, turn))
        (wall, cpu), (wall_fixed, cpu_fixed) = (tuple(median(each) for each in zip(*found[fixed], strict=True)) for fixed in (False, True))
        ratio = cpu_fixed / cpu if args.device == "cpu" else wall_fixed / wall
        print(f"| {batch} | {wall:.3f}, {cpu:.2f} | {wall_fixed:.3f}, {cpu_fixed:.2f} | {ratio:.2f} × |", flush=True)
    print("of 64 answers, those with other log-probabilities than alone, by batch:")
    for fixed, engine in engines.items():
        print(f"{'deterministic' if fixed else 'without'}: {different(engine, args.tokens, args.words)}", flush=True)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
