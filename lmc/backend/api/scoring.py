"""Scoring choices: the log-probabilities that a select needs, the cheapest exact way to request them, and the decision.

A choice's own tokens are those after the longest common prefix of `enc(prompt)` and `enc(prompt + choice)`. Each needs
the log-probability of one token after one context:

    prompt  … The capital is │            contexts            tokens wanted after them
    choices                  │ Par is     prompt              Par, Rome
                             │ Par ma     prompt Par          is, ma
                             │ Rome
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmc.backend.api.bodies import Listed
from lmc.backend.api.place import PromptNode
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.tokens import Tokens
from lmc.backend.engine.choices import decide
from lmc.backend.results import Output
from lmc.segments import ChoicesMethod, Select

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """Tokens to score: `own`, after the first `base` tokens of the prompt."""

    base: int
    own: Ids

    @property
    def contexts(self) -> list[tuple[ScoredRow, int]]:
        """Return the context of each token, as a row without the token, and the token. The first of a prompt has no
        context."""
        return [(ScoredRow(self.base, self.own[:at]), token) for at, token in enumerate(self.own) if self.base + at > 0]


@dataclass(frozen=True, slots=True)
class Scoring:
    """The choices of a select as ids.

    prompt  ids before all choices, encoded without them
    rows    the own tokens of each choice, at least one
    alone   the same without the prompt, if the method compares with it; else ()
    """

    prompt: Ids
    rows: tuple[ScoredRow, ...]
    alone: tuple[ScoredRow, ...]

    @classmethod
    def of(cls, tokens: Tokens, place: PromptNode, ask: Select) -> Scoring:
        prompt = tuple(tokens.ids(place))
        wholes = [tuple(tokens.ids(place.literal((choice,)))) for choice in ask.choices]
        rows = tuple([ScoredRow(start := _own(prompt, whole), whole[start:]) for whole in wholes])
        unconditional = ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        return cls(prompt, rows, tuple([ScoredRow(0, row.own) for row in rows]) if unconditional else ())

    def ids(self, row: ScoredRow) -> list[int]:
        return [*self.prompt[: row.base], *row.own]

    def wanted(self) -> list[ScoredRow]:
        """Return rows that have a token with a context, each once."""
        return [row for row in dict.fromkeys((*self.rows, *self.alone)) if row.base + len(row.own) > 1]

    def next_tokens(self) -> dict[ScoredRow, set[int]]:
        """Return the same as contexts, with the wanted next tokens of each."""
        found: dict[ScoredRow, set[int]] = {}
        for row in self.wanted():
            for context, token in row.contexts:
                found.setdefault(context, set()).add(token)
        return found

    def output(self, ask: Select, known: Mapping[ScoredRow, Mapping[int, float]], texts: Mapping[int, str], tally: AttemptUsage) -> Output:
        """Return the choice. `known`: log-probabilities by context and token; `texts` of tokens, if the server lists
        them."""
        values = {row: self._values(row, known) for row in (*self.rows, *self.alone)}
        own = [tuple([(lp, token, texts.get(token, "")) for lp, token in zip(values[row], row.own, strict=True)]) for row in self.rows]
        return chosen(ask, own, [values[row] for row in self.alone] or None, tally)

    def _values(self, row: ScoredRow, known: Mapping[ScoredRow, Mapping[int, float]]) -> list[float]:
        found = [known[context][token] for context, token in row.contexts]
        return found if row.base else [0.0, *found]


def chosen(ask: Select, own: Sequence[Listed], alone: Sequence[Sequence[float]] | None, tally: AttemptUsage) -> Output:
    """Return the answer to a select. `own`: the counted tokens of each choice; `alone`: their log-probabilities without
    the prompt."""
    values = [[lp or 0.0 for lp, _, _ in row] or [0.0] for row in own]
    decision = decide(ask.method, values, alone)
    meta = {"input_token_logprobs": [[list(token) for token in row] for row in own], **decision.meta, **tally.meta}
    return Output((ask.choices[decision.index],), (meta,), tally.usage)


def aligned(own: Sequence[Listed], alone: Sequence[Listed]) -> list[list[float]]:
    """Return log-probabilities of texts alone, as many as each choice's own tokens: for servers that take text."""
    return [([lp or 0.0 for lp, _, _ in row] + [0.0] * len(mine))[: max(len(mine), 1)] for row, mine in zip(alone, own, strict=True)]


def _own(prompt: Ids, whole: Ids) -> int:
    """Return where the tokens of `whole` beyond the prompt's begin; always leaves one."""
    at, end = 0, min(len(prompt), len(whole) - 1)
    if prompt[:end] == whole[:end]:
        return end
    while prompt[at] == whole[at]:
        at += 1
    return at
