"""Base of the clients of SGLang and vLLM: tokenizer and template, prompts as ids or text, and the fleet."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.bodies import usage_of
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Wire
from lmc.backend.api.fleet import Fleet
from lmc.backend.api.handles import ApiHandle, Submission
from lmc.backend.api.http1 import HttpWire
from lmc.backend.api.lists import Listed
from lmc.backend.api.members import Member
from lmc.backend.api.network import Access, proxy_of
from lmc.backend.api.place import PromptNode
from lmc.backend.api.prefixes import ROUTING, beginning, key_of, keys_of
from lmc.backend.api.proxied import ProxiedWire
from lmc.backend.api.redaction import addressed
from lmc.backend.api.server_info import is_router, told, urls_of, without_root
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.terms import ApiTerms
from lmc.backend.api.tokens import Tokens, known_as, read, spelled
from lmc.backend.base import Capabilities, Handle, Hints
from lmc.backend.usage import Usage
from lmc.chat import ChatTemplate, get_chat_template
from lmc.config import log
from lmc.errors import (
    BackendError,
    LmcError,
    MissingPackageError,
    ModelLoadError,
    ParameterError,
    ProgramError,
    PromptTooLongError,
)
from lmc.segments import Gen, Part, Segment, Select, Special

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import TokenizerProtocol


@dataclass(frozen=True)
class WithResults:
    """A model's template for conversations that may contain results of tools: the server renders those, by its whole
    template.

    Pieces of a template often cannot: results are written into the user's next message, or their calls into the one before.
    """

    pieces: ChatTemplate

    @property
    def name(self) -> str:
        return self.pieces.name

    @property
    def stop(self) -> tuple[str, ...]:
        return self.pieces.stop

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        try:
            return self.pieces.begin(role, previous)
        except ProgramError:
            if "tool" not in (role, previous):
                raise
            return () if role == "tool" else self.pieces.begin(role, "user")

    def end(self, role: str) -> tuple[Part, ...]:
        try:
            return self.pieces.end(role)
        except ProgramError:
            if role != "tool":
                raise
            return ()


@dataclass(slots=True)
class Prompts:
    """Writes prompts for a server: as ids if its tokenizer is known and it takes them, else as text.

    tokens  the server's vocabulary; None: text
    why     why they are text
    limit   tokens of the server's context, if reported
    """

    tokens: Tokens | None
    template: ChatTemplate
    why: str = ""
    limit: int | None = None

    @classmethod
    def of(cls, model: str, path: str | None, tokenizer: str | TokenizerProtocol | None, template: ChatTemplate | str | None) -> Prompts:
        """Create; `tokenizer`: a directory, a .gguf file or a vocabulary; None: the server's model path, if it exists
        here."""
        words, own, why = None, None, ""
        if tokenizer is None or isinstance(tokenizer, str):
            try:
                words, own = read(tokenizer or path or "")
            except (ModelLoadError, MissingPackageError, OSError) as error:
                if tokenizer is not None:
                    raise
                why = f"its tokenizer is not known here ({error})"
        else:
            words = tokenizer
        chosen = get_chat_template(template) if isinstance(template, str) else template or own or known_as(path or model)
        return cls(Tokens(words) if words is not None else None, WithResults(chosen), why)

    def as_text(self, why: str, target: str) -> None:
        """Switch to text: the server does not take ids."""
        self.tokens, self.why = None, why
        log("backend", f"{target} gets prompts as text: {why}")

    def stop_ids(self) -> dict[str, int]:
        """Return the template's stops that are special tokens, with their ids; empty if the tokenizer is not known
        here."""
        if self.tokens is None:
            return {}
        words = self.tokens.words
        return {stop: words.id_of(stop) for stop in self.template.stop if words.split_specials(stop) == (Special(stop),)}

    def write(self, place: PromptNode, target: str) -> str | list[int]:
        """Write a prompt. Raises PromptTooLongError for one that leaves no room for an answer, if that is known
        here."""
        if self.tokens is None:
            return spelled(place, target)
        ids = self.tokens.ids(place)
        if self.limit is not None and len(ids) >= self.limit:
            raise PromptTooLongError(
                f"the prompt has {len(ids)} tokens; the context of {target} is {self.limit} tokens, one of them for the answer. "
                "Shorten it or take a model with a longer context"
            )
        return ids

    def headers(self, place: PromptNode) -> dict[str, str]:
        """Return routing hints: requests with the same beginning belong together."""
        return dict.fromkeys(ROUTING, key_of(beginning(place)))

    @staticmethod
    def size(prompt: str | Sequence[int]) -> int:
        """Return the approximate number of tokens."""
        return len(prompt) // 4 if isinstance(prompt, str) else len(prompt)

    @property
    def said(self) -> str:
        """Return its part of `server_info`."""
        return "token ids" if self.tokens is not None else f"text: {self.why}"


class OtherModel(Fault):
    """A server was restarted, and runs another model now."""

    @property
    def transient(self) -> bool:
        return self.elsewhere


async def _same_model(backend: weakref.ref[RemoteBackend], url: str) -> None:
    """Raise Fault if a server that was reached anew does not run a backend's model."""
    if (found := backend()) is None:
        return
    try:
        model, wanted = await asyncio.to_thread(found.ask, url), found.model
    except BackendError as error:
        raise Fault(error.message) from None
    if model != wanted:
        raise OtherModel(f"the server at {addressed(url)} runs {model} now, not {wanted}")


class RemoteBackend(Listed):
    """A backend of servers that run one model: chooses the server of a request, and tracks the prefixes that each has
    read.

    base   of all paths, under a server's URL
    path   of requests about a prompt
    flush  for flushing a server's cache
    worth  unread tokens from which on a prompt is prefilled before several requests extend it
    """

    base = ""
    path = "/generate"
    flush = "/flush_cache"
    worth = 256
    renames = False
    reached_when_made = True
    _access: Access
    _sees = True  # unless the server reports otherwise

    def __init__(
        self, kind: str, model: str, urls: Sequence[str], access: Access, prompts: Prompts, terms: ApiTerms, router: bool | None, **options: Any
    ) -> None:
        """Set up. `kind`: of the servers, as messages name it; `router`: whether one is in front; None: query."""
        backend: weakref.ref[RemoteBackend] = weakref.ref(self)  # its thread, which has the wires, ends when it is dropped

        def wire(url: str) -> Wire:
            if (proxy := proxy_of(url)) is not None:
                return ProxiedWire(url + self.base, access, proxy, timeout=terms.patience.timeout, connections=terms.concurrency)
            return HttpWire(url + self.base, access, lambda: _same_model(backend, url))

        self._stop_ids = prompts.stop_ids()
        self._prompts, self._fleet = prompts, Fleet(urls, wire, timeout=terms.patience.timeout)
        self._given = {addressed(url): url for url in urls}
        self._prefilled = weakref.WeakKeyDictionary[Submission, int]()
        self._routed = is_router(urls[0], access) if router is None else router
        fleet = self._fleet
        super().__init__(f"{kind}({model})", model, lambda: fleet, terms, chat=False, template=prompts.template, server=kind.lower(), **options)

    async def prepare(self) -> None:
        """Find out whether ids are accepted: routers in front of servers may refuse them."""
        if self._prompts.tokens is None:
            return
        try:
            await self._probe(self._prompts.tokens.words.encode(("a",), at_start=True))
        except Fault as fault:
            if fault.status in (400, 404, 405, 422):  # else it is not about the ids: the first real request will tell
                self._prompts.as_text(f"ids are refused ({fault.message})", self.name)
        except LmcError as error:
            log("backend", f"{self.name}: whether it takes ids is not known: {error}")

    async def _probe(self, ids: list[int]) -> None:
        """Make a request with these ids."""
        raise NotImplementedError

    def ask(self, url: str) -> str:
        """Return a server's info on its model. Raises BackendError if there is none."""
        raise NotImplementedError

    def url_of(self, url: str) -> str:
        """Return a server's URL in normal form."""
        return without_root(urls_of(url))[0]

    def add_server(self, url: str) -> None:
        """Add another server of the model, while requests run. Raises BackendError for anything else."""
        self._check_open()
        url = self.url_of(url)
        bare = addressed(url)
        found = self.ask(url)
        if found != self.model:
            raise BackendError(f"{self.name}: the server at {bare} runs {found}, not {self.model}")
        if any(server.url == bare for server in self._fleet.servers):
            raise ParameterError(f"{self.name} already has the server {bare}")
        self._given[bare] = url
        self._fleet.add(url)

    def drop_server(self, url: str) -> None:
        """Send a server no more requests; it may finish the running ones."""
        self._check_open()
        url = addressed(self.url_of(url))
        servers = self._fleet.servers
        found = [server for server in servers if server.url == url]
        if not found:
            raise ParameterError(f"{self.name} has no server {url}; it has {', '.join(server.url for server in servers)}")
        if len(servers) == 1:
            raise ParameterError(f"{self.name}: {url} is its last server; add another one first")
        found[0].dropped = True
        self._loop.post(lambda: self._loop.spawn(self._fleet.retire(found[0])))

    def flush_cache(self) -> None:
        """Let all servers flush their prompt caches. Raises BackendError if one does not, such as while it answers
        requests."""
        self._check_open()
        for server in self._fleet.servers:
            status, said = told(self._given[server.url], self.flush, self._access)
            if (problem := self._flushed(status, said)) is not None:
                raise BackendError(f"{self.name}: {server.url} did not flush its cache: {problem}")
            self._fleet.prefixes.losses += 1  # at once: what is submitted next reads its prefix again
            self._loop.post(self._fleet.prefixes.forget, server.bit)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ApiHandle:
        handle = super().prefill(parent, segments, hints)
        self._prefilled[handle.ticket.work] = self._fleet.prefixes.losses
        return handle

    def holds(self, handle: Handle) -> bool:
        """Return whether no cache was lost since the handle's prompt was prefilled."""
        assert isinstance(handle, ApiHandle)
        return self._prefilled.get(handle.ticket.work) == self._fleet.prefixes.losses

    def _flushed(self, status: int, said: str) -> str | None:
        """Return what kept a server from flushing its cache."""
        return f"HTTP {status}: {said.strip()}" if status >= 400 else None

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), "model": self.model, "prompts": self._prompts.said, "servers": self._fleet.said}

    def _stop_tokens(self, ask: Gen) -> dict[str, int]:
        """Return the stops of the template that are special tokens, with their ids, if they end this answer."""
        return {} if ask.params.ignore_eos else {stop: token for stop, token in self._stop_ids.items() if stop not in ask.params.stop}

    def by_messages(self, place: PromptNode, ask: Gen | Select) -> bool:
        """Return True for tools and pictures: the server renders them into prompts, and parses calls from answers, only
        for messages."""
        return self._written_there(place) or (isinstance(ask, Gen) and bool(ask.tools))

    def _written_there(self, place: PromptNode) -> bool:
        """Return whether the server's rendering of a prompt is unknown here."""
        return place.has_results or place.has_images

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, images=self._sees, plans=True)

    def headers(self, place: PromptNode) -> Mapping[str, str]:
        return self._prompts.headers(place)

    def request(self, body: Body, prompt: str | list[int], headers: Mapping[str, str], limit: int = 0) -> HttpRequest:
        """Build a request about one prompt, which is in the body."""
        return HttpRequest(self.path, body, headers, keys_of(prompt), self._prompts.size(prompt), limit)

    def _member(
        self, place: PromptNode, ask: Gen | None, params: bytes, limit: int, stops: tuple[str, ...] = (), *alike: Hashable, together: bool = True
    ) -> Member:
        """Build a list's member. Behind a router, which routes by the beginning of a list, only requests with the same
        beginning go together.

        alike     further properties shared by members of a list
        together  whether it may be one of a list
        """
        prompt = self._prompts.write(place, self.name)
        kind = (isinstance(prompt, str), self.headers(place)[ROUTING[0]] if self._routed else None, *alike) if together else None
        return Member(place, ask, prompt, params, kind, stops, keys_of(prompt), self._prompts.size(prompt), limit)

    def _worth_reading(self, member: Member) -> Member | None:
        return member if self._fleet.unread(member) >= self.worth else None

    async def warm(self, place: PromptNode, hints: Hints) -> None:
        if not self._written_there(place):
            await self.read(self.reading(self._prompts.write(place, self.name), self.headers(place)), self.worth)

    async def read(self, request: HttpRequest, worth: int) -> None:
        """Let the server that will get requests with this prompt prefill it, if enough of it is unread."""
        if self._fleet.unread(request) < worth:
            return
        try:
            await self.client.call(lambda: request, self.usage_of_reading, lambda body: None, AttemptUsage())
        except (Fault, LmcError) as error:  # not needed: the next request will fail by itself if the server is gone
            log("prefix", f"{self.name}: a prompt was not computed ahead: {error}")

    def reading(self, prompt: str | list[int], headers: Mapping[str, str]) -> HttpRequest:
        """Build a request that only prefills a prompt."""
        raise NotImplementedError

    usage_of_reading: Callable[[Body], Usage | None] = staticmethod(usage_of)
