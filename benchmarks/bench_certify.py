"""Certifies an engine with fewer bits against the same model as it is, on tasks that return choices, numbers, short fields and free text.

    python -m benchmarks.bench_certify --device cuda                                 # SmolLM2: bfloat16 and FP8 weights, then FP8 KV, then both
    python -m benchmarks.bench_certify --quantization int4 --items 64                # on a CPU
    python -m benchmarks.bench_certify --model DIR --device cuda --quantization fp8

Items are paragraphs of the project's documents; greedy. What is compared, and the bounds, are those of `lmc.certify`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmc
from benchmarks.bench_programs import where
from benchmarks.recorded import ROOT, TEXTS, paragraphs

SUBJECTS = ["speed", "memory", "files", "tests", "models", "languages", "people", "money"]


@lmc.function
def choice(s, text):
    s += "Text: " + text + "\nThe text is mostly about" + lmc.select("subject", choices=[f" {word}" for word in SUBJECTS])
    return s["subject"]


@lmc.function
def number(s, text):
    s += "Text: " + text + "\nOn a scale from 0 to 100, this text is as hard to read as " + lmc.gen("hard", max_tokens=4, regex="[0-9]{1,2}")
    return s["hard"]


@lmc.function
def fields(s, text):
    s += "Text: " + text + "\nIts data as JSON: "
    s += lmc.gen("json", max_tokens=40, regex=r'\{"kind": "(manual|story|speech|report)", "first word": "[A-Za-z]{1,12}", "formal": (true|false)\}')
    return s["json"]


@lmc.function
def branches(s, text):
    s += "Text: " + text + "\nIs it about computers?" + lmc.select("technical", choices=[" yes", " no"])
    if s["technical"] == " yes":
        s += "\nIts most important word is" + lmc.gen("word", max_tokens=4, stop="\n")
        return s["word"]
    return "other"


@lmc.function
def summary(s, text):
    s += "Text: " + text + "\nIn one sentence:" + lmc.gen("summary", max_tokens=32)


TASKS = {"choice": choice, "number": number, "fields": fields, "branches": branches, "summary": summary}
BITS: Sequence[dict[str, Any]] = ({"quantization": "fp8"}, {"kv_dtype": "fp8"}, {"quantization": "fp8", "kv_dtype": "fp8"})


def items(most: int | None) -> list[dict[str, str]]:
    files: list[Path] = [*sorted(TEXTS.glob("*.txt")), *sorted((ROOT / "docs").glob("*.md"))]
    return [{"text": text} for path in files for text in paragraphs(path, 150, 900)][:most]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="of both (default: the engine's)")
    parser.add_argument("--quantization", choices=("fp8", "int4"), help="only this, and --kv-dtype (default: fp8, each and both)")
    parser.add_argument("--kv-dtype", choices=("fp8",))
    parser.add_argument("--items", type=int, help="at most (default: all)")
    options = parser.parse_args(argv)
    given = {name: value for name in ("quantization", "kv_dtype") if (value := getattr(options, name)) is not None}
    texts, common = items(options.items), {"device": options.device, "dtype": options.dtype, "max_tokens": 65536}
    print("  ".join(f"{k}: {v}" for k, v in {**where(), "model": options.model, "device": options.device, "items": len(texts)}.items()), flush=True)
    with lmc.Engine(options.model, **common) as plain:
        for bits in [given] if given else BITS:
            with lmc.Engine(options.model, **common, **bits) as other:
                print("\n" + " ".join(f"{name}={value}" for name, value in bits.items()))
                print("| task | values equal | paths | texts | common beginning | s |\n|---|---|---|---|---|---|", flush=True)
                for name, task in TASKS.items():
                    began = time.perf_counter()
                    found = lmc.certify(task, texts, plain, other, temperature=0)
                    seconds = time.perf_counter() - began
                    print(f"| {name} | {found.values} | {found.paths} | {found.texts} | {found.common:.0%} | {seconds:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
