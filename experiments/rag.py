"""An experiment on DSPy: a pipeline that retrieves and answers, over HTTP, in this process, and with answers that always parse."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from experiments.core import Plot, Point, Row, Setup, experiment

PASSAGES = (
    "The harbour of Aldery was dug in 1874. It holds forty ships, and is closed from December to March because of the ice.",
    "Aldery's lighthouse stands on the northern pier. It is 31 metres high, and its light is seen for 22 kilometres.",
    "The ferry to Norhavn leaves Aldery at seven in the morning and at four in the afternoon. The crossing takes ninety minutes.",
    "In Aldery the market is held on Wednesdays and Saturdays on the square before the town hall, from six until noon.",
    "The town hall of Aldery was built of red sandstone in 1902, after a fire had destroyed the one before it.",
    "Bicycles are taken on the ferry to Norhavn for three crowns. Dogs travel free of charge if they are on a lead.",
)
QUESTIONS = (
    "When was the harbour of Aldery dug?", "How high is the lighthouse?", "When does the ferry leave in the afternoon?", "On which days is the market held?",
    "What was the town hall built of?", "What does it cost to take a bicycle on the ferry?", "How long does the crossing to Norhavn take?", "Why is the harbour closed in winter?",
)  # fmt: skip
WAYS = ("http", "engine", "template")


@experiment(
    "dspy-rag", "What does DSPy gain on lmc's runtime?", Plot("Seconds", "way", "seconds"),
    reads="Retrieval by words, then ChainOfThought over three passages, eight threads. http: DSPy's own client and adapter against `lmc serve`; engine: lmc.dspy.LM; template: with "
    "lmc.dspy.Adapter. unparsed: answers that DSPy could not read.", paper="Section 6.1: DSPy RAG pipeline",
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
            return self.answer(context=retrieve(question), question=question)

    questions = QUESTIONS[: setup.count(len(QUESTIONS))]
    with closing(setup.engine()) as engine, served(engine) as url:
        for way in WAYS:
            lm = dspy.LM("openai/model", api_base=url, api_key="none", cache=False, temperature=0, max_tokens=64) if way == "http" else lmc.dspy.LM(
                engine, cache=False, temperature=0, max_tokens=64)
            unparsed = Unparsed()
            dspy.configure(lm=lm, adapter=lmc.dspy.Adapter() if way == "template" else None, callbacks=[unparsed])
            engine.flush_cache()
            before, began = engine.counters(), time.perf_counter()
            module = Rag()
            found, failed, _ = dspy.Parallel(num_threads=8, max_errors=len(questions), return_failed_examples=True, provide_traceback=False, disable_progress_bar=True)(
                [(module, {"question": question}) for question in questions])
            seconds, spent = time.perf_counter() - began, engine.counters() - before
            yield {"way": way, "n": len(questions), "seconds": seconds, "requests": spent.calls, "unparsed": len(unparsed.found), "failed": len(failed), "prompt": spent.prompt_tokens,
                   "computed": spent.prefilled_tokens, "generated": spent.generated_tokens, "passes": spent.passes, "answers": sum(one is not None for one in found)}  # fmt: skip


def retrieve(question: str, k: int = 3) -> list[str]:
    """The passages that share most words with a question."""
    words = set(question.lower().strip("?").split())
    return sorted(list[str](PASSAGES), key=lambda passage: -len(words & set(passage.lower().replace(".", "").replace(",", "").split())))[:k]
