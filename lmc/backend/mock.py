"""A deterministic backend without a model, for tests: answers are a hash of the prompt, or a script.

Bytes are tokens and each special token has an id of its own, so prompts can be compared token by token. Latency and
faults can be injected.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmc.backend.base import ANY_ADAPTER, HEALTHY, Capabilities, Health, Hints, SharedBackend, check_supported
from lmc.backend.mock_answers import Answers, Ask, check_constraint, gen_output, placed, script_of, select_output
from lmc.backend.mock_calls import MockCall
from lmc.backend.mock_prompt import KNOWN_SPECIALS, ROOT, MockNode, MockPicture, PrefixCounter, SeenImage, encode, part_tokens, seen_image, tokens_of
from lmc.backend.mock_samples import KINDS
from lmc.backend.mock_timer import timer
from lmc.backend.results import Output, Result, Scored
from lmc.backend.usage import Counters, Usage, charge
from lmc.chat import CHATML, ChatTemplate
from lmc.errors import BackendError, CancelledError, UnsupportedOpError
from lmc.forking import REMEDY, belongs_here
from lmc.segments import Gen, Given, Image, Part, Segment, Select, Special, Text
from lmc.signatures import signature_of
from lmc.tracebacks import warn

CAPABILITIES = Capabilities(
    "mock", KINDS, select=True, logprobs=True, images=True, videos=True, documents=True, n=True, streams=True, tools=True, seed=0, adapters=ANY_ADAPTER
)


class MockHandle:
    """A prompt inside the mock. `node` is its end once every answer in it has arrived."""

    __slots__ = ("__weakref__", "_backend", "_children", "_index", "_next", "_segments", "account", "error", "node", "prompt", "results")

    def __init__(self, backend: Mock, segments: tuple[Text | Gen | Select | Given | SeenImage, ...], results: tuple[Result, ...], account: str = "") -> None:
        self._backend, self._segments, self.results, self.account = backend, segments, results, account
        self.prompt = 0  # prompt tokens of the pending answer
        self._index = self._next = 0  # of the segment to do next, and of its result
        self._children: list[MockHandle] | None = None  # submitted, waiting for this one; most never have any
        self.node: MockNode | None = None
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """Cancel unfinished work; its results, and those of its descendants, fail with CancelledError."""
        self._backend._cancel(self)


class _Coming:
    """An answer on its way: its text comes in three deltas, the last of which with the answer."""

    __slots__ = ("_after", "_began", "_delay", "_handle", "_mock", "_output", "_result", "_shown")

    def __init__(self, mock: Mock, handle: MockHandle, result: Result, output: Output, after: MockNode, delay: float) -> None:
        self._mock, self._handle, self._result, self._output, self._after = mock, handle, result, output, after
        self._began, self._delay, self._shown = timer.monotonic(), delay, 0 if len(output.texts[0]) >= 3 else 2

    def next(self) -> None:
        """Go on when the next third is due."""
        self._shown += 1
        timer.at(self._began + self._delay * self._shown / 3, self._show if self._shown < 3 else self._end)

    def _show(self) -> None:
        text, result = self._output.texts[0], self._result
        if not (result.done or self._mock._closed):
            start, end = [len(text) // 3 * n for n in (self._shown - 1, self._shown)]
            result.feed(text[start:end], Scored.of(self._output.metas[0]).cut(len(tokens_of(text[:start])), len(tokens_of(text[:end]))))
            self.next()

    def _end(self) -> None:
        self._mock._arrive(self._handle, self._result, self._output, self._after)


class Mock(SharedBackend):
    """A backend whose answers are computed: `f(hash of prompt tokens, parameters, seed if temperature > 0)`, or scripted.

    A run is repeatable: its seed is 0 unless one is given. A request's seed derives from that and from its address
    (item, fork, number of earlier requests), so siblings at a temperature above 0 differ. Images count by their
    content.

    answers   `f(prompt_text, ask)`, or `f(prompt_text, ask, images)` with the files of the prompt's pictures, or a
              mapping from variable names to answers, or a list of answers in call order. An answer is text, a list of
              texts for n > 1, or None for the hash; in a mapping also a list used in order or such a function. Stops
              and limits apply to scripted answers, too; one that violates its constraint, or is none of the choices, is
              an error.
    latency   seconds from a known prompt to its answer, or `f(ask)` or `f(ask, prompt_text)` that returns them; 0: at
              once
    fault     `f(ask, index of the call)` that returns the exception a call fails with, or None
    chat_template  `lmc.chat.ChatTemplate` that roles are rendered by
    capabilities   what it says that it can do (`lmc.backend.base.Capabilities`); less than that is refused as a backend would
    parse_special  accepted for the engine's programs; False only
    """

    counts_alone = "The mock counts as cached what came before an earlier answer of the same conversation, and nothing else, so that runs are repeatable."
    """The difference between an answer's `cached_tokens` and those that `counters` counts as a prefix cache would."""

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        latency: float | Callable[[Ask], float] | Callable[[Ask, str], float] = 0.0,
        fault: Callable[[Ask, int], BaseException | None] | None = None,
        chat_template: ChatTemplate = CHATML,
        capabilities: Capabilities = CAPABILITIES,
        parse_special: bool = False,
    ) -> None:
        if parse_special:
            raise UnsupportedOpError("parse_special=True", "mock", "use lmc.special(…)")
        self.chat_template, self.capabilities = chat_template, replace(capabilities, local=latency == 0)
        self.call_log: list[MockCall] = []
        self.groups: Counter[tuple[int, ...]] = Counter()  # submissions by the group that their hints name
        self._script = script_of(answers)
        scripts = answers.values() if isinstance(answers, Mapping) else (answers,)
        self.answers_in_order = any(isinstance(script, list | tuple) for script in scripts)
        """Whether an answer may depend on how many were requested before it."""
        self._latency: Callable[..., float] = latency if callable(latency) else lambda _: latency
        self._by_prompt = callable(latency) and sum(p.default is p.empty for p in signature_of(latency).parameters.values()) == 2
        self._instant = latency == 0
        self._fault = fault
        self._calls = itertools.count()
        self._lock = threading.Lock()  # guards waiting children and the pending set
        self._pending: set[MockHandle] = set()
        self._journal: list[MockCall | MockNode] = []  # calls and prefills, counted on demand
        self._counted = self._twins = 0
        self._counters = Counters()
        self._trie = PrefixCounter()
        self._warned: set[str] = set()
        self._closed = False
        belongs_here(self)

    def forked(self, parent: int) -> None:
        """Reset in a child of fork(): earlier requests are the parent's; everything else can start over."""
        self._lock = threading.Lock()
        pending, self._pending = self._pending, set()
        for handle in pending:
            self._fail(handle, BackendError(f"it was first used by process {parent}, of which this one is a fork: {REMEDY}"))

    # -- the protocol

    def submit(self, parent: MockHandle | None, segments: Sequence[Segment], hints: Hints | None = None) -> MockHandle:
        check_supported(self.capabilities, segments)
        seen = tuple([seen_image(segment) if isinstance(segment, Image) else segment for segment in segments])
        if self._closed:
            raise BackendError("the mock backend is closed")
        asks = 0
        for segment in seen:
            kind = segment.__class__
            asks += kind is Gen or kind is Select
            if kind is Text:  # now: an answer before it may arrive on another thread
                for part in segment.parts:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
                    if isinstance(part, str) and "<|" in part:
                        self._warn(part)
            if kind is Gen and segment.constraint is not None:  # pyright: ignore[reportAttributeAccessIssue]
                check_constraint(segment.constraint, segment)  # pyright: ignore
        if hints is not None and hints.group is not None:
            with self._lock:
                self.groups[hints.group] += 1
                self._twins += hints.sample_index[0] > 0
        handle = MockHandle(self, seen, (Result(),) if asks == 1 else tuple([Result() for _ in range(asks)]), "" if hints is None else hints.owner)
        start = self._start(parent, handle)
        if start is not None:
            self._go(handle, start)
        return handle

    def prefill(self, parent: MockHandle | None, segments: Sequence[Segment], hints: Hints | None = None) -> MockHandle:
        return self.submit(parent, segments, hints)

    def release(self, handle: MockHandle) -> None:
        """Do nothing: nothing is pinned."""

    def holds(self, handle: MockHandle) -> bool:
        return True

    def flush_cache(self) -> None:
        """Forget which prompts were computed."""
        with self._lock:
            self._count()
            self._trie = PrefixCounter()

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text: its bytes."""
        return len(tokens_of(text))

    def encode(self, parts: Sequence[Part]) -> list[int]:
        """Return the token ids of literal parts."""
        return list(encode(parts))

    def server_info(self) -> dict[str, Any]:
        return {"name": "mock", "tokenizer": "bytes", "calls": len(self.call_log)}

    def health(self) -> Health:
        """Return whether it is open."""
        return Health("closed", "the mock backend was closed") if self._closed else HEALTHY

    def close(self) -> None:
        self._closed = True
        with self._lock:
            pending = list(self._pending)
        for handle in pending:
            handle.cancel()

    # -- running chains

    def _start(self, parent: MockHandle | None, handle: MockHandle) -> MockNode | None:
        """Return the prompt that `handle` extends, or None when it waits for its parent (or failed with it)."""
        if parent is None:
            return ROOT
        if parent.node is not None:
            return parent.node
        with self._lock:
            if parent.node is None and parent.error is None:
                parent._children = parent._children or []
                parent._children.append(handle)
                self._pending.add(handle)
                return None
        if parent.error is not None:
            self._fail(handle, parent.error)
        return parent.node

    def _go(self, handle: MockHandle, node: MockNode) -> None:
        """Proceed as far as possible now: from a prompt to the next answer that takes time, then its children."""
        end = self._advance(handle, node)
        children = [] if end is None else self._complete(handle, end)
        if not children:
            return
        queue = deque((child, end) for child in children)
        while queue:
            handle, node = queue.popleft()  # pyright: ignore[reportAssignmentType]
            end = self._advance(handle, node)
            if end is not None:
                queue.extend((child, end) for child in self._complete(handle, end))

    def _advance(self, handle: MockHandle, node: MockNode) -> MockNode | None:
        """Return the end of the handle's chain, or None when it waits or failed."""
        segments = handle._segments
        while handle._index < len(segments) and handle.error is None:
            segment = segments[handle._index]
            handle._index += 1
            if isinstance(segment, Text):
                node = self._literal(node, segment.parts)
                continue
            if isinstance(segment, Given):
                node = MockNode(node, tokens_of(segment.text), segment.text)
                node.answered = node.length
                continue
            if isinstance(segment, SeenImage):
                node = MockPicture(node, segment.tokens, segment.content)
                continue
            result = handle.results[handle._next]
            handle._next += 1
            try:
                output, after = self._ask(node, segment)
                delay = 0.0 if self._instant else self._latency(segment, node.text) if self._by_prompt else self._latency(segment)
            except Exception as error:  # injected or from a script: it belongs to this request
                self._fail(handle, placed(error, segment))
                return None
            if delay > 0:
                with self._lock:
                    if handle.error is not None:  # cancelled meanwhile
                        return None
                    handle.prompt = node.length
                    self._pending.add(handle)
                self._later(handle, result, output, after, delay)
                return None
            charge(handle.account, output.usage)
            result.finish(output)
            node = after
        if not handle.results:
            self._journal.append(node)  # a prefill
        return node

    def _later(self, handle: MockHandle, result: Result, output: Output, after: MockNode, delay: float) -> None:
        _Coming(self, handle, result, output, after, delay).next()

    def _arrive(self, handle: MockHandle, result: Result, output: Output, after: MockNode) -> None:
        with self._lock:
            if handle.error is not None or self._closed:
                return
            handle.prompt = 0
        charge(handle.account, output.usage)
        result.finish(output)
        self._go(handle, after)

    def _complete(self, handle: MockHandle, end: MockNode) -> list[MockHandle]:
        with self._lock:
            if handle.error is not None:  # cancelled meanwhile
                return []
            handle.node = end
            self._pending.discard(handle)
            children, handle._children = handle._children, None
            return children or []

    def _fail(self, handle: MockHandle, error: BaseException) -> None:
        """Fail unfinished parts of a handle, and everything that waits for it, with the same error."""
        failing = [handle]
        while failing:
            one = failing.pop()
            with self._lock:
                if one.node is not None or one.error is not None:
                    continue
                one.error = error
                self._pending.discard(one)
                failing += one._children or ()
                one._children = None
                prompt, one.prompt = one.prompt, 0
            if prompt:
                said = "".join(one.results[one._next - 1].deltas)
                charge(one.account, Usage(prompt, len(tokens_of(said)), calls=1))
            for result in one.results:
                result.fail(error)  # those that are done keep their answers

    def _cancel(self, handle: MockHandle) -> None:
        names = ", ".join(repr(s.name) for s in handle._segments if isinstance(s, (Gen, Select)))
        self._fail(handle, CancelledError(f"the request for {names or 'a prefill'} was cancelled"))

    # -- one prompt, one answer

    def _literal(self, node: MockNode, parts: Sequence[Part]) -> MockNode:
        try:
            text = "".join(parts)  # pyright: ignore
        except TypeError:  # other parts than text
            text = "".join([p if p.__class__ is str else p.spelling if p.__class__ is Special else "" for p in parts])  # pyright: ignore
            tokens = "".join(map(part_tokens, parts))
        else:
            tokens = tokens_of(text)
        return MockNode(node, tokens, text)

    def _warn(self, text: str) -> None:
        for spelling in KNOWN_SPECIALS:
            if spelling in text:
                warn(f"text contains {spelling}, which stays ordinary text; write lmc.special({spelling!r}) for the token", once=self._warned)

    def _ask(self, node: MockNode, ask: Ask) -> tuple[Output, MockNode]:
        """Return the answer to `ask` after `node`, and the prompt with it."""
        call = MockCall(node, ask)
        number = next(self._calls)
        self.call_log.append(call)
        self._journal.append(call)
        if self._fault is not None:
            error = self._fault(ask, number)
            if error is not None:
                raise error
        scripted = self._script(node, ask) if self._script is not None else None
        if isinstance(ask, Gen):
            output, piece = gen_output(node, ask, scripted, self.chat_template.stop)
        else:
            output, piece = select_output(node, ask, scripted)
        after = call.after = MockNode(node, piece, output.texts[0])
        after.answered = after.length
        return output, after

    # -- counting

    def counters(self) -> Counters:
        with self._lock:
            return self._count()

    def _count(self) -> Counters:
        """Replay the journal since the last time against the trie: count what a prefix cache would have computed."""
        journal, self._counted = self._journal[self._counted :], len(self._journal)
        prompt = cached = computed = generated = passes = calls = 0
        count = self._trie.count
        for entry in journal:
            if isinstance(entry, MockNode):  # a prefill, counted with its request
                known = count(entry)
                prompt += entry.length
                cached += known
                computed += entry.length - known
                continue
            length, after = entry.node.length, entry.after
            answer = after.length - length if isinstance(entry.ask, Gen) else 0
            known = min(count(after), length)
            calls += 1
            prompt += length
            cached += known
            computed += length - known
            generated += answer
            passes += answer or 1
        new = Counters(
            calls=calls, prompt_tokens=prompt, cached_tokens=cached, prefilled_tokens=computed, unique_tokens=computed, generated_tokens=generated,
            passes=passes, rows=computed + generated,
        )  # fmt: skip
        self._counters = replace(self._counters + new, groups=len(self.groups), twins=self._twins)
        return self._counters
