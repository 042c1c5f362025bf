"""Pending answers: a request of DSPy's as it is submitted, field by field, and its response when the fields have arrived."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from dspy import lm15

from lmc import observing
from lmc.backend.base import Backend, Handle, Hints
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.constraints import make_constraint
from lmc.frontend.state import State
from lmc.integrations.dspy.fields import COMPLETED, HEADER, STOPS, Field
from lmc.integrations.dspy.followed import ask
from lmc.integrations.dspy.requests import EXTENSION, constraint_of, given_of, params_of, prompt_of
from lmc.parameters import sampling
from lmc.prompt import Prompt, segments_of
from lmc.segments import Constraint, Gen, Image, Part, SamplingParams, Segment


class PendingAnswer:
    """One pending answer: plain, or a template whose fields are filled one after the other in one chain."""

    def __init__(self, backend: Backend, request: Any, seed: int, hints: Hints | None) -> None:
        self._backend, self._request, self._seed, self._hints = backend, request, seed, hints
        self._prompt, self._params = prompt_of(request, backend), params_of(request)
        given: Any = (request.config.extensions or {}).get(EXTENSION)
        self._fields: list[Field] | None = None if given is None else [Field(**each) for each in given]
        self._constraint = None if self._fields is not None else constraint_of(request)
        self.text = ""  # of the fields that are complete, headers included
        self.outputs: list[Output] = []
        self._texts: dict[str, str] = {}  # of the fields that are complete
        self._first = 0  # the field of the handle's first answer
        self.cut = False
        self._handle: Handle | None = None
        self._submit()

    def _submit(self) -> None:
        """Request what is not complete yet, up to a field that another one decides; again after a field was cut off and
        completed."""
        self._first = len(self.outputs)
        self._handle = observing.submit(self._backend, None, tuple(self._segments()), self._hints)

    def _segments(self) -> Iterator[Segment]:
        if self._fields is None:
            yield from segments_of(self._prompt)
            yield self._gen(self._params, self._constraint)
            return
        before: tuple[Part | Image, ...] = (*self._prompt, self.text) if self.text else self._prompt
        for i, each in enumerate(self._fields[len(self.outputs) :]):
            if each.by and each.by not in self._texts:
                return  # requested once that has arrived
            each = each.decided(self._texts)
            yield from segments_of((*before, self.header(each, first=not self.text and i == 0)))
            before = ()
            if each.kind == "text":
                yield self._gen(sampling(self._params, {"stop": (*self._params.stop, *STOPS)}), None)
            else:
                yield self._gen(self._params, make_constraint(each.kind, each.source))

    def _gen(self, params: SamplingParams, constraint: Constraint | None) -> Gen:
        return Gen(params, constraint, seed=self._seed)

    @staticmethod
    def header(each: Field, *, first: bool) -> str:
        return ("" if first else "\n\n") + HEADER.format(each.name) + "\n"

    @property
    def model(self) -> str:
        return self._request.model

    @property
    def results(self) -> Sequence[Result]:
        assert self._handle is not None
        return self._handle.results

    @property
    def pending(self) -> Result | None:
        """Return the answer to wait for next; None when all have arrived."""
        if self._fields is None:
            return None if self.outputs else self.results[0]
        return self.results[len(self.outputs) - self._first] if len(self.outputs) < len(self._fields) else None

    def opening(self) -> str:
        """Return the text before the pending answer that belongs to the response: a header."""
        if self._fields is None:
            return ""
        done = len(self.outputs)
        return self.header(self._fields[done], first=done == 0) if done < len(self._fields) else self.closing()

    def closing(self) -> str:
        return "" if self._fields is None else f"\n\n{COMPLETED}\n"

    def output(self, result: Result) -> Output:
        """Return the answer; wait for it."""
        return result.output()

    def take(self, output: Output) -> str:
        """Take the pending answer, which has arrived: return its text as it is in the response."""
        text, cut = output.text, output.metas[0]["finish_reason"]["type"] == "length"
        self.cut = self.cut or cut
        if self._fields is None:
            self.outputs.append(output)
            self.text = text
            return text
        each = self._fields[len(self.outputs)].decided(self._texts)
        opening = self.opening()
        whole = each.complete(text) if cut else text
        self.outputs.append(output)
        self._texts[each.name] = whole
        self.text += opening + whole
        asked = len(self.outputs) - self._first < len(self.results)
        if len(self.outputs) < len(self._fields) and (whole != text or not asked):  # later fields saw a text that was cut off, or waited for this one
            self.cancel()
            self._submit()
        return whole

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "length" if self.cut else "stop"

    @property
    def usage(self) -> Any:
        total = sum((output.usage for output in self.outputs), Usage())
        first = self.outputs[0].usage
        return lm15.Usage(
            input_tokens=first.prompt_tokens,
            output_tokens=total.completion_tokens,
            total_tokens=first.prompt_tokens + total.completion_tokens,
            cache_read_tokens=first.cached_tokens,
        )

    def response(self) -> Any:
        return lm15.Response(
            id=f"lmc-{secrets.token_hex(8)}",
            model=self.model,
            message=lm15.Message.assistant([lm15.TextPart(self.text + self.closing())]),
            finish_reason=self.finish_reason,
            usage=self.usage,
            logprobs=self._logprobs(),
        )

    def _logprobs(self) -> Any:
        if self._request.config.logprobs is None:
            return None
        found: list[Any] = []
        for output in self.outputs:
            meta = output.metas[0]
            tops: list[Any] = meta.get("output_top_logprobs") or [[] for _ in meta["output_token_logprobs"]]
            for (logprob, token, text), top in zip(meta["output_token_logprobs"], tops, strict=True):
                others = tuple(lm15.TopLogprob(t, lp, token_id=i) for lp, i, t in top)
                found.append(lm15.TokenLogprob(text, logprob, token_id=token, top=others))
        return tuple(found)


running: ContextVar[State | None] = ContextVar("lmc_dspy_running", default=None)
"""State of the compiled module's run that this belongs to (lmc/integrations/dspy/compiled.py)."""


class AnswerInRun(PendingAnswer):
    """A request of a compiled module: on a fork of its run, so that it has an address there, and the next requests are
    made ahead."""

    def __init__(self, backend: Backend, request: Any, state: State) -> None:
        (self._parent,), self._nodes = state.fork(1), list[Prompt]()
        super().__init__(backend, request, 0, None)

    def _submit(self) -> None:
        self._first = len(self.outputs)
        spec = spec_of(self._request, self._texts)
        assert spec is not None
        before = self._parent.ctx
        self._fork = ask(self._parent, spec)
        self._nodes = [node for node in self._fork.ctx.nodes_after(before) if node.result is not None]

    @property
    def results(self) -> Sequence[Result]:
        return [node.result for node in self._nodes if node.result is not None]

    def output(self, result: Result) -> Output:
        (node,) = [node for node in self._nodes if node.result is result]
        self._parent.emitter.wait(node)
        return result.output()

    def cancel(self) -> None:
        """Do nothing: the run cancels its requests when it ends."""


def spec_of(request: Any, texts: Mapping[str, str] = {}) -> dict[str, Any] | None:
    """Return a request as data for a program (followed.py); None for one with images, messages of tools or several
    answers.

    texts  of the fields that are complete
    `whole`: no field has to wait for the text of another
    """
    turns = [] if request.system is None else [("system", request.system)]
    turns += [("system" if m.role == "developer" else m.role, m.parts) for m in request.messages]
    said = [(role, content if isinstance(content, str) else _text_of(content)) for role, content in turns]
    if request.tools or any(content is None or role not in ("system", "user", "assistant") for role, content in said):
        return None
    given: Any = (request.config.extensions or {}).get(EXTENSION)
    params = given_of(request)
    if given is None:
        constraint = constraint_of(request)
        own = {} if constraint is None else {constraint.kind: constraint.source}
        return {"turns": said, "begun": "", "fields": [{"name": "answer", "header": "", "given": params | own}], "closing": "", "whole": True}
    fields, begun, waits = list[dict[str, Any]](), "", False
    for i, hole in enumerate(Field(**each) for each in given):
        header = PendingAnswer.header(hole, first=i == 0)
        if hole.name in texts:
            begun += header + texts[hole.name]
            continue
        if hole.by and hole.by not in texts:
            waits = True
            break
        each = hole.decided(texts)
        own = {"stop": [*(params.get("stop") or ()), *STOPS]} if each.kind == "text" else {each.kind: each.source}
        fields.append({"name": hole.name, "header": header, "given": params | own})
    return {"turns": said, "begun": begun, "fields": fields, "closing": f"\n\n{COMPLETED}\n", "whole": not waits}


def _text_of(parts: Any) -> str | None:
    """Return the text of a message; None if it has other parts."""
    return "".join(part.text for part in parts) if all(isinstance(part, lm15.TextPart) for part in parts) else None
