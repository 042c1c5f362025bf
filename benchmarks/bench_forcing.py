"""Greedy answers with and without forced tokens on a real model: what they save, and whether the answers are the same.

    python -m benchmarks.bench_forcing                       # 300 answers in six forms on the small model, minutes
    python -m benchmarks.bench_forcing --n 24 --json out.json
    python -m benchmarks.bench_forcing --canonical           # answers held to canonical tokens beside answers held to legal ones

A forced token is one that the canonical encoding of every legal text has at its place, so texts should agree but where
the model alone would have cut a fixed text into other tokens. NLL: how unlikely the model finds its own answer, in nat
a token, prompt and constraint as given; a forced token is scored as any other.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bench_programs import where
from lmc.backend.local import LocalBackend
from lmc.backend.local_model import Engine
from lmc.segments import Constraint, Gen, SamplingParams, Text

CHARACTER = (
    r'\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n    "occupation": "(student|teacher|auror|minister)",\n'
    r'    "wand": \{\n        "wood": "[\w\d\s]{1,16}",\n        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n'
    r'    "alive": "(Alive|Deceased)",\n    "patronus": "[\w\d\s]{1,16}"\n\}'
)


@dataclass(frozen=True)
class Form:
    """A question about a topic, the form of its answer, and worked examples: a model that is shown no form does not
    know it, and then a constraint decides more than the model does."""

    wording: str
    regex: str
    examples: tuple[tuple[str, str], ...]  # (topic, answer)
    legal: str = ""  # the words that the form allows, said in the prompt unless it is to be left untold

    def prompt(self, topic: str, shots: int, *, untold: bool = False) -> str:
        legal = "" if untold else self.legal
        asked = [f"{self.wording.format(topic)}{legal}\nAnswer:\n{answer}\n\n" for topic, answer in self.examples[:shots]]
        return "".join(asked) + f"{self.wording.format(topic)}{legal}\nAnswer:\n"


def _character(name: str, house: str, blood: str, work: str, wood: str, length: str, alive: str, patronus: str) -> str:
    return (
        f'{{\n    "name": "{name}",\n    "house": "{house}",\n    "blood status": "{blood}",\n    "occupation": "{work}",\n'
        f'    "wand": {{\n        "wood": "{wood}",\n        "length": {length}\n    }},\n    "alive": "{alive}",\n'
        f'    "patronus": "{patronus}"\n}}'
    )


FORMS: dict[str, Form] = {
    "character": Form(
        "Invent a wizard who loves {}.",
        CHARACTER,
        (
            ("apples", _character("Anna Apple", "Hufflepuff", "Half-blood", "student", "Apple", "10.5", "Alive", "Hedgehog")),
            ("war", _character("Otto Grim", "Slytherin", "Pure-blood", "minister", "Yew", "13.0", "Deceased", "Wolf")),
            ("books", _character("Mary Page", "Ravenclaw", "Muggle-born", "teacher", "Willow", "9.25", "Alive", "Owl")),
        ),
        " Houses: Gryffindor, Slytherin, Ravenclaw, Hufflepuff. Blood: Pure-blood, Half-blood, Muggle-born. "
        "Occupations: student, teacher, auror, minister.",
    ),
    "tool": Form(
        "Look up {} with a tool, or finish.",
        r'\{"tool": "(search|finish)", "arguments": \{"query": "[\w ]{1,30}"\}\}',
        (
            ("apples", '{"tool": "search", "arguments": {"query": "kinds of apples"}}'),
            ("nothing", '{"tool": "finish", "arguments": {"query": "none"}}'),
            ("books", '{"tool": "search", "arguments": {"query": "history of books"}}'),
        ),
    ),
    "judge": Form(
        "Judge an essay on {} in one sentence, then grade it.",
        r'\{"summary": "[\w ]{1,60}\.", "grade": "[ABCD][+-]?"\}',
        (
            ("apples", '{"summary": "The essay is clear but short.", "grade": "B+"}'),
            ("war", '{"summary": "The essay repeats old claims without evidence.", "grade": "D"}'),
            ("books", '{"summary": "A warm and well argued essay.", "grade": "A"}'),
        ),
    ),
    "order": Form(
        "Write an order for {}.",
        r'\{"order(Id|Name)": "\w{1,12}", "status": "(open|closed|cancelled)", "items": [1-9][0-9]{0,2}\}',
        (
            ("apples", '{"orderName": "apples", "status": "open", "items": 12}'),
            ("number 77", '{"orderId": "77", "status": "closed", "items": 1}'),
            ("books", '{"orderName": "books", "status": "cancelled", "items": 3}'),
        ),
    ),
    "answer": Form(
        "Is {} good for you?",
        r"(Yes|No), because [\w ,]{5,60}\.",
        (
            ("an apple", "Yes, because it has many vitamins."),
            ("war", "No, because people suffer and die."),
            ("reading", "Yes, because it keeps the mind awake."),
        ),
    ),
    "list": Form(
        "Name three things about {}.",
        r"1\. [\w ]{3,24}\n2\. [\w ]{3,24}\n3\. [\w ]{3,24}\n",
        (
            ("apples", "1. They grow on trees\n2. They are round\n3. Many are red\n"),
            ("war", "1. It destroys cities\n2. It costs lives\n3. It must end\n"),
            ("books", "1. They have pages\n2. They tell stories\n3. They last long\n"),
        ),
    ),
}
THINGS = (
    "tea chess rain bread music snow honey football gardens maps bicycles poetry coffee bridges stars clocks paper rivers "
    "cats mathematics silk lemons trains glass mushrooms gold whales letters salt violins apples windmills castles books "
    "ice deserts lamps onions carpets islands kites owls soup ships forests mirrors candles wool cinemas libraries"
).split()


@dataclass(frozen=True)
class Answer:
    """One greedy answer."""

    text: str
    tokens: tuple[int, ...]
    nll: float  # nat, of the whole answer
    forced: int
    passes: int


@dataclass(frozen=True)
class Row:
    """One form, over all its topics."""

    form: str
    answers: int
    tokens: int
    forced_share: float
    passes_per_token: float  # with forced tokens; 1 without
    same_text: float
    same_tokens: float
    nll: float  # nat a token, with forced tokens
    nll_difference: float  # nat a token, with minus without


@dataclass(frozen=True)
class Ask:
    """One prompt and the form of its answer."""

    form: str
    prompt: str
    regex: str


def questions(n: int, shots: int, *, untold: bool = False) -> list[Ask]:
    """`n` different asks, the forms in turn, each after `shots` examples; `untold`: without naming the legal words."""
    forms = list(FORMS.items())
    found: list[Ask] = []
    for i in range(n):
        name, form = forms[i % len(forms)]
        again, at = divmod(i // len(forms), len(THINGS))
        thing = THINGS[at] if not again else f"{THINGS[at]} and {THINGS[-again]}"
        found.append(Ask(name, form.prompt(thing, shots, untold=untold), form.regex))
    return found


LONGEST = 160  # tokens: no answer is longer


def answers(engine: LocalBackend, asked: Sequence[Ask], longest: int = LONGEST) -> list[Answer]:
    """The engine's greedy answers, each complete or cut at `longest` tokens."""
    handles = []
    for ask in asked:
        params = SamplingParams(max_new_tokens=longest, temperature=0.0, return_logprob=True)
        handles.append(engine.submit(None, [Text((ask.prompt,)), Gen(params, Constraint("regex", ask.regex))]))
    found: list[Answer] = []
    for handle, ask in zip(handles, asked, strict=True):
        out = handle.results[0].output()
        scored = out.metas[0]["output_token_logprobs"]
        if out.metas[0]["finish_reason"]["type"] == "stop" and not re.fullmatch(ask.regex, out.text, re.ASCII):
            raise AssertionError(f"{out.text!r} is outside of its regex")
        nll = -sum(lp for lp, _, _ in scored)
        found.append(Answer(out.text, tuple(t for _, t, _ in scored), nll, out.usage.forced_tokens, out.usage.passes))
    return found


def compare(form: str, forced: Sequence[Answer], sampled: Sequence[Answer]) -> Row:
    pairs = list(zip(forced, sampled, strict=True))
    tokens = sum(len(a.tokens) for a in forced)
    nll = sum(a.nll for a in forced) / tokens
    return Row(
        form,
        len(pairs),
        tokens,
        sum(a.forced for a in forced) / tokens,
        sum(a.passes for a in forced) / tokens,
        sum(a.text == b.text for a, b in pairs) / len(pairs),
        sum(a.tokens == b.tokens for a, b in pairs) / len(pairs),
        nll,
        nll - sum(b.nll for b in sampled) / sum(len(b.tokens) for b in sampled),
    )


def bench(n: int, model: str = "smollm2", *, shots: int = 3, untold: bool = False, show: bool = False, longest: int = LONGEST) -> list[Row]:
    """One row per form, and one of all."""
    asked = questions(n, shots, untold=untold)
    both: list[list[Answer]] = []
    for forced in (True, False):
        with Engine(model, forced=forced) as engine:
            both.append(answers(engine, asked, longest))
    if show:
        for ask, a, b in zip(asked, *both, strict=True):
            if a.text != b.text:
                print(f"differs: {ask.prompt.splitlines()[-2]}\n  forced  {a.text!r} ({a.nll:.2f})\n  sampled {b.text!r} ({b.nll:.2f})")
    rows = []
    for form in [*FORMS, "all"]:
        at = [i for i, ask in enumerate(asked) if form in (ask.form, "all")]
        if at:
            rows.append(compare(form, *([answered[i] for i in at] for answered in both)))
    return rows


@dataclass(frozen=True)
class Canonical:
    """Answers with or without `Engine(canonical=…)`: over the forms, and over tasks that have one right answer."""

    canonical: bool
    shots: int
    answers: int
    canonical_share: float  # of the answers, those that are the tokenizer's own encoding of their text
    nll: float  # nat a token
    nll_character: float  # nat a character
    forced_share: float
    right: float  # of the tasks


CAPITALS = ("France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Egypt Cairo, Russia Moscow, Germany Berlin, Austria Vienna, Norway Oslo, Cuba Havana, Kenya "
            "Nairobi, Greece Athens")
NAMES = "Christopher Abernathy Montgomery Wilhelmina Bartholomew Konstantin Oyelaran Szymborska Featherstone Guadalupe Hieronymus Marguerite"


def tasks(shots: int) -> list[tuple[Ask, str]]:
    """Questions with the answer that is right."""
    pairs = [tuple(pair.split()) for pair in CAPITALS.split(", ")]
    towns = "|".join(town for _, town in pairs)
    found: list[tuple[Ask, str]] = []
    for i, (land, town) in enumerate(pairs):
        shown = "".join(f'Capital of {a}:\n{{"capital": "{b}"}}\n\n' for a, b in (pairs[(i + n + 1) % len(pairs)] for n in range(shots)))
        found.append((Ask("capital", f"{shown}Capital of {land}:\n", rf'\{{"capital": "({towns})"\}}'), f'{{"capital": "{town}"}}'))
    names = NAMES.split()
    for i, name in enumerate(names):
        shown = "".join(f'The guest is {a}, room {n}.\n{{"guest": "{a}"}}\n\n' for n, a in ((n, names[(i + n) % len(names)]) for n in range(1, shots + 1)))
        found.append((Ask("guest", f"{shown}The guest is {name}, room 7.\n", r'\{"guest": "\w{2,16}"\}'), f'{{"guest": "{name}"}}'))
    return found


def bench_canonical(n: int, model: str, shots: int) -> list[Canonical]:
    asked, known = questions(n, shots, untold=not shots), tasks(shots)
    rows: list[Canonical] = []
    for canonical in (True, False):
        with Engine(model, canonical=canonical) as engine:
            words = engine._words
            found = answers(engine, asked)
            tokens, characters = sum(len(a.tokens) for a in found), sum(len(a.text) for a in found)
            own = sum(tuple(words.encode((a.text,), at_start=False)) == a.tokens for a in found)
            nll = sum(a.nll for a in found)
            right = sum(a.text == text for a, (_, text) in zip(answers(engine, [ask for ask, _ in known]), known, strict=True))
            forced = sum(a.forced for a in found) / tokens
            rows.append(Canonical(canonical, shots, n, own / n, nll / tokens, nll / characters, forced, right / len(known)))
    return rows


def canonical_table(rows: Sequence[Canonical]) -> str:
    lines = [f"{'examples':>8} {'canonical':>10} {'own encoding':>13} {'nat/token':>10} {'nat/char':>9} {'forced':>7} {'tasks right':>12}"]
    lines += [
        f"{r.shots:8} {'on' if r.canonical else 'off':>10} {r.canonical_share:13.0%} {r.nll:10.4f} {r.nll_character:9.4f} {r.forced_share:7.1%} {r.right:12.0%}"
        for r in rows
    ]
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'form':10} {'n':>4} {'tokens':>7} {'forced':>7} {'passes/token':>13} {'same text':>10} {'same tokens':>12} {'NLL':>7} {'difference':>11}"]
    lines += [
        f"{r.form:10} {r.answers:4} {r.tokens:7} {r.forced_share:7.1%} {r.passes_per_token:13.3f} {r.same_text:10.1%} "
        f"{r.same_tokens:12.1%} {r.nll:7.4f} {r.nll_difference:+11.4f}"
        for r in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="answers")
    parser.add_argument("--model", default="smollm2", help="smollm2, or a model's path")
    parser.add_argument("--shots", type=int, default=3, help="worked examples in each prompt, 0 to 3")
    parser.add_argument("--canonical", action="store_true", help="compare Engine(canonical=True) and False, after 0, 1 and 3 examples")
    parser.add_argument("--untold", action="store_true", help="prompts do not name the words that a form allows")
    parser.add_argument("--show", action="store_true", help="print the answers that differ")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    about = where() | {"model": options.model, "shots": str(options.shots), "untold": str(options.untold)}
    print("  ".join(f"{k}: {v}" for k, v in about.items()))
    if options.canonical:
        print(canonical_table([row for shots in (0, 1, 3) for row in bench_canonical(options.n, options.model, shots)]))
        return 0
    rows = bench(options.n, options.model, shots=options.shots, untold=options.untold, show=options.show)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": [asdict(r) for r in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
