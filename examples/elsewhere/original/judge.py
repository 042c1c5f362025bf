"""SGLang, paper (arXiv 2312.07104), Figure 2, "Multi-dimensional essay judge": views by dimension, merged into a grade. Without its first branch."""

import sglang as sgl

DIMENSIONS = ["Clarity", "Originality", "Evidence", "Style"]


@sgl.function
def multi_dimensional_judge(s, essay):
    s += "Evaluate the following essay.\n" + essay + "\n"
    forks = s.fork(len(DIMENSIONS))
    for f, dim in zip(forks, DIMENSIONS):
        f += "Evaluate based on the following dimension: " + dim + "\nJudgment: " + sgl.gen("judgment", stop="END", max_tokens=200)
    judgment = "\n".join(f["judgment"] for f in forks)
    s += "Here are judgments by dimension:\n" + judgment + "\nSummary: " + sgl.gen("summary", max_tokens=200)
    s += "\nIn summary, on a scale of A to D, I give a " + sgl.gen("grade", regex="[ABCD][+-]?", max_tokens=2)


ESSAYS = [
    "Reading is a slow art. Whoever hurries reads the same page twice, and understands it half as well.",
    "A town is known by its market. Ours has three stalls in winter and forty in June.",
    "Bridges are promises. This one was made in 1911 and has been kept ever since.",
]


def main(url):
    backend = sgl.RuntimeEndpoint(url)
    states = multi_dimensional_judge.run_batch([{"essay": essay} for essay in ESSAYS], temperature=0, backend=backend)
    return [[state["summary"], state["grade"]] for state in states]
