"""Drafts: tokens that an answer probably continues with. They run beside its last token, and are kept as far as the
draws agree.

    known            … the cat sat on the        the continuation where the text ended like this before
    draft                              mat and   rows of their own in the next pass; each draws the token after it
    drawn                              mat so    the first is the draft's: the row after it drew the next token, too

A draw depends only on (seed, position) and the tokens before it, so a draft never changes a token, only the number of
tokens per pass.

Sources are the answer's own context, prompt included, earlier answers to the same gen in the same namespace and
account, and texts that its program has for later (Hints.constants). In each the longest earlier occurrence of the text's
end is searched (prompt lookup; cf. the suffix automata of SAM decoding, which find the same but cost every request a
build, also without drafts). How often its continuation was right is counted for each gen, source and length of the
occurrence, and for each token that was expected, also while nothing is drafted: so only drafts that pay are run, and they
end where copies of this gen end, as at a line break.
A device that runs ahead would begin the next pass before an occurrence is found, and use it a pass later: so how often one is found, and right,
after a token that had none is counted alike, and the pass is waited for where that pays.
Where none is found, a lone answer may go on near where it left an occurrence, or as if a token of it had been replaced: less surely, so that these cost no
more than drafts have gained.
Where there is a smaller model (draft_model.py), it guesses what no occurrence is likely to tell; how often it is right is known only while it
is asked, so one that did not pay is asked again now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lmc.backend.engine.draft_costs import Costs, DraftBudget
from lmc.backend.engine.draft_sources import GUESSED, LEAST, PLACES, PRIOR, REPLACED, RESUMED, SELDOM, Match, ModelGuess, Odds, occurrence, resumed
from lmc.backend.engine.request import Request
from lmc.errors import ParameterError

if TYPE_CHECKING:
    from lmc.backend.engine.draft_model import DraftModel

Setting = int | Literal["auto", "off"]

MOST_DRAFTING = 8
"""Answers that run together up to which drafts are made: their pass is waited for before the next one is planned."""
MOST_TOKENS = 63  # of one draft by default
_FIRST_TOKENS = 16  # of one behind an occurrence that is no longer: at most as many are drafted as were right
_LIMIT = 64  # most tokens that may be set

_SITE = 1 << 14  # tokens kept of the answers to one gen
_SITES = 256  # gens with kept answers, the most recently answered
_SEAM = -1  # between two answers


@dataclass(slots=True)
class _GenStatistics:
    """One gen in one namespace and account: its answers, later texts of its program, and which source was right.

    constants, program  those texts, and their tokens
    """

    text: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    constants: tuple[str, ...] = ()
    program: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    odds: dict[str, Odds] = field(default_factory=dict)

    def keep(self, ids: np.ndarray) -> None:
        self.text = np.concatenate((self.text, [_SEAM], ids)).astype(np.int32)[-_SITE:]  # readers of the old array keep it

    def expect(self, constants: tuple[str, ...], encode: Callable[[str], Sequence[int]]) -> None:
        """Take texts of the program, unless they are those of before."""
        if self.constants != constants:
            self.constants = constants
            self.program = np.array([x for text in constants for x in (_SEAM, *encode(text))], np.int32)[:_SITE]


# -- drafts ---------------------------------------------------------------------------------------------------------


class _Offer(NamedTuple):
    """So many tokens that an answer may have as a draft, behind `before` others that come first; expected: all of these, as far as they are known, of the
    occurrence at `place`, which may not be found yet; None: the smaller model guesses."""

    request: Request
    tokens: int
    before: int
    expected: Sequence[int] | None = None
    place: Match | None = None


class _Begun(NamedTuple):
    """A lone answer's draft in a pass that has begun. is_proposed: it has been proposed already."""

    request: Request
    draft: np.ndarray
    is_proposed: bool


class Drafts:
    """The drafts of one engine. For its thread.

    setting  most tokens of a draft: always so many if there are any; "auto": as many as pay; "off": none
    model    guesses where no occurrence does; None: there is none
    encode   tokens of a text within a prompt; None: texts of programs are no source
    """

    def __init__(self, setting: Setting, costs: Costs, model: DraftModel | None = None, encode: Callable[[str], Sequence[int]] | None = None) -> None:
        self.costs, self.model, self._encode = costs, model, encode
        self.use(setting)
        self.forget()

    def close(self) -> None:
        """Drop the smaller model."""
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def use(self, setting: Setting) -> None:
        """Set it from the next pass on."""
        self.setting: Setting = setting
        self._most = {"auto": MOST_TOKENS, "off": 0}[setting] if isinstance(setting, str) else setting

    def forget(self) -> None:
        """Forget earlier answers, and which drafts were right."""
        self._sites: dict[Hashable, _GenStatistics] = {}  # in the order of the last answer
        self._every: dict[str, Odds] = {}
        self._unasked = 0  # times that the smaller model was not, since it would not have paid
        self._budget = DraftBudget()
        self._begun: _Begun | None = None
        self._unlearned: list[tuple[Odds | None, Odds, int, Sequence[int], int, bool]] = []

    # -- text so far -----------------------------------------------------------------------------------------

    def follow(self, req: Request) -> None:
        """Read the new tokens of a running answer, and look up their possible continuation."""
        end = req.length - req.awaited
        if not self._most or end <= req.prompt_len:
            return
        ids = req.ids[:end]
        self._heed(req, ids)
        start = max(req.followed, req.prompt_len)
        awaited = (req.vain, int(ids[start - 1])) if not req.idle and start == end - 1 else None
        replaced = None
        if req.match is not None and start < end:
            req.match, replaced = self._go_along(req, req.match, ids, start)
        elif req.nearby is not None and start < end:
            req.nearby, replaced = self._go_along(req, req.nearby, ids, start)
        req.followed = end
        if req.match is None:
            req.match, req.found_after = self._find(req, ids), awaited
            if req.match is None:
                self._learn_found(req, False)
                req.nearby = req.nearby or resumed(req.left, int(ids[-1])) or replaced
        if req.match is not None:
            req.nearby = None

    def _go_along(self, req: Request, match: Match, ids: np.ndarray, start: int) -> tuple[Match | None, Match | None]:
        """Follow its occurrence along the new tokens, `ids[start:]`, as far as it is right, and learn how far that was. Return where it goes on, if all are,
        and where it does if only the last token was wrong, and stands in place of the expected one."""
        if match.repeats:
            match = match._replace(text=ids)  # it has grown
        drawn = ids[start:].tolist()
        expected: list[int] = match.next(len(drawn)).tolist()
        right = next((i for i, (a, b) in enumerate(zip(expected, drawn, strict=False)) if a != b), len(expected))
        ended = match.at + right == len(match.text)
        missed = right < len(drawn) and not ended
        self._unlearned.append((self._own_odds(req, match.source), self._of_all(match.source), match.length, expected, right, missed))
        self._learn_found(req, right > 0)
        along = match._replace(at=match.at + right, length=match.length + right)
        if not missed:
            return None if ended else along, None
        if along.length >= LEAST:
            req.left = along, *req.left[: PLACES - 1]
        return None, match.behind_replaced(right) if right == len(drawn) - 1 else None

    def learn(self) -> None:
        """Learn how far drafts were right: beside the device, which waits while `follow` reads what was drawn."""
        for own, every, length, expected, right, missed in self._unlearned:
            for odds in (own or every, every):
                odds.learn_run(length, right, missed)
            if own is not None:
                own.learn_tokens(expected[:right])
                for token in expected[right : right + missed]:  # none, where a text ends
                    own.learn_token(token, False)
        self._unlearned.clear()

    def _heed(self, req: Request, ids: np.ndarray) -> None:
        """Record whether the smaller model was right, as far as that is known."""
        if req.guess_of is None:
            return
        at, guessed = req.guess_of
        req.guess_of = None
        for i, token in enumerate(guessed.tolist()):
            if at + i >= len(ids):
                return
            hit = int(ids[at + i]) == token
            self._learn(req, _MODEL, _GUESS, hit)
            if not hit:
                return

    def _find(self, req: Request, ids: np.ndarray) -> Match | None:
        if req.idle > 0:
            req.idle -= 1
            return None
        found = occurrence(ids, ids, "own")
        for name, text in self._elsewhere(req):
            other = occurrence(text, ids, name) if len(text) else None
            if other is not None and (found is None or other.length > found.length):
                found = other
        req.vain = 0 if found is not None else req.vain + 1
        req.idle = min(req.vain // _VAIN, _MOST_IDLE)
        return found

    def _elsewhere(self, req: Request) -> tuple[tuple[str, np.ndarray], ...]:
        """Return the sources besides its own context."""
        key = _key(req)
        if key is None or not (req.constants or key in self._sites):
            return ()
        site = self._site(key)
        if self._encode is not None:
            site.expect(req.constants, self._encode)
        return ("site", site.text), ("program", site.program)

    def ended(self, req: Request) -> None:
        """Add a complete answer: others to the same gen may continue like it."""
        req.match, req.nearby, req.guess_of, req.left = None, None, None, ()
        if self._most and (key := _key(req)) is not None and req.length > req.prompt_len:
            site = self._sites.pop(key, None) or _GenStatistics()
            site.keep(req.ids[req.prompt_len : req.length])
            self._put(key, site)

    def _site(self, key: Hashable) -> _GenStatistics:
        if (site := self._sites.get(key)) is None:
            self._put(key, site := _GenStatistics())
        return site

    def _put(self, key: Hashable, site: _GenStatistics) -> None:
        self._sites[key] = site
        if len(self._sites) > _SITES:
            del self._sites[next(iter(self._sites))]

    def _learn_found(self, req: Request, hit: bool) -> None:
        """Record whether an occurrence that was not known before the last token was found then, and is right."""
        if req.found_after is not None:
            (vain, last), req.found_after = req.found_after, None
            self._learn(req, _FOUND, vain, hit)
            self._odds(req, _FOUND).learn_token(last, hit)

    def _chance_of_another(self, req: Request) -> float:
        """Return the probability that another occurrence is found after the token being sampled, and the next token is as there."""
        return self._odds(req, _FOUND).chances(req.vain, 1, [int(req.ids[req.length - req.awaited - 1])])[0]

    def _learn(self, req: Request, source: str, length: int, right: bool) -> None:
        """Record whether a source was right, for its gen and for all gens."""
        for odds in (self._odds(req, source), self._of_all(source)):
            odds.learn(length, right)

    def _odds(self, req: Request, source: str) -> Odds:
        return self._own_odds(req, source) or self._of_all(source)

    def _of_all(self, source: str) -> Odds:
        """Return the odds of all gens."""
        if (odds := self._every.get(source)) is None:
            odds = self._every[source] = Odds({_FOUND: SELDOM, REPLACED: GUESSED, RESUMED: GUESSED}.get(source, PRIOR))
        return odds

    def _own_odds(self, req: Request, source: str) -> Odds | None:
        """Return the odds of its gen; None if that is unknown."""
        key = _key(req)
        if key is None:
            return None
        site = self._site(key)
        if (odds := site.odds.get(source)) is None:
            odds = site.odds[source] = Odds(self._of_all(source))
        return odds

    # -- drafts ---------------------------------------------------------------------------------------

    def propose(self, decoding: Sequence[Request], rows: int) -> dict[Request, np.ndarray]:
        """Return drafts for the next pass, of so many rows in all; its other rows are those of `decoding`."""
        if not self._most or len(decoding) > MOST_DRAFTING:
            return {}
        begun, self._begun = self._begun, None
        if begun is None or not begun.is_proposed:
            self._budget.begin(decoding, self.costs.plain)
        if begun is not None and [begun.request] == list(decoding) and len(begun.draft) <= rows:
            if not begun.is_proposed:
                self._budget.left -= self.costs.of([len(begun.draft)], [False])
            return {begun.request: begun.draft} if len(begun.draft) else {}
        if rows <= 0:
            return {}
        found: dict[Request, np.ndarray | None] = {}  # None: the smaller model is asked
        offers: list[_Offer] = []
        for req in decoding:
            if req.awaited or req.followed != req.length:
                continue
            place = self.place(req, len(decoding))
            draft = None if place is None else place.next(min(self._longest(place), _room(req)))
            if draft is not None and len(draft) and not self._guesses_better(req, place):
                found[req] = draft
                offers.append(_Offer(req, len(draft), 0, draft.tolist(), place))
            elif n := self._guessable(req):
                found[req] = None
                offers.append(_Offer(req, n, 0))
        if not found:
            return {}
        drafts: dict[Request, np.ndarray] = {}
        wanted: dict[Request, int] = {}
        for (req, draft), n in zip(found.items(), self._counts(len(decoding), offers, rows=rows), strict=True):
            n = min(n, rows)
            if n and draft is not None and len(legal := _legal(req, draft[:n])):
                drafts[req] = legal
                rows -= len(legal)
            elif n and (n := min(n, self._guessable(req))):
                wanted[req] = n
                rows -= n
        self._budget.left -= self.costs.of([*map(len, drafts.values()), *wanted.values()], [False] * len(drafts) + [True] * len(wanted))
        return drafts | self._guessed(wanted, len(decoding)) if wanted else drafts

    def _longest(self, match: Match) -> int:
        """Return how many tokens behind an occurrence may be drafted."""
        return min(self._most, max(_FIRST_TOKENS, match.length)) if self.setting == "auto" else self._most

    def foresee(self, req: Request, draft: Sequence[int], rows: int) -> tuple[list[int], np.ndarray] | None:
        """Return the tokens that the pass in flight is expected to give a lone answer, all of the draft in it and one more, and the next draft, of at most
        so many rows; None if that is unlikely."""
        match, right = self.place(req, 1), len(draft) + 1
        if match is None or self.model is not None or not self._most:
            return None
        behind = match._replace(at=match.at + right, length=match.length + right)
        most = min(self._longest(behind), _room(req) - len(draft), rows)
        window = match.next(right + max(0, most))
        legal = _legal(req, window)
        if len(legal) <= right or legal[: right - 1].tolist() != list(draft):
            return None
        n = len(legal) - right
        if self.setting == "auto":
            chances = self._odds(req, match.source).chances(match.length, len(legal), legal.tolist())
            if (sure := chances[right - 1]) < _LIKELY:
                return None
            (n,) = self.costs.worth(1, [[chance / sure for chance in chances[right:]]])
            while n and self.costs.of([n], [False]) > self._left(match):
                n -= 1
        return (legal[:right].tolist(), legal[right : right + n]) if n else None

    def pay(self, req: Request, place: Match, drafted: int, rows: int) -> float | None:
        """Pay for so many rows of a rider behind a draft of so many tokens, and return what they cost; None if they do not pay."""
        if self.setting != "auto":
            return 0.0
        chance = self._odds(req, _END).chances(place.length, 1)[0]
        if drafted:
            chance *= self._odds(req, place.source).chances(place.length, drafted, place.next(drafted).tolist())[-1]
        cost = self.costs.row * rows + (0 if drafted else self.costs.some)
        if chance * self.costs.plain < _PAYS * (1 - chance) * cost or cost > self._left(place):
            return None
        self._budget.left -= cost
        return cost

    def learn_end(self, req: Request, place: Match, right: bool) -> None:
        """Learn whether an answer ended where that was expected."""
        self._learn(req, _END, place.length, right)

    def gained(self, passes: float) -> None:
        """Record that a rider has saved so many passes."""
        self._budget.gain(passes)

    def place(self, req: Request, answers: int) -> Match | None:
        """Return where an answer's draft comes from: others that run beside it would wait for one that is less sure than an occurrence."""
        affords = self.setting != "auto" or self._budget.gained > 0
        return req.match or (req.nearby if answers == 1 and affords else None)

    def _left(self, *places: Match | None) -> float:
        """Return what drafts of these places may cost: those that are less sure than occurrences, no more than drafts have gained."""
        return self._budget.gained if any(place is not None and place.source in (REPLACED, RESUMED) for place in places) else self._budget.left

    def expect(self, req: Request, draft: np.ndarray, *, is_proposed: bool) -> None:
        """Propose this draft of a lone answer, which may be empty, for the next pass: it has begun. is_proposed: by `propose`."""
        self._begun = _Begun(req, draft, is_proposed)

    def _guessable(self, req: Request) -> int:
        """Return how many tokens the smaller model may draft."""
        most = _FIRST_TOKENS if self.setting == "auto" else self._most
        return 0 if self.model is None else max(0, min(most, _room(req), self.model.room(req)))

    def _guesses_better(self, req: Request, match: Match | None) -> bool:
        """Return whether the smaller model is more likely to be right than the occurrence found."""
        if match is None or not self._guessable(req):
            return False
        return self._odds(req, _MODEL).chances(_GUESS, 1)[0] > self._odds(req, match.source).chances(match.length, 1)[0]

    def _guessed(self, wanted: Mapping[Request, int], answers: int) -> dict[Request, np.ndarray]:
        assert self.model is not None
        began = perf_counter()
        found = self.model.guess(wanted)
        self.costs.learn_step(answers, max(wanted.values()), perf_counter() - began)
        for req, ids in found.items():
            req.guess_of = ModelGuess(req.length, ids)
        return found

    def is_promising(self, requests: Iterable[Request]) -> bool:
        """Return whether drafts will pay once the tokens of `requests` being sampled are known: then these are worth
        waiting for."""
        if not self._most:
            return False
        requests = list(requests)
        if len(requests) > MOST_DRAFTING:
            return False
        offers: list[_Offer] = []
        for req in requests:
            place = self.place(req, len(requests))
            if place is not None and not self._guesses_better(req, place):
                n = min(self._longest(place), _room(req))
                offers.append(_Offer(req, n, 1, place.next(n + 1).tolist(), place))
            elif n := self._guessable(req):
                offers.append(_Offer(req, n, 1))
            elif self.setting == "auto" and not req.idle:  # one may be found: without the wait, a pass later
                offers.append(_Offer(req, min(1, _room(req)), 1, ()))
        offers = [offer for offer in offers if offer.tokens > 0]
        if not offers or not any(self._counts(len(requests), offers, self.costs.wait)):
            return False
        self._budget.left -= self.costs.wait
        return True

    def _counts(self, answers: int, offers: Sequence[_Offer], wait: float = 0.0, rows: int | None = None) -> list[int]:
        """Return how many tokens of each draft to run. `wait`: what else they would cost. `rows`: the most in all."""
        if self.setting != "auto":
            return [offer.tokens for offer in offers]
        chances: list[list[float]] = []
        for req, n, before, expected, place in offers:
            if expected is None:
                chances.append(list(accumulate(self._odds(req, _MODEL).chances(_GUESS, 1) * (n + before), mul))[before:])
                continue
            if place is None:
                chances.append([self._chance_of_another(req)])
                continue
            right = self._odds(req, place.source).chances(place.length, n + before, expected)
            if before:
                right[before] += (1 - right[0]) * self._chance_of_another(req)
            chances.append(right[before:])
        guessed = [offer.expected is None for offer in offers]
        counts = self.costs.worth(answers, chances, guessed, rows)
        if any(guessed) and not any(n for n, model in zip(counts, guessed, strict=True) if model):
            self._unasked += 1
            if self._unasked % _AGAIN == 0:
                counts = [min(offer.tokens, 1) if offer.expected is None else count for count, offer in zip(counts, offers, strict=True)]
        ahead = [self._budget.ahead(offer.request) for offer in offers]
        left = self._left(*(offer.place for offer in offers))
        while any(counts) and wait + self.costs.of(counts, guessed) > left:
            first = max((i for i, n in enumerate(counts) if n), key=lambda i: ahead[i] + counts[i])
            counts[first] -= 1
        return counts


_MODEL, _FOUND = "model", "found"  # as sources; the second: an occurrence that may be found after the token being sampled
_END = "end"  # as a source: that an answer ends where an occurrence does
_GUESS = 6  # the length under which its odds are kept: they begin at 0.7
_PAYS = 1.1  # gain of a rider for each unit that it is expected to cost
_LIKELY = 0.2  # chance from which on the next pass is prepared for a draft that is right as a whole
_AGAIN = 32  # times that it was not asked for each that it is asked to see whether it would pay now
_VAIN = 8  # misses in a row per token that skips the search then
_MOST_IDLE = 4


def _key(req: Request) -> Hashable:
    """Return the key of answers that may be alike; None: unknown. Never shared between namespaces or accounts, since
    timing could reveal other users' answers."""
    loc = req.gen[0] if isinstance(req.gen, tuple) else None
    return None if loc is None else (req.namespace, req.account, req.adapter, req.gen)


def _room(req: Request) -> int:
    """Return how many tokens may be drafted: the answer may have them, and their rows are computed as they would be
    without a draft."""
    room = req.kv_max - req.length
    return room if req.near is None or req.is_far else min(room, req.near - req.length)


def _legal(req: Request, draft: np.ndarray) -> np.ndarray:
    """Return the draft up to the first token that cannot be drawn there, or ends the answer."""
    answer = req.answer
    assert answer is not None
    matcher = None if answer.matcher is None else answer.matcher.fork()
    for i, token in enumerate(draft.tolist()):
        if token in answer.stop_ids or (matcher is not None and (matcher.done or not matcher.allows(token))):
            return draft[:i]
        if matcher is not None:
            matcher.accept(token)
    return draft


def check_setting(setting: object) -> Setting:
    """Raise ParameterError for an invalid setting."""
    if setting in ("auto", "off"):
        return setting  # pyright: ignore[reportReturnType]
    if isinstance(setting, int) and not isinstance(setting, bool) and 0 < setting <= _LIMIT:
        return setting
    raise ParameterError(f'Engine: drafts is {setting!r}; it can be "auto", "off" or a number of tokens from 1 to {_LIMIT}')
