"""Device automata: answers that a device follows through their token automata, without the host between two tokens.

    pass N      close what is not legal ──► draw ──► advance ──┐ states
    pass N+1    close what is not legal ──► draw ──► advance ◄─┘     of answers whose last token the host knows, it says them

Automata are copied to the device on first use, and their rows of bits are built there when the host first reaches a
state. A state it has not reached yet needs no row (kernels/automata.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lmc.backend.engine.drafted import Sampled
from lmc.backend.engine.masking import is_constrained, legal_bits
from lmc.backend.engine.request import Request
from lmc.backend.engine.transfer import to_device
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lmc.backend.engine.kernels.automata import AnswerStates, Automaton, TokenBytes

_MOST_BYTES = 64 << 20  # of automata and rows; beyond it no rows are built, and LRU automata are evicted


class Kernels(NamedTuple):
    """Kernels of kernels/automata.py and, for answers that the host follows, `close_bits` of kernels/mask.py; or the
    references there."""

    close: Callable[[torch.Tensor, AnswerStates, TokenBytes], None]
    fill: Callable[[torch.Tensor, AnswerStates, TokenBytes], None]
    advance: Callable[[AnswerStates, torch.Tensor, TokenBytes], torch.Tensor]
    close_bits: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def kernels() -> Kernels:
    """Return those of a GPU."""
    from lmc.backend.engine.kernels import automata, mask

    return Kernels(automata.close, automata.fill, automata.advance, mask.close)


class DeviceAutomata:
    """Device automata of one engine, whose constraints have one vocabulary. Not thread-safe."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._held: WeakKeyDictionary[TokenAutomaton, _Resident] = WeakKeyDictionary()
        self._clock = 0
        self._spelling: TokenBytes | None = None
        self._before: torch.Tensor | None = None  # int32: the states after the last drawn tokens
        self._places: dict[Request, int] = {}  # index in it

    def close(self, logits: torch.Tensor, requests: Sequence[Sampled]) -> AnswerStates | None:
        """Mask in `logits` [N, V], a row for each of `requests`, the tokens that their constraints do not allow. Return
        the requests whose tokens `advance` needs, if any."""
        rows: list[int] = []
        followed: list[Request] = []  # of these
        told: list[int] = []
        for i, req in enumerate(requests):
            if is_constrained(req):
                if isinstance(req, Request) and req.runs_free:
                    rows.append(i)
                    followed.append(req)
                else:
                    told.append(i)
        if told:
            bits = np.stack([legal_bits(requests[i], logits.shape[1]) for i in told]).view(np.int32)
            self._kernels.close_bits(logits, to_device(told, logits), to_device(bits, logits))
        if not rows:
            self._places = {}
            return None
        answers = self._answers(rows, followed, logits)
        assert self._spelling is not None
        self._kernels.close(logits, answers, self._spelling)
        self._places = {req: n for n, req in enumerate(followed)}
        return answers

    def advance(self, answers: AnswerStates, tokens: torch.Tensor) -> None:
        """Advance each by the token drawn for it, of `tokens` [N] int64."""
        assert self._spelling is not None
        self._before = self._kernels.advance(answers, tokens, self._spelling)

    def warm_up(self, logits: torch.Tensor, size: int) -> None:
        """Compile the kernels, by an answer behind which nothing may come: `logits` [1, V] are closed. size: of the vocabulary."""
        from lmc.backend.engine.kernels.automata import AnswerStates, Automaton, TokenBytes

        zeros = lambda n, dtype: torch.zeros(n, dtype=dtype, device=logits.device)
        spelling = TokenBytes(zeros(16, torch.uint8), zeros(size, torch.int32), zeros(size, torch.int32))
        automaton = Automaton(zeros(256, torch.int32), zeros(2, torch.int32), zeros(2, torch.int64))
        answers = AnswerStates.of([0], [0], [automaton], zeros(1, torch.int32))
        words = (size + 31) // 32
        self._kernels.fill(zeros((1, words), torch.int32), AnswerStates.of([0], [1], [automaton], answers.before), spelling)
        self._kernels.close(logits, answers, spelling)
        self._kernels.advance(answers, zeros(1, torch.int64), spelling)
        self._kernels.close_bits(logits, zeros(1, torch.int64), zeros((1, (logits.shape[1] + 31) // 32), torch.int32))

    @property
    def nbytes(self) -> int:
        """Return the memory of automata and rows on the device; the vocabulary's is not counted."""
        return sum(held.nbytes for held in self._held.values())

    def _answers(self, rows: Sequence[int], requests: Sequence[Request], like: torch.Tensor) -> AnswerStates:
        from lmc.backend.engine.kernels.automata import AnswerStates

        self._clock += 1
        if self._before is None:
            self._before = torch.zeros(1, dtype=torch.int32, device=like.device)
        states: list[int] = []
        automata: list[Automaton] = []
        here: dict[TokenAutomaton, _Resident] = {}
        new: dict[tuple[_Resident, int], None] = {}
        for req in requests:
            automaton, state = _place(req)
            held = here.get(automaton)
            if held is None:
                held = here[automaton] = self._hold(automaton, like)
            if state not in held.filled:
                new[held, state] = None
            states.append(-1 - self._places[req] if req.awaited else state)
            automata.append(held.arrays)
        if new and self.nbytes < _MOST_BYTES:
            self._fill(list(new), self._before)
        return AnswerStates.of(rows, states, automata, self._before)

    def _fill(self, new: Sequence[tuple[_Resident, int]], like: torch.Tensor) -> None:
        from lmc.backend.engine.kernels.automata import AnswerStates

        assert self._spelling is not None
        words = (len(self._spelling.lengths) + 31) // 32
        bits = torch.empty(len(new), words, dtype=torch.int32, device=like.device)
        states = AnswerStates.of(range(len(new)), [state for _, state in new], [held.arrays for held, _ in new], like)
        self._kernels.fill(bits, states, self._spelling)
        for row, (held, state) in zip(bits, new, strict=True):
            held.filled[state] = row

    def _hold(self, automaton: TokenAutomaton, like: torch.Tensor) -> _Resident:
        """Return the automaton on the device; copy it if needed."""
        held = self._held.get(automaton)
        if held is None:
            if self._spelling is None:
                self._spelling = spelling(automaton.vocabulary, like)
            held = self._held[automaton] = _Resident(on_device(automaton, like))
            held.used = self._clock
            self._make_room()
        held.used = self._clock
        return held

    def _make_room(self) -> None:
        """Evict automata that were needed longest ago, while there is no room for them."""
        size = self.nbytes
        for automaton, held in sorted(self._held.items(), key=lambda item: item[1].used):
            if size > _MOST_BYTES and held.used < self._clock:
                size -= held.nbytes
                del self._held[automaton]


class _Resident:
    """An automaton on the device. used: the pass that needed it last; filled: states that have a row of bits here."""

    def __init__(self, arrays: Automaton) -> None:
        self.arrays, self.used = arrays, 0
        self.filled: dict[int, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        rows = len(self.filled) * next((row.nbytes for row in self.filled.values()), 0)
        return rows + sum(array.nbytes for array in self.arrays)


def _place(req: Request) -> tuple[TokenAutomaton, int]:
    assert req.answer is not None and req.answer.matcher is not None
    place = req.answer.matcher.place
    assert place is not None, "a device follows what only the host can"
    return place


def on_device(automaton: TokenAutomaton, like: torch.Tensor) -> Automaton:
    """Copy to the device of `like`, without rows of bits."""
    from lmc.backend.engine.kernels.automata import Automaton

    dfa = automaton.dfa
    assert isinstance(dfa, ArrayDFA), "what is made while it is used is followed by the host"
    masks = torch.zeros(dfa.states, dtype=torch.int64, device=like.device)
    return Automaton(to_device(dfa.deltas.copy(), like), to_device(dfa.rows[:-1] + dfa.final, like), masks)


def spelling(vocabulary: Vocabulary, like: torch.Tensor) -> TokenBytes:
    """Copy the spelling to the device of `like`."""
    from lmc.backend.engine.kernels.automata import END, TokenBytes

    text, begins, lengths = vocabulary.spelled
    lengths[list(vocabulary.eos)] = END
    return TokenBytes(*(to_device(array, like) for array in (text.copy(), begins, lengths)))
