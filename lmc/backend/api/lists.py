"""Lists: requests that go to a server at the same time travel as one, and their answers come back one by one, by index.

    posted in one turn of the loop   a  b  c            one body  {"input_ids": [a, b, c], "stream": true}
    answered as they end                  b  a  c       events    {"index": 1, …} {"index": 0, …} {"index": 2, …}

A list whose request fails as a whole says nothing of its members: what must not be tried again as it is goes out alone, so that
no request takes another along.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from typing import Protocol

from lmc.backend.api.client import Body, Fault, Received, Request, Wire
from lmc.backend.api.redaction import redacted
from lmc.config import log

_MOST = 256  # requests of a list
_REFUSED = 3  # lists in a row, after which no more are tried
_TURNS = 8  # of the loop that a list waits at most while others join it


class Joining(Protocol):
    """How a server takes lists."""

    def kind(self, request: Request) -> Hashable | None:
        """Requests of equal kinds may go together; None: this one goes alone."""
        ...

    def join(self, requests: Sequence[Request]) -> Request:
        """One for all, answered as a stream."""
        ...

    def part(self) -> Part: ...

    def refused(self, fault: Fault) -> None:
        """A list was not taken as it was: what to do without."""
        ...


class Part(Protocol):
    """One member's answer, put together from the events that are its own."""

    def add(self, body: Body) -> Body | None:
        """The whole answer, as if it had been asked for alone, once it is there."""
        ...


def index_of(body: Body) -> int:
    """Which member an event is about. Raises Fault if it does not say."""
    choices = body.get("choices")
    index = choices[0].get("index") if isinstance(choices, list) and choices else body.get("index")
    if not isinstance(index, int):
        raise Fault("an event of a list does not say which of its answers it is about")
    return index


_Member = tuple[Request, "asyncio.Future[Received | None]"]


class Lists:
    """A wire that joins what it is given. Belongs to one event loop. `requests` went out, `joined` of them were lists."""

    def __init__(self, wire: Wire, joining: Joining) -> None:
        self._wire, self._joining = wire, joining
        self._open: dict[Hashable, list[_Member]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = 0  # lists in a row
        self.requests = self.joined = 0

    async def post(self, request: Request) -> Received:
        kind = self._joining.kind(request) if self._refused < _REFUSED else None
        if kind is not None:
            loop = asyncio.get_running_loop()
            members = self._open.get(kind)
            if members is None:
                members = self._open[kind] = []
                loop.call_soon(self._close, kind, members, 0, 0)
            future: asyncio.Future[Received | None] = loop.create_future()
            members.append((request, future))
            if len(members) >= _MOST:
                del self._open[kind]
                self._send(members)
            received = await future
            if received is not None:
                return received
        self.requests += 1
        return await self._wire.post(request)

    def _close(self, kind: Hashable, members: list[_Member], turns: int, before: int) -> None:
        """Ends a list's growth when a turn of the loop has brought nobody."""
        if self._open.get(kind) is not members:
            return  # full, and gone
        if len(members) > before and turns < _TURNS:
            asyncio.get_running_loop().call_soon(self._close, kind, members, turns + 1, len(members))
            return
        del self._open[kind]
        self._send(members)

    def _send(self, members: list[_Member]) -> None:
        members = [member for member in members if not member[1].done()]  # those who wait no more are not asked
        if len(members) <= 1:
            for _, future in members:
                future.set_result(None)  # goes out alone
            return
        task = asyncio.get_running_loop().create_task(self._ask(members))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        left = len(members)

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                task.cancel()  # all have their answers, or nobody waits any more

        for _, future in members:
            future.add_done_callback(ended)

    async def _ask(self, members: list[_Member]) -> None:
        self.requests += 1
        self.joined += 1
        parts = [self._joining.part() for _ in members]
        try:
            async for received in self._wire.stream(self._joining.join([request for request, _ in members])):
                index = index_of(received.body)
                if not 0 <= index < len(members):
                    raise Fault(f"an event of a list is about answer {index} of {len(members)}")
                body = parts[index].add(received.body)
                future = members[index][1]
                if body is not None and not future.done():
                    self._refused = 0
                    future.set_result(Received(body, received.headers))
            raise Fault("a list's stream ended before all of its answers were there")
        except Fault as fault:
            if not fault.transient:
                self._refused += 1
                self._joining.refused(fault)
                log("backend", f"a list of {len(members)} requests was refused ({redacted(fault.message, self.secrets)}); they are sent one by one")
            for _, future in members:
                if not future.done():
                    if fault.transient:
                        future.set_exception(fault)
                    else:
                        future.set_result(None)  # it may be another's fault: alone, each hears of its own
        except Exception as error:  # a mistake in lmc: whoever waits sees it
            for _, future in members:
                if not future.done():
                    future.set_exception(error)
        finally:
            for _, future in members:
                future.cancel()  # the list itself was cancelled: it has no effect on what is done

    @property
    def secrets(self) -> Iterable[str]:
        return self._wire.secrets

    async def stream(self, request: Request) -> AsyncIterator[Received]:
        self.requests += 1
        async for received in self._wire.stream(request):
            yield received

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._wire.close()
