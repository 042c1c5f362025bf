"""docs/results.md, from what experiments have written: the figures, and which of the paper's are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.core import ALL, EXPERIMENTS, Experiment, Found, Row, command, listed, missing, table

ROOT = Path(__file__).parent.parent
FOUND, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "results.md"
MOST_ROWS = 100
"""Of a table on the page; all of them are in the JSON file."""
FEWEST_ROWS = 4
"""Of a table whose columns may be left out because all rows agree."""
WIDE = {
    "ablations": (("without",), "workload", ("cpu times", "passes times", "computed", "same")),
    "order": (("workload", "pool", "unique"), "policy", ("seconds", "computed")),
    "run-ahead": (("program", "temperature"), "mode", ("seconds", "ahead used", "ahead wasted", "more tokens")),
    "reordering": (("template",), "way", ("seconds", "prompt", "computed", "shared", "same")),
    "quality": (("data",), "way", ("accuracy", "seconds", "items/s", "first p50", "total p95", "computed")),
}
"""Experiments whose rows stand side by side on the page: what a line has in common, the column that is spread, and what is shown of each."""

@dataclass(frozen=True)
class Figure:
    """A figure or an ablation of the paper, and what repeats it here.

    experiment  its name
    differs     in what it is another measurement, or why there is none
    without     of the ablations, the part that it leaves out
    policy      of `order`, the policy in place of lmc's
    """

    name: str
    experiment: str
    differs: str = ""
    without: str = ""
    policy: str = ""


PAPER = (
    Figure("Figure 4: compressed finite state machines decode several tokens at once", "forced-tokens"),
    Figure("Figure 5: throughput, Llama-7B", "throughput", "shapes of its workloads with synthetic text, not its data sets; its systems but SGLang and vLLM "
                                                           "are not run, and those on one H200 in "
           "[performance](performance.md#beside-sglang-and-vllm)"),
    Figure("Figure 6: latency, Llama-7B", "latency", "the same workloads; a loop is what it is compared with, other systems by `--peer`"),
    Figure("Figure 7: throughput with tensor parallelism, Mixtral-8x7B and Llama-70B", "scaling", "needs several GPUs"),
    Figure("Table 2: throughput on images and video, LLaVA", "pictures", "a LLaVA of three layers with random weights where the small model stands; video is "
                                                                         "not part of it"),
    Figure("Section 6.2: production traffic, Chatbot Arena", "arrivals",
        "its traces are not public: arrivals are synthetic, and say nothing of hit rates there"),
    Figure("Section 6.2: API models, GPT-3.5", "look-ahead", "a stand-in of a server: requests and tokens, not the model's quality"),
    Figure("Figure 8a: cache hit rate against first token and latency", "hit-rate"),
    Figure("Figure 8b: cache hit rate against throughput and batch size", "hit-rate", "throughput; batch sizes are not columns"),
    Figure("Figure 8c: no cache", "ablations", without="cache"),
    Figure("Figure 8c: no tree structure", "ablations", without="tree (a table instead)"),
    Figure("Figure 8c: FCFS schedule", "order", policy="schedule=fcfs"),
    Figure("Figure 8c: random schedule", "order", policy="schedule=random"),
    Figure("Figure 8c: no frontend parallelism", "ablations", without="parallelism (one after another)"),
    Figure("Figure 8c: no frontend hint", "ablations", without="pass plan-prefix"),
    Figure("Section 6.3: overhead of RadixAttention where nothing is shared", "radix-overhead"),
    Figure("Section 6.3: without the compressed finite state machine", "ablations", without="forced tokens"),
    Figure("Section 6.3: the automaton is built once for a batch", "automata-reuse"),
    Figure("Theorem 3.1, appendix: achieved hit rate against the optimum", "order"),
    Figure("Section 6.1: MMLU, HellaSwag, GSM-8K", "quality", "a part of each data set, which is read from a folder (`--data`); the interpreter is what it is "
                                                              "compared with"),
    Figure("Section 6.1: DSPy RAG pipeline", "dspy-rag", "retrieval by words, six passages"),
    Figure("Appendix A: data parallelism with a cache-aware router", "scaling", "needs several GPUs"),
    Figure("Appendix D.2: moving arguments behind constants", "reordering", "our templates, and fixed rules in place of a model that is asked"),
)  # fmt: skip
"""The figures of the paper, and the experiments that repeat them."""
OWN = ("run-ahead", "compiling (interpreted)", "drafts (off by themselves)")
"""Ablations of what the paper does not have."""
READING = Figure("ours: no run-ahead, on programs that read as they go", "run-ahead")


def report(folder: Path = FOUND) -> str:
    """The page."""
    found = {name: Found.of(folder / f"{name}.json") for name in EXPERIMENTS if (folder / f"{name}.json").is_file()}
    parts = [
        "# Results\n\nMade by `python -m experiments --report` from the files in `docs/results/`, which the experiments have written. Each experiment is one "
        "command "
        "([experiments](../experiments/README.md)); figures of other machines, and of GPUs, are in [performance](performance.md).\n",
        "## The paper's figures\n\nSGLang: Efficient Execution of Structured Language Model Programs (arXiv 2312.07104). *Reproduced*: its measurement, on "
        "the model and machine of the row's "
        "section, where tokens and shares are to compare and seconds are not; passes vary with what comes together on a busy machine, and small differences "
        "of them say nothing.\n\n| figure or ablation | experiment | reproduced / partly / not, because |\n|---|---|---|",
        *(_paper(figure, found.get(figure.experiment)) for figure in PAPER),
        *(_paper(Figure(f"ours: no {part}", "ablations", without=part), found.get("ablations")) for part in OWN), _paper(READING, found.get("run-ahead")), "",
    ]  # fmt: skip
    parts += [section(experiment, found.get(experiment.name)) for experiment in listed()]
    return "\n".join(parts).rstrip() + "\n"


def _paper(figure: Figure, found: Found | None) -> str:
    how = f"[{figure.experiment}](#{figure.experiment})"
    rows = [row for row in found.all() if not figure.without or row.get("without") == figure.without] if found else []
    reasons = [figure.differs] if figure.differs else []
    part = figure.without or figure.policy
    lacking = [key for key in found.unmeasured if key.endswith(f" {part}")] if found and part else []
    if lacking:
        reasons.append(f"not measured: {', '.join(lacking)}")
    elif found and rows and found.unmeasured and not part:
        reasons.append(f"{len(found.unmeasured)} of its points were not measured")
    if not any(row.get("policy") == figure.policy for row in rows) if figure.policy else not rows:
        return f"| {figure.name} | {how} | not, because: {'; '.join(reasons) or 'it has not run'} |"
    if not figure.differs and ((figure.without and not _matters(rows)) or (figure.policy and _recomputed(rows, figure.policy) <= 1.05)):
        reasons.append("at this size it makes no difference")
    state = "partly, because: " + "; ".join(reasons) if reasons else "measured" if figure.without in OWN or figure is READING else "reproduced"
    worth = _worth(rows) if figure.without else _ordered(rows, figure.policy) if figure.policy else _waits(rows) if figure is READING else ""
    return f"| {figure.name} | {how} | {state}{'. ' + worth if worth else ''} |"


def _recomputed(rows: list[Row], policy: str) -> float:
    """Prompt tokens that a policy computes, over those of lmc's own, of the workloads that both have."""
    computed = {(row["workload"], row["policy"]): row["computed"] for row in rows}
    both = [name for name, its in computed if its == policy and (name, "own") in computed]
    return sum(computed[name, policy] for name in both) / sum(computed[name, "own"] for name in both)


def _ordered(rows: list[Row], policy: str) -> str:
    """Return the worth of the engine's order, in a pool for about two programs."""
    count = sum(row["policy"] == policy for row in rows)
    return f"With it: {_recomputed(rows, policy):.2f} × prompt tokens computed ({count} workloads in a pool for two programs)"


def _over(rows: list[Row], name: str) -> float:
    """A counter without a part over the same with it, of all workloads together."""
    return sum(row[name] for row in rows) / sum(row[f"{name} with"] for row in rows)


def _matters(rows: list[Row]) -> bool:
    """Whether leaving a part out changes what is computed by more than chance: tokens are exact, passes vary."""
    return _over(rows, "computed") > 1.05 or _over(rows, "passes") > 1.5 or any(row["passes"] > 1.5 * row["passes with"] > 15 for row in rows)


def _worth(rows: list[Row]) -> str:
    """Return the worth of a part, over the workloads that were run without it."""
    times = median(row["cpu times"] for row in rows)
    return (f"Without it: {_over(rows, 'computed'):.2f} × prompt tokens computed, {_over(rows, 'passes'):.2f} × passes, {times:.2f} × CPU time ({len(rows)} "
            f"workloads)")


def _waits(rows: list[Row]) -> str:
    """Return the worth of run-ahead on programs of `run-ahead`, at temperature 0."""
    seconds = {(row["program"], row["mode"]): row["seconds"] for row in rows if row["temperature"] == "0"}
    times = [seconds[program, "off"] / of for (program, mode), of in seconds.items() if mode == "certain"]
    return f"Without it: {median(times):.2f} × the time, {min(times):.2f} to {max(times):.2f} ({len(times)} programs)"


def section(experiment: Experiment, found: Found | None) -> str:
    """An experiment: its question, its figures, what was not measured."""
    head = f"## {experiment.name}\n\n{experiment.question} `{command(experiment.name, found and found.setup)}`\n\n{experiment.reads}\n"
    if found is None:
        return head + "\nNot measured yet.\n"
    about = found.info | {
        "backend": found.setup["backend"],
        "scale": found.setup["scale"],
        "items": found.setup["n"] or "all",
        "repetitions": found.setup["reps"],
    }
    measured = side_by_side(found.all(), *WIDE[experiment.name]) if experiment.name in WIDE else found.all()
    names, lines, alike = condensed(*table(measured[:MOST_ROWS]))
    rows = "\n".join(f"| {' | '.join(value.replace('|', chr(92) + '|') for value in line)} |" for line in lines)
    figures = f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}\n{rows}\n" if lines else ""
    figures += f"\nIn all rows: {'; '.join(alike)}.\n" if alike else ""
    more = f"\n{len(measured) - MOST_ROWS} more rows in `docs/results/{experiment.name}.json`.\n" if len(measured) > MOST_ROWS else ""
    more += f"\nMore columns in `docs/results/{experiment.name}.json`.\n" if lines and experiment.name in WIDE else ""
    absent = "\nNot measured:\n\n" + "\n".join(f"* {line}" for line in missing(experiment, found) or [ALL]) + "\n"
    return head + "\n" + "; ".join(f"{key}: {value}" for key, value in about.items()) + "\n" + figures + more + absent


def side_by_side(rows: list[Row], common: Sequence[str], spread: str, shown: Sequence[str]) -> list[Row]:
    """Rows that have the `common` columns in common as one, with the `shown` columns of each."""
    lines: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        line = lines.setdefault(tuple(row.get(name) for name in common), {name: row.get(name) for name in common})
        line |= {f"{name}: {row[spread]}": row.get(name) for name in shown}
    return [{name: line[name] for name in sorted(line, key=lambda name: _order(name, common, shown))} for line in lines.values()]


def _order(name: str, common: Sequence[str], shown: Sequence[str]) -> int:
    """The place of a column: what rows have in common first, then each figure of all, beside each other."""
    return [*common, *shown].index(name if name in common else name.split(": ")[0])


def condensed(names: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]], list[str]]:
    """A table without the columns that say one thing in all rows, or the same as another, and what they said."""
    if len(lines) < FEWEST_ROWS:
        return names, lines, []
    columns = dict(zip(names, zip(*lines, strict=True), strict=True))
    kept: dict[tuple[str, ...], str] = {}
    alike: list[str] = []
    for name, column in columns.items():
        if kept and len(set(column)) == 1:
            alike.append(f"{name} {column[0]}")
        elif column in kept:
            alike.append(f"{name} as {kept[column]}")
        else:
            kept[column] = name
    return list(kept.values()), [list(line) for line in zip(*kept, strict=True)], alike
