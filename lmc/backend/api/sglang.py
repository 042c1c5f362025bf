"""SGLang servers by their own protocol (`/generate`): token ids in and out, their constraints, choices by their log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.bodies import Listed, check_scored, check_whole, logprob_of, scored, shared
from lmc.backend.api.cache_warmup import NO_TURN, CacheWarmup, WarmupTurn
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Malformed
from lmc.backend.api.handles import Feed
from lmc.backend.api.members import Member
from lmc.backend.api.place import PromptNode
from lmc.backend.api.prefixes import keys_of, picture_keys
from lmc.backend.api.redaction import shown
from lmc.backend.api.remote import Prompts, RemoteBackend
from lmc.backend.api.replies import Sample, ServerReply
from lmc.backend.api.scoring import ScoredRow, Scoring, aligned, chosen
from lmc.backend.api.server_info import access_of, asked_of, one_model, urls_of, without_root
from lmc.backend.api.sglang_bodies import (
    SGLangStream,
    WatchedStream,
    constrained,
    items_of_reply,
    listed_tokens,
    pictures_of,
    prompt_tokens_of,
    usage_of,
    usage_of_all,
    written_params,
)
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.streams import UNWATCHED, Watch
from lmc.backend.api.terms import ApiTerms
from lmc.backend.api.tokens import spelled
from lmc.backend.api.wire import dumped
from lmc.backend.base import Beyond, Capabilities, Hints
from lmc.backend.results import Output
from lmc.backend.usage import Prices, Usage
from lmc.chat import ChatTemplate
from lmc.errors import BackendError
from lmc.fsm.sources import ebnf_of
from lmc.images import digest
from lmc.segments import ChoicesMethod, Constraint, Gen, Image, SamplingParams, Select, plain

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import TokenizerProtocol

_MAX_SEED = 1 << 31


class SGLang(RemoteBackend):
    """A client of an SGLang server.

    base_url       of the server, or of several with the same model; `http://host:port`
    api_key        of the server, if it wants one
    tokenizer      a directory, a .gguf file or a vocabulary; None: the server's model path, if it is one on this machine.
                   With it prompts are token ids: data is never taken for a special token, and answers are never encoded again
    chat_template, chat_template_name  in place of the model's own: a template, or the name of one
    prices         for a million tokens: `lmc.Prices(prompt, completion, cached)`
    concurrency    most requests at once
    retries, timeout  attempts after the first, and seconds for each; with the delays between them in `patience` (`lmc.backend.api.client.Patience`)
    speculate      whether one request may cover several gens and the text between them
    verify         a file or folder with the certificates of the server's authority, in place of the system's (or of SSL_CERT_FILE's);
                   False: any certificate is accepted
    router         whether a router is in front, so that only requests with the same beginning share a list; None: query
                   the URL

    image_token    placeholder of a picture in a text prompt, such as "<|vision_start|><|image_pad|><|vision_end|>"
                   (Qwen-VL) or "<image>\\n" (LLaVA)

    Requests with tools go to OpenAI's API as messages, which the server renders by its template; so do pictures, unless
    `image_token` gives their form in a prompt. All others go to `/generate`.
    """

    root = "/v1"
    _able: Capabilities | None = None

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        *,
        tokenizer: str | TokenizerProtocol | None = None,
        chat_template: ChatTemplate | str | None = None,
        prices: Prices | None = None,
        concurrency: int = 1024,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        router: bool | None = None,
        image_token: str | None = None,
    ) -> None:
        self._image_token = image_token
        self._written = dict[tuple[SamplingParams, Constraint | None, tuple[str, ...]], bytes]()
        patience = patience or Patience(retries=retries, timeout=timeout)
        urls, self._access = without_root(urls_of(base_url)), access_of(api_key, verify, patience.timeout)
        info = one_model(urls, self._asked_of, _model)
        model = _model(info)
        prompts = Prompts.of(model, info.get("tokenizer_path") or model, tokenizer, chat_template or chat_template_name)
        self._sees = info.get("has_image_understanding") is not False  # older servers do not report it
        terms = ApiTerms(concurrency, patience, prices, speculate)
        super().__init__("SGLang", model, urls, self._access, prompts, terms, router, served_as="*")
        self._warmup = CacheWarmup(_LONGEST_PREPARED)

    def _asked_of(self, url: str) -> dict[str, Any]:
        info = asked_of(url, ("/model_info", "/get_model_info"), self._access, "SGLang")
        if info.get("is_generation") is False:
            raise BackendError(f"the model of the server at {shown(url)}, {_model(info)}, only makes embeddings: it generates nothing")
        return info

    def ask(self, url: str) -> str:
        return _model(self._asked_of(url))

    @property
    def capabilities(self) -> Capabilities:
        if self._able is None:
            kinds = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})
            self._able = Capabilities(
                self.name, kinds, select=True, logprobs=True, images=self._sees, n=True, streams=True, tools=True, plans=True, prices=self._prices
            )
        return self._able

    def _written_there(self, place: PromptNode) -> bool:
        return place.has_results or (place.has_images and self._image_token is None)

    def _write(self, place: PromptNode) -> str | list[int]:
        """Write a prompt; one with pictures as text, in which the server's processor finds their places."""
        return spelled(place, self.name, self._image_token or "") if place.has_images else self._prompts.write(place, self.name)

    def check(self, ask: Gen | Select) -> None:
        """Check a request: all are supported; a Lark grammar must be expressible as EBNF."""
        if isinstance(ask, Gen) and ask.tools:
            super().check(ask)
        elif isinstance(ask, Gen) and ask.constraint is not None:
            constrained(ask.constraint)

    def enforces(self, constraint: Constraint) -> bool:
        return True

    async def _probe(self, ids: list[int]) -> None:
        request = self.reading(ids, {})
        await self.client.call(lambda: request, usage_of, items_of_reply, AttemptUsage())

    async def warm(self, place: PromptNode, hints: Hints) -> None:
        if not place.has_images:  # otherwise the first request that has the pictures computes them
            await super().warm(place, hints)

    def turn(self, place: PromptNode, ask: Gen | Select, prompt: Body) -> AbstractAsyncContextManager[WarmupTurn]:
        """Let the first of the requests with the same pictures go ahead: those that are scheduled together each compute
        the prompt's beginning. A request that only prefills it would cost as much as an answer: the server prepares the
        pictures of every request anew."""
        if self._warmup is None or not place.has_images:
            return nullcontext(NO_TURN)
        losses = self._fleet.prefixes.losses  # with a server's cache what it has read is gone
        keys = [f"{losses} {key}".encode() for key in picture_keys(place)]
        return self._warmup.writing(keys, lambda: keys)

    def _seeing(self, request: HttpRequest, place: PromptNode, n: int = 1) -> HttpRequest:
        """Add the prompt's pictures to a request for `n` answers. Among the prefixes that servers have read each stands as its hash."""
        if not place.has_images:
            return request
        known = "".join(digest(piece).hex() * _PICTURE if isinstance(piece, Image) else plain((piece,)) for piece in place.pieces())
        return replace(request, body={**request.body, **pictures_of(place, n)}, keys=keys_of(known), size=self._prompts.size(known))

    def reading(self, prompt: str | list[int], headers: Mapping[str, str]) -> HttpRequest:
        return self.request({**_prompt(prompt), "sampling_params": {"max_new_tokens": 0, "temperature": 0}}, prompt, headers)

    @staticmethod
    def usage_of_reading(body: Body) -> Usage | None:
        return usage_of(body)

    # -- gen

    async def requested(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        if self.by_messages(place, ask):
            if ask.constraint is not None and ask.constraint.kind == "lark":
                ask = replace(ask, constraint=Constraint("ebnf", ebnf_of("lark", ask.constraint.source)))
            return await super().requested(place, ask, beyond, feed, tally)
        async with self.turn(place, ask, {}) as turn:
            return await self._generated(place, ask, beyond, feed, turn, tally)

    def dispensable(self, fault: Fault, by_messages: bool) -> str | None:
        if by_messages:
            return super().dispensable(fault, by_messages)
        return next((name for word, name in _REFUSALS.items() if fault.mendable and word in fault.message), None)

    def learn(self, fault: Fault, known: Collection[str], by_messages: bool) -> bool:
        learned = super().learn(fault, known, by_messages)
        if "input_ids" in self._cannot and self._prompts.tokens is not None:  # one server of several; others accepted them
            self._prompts.as_text(f"ids are refused ({fault.message})", self.name)
        return learned

    async def _generated(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, turn: WarmupTurn, tally: AttemptUsage) -> ServerReply:
        stops = self._stops(ask) if beyond is None else beyond.stop
        prompt = self._write(place)
        body = {**_prompt(prompt), "sampling_params": self._sampled(ask, beyond, stops)}
        if ask.params.return_logprob or beyond is not None:
            params = ask.params
            body |= {"return_logprob": True, "return_text_in_logprobs": params.return_text_in_logprobs or beyond is not None}
            body |= {"logprob_start_len": -1 if params.logprob_start_len is None else params.logprob_start_len}
            body |= {"top_logprobs_num": params.top_logprobs_num} if params.top_logprobs_num else {}
        request = self._seeing(self.request(body, prompt, self._prompts.headers(place), body["sampling_params"]["max_new_tokens"]), place, ask.params.n)

        def read(body: Body) -> ServerReply:
            items = items_of_reply(body)
            if len(items) != ask.params.n:
                raise Malformed(f"{len(items)} answers for n={ask.params.n}")
            samples = tuple(map(self._item, items))
            for sample in samples:
                check_scored(ask, sample.tokens, sample.text, self.name)
            return ServerReply(samples, str(items[0]["meta_info"].get("id", "")), self.model, stops=stops)

        limit = request.limit
        leads = turn.first and ask.params.n == 1 and limit > 0 and "return_logprob" not in body
        interval = {"stream_interval": limit} if feed is None and "stream_interval" not in self._cannot else {}
        watch = Watch(feed) if feed is not None else UNWATCHED if leads else None
        gather = None if watch is None else lambda: WatchedStream(watch, read, turn.begun)
        reply = await self.sent(lambda: request, {"sampling_params": {**body["sampling_params"], **interval}}, usage_of, read, gather, tally)
        turn.begun()
        return reply

    def _sampled(self, ask: Gen, beyond: Beyond | None, stops: Sequence[str]) -> Body:
        body = self._sampled_alike(ask, beyond, stops)
        return {**body, "sampling_seed": ask.seed % _MAX_SEED} if self._seeded(ask) else body

    def _seeded(self, ask: Gen) -> bool:
        params = ask.params
        return params.temperature > 0 and params.n == 1 and "sampling_seed" not in self._cannot  # n answers of one seed would be one

    def _sampled_alike(self, ask: Gen, beyond: Beyond | None, stops: Sequence[str]) -> Body:
        """Return the parameters without the seed. Stops of the template that are tokens are sent as such: for text, the
        server would decode the end of every answer after every token."""
        params = ask.params
        body = dict(written_params(params))
        body["max_new_tokens"] += 0 if beyond is None else beyond.tokens
        by_id = self._stop_tokens(ask) if beyond is None else {}
        body.pop("stop", None)
        if texts := [stop for stop in stops if stop not in by_id]:
            body["stop"] = texts
        if by_id:
            body["stop_token_ids"] = sorted({*params.stop_token_ids, *by_id.values()})
        if params.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
        return {**body, **(constrained(ask.constraint) if ask.constraint is not None else {})}

    # -- as one of a list: prompts and parameters of each, answered as events by index

    def member(self, place: PromptNode, ask: Gen | None) -> Member | None:
        if self._written_there(place) or place.has_images:
            return None
        if ask is None:
            return self._worth_reading(self._member(place, None, _READING, 0))
        stops = self._stops(ask)
        params = self._params(ask, stops)
        return self._member(place, ask, params, ask.params.max_new_tokens, stops, params if self._routed else None)

    def _params(self, ask: Gen, stops: tuple[str, ...]) -> bytes:
        key = (ask.params, ask.constraint, stops)
        if (known := self._written.get(key)) is None:
            if len(self._written) >= _WRITTEN:
                self._written.clear()
            known = self._written[key] = dumped(self._sampled_alike(ask, None, stops))
        return b'%b,"sampling_seed":%d}' % (known[:-1], ask.seed % _MAX_SEED) if self._seeded(ask) else known

    def listed(self, members: Sequence[Member]) -> bytes:
        name = b"text" if isinstance(members[0].prompt, str) else b"input_ids"
        if len(members) == 1:
            return b'{"%b":%b,"sampling_params":%b}' % (name, dumped(members[0].prompt), members[0].params)
        params = [member.params for member in members]
        if "stream_interval" not in self._cannot:  # two events an answer, its first token and its end, in place of one a token
            params = [b'%b,"stream_interval":%d}' % (each[:-1], max(1, member.limit)) for each, member in zip(params, members, strict=True)]
        shared = params[0] if len(set(params)) == 1 else b"[%b]" % b",".join(params)  # routers take no list of them
        return b'{"%b":%b,"sampling_params":%b,"stream":true}' % (name, dumped([member.prompt for member in members]), shared)

    def part(self) -> SGLangStream:
        """Return what collects the pieces of one answer of a list."""
        return SGLangStream()

    def usage_in(self, body: Body) -> Usage | None:
        return usage_of_all(body)

    def reply_to(self, member: Member, body: Body) -> ServerReply:
        (item,) = items_of_reply(body)
        return ServerReply((self._item(item),), str(item["meta_info"].get("id", "")), self.model, stops=member.stops)

    def _item(self, item: Body) -> Sample:
        meta: Body = item["meta_info"]
        finish: Any = meta.get("finish_reason")
        if not isinstance(finish, dict) or not isinstance(finish.get("type"), str):
            raise Malformed("the answer has no finish reason")
        if finish.get("type") == "abort":
            raise Fault(str(finish.get("message", "the server aborted the request")), status=int(finish.get("status_code") or 500))
        check_whole(finish["type"])
        text: str = item["text"]
        ids: Any = item.get("output_ids")
        known = self._prompts.tokens.of(ids, text) if self._prompts.tokens is not None and isinstance(ids, list) else None
        extra = {k: meta[k] for k in ("input_token_logprobs", "input_top_logprobs", "output_top_logprobs") if meta.get(k)}
        return Sample(text, finish, listed_tokens(meta.get("output_token_logprobs")), None, known, extra)

    # -- select

    async def choose(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Choose by log-probabilities after the cached prompt.

        One-token choices   one request about the prompt, which lists them all
        longer ones         one list of prompts with choices, each scored from the token before its own on: scored from
                            the
                        beginning, a server would recompute it all (it reads only unscored tokens from its cache)
        """
        if self.by_messages(place, ask):
            return await self.choose_by_answer(place, ask, tally)
        tokens = self._prompts.tokens
        if tokens is None or place.has_images:
            return await self._chosen_by_text(place, ask, tally)
        scoring, headers = Scoring.of(tokens, place, ask), self._prompts.headers(place)
        known, texts = dict[ScoredRow, dict[int, float]](), dict[int, str]()
        wanted = scoring.next_tokens()
        if len(wanted) == 1 and "token_ids_logprob" not in self._cannot:
            ((context, ids),) = wanted.items()
            known |= {context: found} if (found := await self._next(scoring.ids(context), sorted(ids), headers, texts, tally)) else {}
        if known.keys() != wanted.keys():
            await self._score(scoring, headers, known, texts, tally)
        return scoring.output(ask, known, texts, tally)

    async def _next(
        self, prompt: list[int], wanted: list[int], headers: Mapping[str, str], texts: dict[int, str], tally: AttemptUsage
    ) -> dict[int, float] | None:
        """Return log-probabilities of tokens right after a prompt; None from a server that does not list those of
        chosen ones."""
        body = {**_prompt(prompt), **_SCORED, "token_ids_logprob": wanted}
        request = self.request(body, prompt, headers)

        def read(body: Body) -> dict[int, float] | None:
            listed: Any = items_of_reply(body)[0]["meta_info"].get("output_token_ids_logprobs")
            found = {row[1]: (logprob_of(row[0]), row[2] or "") for row in (listed[0] if listed else ())}
            if not found.keys() >= set(wanted):
                self.leave_out("token_ids_logprob", "it lists no log-probabilities of chosen tokens; choices are scored as prompts")
                return None
            texts.update({token: text for token, (_, text) in found.items()})
            return {token: found[token][0] for token in wanted}

        return await self.client.call(lambda: request, usage_of, read, tally)

    async def _score(
        self, scoring: Scoring, headers: Mapping[str, str], known: dict[ScoredRow, dict[int, float]], texts: dict[int, str], tally: AttemptUsage
    ) -> None:
        """Return log-probabilities of all tokens of the choices, in a list, and of those without the prompt in another."""
        rows = scoring.wanted()
        prompt = list(scoring.prompt)
        if len(rows) > 1:  # or each of them computes the unread prefix
            await self.read(self.reading(prompt, headers), _WORTH_OF_ROWS // (len(rows) - 1))
        lists = [[row for row in rows if row.base], [row for row in rows if not row.base]]
        await asyncio.gather(*[self._score_list(scoring, some, headers, known, texts, tally) for some in lists if some])

    async def _score_list(
        self, scoring: Scoring, rows: Sequence[ScoredRow], headers: Mapping[str, str], known: dict[ScoredRow, dict[int, float]], texts: dict[int, str],
        tally: AttemptUsage,
    ) -> None:  # fmt: skip
        """Return log-probabilities of rows that begin about where the prompt ends, or all at their own beginning."""
        start = max(min([row.base for row in rows]) - 1, 0)  # one for all: routers take no list of them
        body: Body = {"input_ids": [scoring.ids(row) for row in rows], **_SCORED, "logprob_start_len": start}
        request = self.request(body, list(scoring.prompt), headers)

        def read(body: Body) -> None:
            items = items_of_reply(body)
            if len(items) != len(rows):
                raise Malformed(f"{len(items)} answers for {len(rows)} prompts")
            for row, item in zip(rows, items, strict=True):
                listed = listed_tokens(item["meta_info"].get("input_token_logprobs")) or ()
                own = listed[row.base - start :]
                if tuple([token for _, token, _ in own]) != row.own:
                    raise Malformed("the answer has not the log-probabilities that were asked for")
                texts.update(zip(row.own, [text for _, _, text in own], strict=True))
                for (context, token), (lp, _, _) in zip(row.contexts, own[len(own) - len(row.contexts) :], strict=True):
                    known.setdefault(context, {})[token] = logprob_of(lp)

        await self.client.call(lambda: request, usage_of_all, read, tally)

    async def _chosen_by_text(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Choose on a server whose tokenizer is unknown here: the server reports where the prompt's tokens end."""
        prompt, headers, seen = spelled(place, self.name, self._image_token or ""), self._prompts.headers(place), pictures_of(place)
        request = self._seeing(self.reading(prompt, headers), place)
        async with self.turn(place, ask, {}) as turn:
            known = await self.client.call(lambda: request, usage_of, prompt_tokens_of, tally)
            turn.begun()
        tail = 2  # tokens of the prompt that a choice may change: more if it does
        while True:
            start = max(known - tail, 0)
            try:
                end, *rows = await self._rows([prompt, *[prompt + c for c in ask.choices]], start, headers, tally, seen)
                if not start or all(row[0][1] == end[0][1] for row in rows):
                    break
            except Fault as fault:  # a choice may even make a prompt shorter than that
                if not start or "logprob_start_len" not in fault.message:
                    raise
            tail *= 8
        own = [row[shared(end, row) :] for row in rows]
        if ask.method is not ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
            return chosen(ask, own, None, tally)
        return chosen(ask, own, aligned(own, await self._rows(ask.choices, 0, headers, tally)), tally)

    async def _rows(self, prompts: Sequence[str], start: int, headers: Mapping[str, str], tally: AttemptUsage, seen: Body | None = None) -> list[Listed]:
        """Return the tokens of prompts from `start` on, with their log-probabilities; the first has none. `seen`:
        pictures of each."""
        body: Body = {"text": list(prompts), **_SCORED, "logprob_start_len": start, **{name: [urls] * len(prompts) for name, urls in (seen or {}).items()}}
        request = self.request(body, prompts[0], headers)

        def read(body: Body) -> list[Listed]:
            rows = [scored(listed_tokens(item["meta_info"].get("input_token_logprobs")) or ()) for item in items_of_reply(body)]
            if len(rows) != len(prompts) or not all(rows[1:] if start == 0 else rows):
                raise Malformed("the answer has not the log-probabilities that were asked for")
            return rows

        return await self.client.call(lambda: request, usage_of_all, read, tally)


_SCORED: Body = {"sampling_params": {"max_new_tokens": 0, "temperature": 0}, "return_logprob": True, "return_text_in_logprobs": True}
_LONGEST_PREPARED = 60.0  # seconds that a request is held for another with its pictures: hundreds of them wait for the server's image processors
_PICTURE = 64  # times that a picture's hash is repeated: as characters, those of the 512 tokens that one has about
_WORTH_OF_ROWS = 128  # extra tokens of several prompts from which on a common prefix is prefilled


_WRITTEN = 1024  # parameters cached as JSON
_REFUSALS = {"stream_interval": "stream_interval", "field `text`": "input_ids", "sampling_seed": "sampling_seed"}  # words of a refusal, and what is left out
_READING = b'{"max_new_tokens":0,"temperature":0}'


def _model(info: Mapping[str, Any]) -> str:
    return str(info.get("model_path", "model"))


def _prompt(prompt: str | list[int]) -> Body:
    return {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
