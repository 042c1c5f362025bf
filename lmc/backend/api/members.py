"""Members of lists: submissions whose prompts may be asked for with others."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmc.backend.api.exchange import Body, Fault
from lmc.backend.api.handles import Submission
from lmc.backend.api.place import PromptNode
from lmc.backend.api.spending import AttemptUsage
from lmc.errors import CancelledError
from lmc.segments import Gen


class MemberAnswer(Protocol):
    """One member's answer, assembled from its own events."""

    def add(self, body: Body) -> Body | None:
        """Return the whole answer, as if requested alone, once it is complete."""
        ...


@dataclass(slots=True, eq=False)
class Member:
    """A prompt that may be in a list, and its request; `ask` None: the prompt is only prefilled. The one task of its submission: cancelled when that is
    no longer wanted.

    kind    members of equal kinds may be in one list; None: this one is sent without a list
    params  its sampling parameters, as JSON
    stops   that end the answer
    keys, size, limit  as of a Request
    over    it has its answer, or is no longer wanted
    asking  the members of its list, and task, which asks for them
    cost    at its server
    """

    place: PromptNode
    ask: Gen | None
    prompt: str | Sequence[int]
    params: bytes
    kind: Hashable
    stops: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()
    size: int = 0
    limit: int = 0
    tally: AttemptUsage = field(default_factory=AttemptUsage)
    work: Submission = field(init=False)
    over: bool = False
    asking: Sequence[Member] = ()
    task: asyncio.Task[None] | None = None
    cost: int = 0

    def cancel(self) -> None:
        """Cancel it. A list ends with its last member."""
        if self.over:
            return
        self.fail(CancelledError("the request was cancelled before its answer was complete"))
        if self.task is not None and all(member.over for member in self.asking):
            self.task.cancel()

    def fail(self, error: BaseException) -> None:
        self.over = True
        self.work.end(error)

    @property
    def sent(self) -> Mapping[str, Any]:
        """The fields that its cost depends on, as in a request of its own."""
        return {"prompt": [self.prompt], "max_tokens": self.limit, "n": 1 if self.ask is None else self.ask.params.n}


def index_of(body: Body) -> int:
    """Return which member an event is about. Raises Fault if it does not tell."""
    choices = body.get("choices")
    index = choices[0].get("index") if isinstance(choices, list) and choices else body.get("index")
    if type(index) is not int:
        raise Fault("an event of a list does not say which of its answers it is about")
    return index
