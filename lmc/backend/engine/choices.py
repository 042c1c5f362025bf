"""Choice methods: the winner among several continuations, given the log-probabilities of their tokens (language.md).

The three methods and the keys of their meta info are SGLang's (sglang/lang/choices.py). Unlike there, the tokens that
count are exactly those of the choice: never the last token of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return _METHODS[method](conditional, unconditional)


def _mean(row: Sequence[float]) -> float:
    return sum(row) / len(row)


def _best(scores: Sequence[float]) -> int:
    """Return the first of the greatest."""
    return max(range(len(scores)), key=lambda i: scores[i])


def _token_length_normalized(conditional: Rows, _: Rows | None) -> Choice:
    scores = [_mean(row) for row in conditional]
    return Choice(_best(scores), {"normalized_prompt_logprobs": scores})


def _greedy_token_selection(conditional: Rows, _: Rows | None) -> Choice:
    width = max(map(len, conditional))
    matrix = [[*row, *[_mean(row)] * (width - len(row))] for row in conditional]
    left = list(range(len(matrix)))
    for column in range(width):
        best = max(matrix[i][column] for i in left)
        left = [i for i in left if matrix[i][column] == best]
    scores = [_mean(row) for row in conditional]
    return Choice(left[0], {"normalized_prompt_logprobs": scores, "greedy_logprob_matrix": matrix})


def _unconditional_likelihood_normalized(conditional: Rows, unconditional: Rows | None) -> Choice:
    assert unconditional is not None
    gains = [_mean([c - u for c, u in zip(a, b, strict=True)]) for a, b in zip(conditional, unconditional, strict=True)]
    scores = [_mean(row) for row in conditional]
    return Choice(_best(gains), {"normalized_prompt_logprobs": scores, "normalized_unconditional_prompt_logprobs": gains})


_METHODS: dict[ChoicesMethod, Callable[[Rows, Rows | None], Choice]] = {
    ChoicesMethod.TOKEN_LENGTH_NORMALIZED: _token_length_normalized,
    ChoicesMethod.GREEDY_TOKEN_SELECTION: _greedy_token_selection,
    ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED: _unconditional_likelihood_normalized,
}
