"""Choice methods: the winner among several continuations, given the log-probabilities of their tokens (language.md).

The three methods and the keys of their meta info are SGLang's (sglang/lang/choices.py). Unlike there, the tokens that
count are exactly those of the choice: never the last token of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmc.segments import ChoicesMethod

Rows = Sequence[Sequence[float]]  # by choice, log-probability of each of its tokens


@dataclass(frozen=True, slots=True)
class Choice:
    index: int
    meta: dict[str, Any]


def decide(method: ChoicesMethod, conditional: Rows, unconditional: Rows | None = None) -> Choice:
    """Return the winner; `unconditional` (first token of each: 0) is needed by UNCONDITIONAL_LIKELIHOOD_NORMALIZED
    only."""
    scores = [_mean(row) for row in conditional]
    meta: dict[str, Any] = {"normalized_prompt_logprobs": scores}
    if method is ChoicesMethod.GREEDY_TOKEN_SELECTION:
        width = max(map(len, conditional))
        matrix = [[*row, *[mean] * (width - len(row))] for row, mean in zip(conditional, scores, strict=True)]
        return Choice(matrix.index(max(matrix)), meta | {"greedy_logprob_matrix": matrix})
    if method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
        assert unconditional is not None
        gains = [_mean([c - u for c, u in zip(a, b, strict=True)]) for a, b in zip(conditional, unconditional, strict=True)]
        return Choice(_best(gains), meta | {"normalized_unconditional_prompt_logprobs": gains})
    return Choice(_best(scores), meta)


def _mean(row: Sequence[float]) -> float:
    return sum(row) / len(row)


def _best(scores: Sequence[float]) -> int:
    """Return the first of the greatest."""
    return max(range(len(scores)), key=lambda i: scores[i])
