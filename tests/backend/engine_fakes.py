"""A vocabulary, a model and a constraint without torch. The model's next token depends on every token whose KV it
reads, and on its order, so that a wrong page, a wrong position or a page written too late gives another text."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from lmc.backend.base import Hints
from lmc.backend.engine.automaton import ConstraintCompiler, ConstraintInfo
from lmc.backend.engine.encoding import TokenizerProtocol
from lmc.backend.engine.engine import EngineCore
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.token_ids import BROKEN, PENDING, STUCK, TokenLogprob, Top
from lmc.backend.local import LocalBackend
from lmc.chat import CHATML
from lmc.errors import ConstraintError, ProgramError
from lmc.fsm.minimise import DEAD
from lmc.fsm.tokens import TokenAutomaton
from lmc.segments import Constraint, Gen, Part, SamplingParams, Special, Text

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIALS = {"<s>": BOS, "</s>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
MERGES = [b"ab", b"the ", b"END", b"\xe4\xb8", b"aE", b"EN", b" cat", b"cd", b"abcd", b"xyz", b"yes", b"no"]
PIECES = re.compile(b"|".join(sorted(MERGES, key=len, reverse=True)) + rb"|.", re.DOTALL)
FIRST_MERGE = 260
VOCAB = FIRST_MERGE + len(MERGES)


class FakeWords:
    """Bytes and a few merges, longest match first."""

    eos_token_ids = (EOS,)
    bos_token_id = BOS
    add_bos = False
    vocab_size = VOCAB
    special_ids = frozenset(SPECIALS.values())
    prefixes_behind_specials = False

    def __init__(self) -> None:
        self.encoded_bytes = 0

    def least(self, texts: Iterable[str]) -> int:
        return sum(map(len, texts)) // max(map(len, MERGES))

    def encode(self, parts: Sequence[Part], *, at_start: bool = True) -> list[int]:
        ids: list[int] = []
        run = b""
        for part in parts:
            if isinstance(part, str):
                run += part.encode()
            elif isinstance(part, Special):
                ids += [*self._run(run), self.id_of(part.spelling)]
                run = b""
        return ids + self._run(run)

    def _run(self, data: bytes) -> list[int]:
        self.encoded_bytes += len(data)
        return [FIRST_MERGE + MERGES.index(piece) if piece in MERGES else piece[0] for piece in PIECES.findall(data)]

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return MERGES[token - FIRST_MERGE] if token >= FIRST_MERGE else b""

    def decode(self, ids: Sequence[int], *, with_specials: bool = False, at_start: bool = True) -> str:
        names = {v: k.encode() for k, v in SPECIALS.items()} if with_specials else {}
        return b"".join(names.get(i, self.token_bytes(i)) for i in ids).decode("utf-8", "replace")

    def detokenizer(self) -> FakeDetokenizer:
        return FakeDetokenizer(self)

    def id_of(self, special: str) -> int:
        if special not in SPECIALS:
            raise ProgramError(f"this model has no special token {special!r}")
        return SPECIALS[special]

    def blocks(self, text: str) -> list[str]:
        return [text]

    def last_cut(self, text: str, start: int, end: int) -> int:
        return start

    def split_specials(self, text: str) -> tuple[Part, ...]:
        pieces = re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text)
        return tuple(Special(p) if i % 2 else p for i, p in enumerate(pieces) if p)


class FakeDetokenizer:
    def __init__(self, words: FakeWords, pending: bytes = b"") -> None:
        self._words, self._pending = words, pending

    def push(self, token: int) -> str:
        data = self._pending + self._words.token_bytes(token)
        for keep in range(min(3, len(data)) + 1):
            try:
                text = data[: len(data) - keep].decode()
            except UnicodeDecodeError:
                continue
            self._pending = data[len(data) - keep :]
            return text
        self._pending = b""
        return data.decode("utf-8", "replace")

    def push_all(self, tokens: Iterable[int]) -> list[str]:
        return [self.push(token) for token in tokens]

    def flush(self) -> str:
        text, self._pending = self._pending.decode("utf-8", "replace"), b""
        return text

    def fork(self) -> FakeDetokenizer:
        return FakeDetokenizer(self._words, self._pending)


LETTERS = [97, 98, 32, 99, FIRST_MERGE, FIRST_MERGE + 1, 100, FIRST_MERGE + 5, 69, 78, 68, 101]


def next_token(context: Sequence[int] | np.ndarray, noise: int = 0, allowed: Sequence[int] | None = None) -> int:
    """The model: a function of the whole context."""
    key = zlib.crc32(np.asarray(context, np.int32).tobytes() + noise.to_bytes(8, "little"))
    choices = LETTERS if allowed is None else allowed
    return choices[key % len(choices)]


def logprob(context: Sequence[int] | np.ndarray, token: int, before: int = 0) -> float:
    """Of a token behind a context, and what is before that as its checksum."""
    context_sum = zlib.crc32(np.asarray(context, np.int32).tobytes(), before)
    return -(zlib.crc32(int(token).to_bytes(4, "little", signed=True), context_sum) % 1000 + 1) / 100


def top(context: Sequence[int] | np.ndarray, n: int) -> Top:
    """The `n` likeliest letters."""
    if not n:
        return ()
    before = zlib.crc32(np.asarray(context, np.int32).tobytes())
    return tuple(sorted(((logprob((), letter, before), letter) for letter in LETTERS), reverse=True)[:n])


class FakeRunner:
    """Stores each row's token in its slot and reads contexts back from the slots.

    script: token ids to answer with instead, per prompt text end (see `say`).
    """

    def __init__(self, num_slots: int, eos: int = EOS) -> None:
        self.eos = eos
        self.slots = np.full(num_slots, -1, np.int64)
        self.positions = np.full(num_slots, -1, np.int64)
        self.namespaces = np.full(num_slots, -1, np.int64)
        self.far = np.zeros(num_slots, bool)
        self.script: dict[tuple[int, ...], Sequence[int]] = {}
        self.passes: list[int] = []
        self.fail_with: BaseException | None = None
        self.fail_result: BaseException | None = None
        self.broken: set[int] = set()  # orders of requests whose logits are no numbers
        self.flying = 0

    def say(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """After `prompt` the model says `answer`, token by token, then EOS."""
        ids = tuple(int(i) for i in prompt)
        for i, token in enumerate([*answer, self.eos]):
            self.script[ids + tuple(answer[:i])] = [token]

    def seconds(self, work: ModelPass) -> float:
        """That a pass has taken, for those who learn from it."""
        return work.rows / 1000

    def run(self, work: ModelPass) -> PassOutput:
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        self.passes.append(work.rows)
        self._write(work)
        for span in work.spans:
            assert (self.positions[span.slots] == np.arange(len(span.slots))).all(), "a slot of another position"
            theirs = zlib.crc32(span.request.namespace.encode())
            assert (self.namespaces[span.slots] == theirs).all(), "a slot of another namespace"
            assert (self.far[span.slots] == span.is_far).all(), "a slot of a sequence of another length"
            if (near := span.request.near) is not None and span.request.kind is RequestKind.GENERATE:
                assert span.is_far == (span.request.wanted_len > near), "positions of a sequence of another length"
        contexts = self._contexts(work)
        tokens, logprobs = [], []
        for row, req in work.draws:
            assert req.answer is not None
            expected = self.known(req, req.ids[: len(contexts[row])], 0)
            assert (contexts[row] == expected).all(), "the pages hold another text"
            noise = req.seed + req.length - req.prompt_len if req.params.temperature > 0 else 0
            scripted = self.script.get(tuple(contexts[row].tolist()))
            allowed = self.allowed(req)
            if allowed == []:
                token = STUCK
            else:
                token = scripted[0] if scripted else self.next(contexts[row], noise & (2**63 - 1), allowed)
            tokens.append(BROKEN if getattr(req, "request", req).order in self.broken else token)
            logprobs.append(self._logprob(req, contexts[row], token))
        scores = [logprob(contexts[s.row], s.token) for s in work.scores]
        tops = [top(contexts[s.row], s.top) for s in work.scores]
        return PassOutput(tokens, logprobs, scores, tops)

    def _write(self, work: ModelPass) -> None:
        for span in work.spans:
            own = span.slots[span.position :]
            assert len(own) == len(span.ids)
            self.slots[own] = self.known(span.request, span.ids, span.position)
            self.positions[own] = np.arange(span.position, span.position + len(span.ids))
            self.namespaces[own] = zlib.crc32(span.request.namespace.encode())
            self.far[own] = span.is_far

    @staticmethod
    def _logprob(req: Request, context: np.ndarray, token: int) -> TokenLogprob | None:
        if not req.params.return_logprob:
            return None
        return TokenLogprob(token, logprob(context, token), top(context, req.params.top_logprobs_num or 0))

    def _contexts(self, work: ModelPass) -> dict[int, np.ndarray]:
        """Return the contents of the pages up to each row that is looked at."""
        wanted = iter(sorted({row for row, _ in work.draws} | {s.row for s in work.scores}))
        row, found, first = next(wanted, None), dict[int, np.ndarray](), 0
        for span in work.spans:
            while row is not None and row < first + len(span.ids):
                found[row] = self.slots[span.slots[: span.position + row - first + 1]]
                row = next(wanted, None)
            first += len(span.ids)
        return found

    def next(self, context: np.ndarray, noise: int, allowed: Sequence[int] | None) -> int:
        return next_token(context, noise, allowed)

    def allowed(self, req: Request) -> list[int] | None:
        """Return the tokens that the constraint allows next; None where there is no constraint."""
        assert req.answer is not None
        return ids_of(req.answer.matcher.bits) if req.answer.matcher is not None else None

    def known(self, req: Request, ids: np.ndarray, at: int) -> np.ndarray:
        """`ids`, which begin at position `at` of the request; here nothing may be pending."""
        assert PENDING not in ids, "a token that is not known yet"
        return ids


class FakeAheadRunner(FakeRunner):
    """The same on a device that works by itself: tokens are known to it at once, and to the host when a flight lands."""

    def __init__(self, num_slots: int, eos: int = EOS) -> None:
        super().__init__(num_slots, eos)
        self._sampled: dict[tuple[Request, int], int] = {}  # by the pass that was launched last
        self._behind: dict[Request, int] = {}  # the states behind that, of automata that the device follows
        self.launched = 0
        self._prepared: ModelPass | None = None
        self._early: ModelPass | None = None
        # passes that began before they were planned; of these, those that were foreseen, and those that were planned as they began
        self.begun = self.foreseen = self.continued = 0
        self._foreseen = False

    def prepare(self, work: ModelPass) -> bool:
        self._foreseen = self.flying == 1
        assert all(PENDING not in span.ids for span in work.spans)
        self._prepared = work
        return True

    def begin(self) -> None:
        assert self._prepared is not None and not self.flying
        self._early, self._prepared = self._prepared, None
        self.begun += 1
        self.foreseen += self._foreseen
        self._write(self._early)

    def known(self, req: Request, ids: np.ndarray, at: int) -> np.ndarray:
        pending = np.flatnonzero(ids == PENDING)
        if not len(pending):
            return ids
        ids = ids.copy()
        for i in pending:
            ids[i] = self._sampled[req, at + int(i)]
        return ids

    def place(self, req: Request) -> tuple[TokenAutomaton, int]:
        """Where an answer is before its next token: the host may not know it yet."""
        assert req.answer is not None and req.answer.matcher is not None and req.runs_free
        place = req.answer.matcher.place
        assert place is not None, "followed by the host alone"
        return (place[0], self._behind[req]) if req.awaited else place

    def allowed(self, req: Request) -> list[int] | None:
        if not (isinstance(req, Request) and req.awaited and req.answer is not None and req.answer.matcher is not None):
            return super().allowed(req)
        automaton, state = self.place(req)
        return ids_of(automaton.mask(state)) if state >= 0 else []

    def _advance(self, req: Request, token: int) -> int:
        automaton, state = self.place(req)
        return automaton.next(state, token) if min(state, token) >= 0 else DEAD

    def launch(self, work: ModelPass) -> FakeFlight:
        assert self.flying <= 1, "more than one step ahead"
        begun, self._early, self._prepared = self._early, None, None
        self.continued += begun is not None and begun.computes(work)
        output = self.run(work)
        sampled = zip(work.samples, output.tokens, strict=False)  # what is drawn behind drafts the host says
        bound = [(req, t) for (_, req), t in sampled if req.runs_free and req.answer and req.answer.matcher]
        self._behind = {req: self._advance(req, t) for req, t in bound}
        self._sampled = {(req, req.length): t for (_, req), t in zip(work.samples, output.tokens, strict=False)}
        self.flying += 1
        self.launched += 1
        return FakeFlight(self, output)


class Copies(FakeRunner):
    """A model that mostly says what it said after the same two tokens, so that drafts are often right."""

    def next(self, context: np.ndarray, noise: int, allowed: Sequence[int] | None) -> int:
        whole = zlib.crc32(context.astype(np.int32).tobytes()) % 8 == 0
        return next_token(context if whole else context[-2:], noise if whole else 0, allowed or LETTERS[:3])


class CopiesAhead(Copies, FakeAheadRunner): ...


class FakeFlight:
    over, seconds = True, 0.0

    def __init__(self, runner: FakeAheadRunner, output: PassOutput) -> None:
        self._runner, self._output = runner, output

    def result(self) -> PassOutput:
        self._runner.flying -= 1
        if self._runner.fail_result is not None:
            error, self._runner.fail_result = self._runner.fail_result, None
            raise error
        return self._output


class FakeMover:
    """Copies what a FakeRunner's slots hold at the last moment, when a copy is done: after it was looked at `late` times.

    fail: what the next copies raise;  is_slow: no more memory comes
    """

    token_bytes = 8
    is_slow = grows = False

    def __init__(self, runner: FakeRunner, capacity: int) -> None:
        self.runner, self.capacity, self._ready, self._wanted = runner, capacity, 0, 0
        self.rows = [np.full((capacity,), -2, np.int64) for _ in range(4)]
        self.late = 0
        self.fail: BaseException | None = None
        self.begun: list[FakeCopy] = []

    @property
    def ready(self) -> int:
        if not self.is_slow:
            self._ready = min(max(self._ready, self._wanted), self.capacity)
        return self._ready

    def want(self, slots: int) -> None:
        self._wanted = max(self._wanted, slots)

    def _stores(self) -> list[np.ndarray]:
        r = self.runner
        return [r.slots, r.positions, r.namespaces, r.far]

    def _copy(self, act: Callable[[], None]) -> FakeCopy:
        if self.fail is not None:
            raise self.fail
        copy = FakeCopy(act, self.late)
        self.begun.append(copy)
        return copy

    def out(self, device: np.ndarray, host: np.ndarray) -> FakeCopy:
        def act() -> None:
            for row, store in zip(self.rows, self._stores(), strict=True):
                row[host] = store[device]

        return self._copy(act)

    def back(self, host: np.ndarray, device: np.ndarray) -> FakeCopy:
        def act() -> None:
            for row, store in zip(self.rows, self._stores(), strict=True):
                store[device] = row[host]

        for store in self._stores():
            store[device] = -3
        return self._copy(act)

    def settle(self) -> None:
        for copy in self.begun:
            copy.wait()

    close = settle


class FakeCopy:
    seconds = 0.0

    def __init__(self, act: Callable[[], None], late: int) -> None:
        self._act: Callable[[], None] | None = act
        self._late = late

    def done(self) -> bool:
        self._late -= 1
        if self._late < 0:
            self.wait()
        return self._act is None

    def wait(self) -> None:
        if self._act is not None:
            self._act, act = None, self._act
            act()


def bits_of(ids: Sequence[int]) -> np.ndarray:
    flags = np.zeros((VOCAB + 31) // 32 * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)


def ids_of(bits: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


class FakeMatcher:
    """Digits, up to three; `done` after the third."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def bits(self) -> np.ndarray:
        return bits_of([*range(48, 58), *([EOS] if self.count else [])])

    few = closing = place = None
    forced_chance, horizon = 1.0, 0

    def allows(self, token: int) -> bool:
        return token in ids_of(self.bits)

    def accept(self, token: int) -> None:
        assert 48 <= token < 58
        self.count += 1

    def fork(self) -> FakeMatcher:
        made = FakeMatcher()
        made.count = self.count
        return made

    def forced(self) -> tuple[int, ...]:
        return ()

    def accept_forced(self, tokens) -> None:
        assert not tokens

    @property
    def complete(self) -> bool:
        return self.count > 0

    def check(self, text: str) -> None: ...

    @property
    def done(self) -> bool:
        return self.count == 3


class FakeCompiler:
    def check(self, constraint, loc) -> None:
        if constraint.source != "[0-9]{1,3}":
            raise ConstraintError(f"invalid regex {constraint.source!r}", loc=loc)

    def matcher(self, constraint, *, longer=False) -> FakeMatcher:
        return FakeMatcher()

    def info(self) -> ConstraintInfo:
        return ConstraintInfo()

    def close(self) -> None: ...


def backend(
    max_tokens: int = 4096,
    *,
    max_context: int = 2048,
    max_batch: int = 32,
    chunk: int = 64,
    words: TokenizerProtocol | None = None,
    compiler: ConstraintCompiler | None = None,
    runs: type[FakeRunner] = FakeRunner,
    host: int = 0,
    **options,
) -> tuple[LocalBackend, FakeRunner]:
    words = words or FakeWords()
    runner = runs(max_tokens, words.eos_token_ids[0])
    engine = LocalBackend(
        name="fake",
        vocabulary=words,
        chat_template=CHATML,
        runner=runner,
        compiler=compiler or FakeCompiler(),
        max_tokens=max_tokens,
        max_context=max_context,
        max_batch=max_batch,
        chunk=chunk,
        mover=FakeMover(runner, host) if host else None,
        **options,
    )
    return engine, runner


class SteppedCore(EngineCore):
    """No thread: the test says when a pass runs, and its runner how long that has taken, whatever this machine is busy with."""

    def launch(self) -> None: ...

    def give_way(self) -> None: ...  # there is no loop to wait for

    def _record(self, work: ModelPass, seconds: float, ended: float) -> None:
        super()._record(work, self._runner.seconds(work), ended)  # pyright: ignore

    @property
    def runner(self) -> Any:
        return self._runner


STEPPED = deque[LocalBackend](maxlen=8)
"""The last engines of `stepped`: conftest.py checks them when a test has ended."""


def stepped(max_tokens: int = 512, **options) -> tuple[LocalBackend, SteppedCore]:
    """A backend whose passes the test runs one by one: `while core.turn(): ...`."""
    engine, _ = backend(max_tokens, core=SteppedCore, **options)
    core = engine._core
    assert isinstance(core, SteppedCore)
    STEPPED.append(engine)
    return engine, core


def drain(core: SteppedCore, after_each: Callable[[], Any] = lambda: None) -> int:
    """Runs until idle; the number of passes."""
    for n in range(20_000):
        if not core.turn():
            return n
        after_each()
    raise AssertionError("the engine does not come to rest")


def gen(most: int = 4, constraint: Constraint | str | None = None, **options: Any) -> Gen:
    """A greedy answer. `constraint` may be a regex; `options` are sampling parameters, and what an ask has beside them."""
    others = {name: options.pop(name) for name in ("seed", "name", "loc") if name in options}
    wanted = Constraint("regex", constraint) if isinstance(constraint, str) else constraint
    return Gen(SamplingParams(**{"max_new_tokens": most, "temperature": 0.0} | options), wanted, **others)


def endless(most: int = 4) -> Gen:
    """A greedy answer that its bound alone ends."""
    return gen(most, ignore_eos=True)


@contextmanager
def reserving_little(short: int = 1) -> Iterator[None]:
    """For answers of more than `short` tokens room for one is reserved when they begin."""
    engine = "lmc.backend.engine"
    with (
        mock.patch(f"{engine}.request.SHORT", short),
        mock.patch(f"{engine}.reservations._LEAST", 1),
        mock.patch(f"{engine}.reservations._AHEAD", 2),
        mock.patch(f"{engine}.reservations._UNKNOWN", 1.0),
        mock.patch(f"{engine}.reservations.AnswerLengths.learn", lambda *_: None),
    ):
        yield


def reference_ids(prompt: Sequence[int], n: int) -> list[int]:
    """The greedy answer of `n` tokens, computed without any engine."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


def automata(words: TokenizerProtocol, *, forced: bool = True) -> ConstraintCompiler:
    """A compiler over a vocabulary."""
    return ConstraintCompiler(
        [words.token_bytes(i) for i in range(words.vocab_size)],
        words.special_ids,
        words.eos_token_ids[0],
        words.vocab_size,
        encode=(lambda text: words.encode((text,), at_start=False)) if forced else None,
    )


def run_cancelling(engine: LocalBackend, core: EngineCore, chains: Sequence[Sequence[Any]], cancelled: Sequence[int | None]) -> list[Any]:
    """Return the handles of random chains of gens in two namespaces, run to their ends turn by turn in a pool that reserves little.

    cancelled   the turn after which each is cancelled; None: it is not
    """
    handles = [
        engine.submit(None, [p for i, a in enumerate(chain) for p in (Text((f"{i} go go ",)), a)], Hints(namespace=str(n % 2)))
        for n, chain in enumerate(chains)
    ]
    with reserving_little():
        turns = 0
        while core.turn():
            turns += 1
            for handle, when in zip(handles, cancelled, strict=True):
                if when == turns:
                    handle.cancel()
            engine.check()
    return handles
