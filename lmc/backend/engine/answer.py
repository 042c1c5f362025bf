"""An answer as it grows: tokens become text, and the text ends at a stop string, a stop token, a length or a constraint.

Three lengths: text *fed* to streams ≤ *safe* text (no stop string can still cut it, and the log-probabilities of its
tokens are known if requested) ≤ the text so far.

Without stop strings and log-probabilities, tokens alone determine the end. Then their text is made at the end, or by
`speak`, which can wait until the device has its next pass; and only if somebody reads the answer while it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lmc.errors import ConstraintError, Loc, UnmetConstraint, shown
from lmc.fsm.search import finder
from lmc.segments import Constraint, SamplingParams

if TYPE_CHECKING:
    from lmc.backend.engine.constraint import AutomatonMatcher
    from lmc.backend.engine.encoding import TokenizerProtocol
    from lmc.backend.engine.token_ids import TokenLogprob


OnText = Callable[[str, "Sequence[TokenLogprob]"], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer.

    ids    continuation of the prompt: the generated ids up to the cut; if a stop string began inside a token, the
           part of that token before the cut is encoded again
    keep   how many generated tokens from the first are unchanged in `ids`: their KV is worth keeping
    forced  forced parts of the text, as positions in it: begin and end of each run
    """

    text: str
    ids: tuple[int, ...]
    keep: int
    reason: dict[str, Any]
    forced: tuple[tuple[int, int], ...] = ()


class Answer:
    """Collects tokens; `push` detects the end.

    stop_ids    tokens that end the answer and are no part of it (EOS, the template's, the user's)
    constraint  the constraint that `matcher` follows, and `loc` its source location: for errors
    on_text     receives more text, and the log-probabilities of the tokens that end in it, once `streams` is set
    scores      log-probabilities of the tokens as far as they are known; those of forced tokens come later than the
                tokens. None if not requested
    """

    def __init__(
        self,
        words: TokenizerProtocol,
        params: SamplingParams,
        stop_ids: frozenset[int],
        *,
        stop_strings: Sequence[str] = (),
        matcher: AutomatonMatcher | None = None,
        constraint: Constraint | None = None,
        loc: Loc | None = None,
        on_text: OnText | None = None,
        scores: Sequence[TokenLogprob] | None = None,
    ) -> None:
        self.stop_ids, self.matcher = stop_ids, matcher
        self._constraint, self._loc = constraint, loc
        self.sampled = 0  # tokens so far, forced ones and a stop token included
        self.text = ""
        self._ids: list[int] = []
        self._ends: list[int] = []  # length of the text after each token
        self._forced: list[tuple[int, int]] = []  # runs of tokens that were not sampled, by their indices
        self._words, self._params = words, params
        self._detok = words.detokenizer()
        self._stops = tuple(dict.fromkeys((*params.stop, *stop_strings)))
        self._regexes = tuple((pattern, finder(pattern)) for pattern in params.stop_regex)
        self._longest = max(map(len, self._stops), default=0)
        self._last_bytes = {stop.encode("utf-8", "surrogatepass")[-1] for stop in self._stops if stop}
        self._may_end: dict[int, bool] = {}  # by token: whether it has one of these
        self._on_text = on_text
        self.streams = False  # its text is read while it grows; may be set at any time, from any thread
        self._fed = self._fed_tokens = 0
        self._scores = scores
        self.late = not (self._stops or self._regexes or scores is not None)  # text may lag behind its tokens
        self._said = 0  # tokens with decoded text
        self._ended = False
        self._end_tokens: Sequence[int] | None = None  # of the shortest end, once the answer is steered to it
        self._horizon = 0 if matcher is None else matcher.horizon
        self.is_plain = self.late and matcher is None  # a stop token or its length ends it, and nothing else

    @property
    def is_near(self) -> bool:
        """Return whether the limit is so near that the sampled token may have to be replaced, which only the host can
        do."""
        return self._horizon > 0 and self._params.max_new_tokens - self.sampled <= self._horizon

    @property
    def is_steered(self) -> bool:
        return self._end_tokens is not None

    def steered(self, token: int) -> int:
        """Return the sampled token, or the first of the shortest end, which `follow` continues: after the sample, the
        limit would cut the answer."""
        if not self.is_near or self.is_steered or token in self.stop_ids:
            return token
        assert self.matcher is not None
        end = self.matcher.end_before(token, self._params.max_new_tokens - self.sampled)
        if end is None:
            return token
        first, *self._end_tokens = (*end, min(self.stop_ids))
        return first

    def advance(self, token: int) -> bool:
        """Push a token that cannot end a plain answer; return False, with nothing done, for any that `push` has to see."""
        if not self.is_plain or token in self.stop_ids or self.sampled + 1 >= self._params.max_new_tokens:
            return False
        self.sampled += 1
        self._ids.append(token)
        return True

    def advance_by(self, tokens: Sequence[int]) -> int:
        """Push tokens of a plain answer as far as `advance` would, and none that stands for a failure; return how many."""
        tokens = tokens[: max(0, self._params.max_new_tokens - self.sampled - 1)]
        if not self.stop_ids.isdisjoint(tokens) or min(tokens, default=0) < 0:
            tokens = tokens[: next(i for i, token in enumerate(tokens) if token < 0 or token in self.stop_ids)]
        self.sampled += len(tokens)
        self._ids += tokens
        return len(tokens)

    def goes_on(self, tokens: Sequence[int]) -> bool:
        """Return whether nothing but tokens continues an answer without a constraint, and these do not end it: if they come, it goes on by what is
        drawn next."""
        if self._scores is not None or self._regexes:
            return False
        if not self.stop_ids.isdisjoint(tokens) or self.sampled + len(tokens) >= self._params.max_new_tokens:
            return False
        if not self._stops:
            return True
        text = self.text[max(0, len(self.text) - self._longest + 1) :] + "".join(self._detok.fork().push_all(tokens))
        return not any(stop in text for stop in self._stops)

    def ended_by(self, tokens: Sequence[int]) -> tuple[Ending, int] | None:
        """Return how the answer ends if these tokens come next, and how many come before the one that ends it; None if they do not end it, or that cannot be
        told. It stays as it is."""
        stops = self._regexes or self.matcher is not None or not self.stop_ids.isdisjoint(tokens) or self._may_stop(tokens)
        left = self._params.max_new_tokens - self.sampled
        if self._scores is not None or not (stops or len(tokens) >= left) or (self._horizon and left - len(tokens) <= self._horizon):
            return None
        after = copy(self)
        after._ids, after._ends, after._forced, after._detok = self._ids.copy(), self._ends.copy(), self._forced.copy(), self._detok.fork()
        after._on_text, after.matcher = None, None if self.matcher is None else self.matcher.fork()
        after._regexes = tuple((pattern, copy(find)) for pattern, find in self._regexes)
        try:
            return after._ended_by_all(tokens)
        except ConstraintError:  # if they come, this answer raises it itself
            return None

    def _may_stop(self, tokens: Sequence[int]) -> bool:
        """Return whether one of these has a byte with which a stop string ends: most have none, and the device may wait."""
        known = self._may_end
        for token in tokens:
            if token not in known:
                spelled = self._words.token_bytes(token)
                known[token] = any(byte in spelled for byte in self._last_bytes)
            if known[token]:
                return True
        return False

    def _ended_by_all(self, tokens: Sequence[int]) -> tuple[Ending, int] | None:
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if self.matcher is not None and not (self.matcher.complete if token in self.stop_ids else self.matcher.allows(token)):
                return None
            before, ending, at = at, self.push(token), at + 1
            if ending is None and self.matcher is not None and not self._params.logit_bias:
                forced, ending = self.follow()
                if any(a != b for a, b in zip(forced, tokens[at:], strict=False)):
                    return None
                at += len(forced)
            if ending is not None:
                return ending, before
        return None

    def push(self, token: int) -> Ending | None:
        """Push one more token; return the ending if it was the last."""
        self.sampled += 1
        if token in self.stop_ids:
            return self._end({"type": "stop", "matched": token})
        self._ids.append(token)
        if self.matcher is not None:
            self.matcher.accept(token)
        return self._over() if self.late else self._heard()

    def follow(self) -> tuple[Sequence[int], Ending | None]:
        """Take the tokens that come next regardless of the model: return those taken, and the ending if the last of
        them ends the answer. Once after a sample."""
        if self._end_tokens is not None:
            self._forced.append((len(self._ids) - 1, len(self._ids) + len(self._end_tokens)))
            return self._ended_by(self._end_tokens)
        if self.matcher is None or not (tokens := self.matcher.forced()):
            return (), None
        self._forced.append((len(self._ids), len(self._ids) + len(tokens)))
        whole = self.sampled + len(tokens) <= self._params.max_new_tokens and self.stop_ids.isdisjoint(tokens)
        if not (self.late and whole):
            for i, token in enumerate(tokens):
                if (ending := self.push(token)) is not None:
                    return tokens[: i + 1], ending
            return tokens, None
        self.sampled += len(tokens)
        self._ids += tokens
        self.matcher.accept_forced(tokens)
        return tokens, self._over()

    def _ended_by(self, tokens: Sequence[int]) -> tuple[Sequence[int], Ending | None]:
        """Take the tokens of the shortest end; the stop token after them ends the answer where it could continue."""
        for i, token in enumerate(tokens):
            if (ending := self.push(token)) is not None:
                return tokens[: i + (token not in self.stop_ids)], ending
        raise AssertionError("an end that does not end")

    def _heard(self) -> Ending | None:
        """Return the ending, if the last token ends the answer, by its text."""
        before = len(self.text)
        self._say()
        found = self._find_stop(before) if len(self.text) > before else None
        if found is not None:
            return self._cut(*found)
        return self._over()

    def _over(self) -> Ending | None:
        if self.matcher is not None and self.matcher.done:
            return self._end({"type": "stop", "matched": None})
        if self.sampled >= self._params.max_new_tokens:
            return self._end({"type": "length", "length": self.sampled})
        return None

    def speak(self) -> None:
        """Emit the text of the tokens so far to the listener."""
        if self.streams and self._on_text is not None and not self._ended:
            self._say()
            self._feed(self._safe())

    def _say(self) -> None:
        pieces = self._detok.push_all(self._ids[self._said :])
        before = len(self.text)
        self._ends += [before + end for end in accumulate(map(len, pieces))]
        self.text += "".join(pieces)
        self._said = len(self._ids)

    def stuck(self) -> ConstraintError:
        """Return the error that nothing can follow: the constraint allows no next token, and the text is incomplete."""
        assert self.matcher is not None
        self._say()
        why = "no text that it allows begins like that"
        try:
            _ = self.matcher.bits
        except ConstraintError as error:
            why = error.message
        of = "" if self._constraint is None else f" {self._constraint.kind} {shown(self._constraint.source)}"
        return ConstraintError(f"the constraint{of} lets nothing follow {shown(self.text)}: {why}", loc=self._loc)

    def empty(self) -> Ending:
        """Return the ending of an answer that may have no tokens."""
        return self._end({"type": "length", "length": 0})

    def _find_stop(self, before: int) -> tuple[int, str] | None:
        """Return where the earliest stop begins, and the match; `before`: length of the text that was searched
        already."""
        found: list[tuple[int, str]] = []
        start = max(0, before - self._longest + 1)
        for stop in self._stops:
            at = self.text.find(stop, start)
            if at >= 0 and stop:
                found.append((at, stop))
        for pattern, start_in in self._regexes:
            at = start_in(self.text)
            if at is not None:
                found.append((at, pattern))
        return min(found, key=lambda f: f[0]) if found else None

    def _cut(self, at: int, matched: str) -> Ending:
        """End before position `at` of the text."""
        text = self.text[:at]
        whole = max((e for e in self._ends if e <= at), default=0)
        keep = self._ends.index(whole) + 1 if whole else 0  # later tokens with the same end hold half a character
        rest = text[whole:]
        ids = self._ids[:keep] + (self._words.encode((rest,), at_start=False) if rest else [])
        self._feed(len(text))
        self._ended = True
        return Ending(text, tuple(ids), keep, {"type": "stop", "matched": matched}, self._forced_in(text))

    def _end(self, reason: dict[str, Any]) -> Ending:
        self._say()
        before = len(self.text)
        rest = self._detok.flush()
        if reason["type"] == "length" and rest and not rest.strip("\ufffd"):  # half a character, which is unreadable
            return replace(self._cut(before, ""), reason=reason)
        self.text += rest
        found = self._find_stop(before) if len(self.text) > before else None
        if found is not None:
            return self._cut(*found)
        if self.matcher is not None and reason["type"] == "stop" and self.matcher.complete:
            self._check()
        self._feed(len(self.text))
        self._ended = True
        if self.is_steered:
            reason = {"type": "length", "length": self.sampled}
        return Ending(self.text, tuple(self._ids), len(self._ids), reason, self._forced_in(self.text))

    def _forced_in(self, text: str) -> tuple[tuple[int, int], ...]:
        """Return the forced parts of a text, which may be cut."""
        at = [0, *self._ends]
        runs = ((min(at[begin], len(text)), min(at[min(end, len(at) - 1)], len(text))) for begin, end in self._forced if begin < len(at))
        return tuple(run for run in runs if run[0] < run[1])

    def _check(self) -> None:
        assert self.matcher is not None
        try:
            self.matcher.check(self.text)
        except UnmetConstraint as error:
            raise UnmetConstraint(error.message, loc=self._loc) from None

    def _safe(self) -> int:
        """Return the length of the text that no stop can still cut."""
        if self._regexes:
            return self._fed  # a regex may match from anywhere on
        text = self.text
        for held in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-held:]) for stop in self._stops if len(stop) > held):
                return len(text) - held
        return len(text)

    def _feed(self, upto: int) -> None:
        if self._on_text is None or not self.streams:
            return
        if self._scores is not None:
            upto = min(upto, self._scored_upto())
        if upto > self._fed:
            scores = self._take_scores(upto)
            delta, self._fed = self.text[self._fed : upto], upto
            self._on_text(delta, scores)

    def _scored_upto(self) -> int:
        """Return the length of the text whose tokens have their log-probabilities."""
        assert self._scores is not None
        known = len(self._scores)
        return len(self.text) if known >= len(self._ends) else self._ends[known - 1] if known else 0

    def _take_scores(self, upto: int) -> Sequence[TokenLogprob]:
        """Take the log-probabilities of tokens that end in the text before `upto` and were not fed yet."""
        if self._scores is None:
            return ()
        start = self._fed_tokens
        while self._fed_tokens < len(self._ends) and self._ends[self._fed_tokens] <= upto:
            self._fed_tokens += 1
        return self._scores[start : self._fed_tokens]
