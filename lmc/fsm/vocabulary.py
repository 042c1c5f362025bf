"""A tokenizer's vocabulary: the bytes of its tokens, and the tokens that an automaton allows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from lmc.fsm.arrays import Arrays
from lmc.fsm.bytedfa import LONG
from lmc.fsm.charset import Ranges, lead_of
from lmc.fsm.json_text import WITHIN_STRINGS
from lmc.fsm.lazy import NO_LIMIT, WIDE, Name, OpenString, SelfLoop, Turns
from lmc.fsm.runs import MEDIUM, ClassRun, Long, Tail, Texts, bits_of, packed
from lmc.fsm.strings import StringRun
from lmc.fsm.trie import ByteTrie, columns
from lmc.fsm.words import WordRange

_MOST_RUNS = 256  # most cached runs: most are of few tokens
_MOST_RUNS_OF_ONE = 16  # runs that begin at nodes of one row: beyond that, visiting whole levels is faster
_MOST_ONE_BY_ONE = 200  # nodes of a trie
_MOST_APART = 200  # nodes within a run that have states of their own
_FEW_CHILDREN, _FEW_TEXTS, _MANY_TEXTS = 32, 256, 4096  # of a node: visited one by one; not worth a run; worth one even if found last
_QUOTE = ord('"')
WITHIN = -2  # instead of a state: it is not made
_NO_CHOICE = 3  # children: sooner looked at than counting the ways of a state takes
_MANY_TAILS = 1024  # tokens that leave a run: from here on sooner followed along the vocabulary's trie than a trie of their own is made
_MANY_LONG = 64  # tokens above LONG bytes that leave a run: from here on all are followed level by level
_ALL_LEVELS = 24  # times as many texts as would be followed in lists of nodes: sooner all levels are
_byte = np.arange(256)
_begins_words = np.isin(_byte, list(b" \t")) | np.isin(_byte | 0x20, list(b"abcdefghijklmnopqrstuvwxyz"))  # after anything
_ends_words = np.isin(_byte, list(b"0123456789")) | np.isin(_byte | 0x20, list(b"abcdefghijklmnopqrstuvwxyz"))


class Vocabulary:
    """The bytes of each token, and the tokens that can be part of a text. Immutable; one for all constraints.

    tokens   the bytes of each id; b"" for an id without text. Those of `special` and `eos` are blanked here
    eos      ids that end an answer
    special  ids that no text contains, whatever their bytes spell
    size     number of logits, at least len(tokens); ids beyond the vocabulary are never allowed

    Tokens of up to LONG bytes are in a trie; the few above it are stepped one by one, so that the trie stays flat.
    """

    def __init__(self, tokens: Sequence[bytes], eos: Iterable[int], special: Iterable[int] = (), size: int | None = None) -> None:
        self.eos = tuple(sorted(set(eos)))
        closed = {*special, *self.eos}
        self.tokens = tuple(b"" if i in closed else text for i, text in enumerate(tokens))
        self.size = max(len(self.tokens), max(self.eos, default=-1) + 1) if size is None else size
        if self.size < len(self.tokens) or any(i >= self.size for i in self.eos):
            raise ValueError(f"a vocabulary of {len(self.tokens)} tokens and EOS {self.eos} does not fit {self.size} logits")
        usable = [i for i, text in enumerate(self.tokens) if text]
        self.longest = max((len(self.tokens[i]) for i in usable), default=0)
        self.long_ids = tuple(i for i in usable if len(self.tokens[i]) > LONG)
        self._long_heads = frozenset(self.tokens[i][:n] for i in self.long_ids for n in range(len(self.tokens[i])))
        ids = sorted((i for i in usable if len(self.tokens[i]) <= LONG), key=self.tokens.__getitem__)
        self._ids = np.array(ids, np.int64)
        self.trie = ByteTrie.of([self.tokens[i] for i in ids])
        self._runs: dict[tuple[Ranges, int], ClassRun] = {}
        self._strings: dict[tuple[int, int], StringRun] = {}
        self._long = _edges(sorted((self.tokens[i], i) for i in self.long_ids), 0)
        self._longest = _edges(sorted((self.tokens[i], i) for i in self.long_ids if len(self.tokens[i]) > MEDIUM), 0)
        self.long_heads = frozenset(self._long)

    def prepare(self) -> Vocabulary:
        """Find now what constraints need of it, and its runs within JSON strings and behind the first byte of an escape, instead of in a
        step that others wait for; itself."""
        _ = self._nodes, self._occurrences, self._texts_below
        _ = self._held_data, self._ids_data, self.trie.bytes, self.trie.children(0), self._texts.counts, self._texts.begun, self._texts.quoted_trie
        if self.long_ids:
            _ = self._texts.long_spelling, self._texts.long_ids, self._texts.medium_trie
        escaped = [node for byte in b'"\\/bfnrtu' if (node := self.trie.find(bytes([byte]))) is not None]
        for kind, node in itertools.product(range(len(WITHIN_STRINGS)), [0, *escaped]):
            self.string_run(kind, node).in_string(0, NO_LIMIT)
        return self

    @property
    def words(self) -> int:
        """Return the length of a mask row: 32 tokens a word."""
        return (self.size + 31) // 32

    def text(self, ids: Iterable[int]) -> bytes:
        return b"".join([self.tokens[i] for i in ids])

    @cached_property
    def alphabet(self) -> np.ndarray:
        """Return bool [256]: bytes that occur in some token."""
        found = np.zeros(256, bool)
        found[list(set(b"".join(self.tokens)))] = True
        return found

    def spells_some(self, ranges: Ranges) -> bool:
        """Return whether tokens have the bytes of some character of a class."""
        return any(self.alphabet[lead_of(low) : lead_of(high) + 1].any() for low, high in ranges) and bool(self.alphabet[0x80:0xC0].all())

    @cached_property
    def joins(self) -> bytes:
        """Return 65536 flags: entry `a << 8 | b` is 1 if some token has byte b right after byte a, or a tokenizer may
        cut text beginning with b differently after a. Elsewhere two texts are tokenized independently: no token spans
        the border, and tokenizers that cut words first begin one at a letter or space after anything but `'`, and at
        anything after a letter or digit; but in `—'s` the `'` is the dash's, in `—"id` the `"`, in `٣123` the `12`, and
        in `'set` the `s` the apostrophe's."""
        text = np.frombuffer(b"".join(self.tokens), np.uint8).astype(np.int64)
        lengths = np.array([len(text) for text in self.tokens if text], np.int64)
        within = np.ones(len(text), bool)
        within[np.cumsum(lengths) - 1] = False  # the last byte of a token has the next one's behind it
        found = np.zeros(1 << 16, np.uint8)
        found[(text[:-1] << 8 | text[1:])[within[:-1]]] = 1
        found.reshape(256, 256)[np.ix_(~_ends_words, ~_begins_words)] = 1
        found.reshape(256, 256)[ord("'")] = 1
        return found.tobytes()

    def has_inside(self, text: bytes) -> bool:
        """Return whether some token contains `text`, which is UTF-8, after its first byte, so that it could span all of
        it from before."""
        at = self._joined.find(text, 1)
        while at > 0 and self._joined[at - 1] == 0xFF:
            at = self._joined.find(text, at + 1)
        return at > 0

    @cached_property
    def _joined(self) -> bytes:
        return b"\xff".join(self.tokens)  # a byte not used in UTF-8

    @cached_property
    def digest(self) -> str:
        """Return a digest, equal for vocabularies whose automata are equal."""
        found = hashlib.blake2b(f"{self.size} {self.eos}".encode(), digest_size=16)
        found.update(np.array([len(text) for text in self.tokens], np.uint32).data)
        found.update(b"".join(self.tokens))
        return found.hexdigest()

    @property
    def spelled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for a device that steps tokens, (uint8, int32 [size], int32 [size]): the bytes of all ids one after
        another, where those of each begin, and how many they are."""
        lengths = np.zeros(self.size, np.int32)
        lengths[: len(self.tokens)] = [len(text) for text in self.tokens]
        begins = np.append(0, np.cumsum(lengths)[:-1]).astype(np.int32)
        return np.frombuffer(b"".join(self.tokens) or b"\0", np.uint8), begins, lengths

    @property
    def nbytes(self) -> int:
        runs = sum(run.nbytes for run in [*self._runs.values(), *self._strings.values()])
        return self.trie.nbytes + self._ids.nbytes + self._nodes.nbytes + runs

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Return int64 [words * 32]: the trie's node of each id; the root for ids that are not in it."""
        nodes = np.zeros(self.words * 32, np.int64)
        nodes[self._ids] = self.trie.node_of
        return nodes

    def walked(self, dfa: Arrays, state: int) -> Walked:
        """Return the tokens of up to LONG bytes that are legal from `state`: node by node where few are; runs of a
        class of characters as a whole; else level by level, all of them where many would be in lists of nodes."""
        trie, few, after, known_row = self.trie, dfa.few, dfa.after, dfa.known_row
        bytes_, children = trie.bytes, trie.children
        legal: list[tuple[int, int]] = []
        below: list[tuple[int, int]] = []
        runs: list[RunInLoop | InString] = []
        todo, followed, most = [(0, state)], 0, self.texts_below(0) // _ALL_LEVELS
        while todo and followed <= most:
            node, at = todo.pop()
            begin, end = children(node)
            if begin == end:
                continue
            if (string := dfa.string(at)) is not None and (type(string.kind) is int or self.texts_below(node) >= _FEW_TEXTS):
                apart: list[int] = []
                for text in string.but:
                    if (child := self.trie.find(text, node)) is not None:
                        apart.append(child)
                        if (to := dfa.behind_string(at, text)) >= 0:
                            legal.append((child, to))
                            todo.append(legal[-1])
                if type(string.kind) is not int and not string.low and (child := bytes_.find(_QUOTE, begin, end)) >= 0 and b'"' not in string.but:
                    legal.append((child, string.behind))
                    todo.append(legal[-1])
                runs.append(InString(self.string_run(string.kind, node), string, apart))
                continue
            if len(legal) > _MOST_ONE_BY_ONE:
                if self.texts_below(node) >= _MANY_TEXTS and len(runs) < _MOST_RUNS_OF_ONE and (run := self._run_at(dfa, node, at)) is not None:
                    runs.append(run[0])
                    followed += max(run[0].leaving - _MANY_TAILS, 0)
                    legal += run[1] + run[2]
                    todo += run[2]
                else:
                    below.append((node, at))
                    followed += self.texts_below(node)
                continue
            if end - begin <= _NO_CHOICE and (row := known_row(at)) is not None:
                found = [(child, to) for child in range(begin, end) if (to := row[bytes_[child]]) >= 0]
                legal += found
                todo += found
                continue
            if (literal := dfa.literal(at)) is not None:
                text, chars = literal
                for byte in text:
                    node = bytes_.find(byte, begin, end)
                    if node < 0:
                        break
                    legal.append((node, WITHIN))
                    begin, end = children(node)
                if node >= 0 and begin < end:
                    legal[-1] = node, dfa.beyond(at, chars)
                    todo.append(legal[-1])
                continue
            if end - begin > _NO_CHOICE and (words := dfa.words(at)) is not None:
                self._words_below(dfa, node, at, words, legal, todo)
                continue
            if end - begin > _NO_CHOICE and (names := dfa.names(at)):
                self._names_below(dfa, node, names, legal, todo)
                continue
            ways = few(at) if end - begin > _NO_CHOICE else None
            if ways is not None and len(ways) < (end - begin if node else WIDE):  # a run of a narrow class pays off from the root only
                found = [(child, to) for byte, to in ways.items() if (child := bytes_.find(byte, begin, end)) >= 0]
            elif end - begin <= _NO_CHOICE:
                found = [(child, to) for child in range(begin, end) if (to := after(at, bytes_[child])) >= 0]
            elif len(runs) < _MOST_RUNS_OF_ONE and (run := self._run_at(dfa, node, at)) is not None:
                running, within, found = run
                runs.append(running)
                followed += max(running.leaving - _MANY_TAILS, 0)
                legal += within
            elif end - begin <= _FEW_CHILDREN:
                row = dfa.row(at).data
                found = [(child, to) for child in range(begin, end) if (to := row[bytes_[child]]) >= 0]
            elif ways is not None:
                found = [(child, to) for byte, to in ways.items() if (child := bytes_.find(byte, begin, end)) >= 0]
            else:
                below.append((node, at))
                followed += self.texts_below(node)
                continue
            legal += found
            todo += found
        if followed > most:  # as those below the root are
            behind = self.trie.walk(dfa, state, LONG)
            return Walked(self.bits(behind), (), None, (), (), behind)
        return _walked(self, dfa, legal, below, runs)

    def covered(self, dfa: Arrays, state: int, kind: int) -> np.ndarray:
        """Return the bits of `walked` in a state that any characters of a kind of string may follow: only tokens with a quote are looked at."""
        ids, trie = self._texts.quoted_trie
        legal = np.zeros(len(trie.byte), bool)
        legal[trie.below(dfa, 0, state)[0]] = True
        return self._find_string(kind, 0).bits | bits_of(ids[legal[trie.node_of]], self.words)

    def _words_below(self, dfa: Arrays, node: int, state: int, words: WordRange, legal: list[_At], todo: list[_At]) -> None:
        """Find the legal nodes below one, which has a state in a list of words: along both tries, without states within words. Those
        where words end are left to be looked below, too."""
        children, find = self.trie.children, self.trie.bytes.find
        inner, ended = [(node, words)], list[int]()
        while inner:
            node, words = inner.pop()
            begin, end = children(node)
            for letter, further in words.ahead() if begin < end else ():
                if (child := find(ord(letter), begin, end)) >= 0:
                    if further.may_end:
                        legal.append((child, dfa.behind_words(state, further)))
                        ended.append(child)
                    else:
                        legal.append((child, WITHIN))
                    if not further.is_ended:
                        inner.append((child, further))
        if ended:
            behind = dfa.behind_words(state, None)
            todo += [(child, behind) for child in ended]

    def _names_below(self, dfa: Arrays, node: int, names: Sequence[Name], legal: list[_At], todo: list[_At]) -> None:
        """As `_words_below`, of a few texts with a state behind each."""
        children, find = self.trie.children, self.trie.bytes.find
        inner = [(node, 0, 0, len(names))]
        while inner:
            node, depth, first, last = inner.pop()
            begin, end = children(node)
            while begin < end and first < last:
                letter, further = names[first][0][depth], first + 1
                while further < last and names[further][0][depth] == letter:
                    further += 1
                if (child := find(ord(letter), begin, end)) >= 0:
                    if len(names[first][0]) == depth + 1:  # the first one is the shortest
                        legal.append((child, dfa.behind_names(names[first:further], depth + 1)))
                        todo.append(legal[-1])
                    else:
                        legal.append((child, WITHIN))
                        inner.append((child, depth + 1, first, further))
                first = further

    def _run_at(self, dfa: Arrays, node: int, state: int) -> tuple[RunInLoop, list[_At], list[_At]] | None:
        """The run that most texts below a node go on in, which has `state`; the nodes within the class with other states than the
        loop's; and legal nodes of which nothing below was looked at. None if there is no run, or if whole levels are sooner looked at.

        A text that is none of a few words, and may begin like one:    na│m│e    n, na, nam, name have states of their own; what leaves
        them for the loop is as the run says, whose other texts are `apart`.
        """
        texts = self.texts_below(node)
        if texts < _FEW_TEXTS or (found := _loop(dfa, state)) is None:
            return None
        loop, turns = found
        main, row, byte = dfa.row(loop.state), dfa.row(state), self.trie.byte
        if not node and (loop.again, node) not in self._runs and self._is_often_left(loop, main):
            return None
        firsts, apart, within, rest = self._texts.members(loop.again).firsts, list[int](), list[_At](), list[_At]()
        todo = [(node, row)]
        for at_node, row in todo:
            if len(todo) > _MOST_APART:
                return None
            begin, end = self.trie.children(at_node)
            heads = byte[begin:end]
            if at_node != node:
                other = row[heads] != main[heads]
            elif turns is None:
                other = (row[heads] != main[heads]) | ~firsts[heads]
            else:  # each turn has a state of its own
                other = ~firsts[heads]
            if at_node == node and int(self._texts_below[begin:end][other & (row[heads] >= 0)].sum()) * 2 > texts:
                return None
            for i, head, to in zip(np.flatnonzero(other).tolist(), heads[other].tolist(), row[heads[other]].tolist()):
                child = begin + i
                if to >= 0 and head < 0x80 and firsts[head]:
                    begins, ends = self.trie.children(child)
                    if begins < ends:
                        below, behind = byte[begins:ends], dfa.row(to)
                        if len(below) > _FEW_CHILDREN and np.count_nonzero(behind[below] != main[below]) * 2 > len(below):
                            apart.append(child)  # most of what is below it is in no run, or in another one
                            rest.append((child, to))
                            continue
                        todo.append((child, behind))
                    within.append((child, to))
                    continue
                if at_node != node or firsts[head]:
                    apart.append(child)
                if to >= 0:
                    rest.append((child, to))
        run = self.run(loop.again, node)  # only now: finding it takes as long as all levels do
        leaving = sum([count for head, count in run.leaving.items() if main[head] >= 0])
        if leaving * 2 > texts:
            return None
        known = {child for child, _ in rest}
        begin, end = self.trie.children(node)
        mixed = begin + np.flatnonzero((firsts & ~run.firsts)[byte[begin:end]])
        rest += [(child, to) for child in mixed.tolist() if child not in known and (to := int(dfa.row(state)[byte[child]])) >= 0]
        return RunInLoop(run, loop, turns, apart, leaving), within, rest

    def _is_often_left(self, loop: SelfLoop, row: np.ndarray) -> bool:
        """Return whether so many texts may leave a loop, whose state has `row`, that all levels are sooner looked at than its run is made."""
        known = 256 if loop.again[-1][1] < 0x80 else 0x80  # bytes, of which the others may be of a character of the loop
        leaving = (row[:known] >= 0) & (row[:known] != loop.state)
        return int(self._occurrences[:known][leaving].sum()) * _ALL_LEVELS > self.texts_below(0)

    def run(self, ranges: Ranges, node: int = 0) -> ClassRun:
        """Return the run of a class of characters and a node of the trie, computed once."""
        return _recent(self._runs, (ranges, node), lambda: ClassRun.of(ranges, self._texts, node))

    def string_run(self, kind: int | Ranges, node: int = 0) -> StringRun | ClassRun:
        """Return the run of a kind of JSON string, or of one of a class, and a node of the trie, computed once."""
        return self._find_string(kind, node) if isinstance(kind, int) else self.run(kind, node)

    def _find_string(self, kind: int, node: int) -> StringRun:
        return _recent(self._strings, (kind, node), lambda: self._find_string_run(kind, node))

    def _find_string_run(self, kind: int, node: int) -> StringRun:
        text = self.tokens[self._ids[self.trie.begin[node]]][: self.trie.depth(node)] if node else b""
        return self._find_string(kind, 0).below(node) if text and _is_written_as_it_is(text) else StringRun.of(kind, self._texts, node)

    @cached_property
    def _texts(self) -> Texts:
        return Texts(self.tokens, self.trie, self._ids, self._nodes, self.long_ids)

    @cached_property
    def _occurrences(self) -> np.ndarray:
        """Return int64 [256]: how often texts of the trie have a byte behind their first one."""
        trie = self.trie
        behind = slice(trie.level_ends[:2][-1], None)
        return np.bincount(trie.byte[behind], self.trie.ends[behind] - trie.begin[behind], 256).astype(np.int64)

    def bits(self, behind: np.ndarray) -> np.ndarray:
        """Return the bits of the tokens of up to LONG bytes whose node in `behind`, of the trie, is legal."""
        return packed((behind >= 0)[self._nodes])

    def long_allowed(self, dfa: Arrays, state: int) -> LongAllowed:
        """Return the tokens above LONG bytes that are legal from `state`."""
        if (string := dfa.string(state)) is not None:
            return self._long_in_string(dfa, state, string)
        if (kind := dfa.covered(state)) is not None:
            long, (ids, firsts) = self._long_in(kind), self._texts.long_ids
            quoted = [*ids[firsts == _QUOTE].tolist(), *(i for i, *_ in long.leaving)]
            return LongAllowed(long, tuple(sorted(i for i in quoted if dfa.step(state, self.tokens[i]) >= 0)))
        found: list[int] = []
        whole: Long | None = None
        if (heads := dfa.heads(state)) is not None:
            todo = _of_bytes(self._long, state, heads)
        elif (running := _loop(dfa, state := dfa.far(state, self.longest))) is not None:
            loop, turns = running
            if turns is None and loop.again not in self._texts.longs and self._is_often_left(loop, dfa.row(loop.state)):
                return LongAllowed(None, self._long_walked(dfa, state))
            long = self._texts.long_in(loop.again)
            within, inside, left = long.heads.tobytes(), long.inside, len(long.leaving) if turns is None else 0
            if len(self.long_ids) - len(inside) - len(long.leaving) + left >= _MANY_LONG:
                others = ~long.heads & (dfa.row(state) >= 0)
                left += np.count_nonzero(others[self._texts.long_ids[1]])
            if left >= _MANY_LONG:
                return LongAllowed(None, self._long_walked(dfa, state))
            if turns is not None and turns.high < self.longest:
                found += inside[long.chars <= turns.high].tolist()
                begun = [i for i in inside[long.chars == turns.high + 1].tolist() if self.tokens[i][-1] >= 0x80]  # maybe by a character of another class
                found += [i for i in begun if dfa.step(state, self.tokens[i]) >= 0]
            elif turns is None and (apart := long.heads & (dfa.row(state) != dfa.row(loop.state))).any():
                if np.count_nonzero(apart[long.firsts]) >= _MANY_LONG:
                    return LongAllowed(None, self._long_walked(dfa, state))
                within = (long.heads & ~apart).tobytes()
                found += inside[~apart[long.firsts]].tolist()
            else:
                whole = long
            for i, first, until, chars in long.leaving:
                if within[first] and (turns is None or chars <= turns.high):
                    left = self.tokens[i][until:]
                    at = state if until == 0 else loop.state if turns is None else behind(dfa, turns, chars, len(left))
                    if dfa.step(at, left) >= 0:
                        found.append(i)
            todo = [(state, edge) for first, edge in self._long.items() if not within[first]]
        else:
            return LongAllowed(None, self._long_walked(dfa, state))
        return LongAllowed(whole, tuple(sorted(found + _stepped(dfa, todo))))

    def _long_in_string(self, dfa: Arrays, state: int, string: OpenString) -> LongAllowed:
        long, names = self._long_in(string.kind), tuple(string.but)
        ids, firsts = self._texts.long_ids
        found = {i for i in ids[firsts == _QUOTE].tolist() if dfa.step(state, self.tokens[i]) >= 0}
        for i, _, until, chars in long.leaving:
            text = self.tokens[i]
            if names and text.startswith(names):
                found.update([i] if dfa.step(state, text) >= 0 else ())
            elif string.low <= chars <= string.high and text[until] == _QUOTE and dfa.step(string.behind, text[until + 1 :]) >= 0:
                found.add(i)
        if string.high >= self.longest:
            return LongAllowed(long, tuple(sorted(found)))
        found.update(long.inside[long.chars <= string.high].tolist())
        return LongAllowed(None, tuple(sorted(found)))

    def _long_in(self, kind: int | Ranges) -> Long:
        if not isinstance(kind, int):
            return self._texts.long_in(kind)
        found = self._find_string(kind, 0).long
        assert found is not None
        return found

    def _long_walked(self, dfa: Arrays, state: int) -> tuple[int, ...]:
        """As `long_allowed`: most tokens level by level, so that counts which these do not exhaust are none; the longest ones, which are
        few, by themselves."""
        ids, trie = self._texts.medium_trie
        found = ids[trie.walk(dfa, state, MEDIUM)[trie.node_of] >= 0].tolist()
        behind = [(dfa.far(at, self.longest), edge) for edge in self._longest.values() if (at := dfa.step(state, edge.text[:1])) >= 0]
        return tuple(sorted(found + _stepped(dfa, [(at, edge._replace(text=edge.text[1:])) for at, edge in behind])))

    def reach(self, dfa: Arrays, state: int, after: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
        """Return tokens that begin with `after` and whose rest, not empty, is legal from `state`: (ids, next
        states)."""
        if (node := self.trie.find(after)) is None:
            short = np.zeros(0, np.int64), np.zeros(0, np.int32)
        elif node:
            short = self.held(*self.trie.below(dfa, node, state))
        else:
            of_token = self.trie.walk(dfa, state)[self.trie.node_of]
            legal = np.flatnonzero(of_token >= 0)
            short = self._ids[legal], of_token[legal]
        long = [(i, end) for i in (self.long_ids if after in self._long_heads else ())
                if self.tokens[i].startswith(after) and (end := dfa.step(state, self.tokens[i][len(after) :])) >= 0]  # fmt: skip
        if not long:
            return short
        ids, ends = np.array(long).T
        return np.concatenate([short[0], ids]), np.concatenate([short[1], ends.astype(np.int32)])

    def is_outside(self, nodes: np.ndarray, uppers: Sequence[int]) -> np.ndarray:
        """Return bool, of each of `nodes`: it is at or below none of the others."""
        begins, found = self.trie.begin[nodes], np.ones(len(nodes), bool)
        for upper in uppers:
            found &= (nodes < upper) | (begins < self.trie.begin[upper]) | (begins >= self.trie.ends[upper])  # those above come first
        return found

    def texts_below(self, node: int) -> int:
        """Return how many texts of the trie begin with that of a node."""
        return int(self.trie.ends[node]) - int(self.trie.begin[node])

    @cached_property
    def _texts_below(self) -> np.ndarray:
        return self.trie.ends - self.trie.begin

    def below(self, node: int) -> np.ndarray:
        """The ids of the texts of the trie that begin with that of a node."""
        return self._ids[int(self.trie.begin[node]) : int(self.trie.ends[node])]

    def held(self, nodes: np.ndarray, states: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of nodes of the trie, and for each the state of its node."""
        begins, ends = self._held.take(nodes), self._held.take(nodes + 1)  # tokens of equal bytes share a node
        counts = ends - begins
        at = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        return self._ids_by_node[at], np.repeat(np.broadcast_to(states, counts.shape), counts)

    def ids_at(self, nodes: Iterable[int]) -> list[int]:
        """Return the ids of few nodes of the trie."""
        held, ids = self._held_data, self._ids_data
        return [i for node in nodes for i in ids[held[node] : held[node + 1]]]

    @cached_property
    def _held_data(self) -> memoryview:
        return self._held.data  # much faster than the array for single reads

    @cached_property
    def _ids_data(self) -> memoryview:
        return self._ids_by_node.data

    @cached_property
    def _ids_by_node(self) -> np.ndarray:
        return self._ids[np.argsort(self.trie.node_of, kind="stable")]

    @cached_property
    def _held(self) -> np.ndarray:
        """Return int64 [nodes + 1]: where the ids of each node begin in `_ids_by_node`."""
        return np.append(0, np.cumsum(np.bincount(self.trie.node_of, minlength=len(self.trie.byte))))


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """The tokens of up to LONG bytes that are legal from a state.

    bits    uint32 [words]
    few     nodes of the trie that are legal, with the states behind them: those visited one by one
    many    and those visited level by level, or `exits` of a run and what follows them; neither has those within `runs`
    runs    in which most texts go on, and within strings
    tails   of each run, those that are legal behind it, and the states behind them
    behind  instead of all of these, where all levels were visited: the state behind each node, DEAD where it is not legal
    """

    bits: np.ndarray
    few: Sequence[_At]
    many: tuple[np.ndarray, np.ndarray] | None
    runs: Sequence[RunInLoop | InString]
    tails: Sequence[Sequence[tuple[Tail, int]]]
    behind: np.ndarray | None = None

    @property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all of the nodes, and the states behind them; WITHIN a text that alone may follow."""
        if self.behind is not None:
            nodes = np.flatnonzero(self.behind >= 0)
            return nodes, self.behind[nodes]
        nodes, states = columns(self.few)
        return (nodes, states) if self.many is None else (np.concatenate([nodes, self.many[0]]), np.concatenate([states, self.many[1]]))

    def tokens(self, vocabulary: Vocabulary, dfa: Arrays, state: int) -> list[tuple[int, int]]:
        """The ids of `nodes` and `tails`, and the states behind them.

        state   that they are legal in
        """
        found = [(i, dfa.step(state, vocabulary.tokens[i]) if at == WITHIN else at) for i, at in zip(*(a.tolist() for a in vocabulary.held(*self.nodes)))]
        for running, tails in zip(self.runs, self.tails):
            apart = {i for node in running.apart for i in vocabulary.below(node).tolist()}
            found += [(i, state) for tail, state in tails for i in tail.ids if i not in apart]
        return found


class LongAllowed(NamedTuple):
    """Tokens above LONG bytes.

    whole   all of its `inside`
    others  ascending
    """

    whole: Long | None
    others: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        return [*self.others, *(self.whole.inside.tolist() if self.whole is not None else ())]


NO_LONG = LongAllowed(None, ())


class RunInLoop(NamedTuple):
    """A run that an automaton is in from a state on, in its loop; `turns`: as far as so many characters go; `apart`: nodes of the trie
    of whose texts it says nothing; `leaving`: the tokens that may leave it."""

    run: ClassRun
    loop: SelfLoop
    turns: Turns | None
    apart: Sequence[int]
    leaving: int

    def may_end(self, dfa: Arrays) -> bool:
        """Return whether the text may end within it."""
        return dfa.is_final(self.loop.state)

    @property
    def bits(self) -> np.ndarray:
        """Return the bits of the tokens within it; not to be written to."""
        return self.run.bits if self.turns is None else self.run.up_to(self.turns.high)

    def saturating(self) -> list[int]:
        """Return the tokens within it after whose last character the loop may not be repeated."""
        return [] if self.turns is None else self.run.ids[self.run.chars == self.turns.high].tolist()

    def _leaving(self, dfa: Arrays) -> tuple[list[int], list[int]]:
        """Return the bytes by which tokens may leave: those of the fewest, as long as these are few in all, and the others."""
        row = dfa.row(self.loop.state)
        legal = sorted([(count, byte) for byte, count in self.run.leaving.items() if row[byte] >= 0])
        few = sum([total < _MANY_TAILS for total in itertools.accumulate([count for count, _ in legal])])
        return [byte for _, byte in legal[:few]], [byte for _, byte in legal[few:]]

    def tails(self, dfa: Arrays) -> list[tuple[Tail, int]]:
        """Return the possible continuations, as far as tokens go, where few tokens have them."""
        found: list[tuple[Tail, int]] = []
        for byte in self._leaving(dfa)[0]:
            if self.turns is None:
                tails = [(self.run.tail(byte), self.loop.state)]
            else:
                tails = [(tail := self.run.tail(byte, chars), behind(dfa, self.turns, chars, tail.depth))
                         for chars in self.run.turns(byte) if chars <= self.turns.high]  # fmt: skip
            found += [(child, to) for tail, state in tails for child in (tail.ways[byte],) if (to := dfa.after(state, byte)) >= 0]
        if self.turns is not None and self.turns.high < LONG and self.loop.again[-1][1] >= 0x80 and (tail := self.run.begun_behind(self.turns.high)).ways:
            full = behind(dfa, self.turns, self.turns.high, tail.depth)
            found += [(child, to) for byte, child in tail.ways.items() if (to := dfa.after(full, byte)) >= 0]
        return found

    def exits(self, dfa: Arrays, vocabulary: Vocabulary) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the other ones as nodes of the trie, and the states behind them."""
        row = dfa.row(self.loop.state)
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for byte in self._leaving(dfa)[1]:
            if self.turns is None:
                found.append((nodes := self.run.exits(byte), np.full(len(nodes), row[byte], np.int64)))
                continue
            for chars in self.run.turns(byte):
                if chars <= self.turns.high and (to := dfa.after(behind(dfa, self.turns, chars, LONG), byte)) >= 0:
                    found.append((nodes := self.run.exits(byte, chars), np.full(len(nodes), to, np.int64)))
        return [(nodes[kept], states[kept]) for nodes, states in found for kept in (vocabulary.is_outside(nodes, self.apart),)]


class InString(NamedTuple):
    """As a `RunInLoop`, of a string of any characters."""

    run: StringRun | ClassRun
    string: OpenString
    apart: Sequence[int]

    def may_end(self, dfa: Arrays) -> bool:
        return False

    @property
    def bits(self) -> np.ndarray:
        return self.run.up_to(self.string.high)

    def saturating(self) -> list[int]:
        return self.run.ids[self.run.whole & (self.run.chars == self.string.high)].tolist()

    def tails(self, dfa: Arrays) -> list[tuple[Tail, int]]:
        return [(tail, self.string.behind) for tail in self.run.in_string(self.string.low, self.string.high)]

    def exits(self, dfa: Arrays, vocabulary: Vocabulary) -> list[tuple[np.ndarray, np.ndarray]]:
        return []


def behind(dfa: Arrays, turns: Turns, chars: int, ahead: int) -> int:
    """Return a state that allows the same texts of `ahead` bytes as the one that so many characters lead to from a
    state with turns."""
    low, high = max(turns.low - chars, 0), turns.high - chars
    return turns.unbounded if low == 0 and high >= ahead else dfa.turned(turns.state, low, high)


def _loop(dfa: Arrays, state: int) -> tuple[SelfLoop, Turns | None] | None:
    """Return the loop in which most texts from a state continue, if for unlimited length, or for a number of turns."""
    if (loop := dfa.loop(state)) is not None:
        return loop, None
    turns = dfa.turns(state)
    loop = None if turns is None else dfa.loop(turns.unbounded)
    return (loop, turns) if loop is not None and turns is not None and loop.state == turns.unbounded else None


def _walked(vocabulary: Vocabulary, dfa: Arrays, legal: list[_At], below: list[_At], runs: list[RunInLoop | InString]) -> Walked:
    """legal   nodes of the trie, and the states after them
    below   nodes, with their states, below which nothing was visited
    runs    runs not visited
    """
    words, bits = vocabulary.words, None
    ids = vocabulary.ids_at([node for node, _ in legal])
    tails: list[list[tuple[Tail, int]]] = []
    for running in runs:  # those below nodes that are apart from another come behind it
        bits = running.bits if bits is None else bits | running.bits
        tails.append(along(dfa, running.tails(dfa)))
        if running.apart:
            bits = bits | bits_of([i for tail, _ in tails[-1] for i in tail.ids], words)
            bits &= ~bits_of(np.concatenate([vocabulary.below(node) for node in running.apart]), words)
        else:
            ids += [i for tail, _ in tails[-1] for i in tail.ids]
    many = None
    left = [exits for running in runs for exits in running.exits(dfa, vocabulary)]
    if below or left:
        nodes, states = (np.concatenate(parts) for parts in zip(columns(below), *left))
        many = vocabulary.trie.from_all(dfa, nodes, states)
        many = np.append(many[0], nodes[len(below) :]), np.append(many[1], states[len(below) :])
        ids += vocabulary.held(many[0], 0)[0].tolist()
    found = bits_of(ids, words)
    return Walked(found if bits is None else found | bits, legal, many, runs, tails)


def along(dfa: Arrays, tails: Iterable[tuple[Tail, int]]) -> list[tuple[Tail, int]]:
    """Return these tails, each with its state, and the legal ones below them."""
    few, after = dfa.few, dfa.after
    found = list(tails)
    for tail, at in found:
        if not tail.ways:
            continue
        ways = few(at)
        if ways is not None and len(ways) < len(tail.ways):
            found += [(child, to) for byte, to in ways.items() if (child := tail.ways.get(byte)) is not None]
        else:
            found += [(child, to) for byte, child in tail.ways.items() if (to := after(at, byte)) >= 0]
    return found


_Key = TypeVar("_Key")
_Run = TypeVar("_Run")


def _recent(known: dict[_Key, _Run], key: _Key, make: Callable[[], _Run]) -> _Run:
    """Return what is known of a key, of which the newest are kept."""
    found = known.pop(key, None) or make()
    known[key] = found
    while len(known) > _MOST_RUNS:
        known.pop(next(iter(known)), None)
    return found


_At = tuple[int, int]  # a node of the trie, and the state behind it


class _Edge(NamedTuple):
    """An edge of a trie without one-child nodes: the bytes to the next node, the ids that end there, and the edges from
    it by their first byte."""

    text: bytes
    ids: tuple[int, ...]
    edges: Mapping[int, _Edge]


def _edges(tokens: Sequence[tuple[bytes, int]], at: int) -> Mapping[int, _Edge]:
    """Return the edges of ascending tokens that share their first `at` bytes, all of them longer."""
    out: dict[int, _Edge] = {}
    for head, same in itertools.groupby(tokens, key=lambda token: token[0][at]):
        group = list(same)
        first, last = group[0][0], group[-1][0]
        end = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
        ends = tuple(i for text, i in group if len(text) == end)
        out[head] = _Edge(first[at:end], ends, _edges([t for t in group if len(t[0]) > end], end))
    return out


def _is_written_as_it_is(text: bytes) -> bool:
    """Return whether a text is whole characters, which a JSON string has as they are."""
    try:
        return all(char >= " " and char not in '"\\' for char in text.decode())
    except UnicodeDecodeError:
        return False


def _stepped(dfa: Arrays, todo: list[tuple[int, _Edge]]) -> list[int]:
    """Return the ids of legal texts of edges, each with the state before it."""
    found: list[int] = []
    while todo:
        at, (text, ids, edges) = todo.pop()
        if (end := dfa.step(at, text)) >= 0:
            found += ids
            if edges:
                heads = dfa.heads(end) if len(edges) > _NO_CHOICE else None
                todo += [(end, edge) for edge in edges.values()] if heads is None else _of_bytes(edges, end, heads)
    return found


def _of_bytes(edges: Mapping[int, _Edge], state: int, heads: Iterable[int]) -> list[tuple[int, _Edge]]:
    """Return the edges that begin with legal bytes."""
    return [(state, edge) for byte in heads if (edge := edges.get(byte)) is not None]
