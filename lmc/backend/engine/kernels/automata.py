"""Token automata on the device: the tokens that an answer's state allows, and the state after the sampled token.

A token is legal if its bytes lead somewhere (lmc/fsm/tokens.py), so a program walks the bytes of its tokens. For
recurring states, the result is kept as a row of bits.

A state below zero represents one that only the device knows: -1 - i is the state after the i-th sample of the previous
pass. If that is DEAD, nothing is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.transfer import to_device
from lmc.fsm.minimise import DEAD

END = -1  # in `TokenBytes.lengths`: the token ends an answer
_BLOCK = 1024
_WIDTH = 5  # of `Answers.table`


class TokenBytes(NamedTuple):
    """The bytes of a vocabulary's tokens, on a device.

    text      uint8 [bytes], of all tokens one after another
    begins    int32 [size]: where those of each begin
    lengths   int32 [size]: how many they are; 0: the token is never legal; END: legal where the text may end
    """

    text: Tensor
    begins: Tensor
    lengths: Tensor


class Automaton(NamedTuple):
    """A token automaton on a device.

    deltas   int32: `ByteDFA.deltas`
    rows     int32 [states]: `ByteDFA.rows`, whose lowest byte is 0, plus 1 where the text may end
    masks    int64 [states]: where the state's row of bits is (as `Row.bits`); 0: nowhere yet
    """

    deltas: Tensor
    rows: Tensor
    masks: Tensor


class AnswerStates(NamedTuple):
    """Answers that the device follows in a pass; or states of automata.

    table      int64 [n, 5], of each: its row of the logits and of the tokens drawn from them, no row twice; its state before
               the token, or -1 - i; the addresses of its automaton's arrays
    before     int32 [≥ 1]: result of `advance` for the previous pass
    automata   [n]
    """

    table: Tensor
    before: Tensor
    automata: Sequence[Automaton]

    @staticmethod
    def of(rows: Sequence[int], states: Sequence[int], automata: Sequence[Automaton], before: Tensor) -> AnswerStates:
        """Copy to the device of `before`, by one asynchronous transfer."""
        arrays = {id(a): a for a in automata}
        addresses = {i: (a.deltas.data_ptr(), a.rows.data_ptr(), a.masks.data_ptr()) for i, a in arrays.items()}
        table = np.empty((len(automata), _WIDTH), np.int64)
        table[:, 0], table[:, 1], table[:, 2:] = rows, states, [addresses[id(a)] for a in automata]
        return AnswerStates(to_device(table, before), before, automata)

    @property
    def known(self) -> list[tuple[int, int, Automaton]]:
        """Return row, state and automaton of each, synchronously."""
        rows, states = self.table[:, :2].T.tolist()
        before = self.before.tolist()
        return [(r, s if s >= 0 else before[-1 - s], a) for r, s, a in zip(rows, states, self.automata, strict=True)]


# -- references ---------------------------------------------------------------------------------------------------


def behind_reference(state: int, automaton: Automaton, spelling: TokenBytes) -> Tensor:
    """Return int64 [size]: the state after each token of the vocabulary, DEAD where it is not legal."""
    text, begins, lengths = spelling.text.long(), spelling.begins.long(), spelling.lengths.long()
    rows, deltas = automaton.rows.long(), automaton.deltas.long()
    behind = torch.where(lengths > 0, state, DEAD)
    for i in range(int(lengths.max())):
        at = ((lengths > i) & (behind >= 0)).nonzero()[:, 0]
        here = behind[at]
        behind[at] = (here + deltas[(rows[here] & -256) + text[begins[at] + i]]).clamp_min(DEAD)
    if state >= 0 and int(rows[state]) & 1:
        behind[lengths == END] = state
    return behind


def close_reference(logits: Tensor, answers: AnswerStates, spelling: TokenBytes) -> None:
    """Set -inf in `logits` [R, V] wherever a token is not legal after an answer; V may exceed the vocabulary's size."""
    for row, state, automaton in answers.known:
        legal = _padded(behind_reference(state, automaton, spelling) >= 0, logits.shape[1])
        logits[row].masked_fill_(~legal, -torch.inf)


def fill_reference(bits: Tensor, states: AnswerStates, spelling: TokenBytes) -> None:
    """Return the rows of bits of states: int32 [n, ⌈size / 32⌉], the lowest first. From then on they are looked up
    there."""
    weights = torch.tensor([1 << i for i in range(31)] + [-(1 << 31)], dtype=torch.int32, device=bits.device)
    for row, state, automaton in states.known:
        legal = _padded(behind_reference(state, automaton, spelling) >= 0, bits.shape[1] * 32)
        bits[row] = (legal.view(-1, 32) * weights).sum(1)
        automaton.masks[state] = bits[row].data_ptr()


def advance_reference(answers: AnswerStates, tokens: Tensor, spelling: TokenBytes) -> Tensor:
    """Return int32 [n]: the state of each answer after its token of `tokens` [R] int64, DEAD where that is missing or
    not legal."""
    behind: list[int] = []
    for row, state, automaton in answers.known:
        token = int(tokens[row])
        behind.append(int(behind_reference(state, automaton, spelling)[token]) if token >= 0 else DEAD)
    return torch.tensor(behind, dtype=torch.int32, device=tokens.device)


def _padded(flags: Tensor, size: int) -> Tensor:
    found = torch.zeros(size, dtype=torch.bool, device=flags.device)
    found[: len(flags)] = flags[:size]
    return found


# -- kernels --------------------------------------------------------------------------------------------------


@triton.jit
def _answer(table, before, answer, WIDTH: tl.constexpr):
    """Return an answer's row, its state, and its automaton's arrays."""
    at = table + answer * WIDTH
    state = tl.load(at + 1).to(tl.int32)
    if state < 0:
        state = tl.load(before - 1 - state)
    deltas = tl.load(at + 2).to(tl.pointer_type(tl.int32))
    places = tl.load(at + 3).to(tl.pointer_type(tl.int32))
    masks = tl.load(at + 4).to(tl.pointer_type(tl.int64))
    return tl.load(at), state, deltas, places, masks


@triton.jit
def _legal(token, state, deltas, places, text, begins, lengths, size):
    """Return 1 for each legal token."""
    length = tl.load(lengths + token, mask=token < size, other=0)
    at = text + tl.load(begins + token, mask=token < size, other=0)
    behind = tl.where(length > 0, state, -1)
    left = tl.where(length > 0, length, 0)
    while tl.max(left, 0) > 0:  # pyright: ignore[reportOperatorIssue]
        place = tl.load(places + behind, mask=left > 0, other=0) & -256
        byte = tl.load(at, mask=left > 0, other=0).to(tl.int32)
        behind += tl.load(deltas + place + byte, mask=left > 0, other=0)
        at += 1
        left = tl.where(behind >= 0, left - 1, 0)
    return tl.where(length < 0, tl.load(places + state) & 1, (behind >= 0).to(tl.int32))


@triton.jit
def _close(
    logits, table, before, text, begins, lengths, columns, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Run one program per BLOCK tokens of a row."""
    row, state, deltas, places, masks = _answer(table, before, tl.program_id(0), WIDTH)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    legal = tl.zeros((BLOCK,), tl.int32)
    if state >= 0:
        bits = tl.load(masks + state)
        if bits != 0:
            word = tl.load(bits.to(tl.pointer_type(tl.int32)) + token // 32, mask=token < size, other=0)
            legal = (word >> (token % 32)) & 1
        else:
            legal = _legal(token, state, deltas, places, text, begins, lengths, size)
    tl.store(logits + row * columns + token, -float("inf"), mask=(legal == 0) & (token < columns))


@triton.jit
def _fill(bits, table, before, text, begins, lengths, words, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Run one program per BLOCK tokens of a state."""
    row, state, deltas, places, masks = _answer(table, before, tl.program_id(0), WIDTH)
    block = tl.program_id(1) * BLOCK
    legal = _legal(block + tl.arange(0, BLOCK), state, deltas, places, text, begins, lengths, size)
    lane = tl.arange(0, 32)
    found = tl.sum(tl.reshape(legal, (BLOCK // 32, 32)) << lane[None, :], 1)
    word = block // 32 + tl.arange(0, BLOCK // 32)
    tl.store(bits + row * words + word, found, mask=word < words)
    if block == 0:
        tl.store(masks + state, (bits + row * words).to(tl.int64))


@triton.jit
def _advance(behind, tokens, table, before, text, begins, lengths, WIDTH: tl.constexpr):
    """Run one program per answer."""
    answer = tl.program_id(0)
    row, state, deltas, places, _ = _answer(table, before, answer, WIDTH)
    token = tl.load(tokens + row)
    if (state >= 0) & (token >= 0):
        left = tl.load(lengths + token)
        at = text + tl.load(begins + token)
        ends = tl.load(places + state) & 1
        state = tl.where((left > 0) | ((left < 0) & (ends != 0)), state, -1)
        while (left > 0) & (state >= 0):
            place = tl.load(places + state) & -256
            state += tl.load(deltas + place + tl.load(at).to(tl.int32))
            at += 1
            left -= 1
        tl.store(behind + answer, tl.maximum(state, -1))
    else:
        tl.store(behind + answer, -1)


def close(logits: Tensor, answers: AnswerStates, spelling: TokenBytes) -> None:
    """As `close_reference`; `logits` contiguous. Asynchronous, and can be captured."""
    columns, size = logits.shape[1], len(spelling.lengths)
    launch = _close[(len(answers.table), triton.cdiv(columns, _BLOCK))]
    launch(logits, answers.table, answers.before, *spelling, columns, size, _WIDTH, _BLOCK, num_warps=4)  # pyright: ignore[reportCallIssue]


def fill(bits: Tensor, states: AnswerStates, spelling: TokenBytes) -> None:
    """As `fill_reference`; no state twice."""
    size = len(spelling.lengths)
    launch = _fill[(len(states.table), triton.cdiv(size, _BLOCK))]
    launch(bits, states.table, states.before, *spelling, bits.shape[1], size, _WIDTH, _BLOCK, num_warps=4)  # pyright: ignore[reportCallIssue]


def advance(answers: AnswerStates, tokens: Tensor, spelling: TokenBytes) -> Tensor:
    """As `advance_reference`. Asynchronous, and can be captured."""
    behind = torch.empty(len(answers.table), dtype=torch.int32, device=tokens.device)
    launch = _advance[(len(behind),)]
    launch(behind, tokens, answers.table, answers.before, *spelling, _WIDTH, num_warps=1)  # pyright: ignore[reportCallIssue]
    return behind
