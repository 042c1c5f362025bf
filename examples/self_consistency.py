"""Self-consistency: several independent samples of one reasoning, and the answer that most of them reach.

What to see here: forks at a temperature above 0 are independent samples of one prompt. With `seed=` the whole vote
can be repeated exactly, batched or not.

    lmc run examples/self_consistency.py:vote --arg question="Tom has 3 bags with 4 apples each. How many apples?" --seed 1
"""

from collections import Counter

import lmc


@lmc.function
def vote(s: lmc.State, question: str, samples: int = 5) -> dict[str, str]:
    s += lmc.user("Pam has 2 boxes with 6 eggs each. How many eggs? Think, then give the number.")
    s += lmc.assistant("There are 2 boxes and each has 6 eggs, so there are 2 * 6 = 12 eggs. Answer: 12")
    s += lmc.user(question + " Think, then give the number.")
    forks = s.fork(samples)
    for f in forks:
        f += lmc.assistant(lmc.gen("why", max_tokens=48, stop=["Answer:", "\n"], temperature=0.7)
                           + "Answer: " + lmc.gen("answer", regex="[0-9]{1,4}", max_tokens=6, temperature=0.7))
    votes = Counter([f["answer"] for f in forks])
    answer, count = votes.most_common(1)[0]
    s += lmc.assistant("Answer: " + answer)
    return {"answer": answer, "votes": f"{count} of {samples}"}


def main() -> None:
    print(vote.run(question="Tom has 3 bags with 4 apples each. How many apples?", seed=1).ret_value)


if __name__ == "__main__":
    main()
