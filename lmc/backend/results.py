"""Answers of requests: a result is assigned once, by the thread that completes it, and read as a stream while it grows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import Any

from lmc import forking
from lmc.backend.usage import NO_USAGE, Usage
from lmc.segments import Gen, Select
from lmc.waiting import Signal


@dataclass(frozen=True, slots=True)
class Output:
    """A complete answer. `texts` has `n` items (one for `select`); the prompt continues with the first.

    ids     the tokens of the first, if the backend's prompts continue with those; else ()
    forced  forced parts of the first: begin and end of each run, in characters; () if unknown
    phases  times of its admission and its first token, by `time.perf_counter()` (0: no token was sampled); None if
            unknown
    """

    texts: tuple[str, ...]
    metas: tuple[Mapping[str, Any], ...]
    usage: Usage = NO_USAGE
    ids: tuple[int, ...] = ()
    forced: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    phases: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def unreported(self) -> int:
        """Return the number of its requests whose cost, if any, was not reported."""
        return self.metas[0].get("unreported_attempts", 0) if self.metas else 0

    @property
    def value(self) -> str | list[str]:
        """Return the value of `s[name]`: the text, or the list of texts when n > 1."""
        return self.texts[0] if len(self.texts) == 1 else list(self.texts)

    @property
    def meta(self) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        """Return the value of `s.get_meta_info(name)`: the meta info, or the list of them when n > 1."""
        return self.metas[0] if len(self.metas) == 1 else list(self.metas)


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of consecutive tokens of an answer, as its meta info lists them.

    tokens  [log-probability, id, text] of each
    tops    the likeliest tokens at each place, in the same form; () if not requested
    """

    tokens: tuple[Any, ...] = ()
    tops: tuple[Any, ...] = ()

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Scored:
        """Return those of a complete answer; none if not requested."""
        tokens, tops = tuple(meta.get("output_token_logprobs") or ()), tuple(meta.get("output_top_logprobs") or ())
        return Scored(tokens, tops) if tokens or tops else UNSCORED

    @staticmethod
    def joined(parts: Sequence[Scored]) -> Scored:
        return Scored(tuple(chain(*[part.tokens for part in parts])), tuple(chain(*[part.tops for part in parts])))

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, start: int, end: int | None = None) -> Scored:
        """Return those of the tokens from `start` on, up to `end`."""
        return Scored(self.tokens[start:end], self.tops[start:end]) if self.tokens or self.tops else self

    @property
    def meta(self) -> dict[str, Any]:
        """Return them as meta info."""
        tops = {"output_top_logprobs": list(self.tops)} if self.tops else {}
        return {"output_token_logprobs": list(self.tokens), **tops} if self.tokens else {}


UNSCORED = Scored()


_lock = threading.Lock()  # guards the callback lists of all results; held for a few instructions only


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


forking.renew(_renew_lock)


_NOTHING_SPENT = NO_USAGE, 0


class Result:
    """A pending answer: assigned once, readable as a stream of text deltas while it grows.

    Backends call `feed`, then `finish` or `fail`; all others wait, read or register a callback. Callbacks run in the
    thread that completes the result and must only enqueue. Whoever needs the growing text says so by `on_change`: a
    backend need not feed an answer that nobody watches.

    began, first, ended  times of the request, the first text (0: not known), and the answer, by `time.perf_counter()`
    checked       the journaled run that requested it, a checksum of the request, once known (lmc.durable.checks), and its place
    raised        its error has been raised to a reader
    asked         the program's request, and its fork path, for reports; None: not made by a program
    in_vain       what a failed answer is known to have cost, and how many requests for it of which that is not known
    """

    __slots__ = (
        "_callbacks", "_deltas", "_error", "_heard", "_output", "_scored", "_told", "_watchers", "asked", "began", "checked", "ended", "first",
        "in_vain", "raised",
    )  # fmt: skip

    def __init__(self) -> None:
        self.began = perf_counter()
        self.first = self.ended = 0.0
        self.checked: tuple[object, int, tuple[str, int]] | None = None
        self.raised = False
        self.asked: tuple[Gen | Select, str] | None = None
        self.in_vain: tuple[Usage, int] = _NOTHING_SPENT
        self._output: Output | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Result], None]] | None = None  # for its end
        self._watchers: list[Callable[[Result], None]] | None = None  # of these, for each delta, too
        self._deltas: list[str] | None = None
        self._scored: list[Scored] | None = None
        self._heard: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # calls of tools, while the answer grows
        self._told: Callable[[str, Mapping[str, Any]], None] | None = None

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<failed answer: {type(self._error).__name__}>"
        return f"<answer {''.join(self._deltas or ())!r}, not complete>" if self._output is None else f"<answer {self._output.text!r}>"

    # backend side

    def feed(self, delta: str, scored: Scored = UNSCORED) -> None:
        """Add text of the first item. `scored`: its tokens, if log-probabilities were requested and the backend knows
        them while the answer grows; the others are in the meta info at the end."""
        with _lock:
            if self._deltas is None:
                self._deltas, self._scored, self.first = [], [], perf_counter()
            assert self._scored is not None
            self._scored.append(scored)
            self._deltas.append(delta)
            watchers = list(self._watchers or ())
        for notify in watchers:
            notify(self)

    def heard(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Report a complete tool call in the growing answer."""
        with _lock:
            self._heard += ((name, arguments),)
            told = self._told
        if told is not None:
            told(name, arguments)

    def finish(self, output: Output) -> None:
        self._complete(output, None)

    def fail(self, error: BaseException) -> None:
        self._complete(None, error)

    def _complete(self, output: Output | None, error: BaseException | None) -> None:
        with _lock:
            if self._output is not None or self._error is not None:
                return  # a cancelled request may still complete: first answer wins
            self.ended = perf_counter()
            self._output, self._error = output, error
            if output is not None and output.phases is not None:
                self.first = self.first or output.phases[1]
            callbacks, self._callbacks, self._watchers, self._told = self._callbacks, None, None, None
        for notify in callbacks or ():
            notify(self)

    # reader side

    @property
    def done(self) -> bool:
        return self._output is not None or self._error is not None

    @property
    def error(self) -> BaseException | None:
        """Return the error it ended with, or None; does not wait."""
        return self._error

    @property
    def answer(self) -> Output | None:
        """Return the answer; None if it has not arrived, or failed. Does not wait."""
        return self._output

    @property
    def usage(self) -> Usage | None:
        """Return the answer's usage; None if it has not arrived, or failed."""
        return None if self._output is None else self._output.usage

    @property
    def spent(self) -> tuple[Usage, float, float] | None:
        """Return the answer's usage, and the times of request and arrival; None if it has not arrived, or failed."""
        return None if self._output is None else (self._output.usage, self.began, self.ended)

    @property
    def deltas(self) -> Sequence[str]:
        """Return text deltas of the first item so far; none from a backend that does not stream, or that nobody has
        told to."""
        return self._deltas or ()

    def scored(self, start: int = 0, end: int | None = None) -> Scored:
        """Return log-probabilities of the tokens of `deltas[start:end]`: of those whose text ends there."""
        return Scored.joined((self._scored or ())[start:end])

    def pieces(self, start: int) -> Iterator[tuple[str, Scored]]:
        """Yield the deltas from an index on that there are by now, with their log-probabilities: what `feed` takes."""
        for i in range(start, len(self.deltas)):
            yield self.deltas[i], self.scored(i, i + 1)

    def watch(self) -> None:
        """Ask for the text while the answer grows. Backends that otherwise do not feed it override this."""

    def on_change(self, notify: Callable[[Result], None], *, watch: bool = True) -> None:
        """Call `notify(self)` after each delta and at the end; at once if already done. watch: ask for deltas; else `watch` may later."""
        with _lock:
            if not self.done:
                self._watchers = self._watchers or []
                self._watchers.append(notify)
        self.on_done(notify)
        if watch:
            self.watch()

    def on_done(self, notify: Callable[[Result], None]) -> None:
        """Call `notify(self)` at the end; at once if already done."""
        with _lock:
            if not self.done:
                self._callbacks = self._callbacks or []
                self._callbacks.append(notify)
                return
        notify(self)

    def on_call(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Call `told` with each tool call that completes before the answer; at once for those that already have."""
        with _lock:
            heard, self._told = self._heard, None if self.done else told
        for name, arguments in heard:
            told(name, arguments)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until done; return False if `timeout` seconds passed first."""
        if self.done:
            return True
        signal = Signal()
        self.on_done(lambda _: signal.set())
        return signal.wait(timeout)

    def output(self) -> Output:
        """Return the answer; wait for it, and raise its error."""
        if not self.done:
            self.wait()
        if self._error is not None:
            self.raised = True
            raise self._error
        assert self._output is not None
        return self._output

    def stream(self) -> Iterator[str]:
        """Yield text deltas of the first item as they arrive, ending with the answer; raise its error."""
        changed = Signal()
        self.on_change(lambda _: changed.set())
        seen, shown = 0, 0
        while True:
            finished = self.done
            deltas = self._deltas or []
            while seen < len(deltas):
                yield deltas[seen]
                shown += len(deltas[seen])
                seen += 1
            if finished:
                rest = self.output().text[shown:]  # a backend that does not stream gives it all at the end
                if rest:
                    yield rest
                return
            changed.wait()
            changed.clear()


class AnswerReader:
    """What was read of a growing answer. `over`: all that there will be."""

    __slots__ = ("_deltas", "_length", "_tokens", "over", "result")

    def __init__(self, result: Result) -> None:
        self.result, self.over = result, False
        self._deltas = self._length = self._tokens = 0

    def news(self) -> tuple[str, Scored, Output | None]:
        """Return text that has come since the last call, the log-probabilities of the tokens that end in it (if requested), and the answer once it is
        complete; None where it has failed."""
        result, self.over = self.result, self.result.done  # read first: deltas come before the end
        start, self._deltas = self._deltas, len(result.deltas)
        text, scored = "".join(result.deltas[start : self._deltas]), result.scored(start, self._deltas)
        self._length += len(text)
        self._tokens += len(scored)
        if not self.over or (output := result.answer) is None:
            return text, scored, None
        rest = Scored.of(output.metas[0]).cut(self._tokens)
        return text + output.text[self._length :], Scored.joined((scored, rest)), output


class HeldResult(Result):
    """A result that keeps its request alive while it may still be read."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self, held: object) -> None:
        super().__init__()
        self._held = held
