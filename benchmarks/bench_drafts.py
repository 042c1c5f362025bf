"""Times programs with and without drafts on recorded answers, and counts passes and how much of what was drafted was drawn.

    python -m benchmarks.bench_drafts                                                        # SmolLM2 on a CPU, a few minutes
    python -m benchmarks.bench_drafts --model DIR --load-format dummy --device cuda          # the 8B shape, within a minute
    python -m benchmarks.bench_drafts --model own --reps 3                                   # what SmolLM2 itself says, not what was recorded

Each shape's programs run one after another, as for somebody who waits (`--batch N`: so many at once), in turns without and with drafts, on an
empty cache and without what earlier runs were answered (`--keep`: with it). *predicted* is the time without drafts if it had taken as many
passes as with them: the device's time in passes with rows of prompts, which drafts do not save, and the rest times the passes with drafts that have no prompts,
over those without drafts. What is above it is what rows of drafts, and passes that are waited for, cost; *device* is what the passes with drafts took,
so the rest of *on* is the host's. Answers are recorded text
(`recorded.py`), which the sampler's outcome is replaced by: on random weights, which repeat themselves, any draft would look perfect.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmc
from benchmarks.bench_programs import where
from benchmarks.recorded import SHAPES, Recorded, recorded
from lmc.backend.usage import Counters


@dataclass(frozen=True)
class Row:
    """One shape, all of its items: the repetition of median time, without drafts and with. prompt_passes, prompt_s: without drafts, passes with rows of
    prompts, and their time on the device. device_s: of all passes with drafts. runs: passes and seconds of each repetition with drafts."""

    shape: str
    items: int
    tokens: int
    off_passes: int
    passes: int
    drafted: int
    accepted: int
    prompt_passes: int
    prompt_s: float
    off_s: float
    s: float
    device_s: float
    runs: list[tuple[int, float]]
    equal: bool

    @property
    def predicted(self) -> float:
        """Return the seconds that as many passes take without drafts; those of prompts are as many and as long."""
        return self.prompt_s + (self.off_s - self.prompt_s) * (self.passes - self.prompt_passes) / (self.off_passes - self.prompt_passes)


@dataclass(frozen=True)
class Ran:
    seconds: float
    spent: Counters
    texts: tuple[str, ...]
    prompts: tuple[float, ...]  # seconds of passes with rows of prompts, and of drafts, if there are any


def run(shape: Recorded, engine: Any, batch: int, setting: Any, keep: bool) -> Ran:
    engine.drafts = setting
    engine.flush_cache()
    if not keep:
        engine.forget_drafts()
    texts: list[str] = []
    with lmc.trace(io.StringIO()) as recorded:
        before, began = engine.counters(), time.perf_counter()
        for i in range(0, len(shape.items), batch):
            states = shape.program.run_batch(list(shape.items[i : i + batch]), backend=engine, temperature=0)
            texts += [state.text() for state in states]
        seconds, spent = time.perf_counter() - began, engine.counters() - before
    return Ran(seconds, spent, tuple(texts), tuple(found.device for found in recorded.batches if found.prefill))


def bench(shape: Recorded, engine: Any, batch: int, setting: Any, reps: int, keep: bool, own: bool) -> Row:
    engine.replay(None if own else shape.answers().get)
    for warm in ("off", setting):
        run(Recorded(shape.name, shape.program, shape.items[:1]), engine, 1, warm, keep)
    found: dict[str, list[Ran]] = {"off": [], "on": []}
    for rep in range(reps):
        for which in ("off", "on") if rep % 2 == 0 else ("on", "off"):
            found[which].append(run(shape, engine, batch, "off" if which == "off" else setting, keep))
    off, on = (sorted(found[which], key=lambda ran: ran.seconds)[reps // 2] for which in ("off", "on"))
    return Row(
        shape.name,
        len(shape.items),
        on.spent.generated_tokens,
        off.spent.passes,
        on.spent.passes,
        on.spent.drafted_tokens,
        on.spent.accepted_tokens,
        len(off.prompts),
        sum(off.prompts),
        off.seconds,
        on.seconds,
        on.spent.device_seconds,
        [(ran.spent.passes, ran.seconds) for ran in found["on"]],
        all(ran.texts == off.texts for which in found.values() for ran in which),
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| shape | items | tokens | passes off | on | tokens a pass | drafted | accepted "
        "| off s | prompts s | on s | device s | speed-up | predicted s | passes and s of each | same texts |",
        "|---" * 16 + "|",
    ]
    for r in rows:
        runs = ", ".join(f"{passes} in {seconds:.3f}" for passes, seconds in r.runs)
        share = f"{r.accepted} ({r.accepted / r.drafted:.0%})" if r.drafted else "0"
        lines.append(
            f"| {r.shape} | {r.items} | {r.tokens} | {r.off_passes} | {r.passes} | {r.tokens / r.passes:.2f} | {r.drafted} | {share} | {r.off_s:.3f} | "
            f"{r.prompt_s:.3f} | {r.s:.3f} | {r.device_s:.3f} | {r.off_s / r.s:.2f} × | {r.predicted:.3f} | {runs} | {'yes' if r.equal else 'no'} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a model's path; own: SmolLM2 with its own answers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--quantization", choices=("fp8",), help="of the weights")
    parser.add_argument("--kv-dtype", choices=("fp8",), help="of the KV")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--drafts", default="auto", help="auto, or a number")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--items", type=int, help="of each shape (default: all)")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16384)
    parser.add_argument("--keep", action="store_true", help="drafts also come from earlier repetitions, whose answers are the same")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    own, setting = options.model == "own", options.drafts if options.drafts == "auto" else int(options.drafts)
    engine = lmc.Engine(
        "smollm2" if own else options.model,
        device=options.device,
        load_format=options.load_format,
        quantization=options.quantization,
        kv_dtype=options.kv_dtype,
        max_tokens=options.max_tokens,
    )
    rows: list[Row] = []
    with engine:
        for shape in recorded(options.shapes.split(",")):
            some = Recorded(shape.name, shape.program, shape.items[: options.items])
            print(f"{shape.name}: {len(some.items)} items …", file=sys.stderr, flush=True)
            rows.append(bench(some, engine, options.batch, setting, options.reps, options.keep, own))
    shown = {"model": options.model, "device": options.device, "weights": options.quantization or "own", "kv": options.kv_dtype or "own"}
    info = {**where(), **shown, "drafts": str(setting), "batch": str(options.batch), "reps": str(options.reps)}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({**info, "rows": [{**asdict(r), "predicted": r.predicted} for r in rows]}, indent=1) + "\n")
    return 0 if all(r.equal for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
