"""Experiments on models behind an API: calls and tokens that look-ahead saves."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import lmc
from experiments.core import Plot, Point, Row, Setup, experiment, measured
from lmc.measuring import MeasuredMode, compiled, interpreted, measure

FIELDS = ("name", "author", "year", "genre", "language", "publisher")


@lmc.function
def card(s: Any, title: str) -> dict[str, str]:
    """Several gens with constant text between them, as in the paper's example of speculative execution."""
    s += f"A library card.\n\nTitle: {title}\n"
    for field in FIELDS:
        s += f"{field.capitalize()}:" + lmc.gen(field, stop="\n", max_tokens=24) + "\n"
    return {field: s[field].strip() for field in FIELDS}


ANSWERS = {"name": " The Wood", "author": " A. Writer", "year": " 1927", "genre": " novel", "language": " English", "publisher": " Harbour"}


@experiment(
    "look-ahead", "How many calls does an API take for a chain of answers with constant text between them?", Plot("Calls an item", "way", "requests/item"),
    reads="Six fields, one after another, against a stand-in of a completions server that answers with the whole card when it is let. accuracy: cards with "
          "all fields as they are. All but the times, "
    "which are the stand-in's, are counters.",
    paper="Section 3: API speculative execution (GPT-4 example)", on_device=False,
)  # fmt: skip
def look_ahead(setup: Setup) -> Generator[Point]:
    yield Point("card", lambda: list(_cards(setup)))


def _cards(setup: Setup) -> Iterator[Row]:
    from experiments.stand_in import completions_server

    whole = "".join(f"{field.capitalize()}:{ANSWERS[field]}\n" for field in FIELDS)
    lock, items = threading.Lock(), [{"title": f"The Wood, volume {i}"} for i in range(setup.count(20))]

    def answer(prompt: str) -> str:
        with lock:
            done = prompt.rsplit("\n\n", 1)[1].partition("\n")[2]
            return whole[len(done):]

    reference: list[MeasuredMode] = []
    with completions_server(answer) as url:
        for name, way in (("interpreted", interpreted(card)), ("compiled", compiled(card))):
            with closing(lmc.OpenAI("stand-in", is_chat_model=False, base_url=url, api_key="none")) as backend:
                found = measure(way, items, backend)
            spent, right = found.counters, repr({f: ANSWERS[f].strip() for f in FIELDS})
            yield {"way": name, **measured([found], reference := reference or [found]), "requests": spent.calls, "requests/item": spent.calls / len(items),
                "prompt tokens": spent.prompt_tokens,
                   "generated": spent.generated_tokens, "accuracy": sum(value == right for _, value in found.texts) / len(items)}  # fmt: skip
