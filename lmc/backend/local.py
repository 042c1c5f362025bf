"""The local backend: segments become token requests for the engine in this process, and a handle is a place in a prompt.

A handle's prompt is  closed ids (as computed and as generated, never encoded again)  +  an open run of literal parts.
The open run is encoded as one whenever something is asked, whatever appends and forks cut it into; an answer closes it.

Who keeps what alive:

    Handle ──► _Step ──► its parent _Step (until it has started)       the engine knows steps only weakly:
    Result ──► _Step                                                   when nobody wants an answer any more,
    _Step  ╌╌► Result, children, (engine) Request                      its step dies and cancels its requests
"""

from __future__ import annotations

import atexit
import itertools
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from lmc.backend.base import Capabilities, Counters, Handle, Hints, Output, Result, Usage, check_supported
from lmc.backend.engine.answer import Answer, Words
from lmc.backend.engine.choices import Decision, decide
from lmc.backend.engine.constraint import KINDS, Compiler
from lmc.backend.engine.engine import EngineCore, Runner
from lmc.backend.engine.radix_cache import common_prefix
from lmc.backend.engine.request import Branch, Kind, Request
from lmc.backend.engine.scheduler import Scheduler
from lmc.chat import ChatTemplate
from lmc.errors import BackendError, CancelledError, ConstraintError, Loc, ProgramError, PromptTooLongError
from lmc.prompt import ChoicesMethod, Gen, Mark, Part, SamplingParams, Segment, Select, Special, Text

if TYPE_CHECKING:
    from lmc.backend.engine.models.loader import LoadedModel

_NO_IDS = np.empty(0, np.int32)


class Vocabulary(Words, Protocol):
    """What the local backend needs of a tokenizer (engine/tokenizer.py is one)."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    vocab_size: int
    special_ids: frozenset[int]

    def decode(self, ids: Sequence[int], *, with_specials: bool = False) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def id_of(self, special: str) -> int: ...

    def split_specials(self, text: str) -> tuple[Part, ...]: ...


# -- handles -----------------------------------------------------------------------------------------------------


class _State(Enum):
    WAITING = auto()  # for its parent's answer
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


class _Step:
    """One literal stretch and what is asked after it; knows its whole prompt once it is DONE."""

    __slots__ = (
        "__weakref__",
        "ask",
        "backend",
        "closed",
        "error",
        "hints",
        "open",
        "parent",
        "parts",
        "pending",
        "requests",
        "result",
        "state",
        "wants_prefill",
    )

    def __init__(
        self,
        backend: LocalBackend,
        parent: _Step | None,
        parts: tuple[Part, ...],
        ask: Gen | Select | None,
        hints: Hints,
    ) -> None:
        self.backend, self.parent, self.parts, self.ask, self.hints = backend, parent, parts, ask, hints
        self.state = _State.WAITING
        self.wants_prefill = False
        self.closed: np.ndarray = _NO_IDS
        self.open: tuple[Part, ...] = ()
        self.error: BaseException | None = None
        self.pending: list[weakref.ref[_Step]] = []  # children that wait for us
        self.requests: tuple[Request, ...] = ()
        self.result: weakref.ref[_LocalResult] | None = None

    def __del__(self) -> None:
        # may run in any thread, at any moment, also inside the garbage collector: only ever posts
        for req in self.requests:
            self.backend.forget(req)


class _LocalResult(Result):
    """A result that keeps its work alive for as long as somebody may read it."""

    __slots__ = ("__weakref__", "_step")

    def __init__(self, step: _Step) -> None:
        super().__init__()
        self._step = step


class LocalHandle:
    """A prompt inside the engine, up to and including its submission."""

    __slots__ = ("_results", "_steps")

    def __init__(self, steps: tuple[_Step, ...], results: tuple[Result, ...]) -> None:
        self._steps, self._results = steps, results

    @property
    def results(self) -> Sequence[Result]:
        return self._results

    @property
    def last(self) -> _Step:
        return self._steps[-1]

    @property
    def steps(self) -> tuple[_Step, ...]:
        return self._steps

    def cancel(self) -> None:
        """Stops what is unfinished; its results, and those of everything that depends on them, fail."""
        error = CancelledError("the request was cancelled before its answer was complete")
        for step in self._steps:
            step.backend.abort(step, error)


# -- the backend -------------------------------------------------------------------------------------------------


class LocalBackend:
    """The Backend protocol over an engine core. `Engine` is this with a model loaded; tests put their own parts in.

    seam="token": generated text keeps its ids.  seam="text": an answer's text joins the literal run and is encoded
    again with what follows, as engines that take only text do.
    """

    def __init__(
        self,
        *,
        name: str,
        vocabulary: Vocabulary,
        chat_template: ChatTemplate,
        runner: Runner,
        compiler: Compiler | None,
        max_tokens: int,
        max_context: int,
        max_batch: int = 64,
        chunk: int = 512,
        seed: int = 0,
        seam: Literal["token", "text"] = "token",
        core: type[EngineCore] = EngineCore,
    ) -> None:
        if seam not in ("token", "text"):
            raise ProgramError(f'seam is {seam!r}; it can be "token" or "text"')
        for option, value in (("max_tokens", max_tokens), ("max_batch", max_batch), ("chunk", chunk)):
            if value < 1:
                raise ProgramError(f"{option} is {value}; it must be at least 1")
        self._name, self._words, self._template, self._compiler = name, vocabulary, chat_template, compiler
        self._max_context, self._seed, self._seam = max_context, seed, seam
        self._limit = min(max_context, max_tokens)
        self._stop_ids, self._stop_strings = _template_stops(vocabulary, chat_template)
        self._encoder = _Encoder(vocabulary)
        self._lock = threading.Lock()  # step states and their pending lists
        self._ids = itertools.count()
        self._scheduler = Scheduler(max_tokens, max_batch=max_batch, chunk=chunk)
        self._core = core(self._scheduler, runner)
        self._finalizer = weakref.finalize(self, EngineCore.close, self._core)
        self._finalizer.atexit = False
        _OPEN.add(self._core)

    # -- the protocol ------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=f"Engine({self._name})",
            constraints=KINDS if self._compiler is not None else frozenset(),
            select=True,
            logprobs=True,
            n=True,
            streams=True,
            max_context=self._max_context,
        )

    @property
    def chat_template(self) -> ChatTemplate:
        return self._template

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> LocalHandle:
        """Extends `parent` by a chain of segments; see Backend.submit."""
        self._check_open()
        check_supported(self.capabilities, segments)
        for segment in segments:
            self._validate(segment)
        return self._enter(parent, segments, hints or Hints(), wants_prefill=False)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> LocalHandle:
        """Computes the KV of literal segments and pins it until `release`, or until the handle is dropped.

        The last tokens, which the text that follows may still change, are left for later.
        """
        self._check_open()
        check_supported(self.capabilities, segments)
        if any(isinstance(segment, Gen | Select) for segment in segments):
            raise ProgramError("prefill takes literal segments only; submit the others")
        return self._enter(parent, segments, hints or Hints(), wants_prefill=True)

    def release(self, handle: Handle) -> None:
        """Ends a pin."""
        assert isinstance(handle, LocalHandle)
        for step in handle.steps:
            if step.wants_prefill:
                for req in step.requests:
                    self.forget(req)

    def counters(self) -> Counters:
        return self._core.counters()

    def flush_cache(self) -> None:
        """Drops all cached KV that nothing running needs."""
        self._core.call(self._scheduler.flush)

    def server_info(self) -> dict[str, Any]:
        return {
            "model": self._name,
            "max_context": self._max_context,
            "max_tokens": self._scheduler.pool.num_slots,
            "max_batch": self._scheduler.max_batch,
            "chunk": self._scheduler.chunk,
            **self.stats(),
        }

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for people and tests ----------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Vocabulary:
        return self._words

    def stats(self) -> dict[str, Any]:
        """What the engine holds and does right now."""
        return self._core.stats()

    def check(self) -> None:
        """Raises AssertionError if a page leaks or a reference dangles."""
        self._core.call(self._scheduler.check)

    def prompt_ids(self, handle: Handle) -> list[int]:
        """The token ids of the whole prompt at a finished handle, its open run encoded as it stands."""
        assert isinstance(handle, LocalHandle)
        step = handle.last
        for result in handle.results:
            result.output()
        return self._whole(step.closed, step.open).tolist()

    # -- steps -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._core.closed:
            raise BackendError(f"Engine({self._name}) is closed")

    def _enter(
        self, parent: Handle | None, segments: Sequence[Segment], hints: Hints, *, wants_prefill: bool
    ) -> LocalHandle:
        if parent is not None and not isinstance(parent, LocalHandle):
            raise BackendError(f"a handle of {type(parent).__name__} was given to Engine({self._name})")
        step = parent.last if parent is not None else None
        steps: list[_Step] = []
        results: list[Result] = []
        for parts, ask in _stretches(segments):
            step = _Step(self, step, parts, ask, hints)
            steps.append(step)
            if ask is not None:
                result = _LocalResult(step)
                step.result = weakref.ref(result)
                results.append(result)
        steps[-1].wants_prefill = wants_prefill
        for step in steps:
            self._await_parent(step)
        return LocalHandle(tuple(steps), tuple(results))

    def _await_parent(self, step: _Step) -> None:
        """Starts `step` now if its parent's answer is there, else when it comes."""
        parent = step.parent
        if parent is not None:
            with self._lock:
                if parent.state in (_State.WAITING, _State.RUNNING):
                    parent.pending.append(weakref.ref(step))
                    return
        self._begin(step)

    def _begin(self, step: _Step) -> None:
        """The parent is finished: ask. Raises what is wrong with the request, after failing the step with it."""
        parent, step.parent = step.parent, None
        if parent is not None and parent.error is not None:
            return self._fail(step, parent.error)
        closed, open_parts = (parent.closed, parent.open) if parent is not None else (_NO_IDS, ())
        try:
            self._ask(step, closed, (*open_parts, *step.parts))
        except Exception as error:
            self._fail(step, error)
            raise

    def _ask(self, step: _Step, closed: np.ndarray, run: tuple[Part, ...]) -> None:
        if isinstance(step.ask, Gen):
            requests = self._gen_requests(step, step.ask, closed, run)
        elif isinstance(step.ask, Select):
            requests = (self._select_request(step, step.ask, closed, run),)
        else:
            if step.wants_prefill:
                self._start_prefill(step, closed, run)
            return self._complete(step, closed, run, None)
        with self._lock:
            if step.state is not _State.WAITING:
                return  # cancelled meanwhile
            step.state, step.requests = _State.RUNNING, requests
        self._send(requests)

    def _send(self, requests: Sequence[Request]) -> None:
        if self._core.on_thread:
            for req in requests:
                self._core.start(req)
        else:
            for req in requests:
                self._core.submit(req)

    def _complete(self, step: _Step, closed: np.ndarray, run: tuple[Part, ...], output: Output | None) -> None:
        with self._lock:
            if step.state is _State.FAILED:
                return
            step.closed, step.open = closed, run
            if not step.wants_prefill:
                step.requests = ()
            step.state = _State.DONE
            pending, step.pending = step.pending, []
        if output is not None and (result := _alive(step.result)) is not None:
            result.finish(output)
        self._start_children(pending)

    def _fail(self, step: _Step, error: BaseException) -> None:
        with self._lock:
            if step.state in (_State.DONE, _State.FAILED):
                return
            step.state, step.error = _State.FAILED, error
            requests, step.requests = step.requests, ()
            pending, step.pending = step.pending, []
        for req in requests:
            self._core.cancel(req)
        if (result := _alive(step.result)) is not None:
            result.fail(error)
        self._start_children(pending)

    def _start_children(self, pending: list[weakref.ref[_Step]]) -> None:
        for ref in pending:
            child = ref()
            if child is None:
                continue
            try:
                self._begin(child)
            except Exception:
                if child.error is None:
                    raise  # not the request's fault; _begin has failed the child otherwise

    def abort(self, step: _Step, error: BaseException) -> None:
        self._fail(step, error)

    def forget(self, req: Request) -> None:
        """Nobody needs `req` any more: cancels it, or ends its pin. Usable from a destructor."""
        core, scheduler = self._core, self._scheduler
        core.cancel(req)
        if req.kind is Kind.PREFILL:
            core.post(lambda: scheduler.unpin(req))

    # -- gen ---------------------------------------------------------------------------------------------------

    def _gen_requests(self, step: _Step, gen: Gen, closed: np.ndarray, run: tuple[Part, ...]) -> tuple[Request, ...]:
        prompt = self._nonempty(self._whole(closed, run))
        self._check_length(prompt, gen.loc)
        params = replace(gen.params, max_new_tokens=min(gen.params.max_new_tokens, self._limit - len(prompt)))
        ref = weakref.ref(step)
        progress = _Progress(ref, closed, run, prompt, params.n)
        requests: list[Request] = []
        for item in range(params.n):
            answer = Answer(
                self._words,
                params,
                self._stops_of(gen),
                stop_strings=() if params.ignore_eos else self._stop_strings,
                matcher=self._compiler.matcher(gen.constraint) if gen.constraint and self._compiler else None,
                on_text=progress.feed if item == 0 else None,
            )
            requests.append(
                Request(
                    Kind.GENERATE,
                    prompt,
                    on_done=lambda req, item=item: self._gen_done(progress, item, req),
                    params=params,
                    seed=_sample_seed(gen.seed, self._seed, item),
                    answer=answer,
                    score_from=params.logprob_start_len if params.return_logprob and item == 0 else None,
                    priority=step.hints.order,
                )
            )
        return tuple(requests)

    def _stops_of(self, gen: Gen) -> frozenset[int]:
        stops = frozenset(gen.params.stop_token_ids)
        if not gen.params.ignore_eos:
            stops |= self._stop_ids
        if gen.constraint is not None:
            stops |= {self._words.eos_token_ids[0]}  # what the mask allows when the answer may end
        return stops

    def _gen_done(self, progress: _Progress, item: int, req: Request) -> None:
        step = progress.step()
        if step is None:
            return
        if req.error is not None:
            return self._fail(step, req.error)
        progress.finished[item] = req
        if any(r is None for r in progress.finished):
            return
        done = [r for r in progress.finished if r is not None]
        output = Output(
            texts=tuple(r.ending.text for r in done if r.ending is not None),
            metas=tuple(self._meta(r) for r in done),
            usage=Usage(
                prompt_tokens=len(progress.prompt),
                completion_tokens=sum(r.answer.sampled for r in done if r.answer is not None),
                cached_tokens=done[0].hit_len,
                calls=1,
                passes=max(r.passes for r in done),
            ),
        )
        first = done[0].ending
        assert first is not None
        if self._seam == "text":
            return self._complete(step, progress.closed, (*progress.run, first.text), output)
        ids = np.concatenate((self._whole(progress.closed, progress.run), np.asarray(first.ids, np.int32)))
        self._complete(step, ids, (), output)

    def _meta(self, req: Request) -> dict[str, Any]:
        assert req.ending is not None and req.answer is not None
        meta: dict[str, Any] = {
            "id": f"{self._name}-{req.order}",
            "prompt_tokens": req.prompt_len,
            "completion_tokens": req.answer.sampled,
            "cached_tokens": req.hit_len,
            "finish_reason": req.ending.reason,
        }
        if req.params.return_logprob:
            shown = self._shown if req.params.return_text_in_logprobs else lambda _: None
            start = req.params.logprob_start_len
            known = [] if start is None else range(max(0, start), req.prompt_len)
            meta["input_token_logprobs"] = [
                [req.prompt_logprobs.get(p), int(req.prompt[p]), shown(int(req.prompt[p]))] for p in known
            ]
            meta["output_token_logprobs"] = [[t.logprob, t.token, shown(t.token)] for t in req.logprobs]
            if req.params.top_logprobs_num:
                meta["output_top_logprobs"] = [[[lp, i, shown(i)] for lp, i in t.top] for t in req.logprobs]
        return meta

    def _shown(self, token: int) -> str:
        return self._words.decode([token], with_specials=True)

    # -- select ------------------------------------------------------------------------------------------------

    def _select_request(self, step: _Step, select: Select, closed: np.ndarray, run: tuple[Part, ...]) -> Request:
        """One pass over the prompt and, beside it, the tokens of every choice. `temperature` is not used: as in SGLang
        a choice is scored, not sampled."""
        prompt = self._whole(closed, run)
        wholes = [self._whole(closed, (*run, choice)) for choice in select.choices]
        starts = [common_prefix(prompt, whole) for whole in wholes]
        base = min(starts)
        padding = 0
        if base == 0:  # nothing before the choices: one token that every text begins with
            start_token = self._nonempty(_NO_IDS)
            padding = base = len(start_token)
            wholes = [np.concatenate((start_token, whole)) for whole in wholes]
            starts = [s + padding for s in starts]
        for whole in wholes:
            self._check_length(whole, select.loc)
        branches = [Branch(base, whole[base:]) for whole in wholes]
        if select.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
            branches += [Branch(0, whole[start:]) for whole, start in zip(wholes, starts, strict=True)]
        need = base + max(b.rows for b in branches)
        if need > self._scheduler.pool.num_slots:
            raise self._too_long(need, select.loc)
        scoring = _Scoring(weakref.ref(step), select, wholes, starts, base, padding)
        return Request(
            Kind.SCORE,
            wholes[0][:base],
            on_done=lambda req: self._select_done(scoring, req),
            branches=tuple(branches),
            choose=scoring.choose,
            priority=step.hints.order,
        )

    def _select_done(self, scoring: _Scoring, req: Request) -> None:
        step = scoring.step()
        if step is None:
            return
        if req.error is not None:
            return self._fail(step, req.error)
        decision, select = scoring.decision, scoring.select
        assert decision is not None and step.ask is select
        listed = [
            [[lp, int(t), self._shown(int(t))] for lp, t in zip(row, whole[start:], strict=True)]
            for row, whole, start in zip(scoring.conditional, scoring.wholes, scoring.starts, strict=True)
        ]
        meta = {**decision.meta, "input_token_logprobs": listed, "output_token_logprobs": [[] for _ in listed]}
        if scoring.unconditional is not None:
            meta["unconditional_token_logprobs"] = [
                [[u, t, text] for u, (_, t, text) in zip(row, shown, strict=True)]
                for row, shown in zip(scoring.unconditional, listed, strict=True)
            ]
        text = select.choices[decision.index]
        usage = Usage(prompt_tokens=req.prompt_len, cached_tokens=req.hit_len, calls=1, passes=1)
        meta |= {"prompt_tokens": req.prompt_len, "cached_tokens": req.hit_len, "completion_tokens": 0}
        output = Output((text,), (meta,), usage)
        ids = scoring.wholes[decision.index][scoring.padding :]
        if self._seam == "text":
            return self._complete(step, _NO_IDS, (self._words.decode(ids.tolist(), with_specials=True),), output)
        self._complete(step, ids, (), output)

    # -- prefill -----------------------------------------------------------------------------------------------

    def _start_prefill(self, step: _Step, closed: np.ndarray, run: tuple[Part, ...]) -> None:
        prompt = self._whole(closed, run)
        self._check_length(prompt, None)
        stable = prompt[: len(prompt) - self._encoder.unstable(run)]
        if not len(stable):
            return
        req = Request(Kind.PREFILL, stable, on_done=lambda req: None, priority=step.hints.order)
        step.requests = (req,)
        self._send((req,))

    # -- checks ------------------------------------------------------------------------------------------------

    def _whole(self, closed: np.ndarray, run: tuple[Part, ...]) -> np.ndarray:
        """Ids of closed ids and an open run after them."""
        ids = self._encoder.encode(run, at_start=not len(closed))
        return np.concatenate((closed, ids)) if len(closed) else ids

    def _nonempty(self, prompt: np.ndarray) -> np.ndarray:
        """A model needs one token to start from: BOS, or EOS where a model has no BOS."""
        if len(prompt):
            return prompt
        start = self._words.bos_token_id
        return np.array([self._words.eos_token_ids[0] if start is None else start], np.int32)

    def _check_length(self, prompt: np.ndarray, loc: Loc | None) -> None:
        if len(prompt) >= self._limit:
            raise self._too_long(len(prompt), loc)

    def _too_long(self, tokens: int, loc: Loc | None) -> PromptTooLongError:
        if self._limit == self._max_context:
            what = f"the context of {self._name} is {self._max_context} tokens, one of them for the answer"
            return PromptTooLongError(
                f"the prompt has {tokens} tokens; {what}. Shorten it or take another model", loc=loc
            )
        what = f"the KV pool holds {self._scheduler.pool.num_slots}, one of them for the answer"
        remedy = f"Shorten it, or make the pool larger: Engine(max_tokens=…), up to {self._max_context}"
        return PromptTooLongError(f"the prompt has {tokens} tokens; {what}. {remedy}", loc=loc)

    def _validate(self, segment: Segment) -> None:
        """Refuses what can be seen to be wrong before anything is asked."""
        if isinstance(segment, Select):
            if not segment.choices:
                raise ProgramError("select needs at least one choice", loc=segment.loc)
            if "" in segment.choices:
                raise ProgramError("select cannot score an empty choice; give it some text", loc=segment.loc)
        if isinstance(segment, Gen):
            _validate_params(segment.params, self._words.vocab_size, segment.loc)
            if segment.constraint is not None and self._compiler is not None:
                self._compiler.check(segment.constraint, segment.loc)


class _Progress:
    """A gen on its way: its prompt and those of its `n` items that are finished."""

    __slots__ = ("closed", "finished", "prompt", "run", "step")

    def __init__(
        self, step: weakref.ref[_Step], closed: np.ndarray, run: tuple[Part, ...], prompt: np.ndarray, n: int
    ) -> None:
        self.step, self.closed, self.run, self.prompt = step, closed, run, prompt
        self.finished: list[Request | None] = [None] * n

    def feed(self, delta: str) -> None:
        step = self.step()
        if step is not None and (result := _alive(step.result)) is not None:
            result.feed(delta)


class _Scoring:
    """A select on its way. `wholes`: ids of prompt and choice; `starts`: where each choice's own tokens begin."""

    __slots__ = ("base", "conditional", "decision", "padding", "select", "starts", "step", "unconditional", "wholes")

    def __init__(
        self,
        step: weakref.ref[_Step],
        select: Select,
        wholes: list[np.ndarray],
        starts: list[int],
        base: int,
        padding: int,
    ) -> None:
        self.step, self.select, self.wholes, self.starts = step, select, wholes, starts
        self.base, self.padding = base, padding
        self.decision: Decision | None = None
        self.conditional: list[list[float]] = []
        self.unconditional: list[list[float]] | None = None

    def choose(self, req: Request) -> int:
        n = len(self.wholes)
        rows = [list(row) for row in req.branch_logprobs]
        # choices that begin alike have equal probabilities there: rounding must not separate them
        seen: dict[tuple[int, ...], float] = {}
        for whole, row in zip(self.wholes, rows[:n], strict=True):
            ids = tuple(whole[self.base :].tolist())
            for i in range(len(row)):
                row[i] = seen.setdefault(ids[: i + 1], row[i])
        self.conditional = [row[s - self.base :] for row, s in zip(rows[:n], self.starts, strict=True)]
        self.unconditional = rows[n:] or None
        self.decision = decide(self.select.method, self.conditional, self.unconditional)
        return self.decision.index


# -- pieces ------------------------------------------------------------------------------------------------------


class _Encoder:
    """Encodes literal runs. Special tokens cut a run into stretches whose encodings do not depend on each other, so
    each stretch is remembered: siblings encode what they share once."""

    def __init__(self, words: Vocabulary, capacity: int = 4096) -> None:
        self._words, self._capacity = words, capacity
        self._known: OrderedDict[tuple[str, bool], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, run: Sequence[Part], *, at_start: bool) -> np.ndarray:
        """[n] int32. `at_start`: nothing precedes the run; BOS is put there if the tokenizer's own rule says so."""
        words, found = self._words, list[np.ndarray]()
        empty = True
        stretches = _literal(run)
        if at_start and words.add_bos and words.bos_token_id is not None and stretches:
            first = stretches[0]
            if not (isinstance(first, Special) and words.id_of(first.spelling) == words.bos_token_id):
                found.append(np.array([words.bos_token_id], np.int32))
        for piece in stretches:
            ids = self._piece(piece, at_start and empty)
            empty = empty and not len(ids)
            found.append(ids)
        return np.concatenate(found) if found else _NO_IDS

    def _piece(self, piece: str | Special, first: bool) -> np.ndarray:
        if isinstance(piece, Special):
            return np.array([self._words.id_of(piece.spelling)], np.int32)
        key = (piece, first)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        ids = np.asarray(self._words.encode((piece,), at_start=first), np.int32)
        with self._lock:
            self._known[key] = ids
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return ids

    def unstable(self, run: Sequence[Part]) -> int:
        """How many tokens at the end of the run may change when text is appended: those of its last word. A wrong
        guess costs work, never a wrong answer, because whoever asks encodes the whole run again."""
        stretches = _literal(run)
        if not stretches or isinstance(stretches[-1], Special):
            return 0
        ids = self._piece(stretches[-1], len(stretches) == 1)
        for n in range(1, min(8, len(ids)) + 1):
            if self._words.token_bytes(int(ids[-n]))[:1].isspace():
                return n
        return min(8, len(ids))


def _literal(run: Sequence[Part]) -> list[str | Special]:
    """A run without marks, adjacent strings joined, empty ones dropped."""
    out: list[str | Special] = []
    texts: list[str] = []
    for part in run:
        if isinstance(part, Special):
            if texts:
                out.append("".join(texts))
                texts = []
            out.append(part)
        elif not isinstance(part, Mark) and part:
            texts.append(part)
    if texts:
        out.append("".join(texts))
    return out


def _stretches(segments: Sequence[Segment]) -> list[tuple[tuple[Part, ...], Gen | Select | None]]:
    """Segments as (literal parts, what is asked after them); the last may ask nothing."""
    out: list[tuple[tuple[Part, ...], Gen | Select | None]] = []
    parts: tuple[Part, ...] = ()
    for segment in segments:
        if isinstance(segment, Text):
            parts += segment.parts
        elif isinstance(segment, Gen | Select):
            out.append((parts, segment))
            parts = ()
    if parts or not out:
        out.append((parts, None))
    return out


def _template_stops(words: Vocabulary, template: ChatTemplate) -> tuple[frozenset[int], tuple[str, ...]]:
    """EOS and the template's stops: special tokens by id, the others by text."""
    ids = set(words.eos_token_ids)
    strings: list[str] = []
    for stop in template.stop:
        match words.split_specials(stop):
            case (Special(spelling),):
                ids.add(words.id_of(spelling))
            case _:
                strings.append(stop)
    return frozenset(ids), tuple(strings)


def _sample_seed(seed: int, engine_seed: int, item: int) -> int:
    """The seed of sample `item` of an op; the op's own for the first."""
    return seed + 0x9E3779B97F4A7C15 * item + 0xD1B54A32D192ED03 * engine_seed


def _validate_params(p: SamplingParams, vocab_size: int, loc: Loc | None) -> None:
    ranges = (
        ("max_tokens", p.max_new_tokens, p.max_new_tokens >= 0, "at least 0"),
        ("min_tokens", p.min_new_tokens, 0 <= p.min_new_tokens <= p.max_new_tokens, "between 0 and max_tokens"),
        ("n", p.n, p.n >= 1, "at least 1"),
        ("temperature", p.temperature, p.temperature >= 0, "at least 0"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("top_k", p.top_k, p.top_k == -1 or p.top_k >= 1, "-1 (all) or at least 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "between 0 and 1"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "between -2 and 2"),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "between -2 and 2"),
    )
    for name, value, fine, must in ranges:
        if not fine:
            raise ProgramError(f"gen: {name} is {value}; it must be {must}", loc=loc)
    for token in (*p.stop_token_ids, *(t for t, _ in p.logit_bias)):
        if not 0 <= token < vocab_size:
            raise ProgramError(f"gen: token id {token} is not in the vocabulary of {vocab_size}", loc=loc)
    for pattern in p.stop_regex:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConstraintError(f"stop_regex {pattern!r} is invalid: {error}", loc=loc) from None


def _alive(ref: weakref.ref[_LocalResult] | None) -> _LocalResult | None:
    return ref() if ref is not None else None


_OPEN: weakref.WeakSet[EngineCore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for core in list(_OPEN):
        core.close(timeout=5.0)


# -- with a model ------------------------------------------------------------------------------------------------


class Engine(LocalBackend):
    """lmc's own runtime in this process.

    model        a .gguf file, a directory with safetensors, a hub id, or "smollm2" (embedded)
    device       "cpu" or a torch device
    dtype        "float32", "bfloat16", "float16"; None: what suits the device
    max_tokens   size of the KV pool in tokens; None: a part of the free memory
    max_batch    sequences that run together;  chunk: prompt tokens computed in one pass
    seed         mixed into the seed of every sampling op
    parse_special  encode a special token's spelling in plain text as that token (unsafe with foreign text)
    seam         "token", or "text" to encode answers again with what follows them

    Raises ModelLoadError if the model cannot be loaded.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        device: str = "cpu",
        dtype: str | None = None,
        max_tokens: int | None = None,
        max_batch: int = 64,
        chunk: int = 512,
        seed: int = 0,
        parse_special: bool = False,
        seam: Literal["token", "text"] = "token",
    ) -> None:
        from lmc.backend.engine.constraint import XGrammarCompiler
        from lmc.backend.engine.kv_pool import KVPool
        from lmc.backend.engine.model_runner import ModelRunner
        from lmc.backend.engine.models.loader import load
        from lmc.backend.engine.sampler import Sampler

        loaded = load(str(model), device=device, dtype=dtype, parse_special=parse_special)
        config, words = loaded.config, loaded.tokenizer
        slots = max_tokens or _default_pool(loaded)
        pool = KVPool(config.num_layers, slots, config.num_kv_heads, config.head_dim, loaded.dtype, str(loaded.device))
        table = [words.token_bytes(i) for i in range(words.vocab_size)]
        super().__init__(
            name=loaded.name,
            vocabulary=words,
            chat_template=loaded.chat_template,
            runner=ModelRunner(loaded.model, pool, Sampler(words.vocab_size), str(loaded.device)),
            compiler=XGrammarCompiler(table, words.special_ids, _eos(loaded), config.vocab_size),
            max_tokens=slots,
            max_context=config.max_context,
            max_batch=max_batch,
            chunk=chunk,
            seed=seed,
            seam=seam,
        )


def _eos(loaded: LoadedModel) -> int:
    from lmc.errors import ModelLoadError

    if not loaded.tokenizer.eos_token_ids:
        raise ModelLoadError(f"{loaded.name}: the model's files name no end-of-text token (eos_token_id)")
    return loaded.tokenizer.eos_token_ids[0]


_POOL_CAP = 3 << 29  # bytes of KV that a pool takes on a CPU without being told: 1.5 GiB


def _default_pool(loaded: LoadedModel) -> int:
    """Tokens that fit a quarter of the free memory (at most 1.5 GiB) on a CPU, 85 % of it on a GPU."""
    import torch

    from lmc.backend.engine.kv_pool import KVPool

    c = loaded.config
    per_token = KVPool.bytes_per_token(c.num_layers, c.num_kv_heads, c.head_dim, loaded.dtype.itemsize)
    if loaded.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(loaded.device)[0] * 0.85)
    else:
        room = min(_free_memory() // 4, _POOL_CAP)
    return max(1024, room // per_token)


def _free_memory() -> int:
    """Bytes of memory that are free for use; 4 GiB where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return 4 << 30
