"""The interpreter's emitter: it submits every request to the backend as soon as the program makes it."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lmc.answers import CUT_LIKE_SGLANG, check_whole
from lmc.backend.base import Backend, Beyond, Hints, ProgramRun, check_supported, seed_of
from lmc.backend.deferred import is_asked
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.config import settings
from lmc.errors import CancelledError, LmcError, Loc
from lmc.frontend.emitter import taken
from lmc.frontend.expressions import GenExpr, SelectExpr, adapter_of, typed
from lmc.frontend.host import host
from lmc.frontend.values import Symbolic
from lmc.images import MOST_BYTES, bytes_of_file, check_source, is_path
from lmc.images import read as read_image
from lmc.limits import Limits
from lmc.parameters import Origin, make_gen, make_select
from lmc.prompt import Excerpt, Prompt
from lmc.segments import Frames, Gen, Image, SamplingParams, Select, Special, mark
from lmc.tools import Described
from lmc.videos import MOST_BYTES as MOST_OF_VIDEO
from lmc.videos import read as read_video

if TYPE_CHECKING:
    from lmc.durable.run import RunJournal


class RunLedger(Protocol):
    """Receives the requests and waits of a run whose requests are made ahead (lmc/runahead/ledger.py)."""

    made_ahead: int

    @property
    def usage(self) -> Usage: ...
    @property
    def root(self) -> tuple[int, int, str]: ...
    @property
    def calls(self) -> Any: ...

    def ask(self, address: Any, before: Prompt, ask: Gen | Select, run: Run) -> Prompt:
        """Return `before` followed by the answer to a request: one that was made ahead and is equal, else the program's own."""
        ...

    def wait(self, results: Sequence[Result]) -> None:
        """Wait until all of them have arrived."""
        ...

    def answered(self, address: tuple[int, int, str, int], before: Prompt, ask: Gen | Select, after: Prompt) -> None:
        """Record a request of the program at an address that was answered from elsewhere, such as a journal."""
        ...

    def listen(self, result: Result, tools: Mapping[str, Any]) -> None:
        """Call those tools that are declared pure as soon as a growing answer contains their arguments."""
        ...

    def called(self, name: str, began: float, ended: float) -> None:
        """Record a call of a host function, for reports."""
        ...

    def close(self) -> None:
        """Close: the function has returned, and no more requests are made ahead."""
        ...


class Run(NamedTuple):
    """Shared context of one run: the backend, the sampling defaults, the seed, its number in its batch, its limits, its
    journal.

    ledger   makes requests ahead while the program waits; None: it makes none
    spare    tokens that a request to an API may generate beyond its answer, since later answers may be taken from them
    watched  the answers are read while they grow
    begin    called with state and arguments when the run begins; of sub-programs, None
    whole    the run as backends identify it, for a sub-program its caller's; None: not reported to backends
    """

    backend: Backend
    defaults: SamplingParams = SamplingParams()
    seed: int = 0
    item: int = 0
    limits: Limits | None = None
    spare: int = 0
    watched: bool = False
    journal: RunJournal | None = None
    ledger: RunLedger | None = None
    begin: Callable[..., None] | None = None
    whole: ProgramRun | None = None

    def hints(self) -> Hints | None:
        """Return the hints for a backend with every request; None if there are none."""
        counted = self.limits is not None and self.limits.in_order  # a request for several answers cannot be held to a budget
        if not self.watched and (not self.spare or counted):
            wanted = self.whole is not None or getattr(self.backend, "wants_shared", False)
            return Hints(run=self.whole) if wanted else None
        return Hints(beyond=Beyond(self.spare) if self.spare and not counted else None, watched=self.watched, run=self.whole)


def fresh_seed(backend: Backend, seed: int | None = None) -> int:
    """Return the run seed: the user's, else the configured one, else the backend's own, else a fresh one."""
    return seed_of(backend, settings().seed if seed is None else seed)


class LiveEmitter:
    """Submits every request to the backend as soon as the program makes it."""

    __slots__ = ("_asked", "_template", "_typed", "cancelled", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._template = run.backend.chat_template
        self._asked: list[weakref.ref[Prompt]] = []  # weak, so that unreachable answers are freed
        self.cancelled = False
        self._typed: dict[Result, tuple[Any, Loc | None]] = {}  # type and location of answers that no limit may cut

    @property
    def is_journaled(self) -> bool:
        return self.run.journal is not None

    def cancel(self) -> None:
        """Cancel pending requests and refuse new ones: reading raises CancelledError."""
        self.cancelled = True
        for ref in self._asked:
            ctx = ref()
            if ctx is not None and ctx.result is not None and ctx.handle is not None and not ctx.result.done:
                ctx.handle.cancel()

    def tidy(self) -> None:
        """Forget requests that have been answered, of which nothing is left to cancel."""
        self._asked = [ref for ref in self._asked if (ctx := ref()) is not None and ctx.result is not None and not ctx.result.done]

    def root(self) -> Prompt:
        return Prompt()

    def append(self, ctx: Prompt, text: str | Symbolic | Special) -> Prompt:
        assert not isinstance(text, Symbolic), "a traced value in a live run"
        return ctx.append(text)

    def image(self, ctx: Prompt, source: Any, detail: str = "auto", loc: Loc | None = None) -> Prompt:
        return self._shown(ctx, Image(source, None, detail, loc))

    def video(self, ctx: Prompt, source: Any, num_frames: Any = None, fps: Any = None, loc: Loc | None = None) -> Prompt:
        return self._shown(ctx, Image(source, Frames.of(num_frames, fps), loc=loc))

    def _shown(self, ctx: Prompt, image: Image) -> Prompt:
        check_supported(self.run.backend.capabilities, (image,))
        check_source(image)
        if self.run.journal is not None and self.run.journal.with_media and is_path(image.source):
            image = replace(image, source=file_of(os.fspath(image.source), image.kind))
        return ctx.append(read_image(image) if image.frames is None else read_video(image))

    def role_begin(self, ctx: Prompt, role: str, previous: str | None) -> Prompt:
        return ctx.append(*self._template.begin(role, previous), mark(role, "begin"))

    def role_end(self, ctx: Prompt, role: str) -> Prompt:
        return ctx.append(mark(role, "end"), *self._template.end(role))

    def gen(self, ctx: Prompt, expr: GenExpr, stream: str, ordinal: int) -> tuple[Prompt, Result]:
        run = self.run
        ask = make_gen(run.defaults, expr.given, Origin(run.seed, run.item, stream, ordinal), expr.name, expr.loc)
        after, result = self._submit(ctx, ask, (stream, ordinal))
        if ask.constraint is not None and (asked := typed(expr.given)) is not None and asked not in CUT_LIKE_SGLANG:
            self._typed[result] = asked, expr.loc
        if run.ledger is not None and isinstance(ask.tools, Described):
            run.ledger.listen(result, ask.tools.pure)
        return after, result

    def select(self, ctx: Prompt, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Prompt, Result]:
        run = self.run
        origin = Origin(run.seed, run.item, stream, ordinal)
        ask = make_select(expr.choices, expr.temperature, expr.choices_method, origin, expr.name, expr.loc, adapter_of(expr, run.defaults))
        return self._submit(ctx, ask, (stream, ordinal))

    def _submit(self, ctx: Prompt, ask: Gen | Select, place: tuple[str, int]) -> tuple[Prompt, Result]:
        if self.cancelled:
            raise CancelledError("the run was cancelled", loc=ask.loc)
        if kept := [part.result for part in ctx.tail if isinstance(part, Excerpt)]:  # answers of which the prompt has a part: before any lock
            self._wait(kept)
        try:
            ctx = self._sent(ctx, ask, place)
        except LmcError as error:
            error.loc = error.loc or ask.loc
            raise
        self._asked.append(weakref.ref(ctx))
        if self.cancelled:  # cancelled from another thread just now
            self.cancel()
        assert ctx.result is not None
        ctx.result.asked = ask, place[0]
        return ctx, ctx.result

    def _sent(self, before: Prompt, ask: Gen | Select, place: tuple[str, int]) -> Prompt:
        run = self.run
        limits, journal = run.limits, run.journal
        if (ledger := run.ledger) is not None:
            address = run.seed, run.item, *place
            send = lambda: ledger.ask(address, before, ask, run)
        else:
            send = lambda: before.submit(run.backend, ask, run.hints())
        known = send if journal is None else lambda: self._journaled(journal, before, ask, place, send)
        if limits is None:
            return known()
        while not isinstance(sent := limits.submit(ask, before, known), Prompt):
            self._wait((sent,))
        return sent

    def _journaled(self, journal: RunJournal, before: Prompt, ask: Gen | Select, place: tuple[str, int], send: Callable[[], Prompt]) -> Prompt:
        """Answer a request from the journal, if possible. The ledger is told, or it would request known answers
        ahead."""
        after = journal.ask(before, ask, (place,), send)
        if (ledger := self.run.ledger) is not None:
            ledger.answered((self.run.seed, self.run.item, *place), before, ask, after)
        return after

    def _wait(self, results: Sequence[Result]) -> None:
        """Wait for answers: the only place where a run does."""
        journal = self.run.journal
        if journal is None:
            self._arrive(results)
        else:
            journal.reads.wait(results, lambda: self._arrive(results))

    def _arrive(self, results: Sequence[Result]) -> None:
        ledger = self.run.ledger
        if ledger is not None:
            return ledger.wait(results)
        for result in results:
            result.wait()

    def _output(self, answer: Result) -> Output:
        """Return the answer; wait for it, and raise its error."""
        if not answer.done or self.run.journal is not None:
            self._wait((answer,))
        return answer.output()

    def splice(self, ctx: Prompt, other: Prompt, since: Prompt) -> Prompt:
        for node in other.nodes_after(since):
            if node.parts:
                ctx = ctx.append(*node.parts)
            if node.result is not None:
                ctx = ctx.append(self._output(node.result).text)
        return ctx

    def separate_reasoning(self, before: Prompt, after: Prompt, take: Callable[[str], str]) -> Prompt:
        return before.append(Excerpt(after, take))

    def read(self, answer: Result) -> str | list[str]:
        output = self._output(answer)
        if answer in self._typed:
            asked, loc = self._typed[answer]
            for text, meta in zip(output.texts, output.metas, strict=True):
                check_whole(asked, text, meta, loc)
        return output.value

    def read_part(self, answer: Result, take: Callable[[str], str]) -> str | list[str]:
        return taken(self._output(answer).value, take)

    def meta(self, answer: Result) -> Any:
        meta = self._output(answer).meta
        return meta if self.run.journal is None else copy.deepcopy(meta)  # a journal writes it later

    def text(self, ctx: Prompt, since: Prompt | None = None) -> str:
        self._wait([*ctx.answers(since)])
        return ctx.text(since)

    def messages(self, ctx: Prompt) -> list[dict[str, str]]:
        self._wait([*ctx.answers()])
        return ctx.messages()

    def wait(self, ctx: Prompt) -> None:
        self._wait([*filter(is_asked, ctx.answers())])

    def error(self, ctx: Prompt) -> BaseException | None:
        self.wait(ctx)
        failed = next((answer for answer in ctx.answers() if answer.error is not None), None)  # of the requests
        if failed is None:
            return None
        failed.raised = True
        return failed.error

    def unread_error(self, ctx: Prompt) -> BaseException | None:
        """Return the first error of a prompt's answers, if none of their errors has been raised to a reader. Does not
        wait."""
        failed = [answer for answer in ctx.answers() if answer.error is not None]
        return failed[0].error if failed and not any(answer.raised for answer in failed) else None

    def usage(self, answers: Iterable[Result], stream: str = "") -> Usage:
        total = Usage()
        for answer in dict.fromkeys(answers):
            if not is_asked(answer):
                continue
            self._wait((answer,))
            if answer.error is None:
                total += answer.output().usage
        ledger = self.run.ledger
        return total if ledger is None or not ledger.made_ahead or (self.run.seed, self.run.item, stream) != ledger.root else total + ledger.usage


@host(ordered=False, idempotent=True)
def file_of(path: str, kind: str) -> bytes:
    """Return the file of a picture or a video, for journals that hold them: an effect, so that a resumed or replayed
    run reads it from there."""
    return bytes_of_file(Path(path), kind, MOST_OF_VIDEO if kind == "video" else MOST_BYTES, None)
