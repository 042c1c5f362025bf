"""A deterministic backend without a model, for tests: answers are a hash of the prompt, or a script.

Bytes are tokens and each special token has an id of its own, so prompts can be compared token by token. Latency and
faults can be planted. Inside, a prompt is a string of one character per token, cheap to extend, hash and match.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import threading
import time
import traceback
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from lmc.backend.base import Capabilities, Counters, Hints, Output, Result, Usage, check_supported
from lmc.backend.mock_samples import sample_json, sample_regex
from lmc.chat import CHATML, ChatTemplate
from lmc.errors import ArgumentError, BackendError, CancelledError, LmcError, UnsupportedOpError
from lmc.prompt import (
    ChoicesMethod,
    Constraint,
    Gen,
    Image,
    Part,
    SamplingParams,
    Segment,
    Select,
    Special,
    Text,
    check_regex,
)

Ask = Gen | Select
Answers = Callable[[str, Ask], Any] | Mapping[str, Any] | Sequence[Any]
CAPABILITIES = Capabilities(
    "mock", frozenset({"regex", "json_schema"}), select=True, logprobs=False, images=False, n=True, streams=True
)

# -- tokens ----------------------------------------------------------------------------------------------------------

_KNOWN = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_FIRST_HASHED = 0xE000  # above the surrogates: ids are characters


@lru_cache(maxsize=1024)
def special_id(spelling: str) -> int:
    """The token id of a special token: the same in every process, and never that of a byte."""
    if spelling in _KNOWN:
        return 256 + _KNOWN.index(spelling)
    return _FIRST_HASHED + zlib.crc32(spelling.encode()) % (0x110000 - _FIRST_HASHED)


def _tokens(text: str) -> str:
    """Text as a string of one character per token, which for ASCII is the text itself."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")


def _text(tokens: str) -> str:
    return tokens if tokens.isascii() else tokens.encode("latin-1").decode("utf-8", "replace")


def encode(parts: Iterable[Part]) -> tuple[int, ...]:
    """Token ids of literal parts."""
    return tuple(map(ord, "".join(map(_part_tokens, parts))))


def _part_tokens(part: Part) -> str:
    if isinstance(part, str):
        return _tokens(part)
    return chr(special_id(part.spelling)) if isinstance(part, Special) else ""


class _Node:
    """A prompt: its last piece after its parent's. Token string, text and hash are made when they are asked for."""

    __slots__ = ("_hash", "_text", "_tokens", "answered", "length", "parent", "piece", "shown")

    def __init__(self, parent: _Node | None, piece: str, shown: str) -> None:
        """`piece` as tokens, `shown` as a person reads it."""
        self.parent, self.piece, self.shown = parent, piece, shown
        self.length: int = len(piece) + (parent.length if parent is not None else 0)
        self.answered: int = parent.answered if parent is not None else 0  # length up to the end of the last answer
        self._hash: Any = None
        self._tokens: str | None = None
        self._text: str | None = None

    @property
    def hash(self) -> Any:
        """A hash of the tokens; copy before use."""
        if self._hash is None:
            path = self._path(lambda node: node._hash is not None)
            made = path[0].parent._hash.copy() if path[0].parent is not None else blake2b(digest_size=32)
            for node in path:
                made.update(node.piece.encode("utf-8", "surrogatepass"))
            self._hash = made
        return self._hash

    @property
    def tokens(self) -> str:
        if self._tokens is None:
            path = self._path(lambda node: node._tokens is not None)
            start = path[0].parent._tokens if path[0].parent is not None else ""
            self._tokens = (start or "") + "".join([node.piece for node in path])
        return self._tokens

    @property
    def text(self) -> str:
        if self._text is None:
            path = self._path(lambda node: node._text is not None)
            start = path[0].parent._text if path[0].parent is not None else ""
            self._text = (start or "") + "".join([node.shown for node in path])
        return self._text

    def _path(self, known: Callable[[_Node], bool]) -> list[_Node]:
        """The nodes down to here whose nearest ancestor outside is known (or the root)."""
        path: list[_Node] = []
        node: _Node | None = self
        while node is not None and not known(node):
            path.append(node)
            node = node.parent
        path.reverse()
        return path


_ROOT = _Node(None, "", "")


# -- what is recorded ------------------------------------------------------------------------------------------------


class Call:
    """One request to the model: the prompt it saw, what it was asked, and nothing about when."""

    __slots__ = ("_node", "answer", "ask")

    def __init__(self, node: _Node, ask: Ask) -> None:
        self._node, self.ask = node, ask
        self.answer = ""  # as a token string, once known

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return tuple(map(ord, self._node.tokens))

    @property
    def prompt_text(self) -> str:
        return self._node.text

    @property
    def tokens(self) -> str:
        return self._node.tokens

    @property
    def name(self) -> str | None:
        return self.ask.name

    @property
    def seed(self) -> int:
        return self.ask.seed

    @property
    def params(self) -> SamplingParams | None:
        """None for a select."""
        return self.ask.params if isinstance(self.ask, Gen) else None

    @property
    def constraint(self) -> Constraint | None:
        return self.ask.constraint if isinstance(self.ask, Gen) else None

    @property
    def choices(self) -> tuple[str, ...] | None:
        return self.ask.choices if isinstance(self.ask, Select) else None

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two calls the same request: prompt tokens, parameters, constraint or choices, seed if it matters."""
        return (self._node.tokens, *_ask_key(self.ask))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        asked = f"choices={list(self.choices)}" if self.choices else f"max={self.ask.params.max_new_tokens}"  # pyright: ignore
        return f"Call({self.name!r}, …{self.prompt_text[-40:]!r}, {asked})"


def _ask_key(ask: Ask) -> tuple[Any, ...]:
    if isinstance(ask, Gen):
        return ask.params, ask.constraint, ask.seed if ask.params.temperature > 0 else 0
    return ask.choices, ask.method, ask.temperature, ask.seed if ask.temperature > 0 else 0


class _Trie:
    """Token strings seen so far: a radix tree, to count what a prefix cache would have had."""

    def __init__(self) -> None:
        self._edges: dict[str, tuple[str, _Trie]] = {}

    def match(self, tokens: str) -> int:
        """Length of the longest prefix of `tokens` that was inserted."""
        return self._walk(tokens)[2]

    def insert(self, tokens: str) -> None:
        node, rest, _ = self._walk(tokens, split=True)
        if rest:
            node._edges[rest[0]] = rest, _Trie()

    def _walk(self, tokens: str, split: bool = False) -> tuple[_Trie, str, int]:
        """The deepest node on the way, the tokens after it, and how many tokens matched (also inside an edge)."""
        node, at = self, 0
        while at < len(tokens) and tokens[at] in node._edges:
            label, child = node._edges[tokens[at]]
            if not tokens.startswith(label, at):
                shared = _common(label, tokens[at : at + len(label)])
                if split:
                    middle = _Trie()
                    middle._edges[label[shared]] = label[shared:], child
                    node._edges[label[0]] = label[:shared], middle
                    node, at = middle, at + shared
                    return node, tokens[at:], at
                return node, tokens[at:], at + shared
            node, at = child, at + len(label)
        return node, tokens[at:], at


def _common(a: str, b: str) -> int:
    """Length of the common prefix, by bisection: comparing slices is faster than a loop."""
    if a == b[: len(a)]:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# -- answers ---------------------------------------------------------------------------------------------------------

_WORDS = tuple(a + b for a in ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")
               for b in ("", "lan", "mer", "nit", "ros", "tu", "la", "me", "ni", "ro", "ta", "ve", "kin", "dor", "sul", "pa"))  # fmt: skip
_BUDGET = 1 << 14  # bytes of an answer that ignores EOS and names no limit


@lru_cache(maxsize=4096)
def _ask_bytes(key: tuple[Any, ...]) -> bytes:
    """What of a request its answer depends on, as bytes; equal numbers of different type are the same."""
    return repr(_plain(key)).encode()


def _plain(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_plain(item) for item in x)
    if isinstance(x, (SamplingParams, Constraint)):
        return tuple(_plain(getattr(x, f.name)) for f in fields(x))
    return float(x) if isinstance(x, int) else str(x) if isinstance(x, str) else x


def _digest(node: _Node, ask: Ask, sample: int = 0) -> bytes:
    made = node.hash.copy()
    made.update(b"\xff")
    if isinstance(ask, Gen):
        made.update(_ask_bytes((ask.params, ask.constraint)))
        sampled = ask.params.temperature > 0
    else:
        made.update(_ask_bytes((ask.choices, ask.method, ask.temperature)))
        sampled = ask.temperature > 0
    if sampled:
        made.update(b"\xff%d.%d" % (ask.seed, sample))
    return made.digest()


def _words(digest: bytes, at_least: int) -> str:
    """Readable nonsense: two to seven words, or as many as give `at_least` bytes."""
    text = " ".join([_WORDS[b] for b in digest[1 : 3 + digest[0] % 6]])
    while len(text) < at_least:
        digest = blake2b(digest, digest_size=32).digest()
        text += " " + " ".join([_WORDS[b] for b in digest])
    return text


def _hash_answer(node: _Node, ask: Gen, sample: int) -> str:
    digest = _digest(node, ask, sample)
    params, constraint = ask.params, ask.constraint
    if constraint is None:
        wanted = min(params.max_new_tokens, _BUDGET) if params.ignore_eos else params.min_new_tokens
        return _words(digest, wanted)
    if constraint.kind == "regex":
        return sample_regex(constraint.source, digest, ask.loc)
    return sample_json(json.loads(constraint.source), digest, ask.loc)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A raw answer after stop strings and limits: text, tokens and how it ended."""

    text: str
    tokens: str
    finish: Mapping[str, Any]


def _finish(raw: str, params: SamplingParams, stops: tuple[str, ...]) -> _Answer:
    """Cuts a raw answer at the first stop string and at the limit, in that order of position."""
    finish: dict[str, Any] = {"type": "stop", "matched": None}
    cut = len(raw)
    for stop in stops:
        at = raw.find(stop, 0, cut + len(stop) - 1)
        if 0 <= at < cut:
            cut, finish = at, {"type": "stop", "matched": stop}
    for pattern in params.stop_regex:
        found = re.search(pattern, raw[:cut])
        if found is not None:
            cut, finish = found.start(), {"type": "stop", "matched": found.group()}
    text = raw if cut == len(raw) else raw[:cut]
    tokens = _tokens(text)
    limit = params.max_new_tokens
    if len(tokens) > limit or (len(tokens) == limit and params.ignore_eos):
        tokens, finish = tokens[:limit], {"type": "length", "length": limit}
        text = _whole_characters(tokens)
        tokens = _tokens(text)
    return _Answer(text, tokens, finish)


def _whole_characters(tokens: str) -> str:
    """The text of tokens whose last character may be cut."""
    return tokens if tokens.isascii() else tokens.encode("latin-1").decode("utf-8", "ignore")


def _gen_output(node: _Node, ask: Gen, scripted: Any, stops: tuple[str, ...]) -> tuple[Output, str]:
    params = ask.params
    answers = [_finish(raw, params, params.stop + stops) for raw in _raw_answers(node, ask, scripted)]
    tokens = 0
    metas: list[Mapping[str, Any]] = []
    for answer in answers:
        tokens += len(answer.tokens)
        metas.append(_meta(node, len(answer.tokens)) | {"finish_reason": answer.finish})
    usage = Usage(node.length, tokens, node.answered, 0, 1, max(1, tokens))
    return Output(tuple([answer.text for answer in answers]), tuple(metas), usage), answers[0].tokens


def _raw_answers(node: _Node, ask: Gen, scripted: Any) -> Sequence[str]:
    n = ask.params.n
    if scripted is None:
        sampled = n if ask.params.temperature > 0 else 1
        raws = [_nonempty(node, ask, sample) for sample in range(sampled)]
        return raws if sampled == n else raws * n
    if isinstance(scripted, str):
        return [scripted] * n
    if not isinstance(scripted, (list, tuple)) or len(scripted) != n or not all(isinstance(t, str) for t in scripted):  # pyright: ignore
        raise BackendError(
            f"the scripted answer for {ask.name!r} must be text or a list of {n} texts, not {scripted!r}"
        )
    return scripted  # pyright: ignore[reportUnknownVariableType]


def _nonempty(node: _Node, ask: Gen, sample: int) -> str:
    """A hashed answer that does not start with a stop string, if one of the first few does not."""
    raw = _hash_answer(node, ask, sample)
    for again in range(1, 8):
        if not ask.params.stop or not raw.startswith(ask.params.stop):
            break
        raw = _hash_answer(node, ask, sample + again * 1_000_003)
    return raw


def _meta(node: _Node, completion: int) -> dict[str, Any]:
    """What every answer says of itself; a function of the prompt alone, whatever the order of requests was."""
    return {
        "id": f"mock-{node.hash.hexdigest()[:12]}",
        "prompt_tokens": node.length,
        "completion_tokens": completion,
        "cached_tokens": node.answered,
    }


def _select_output(node: _Node, ask: Select, scripted: Any) -> tuple[Output, str]:
    scores = _scores(node, ask)
    if scripted is not None:
        if scripted not in ask.choices:
            raise BackendError(
                f"the scripted answer for {ask.name!r} is {scripted!r}, which is not one of {list(ask.choices)}"
            )
        scores[ask.choices.index(scripted)] = 0.0
    chosen = ask.choices[scores.index(max(scores))]
    tokens = [_tokens(choice) for choice in ask.choices]
    meta = (
        _meta(node, 0)
        | {
            "normalized_prompt_logprobs": scores,
            "input_token_logprobs": [
                [[score, ord(token), token] for token in row] for score, row in zip(scores, tokens, strict=True)
            ],
            "output_token_logprobs": [[] for _ in tokens],
        }
        | _EXTRA[ask.method](scores)
    )
    output = Output((chosen,), (meta,), Usage(node.length, 0, node.answered, 0, 1, 1))
    return output, _tokens(chosen)


_EXTRA: Mapping[ChoicesMethod, Callable[[list[float]], dict[str, Any]]] = {
    ChoicesMethod.TOKEN_LENGTH_NORMALIZED: lambda scores: {},
    ChoicesMethod.GREEDY_TOKEN_SELECTION: lambda scores: {"greedy_logprob_matrix": [[score] for score in scores]},
    ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED: lambda scores: {
        "normalized_unconditional_prompt_logprobs": scores
    },
}


def _scores(node: _Node, ask: Select) -> list[float]:
    """A log-probability in (-8, 0) for each choice, different ones for different prompts."""
    digest = _digest(node, ask)
    while len(digest) < 4 * len(ask.choices):
        digest += blake2b(digest, digest_size=32).digest()
    return [-0.01 - int.from_bytes(digest[4 * i : 4 * i + 4], "big") / 2**29 for i in range(len(ask.choices))]


def _check_constraint(constraint: Constraint, ask: Gen) -> None:
    """Raises for a constraint that the mock cannot follow, at the ask's place."""
    try:
        _check_source(constraint)
    except LmcError as error:
        raise _placed(error, ask) from None


@lru_cache(maxsize=1024)
def _check_source(constraint: Constraint) -> None:
    if constraint.kind == "regex":
        sample_regex(check_regex(constraint.source), b"")
    else:
        sample_json(json.loads(constraint.source), b"")


def _placed(error: Exception, ask: Ask) -> Exception:
    if isinstance(error, LmcError) and error.loc is None:
        error.loc = ask.loc
    return error


# -- scripts ---------------------------------------------------------------------------------------------------------

_Script = Callable[[_Node, Ask], Any]


def _script(answers: Answers | None) -> _Script | None:
    """One function from prompt and ask to the scripted answer, None where the hash decides."""
    if answers is None:
        return None
    if isinstance(answers, Mapping):
        by_name: dict[str, _Script] = {name: _script_of(name, answer) for name, answer in answers.items()}
        return lambda node, ask: by_name[ask.name](node, ask) if ask.name in by_name else None  # pyright: ignore
    if callable(answers):
        return lambda node, ask: answers(node.text, ask)
    if isinstance(answers, (list, tuple)):
        return _in_order("the calls", answers)
    raise ArgumentError(f"Mock(answers=…) takes a function, a mapping or a list, not {answers!r}")


def _script_of(name: str, answer: Any) -> _Script:
    if callable(answer):
        return lambda node, ask: answer(node.text, ask)
    if isinstance(answer, (list, tuple)):
        return _in_order(repr(name), answer)  # pyright: ignore[reportUnknownArgumentType]
    if answer is not None and not isinstance(answer, str):
        raise ArgumentError(f"Mock(answers={{{name!r}: …}}) takes text, a list or a function, not {answer!r}")
    return lambda node, ask: answer


def _in_order(what: str, answers: Sequence[Any]) -> _Script:
    numbers = itertools.count()  # its next() is atomic

    def script(node: _Node, ask: Ask) -> Any:
        number = next(numbers)
        if number >= len(answers):
            raise BackendError(f"the {len(answers)} scripted answers for {what} are used up")
        answer = answers[number]
        return answer(node.text, ask) if callable(answer) else answer

    return script


# -- time ------------------------------------------------------------------------------------------------------------


class _Timer:
    """Calls functions at given times, all on one thread that starts when it is first needed."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, when: float, call: Callable[[], object]) -> None:
        """`when` as `time.monotonic()` counts."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._due, (when, next(self._order), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lmc-mock", daemon=True)
                self._thread.start()
            if self._due[0][2] is call:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            call = self._next()
            if call is None:
                return
            try:
                call()
            except Exception:  # a callback of a reader: shown, and the others still get their answers
                traceback.print_exc()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
        return None


# -- the backend -----------------------------------------------------------------------------------------------------


class MockHandle:
    """A prompt inside the mock. `node` is its end once every answer in it is there."""

    __slots__ = ("__weakref__", "_backend", "_children", "_index", "_next", "_segments", "error", "node", "results")

    def __init__(self, backend: Mock, segments: tuple[Segment, ...], results: tuple[Result, ...]) -> None:
        self._backend, self._segments, self.results = backend, segments, results
        self._index = self._next = 0  # of the segment to do next, and of its result
        self._children: list[MockHandle] = []  # submitted, waiting for this one
        self.node: _Node | None = None
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """Stops unfinished work; its results, and those of its descendants, fail with CancelledError."""
        self._backend._cancel(self)


class Mock:
    """A backend whose answers are computed: `f(hash of prompt tokens, parameters, seed if temperature > 0)`, or scripted.

    answers   `f(prompt_text, ask)`, or a mapping from variable names to answers, or a list of answers in call order. An
              answer is text, a list of texts for n > 1, or None for the hash; in a mapping also a list used in order or
              such a function. Stops and limits apply to scripted answers too.
    latency   seconds from the moment a prompt is known to its answer, or `f(ask)` that gives them; 0 answers at once
    fault     `f(ask, index of the call)` that gives the exception a call fails with, or None
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        latency: float | Callable[[Ask], float] = 0.0,
        fault: Callable[[Ask, int], BaseException | None] | None = None,
        chat_template: ChatTemplate = CHATML,
        capabilities: Capabilities = CAPABILITIES,
        parse_special: bool = False,
    ) -> None:
        if parse_special:
            raise UnsupportedOpError("parse_special=True", "mock", "use lmc.special(…)")
        self.chat_template, self.capabilities = chat_template, capabilities
        self.call_log: list[Call] = []
        self._script = _script(answers)
        self._latency: Callable[[Ask], float] = latency if callable(latency) else lambda _: latency
        self._instant = latency == 0
        self._fault = fault
        self._calls = itertools.count()
        self._lock = threading.Lock()  # guards waiting children and the pending set
        self._pending: set[MockHandle] = set()
        self._timer = _Timer()
        self._journal: list[Call | _Node] = []  # calls and prefills, to be counted when somebody asks
        self._counted = 0
        self._counters = Counters()
        self._trie = _Trie()
        self._warned: set[str] = set()
        self._closed = False

    # -- the protocol

    def submit(self, parent: MockHandle | None, segments: Sequence[Segment], hints: Hints | None = None) -> MockHandle:
        segments = tuple(segments)
        check_supported(self.capabilities, segments)
        if self._closed:
            raise BackendError("the mock backend is closed")
        asks = [s for s in segments if isinstance(s, (Gen, Select))]
        for ask in asks:
            if isinstance(ask, Gen) and ask.constraint is not None:
                _check_constraint(ask.constraint, ask)
        handle = MockHandle(self, segments, tuple([Result() for _ in asks]))
        start = self._start(parent, handle)
        if start is not None:
            self._go([(handle, start)])
        return handle

    def prefill(self, parent: MockHandle | None, segments: Sequence[Segment], hints: Hints | None = None) -> MockHandle:
        return self.submit(parent, segments, hints)

    def release(self, handle: MockHandle) -> None:
        """Nothing is pinned."""

    def flush_cache(self) -> None:
        """Forgets which prompts were computed."""
        with self._lock:
            self._count()
            self._trie = _Trie()

    def server_info(self) -> dict[str, Any]:
        return {"name": "mock", "tokenizer": "bytes", "calls": len(self.call_log)}

    def close(self) -> None:
        self._closed = True
        with self._lock:
            pending = list(self._pending)
        for handle in pending:
            handle.cancel()
        self._timer.close()

    # -- running chains

    def _start(self, parent: MockHandle | None, handle: MockHandle) -> _Node | None:
        """The prompt that `handle` extends, or None when it waits for its parent (or failed with it)."""
        if parent is None:
            return _ROOT
        if parent.node is not None:
            return parent.node
        with self._lock:
            if parent.node is None and parent.error is None:
                parent._children.append(handle)
                self._pending.add(handle)
                return None
        if parent.error is not None:
            self._fail(handle, parent.error)
        return parent.node

    def _go(self, work: list[tuple[MockHandle, _Node]]) -> None:
        """Does what can be done now: from each prompt on to the next answer that takes time, then its children."""
        queue = deque(work)
        while queue:
            handle, node = queue.popleft()
            end = self._advance(handle, node)
            if end is not None:
                queue.extend((child, end) for child in self._complete(handle, end))

    def _advance(self, handle: MockHandle, node: _Node) -> _Node | None:
        """The end of the handle's chain, or None when it waits or failed."""
        segments = handle._segments
        while handle._index < len(segments) and handle.error is None:
            segment = segments[handle._index]
            handle._index += 1
            if isinstance(segment, Text):
                node = self._literal(node, segment.parts)
                continue
            assert not isinstance(segment, Image), "refused by the capabilities"
            result = handle.results[handle._next]
            handle._next += 1
            try:
                output, piece = self._ask(node, segment)
                delay = 0.0 if self._instant else self._latency(segment)
            except Exception as error:  # planted or from a script: it belongs to this request
                self._fail(handle, _placed(error, segment))
                return None
            after = _Node(node, piece, output.texts[0])
            after.answered = after.length
            if delay > 0:
                with self._lock:
                    self._pending.add(handle)
                self._later(handle, result, output, after, delay)
                return None
            result.finish(output)
            node = after
        if not handle.results:
            self._journal.append(node)  # a prefill
        return node

    def _later(self, handle: MockHandle, result: Result, output: Output, after: _Node, delay: float) -> None:
        """Streams the first text in three deltas, the last of which comes with the answer."""
        now, text = time.monotonic(), output.texts[0]
        third = len(text) // 3
        if third:
            self._timer.at(now + delay / 3, lambda: None if result.done else result.feed(text[:third]))
            self._timer.at(now + delay * 2 / 3, lambda: None if result.done else result.feed(text[third : 2 * third]))

        def arrive() -> None:
            if handle.error is None:
                result.finish(output)
                self._go([(handle, after)])

        self._timer.at(now + delay, arrive)

    def _complete(self, handle: MockHandle, end: _Node) -> list[MockHandle]:
        with self._lock:
            if handle.error is not None:  # cancelled meanwhile
                return []
            handle.node = end
            self._pending.discard(handle)
            children, handle._children = handle._children, []
            return children

    def _fail(self, handle: MockHandle, error: BaseException) -> None:
        """Fails what is unfinished in a handle, and everything that waits for it, with the same error."""
        failing = [handle]
        while failing:
            one = failing.pop()
            with self._lock:
                if one.node is not None or one.error is not None:
                    continue
                one.error = error
                self._pending.discard(one)
                failing += one._children
                one._children = []
            for result in one.results:
                result.fail(error)  # those that are done keep their answers

    def _cancel(self, handle: MockHandle) -> None:
        names = ", ".join(repr(s.name) for s in handle._segments if isinstance(s, (Gen, Select)))
        self._fail(handle, CancelledError(f"the request for {names or 'a prefill'} was cancelled"))

    # -- one prompt, one answer

    def _literal(self, node: _Node, parts: Sequence[Part]) -> _Node:
        if len(parts) == 1 and parts[0].__class__ is str:
            text: str = parts[0]  # pyright: ignore[reportAssignmentType]
            if "<|" in text:
                self._warn(text)
            node = _Node(node, _tokens(text), text)
        else:
            for part in parts:
                if isinstance(part, str) and "<|" in part:
                    self._warn(part)
            shown = "".join([p if p.__class__ is str else p.spelling if p.__class__ is Special else "" for p in parts])  # pyright: ignore
            node = _Node(node, "".join(map(_part_tokens, parts)), shown)
        return node

    def _warn(self, text: str) -> None:
        for spelling in _KNOWN:
            if spelling in text and spelling not in self._warned:
                self._warned.add(spelling)
                warnings.warn(
                    f"text contains {spelling}, which stays ordinary text; write lmc.special({spelling!r}) for the token",
                    stacklevel=2,
                )

    def _ask(self, node: _Node, ask: Ask) -> tuple[Output, str]:
        """The answer to `ask` after `node`, and the tokens with which the prompt goes on."""
        call = Call(node, ask)
        number = next(self._calls)
        self.call_log.append(call)
        self._journal.append(call)
        if self._fault is not None:
            error = self._fault(ask, number)
            if error is not None:
                raise error
        scripted = self._script(node, ask) if self._script is not None else None
        if isinstance(ask, Gen):
            output, call.answer = _gen_output(node, ask, scripted, self.chat_template.stop)
        else:
            output, call.answer = _select_output(node, ask, scripted)
        return output, call.answer

    # -- counting

    def counters(self) -> Counters:
        with self._lock:
            return self._count()

    def _count(self) -> Counters:
        """Replays the journal since the last time against the trie: what a prefix cache would have computed."""
        journal, self._counted = self._journal[self._counted :], len(self._journal)
        for entry in journal:
            call = entry if isinstance(entry, Call) else None
            tokens = call.tokens if call is not None else entry.tokens
            cached = self._trie.match(tokens)
            self._trie.insert(tokens + call.answer if call is not None else tokens)
            fresh = len(tokens) - cached
            answer = len(call.answer) if call is not None else 0
            self._counters = Counters(
                calls=self._counters.calls + (call is not None),
                prompt_tokens=self._counters.prompt_tokens + (len(tokens) if call is not None else 0),
                cached_tokens=self._counters.cached_tokens + (cached if call is not None else 0),
                prefilled_tokens=self._counters.prefilled_tokens + fresh,
                unique_tokens=self._counters.unique_tokens + fresh,
                generated_tokens=self._counters.generated_tokens + answer,
                passes=self._counters.passes + max(1, answer),
                rows=self._counters.rows + fresh + answer,
            )
        return self._counters
