"""docs/results.md, from what experiments have written: the figures, and which of the paper's are repeated."""

from __future__ import annotations

from pathlib import Path

from experiments.core import ALL, EXPERIMENTS, Experiment, Found, missing, table

ROOT = Path(__file__).parent.parent
FOUND, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "results.md"
MOST_ROWS = 60
"""Of a table on the page; all of them are in the JSON file."""

PAPER = (
    ("Figure 4: compressed finite state machines", "forced-tokens", "on a GPU the effect is in `docs/performance.md`"),
    ("Figure 5: throughput on Llama-7B", "throughput", "the shapes of its workloads with synthetic text, not its data sets; beside SGLang and vLLM by `--peer`"),
    ("Figure 6: latency", "latency", ""),
    ("Figure 7: larger models on several GPUs", "scaling", "needs several GPUs"),
    ("Table 2: LLaVA on images and video", "pictures", "needs a vision model; video is not part of it"),
    ("Section 6.2: production traffic of Chatbot Arena", "", "its traces are not public; `arrivals` has synthetic ones"),
    ("Figure 8a, 8b: hit rate against throughput and first token", "hit-rate", ""),
    ("Figure 8c: ablations of RadixAttention and of the frontend", "ablations", ""),
    ("Section 6.3: overhead of RadixAttention where nothing is shared", "radix-overhead", ""),
    ("Section 6.3: the automaton is built once for a batch", "automata-reuse", ""),
    ("Theorem 3.1, Section 6.3: cache hits against the optimum", "order", ""),
    ("Section 3, 6.1: API speculative execution", "look-ahead", "on a stand-in of a server: calls and tokens, not money"),
    ("Section 6.1: MMLU, HellaSwag, GSM-8K", "quality", "needs the data sets in a folder (`--data`)"),
    ("Section 6.1: DSPy RAG pipeline", "dspy-rag", "needs the extra `dspy`"),
    ("Appendix D.2: moving arguments behind constants", "", "`lmc.compile(fn, aggressive=True)`; counted in [passes](passes.md)"),
)  # fmt: skip
"""What the paper measures, the experiment that repeats it, and in what it differs."""


def report(folder: Path = FOUND) -> str:
    """The page."""
    found = {name: Found.of(folder / f"{name}.json") for name in EXPERIMENTS if (folder / f"{name}.json").is_file()}
    parts = [
        "# Results\n\nMade by `python -m experiments --report` from the files in `docs/results/`, which the experiments have written. Each experiment is one command "
        "([experiments](../experiments/README.md)); figures of other machines, and of GPUs, are in [performance](performance.md).\n",
        "## The paper's figures\n\nSGLang: Efficient Execution of Structured Language Model Programs (arXiv 2312.07104).\n\n| figure | command | repeated |\n|---|---|---|",
        *(_paper(*row, found) for row in PAPER), "",
    ]  # fmt: skip
    for name, experiment in EXPERIMENTS.items():
        parts.append(section(experiment, found.get(name)))
    return "\n".join(parts).rstrip() + "\n"


def _paper(figure: str, name: str, differs: str, found: dict[str, Found]) -> str:
    here = found.get(name)
    if not name:
        state = "not"
    elif here is None or not here.rows:
        state = "not here"
    else:
        state = "partly" if differs or here.unmeasured else "yes"
    return f"| {figure} | {f'`python -m experiments {name}`' if name else ''} | {state}{': ' + differs if differs else ''} |"


def section(experiment: Experiment, found: Found | None) -> str:
    """An experiment: its question, its figures, what was not measured."""
    head = f"## {experiment.name}\n\n{experiment.question} `python -m experiments {experiment.name}`\n\n{experiment.reads}\n"
    if found is None:
        return head + "\nNot measured yet.\n"
    about = found.info | {"backend": found.setup["backend"], "scale": found.setup["scale"], "items": found.setup["n"] or "all", "repetitions": found.setup["reps"]}
    names, lines = table(found.all()[:MOST_ROWS])
    rows = "\n".join(f"| {' | '.join(value.replace('|', chr(92) + '|') for value in line)} |" for line in lines)
    figures = f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}\n{rows}\n" if lines else ""
    more = f"\n{len(found.all()) - MOST_ROWS} more rows in `docs/results/{experiment.name}.json`.\n" if len(found.all()) > MOST_ROWS else ""
    absent = "\nNot measured:\n\n" + "\n".join(f"* {line}" for line in missing(experiment, found) or [ALL]) + "\n"
    return head + "\n" + "; ".join(f"{key}: {value}" for key, value in about.items()) + "\n" + figures + more + absent
