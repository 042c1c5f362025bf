"""Experiments on DSPy: a pipeline that retrieves and answers, and optimizers on one: over HTTP, in this process, and with answers that always parse."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from statistics import median
from typing import Any

from experiments.core import ONE_PROGRAM, Plot, Point, Row, Setup, experiment
from lmc.measuring import Spread

PASSAGES: tuple[str, ...] = (
    "The harbour of Aldery was dug in 1874. It holds forty ships, and is closed from December to March because of the ice.",
    "Aldery's lighthouse stands on the northern pier. It is 31 metres high, and its light is seen for 22 kilometres.",
    "The ferry to Norhavn leaves Aldery at seven in the morning and at four in the afternoon. The crossing takes ninety minutes.",
    "In Aldery the market is held on Wednesdays and Saturdays on the square before the town hall, from six until noon.",
    "The town hall of Aldery was built of red sandstone in 1902, after a fire had destroyed the one before it.",
    "Bicycles are taken on the ferry to Norhavn for three crowns. Dogs travel free of charge if they are on a lead.",
)
QUESTIONS = (
    "When was the harbour of Aldery dug?", "How high is the lighthouse?", "When does the ferry leave in the afternoon?", "On which days is the market held?",
    "What was the town hall built of?", "What does it cost to take a bicycle on the ferry?", "How long does the crossing to Norhavn take?",
    "Why is the harbour closed in winter?",
)  # fmt: skip
ANSWERS = ("1874", "31 metres", "at four", "Wednesdays and Saturdays", "red sandstone", "three crowns", "ninety minutes", "because of the ice")
WAYS = ("http", "engine", "template")


@experiment(
    "dspy-rag", "What does DSPy gain on lmc's runtime?", Plot("Seconds", "way", "seconds"),
    reads="Retrieval by words, then ChainOfThought over three passages, eight threads. http: DSPy's own client and adapter against `lmc serve`; engine: "
          "lmc.dspy.LM; template: with "
    "lmc.dspy.Adapter. unparsed: answers that DSPy could not read; accuracy: the mean share of the expected answers' words, none of a failed one.",
    paper="Section 6.1: DSPy RAG pipeline",
    lacks={"percentiles to the first token": "DSPy's modules give whole answers"},
)  # fmt: skip
def dspy_rag(setup: Setup) -> Generator[Point]:
    yield Point("rag", lambda: list(_rag(setup)))


def _rag(setup: Setup) -> Iterator[Row]:
    import dspy  # pyright: ignore[reportMissingImports]

    import lmc
    from benchmarks.bench_dspy import Unparsed, served

    class Rag(dspy.Module):
        def __init__(self) -> None:
            self.answer: Any = dspy.ChainOfThought("context: list[str], question: str -> answer: str")

        def forward(self, question: str) -> Any:
            found = self.answer(context=retrieve(question), question=question)
            ended.append(time.perf_counter())
            return found

    ended = list[float]()
    questions = QUESTIONS[: setup.count(len(QUESTIONS))]
    with closing(setup.engine()) as engine, served(engine) as url:
        for way in WAYS:
            lm = dspy.LM("openai/model", api_base=url, api_key="none", cache=False, temperature=0, max_tokens=64) if way == "http" else lmc.dspy.LM(
                engine, cache=False, temperature=0, max_tokens=64)
            unparsed = Unparsed()
            dspy.configure(lm=lm, adapter=lmc.dspy.Adapter() if way == "template" else None, callbacks=[unparsed])
            engine.flush_cache()
            ended.clear()
            before, began = engine.counters(), time.perf_counter()
            module = Rag()
            found, failed, _ = dspy.Parallel(
                num_threads=8, max_errors=len(questions), return_failed_examples=True, provide_traceback=False, disable_progress_bar=True
            )([(module, {"question": question}) for question in questions])
            seconds, spent = time.perf_counter() - began, engine.counters() - before
            total = Spread.of([end - began for end in ended] or [seconds])
            score = sum(overlap(dspy.Example(answer=right), said) for right, said in zip(ANSWERS, found) if said is not None)
            yield {"way": way, "arrivals": "at once", "n": len(questions), "seconds": seconds, "total p50": total.p50, "total p95": total.p95,
                "total p99": total.p99,
                   "accuracy": score / len(questions), "requests": spent.calls, "unparsed": len(unparsed.found), "failed": len(failed),
                   "prompt": spent.prompt_tokens,
                   "computed": spent.prefilled_tokens, "generated": spent.generated_tokens, "passes": spent.passes,
                   "answers": sum(one is not None for one in found)}  # fmt: skip


THREADS = 8
"""Of optimizers, whose way may depend on which of them is first."""
OPTIMIZERS: Mapping[str, Callable[[Any], Any]] = {
    "BootstrapFewShot": lambda lm: _dspy().BootstrapFewShot(metric=overlap, max_bootstrapped_demos=2, max_labeled_demos=2),
    "MIPROv2": lambda lm: _dspy().MIPROv2(
        metric=overlap, prompt_model=lm, task_model=lm, auto=None, num_candidates=2, max_bootstrapped_demos=1, max_labeled_demos=1, num_threads=THREADS,
        init_temperature=0.5),
    "GEPA": lambda lm: _dspy().GEPA(metric=overlap, reflection_lm=lm, max_metric_calls=12, reflection_minibatch_size=2, num_threads=THREADS),
}  # fmt: skip
"""How each is made small enough for a model on a CPU."""
COMPILING: Mapping[str, Mapping[str, Any]] = {
    "MIPROv2": {"num_trials": 2, "minibatch": False, "program_aware_proposer": False, "data_aware_proposer": False, "tip_aware_proposer": False,
        "fewshot_aware_proposer": False},
}  # fmt: skip
LATENCY = 0.3
"""Seconds until an answer of the mock that stands for a model where there is no GPU."""
OPTIMIZED = ("http", "compiled", "compiled, template")


@experiment(
    "dspy-optimizers", "What do DSPy's optimizers take on top of a compiled module?",
    Plot("Prompt tokens that had to be computed", "optimizer", "computed", "way"),
    Plot("Seconds", "optimizer", "seconds", "way"),
    reads="BootstrapFewShot, MIPROv2 and GEPA on a module of three predictor calls (a note on each of two passages, then an answer), by DSPy's own code. "
          "http: plain DSPy, by LiteLLM "
    f"against `lmc serve`; compiled: `lmc.compile(module)` on lmc.dspy.LM, the same adapter; compiled, template: with lmc.dspy.Adapter. On a CPU the model is "
    f"lmc's mock, which keeps "
    f"to DSPy's format, takes {LATENCY} s for an answer, and counts prompt tokens as a radix cache would: computed are those that it did not hold; on a GPU "
    f"it is an engine. score: of the "
    "optimized module, the mean share of the expected answers' words. All but seconds and CPU seconds are counters.", on_device=False,
    lacks=dict.fromkeys(ONE_PROGRAM, "an optimizer is one run, and `seconds` is its whole time"),
)  # fmt: skip
def dspy_optimizers(setup: Setup) -> Generator[Point]:
    for name in OPTIMIZERS:
        for way in OPTIMIZED:
            yield Point(f"{name} {way}", lambda name=name, way=way: _optimized(setup, name, way))


def _optimized(setup: Setup, name: str, way: str) -> Row:
    dspy = _dspy()
    import lmc
    from benchmarks.bench_dspy import Unparsed, served

    class Notes(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.note: Any = dspy.Predict("passage, question -> note")
            self.answer: Any = dspy.Predict("notes: list[str], question -> answer")

        def forward(self, question: str) -> Any:
            notes: list[str] = []
            for passage in retrieve(question, 2):
                notes.append(self.note(passage=passage, question=question).note)
            return self.answer(notes=notes, question=question)

    count = setup.count(len(QUESTIONS))
    examples = [dspy.Example(question=question, answer=answer).with_inputs("question") for question, answer in zip(QUESTIONS[:count], ANSWERS)]
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    options: dict[str, Any] = {"cache": False, "temperature": 0, "max_tokens": 1000}
    with closing(setup.engine() if setup.device != "cpu" else lmc.Mock(formatted, latency=LATENCY)) as engine, served(engine) as url:
        lm = dspy.LM("openai/model", api_base=url, api_key="none", **options) if way == "http" else lmc.dspy.LM(engine, **options)
        unparsed = Unparsed()
        dspy.configure(lm=lm, adapter=lmc.dspy.Adapter() if way.endswith("template") else None, callbacks=[unparsed])
        module: Any = Notes() if way == "http" else lmc.compile(Notes())
        module(question=QUESTIONS[0])  # what is imported and compiled the first time is not the optimizer's
        data = {"trainset": examples, **({"valset": examples} if name != "BootstrapFewShot" else {}), **COMPILING.get(name, {})}
        times, spent, found, failed = list[tuple[float, float]](), engine.counters(), module, 0
        for _ in range(setup.reps):
            engine.flush_cache()
            unparsed.found.clear()
            before, began, cpu = engine.counters(), time.perf_counter(), time.process_time()
            found = OPTIMIZERS[name](lm).compile(module.deepcopy(), **data)
            times.append((time.perf_counter() - began, time.process_time() - cpu))
            spent, failed = engine.counters() - before, len(unparsed.found)
        score = dspy.Evaluate(devset=examples, metric=overlap, num_threads=8, display_progress=False, max_errors=count + 1)(found).score
    seconds = [wall for wall, _ in times]
    return {"optimizer": name, "way": way, "examples": count, "reps": setup.reps, "seconds": median(seconds), "least": min(seconds), "most": max(seconds),
            "cpu s": median(cpu for _, cpu in times), "requests": spent.calls, "unparsed": failed, "prompt": spent.prompt_tokens,
            "computed": spent.prefilled_tokens,
            "computed/request": spent.prefilled_tokens / spent.calls, "generated": spent.generated_tokens, "passes": spent.passes,
            "score": score / 100}  # fmt: skip


def formatted(prompt: str, ask: Any) -> str:
    """Answer as a model that keeps to DSPy's format: notes repeat their passage, answers their notes, and all else is a sentence that depends on the prompt."""
    given = dict(re.findall(r"\[\[ ## (\w+) ## \]\]\n(.*?)\n", prompt))
    other = f"Answer {zlib.crc32(prompt.encode()) % 1000} in few words."
    values = {"note": given.get("passage", ""), "answer": given.get("notes", "")}
    if pending := re.search(r"\[\[ ## (\w+) ## \]\]\n\Z", prompt):  # a template that is filled in field by field
        return values.get(pending[1], other)
    asked = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt.rpartition("Respond with the corresponding output fields")[2])
    if not asked:
        return f"```\n{other}\n```"
    return "".join(f"[[ ## {name} ## ]]\n{values.get(name, other)}\n\n" for name in asked if name != "completed") + "[[ ## completed ## ]]"


def _dspy() -> Any:
    import logging

    import dspy  # pyright: ignore[reportMissingImports]

    logging.getLogger("dspy").setLevel(logging.CRITICAL)
    return dspy


def overlap(gold: Any, said: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    """The share of an expected answer's words that were said."""
    words = set(gold.answer.lower().split())
    return len(words & set(str(said.answer).lower().replace(".", " ").replace(",", " ").split())) / len(words)


def retrieve(question: str, k: int = 3) -> list[str]:
    """The passages that share most words with a question."""
    words = set(question.lower().strip("?").split())
    return sorted(PASSAGES, key=lambda passage: -len(words & set(passage.lower().replace(".", "").replace(",", "").split())))[:k]
