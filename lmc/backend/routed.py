"""Several backends as one: gens and selects that are named are answered by the backends that they are given to, all others by a default one.

    Routed(fast, {"y": exact})     prompt: text, gen x, text, gen y, text, gen z
    fast is sent                   text, gen x              then   text, the answer y as given, text, gen z
    exact is sent                  text, the answer x as given, text, gen y

A backend is sent what it lacks of a prompt when it is asked, so it waits for the answers of others, and has what it was sent before in its cache. Answers
are given by their tokens if both backends have the same ones, so that nothing is encoded in another way than it was sampled.

    RoutedHandle ──► Part ──► its parent Part                          a part that waits is known to what it waits for only weakly: when
    RoutedResult ──► Part ──► its backend's handle, once it has begun  its handle and results are no longer referenced, it does not begin
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import add
from typing import Any

from lmc.backend.base import HEALTHY, Backend, Capabilities, CountsSpending, Handle, Health, Hints, SaysHealth, SharedBackend
from lmc.backend.results import Result
from lmc.backend.usage import Counters, Spending
from lmc.config import as_backend
from lmc.errors import BackendError, CancelledError, Loc, ParameterError
from lmc.segments import Gen, Given, Segment, Select


@dataclass(frozen=True)
class Site:
    """A gen or select at its place in the program; one without a name is called "gen" or "select"."""

    name: str
    loc: Loc | None

    def __str__(self) -> str:
        return self.name if self.loc is None else f"{self.name} ({self.loc.short})"


class Routed(SharedBackend):
    """A backend that gives some gens and selects to others, such as those that a certificate names to an engine whose weights are not quantized.

    default   answers what `sites` does not name
    sites     backends by site, as in `lmc.certify(…).sites`, or by the name of a gen or select, wherever it stands

    Backends may be given by name. All must have the chat template of `default`; what one of them cannot do is refused. `close` closes none of them.
    """

    def __init__(self, default: Backend | str, sites: Mapping[Any, Backend | str]) -> None:
        self._default = as_backend(default)
        self._sites: dict[Any, Backend] = {site: as_backend(other) for site, other in sites.items()}
        self.backends: tuple[Backend, ...] = tuple({id(each): each for each in (self._default, *self._sites.values())}.values())
        self.chat_template = self._default.chat_template
        for each in self.backends:
            if each.chat_template.name != self.chat_template.name:
                ours, other = self.chat_template.name, f"{each.capabilities.name} has {each.chat_template.name}"
                raise ParameterError(f"Routed: the default backend has the chat template {ours}, and {other}; set one's chat_template to the other's")
        self.capabilities = _common([each.capabilities for each in self.backends])
        self.same_tokens = cache(_same_tokens)
        self._pool = ThreadPoolExecutor(1, "lmc-routed")

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> RoutedHandle:
        at, parts, results = self._last_of(parent), list[Part](), list[Result]()
        for backend, piece in self._pieces(at, segments):
            at = Part(self, at, backend, piece, hints or Hints(), backend.submit)
            parts.append(at)
            results += at.enter()
        return RoutedHandle(parts, results)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> RoutedHandle:
        at = self._last_of(parent)
        backend = self._default if at is None else at.backend
        part = Part(self, at, backend, segments, hints or Hints(), backend.prefill)
        return RoutedHandle([part], part.enter())

    def release(self, handle: RoutedHandle) -> None:
        for part in handle.parts:
            part.release()

    def holds(self, handle: RoutedHandle) -> bool:
        return all(part.error is None and (part.handle is None or part.backend.holds(part.handle)) for part in handle.parts)

    def counters(self) -> Counters:
        """Return the sums of all backends."""
        return reduce(add, [each.counters() for each in self.backends])

    def spent(self) -> Spending:
        """Return the sums of all backends; each of them has its own. The cost is that of those which have prices."""
        return reduce(add, [each.spent() if isinstance(each, CountsSpending) else Spending.of(each.counters()) for each in self.backends])

    def flush_cache(self) -> None:
        for each in self.backends:
            each.flush_cache()

    def server_info(self) -> dict[str, Any]:
        return {"model": self.capabilities.name, "backends": [each.server_info() for each in self.backends]}

    def health(self) -> Health:
        """Return the first backend's that is not well."""
        states = (each.health() for each in self.backends if isinstance(each, SaysHealth))
        return next((state for state in states if not state.ready), HEALTHY)

    def close(self) -> None:
        """Let no further answers pass from one backend to another: requests that wait for one fail when it is there."""
        self._pool.shutdown(wait=False)

    def _last_of(self, parent: Handle | None) -> Part | None:
        if parent is None:
            return None
        if not isinstance(parent, RoutedHandle) or parent.parts[-1].owner is not self:
            raise BackendError(f"{self.capabilities.name} was given a handle of another backend")
        return parent.parts[-1]

    def _pieces(self, at: Part | None, segments: Sequence[Segment]) -> list[tuple[Backend, list[Segment]]]:
        """Return a submission in pieces for one backend each; what follows the last request is its backend's, too."""
        pieces, piece = list[tuple[Backend, list[Segment]]](), list[Segment]()
        for segment in segments:
            piece.append(segment)
            if isinstance(segment, Gen | Select):
                backend = self.backend_of(segment)
                if pieces and pieces[-1][0] is backend:
                    pieces[-1][1].extend(piece)
                else:
                    pieces.append((backend, piece))
                piece = []
        if not pieces:
            return [(self._default if at is None else at.backend, piece)]
        pieces[-1][1].extend(piece)
        return pieces

    def backend_of(self, ask: Gen | Select) -> Backend:
        """Return the backend that answers a request."""
        name = ask.name or ("gen" if isinstance(ask, Gen) else "select")
        return self._sites.get(Site(name, ask.loc), self._sites.get(name, self._default))

    def soon(self, part: weakref.ref[Part]) -> None:
        """Let a part begin, if it can by now. From any thread: backends complete results in theirs, which must not wait for other backends."""
        try:
            self._pool.submit(_proceed, part)
        except RuntimeError:  # it was closed, or the interpreter ends
            if (waiting := part()) is not None:
                waiting.fail(BackendError(f"{self.capabilities.name} was closed"))


class Part:
    """A part of a prompt that one backend has, or will have once the answers are known that it lacks.

    handle   its backend's, once it has begun
    error    why it never will
    answers  the results of its requests, if they had to wait; others are its backend's own
    """

    __slots__ = ("__weakref__", "_enter", "answers", "backend", "error", "handle", "hints", "owner", "parent", "segments")

    def __init__(self, owner: Routed, parent: Part | None, backend: Backend, segments: Sequence[Segment], hints: Hints, enter: Callable[..., Handle]) -> None:
        self.owner, self.parent, self.backend, self.segments, self._enter = owner, parent, backend, tuple(segments), enter
        self.hints = hints if hints.namespace or parent is None else hints._replace(namespace=parent.hints.namespace)
        self.handle: Handle | None = None
        self.error: BaseException | None = None
        self.answers: tuple[weakref.ref[RoutedResult], ...] = ()

    def enter(self) -> Sequence[Result]:
        """Begin, or wait until that is possible; return the results. Raises what the backend refuses at once."""
        if self._is_ready():
            return self._begin().results
        self.hints = self.hints._replace(group=None, members=1, has_more=False)  # by then its siblings have begun without it
        results = tuple([RoutedResult(self) for segment in self.segments if isinstance(segment, Gen | Select)])
        self.answers = tuple(map(weakref.ref, results))
        self._await()
        return results

    def cancel(self) -> None:
        if self.handle is None:
            self.fail(CancelledError("the request was cancelled before its answer was complete"))
        if self.handle is not None:  # also if it has begun meanwhile
            self.handle.cancel()

    def release(self) -> None:
        """End its pin; if it waits, make none."""
        self._enter = self.backend.submit
        if self.handle is not None:  # also if it has begun meanwhile
            self.backend.release(self.handle)

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        for ref in self.answers:
            if (answer := ref()) is not None:
                answer.fail(error)

    def proceed(self) -> None:
        """Begin, or wait for what is still missing."""
        if self.error is not None:
            return
        if (error := next((found for part in self._lacking() if (found := part.failure()) is not None), None)) is not None:
            return self.fail(error)
        if not self._is_ready():
            return self._await()
        try:
            handle = self._begin()
        except Exception as error:  # raised where the answer is read
            return self.fail(error)
        for ref, result in zip(self.answers, handle.results, strict=True):
            if (answer := ref()) is not None:
                answer.follow(result)
        if self.error is not None:
            handle.cancel()

    def failure(self) -> BaseException | None:
        """Return why it has no answers and will have none."""
        if self.handle is None:
            return self.error
        return next((result.error for result in self.handle.results if result.error is not None), None)

    def _begin(self) -> Handle:
        lacking = self._lacking()
        before = lacking[0].parent if lacking else self.parent
        missing = [segment for part in lacking for segment in part.written(self.owner.same_tokens(part.backend, self.backend))]
        self.handle = self._enter(None if before is None else before.handle, (*missing, *self.segments), self.hints)
        return self.handle

    def written(self, by_tokens: bool) -> list[Segment]:
        """Return its segments with their answers as given; all are known."""
        results = iter(() if self.handle is None else self.handle.results)
        found = list[Segment]()
        for segment in self.segments:
            if isinstance(segment, Gen | Select):
                output = next(results).output()
                segment = Given(output.text, output.ids if by_tokens and isinstance(segment, Gen) else ())
            found.append(segment)
        return found

    def _lacking(self) -> list[Part]:
        """Return the parts before it that its backend has not been sent, in order."""
        found, at = list[Part](), self.parent
        while at is not None and not (at.backend is self.backend and at.handle is not None):
            found.append(at)
            at = at.parent
        return found[::-1]

    def _is_ready(self) -> bool:
        return all(part.is_known() for part in self._lacking())

    def is_known(self) -> bool:
        """Return whether its texts and answers are all there."""
        if self.handle is not None:
            return all(result.answer is not None for result in self.handle.results)
        return not any(isinstance(segment, Gen | Select) for segment in self.segments)

    def _await(self) -> None:
        """Proceed when the first missing answer is there; if it has not been requested yet, after that."""
        ref: weakref.ref[Part] = weakref.ref(self)
        soon = self.owner.soon
        asked = next((part for part in self._lacking() if not part.is_known()), None)
        while asked is not None and asked.handle is None and (before := next((p for p in asked._lacking() if not p.is_known()), None)) is not None:
            asked = before
        pending = None if asked is None or asked.handle is None else next((result for result in asked.handle.results if result.answer is None), None)
        if pending is None:
            soon(ref)
        else:
            pending.on_done(lambda _: soon(ref))


def _proceed(ref: weakref.ref[Part]) -> None:
    if (part := ref()) is not None:
        part.proceed()


class RoutedResult(Result):
    """The answer of a request that waited for those of other backends; keeps it wanted while it may still be read."""

    __slots__ = ("__weakref__", "_followed", "_part", "_watched")

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._part, self._watched = part, False
        self._followed: Result | None = None

    def watch(self) -> None:
        self._watched = True  # before the other is looked at: `follow` does so the other way round
        if self._followed is not None:
            self._followed.watch()

    def follow(self, result: Result) -> None:
        """Become what a backend's result becomes."""
        seen, ref, self._followed = 0, weakref.ref(self), result

        def changed(result: Result) -> None:
            nonlocal seen
            answer = ref()
            if answer is None:
                return
            for piece in result.pieces(seen):
                answer.feed(*piece)
                seen += 1
            if result.done:
                answer.in_vain = result.in_vain
                answer._complete(result.answer, result.error)

        result.on_call(self.heard)
        result.on_change(changed, watch=self._watched)


class RoutedHandle:
    """A prompt whose parts are on several backends, up to and including its submission."""

    __slots__ = ("__weakref__", "parts", "results")

    def __init__(self, parts: Sequence[Part], results: Sequence[Result]) -> None:
        self.parts, self.results = tuple(parts), tuple(results)

    def cancel(self) -> None:
        """Cancel unfinished parts; their results, and those of everything that depends on them, fail."""
        for part in self.parts:
            part.cancel()

    def needed(self) -> None:
        """Mark as needed: it was a guess, and is none any longer."""
        for part in self.parts:
            part.hints = part.hints._replace(guess=False)
            if (needed := getattr(part.handle, "needed", None)) is not None:
                needed()


_ALL_CAN = ("select", "logprobs", "images", "videos", "documents", "n", "streams", "tools", "raw_text", "local", "plans")


def _common(able: Sequence[Capabilities]) -> Capabilities:
    """Return what all of them can do."""
    lengths = [each.max_context for each in able if each.max_context is not None]
    return replace(
        able[0],
        name=f"Routed({', '.join(each.name for each in able)})",
        constraints=frozenset.intersection(*[each.constraints for each in able]),
        adapters=tuple(name for name in able[0].adapters if all(name in each.adapters for each in able)),
        lookahead=False,
        prices=None,
        max_context=min(lengths, default=None),
        **{name: all(getattr(each, name) for each in able) for name in _ALL_CAN},
    )


def _same_tokens(a: Backend, b: Backend) -> bool:
    """Return whether both have the same tokens; those of APIs are not known."""
    if a is b:
        return True
    ours, theirs = (getattr(each, "tokenizer", None) for each in (a, b))
    if ours is None or theirs is None or (ours.vocab_size, ours.special_ids) != (theirs.vocab_size, theirs.special_ids):
        return False
    return all(ours.token_bytes(i) == theirs.token_bytes(i) for i in range(ours.vocab_size))
