"""Sources that lie: plans with other prompts, requests, orders and addresses, too many, too few, or of another program."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lmc.frontend.live import Run
from lmc.prompt import Prompt
from lmc.runahead.ledger import Address, Ledger
from lmc.segments import Gen, Mark, Select, Special

Known = tuple[Address, Prompt, Gen | Select]
"""A request that an honest run made: where, at which prompt, what."""


class Liar:
    """Asks ahead what an honest run asked, but for what it changes; at every wait, and more than once."""

    def __init__(self, known: Sequence[Known], seed: int, honesty: float = 0.3) -> None:
        self.known, self.random, self.honesty = list(known), random.Random(seed), honesty

    def evaluate(self, ledger: Ledger, run: Run, stops: Callable[[], bool]) -> Sequence[frozenset[Any]]:
        choose = self.random
        asked = {address: ledger.after(entry) for address, entry in ledger.asked.items()}
        for _ in range(choose.randint(0, 6)):
            if not self.known:
                break
            address, before, ask = choose.choice(self.known)
            if choose.random() > self.honesty:
                address, before, ask = self.lie(address, before, ask, asked)
            ledger.guess(address, self.here(before, asked, address), ask, run, certain=choose.random() < 0.8)
        waits = [frozenset([address]) for address in [*asked, *ledger.guesses]]
        return choose.sample(waits, min(len(waits), 3))

    def close(self) -> None:
        pass

    def here(self, before: Prompt, asked: dict[Address, Prompt], address: Address) -> Prompt:
        """The prompt in terms of this run: Python's own, where it has asked at the address before, else text alone."""
        same = [after for (seed, item, stream, _), after in asked.items() if (seed, item, stream) == address[:3]]
        root = self.random.choice(same) if same and self.random.random() < 0.7 else Prompt()
        return root.append(*[part for part in before.tail if isinstance(part, str | Special | Mark)])

    def lie(self, address: Address, before: Prompt, ask: Gen | Select, asked: dict[Address, Any]) -> Known:
        """One of the ways to be wrong."""
        seed, item, stream, ordinal = address
        way = self.random.randrange(9)
        if way == 0:
            return (seed, item, stream, ordinal + self.random.randint(1, 2)), before, ask
        if way == 1:
            return (seed, item, f"{stream}/0.{self.random.randint(0, 2)}", ordinal), before, ask
        if way == 2:
            return (seed, item + 1, stream, ordinal), before, ask
        if way == 3:
            return address, before.append("a lie"), ask
        if way == 4:
            return address, Prompt(), ask
        if way == 5:
            return address, before, replace(ask, seed=ask.seed + 1)
        if way == 6:
            return address, before, replace(ask, name="another")
        if way == 7 and isinstance(ask, Gen):
            return address, before, replace(ask, params=replace(ask.params, max_new_tokens=ask.params.max_new_tokens + 1))
        other = self.random.choice(self.known)
        return address, other[1], other[2]


class Recorder:
    """Asks nothing ahead and keeps what the run asked."""

    def __init__(self) -> None:
        self.known: list[Known] = []

    def evaluate(self, ledger: Ledger, run: Run, stops: Callable[[], bool]) -> Sequence[frozenset[Any]]:
        self.known = [(address, ledger.after(entry).parent, entry.ask) for address, entry in ledger.asked.items()]
        return ()

    def close(self) -> None:
        pass
