"""An LLM judge: one essay, a check whether it is one, three judgements in parallel, a grade as JSON.

What to see here: `s.fork(3)` judges three dimensions from one shared prompt (its tokens are computed once), the
`if` on a model's answer is an ordinary `if`, and `regex=` makes the last answer parse.

    lmc run examples/judge.py:judge --input examples/data/essays.jsonl --output grades.jsonl
    lmc dump-ir examples/judge.py:judge
"""

import lmc

DIMENSIONS = ("clarity", "originality", "evidence")
GRADE = r'\{"grade": "[ABCD][+-]?", "why": "The essay is (clear|vague), (original|dull) and (convincing|weak)"\}'


@lmc.function
def judge(s: lmc.State, essay: str) -> str:
    s += lmc.system("You are a teacher who grades essays.")
    s += lmc.user("Text: " + essay + "\n\nIs this text an essay? Answer yes or no.")
    s += lmc.assistant(lmc.select("is_essay", choices=["yes", "no"]))
    if s["is_essay"] == "no":
        return "not an essay"

    forks = s.fork(len(DIMENSIONS))
    for f, dimension in zip(forks, DIMENSIONS):
        f += lmc.user(f"Judge the {dimension} of the essay in one sentence.")
        f += lmc.assistant(f"The {dimension}" + lmc.gen("judgment", max_tokens=40, stop=[".", "\n"]))

    s += lmc.user("Judgements:\n" + "\n".join(f"The {d} {f['judgment'].strip()}." for d, f in zip(DIMENSIONS, forks))
                  + "\nNow grade the essay from A to D and say why.")
    s += lmc.assistant(lmc.gen("grade", regex=GRADE, max_tokens=48))
    return s["grade"]


def main() -> None:
    import json
    from pathlib import Path

    lines = (Path(__file__).parent / "data" / "essays.jsonl").read_text().splitlines()
    essays = [json.loads(line) for line in lines]
    for item, state in zip(essays, lmc.compile(judge).batch(essays, progress=True, temperature=0)):
        print(item["essay"][:60], "…", state.ret_value)


if __name__ == "__main__":
    main()
