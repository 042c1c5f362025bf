"""Answers of a journaled run: known by stream and ordinal, and reused if the request is the same as then."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc import codec
from lmc.backend.results import Output, Result
from lmc.durable.checks import of_ask, of_text, shown, since_last
from lmc.durable.groups import Ask, Record, output_of, record_of
from lmc.durable.journal import MANY, JournalFile
from lmc.durable.records import Known
from lmc.errors import BudgetExceeded, CancelledError, InDoubtEffect, Interrupted, JournalError, Loc, RunTimeout
from lmc.prompt import Prompt
from lmc.segments import Gen, Given, Select


class Answers:
    """The model's answers in one run, its sub-programs included. Thread-safe.

    resumed  whether the journal has records of an earlier execution
    broken   why the run is not the journal's: it does nothing more, however the program handles the error
    doubt    which call is in doubt, in a program that does not know of doubts: whatever catches the error, nothing more is requested or called
    wanted_more  whether something was to be, behind it
    cancelled  whether it begins nothing more, because its batch was abandoned
    """

    def __init__(self, journal: JournalFile, item: int) -> None:
        self.journal, self.item = journal, item
        self.resumed = len(journal.contents.records.get(item, ())) > 1  # the first record marks the beginning
        self._known: Known | None = None
        self.broken: JournalError | Interrupted | None = None
        self.doubt: InDoubtEffect | None = None
        self.wanted_more = self.cancelled = False
        self._asked: list[tuple[Sequence[Ask], Prompt, Result]] = []
        if self.resumed and journal.contents.records[item][0][0] == "x":
            self.broken = JournalError(f"journal={str(journal.path)!r}: run {item} is over, and what it did was deleted from the journal (keep=)")

    @property
    def with_media(self) -> bool:
        """Return whether the journal holds the files of pictures and videos that are given by path."""
        return bool(self.journal.contents.header.get("media"))

    @property
    def known(self) -> Known:
        """Return the journal's records of the run. Raises JournalError."""
        if not self.resumed:
            return _NOTHING_KNOWN
        if self._known is None:
            self._known = self.journal.contents.known(self.item)
        return self._known

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt]) -> Prompt:
        """Return the prompt with the answer to `ask`: the known one, or the one that `send` requests.

        places  of the request, and of the equal ones that it answers as well
        """
        self.go_on()
        digest, last = self.check(before, ask)
        if self.resumed:
            found = self.find(places, digest)
            if found is not None:
                result = Result()
                result.checked = self, digest, places[0]
                after = self._answered(before, found, result)
                if result.error is not None:
                    self._asked.append((places, after, result))
                return after
            if any(place in self.known.answers and place not in self.known.unexpected for place in places):
                raise self.differs(f"asks something else here than the run of its journal did ({_place(places[0])})", ask.loc)
            self.begin_more()
        # an earlier failure has no handle that a backend could see
        after = send() if last is None or last.error is None or not self.resumed else _failed(before, last.error)
        assert after.result is not None
        after.result.checked = self, digest, places[0]
        self._asked.append((places, after, after.result))
        self.journal.add((places, self, after.result))
        if len(self.journal.entries) >= MANY:
            self.journal.gather_many()
        return after

    def check(self, before: Prompt, ask: Gen | Select) -> tuple[int, Result | None]:
        """Return a checksum of the whole prompt and the request, by which the answer is found again; and the last answer in the prompt."""
        parts, last = since_last(before)
        return of_ask(0 if last is None else self._checked(last), of_text(shown(parts)), ask), last

    def _checked(self, result: Result) -> int:
        if result.checked is None or result.checked[0] is not self:  # of some other run
            return of_text(result.output().text)
        return result.checked[1]

    def find(self, places: Sequence[Ask], digest: int) -> Record | None:
        """Return the record of the answer to a request with this checksum."""
        answers = self.known.answers
        for place in places:
            record = answers.get(place, _NOTHING).get(digest)
            if record is not None:
                self.known.asked.update(places)
                return record
        return None

    def _answered(self, before: Prompt, record: Record, result: Result) -> Prompt:
        if record[0] == "f":
            result.fail(self.decoded(record[3]))
            return _failed(before, result.error, result)
        output = self.output(record)
        result.finish(output)
        blocks = output.metas[0].get("blocks") if output.metas else None
        given = Given(output.texts[0], output.ids, json.dumps(blocks, ensure_ascii=False) if blocks else "")
        return Prompt(before, (), result, before.handle, (*before.tail, given))

    def output(self, record: Record) -> Output:
        """Return the answer that a record holds."""
        try:
            return output_of(record)
        except JournalError as error:
            raise JournalError(f"journal={str(self.journal.path)!r}: {error.message}") from None

    def record(self, places: Sequence[Ask], result: Result) -> Record | None:
        """Return the record of an outcome other than a plain answer; None if it is not written."""
        output, error = result.answer, result.error
        assert result.checked is not None
        if output is not None:
            return record_of(places, result.checked[1], output)
        if isinstance(error, CancelledError | RunTimeout | BudgetExceeded | JournalError):
            return None  # the outcome of this run, not the model's answer
        try:
            return ["f", places, result.checked[1], codec.encode(error)]
        except codec.NotData:
            return None  # requested again

    def unanswered(self) -> list[Result]:
        """Return the requests that have no answer yet."""
        return [result for *_, result in self._asked if not result.done]

    def settle(self, error: BaseException | None) -> list[tuple[Sequence[Ask], BaseException]]:
        """End the run: unless it failed, wait for its requests, and return the places and errors of those which failed and nothing has read."""
        asked, self._asked = self._asked if error is None else [], []
        for *_, result in asked:
            result.wait()
        return [(places, result.error) for places, after, result in asked if result.error is not None and not any(x.raised for x in after.answers())]

    # -- a run that is not that of its journal

    def go_on(self) -> None:
        """Raise the error that ended the run, even if the program handled it."""
        if self.broken is not None:
            raise self.broken
        if self.cancelled or self.journal.left:
            raise CancelledError("the run was cancelled")

    def begin_more(self) -> None:
        """Raise again that a call is in doubt, before anything is begun that the journal does not have."""
        if self.doubt is not None:
            self.wanted_more = True
            raise InDoubtEffect(self.doubt.message, loc=self.doubt.loc)

    def differs(self, what: str, loc: Loc | None) -> JournalError:
        """Return the error to raise where the program diverges from its journal; it ends the run."""
        return self.lost(
            f"the program {what}. It depends on something that is not in the journal and has changed: an outside variable, a helper, a file, a set's order",
            loc,
        )

    def lost(self, what: str, loc: Loc | None = None) -> JournalError:
        """Return the error that ends the run, however the program handles it."""
        error = JournalError(what, loc=loc)
        self.breaks(error)
        return error

    def breaks(self, error: JournalError | Interrupted) -> None:
        """Let the run end with an error."""
        self.broken = self.broken or error

    def decoded(self, data: Any, found: Callable[[list[Any]], Any] | None = None) -> Any:
        """Decode a value of the journal."""
        try:
            return codec.decode(data, found)
        except codec.BadData as error:
            raise self.differs(f"cannot be resumed: {error}", None) from None


def _failed(before: Prompt, error: BaseException | None, result: Result | None = None) -> Prompt:
    result = result or Result()
    assert error is not None
    result.fail(error)
    return Prompt(before, (), result, before.handle, before.tail)


def _place(place: Ask) -> str:
    stream, ordinal = place
    return f"ask {ordinal} of {stream or 'the program'}"


_NOTHING: Mapping[Any, Any] = {}
_NOTHING_KNOWN = Known()
