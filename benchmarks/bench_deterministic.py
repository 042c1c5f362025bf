"""The cost of `deterministic=True`: the same answers with and without it, in turns; processor seconds, which other processes change less than wall time.

    python -m benchmarks.bench_deterministic [--model smollm2] [--batches 1,7,64] [--tokens 32] [--reps 3]
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from statistics import median

import lmc
from lmc.segments import Gen, SamplingParams, Text

WORDS = "the river town has a mill that turns slowly and a bridge of grey stone where people meet on market days to talk about the weather "


def seconds(engine, batch: int, tokens: int, turn: int) -> tuple[float, float]:
    """Wall and processor seconds of so many answers together; `turn` makes their prompts new."""
    began, used = time.perf_counter(), time.process_time()
    gen = Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True))
    handles = [engine.submit(None, [Text((f"{turn} {i} {WORDS}",)), gen]) for i in range(batch)]
    for handle in handles:
        handle.results[0].output()
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batches", default="1,7,64")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    engines = {fixed: lmc.Engine(args.model, device="cpu", max_tokens=16384, deterministic=fixed) for fixed in (False, True)}
    print(f"{args.model}, {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    print("| batch | without: s, CPU s | deterministic: s, CPU s | CPU time |\n|---|---|---|---|")
    turn = 0
    for batch in map(int, args.batches.split(",")):
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(args.reps):
            turn += 1
            for fixed, engine in engines.items():
                found[fixed].append(seconds(engine, batch, args.tokens, turn))
        (wall, cpu), (wall_fixed, cpu_fixed) = (tuple(median(each) for each in zip(*found[fixed], strict=True)) for fixed in (False, True))
        print(f"| {batch} | {wall:.2f}, {cpu:.2f} | {wall_fixed:.2f}, {cpu_fixed:.2f} | {cpu_fixed / cpu:.2f} × |", flush=True)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
