"""`make demo`: the judge of judge.py, compiled, on the small model. Prints answers, what the plan saved, where the time
went; writes the plan as a page, out/demo.html."""

import json
import time
from pathlib import Path

import lmc
from examples.judge import judge
from lmc.backend.base import Counters

PAGE = Path("out/demo.html")
ESSAYS = Path(__file__).parent / "data" / "essays.jsonl"


def main() -> None:
    begin = time.perf_counter()
    print("Loading SmolLM2-135M (the first time its weights are converted) …", flush=True)
    engine = lmc.Engine("smollm2")
    loaded = time.perf_counter()

    essays = [json.loads(line) for line in ESSAYS.read_text().splitlines()]
    print(f"Judging {len(essays)} texts with examples/judge.py:judge, compiled …", flush=True)
    program = lmc.compile(judge, backend=engine)
    program.dump_ir()  # drawn and planned now, and not in the first run, to see how long that takes
    planned = time.perf_counter()
    states = program.batch(essays, progress=True, temperature=0)
    done = time.perf_counter()

    for essay, state in zip(essays, states):
        show(essay["essay"], state)
    spent = program.stats.counters
    print_savings(spent)
    print_times({"load the model": loaded - begin, "draw and plan the graph": planned - loaded, "run": done - planned}, spent.device_seconds)
    print("\nThe plan:\n" + program.explain())
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(program.explain(format="html"), encoding="utf-8")
    print(f"\nThe same as a page for the browser: {PAGE}")
    engine.close()


def show(essay: str, state: lmc.State) -> None:
    print(f'\n"{essay[:72]} …"')
    print(f"  Is it an essay? {state['is_essay']}")
    for line in judgements(state):
        print(f"  {line}")
    print(f"  Answer: {state.ret_value}")


def judgements(state: lmc.State) -> list[str]:
    """The three judgements, as the last question of the conversation repeats them."""
    question = next((m["content"] for m in state.messages() if m["content"].startswith("Judgements:")), "")
    return question.splitlines()[1:-1]


def print_savings(spent: Counters) -> None:
    asked, computed = spent.prompt_tokens, spent.prefilled_tokens
    print("\nWhat the plan saved")
    print(f"  calls to the model       {spent.calls}")
    print(f"  prompt tokens asked      {asked}")
    print(f"  of them computed         {computed} ({1 - computed / max(1, asked):.0%} shared or cached)")
    print(f"  prefill optimality       {spent.prefill_optimality:.3f} (1 = each unique token computed once)")
    print(f"  generated tokens         {spent.generated_tokens} in {spent.passes} passes of the model")


def print_times(seconds: dict[str, float], device: float) -> None:
    print("\nWhere the time went")
    for what, spent in seconds.items():
        print(f"  {what:<24} {spent:6.2f} s")
    print(f"    of it in the model     {device:6.2f} s")


if __name__ == "__main__":
    main()
