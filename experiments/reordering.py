"""An experiment on prompts whose arguments stand before constants: what moving those in front of the arguments shares (the paper's appendix D.2)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from random import Random
from typing import Any

import lmc
from benchmarks.workloads import Size, text
from experiments.core import SYNTHETIC, Opened, Plot, Point, Row, Setup, experiment, measured
from lmc.measuring import MeasuredMode, compiled, measure

TEMPLATES: Mapping[str, tuple[str, str]] = {
    "essay": ("You read essays.\n", "\nRate the style from 1 to 5.\nUse the whole scale.\nAnswer:"),
    "translation": ("Text:\n", "\nTranslate the text into Portuguese.\nKeep names, numbers and units as they are.\nPortuguese:"),
    "summary": ("", "\nSummarize the article in three sentences.\nWrite for readers without prior knowledge.\nSummary:"),
    "review": ("A customer wrote:\n", "\nClassify the mail as a complaint, a question or praise.\nAnswer with one word.\nClass:"),
    "code": ("You review code.\n```\n", "\n```\nList the mistakes.\nMistakes:"),
    "tickets": ("Ticket: ", "\nPriority is high if money is lost, else low.\nAnswer with the priority.\nPriority:"),
    "question": ("Passage:\n", "\nAnswer from the passage above only.\nIf it does not say, answer that it does not.\nAnswer:"),
    "extraction": ("You work for a clinic.\nNote:\n", "\nExtract all drugs with their doses.\nReturn one drug a line.\nDrugs:"),
}  # fmt: skip
"""The text before the argument, and behind it."""


def program(before: str, behind: str, tokens: int) -> Any:
    @lmc.function
    def ask(s, argument):
        s += before + argument + behind + lmc.gen("answer", max_tokens=tokens)

    return ask


@experiment(
    "reordering", "What does moving instructions in front of arguments share?", Plot("Prompt tokens that had to be computed", "template", "computed", "way"),
    reads="Eight templates with an argument before their instructions, as written and with `lmc.compile(fn, aggressive=True)`, which moves only what is "
          "clearly an instruction and "
    "does not refer to what is around it (docs/passes.md); a code fence, a reference, or a sentence that is no instruction keeps the rest where it is. It "
    "changes prompts: same is the "
    "share of answers that are those of the template as written. All but the times are counters.", paper="Appendix D.2", lacks=SYNTHETIC,
)  # fmt: skip
def reordering(setup: Setup) -> Generator[Point]:
    with closing(Opened(setup.engine)) as opened:
        for name, template in TEMPLATES.items():
            yield Point(name, lambda name=name, template=template: list(_moved(setup, opened(), name, template)))


def _moved(setup: Setup, engine: Any, name: str, template: tuple[str, str]) -> Iterator[Row]:
    ask, rng = program(*template, Size(setup.scale).tokens(32)), Random(setup.seed)
    items = [{"argument": text(rng, Size(setup.scale).words(200))} for _ in range(setup.count(32))]
    reference: list[MeasuredMode] = []
    for way, options in (("as written", {}), ("moved", {"aggressive": True})):
        found = measure(compiled(ask, **options), items, engine)
        reference, spent = reference or [found], found.counters
        yield {
            "template": name,
            "way": way,
            **measured([found], reference),
            "prompt": spent.prompt_tokens,
            "computed": spent.prefilled_tokens,
            "shared": 1 - spent.prefilled_tokens / spent.prompt_tokens,
        }
