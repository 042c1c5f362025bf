"""Delivery: what passes have computed goes to requests: sampled, drafted and forced tokens to their answers, and scores.
Their text is emitted, and their listeners are told when they end."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from lmc.backend.engine.answer import Ending
from lmc.backend.engine.device_errors import NO_MEMORY
from lmc.backend.engine.drafts import MOST_DRAFTING
from lmc.backend.engine.forward_batch import Draft, ModelPass
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.scheduler import Scheduler
from lmc.backend.engine.token_ids import BROKEN, STUCK, TokenLogprob
from lmc.errors import BackendError, LmcError

log = logging.getLogger("lmc.engine")

_UNLIKELY = -9999.0  # log-probability of a token that replaced the sampled one, which was not computed (OpenAI's number for these)
_BROKEN = (
    "the model gave no numbers (NaN or infinity) for this prompt: its weights are damaged, or overflow in this dtype; "
    'try Engine(dtype="bfloat16") or Engine(dtype="float32")'
)


_LESS = "; a pass needs less with a smaller Engine(chunk=…) or max_batch, the KV pool with a smaller max_tokens"


class Delivery:
    """The requests that an engine has taken, from their start to their end. On the loop's thread.

    scheduler  of the engine
    at_once    listeners learn of an answer when it ends; else with `report`, since what follows it is submitted then
    """

    def __init__(self, scheduler: Scheduler, *, at_once: bool) -> None:
        self.scheduler, self.tally, self.at_once = scheduler, scheduler.tally, at_once
        self.live: dict[Request, None] = {}
        self.unreported: deque[Request] = deque()  # requests that have ended; what follows their answers is submitted when their listeners are called
        self._pending_deltas: list[Request] = []  # requests that are read while they grow, and may have unreported text

    def deliver(self, work: ModelPass, output: PassOutput) -> None:
        """Deliver the output of a pass."""
        for req in work.requests:
            req.in_flight -= 1
        self._scores(work, output)
        n, drafts, read = len(work.samples), work.drafts, self._pending_deltas
        logprobs, now, follows = output.logprobs, time.perf_counter(), n <= MOST_DRAFTING
        for i, ((_, req), place, token) in enumerate(zip(work.samples, work.places, output.tokens[:n], strict=True)):
            if req.done:
                continue
            answer = req.answer
            assert answer is not None
            if req.is_plain and token >= 0 and req not in drafts and answer.advance(token):
                self.tally.generated_tokens += 1
                req.passes += 1
                req.first_at = req.first_at or now
                req.learn(place, token)
            elif not self._sample(req, place, token, logprobs[i], drafts.get(req), output.tokens[n:], logprobs[n:]):
                continue
            if answer.streams:
                read.append(req)
            if follows and not req.done:
                self.scheduler.drafts.follow(req)
        for req in work.riders:
            self.scheduler.riders.settle(req)
        for req in drafts:
            if not req.done:
                self.scheduler.held.drop_draft(req)
        self.finish_ready(work.unsampled)

    def _sample(
        self, req: Request, place: int, token: int, logprob: TokenLogprob | None, draft: Draft | None,
        drawn: Sequence[int], logprobs: Sequence[TokenLogprob | None],
    ) -> bool:  # fmt: skip
        """Deliver a drawn token, and what its draft gives; return False if that was not wanted any more, or failed."""
        if not req.awaits(place):
            return False
        req.passes += 1
        try:
            self._push(req, place, token, logprob)
            if draft is not None:
                mine = slice(draft.first, draft.first + len(draft.ids))
                self._verify(req, place, draft.ids.tolist(), drawn[mine], logprobs[mine])
        except Exception as error:
            self.drop(req, as_backend_error(error))
            return False
        return True

    def _scores(self, work: ModelPass, output: PassOutput) -> None:
        for req in {score.request for score in work.scores if score.at is None}:
            req.passes += 1
        for score, value, top in zip(work.scores, output.scores, output.tops, strict=True):
            if score.at is None:
                score.request.node_logprobs[score.node] = value
            elif score.at < score.request.prompt_len:
                score.request.prompt_logprobs[score.at] = TokenLogprob(score.token, value, top)
            else:  # a forced token: its turn comes before that of this pass's sample
                score.request.logprobs.append(TokenLogprob(score.token, value, top))

    def _verify(self, req: Request, place: int, ids: Sequence[int], drawn: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> None:
        """Continue by the tokens drawn after those of a draft, as far as the answer has these from `place` on."""
        req.drafted += len(ids)
        self.tally.drafted_tokens += len(ids)
        at = self._verify_plain(req, place, ids, drawn) if req.is_plain and not req.done else 0
        for i, token in enumerate(ids[at:], at):
            if req.done or req.ending is not None or req.ids[place + i] != token:
                return
            behind = place + i + 1
            if behind < req.length and req.is_scored:
                return  # it is forced, and its row gives its score again
            self.scheduler.accept(req)
            req.accepted += 1
            self.tally.accepted_tokens += 1
            if behind == req.length:
                assert req.expect() == behind
                self._push(req, behind, drawn[i], logprobs[i])

    def _verify_plain(self, req: Request, place: int, ids: Sequence[int], drawn: Sequence[int]) -> int:
        """Continue a plain answer by what was drawn after its draft's tokens, as far as these are right and nothing ends it; return how many are."""
        assert req.answer is not None
        said = [int(req.ids[place]), *drawn]
        right = len(ids) if said[:-1] == ids else next(i for i, token in enumerate(ids) if said[i] != token)
        n = req.answer.advance_by(drawn[:right])
        req.extend(drawn[:n])
        self.scheduler.accept(req, n)
        req.accepted += n
        self.tally.accepted_tokens += n
        self.tally.generated_tokens += n
        return n

    def emit_deltas(self) -> None:
        """Emit the text of delivered tokens of answers that are read while they grow."""
        pending, self._pending_deltas = self._pending_deltas, []
        for req in pending:
            if not req.done and req.answer is not None:
                self.guarded(req, req.answer.speak)

    def _push(self, req: Request, place: int, token: int, logprob: TokenLogprob | None) -> None:
        answer = req.answer
        assert answer is not None
        if token == STUCK:
            raise answer.stuck()
        if token == BROKEN:
            raise BackendError(_BROKEN)
        req.first_at = req.first_at or time.perf_counter()
        if req.is_plain and answer.advance(token):
            self.tally.generated_tokens += 1
            return req.learn(place, token)
        if place == req.length - 1:  # nothing in flight extends it
            sampled, token = token, answer.steered(token)
            if logprob is not None and token != sampled:
                logprob = TokenLogprob(token, _UNLIKELY)
        req.learn(place, token)
        if logprob is not None:
            req.logprobs.append(logprob)
        self.tally.generated_tokens += 1
        req.ending = answer.push(token)
        if req.ending is not None:
            return self.end(req)
        if answer.matcher is None:
            return
        req.ending = self.force(req)
        if req.ending is not None and req.needs_no_model:
            self.end(req)

    def force(self, req: Request) -> Ending | None:
        """Continue by the tokens that the constraint forces; return the ending, if one of them ends the answer."""
        assert req.answer is not None
        if req.params.logit_bias and not req.answer.is_steered:
            return None  # biased tokens make the tokenization matter
        tokens, ending = req.answer.follow()
        if tokens:
            req.withdraw()
            req.forced += len(tokens)
            self.tally.forced_tokens += len(tokens)
            self.tally.generated_tokens += len(tokens)
            req.extend(tokens)
        return ending

    def finish_ready(self, requests: Iterable[Request]) -> None:
        """End requests that sample nothing and have all they wanted."""
        held = self.scheduler.held
        completed, held.completed = held.completed, []
        for req in completed:
            self.done(req)
        for req in requests:
            if req.done or req.in_head or req.in_flight or req not in self.scheduler.running:
                continue
            elif req.kind is RequestKind.GENERATE and req.max_new == 0:
                assert req.answer is not None
                req.ending = req.answer.empty()
                self.end(req)
            elif req.ending is not None and req.extend_len == 0:  # it only waited for scores of forced tokens
                req.passes += 1
                self.end(req)
            elif req.kind is RequestKind.SCORE and req.next_row == len(req.trie.ids):
                self.guarded(req, lambda r=req: self._conclude(r))
            elif req.kind is RequestKind.SCORE:
                self.scheduler.held.drop_choices(req)

    def _conclude(self, req: Request) -> None:
        assert req.choose is not None
        if any(map(math.isnan, req.node_logprobs)):
            raise BackendError(_BROKEN)
        self.scheduler.held.keep_branch(req, req.choose(req))
        self.end(req)

    def guarded(self, req: Request, action: Callable[[], None]) -> None:
        """Run an action so that a failing request does not take its batch along."""
        if req.done:
            return
        try:
            action()
        except Exception as error:
            self.drop(req, as_backend_error(error))

    def end(self, req: Request) -> None:
        """End a request: keep the KV of the prompt and of the answer up to its cut."""
        if not req.is_sure:
            self.scheduler.lengths.learn(req.gen, req.length - req.prompt_len)
        if req.kind is RequestKind.GENERATE:
            self.scheduler.drafts.ended(req)
        keep = req.prompt_len + req.ending.keep if req.ending is not None else req.device_len
        self.scheduler.held.finish(req, min(keep, req.device_len))
        self.scheduler.riders.settle(req)
        self.done(req)

    def done(self, req: Request) -> None:
        del self.live[req]
        if self.at_once:
            return tell(req)
        self.unreported.append(req)

    def drop(self, req: Request, error: BaseException) -> None:
        self.scheduler.cancel(req)
        req.error = error
        self.done(req)

    def report(self) -> None:
        """Tell the listeners of all answers that have ended."""
        while self.unreported:
            self.report_some(len(self.unreported))

    def report_some(self, most: int) -> None:
        """Tell the listeners of so many answers that have ended, the first ones."""
        for _ in range(min(most, len(self.unreported))):
            tell(self.unreported.popleft())

    def fail(self, error: BaseException | None) -> None:
        """Fail all requests; None: the engine was closed."""
        failed, self.live = list(self.live), {}
        self._pending_deltas.clear()
        for req in failed:
            req.error, req.done = as_backend_error(error), True
            tell(req)


def tell(req: Request) -> None:
    """Complete the request: notify the listener once, and release it: a finished request must keep nothing alive. A
    listener that fails on an answer is notified of that failure instead, so that nothing waits forever; others
    continue."""
    listener, req.on_done, req.following = req.on_done, _nothing, None
    try:
        return listener(req)
    except Exception as error:
        log.exception("the listener of request %d failed", req.order)
        req.error = req.error or as_backend_error(error)
    try:
        listener(req)
    except Exception:
        log.exception("the listener of request %d failed again", req.order)


def _nothing(_: Request) -> None: ...


def as_backend_error(error: BaseException | None) -> LmcError:
    """Return an error of the engine as one of lmc's; None: it was closed."""
    if error is None:
        return BackendError("the engine was closed")
    if isinstance(error, LmcError):
        return error
    name = type(error).__name__
    failure = BackendError(f"the engine failed: {name}: {error}{_LESS if name in NO_MEMORY else ''}")
    failure.__cause__ = error
    return failure
