"""Runs with a human in the loop: journaled under an id, they stop at a question (`lmc.interrupt`), and resume with the
answer, days and restarts later."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmc import codec
from lmc.durable.files import make_directory
from lmc.errors import ArgumentError, InDoubtEffect, Interrupted, JournalError
from lmc.journals import Journal, RunStatus
from lmc.serve.answering import Json
from lmc.serve.errors import ApiError, parsed_on, status_of_journal
from lmc.serve.gate import EndpointCall, EndpointReply

log = logging.getLogger("lmc.serve")

_BEGUN = RunStatus(0, "", "cut off", 0, 0, "", 0, ())
"""A run of which nothing is recorded yet."""
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"


class AnswerBody(BaseModel):
    """The body of an answer to a question. `number`: selects one of several."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer: Any = Field(...)
    number: int | None = Field(None, ge=0)


class JournaledRuns:
    """The journaled runs of one program, each in a folder of its own."""

    def __init__(self, directory: Path, pool: Executor) -> None:
        self._directory, self._pool = directory, pool

    def journal(self, run: str) -> Journal:
        """Return the journal of the run with an id. Raises ApiError for an invalid one."""
        if re.fullmatch(_NAME, run) is None:
            raise ApiError(400, f"run {run!r:.80}: letters, digits, '-', '_' and '.', at most 64", param="run")
        return Journal(self._directory / run)

    def begun(self, run: str) -> Journal:
        """Return the same of a run that begins, or goes on, and make the folders that it is in."""
        journal = self.journal(run)
        try:
            for folder in (self._directory.parent, self._directory):
                make_directory(folder)
        except OSError as error:
            log.exception("the folder %s of --journals cannot be made", self._directory)
            why = f"this server cannot keep runs: its folder for them cannot be made ({error.strerror})"
            raise ApiError(507 if error.errno == errno.ENOSPC else 500, why, code="journal") from None
        return journal

    async def listed(self, call: EndpointCall) -> EndpointReply:
        return EndpointReply({"runs": await self._on_pool(self._all)})

    async def status(self, call: EndpointCall) -> EndpointReply:
        return EndpointReply(await self._on_pool(partial(self._one, call.path["run"])))

    async def answered(self, call: EndpointCall) -> tuple[str, Mapping[str, Any]]:
        """Record an answer; return the run's id and its arguments. Raises ApiError."""
        run = call.path["run"]
        given = await parsed_on(self._pool, AnswerBody, call.body)
        return run, await self._on_pool(partial(self._answer, run, given))

    def waits(self, run: str, error: BaseException) -> EndpointReply | None:
        """Return the response for a run that waits for a person; None for any other error."""
        if isinstance(error, InDoubtEffect):
            raise ApiError(409, self._said(run, f"run {run} waits: {error.message}"), code="in_doubt")
        if isinstance(error, JournalError):
            raise ApiError(status_of_journal(error), self._said(run, error.message), code="journal")
        return EndpointReply(self._one(run), status=202) if isinstance(error, Interrupted) else None

    async def _on_pool(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _all(self) -> list[Json]:
        there = sorted(path.name for path in self._directory.iterdir() if re.fullmatch(_NAME, path.name)) if self._directory.is_dir() else []
        return list(map(self._one, there))

    def _one(self, run: str) -> Json:
        return {"run": run, **self._told(run)}

    def _status(self, run: str) -> RunStatus:
        journal = self.journal(run)
        if not (journal.path / "journal").exists():
            raise ApiError(404, f"there is no run {run!r}")
        return next(iter(journal.runs()), _BEGUN)

    def _answer(self, run: str, given: AnswerBody) -> Mapping[str, Any]:
        journal = self.journal(run)
        try:
            if not self._status(run).waiting:
                raise ApiError(409, f"{run}: no question waits for an answer", code="journal")
            known = journal.read().known(0)
            if known.arguments is None:
                raise ApiError(409, f"the arguments of run {run} are too large to be in its journal: call the program again with them")
            arguments = {name: codec.decode(data) for name, data in known.arguments.items()}
            journal.answer(given.answer, 0, given.number)
        except ArgumentError as error:
            raise ApiError(400, error.message, param="answer") from None
        except (JournalError, codec.BadData) as error:
            raise ApiError(status_of_journal(error), self._said(run, str(error)), code="journal") from None
        return arguments

    def _told(self, run: str) -> Json:
        try:
            return _shown(self._status(run))
        except JournalError as error:
            return {"status": "unreadable", "error": self._said(run, str(error)), "questions": []}

    def _said(self, run: str, message: str) -> str:
        """Return a message without the server's folders."""
        path = self.journal(run).path
        for folder in (path.absolute(), path):
            message = message.replace(f"{folder}/journal", run).replace(str(folder), run)
        return message


def _shown(status: RunStatus) -> Json:
    questions = [{key: value for key, value in asdict(w).items() if key in ("number", "question", "schema", "since")} for w in status.waiting if w.question]
    doubts = [w.call for w in status.waiting if not w.question]
    return {"status": status.status, "error": status.error, "ended": status.ended, "questions": questions, **({"in_doubt": doubts} if doubts else {})}
