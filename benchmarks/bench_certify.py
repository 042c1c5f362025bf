"""Certifies an engine with fewer bits against the same model as it is: on tickets, where answers are stated, and on paragraphs, where they are not.

    python -m benchmarks.bench_certify --device cuda --dtype bfloat16                # SmolLM2: FP8 weights, then FP8 KV, then both
    python -m benchmarks.bench_certify --quantization int4 --items 64                # on a CPU
    python -m benchmarks.bench_certify --other-dtype float32 --dtype bfloat16        # what a change of numerics alone does
    python -m benchmarks.bench_certify --model DIR --device cuda --quantization fp8

Items of the first eight tasks are made-up tickets (`tickets.py`), whose answers are known: `right` are the shares of them that the model as it is, and
the other engine, give. Items of the others are paragraphs of the project's documents, where so small a model guesses. Greedy. What is compared, and the
bounds, are those of `lmc.certify`. Below `--target`, the gens that the certificate names are kept on the first engine (`lmc.Routed`), and the program
is certified again, until it is reached or no further gen differs; `on the other` are the requests and generated tokens that remain there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc
from benchmarks.bench_programs import where
from benchmarks.recorded import ROOT, TEXTS, paragraphs
from benchmarks.tickets import RIGHT, tickets
from lmc.backend.base import Backend
from lmc.backend.routed import Site
from lmc.certifying import Certificate

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


GUESSED = (choice, number, fields, branches, summary)
BITS: Sequence[dict[str, Any]] = ({"quantization": "fp8"}, {"kv_dtype": "fp8"}, {"quantization": "fp8", "kv_dtype": "fp8"})


@dataclass(frozen=True)
class Task:
    """A program and its items; `right` are their answers, where these are known."""

    program: Any
    items: Sequence[Mapping[str, str]]
    right: Sequence[str] | None = None

    def accuracy(self, found: Certificate) -> str:
        """How many of each backend's answers are right."""
        if self.right is None:
            return "unknown"
        known = [repr(answer) for answer in self.right]
        return ", ".join(f"{sum(item.values[i] == answer for item, answer in zip(found.items, known, strict=True)) / len(known):.1%}" for i in range(2))


@dataclass(frozen=True)
class Kept:
    """The certificate with `sites` kept on the first engine. `calls`, `tokens`: of all, what the other still answers."""

    sites: Sequence[Site]
    found: Certificate
    calls: float
    tokens: float


def kept(task: Task, found: Certificate, plain: Backend, other: Backend, target: float) -> Kept | None:
    """Keep the sites that certificates name on `plain`, until the target is reached or they name no further one; None if nothing is to be kept."""
    sites, last = list[Site](), None
    while found.values.equal < target * len(found.items) and (more := [site for site in found.sites if site not in sites]):
        sites += more
        before = plain.counters(), other.counters()
        found = lmc.certify(task.program, task.items, plain, lmc.Routed(other, dict.fromkeys(sites, plain)), temperature=0)
        theirs = other.counters() - before[1]
        both = theirs + (plain.counters() - before[0])  # two runs of the program, of which `plain` has done one
        last = Kept(tuple(sites), found, 2 * theirs.calls / both.calls, 2 * theirs.generated_tokens / max(1, both.generated_tokens))
    return last


def tasks(most: int) -> list[Task]:
    asked = tickets(most)
    stated = [Task(program, [{"text": t.text} for t in asked], [answer.format(**t.facts) for t in asked]) for program, answer in RIGHT.items()]
    files: list[Path] = [*sorted(TEXTS.glob("*.txt")), *sorted((ROOT / "docs").glob("*.md"))]
    texts = [{"text": text} for path in files for text in paragraphs(path, 150, 900)]
    return stated + [Task(program, texts[:most]) for program in GUESSED]


def show(name: str, task: Task, found: Certificate, other: str, seconds: float) -> None:
    shares = f"{task.accuracy(found)} | {found.values} | {found.paths} | {found.texts} | {found.common:.0%}"
    print(f"| {name} | {shares} | {other} | {seconds:.1f} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="of both (default: the engine's)")
    parser.add_argument("--quantization", choices=("fp8", "int4"), help="only this, and --kv-dtype (default: fp8, each and both)")
    parser.add_argument("--kv-dtype", choices=("fp8",))
    parser.add_argument("--other-dtype", help="of the second engine")
    parser.add_argument("--items", type=int, default=400, help="of each task, at most")
    parser.add_argument("--tasks", help="names, separated by commas (default: all)")
    parser.add_argument("--target", type=float, default=0.97, help="share of equal values below which gens are kept on the first engine (0: never)")
    options = parser.parse_args(argv)
    given = {name: value for name in ("quantization", "kv_dtype") if (value := getattr(options, name)) is not None}
    if options.other_dtype is not None:
        given["dtype"] = options.other_dtype
    common = {"device": options.device, "dtype": options.dtype, "max_tokens": 65536}
    print("  ".join(f"{k}: {v}" for k, v in {**where(), "model": options.model, "device": options.device, "dtype": options.dtype}.items()), flush=True)
    chosen = [task for task in tasks(options.items) if options.tasks is None or task.program.name in options.tasks.split(",")]
    with lmc.Engine(options.model, **common) as plain:
        for bits in [given] if given else BITS:
            with lmc.Engine(options.model, **{**common, **bits}) as other:
                print("\n" + " ".join(f"{name}={value}" for name, value in bits.items()))
                print("| task | right | values equal | paths | texts | common beginning | on the other | s |\n|---|---|---|---|---|---|---|---|", flush=True)
                for task in chosen:
                    began = time.perf_counter()
                    found = lmc.certify(task.program, task.items, plain, other, temperature=0)
                    show(task.program.name, task, found, "all", time.perf_counter() - began)
                    began = time.perf_counter()
                    if (more := kept(task, found, plain, other, options.target)) is not None:
                        names = ", ".join(site.name for site in more.sites)
                        share = f"{more.calls:.0%} of requests, {more.tokens:.0%} of tokens"
                        show(f"{task.program.name}, {names} kept", task, more.found, share, time.perf_counter() - began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
