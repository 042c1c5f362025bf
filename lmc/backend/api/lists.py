"""Lists: concurrent requests go to a server as one list, with one task for all, and are answered one by one, by index.

    submitted in one turn of the loop   a  b  c            one body  {"input_ids": [a, b, c], "stream": true}
    answered as they end                     b  a  c       events    {"index": 1, …} {"index": 0, …} {"index": 2, …}

Unusual requests have a task of their own (backend.py), and so have members of a failed list: those that must not be
retried unchanged are sent alone, so that no request fails another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from lmc.backend.api.client import Client
from lmc.backend.api.completions import Completions
from lmc.backend.api.exchange import Body, Fault, HttpRequest, reading
from lmc.backend.api.fleet import Fleet, FleetServer
from lmc.backend.api.handles import Submission
from lmc.backend.api.members import Member, MemberAnswer, index_of
from lmc.backend.api.place import ROOT, PromptNode, extended
from lmc.backend.api.rates import Ticket
from lmc.backend.api.redaction import redacted
from lmc.backend.api.replies import ServerReply
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.usage import Usage
from lmc.config import log
from lmc.errors import BackendError, LmcError, PromptTooLongError
from lmc.segments import Gen, Given, Text

_MOST = 256  # most requests of a list
_REFUSED = 3  # refused lists in a row, after which no more are tried
_TURNS = 8  # most turns of the loop that a list waits for others to join


class Listed(Completions):
    """A backend of servers that take lists. A subclass writes lists, and reads their events."""

    path = ""
    _fleet: Fleet

    # overridden by subclasses

    def member(self, place: PromptNode, ask: Gen | None) -> Member | None:
        """Return this as a list's member; None: it needs a task of its own, or (`ask` None) is not worth prefilling."""
        raise NotImplementedError

    def listed(self, members: Sequence[Member]) -> bytes:
        """Return the JSON of one request for members of a kind, answered as a stream if there are several."""
        raise NotImplementedError

    def part(self) -> MemberAnswer:
        raise NotImplementedError

    def usage_in(self, body: Body) -> Usage | None:
        """Return the usage reported by the answer to a member."""
        raise NotImplementedError

    def reply_to(self, member: Member, body: Body) -> ServerReply:
        """Return the answer to a member. Raises Malformed."""
        raise NotImplementedError

    # submissions

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: deque[Member] = deque()
        self._scheduled = False
        self._refused = 0  # refused lists in a row

    def begin(self, works: Sequence[Submission]) -> None:
        if self._client.is_ready:
            for work in works:
                self._begin_one(work)
        else:  # the findings about the server decide how prompts are written
            self._loop.spawn(self._begin_later(works))

    async def _begin_later(self, works: Sequence[Submission]) -> None:
        try:
            await self._client.ready(self.prepare)
        except Exception:
            for work in works:
                self.alone(work)  # each of them fails with it
        else:
            for work in works:
                if work.is_wanted():
                    self._begin_one(work)

    def _begin_one(self, work: Submission) -> None:
        if not self._is_plain(work):
            return self.alone(work)
        parent = work.parent.work if work.parent is not None else None
        if parent is not None and parent.after is None:
            loop = asyncio.get_running_loop()
            parent.waiting.append(lambda: loop.call_soon(self._go_on, work))  # not immediately: chains may be long
        else:
            self._go_on(work)

    @staticmethod
    def _is_plain(work: Submission) -> bool:
        """Return whether it is text with one request after it, or text to prefill."""
        *before, last = work.segments or (None,)
        if not all(isinstance(segment, Text | Given) for segment in before) or work.hints.beyond is not None or work.hints.watched or work.hints.trace:
            return False  # a traced one has headers of its own
        return isinstance(last, Text) if work.hints.pin else isinstance(last, Gen) and last.params.n == 1 and not last.tools and not last.params.return_logprob

    def _go_on(self, work: Submission) -> None:
        """Continue once its prompt is known."""
        if work.after is not None:
            return
        before = work.parent.work.after if work.parent is not None else ROOT
        if isinstance(before, BaseException):
            return work.end(before)
        assert before is not None
        last = work.segments[-1]
        ask = last if isinstance(last, Gen) else None
        member = None
        if not before.broken and before.rest is None:
            try:
                place = extended(before, work.segments if ask is None else work.segments[:-1])
                member = self.member(place, ask)
                if member is None and ask is None:
                    return work.complete(place)
            except Exception as error:  # it belongs to this request: raised to the reader of the answer
                if isinstance(error, LmcError) and ask is not None:
                    error.loc = error.loc or ask.loc
                return work.end(error)
        if member is None:
            return self.alone(work)
        if ask is not None:
            member.tally = work.tally or AttemptUsage(ask.name, ask.loc)
        member.work, work.task = work, member
        self._waiting.append(member)
        self._schedule()

    # sending

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._gather, 0, 0)

    def _gather(self, turns: int, before: int) -> None:
        """Send waiting members when a turn of the loop has added no more."""
        if len(self._waiting) > before and turns < _TURNS:
            asyncio.get_running_loop().call_soon(self._gather, turns + 1, len(self._waiting))
            return
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        client = self._client.now
        while self._waiting:
            if not client.rates.quiet:
                self.alone(self._waiting.popleft().work)  # by the limits of the server, one after another
                continue
            free = client.rates.room.free
            if free <= 0:
                client.rates.room.freed = self._schedule
                return
            members: list[Member] = []
            while self._waiting and len(members) < min(free, _MOST):
                member = self._waiting.popleft()
                if not member.over:
                    members.append(member)
            self._divide(client, members)

    def _divide(self, client: Client, members: Sequence[Member]) -> None:
        """Send members to their servers, those of a kind together."""
        lists: dict[Hashable, tuple[FleetServer, list[Member]]] = {}
        for member in members:
            server, member.cost = self._fleet.take(member)
            kind = member.kind if self._refused < _REFUSED else None
            key = (server.bit, id(member) if kind is None else kind)
            lists.setdefault(key, (server, []))[1].append(member)
        client.rates.room.enter(len(members))
        # the code below returns each one's place, in `_leaves`
        for server, some in lists.values():
            task = self._loop.spawn(self._ask(client, server, some))
            for member in some:
                member.asking, member.task = some, task

    async def _ask(self, client: Client, server: FleetServer, members: Sequence[Member]) -> None:
        """Send a list, or one request."""
        left = dict(enumerate(members))
        ticket = Ticket(asyncio.get_running_loop().time(), {})
        try:
            try:
                request = HttpRequest(self.path, {}, self.headers(members[0].place), data=self.listed(members))
                async with asyncio.timeout(client.patience.timeout):
                    if len(members) == 1:
                        received = await server.wire.post(request)
                        client.heard(ticket, received.headers)
                        self._came(client, server, left.pop(0), received.body)
                    else:
                        await self._stream(client, server, ticket, request, left)
            except TimeoutError:
                raise Fault(f"no answer within {client.patience.timeout:g} s") from None
        except Fault as fault:
            self._failed(client, server, ticket, fault.redacted(self._fleet.secrets), [*left.values()], len(members))
        except asyncio.CancelledError:
            client.ledger.add(attempts=len(left))
            for member in left.values():
                self._leaves(client, server, member)
                member.cancel()
            raise
        except Exception as error:  # a bug in lmc: raised to all waiters
            for member in left.values():
                self._leaves(client, server, member)
                member.fail(error)
        finally:
            await self._fleet.end(server)

    async def _stream(self, client: Client, server: FleetServer, ticket: Ticket, request: HttpRequest, left: dict[int, Member]) -> None:
        parts = [self.part() for _ in left]
        heard = False
        async for received in client.pieces(server.wire.stream(request), lambda: not left):
            if not heard:
                heard = True
                client.heard(ticket, received.headers)
            if not left:
                continue  # the server's final event
            with reading():
                index = index_of(received.body)
                if not 0 <= index < len(parts):
                    raise Fault(f"an event of a list is about answer {index} of {len(parts)}")
                body = parts[index].add(received.body) if index in left else None
            if body is not None:
                self._refused = 0
                self._came(client, server, left.pop(index), body)
        if left:
            raise Fault("a list's stream ended before all of its answers were there")

    def _leaves(self, client: Client, server: FleetServer, member: Member) -> None:
        self._fleet.leave(server, member.cost)
        client.rates.room.leave()

    # receiving

    def _came(self, client: Client, server: FleetServer, member: Member, body: Body) -> None:
        """Deliver a member's answer."""
        self._leaves(client, server, member)
        work = member.work
        self._fleet.answered(server, member)
        usage = client.usage(self.usage_in, body, member.sent)
        client.rates.room.grow()
        if usage is not None:
            server.used(usage)
            member.tally.usage = member.tally.usage + usage if member.tally.attempts else usage
        member.tally.attempts += 1
        member.tally.unreported += usage is None
        client.ledger.add(usage=usage, attempts=1, retries=member.tally.attempts > 1, unreported=usage is None)
        if member.over:
            return
        try:
            if member.ask is None:
                member.over = True
                return work.complete(member.place)
            with reading(server):
                reply = self.accepted(self.reply_to(member, body))
            if not self.keeps(member.ask, reply):
                member.tally.unmet = reply
                return self._again(member, None)
            after, output = self.output_of(member.place, member.ask, reply, member.tally)
        except Fault as fault:
            return self._again(member, fault)
        except LmcError as error:
            error.loc = error.loc or member.tally.loc
            self.spent_in_vain(work, work.results[0], member.tally)
            return member.fail(error)
        except Exception as error:  # a bug in lmc: raised to the reader of this answer, and to nobody else
            return member.fail(error)
        member.over = True
        self.finish(work, work.results[0], output)
        work.complete(after)

    def _failed(self, client: Client, server: FleetServer, ticket: Ticket, fault: Fault, left: Sequence[Member], size: int) -> None:
        """Handle a failed request with all its unanswered members."""
        client.heard(ticket, fault.headers)
        self._fleet.failed(server, fault)
        if not fault.elsewhere:
            client.rates.refused(ticket, fault.status)
        for member in left:
            self._leaves(client, server, member)
        if fault.transient:
            lost = fault.status is None
            client.ledger.add(attempts=len(left), unreported=len(left) if lost else 0, retries=sum(member.tally.attempts > 0 for member in left))
            for member in left:
                member.tally.attempts += 1
                member.tally.unreported += lost
        elif fault.about_the_server or (size == 1 and not fault.mendable):
            client.ledger.add(attempts=len(left))
            for member in left:
                member.tally.attempts += 1
                self._refuse(client, member, fault)
            return
        elif size > 1:
            self._refused += 1
            log(
                "backend",
                f"a list of {size} requests was refused ({redacted(fault.message, self._fleet.secrets)}); "
                f"{'they are sent without that' if (learned := self.learn(fault, self._cannot, False)) else 'they are sent one by one'}",
            )
            if learned:
                for member in left:
                    member.work.tally = member.tally if member.ask is not None else None
                    if not member.over:
                        self._go_on(member.work)
                return
            for member in left:
                member.work.waiting.append(lambda work=member.work: self._explains(work))
        for member in left:
            if not member.over:
                self._again(member, fault if fault.transient else None)

    def _refuse(self, client: Client, member: Member, fault: Fault) -> None:
        """Fail a member for good: asked by itself it would be refused again."""
        if member.over:
            return
        if member.ask is None:
            return self._again(member, fault)
        self.spent_in_vain(member.work, member.work.results[0], member.tally)
        member.fail(client.failed(fault, member.tally))

    def _explains(self, work: Submission) -> None:
        """A member of a refused list is answered by itself: if it is refused again, lists are not."""
        if isinstance(work.after, BackendError | PromptTooLongError):
            self._refused = 0

    def _again(self, member: Member, fault: Fault | None) -> None:
        """Request a member again: on another server with others, or by itself, if it may have caused the failure."""
        work = member.work
        patience = self._client.now.patience
        if member.ask is None:  # not needed: the next request will fail by itself if the server is gone
            log("prefix", f"{self.name}: a prompt was not computed ahead: {fault}")
            member.over = True
            return work.complete(member.place)
        if fault is not None and fault.elsewhere and member.tally.attempts <= patience.retries:
            self._waiting.append(member)
            return self._schedule()
        member.over = True
        member.tally.failed = fault
        work.tally = member.tally
        self.alone(work)
