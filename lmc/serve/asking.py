"""Submission of requests to the backend: answers are awaited, followed as they grow, or cancelled.

The backend has a thread of its own; nothing here waits on the event loop for it. Slow work before a request is
submitted (encoding, compiling a constraint) runs on a pool.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass, replace

from lmc import observing
from lmc.backend.base import Backend, Handle, Hints, seed_of
from lmc.backend.results import AnswerReader, Output, Result, Scored
from lmc.backend.usage import MeteredAccount
from lmc.errors import ConstraintError, LmcError
from lmc.fsm.search import searcher
from lmc.prompt import segments_of
from lmc.segments import Constraint, Gen, Given, Image, Part, SamplingParams, derive_seed
from lmc.serve.errors import naming

_tickets = itertools.count()


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt and the sampling of its `n` answers. A seed of None is the backend's, or a fresh one.

    salt      cached KV of the prompt is shared only with requests of the same salt
    tools     those that the answer may call, as `Gen.tools`
    priority  its share of the model, and account: the owner of that share
    watched   the answer is read while it grows
    """

    parts: tuple[Part | Image | Given, ...]
    params: SamplingParams
    constraint: Constraint | None = None
    n: int = 1
    seed: int | None = None
    salt: str = ""
    tools: str = ""
    priority: float = 1.0
    account: str = ""
    watched: bool = False


@dataclass(frozen=True, slots=True)
class Grown:
    """New parts of an answer: text, the log-probabilities of the tokens that end in it (if requested), and the whole
    answer once it is complete."""

    index: int
    text: str
    scored: Scored
    output: Output | None


class RequestedAnswers:
    """The answers of one HTTP request, in order: of each prompt, its n."""

    def __init__(self, handles: Sequence[Handle], fields: Mapping[type[LmcError], str | None]) -> None:
        self._handles, self._fields = handles, fields
        self.results: list[Result] = [handle.results[0] for handle in handles]

    @classmethod
    async def begin(cls, backend: Backend, asks: Sequence[Ask], pool: Executor, fields: Mapping[type[LmcError], str | None]) -> RequestedAnswers:
        """Submit the requests. Raises their errors. A caller that is cancelled meanwhile leaves nothing behind.

        fields  those of the HTTP request that errors are about, by the error's class
        """
        future = pool.submit(copy_context().run, _submit, backend, asks)
        try:
            with naming(fields):
                handles = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(_drop)
            raise
        found = cls(handles, fields)
        for result in found.results:  # refused at once, while there is still a status to send
            if result.error is not None:
                found.cancel()
                with naming(fields):
                    raise result.error
        return found

    async def outputs(self) -> list[Output]:
        """Return all answers; raise the first error among them. Those that are not complete at the end are cancelled."""
        try:
            async for _ in self._changes():
                if (failed := next((r.error for r in self.results if r.error is not None), None)) is not None:
                    with naming(self._fields):
                        raise failed
                if all(result.done for result in self.results):
                    break
        finally:
            self.cancel()
        return [result.output() for result in self.results]

    async def follow(self) -> AsyncIterator[Grown]:
        """Yield new parts of the answers, as they grow."""
        readers = list(map(AnswerReader, self.results))
        async for _ in self._changes():
            for i, reader in enumerate(readers):
                if reader.over:
                    continue
                text, scored, output = reader.news()
                if (error := reader.result.error) is not None and reader.over:
                    with naming(self._fields):
                        raise error
                if text or output is not None:
                    yield Grown(i, text, scored, output)
            if all(reader.over for reader in readers):
                return

    async def _changes(self) -> AsyncIterator[None]:
        """Yield once at the start, then whenever a result has more."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify(_: Result) -> None:  # on the backend's thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        for result in self.results:
            result.on_change(notify)
        while True:
            changed.clear()
            yield
            await changed.wait()

    def cancel(self) -> None:
        """Cancel incomplete answers. Harmless when everything is complete."""
        for handle in self._handles:
            handle.cancel()


def _submit(backend: Backend, asks: Sequence[Ask]) -> list[Handle]:
    handles: list[Handle] = []
    try:
        for ask in asks:
            with naming({ConstraintError: "stop_regex"}):
                for pattern in ask.params.stop_regex:
                    searcher(pattern)  # refuses patterns that need backtracking, which may never end
            seed = seed_of(backend, ask.seed)
            ticket = next(_tickets)
            for i in range(ask.n):
                hints = Hints(namespace=ask.salt, priority=ask.priority, account=_of_sample(ask.account, i), watched=ask.watched)
                if ask.n > 1:
                    hints = hints._replace(group=(ticket,), members=ask.n, sample_index=(i, ask.n))
                gen = Gen(ask.params, ask.constraint, seed=derive_seed(seed, i, "serve", 0), tools=ask.tools)
                handles.append(observing.submit(backend, None, (*segments_of(ask.parts), gen), hints))
        for handle in handles:  # all of them at once
            if (prepared := getattr(handle, "prepared", None)) is not None:
                prepared()
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def _of_sample(account: str, index: int) -> str:
    """Return the account, which is charged once for the prompt of several samples."""
    if index == 0 or not isinstance(account, MeteredAccount):
        return account
    return MeteredAccount(account, lambda usage: account.told(replace(usage, prompt_tokens=0, cached_tokens=0)))


def _drop(future: Future[list[Handle]]) -> None:
    if not future.cancelled() and future.exception() is None:
        for handle in future.result():
            handle.cancel()
