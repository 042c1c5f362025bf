"""Compression: chains of states with one successor become one edge, so that forced text is found in one step.

    0 ─{─► 1 ─"─► 2 ─s─► … ─"─► 14 ─[0-9A-Z…]─► …       a singular state: one legal byte, and the text may not end
    0 ─{"summary": "─► 14 ─[0-9A-Z…]─► …                the same, compressed

After SGLang (arXiv 2312.07104, figure 4). Unlike there, edges carry bytes: a chain may begin or end inside a character.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmc.fsm.bytedfa import ByteDFA


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between states, by the bytes of `chain` one after another or by any one byte of `any_of`; the other is
    empty."""

    source: int
    target: int
    chain: bytes = b""
    any_of: bytes = b""

    @property
    def label(self) -> str:
        """Return a chain as text in quotes, a set of bytes as a class."""
        return chain_label(self.chain) if self.chain else class_label(self.any_of)


@dataclass(frozen=True)
class CompressedFSM:
    """A byte automaton whose singular chains are single edges. States keep the numbers they have in `dfa`.

    states   the remaining ones: the start, those with a choice or an end, and those that a choice leads to
    edges    by source, then by first byte
    """

    dfa: ByteDFA
    states: tuple[int, ...]
    edges: tuple[Edge, ...]

    @property
    def forced(self) -> float:
        """Return the share of the automaton's states in which the next byte is forced."""
        return self.dfa.forced_share


def compress(dfa: ByteDFA) -> CompressedFSM:
    """Fuse every maximal chain of singular states."""
    choices = [state for state in range(dfa.states) if not dfa.is_singular(state)]
    states = sorted({0, *choices, *(target for state in choices for _, target in dfa.moves(state))})
    edges: list[Edge] = []
    for state in states:
        edges += [_chain(dfa, state)] if dfa.is_singular(state) else _choices(dfa, state)
    return CompressedFSM(dfa, tuple(states), tuple(edges))


def _chain(dfa: ByteDFA, state: int) -> Edge:
    text, end = dfa.forced(state)
    return Edge(state, end, chain=text)


def _choices(dfa: ByteDFA, state: int) -> list[Edge]:
    by_target: dict[int, bytearray] = {}
    for byte, target in dfa.moves(state):
        by_target.setdefault(target, bytearray()).append(byte)
    return [Edge(state, target, any_of=bytes(some)) for target, some in by_target.items()]


# -- labels --------------------------------------------------------------------------------------------------------


def chain_label(text: bytes) -> str:
    """Return bytes as quoted text; parts of characters and controls escaped."""
    plain = "".join(_shown(c) for c in text.decode("utf-8", "backslashreplace"))
    quote = "'" if '"' in plain and "'" not in plain else '"'
    return quote + plain + quote


def class_label(any_of: bytes) -> str:
    """Return bytes as a class of ranges: [0-9A-Za-z]; bytes of longer characters as \\xNN."""
    runs: list[list[int]] = []
    for code in any_of:
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "[" + "".join(_run(first, last) for first, last in runs) + "]"


def _run(first: int, last: int) -> str:
    a, b = _byte(first), _byte(last)
    return a if first == last else a + b if last == first + 1 else f"{a}-{b}"


def _byte(code: int) -> str:
    char = chr(code)
    return f"\\x{code:02x}" if code >= 0x7F else f"\\{char}" if char in "]^-\\" else _shown(char)


def _shown(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
