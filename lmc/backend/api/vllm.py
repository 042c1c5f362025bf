"""vLLM servers: OpenAI's completions with token ids in and out, vLLM's constraints, and choices by log-probabilities
after cached prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.bodies import choices_of, logprob_of, usage_of
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import NOTHING, Body, Fault, HttpRequest, Malformed
from lmc.backend.api.members import Member
from lmc.backend.api.place import PromptNode
from lmc.backend.api.redaction import shown
from lmc.backend.api.remote import Prompts, RemoteBackend
from lmc.backend.api.replies import ServerReply
from lmc.backend.api.scoring import ScoredRow, Scoring
from lmc.backend.api.server_info import access_of, asked_of, one_model, urls_of, without_root
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.streams import UNWATCHED, Pieces
from lmc.backend.api.terms import ApiTerms
from lmc.backend.api.wire import dumped
from lmc.backend.base import Beyond, Capabilities
from lmc.backend.results import Output
from lmc.backend.usage import Prices, Usage
from lmc.chat import ChatTemplate
from lmc.errors import BackendError
from lmc.segments import Gen, Select

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import TokenizerProtocol


class VLLM(RemoteBackend):
    """A client of a vLLM server.

    url            of the server, or of several with the same model; `http://host:port`, with or without `/v1`
    model          its name there; None: the first that the server lists
    api_key        of the server, if it wants one
    chat_template  in place of the model's own
    extra_body     further fields of each request's body
    verify, tokenizer, prices, concurrency, retries, timeout, patience, speculate, router  as of `lmc.SGLang`

    Requests with tools are sent as messages, which the server renders by the template it was started with; all others
    as tokens or text.
    """

    _able: Capabilities | None = None
    _sparse = False  # it heeds `stream_interval`
    lookahead = False  # it has a prefix cache: continuations are cheap
    base = "/v1"
    path = "/completions"
    flush = "/reset_prefix_cache"
    # requests of one pass share its computation there: only prompts longer than a pass are worth a prefill
    worth = 4096

    def __init__(
        self,
        url: str | Sequence[str],
        model: str | None = None,
        *,
        api_key: str | None = None,
        verify: bool | str = True,
        tokenizer: str | TokenizerProtocol | None = None,
        chat_template: ChatTemplate | str | None = None,
        prices: Prices | None = None,
        concurrency: int = 1024,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        router: bool | None = None,
    ) -> None:
        self._written = dict[tuple[Any, ...], tuple[bytes, bool]]()
        patience = patience or Patience(retries=retries, timeout=timeout)
        urls, self._access, self._wanted = without_root(urls_of(url)), access_of(api_key, verify, patience.timeout), model
        found = one_model(urls, self._asked_of, lambda info: str(info["id"]))
        name = str(found["id"])
        prompts = Prompts.of(name, found.get("root"), tokenizer, chat_template)
        prompts.limit = found.get("max_model_len")
        terms = ApiTerms(concurrency, patience, prices, speculate)
        super().__init__("VLLM", name, urls, self._access, prompts, terms, router, extra_body=extra_body)

    def _asked_of(self, url: str) -> dict[str, Any]:
        data: Any = asked_of(url, ("/v1/models",), self._access, "vLLM").get("data")
        listed: list[Body] = [m for m in data if isinstance(m, dict) and "id" in m] if isinstance(data, list) else []
        if any(m.get("owned_by") == "sglang" for m in listed):
            raise BackendError(f"the server at {shown(url)} is an SGLang server: lmc.SGLang({shown(url)!r})")
        found = next((m for m in listed if self._wanted in (None, m["id"])), None)
        if found is None:
            has = ", ".join(str(m["id"]) for m in listed) or "none"
            raise BackendError(f"the server at {shown(url)} has no model{f' {self._wanted!r}' if self._wanted else 's'}; it has {has}")
        return found

    def ask(self, url: str) -> str:
        return str(self._asked_of(url)["id"])

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), "max_context": self._prompts.limit}

    def _flushed(self, status: int, said: str) -> str | None:
        if status == 404:
            return f"it has no {self.flush}; start it with VLLM_SERVER_DEV_MODE=1"
        if '"success":false' in said.replace(" ", ""):
            return "it is still answering requests"
        return super()._flushed(status, said)

    @property
    def capabilities(self) -> Capabilities:
        known = "logprobs" not in self._cannot
        if self._able is None or self._able.logprobs != known:
            self._able = replace(super().capabilities, tools=True)
        return self._able

    async def _probe(self, ids: list[int]) -> None:
        """Find out, too, whether a stream arrives in as few pieces as wanted."""
        try:
            self._sparse = await self._probed(ids, {"stream_interval": _PROBED})
        except Fault as fault:
            if fault.status not in (400, 422) or "stream_interval" not in fault.message:
                raise
            await self._probed(ids, {})
        self._extra.setdefault("return_token_ids", True)

    async def _probed(self, ids: list[int], more: Body) -> bool:
        body = {"model": self.model, "prompt": ids, "max_tokens": _PROBED, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **more}
        return await self.client.stream(lambda: self.completion(body), usage_of, Probe, AttemptUsage())

    # -- as one of a list: prompts with one set of parameters, answered as pieces by index

    def member(self, place: PromptNode, ask: Gen | None) -> Member | None:
        if self._written_there(place) or (ask is not None and not ask.params.max_new_tokens):
            return None
        if ask is None:
            params = dumped({"model": self.model, "max_tokens": 1, "temperature": 0})
            return self._worth_reading(self._member(place, None, params, 1, (), params))
        stops = self.sent_stops(ask, None)
        params, together = self._params(ask, stops)
        return self._member(place, ask, params, ask.params.max_new_tokens, stops, params, together=together)

    def _params(self, ask: Gen, stops: tuple[str, ...]) -> tuple[bytes, bool]:
        """Return the body without its prompt, and whether others may go with it."""
        key = (ask.params, ask.constraint, stops, len(self._cannot), "return_token_ids" in self._extra, self._sparse)
        sampled = ask.params.temperature > 0  # with a seed of its own
        known = None if sampled else self._written.get(key)
        if known is None:
            body = {"model": self.model, **self._sampling(ask, None, 0, False), **self._constrained(ask.constraint, False), **self._extra}
            body |= {"stop": list(stops)} if stops else {}
            if len(self._written) >= _WRITTEN:
                self._written.clear()
            known = dumped(body), (self._sparse or body["max_tokens"] <= _SHORT) and _NOT_JOINED.isdisjoint(body) and body.get("n", 1) == 1
            if not sampled:
                self._written[key] = known
        return known

    def listed(self, members: Sequence[Member]) -> bytes:
        params = members[0].params[:-1]
        if len(members) == 1:
            return b'%b,"prompt":%b}' % (params, dumped(members[0].prompt))
        if self._sparse:  # two events an answer, its first token and its end, in place of one a token
            params = b'%b,"stream_interval":%d' % (params, max(1, members[0].limit))
        return b'%b,"prompt":%b,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}' % (
            params,
            dumped([member.prompt for member in members]),
        )

    def part(self) -> VLLMStream:
        """Return what collects the pieces of one answer of a list."""
        return VLLMStream()

    def usage_in(self, body: Body) -> Usage | None:
        return usage_of(body)

    def reply_to(self, member: Member, body: Body) -> ServerReply:
        assert member.ask is not None
        return self.reply(body, member.ask, False, member.stops)

    def _sampling(self, ask: Gen, beyond: Beyond | None, prefix: int, chat: bool) -> Body:
        """Stops of the template that are tokens are sent as such, too: in the text, where vLLM looks for stops, there are none."""
        body = super()._sampling(ask, beyond, prefix, chat)
        tokens = self._stop_tokens(ask) if beyond is None and not chat else {}
        return body | ({"stop_token_ids": sorted({*ask.params.stop_token_ids, *tokens.values()})} if tokens else {})

    def completion(self, body: Body, headers: Mapping[str, str] = NOTHING) -> HttpRequest:
        return self.request(body, body["prompt"], headers, body["max_tokens"])

    def reading(self, prompt: str | list[int], headers: Mapping[str, str]) -> HttpRequest:
        return self.completion({"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}, headers)

    def prompt(self, place: PromptNode) -> str | list[int]:
        return self._prompts.write(place, self.name)

    def ids(self, choice: Body, text: str) -> tuple[int, ...] | None:
        found: Any = choice.get("token_ids")
        return self._prompts.tokens.of(found, text) if self._prompts.tokens is not None and isinstance(found, list) else None

    # -- select

    async def choose(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Choose by log-probabilities, in the cheapest exact way.

        Log-probabilities of a prompt make vLLM compute all of it again, over the whole vocabulary, with nothing from
        its cache. Those of chosen tokens after a prompt do not: a prompt for each context of the choices' tokens, all
        in one request, costs a token or a block each. Where the choices are so long that this is more than their whole
        texts, and for servers that cannot list chosen tokens, the prompts' log-probabilities are requested.
        """
        tokens = self._prompts.tokens
        if self.by_messages(place, ask):
            return await self.choose_by_answer(place, ask, tally)
        if tokens is None:
            return await super().choose(place, ask, tally)
        scoring, headers = Scoring.of(tokens, place, ask), self.headers(place)
        contexts, rows = scoring.next_tokens(), scoring.wanted()
        walked = sum(max(len(context.own), 1) + _CACHE_BLOCK for context in contexts)
        known, texts = dict[ScoredRow, dict[int, float]](), dict[int, str]()
        if "logprob_token_ids" not in self._cannot and walked <= sum(row.base + len(row.own) for row in rows) + _CACHE_BLOCK:
            await self._walk(scoring, contexts, headers, known, texts, tally)
        if any(known.get(context, {}).keys() < wanted for context, wanted in contexts.items()):
            await self._score(scoring, rows, headers, known, texts, tally)
        return scoring.output(ask, known, texts, tally)

    async def _walk(
        self, scoring: Scoring, contexts: Mapping[ScoredRow, set[int]], headers: Mapping[str, str], known: dict[ScoredRow, dict[int, float]],
        texts: dict[int, str], tally: AttemptUsage,
    ) -> None:  # fmt: skip
        """Return log-probabilities of the wanted tokens after each context: one request for as many tokens as it may
        name."""
        await self.read(self.reading(list(scoring.prompt), headers), self.worth)

        async def ask(some: Mapping[ScoredRow, set[int]]) -> None:
            wanted = sorted(set[int]().union(*some.values()))
            body: Body = {
                "model": self.model, "prompt": [scoring.ids(context) for context in some], "max_tokens": 1, "temperature": 0, "logprobs": 0,
                "logprob_token_ids": wanted, "return_tokens_as_token_ids": True,
            }  # fmt: skip
            request = self.request(body, list(scoring.prompt), headers, len(some))

            def read(body: Body) -> list[dict[int, float]]:
                return [_named(choice) for choice in choices_of(body, len(some))]

            for (context, tokens), found in zip(some.items(), await self.client.call(lambda: request, usage_of, read, tally), strict=True):
                if found.keys() >= tokens:
                    known.setdefault(context, {}).update({token: found[token] for token in tokens})
                else:
                    self.leave_out("logprob_token_ids", "it lists no log-probabilities of chosen tokens (vLLM does since 0.23); choices are scored as prompts")

        try:
            await asyncio.gather(*[ask(some) for some in _named_at_once(contexts)])
        except Fault as fault:
            if fault.status not in (400, 422) or "logprob" not in fault.message:
                raise
            self.leave_out("logprob_token_ids", fault.message)
        words = self._prompts.tokens.words if self._prompts.tokens is not None else None
        if words is not None:
            texts.update({token: words.decode([token], with_specials=True, at_start=False) for row in scoring.rows for token in row.own})

    async def _score(
        self,
        scoring: Scoring,
        rows: Sequence[ScoredRow],
        headers: Mapping[str, str],
        known: dict[ScoredRow, dict[int, float]],
        texts: dict[int, str],
        tally: AttemptUsage,
    ) -> None:
        """Return log-probabilities of whole prompts, which no cache speeds up."""
        prompts = [scoring.ids(row) for row in rows]
        body = {"model": self.model, "prompt": prompts, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        request = replace(self.request(body, prompts[0], headers), size=sum(map(len, prompts)))

        def read(body: Body) -> None:
            listed = [choice.get("prompt_logprobs") for choice in choices_of(body, len(prompts))]
            for row, ids, entries in zip(rows, prompts, listed, strict=True):
                if not isinstance(entries, list) or len(entries) != len(ids):
                    raise Malformed("the answer has not the log-probabilities that were asked for")
                for context, token in row.contexts:
                    found: Any = (entries[row.base + len(context.own)] or {}).get(str(token))
                    if found is None:
                        raise Malformed(f"the answer has no log-probability of token {token}")
                    known.setdefault(context, {})[token] = logprob_of(found["logprob"])
                    texts[token] = found.get("decoded_token") or ""

        await self.client.call(lambda: request, usage_of, read, tally)


_CACHE_BLOCK = 16  # tokens, which vLLM caches together: on average half of one is computed again for each prompt
_NAMED = 128  # most tokens whose log-probabilities one request may name


def _named_at_once(contexts: Mapping[ScoredRow, set[int]]) -> Iterator[Mapping[ScoredRow, set[int]]]:
    """Split the contexts so that no part wants more tokens than a request may name."""
    part: dict[ScoredRow, set[int]] = {}
    union: set[int] = set()
    for context, tokens in contexts.items():
        for at in range(0, len(tokens), _NAMED):
            some = set(sorted(tokens)[at : at + _NAMED])
            if part and (len(union | some) > _NAMED or context in part):
                yield part
                part, union = {}, set()
            part[context] = some
            union |= some
    if part:
        yield part


def _named(choice: Body) -> dict[int, float]:
    """Return log-probabilities of a completion's first token, by ids."""
    logprobs: Any = choice.get("logprobs")
    top: Any = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(top, list) or not top or not isinstance(top[0], dict):
        raise Malformed("the answer has no log-probabilities")
    return {int(name.removeprefix("token_id:")): logprob_of(lp) for name, lp in top[0].items() if name.startswith("token_id:")}


class VLLMStream:
    """Pieces of one answer, each with its usage so far."""

    def __init__(self) -> None:
        self._pieces: Pieces | None = None

    def add(self, body: Body) -> Body | None:
        ended = body["choices"][0].get("finish_reason") is not None
        if ended and self._pieces is None:
            return body  # all of it at once
        if self._pieces is None:
            self._pieces = Pieces(False, UNWATCHED, lambda body: body)
        self._pieces.add(body)
        return {**self._pieces.result(), "usage": body.get("usage")} if ended else None


class Probe:
    """Probe of whether the pieces of an answer are fewer than its tokens."""

    def __init__(self) -> None:
        self._pieces, self._events = Pieces(False, UNWATCHED, lambda body: body), 0

    @property
    def complete(self) -> bool:
        return self._pieces.complete

    def add(self, body: Body) -> None:
        self._pieces.add(body)
        self._events += bool(body.get("choices"))

    def result(self) -> bool:
        (choice,) = self._pieces.result()["choices"]
        return self._events < len(choice.get("token_ids", ()))


_PROBED = 4  # tokens
_SHORT = 32  # tokens: longer answers cost less by themselves if each token is an event of its own in a stream
_WRITTEN = 1024  # parameters cached as JSON
_NOT_JOINED = {"stream", "logprobs", "prompt_logprobs", "seed"}
