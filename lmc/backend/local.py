"""The local backend: segments become token requests for the engine in this process, and a handle is a place in a prompt.

A handle's prompt is  closed ids (as computed and as generated, never encoded again)  +  an open run of literal parts.
The open run is encoded as one at each request, however appends and forks cut it; an answer closes it.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lmc.backend.base import Capabilities, Handle, Health, Hints, SharedBackend, check_adapter, check_supported
from lmc.backend.conversing import Trail, spoken
from lmc.backend.engine.automaton import KINDS, ConstraintCompiler
from lmc.backend.engine.draft_costs import Costs
from lmc.backend.engine.drafts import Drafts, Setting, check_setting
from lmc.backend.engine.encoding import TokenizerProtocol
from lmc.backend.engine.engine import EngineCore
from lmc.backend.engine.eyes import Eyes, Preparing
from lmc.backend.engine.pace import Pace
from lmc.backend.engine.policy import OWN, Policy
from lmc.backend.engine.prompt_position import ROOT, PromptPosition
from lmc.backend.engine.request import Group, Request, RequestKind
from lmc.backend.engine.request_builder import RequestBuilder
from lmc.backend.engine.request_results import Finished
from lmc.backend.engine.riders import equals
from lmc.backend.engine.runner import AheadRunner, Runner
from lmc.backend.engine.scheduler import Scheduler
from lmc.backend.local_steps import LocalHandle, LocalResult, Step, StepState, bounded, stretches, teller
from lmc.backend.results import Output, Result
from lmc.backend.usage import Counters, charge
from lmc.chat import ChatTemplate
from lmc.errors import BackendEnded, BackendError, ParameterError, UnsupportedOpError
from lmc.forking import belongs_here
from lmc.segments import Gen, Given, Part, SamplingParams, Segment, Select, Text
from lmc.waiting import idle

if TYPE_CHECKING:
    from lmc.backend.engine.draft_model import DraftModel
    from lmc.backend.engine.kv_copy import KVMover
    from lmc.backend.engine.whole_template import WholeTemplate


class LocalBackend(SharedBackend):
    """The Backend protocol over an engine core. `Engine` is this with a model loaded; tests substitute their own parts.

    seam="token": generated text keeps its ids. seam="text": an answer's text joins the literal run and is re-encoded
    with the following text, as in text-only engines.
    """

    def __init__(
        self,
        *,
        name: str,
        vocabulary: TokenizerProtocol,
        chat_template: ChatTemplate,
        runner: Runner,
        compiler: ConstraintCompiler | None,
        max_tokens: int,
        max_context: int,
        near_context: int | None = None,
        embedded: int | None = None,
        eyes: Eyes | None = None,
        max_batch: int = 64,
        chunk: int = 512,
        seed: int = 0,
        seam: Literal["token", "text"] = "token",
        policy: Policy = OWN,
        pace: Pace | None = None,
        now: Callable[[], float] = time.monotonic,
        core: type[EngineCore] = EngineCore,
        mover: KVMover | None = None,
        drafts: Setting = "off",
        draft_row: float = 0.0,
        draft_model: DraftModel | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        check_numbers(max_tokens=max_tokens, max_batch=max_batch, chunk=chunk, seed=seed)
        self._name, self._words, self._template, self._adapters = name, vocabulary, chat_template, tuple(adapters)
        self.whole_template: WholeTemplate | None = None  # the model's own, for conversations with tools
        self._builder = RequestBuilder(
            name, vocabulary, chat_template, compiler,
            max_context=max_context, near=near_context, pool=max_tokens, seed=seed, seam=seam, embedded=embedded, eyes=eyes,
            adapters=self._adapters,
        )  # fmt: skip
        self._recorded: Callable[[str], str | None] | None = None
        self._scripts: dict[bytes, np.ndarray | None] = {}  # by prompts
        self._trial: LocalHandle | None = None  # of an engine whose last pass failed
        self._lock = threading.Lock()  # states of steps and their pending lists, groups
        self._groups: weakref.WeakValueDictionary[tuple[int, ...], Group] = weakref.WeakValueDictionary()
        self._scheduler = Scheduler(
            max_tokens,
            max_batch=max_batch,
            chunk=chunk,
            policy=policy,
            pace=pace,
            now=now,
            mover=mover,
            drafts=Drafts(
                check_setting(drafts), Costs(isinstance(runner, AheadRunner), draft_row), draft_model, lambda text: vocabulary.encode((text,), at_start=False)
            ),
        )
        self._core = core(self._scheduler, runner)
        self._finalizer = weakref.finalize(self, self._core.close, timeout=0)  # a destructor must not wait
        self._finalizer.atexit = False
        _OPEN.add(self._core)
        belongs_here(self)
        if compiler is not None:
            _COMPILERS.add(compiler)

    def forked(self, parent: int) -> None:
        self._lock = threading.Lock()
        self._core.forked(parent)
        if self._builder.eyes is not None and self._core.broken is not None:
            self._builder.eyes.forked(self._core.broken)

    # -- the protocol ------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=f"Engine({self._name})",
            constraints=KINDS if self._builder.compiler is not None else frozenset(),
            select=True,
            logprobs=True,
            images=self._builder.eyes is not None,
            videos=self._builder.eyes is not None and self._builder.eyes.sight.video_token is not None,
            n=True,
            streams=True,
            tools=self._builder.compiler is not None,
            local=True,
            adapters=self._adapters,
            max_context=self._builder.max_context,
        )

    @property
    def chat_template(self) -> ChatTemplate:
        return self._template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        """Set another template than the model's own, for later runs: `lmc.get_chat_template(name)`."""
        self._builder.use_template(template)
        self.whole_template = None
        self._template = template

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> LocalHandle:
        """Extend `parent` by a chain of segments; see Backend.submit."""
        self._check(segments)
        hints = hints or Hints()
        self._core.give_way()
        self._core.has_more = hints.has_more or not idle()
        return self._enter(parent, self._steps(parent, segments, hints))

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> LocalHandle:
        """Compute the KV of literal segments and pin it until `release`, or until the handle is dropped.

        The last tokens, which the following text may still change, are left for later.
        """
        self._check(segments)
        if any(isinstance(segment, Gen | Select) for segment in segments):
            raise ParameterError("prefill takes literal segments only; submit the others")
        hints = hints or Hints()
        check_adapter(self.capabilities, hints.adapter, "prefill")
        self._core.give_way()
        self._core.has_more = hints.has_more
        steps = self._steps(parent, segments, hints)
        steps[-1].wants_prefill = True
        return self._enter(parent, steps)

    def release(self, handle: Handle) -> None:
        """End a pin. A prefill that has not run is dropped: its continuations compute their prompts themselves."""
        assert isinstance(handle, LocalHandle)
        for step in handle.steps:
            if step.wants_prefill:
                with self._lock:
                    step.wants_prefill = step.state is not StepState.WAITING
                for req in step.requests:
                    self.forget(req)

    def holds(self, handle: Handle) -> bool:
        assert isinstance(handle, LocalHandle)
        if any(step.state is StepState.FAILED for step in handle.steps):
            return False
        return all(req.pinned or not req.done for step in handle.steps if step.wants_prefill for req in step.requests)

    def counters(self) -> Counters:
        found, eyes = self._core.counters(), self._builder.eyes
        return found if eyes is None else eyes.counters(found)

    def flush_cache(self) -> None:
        """Drop all cached KV that no running request needs, and all cached pictures; return when it is gone."""
        self._core.call(self._scheduler.flush)
        if self._builder.eyes is not None:
            self._core.call(self._builder.eyes.flush)

    def server_info(self) -> dict[str, Any]:
        return {
            "model": self._name,
            "max_context": self._builder.max_context,
            "max_tokens": self._builder.pool,
            "max_batch": self._scheduler.max_batch,
            "chunk": self._scheduler.chunk,
            **self.stats(),
        }

    def health(self) -> Health:
        """Return the engine's health. After a failed pass, one token is requested, so that a recovered engine reports
        so."""
        found = self._core.health
        if found.state == "failed" and (self._trial is None or self._trial.results[0].done):
            self._trial = self.submit(None, (Text(("a",)), Gen(SamplingParams(max_new_tokens=1, temperature=0))))
        return found

    def close(self) -> None:
        if self._builder.eyes is not None:
            self._builder.eyes.close()
        self._core.close()
        if self._builder.compiler is not None:
            self._builder.compiler.close()

    # -- for people and tests ----------------------------------------------------------------------------------

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text by itself, for plans and predictions."""
        return len(self._words.encode((text,), at_start=False)) if text else 0

    @property
    def tokenizer(self) -> TokenizerProtocol:
        return self._words

    def encode(self, parts: Sequence[Part]) -> list[int]:
        """Return the token ids of literal parts at the start of a prompt."""
        return self._builder.ids(PromptPosition(ROOT.closed, tuple(parts))).tolist()

    @property
    def drafts(self) -> Setting:
        """Return how many tokens are drafted (see Engine); may be set at any time."""
        return self._scheduler.drafts.setting

    @drafts.setter
    def drafts(self, setting: Setting) -> None:
        drafts, setting = self._scheduler.drafts, check_setting(setting)
        self._core.call(lambda: drafts.use(setting))

    def forget_drafts(self) -> None:
        """Forget earlier answers, from which drafts are made, and their statistics."""
        self._core.call(self._scheduler.drafts.forget)

    def replay(self, answers: Callable[[str], str | None] | None) -> None:
        """Answer every later gen with the recorded text that `answers` returns for its prompt, token by token, whatever
        the model draws; by the model if it returns None. For benchmarks: random weights repeat themselves, so drafts
        cannot be measured on their output.

        A constrained gen's text must be one that its constraint allows.
        """
        self._recorded, self._scripts = answers, {}

    def stats(self) -> dict[str, Any]:
        """Return the engine's current state."""
        compiler = self._builder.compiler
        return {**self._core.stats(), "constraints": asdict(compiler.info()) if compiler is not None else {}}

    def check(self) -> None:
        """Raise AssertionError if a page leaks or a reference dangles."""
        self._core.call(self._scheduler.check)

    def prompt_ids(self, handle: Handle) -> list[int]:
        """Return the token ids of the whole prompt at a handle, its open run encoded as it is; waits for its
        answers."""
        assert isinstance(handle, LocalHandle)
        for result in handle.results or self.submit(handle, (Gen(SamplingParams(max_new_tokens=0)),)).results:
            result.output()
        return self._builder.results.spelled(self._builder.ids(handle.last.after))

    # -- steps -------------------------------------------------------------------------------------------------

    def _check(self, segments: Sequence[Segment]) -> None:
        if self._core.broken is not None:
            raise BackendEnded(f"Engine({self._name}): {self._core.broken.message}")
        if self._core.closed:
            raise BackendError(f"Engine({self._name}) is closed")
        check_supported(self.capabilities, segments)
        for segment in segments:
            self._builder.validate(segment)

    def _steps(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints) -> list[Step]:
        if parent is not None and not (isinstance(parent, LocalHandle) and parent.last.backend is self):
            raise BackendError(f"Engine({self._name}) was given a handle of another backend")
        step = parent.last if parent is not None else None
        steps: list[Step] = []
        for parts, ask in stretches(segments, self._builder.prepare):
            step = Step(self, step, parts, ask, hints)
            steps.append(step)
        first = next((step for step in steps if step.ask is not None), None)
        if first is not None:
            first.group = self._group(hints)
        return steps

    def _enter(self, parent: Handle | None, steps: list[Step]) -> LocalHandle:
        results: list[Result] = []
        for step in steps:
            if isinstance(step.ask, Gen | Select):
                result = LocalResult(step)
                step.result = weakref.ref(result)
                results.append(result)
        first, *others = steps
        if any(isinstance(part, Preparing) for part in first.parts):
            self._quietly(first, self._await_parent)
        else:
            self._await_parent(first)  # raises its errors
        for step in others:  # an error fails the step's result, whether it starts now or later
            self._quietly(step, self._await_parent)
        return LocalHandle(tuple(steps), tuple(results))

    def _await_parent(self, step: Step) -> None:
        """Start `step` now if its parent's answer and its pictures are there, else when they are."""
        parent = step.parent
        if parent is not None:
            with self._lock:
                if parent.state in (StepState.WAITING, StepState.RUNNING):
                    parent.pending.append(weakref.ref(step))
                    for req in parent.requests if isinstance(step.ask, Select) else ():
                        req.precedes_select = True
                    return
        self._await_pictures(step)

    def _await_pictures(self, step: Step) -> None:
        ref = weakref.ref(step)
        for part in step.parts:
            if isinstance(part, Preparing) and not part.placed.done():
                return part.placed.add_done_callback(lambda _: self._start_children([ref]))
        self._begin(step)

    def _begin(self, step: Step) -> None:
        """Begin after the parent: make the request. Raises the request's errors, after failing the step with them."""
        parent, step.parent = step.parent, None
        if step.state is StepState.FAILED:
            return  # cancelled meanwhile
        if parent is not None and parent.error is not None:
            return self._fail(step, parent.error)
        before = parent.after if parent is not None else ROOT
        try:
            step.trail = Trail.behind(parent.trail if parent is not None else None, tuple(part for part in step.parts if not isinstance(part, Preparing)))
            parts = (part.placed.result() if isinstance(part, Preparing) else part for part in step.parts)
            cached = before.cached if parent is not None and parent.namespace == step.namespace else None
            self._ask(step, PromptPosition(before.closed, (*before.run, *parts), cached, before.pictures, before.adapter))
        except Exception as error:
            self._fail(step, error)
            raise

    def _ask(self, step: Step, place: PromptPosition) -> None:
        ref, order = weakref.ref(step), step.hints.order
        if isinstance(step.ask, Gen) and step.trail is not None and (step.ask.tools or step.trail.has_results):
            requests = self._with_tools(step, step.ask, place)
        elif isinstance(step.ask, Gen):
            ask = bounded(step.ask, step.hints.reserve)
            requests = self._builder.gen(
                ask, place, order, teller(ref, "feed"), lambda done: self._answered(ref, done), lambda after: self._select_behind(ref, after)
            )
        elif isinstance(step.ask, Select):
            request = self._builder.select(step.ask, place, order, lambda done: self._answered(ref, done))
            request.namespace, rider = step.namespace, step.rider
            if rider is not None and equals(rider, request):
                request.rider = rider
            step.rider = None
            requests = [request]
        elif isinstance(step.ask, Given):
            return self._complete(step, self._builder.given(step.ask, place), None)
        else:
            request = self._builder.prefill(place, order, step.hints.low_priority, step.hints.adapter) if step.wants_prefill else None
            with self._lock:  # it may be released or cancelled meanwhile
                requests = (request,) if request is not None and step.wants_prefill and step.state is StepState.WAITING else ()
                step.requests = requests
            for req in requests:
                self._tag(req, step)
            self._send(requests)
            return self._complete(step, place, None)
        with self._lock:
            if step.state is not StepState.WAITING:
                return  # cancelled meanwhile
            step.state, step.requests = StepState.RUNNING, tuple(requests)
            selects = any((child := pending()) is not None and isinstance(child.ask, Select) for pending in step.pending)
            for req in requests:
                req.precedes_select = selects
        for req in requests:
            req.group, req.guess = step.group, step.hints.guess
            req.script = self._script(req) if req.kind is RequestKind.GENERATE else None
            self._tag(req, step)
        if step.streams:
            step.stream()
        self._send(requests)
        self.leave(step)

    def _select_behind(self, ref: weakref.ref[Step], after: PromptPosition) -> Request | None:
        """Return what a step's first select behind it would be, after the position that its answer is expected to leave; None if there is none yet."""
        step = ref()
        if step is None:
            return None
        with self._lock:
            children = [child for pending in step.pending if (child := pending()) is not None]
        child = next((child for child in children if isinstance(child.ask, Select)), None)
        if child is None or after.pictures:
            return None
        assert isinstance(child.ask, Select)
        parts = tuple(part for part in child.parts if not isinstance(part, Preparing))
        if len(parts) < len(child.parts):
            return None
        try:
            rider = self._builder.select(child.ask, after.followed(*parts), (), lambda _: None)
        except Exception:  # as the request itself will say
            return None
        rider.namespace, rider.done = child.namespace, True
        child.rider = rider
        return rider

    def _with_tools(self, step: Step, ask: Gen, place: PromptPosition) -> list[Request]:
        """Build requests over the conversation as rendered by the model's whole template. The step's own prompt
        continues with the text of the answer."""
        assert step.trail is not None
        if place.all_pictures:
            raise UnsupportedOpError("gen(tools=…) after an image", self.capabilities.name, "ask about the picture in a call of its own", loc=ask.loc)
        prompt = spoken(step.trail, ask, self.whole_template, self._template, self.capabilities.name)
        ref = weakref.ref(step)

        def answered(done: Finished | BaseException) -> None:
            if isinstance(done, Finished):
                output = prompt.heard(done.output)
                done = Finished(output, place.followed(output.text))
            self._answered(ref, done)

        step.streams = step.streams or bool(prompt.tools)  # calls begin as soon as they are complete
        constrained = prompt.constrained(ask)
        self._builder.validate(constrained)
        return self._builder.gen(
            constrained, PromptPosition(ROOT.closed, prompt.parts), step.hints.order, prompt.feeder(teller(ref, "feed"), teller(ref, "heard")), answered
        )

    def _script(self, req: Request) -> np.ndarray | None:
        """Return the tokens recorded for its prompt. Looked up once: it takes as long as what else the host does for a request."""
        if self._recorded is None:
            return None
        if (prompt := req.prompt.tobytes()) not in self._scripts:
            text = self._recorded(self._words.decode(self._builder.results.spelled(req.prompt), with_specials=True))
            ids = None if text is None else [*self._words.encode((text,), at_start=False), self._words.eos_token_ids[0]]
            self._scripts[prompt] = None if ids is None else np.array(ids, np.int32)
        return self._scripts[prompt]

    @staticmethod
    def _tag(req: Request, step: Step) -> None:
        """Tag a request with its owner."""
        hints = step.hints
        req.namespace, req.run, req.watched, req.growth, req.constants = step.namespace, hints.run, hints.watched, hints.growth, hints.constants
        share = hints if hints.run is None else hints.run
        req.weight, req.account = share.priority, share.account

    def _send(self, requests: Sequence[Request]) -> None:
        for req in requests:
            if self._core.on_thread:
                self._core.start(req)
            else:
                self._core.submit(req)

    def _answered(self, ref: weakref.ref[Step], done: Finished | BaseException) -> None:
        step = ref()
        if step is None:
            return  # no longer wanted
        if isinstance(done, Finished):
            self._complete(step, done.after, done.output)
        else:
            self._fail(step, done)

    def _complete(self, step: Step, after: PromptPosition, output: Output | None) -> None:
        with self._lock:
            if step.state is StepState.FAILED:
                return
            step.after, step.state = after, StepState.DONE
            if step.trail is not None:
                said = output.text if output is not None else step.ask.text if isinstance(step.ask, Given) else ""
                step.trail = step.trail._replace(answer=said)
            if not step.wants_prefill:
                step.requests = ()
            pending, step.pending = step.pending, []
        if output is not None:
            charge(step.hints.owner, output.usage)
            step.tell("finish", output)
        self._start_children(pending)

    def _fail(self, step: Step, error: BaseException) -> None:
        """Fail a step and all that waits for it. A loop, not a recursion: chains may be long."""
        doomed = [step]
        while doomed:
            step = doomed.pop()
            with self._lock:
                if step.state in (StepState.DONE, StepState.FAILED):
                    continue
                step.state, step.error, step.parent = StepState.FAILED, error, None
                requests, step.requests = step.requests, ()
                pending, step.pending = step.pending, []
            step.charge_unfinished(requests)
            for req in requests:
                self._core.cancel(req)
            self.leave(step)
            step.tell("fail", error)
            step.parts = ()  # no picture is prepared for it
            doomed += [child for ref in pending if (child := ref()) is not None]

    def _start_children(self, pending: list[weakref.ref[Step]]) -> None:
        for ref in pending:
            child = ref()
            if child is not None:
                self._quietly(child, self._await_pictures)

    @staticmethod
    def _quietly(step: Step, start: Callable[[Step], None]) -> None:
        try:
            start(step)
        except Exception:
            if step.error is None:
                raise  # not the request's fault; its result has the error otherwise

    def speak(self, step: Step) -> None:
        """Emit the text so far of a step's answer."""
        self._core.speak(step.requests)

    def abort(self, step: Step, error: BaseException) -> None:
        self._fail(step, error)

    def _group(self, hints: Hints) -> Group | None:
        """Return the group of the siblings that a request is submitted with."""
        if hints.group is None:
            return None
        with self._lock:
            group = self._groups.get(hints.group)
            if group is None:
                group = self._groups[hints.group] = Group(hints.members)
            return group

    def leave(self, step: Step) -> None:
        """Stop the others of a step's group from waiting for it: its requests are on their way, or will never be.
        Usable from a destructor."""
        group, step.group = step.group, None
        if group is not None:
            self._core.post(group.arrive)

    def forget(self, req: Request) -> None:
        """Drop `req`, which is no longer needed: cancel it, or end its pin. Usable from a destructor."""
        core, scheduler = self._core, self._scheduler
        core.cancel(req)
        if req.kind is RequestKind.PREFILL:
            core.post(lambda: scheduler.held.unpin(req))


def check_numbers(*, max_tokens: int | None, max_batch: int | None, chunk: int | None, seed: int) -> None:
    sizes = {"max_tokens": max_tokens, "max_batch": max_batch, "chunk": chunk}
    for option, value in {**sizes, "seed": seed}.items():
        if option in sizes and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise ParameterError(f"Engine: {option} is {value!r}; it must be a whole number")
        if option in sizes and value < 1:
            raise ParameterError(f"Engine: {option} is {value}; it must be at least 1")


_OPEN: weakref.WeakSet[EngineCore] = weakref.WeakSet()
_COMPILERS: weakref.WeakSet[ConstraintCompiler] = weakref.WeakSet()
_AT_EXIT = 5.0  # seconds that an engine may take besides its pass, for listeners that do not return


def await_closed() -> None:
    """Wait for engines that are closed or dropped, but whose last pass computes: their memory comes back then."""
    for core in list(_OPEN):
        if core.closed:
            core.close(timeout=_AT_EXIT)


@atexit.register
def _close_all() -> None:
    for core in list(_OPEN):
        core.close(timeout=_AT_EXIT)
    for compiler in list(_COMPILERS):
        compiler.close()
