"""Tree of thought: propose, extend each proposal, score each plan, keep the best.

What to see here: forks of forks. All proposals are written at the same time, then all plans, then all scores; the
question is computed once for the whole tree.

    lmc run examples/tree_of_thought.py:solve --arg question="How can I learn to swim?" --max-tokens 32
"""

import lmc


@lmc.function
def solve(s: lmc.State, question: str, width: int = 2) -> dict[str, str | int]:
    s += lmc.user(question + " Give one idea.")
    plans: list[lmc.State] = []
    for idea in s.fork(width):
        idea += lmc.assistant(lmc.gen("idea", max_tokens=32, stop="\n", temperature=0.8))
        idea += lmc.user("What is the first step?")
        for plan in idea.fork(width):
            plan += lmc.assistant(lmc.gen("step", max_tokens=32, stop="\n", temperature=0.8))
            plan += lmc.user("How good is this plan, from 1 (bad) to 5 (good)?")
            plan += lmc.assistant("Score: " + lmc.select("score", choices=["1", "2", "3", "4", "5"]))
            plans.append(plan)
    best = max(plans, key=lambda plan: int(plan["score"]))
    s += lmc.assistant(best["idea"].strip() + "\n" + best["step"].strip())
    return {"idea": best["idea"].strip(), "step": best["step"].strip(), "score": int(best["score"])}


def main() -> None:
    print(solve.run(question="How can I learn to swim?", seed=1).ret_value)


if __name__ == "__main__":
    main()
