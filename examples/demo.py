"""`make demo`: what lmc saves. A judge of essays on the small model: as a plain loop of one request after another, in lmc's interpreter,
compiled, and compiled on all texts at once. Prints the answers, what each way cost, and the plan; writes the plan as a page, demo.html."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmc
from examples.judge import DIMENSIONS, GRADE
from lmc.backend.usage import Counters

PAGE = Path("demo.html")
ESSAYS = Path(__file__).parent / "data" / "essays.jsonl"


# -- a judge, as one writes it --------------------------------------------------------------------------------------------------------------


@lmc.function
def judge(s: lmc.State, essay: str) -> str:
    s += lmc.system("You are a teacher who grades essays.")
    s += lmc.user("Text: " + essay + "\n\nIs this text an essay? Answer yes or no.")
    s += lmc.assistant(lmc.select("is_essay", choices=["yes", "no"]))
    if s["is_essay"] == "no":
        return "not an essay"

    judgements: list[str] = []
    for dimension in DIMENSIONS:
        (f,) = s.fork(1)
        f += lmc.user(f"Judge the {dimension} of the essay in one sentence.")
        f += lmc.assistant(f"The {dimension}" + lmc.gen("judgement", max_tokens=40, stop=[".", "\n"]))
        judgements.append(f"The {dimension} {f['judgement'].strip()}.")  # waits; compiled, the next two requests are under way already

    s += lmc.user("Judgements:\n" + "\n".join(judgements) + "\nNow grade the essay from A to D and say why.")
    s += lmc.assistant(lmc.gen("grade", regex=GRADE, max_tokens=48))
    return s["grade"]


# -- the same without lmc: messages go out, an answer comes back, and then the next request is made -----------------------------------------


@lmc.function
def complete(s: lmc.State, messages: list[str], answer: lmc.Expr) -> str:
    """One request, as a client of a chat API makes it: all messages each time."""
    for i, message in enumerate(messages):
        s += lmc.system(message) if i == 0 else lmc.user(message) if i % 2 else lmc.assistant(message)
    s += lmc.assistant(answer)
    return s.messages()[-1]["content"]


def plain(essay: str) -> str:
    def request(messages: list[str], answer: lmc.Expr) -> str:
        return complete.run(messages, answer, temperature=0).ret_value

    asked = ["You are a teacher who grades essays.", "Text: " + essay + "\n\nIs this text an essay? Answer yes or no."]
    is_essay = request(asked, lmc.select("answer", choices=["yes", "no"]))
    if is_essay == "no":
        return "not an essay"
    asked.append(is_essay)
    judgements: list[str] = []
    for dimension in DIMENSIONS:
        question = f"Judge the {dimension} of the essay in one sentence."
        judgements.append(request([*asked, question], f"The {dimension}" + lmc.gen("answer", max_tokens=40, stop=[".", "\n"])).strip() + ".")
    return request([*asked, "Judgements:\n" + "\n".join(judgements) + "\nNow grade the essay from A to D and say why."],
                   lmc.gen("answer", regex=GRADE, max_tokens=48))


# -- the comparison ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to run the program: what it answered, and what that cost."""

    name: str
    answers: list[str]
    seconds: float
    spent: Counters


def main() -> None:
    print("Loading SmolLM2-135M (the first time its weights are converted) …", flush=True)
    engine = lmc.Engine("smollm2")
    lmc.set_default_backend(engine)
    essays = [json.loads(line)["essay"] for line in ESSAYS.read_text("utf-8").splitlines()]
    items = [{"essay": essay} for essay in essays]
    program = lmc.compile(judge)
    program.dump_ir()  # traced and planned now, and not within the first run
    complete.run(["Hello."], lmc.gen("answer", max_tokens=1)).sync()  # the model's first pass is slow

    states: list[lmc.State[str]] = []

    def batch() -> list[str]:
        states.extend(program.batch(items, temperature=0))
        return [state.ret_value for state in states]

    print(f"Judging {len(essays)} texts, four times …", flush=True)
    ways = [
        measure("a plain loop", engine, lambda: [plain(essay) for essay in essays]),
        measure("interpreted", engine, lambda: [judge.run(essay, temperature=0).ret_value for essay in essays]),
        measure("compiled", engine, lambda: [program(essay, temperature=0).ret_value for essay in essays]),
        measure("compiled, batch", engine, batch),
    ]
    for essay, state in zip(essays, states):
        show(essay, state)
    compare(ways)
    print("\nThe plan:\n" + program.explain())
    PAGE.write_text(program.explain(format="html"), encoding="utf-8")
    print(f"\nThe same as a page for the browser: {PAGE}")
    engine.close()


def measure(name: str, engine: lmc.Engine, run: Callable[[], list[str]]) -> Way:
    """Run it with an empty cache."""
    engine.flush_cache()
    before, begin = engine.counters(), time.perf_counter()
    answers = run()
    return Way(name, answers, time.perf_counter() - begin, engine.counters() - before)


def show(essay: str, state: lmc.State[str]) -> None:
    print(f'\n"{essay[:72]} …"')
    print(f"  Is it an essay? {state['is_essay']}")
    question = next((m["content"] for m in state.messages() if m["content"].startswith("Judgements:")), "")
    for line in question.splitlines()[1:-1]:
        print(f"  {line}")
    print(f"  Answer: {state.ret_value}")


def compare(ways: list[Way]) -> None:
    print(f"\n{'':<16}{'seconds':>9}{'requests':>10}{'prompt tokens':>15}{'computed':>10}{'generated':>11}{'passes':>8}   same answers")
    for way in ways:
        spent, same = way.spent, "yes" if way.answers == ways[0].answers else "no"
        print(f"{way.name:<17}{way.seconds:>9.2f}{spent.calls:>10}{spent.prompt_tokens:>15}{spent.prefilled_tokens:>10}"
              f"{spent.generated_tokens:>11}{spent.passes:>8}   {same}")
    print("A pass is one execution of the model; requests that are under way at the same time share it.")


if __name__ == "__main__":
    main()
