"""SGLang servers by their own protocol (`/generate`): token ids in and out, their constraints, choices by their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.backend import Feed, Reply, Sample
from lmc.backend.api.bodies import Listed, cost_of, shared
from lmc.backend.api.client import Body, Fault, Malformed, Patience, Request, Tally
from lmc.backend.api.completions import Completions
from lmc.backend.api.place import Place
from lmc.backend.api.remote import Prompts, asked, headers_of, urls_of, wires
from lmc.backend.api.streams import Watch
from lmc.backend.base import Beyond, Capabilities, Hints, Output, Prices, Usage
from lmc.backend.engine.choices import decide
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import LmcError, UnsupportedOpError
from lmc.fsm.sources import ebnf_of
from lmc.prompt import ChoicesMethod, Constraint, Gen, SamplingParams, Select

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import Vocabulary

_PARAMS = (
    "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "n",
)  # fmt: skip
_MAX_SEED = 1 << 31


class SGLang(Completions):
    """A client of an SGLang server.

    url            of the server, or of several with the same model; `http://host:port`
    tokenizer      a directory, a .gguf file or a vocabulary; None: the server's model path, if it is one on this machine.
                   With it prompts are token ids: data is never taken for a special token, and answers are never encoded again
    chat_template  in place of the model's own
    verify         accepted for SGLang's programs; True only

    What has to do with tools is asked as messages, by OpenAI's API, which the server writes by its template; all else by `/generate`.
    """

    root = "/v1"

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        *,
        tokenizer: str | Vocabulary | None = None,
        chat_template: ChatTemplate | str | None = None,
        prices: Prices | None = None,
        concurrency: int = 256,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
    ) -> None:
        if verify not in (None, True):
            raise UnsupportedOpError(f"RuntimeEndpoint(verify={verify!r})", "lmc", "set SSL_CERT_FILE for another certificate authority")
        urls, headers = urls_of(base_url), headers_of(api_key)
        info = asked(urls[0], ("/model_info", "/get_model_info"), headers, "SGLang")
        model = str(info.get("model_path", "model"))
        self._prompts = Prompts.of(model, info.get("tokenizer_path") or model, tokenizer, chat_template or chat_template_name)
        patience = patience or Patience(retries=retries, timeout=timeout)
        super().__init__(
            f"SGLang({model})", model, wires(urls, "", headers, patience, concurrency), chat=False, template=self._prompts.template,
            server="sglang", served_as="*", concurrency=concurrency, patience=patience, prices=prices, speculate=speculate,
        )  # fmt: skip

    @property
    def capabilities(self) -> Capabilities:
        kinds = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})
        return Capabilities(self.name, kinds, select=True, logprobs=True, n=True, streams=True, tools=True, prices=self._prices)

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), "model": self.model, "prompts": self._prompts.said}

    def check(self, ask: Gen | Select) -> None:
        """Everything can be asked; a Lark grammar must be one that can be written as EBNF."""
        if isinstance(ask, Gen) and ask.tools:
            super().check(ask)
        elif isinstance(ask, Gen) and ask.constraint is not None:
            _constrained(ask.constraint)

    def enforces(self, constraint: Constraint) -> bool:
        return True

    def by_messages(self, place: Place, ask: Gen | Select) -> bool:
        """Tools are written into prompts, and calls read from answers, by the server: it does so for messages alone."""
        return place.has_results or (isinstance(ask, Gen) and bool(ask.tools))

    def headers(self, place: Place) -> Mapping[str, str]:
        return self._prompts.headers(place)

    async def prepare(self) -> None:
        """Routers in front of servers may refuse ids."""
        tokens = self._prompts.tokens
        if tokens is None:
            return
        body = {"input_ids": tokens.words.encode(("a",), at_start=True), "sampling_params": {"max_new_tokens": 0}}
        try:
            await self.client.call(lambda: Request("/generate", body), _usage, _items, Tally())
        except Fault as fault:
            if fault.status not in (400, 404, 405, 422):
                return  # not about the ids: the first real request will say
            self._prompts.as_text(f"ids are refused ({fault.message})", self.name)
        except LmcError as error:
            log("backend", f"{self.name}: whether it takes ids is not known: {error}")

    async def warm(self, place: Place, hints: Hints) -> None:
        if place.has_results:
            return  # what the server makes of it is not known here
        body = {**self._written(place), "sampling_params": {"max_new_tokens": 0, "temperature": 0}}
        try:
            await self.client.call(lambda: Request("/generate", body, self._prompts.headers(place)), _usage, _items, Tally())
        except (Fault, LmcError) as error:  # nobody needs it: what is asked next will fail by itself if the server is gone
            log("prefix", f"{self.name}: a prompt was not computed ahead: {error}")

    # -- gen

    async def generate(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        if self.by_messages(place, ask):
            if ask.constraint is not None and ask.constraint.kind == "lark":
                ask = replace(ask, constraint=Constraint("ebnf", ebnf_of("lark", ask.constraint.source)))
            return await super().generate(place, ask, beyond, feed, tally)
        while True:
            known = frozenset(self._cannot)  # others may learn while this is on its way
            try:
                return await self._generated(place, ask, beyond, feed, tally)
            except Fault as fault:
                if fault.status not in (400, 422) or "sampling_seed" in known or "sampling_seed" not in fault.message:
                    raise
                self._cannot.add("sampling_seed")
                log("backend", f"{self.name} takes no seeds: {fault.message}")

    async def _generated(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        stops = self._stops(ask) if beyond is None else beyond.stop
        body = {**self._written(place), "sampling_params": self._sampled(ask, beyond, stops)}
        if ask.params.return_logprob or beyond is not None:
            params = ask.params
            body |= {"return_logprob": True, "return_text_in_logprobs": params.return_text_in_logprobs or beyond is not None}
            body |= {"logprob_start_len": -1 if params.logprob_start_len is None else params.logprob_start_len}
            body |= {"top_logprobs_num": params.top_logprobs_num} if params.top_logprobs_num else {}
        headers = self._prompts.headers(place)

        def read(body: Body) -> Reply:
            items = _items(body)
            if len(items) != ask.params.n:
                raise Malformed(f"{len(items)} answers for n={ask.params.n}")
            return Reply(tuple(map(self._item, items)), str(items[0]["meta_info"].get("id", "")), self.model, stops=stops)

        if feed is None:
            return await self.client.call(lambda: Request("/generate", body, headers), _usage, read, tally)
        streamed = {**body, "stream": True}
        watch = Watch(feed)
        return await self.client.stream(lambda: Request("/generate", streamed, headers), _usage, lambda: _Growing(watch, read), tally)

    def _written(self, place: Place) -> Body:
        prompt = self._prompts.write(place, self.name)
        return {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}

    def _sampled(self, ask: Gen, beyond: Beyond | None, stops: Sequence[str]) -> Body:
        params, default = ask.params, SamplingParams()
        body: Body = {"temperature": params.temperature}
        for name in _PARAMS:
            value = getattr(params, name)
            if value != getattr(default, name) or name in ("max_new_tokens", "top_p"):
                body[name] = list(value) if isinstance(value, tuple) else value
        body["max_new_tokens"] += 0 if beyond is None else beyond.tokens
        body.pop("stop", None)
        if stops:
            body["stop"] = list(stops)
        if params.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
        if params.temperature > 0 and params.n == 1 and "sampling_seed" not in self._cannot:  # n answers of one seed would be one
            body["sampling_seed"] = ask.seed % _MAX_SEED
        return {**body, **(_constrained(ask.constraint) if ask.constraint is not None else {})}

    def _item(self, item: Body) -> Sample:
        meta: Body = item["meta_info"]
        finish: Any = meta.get("finish_reason")
        if not isinstance(finish, dict):
            raise Malformed("the answer does not say how it ended")
        if finish.get("type") == "abort":
            raise Fault(str(finish.get("message", "the server aborted the request")), status=int(finish.get("status_code") or 500))
        text: str = item["text"]
        ids: Any = item.get("output_ids")
        known = self._prompts.tokens.of(ids, text) if self._prompts.tokens is not None and isinstance(ids, list) else None
        extra = {k: meta[k] for k in ("input_token_logprobs", "input_top_logprobs", "output_top_logprobs") if meta.get(k)}
        return Sample(text, finish, _listed(meta.get("output_token_logprobs")), None, known, extra)

    # -- select

    async def choose(self, place: Place, ask: Select, tally: Tally) -> Output:
        """All choices in one request; those log-probabilities count whose tokens are not the prompt's."""
        if self.by_messages(place, ask):
            return await self.choose_by_answer(place, ask, tally)
        unconditional = ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        conditional = await self._rows([place, *[place.literal((c,)) for c in ask.choices]], tally)
        own = [row[shared(conditional[0], row) :] for row in conditional[1:]]
        values = [[lp or 0.0 for lp, _, _ in row] for row in own]
        alone: list[list[float]] | None = None
        if unconditional:
            rows = await self._rows([Place().literal((c,)) for c in ask.choices], tally)
            alone = [([lp or 0.0 for lp, _, _ in row] + [0.0] * len(v))[: len(v)] for row, v in zip(rows, values, strict=True)]
        decision = decide(ask.method, values, alone)
        meta = {"input_token_logprobs": [[list(token) for token in row] for row in own], **decision.meta, **cost_of(tally)}
        return Output((ask.choices[decision.index],), (meta,), tally.usage)

    async def _rows(self, places: Sequence[Place], tally: Tally) -> list[Listed]:
        """The tokens of prompts with their log-probabilities."""
        prompts = [self._prompts.write(p, self.name) for p in places]
        body: Body = {
            "text" if isinstance(prompts[0], str) else "input_ids": prompts,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "return_text_in_logprobs": True,
        }

        def read(body: Body) -> list[Listed]:
            items = _items(body)
            rows = [_listed(item["meta_info"].get("input_token_logprobs")) for item in items]
            if len(rows) != len(prompts) or any(row is None for row in rows[1:]):
                raise Malformed("the answer has not the log-probabilities that were asked for")
            return [row or () for row in rows]

        return await self.client.call(lambda: Request("/generate", body, self._prompts.headers(places[0])), _usage_of_all, read, tally)


def _constrained(constraint: Constraint) -> Body:
    if constraint.kind == "lark":
        return {"ebnf": ebnf_of("lark", constraint.source)}
    return {constraint.kind: constraint.source}


def _items(body: Body) -> list[Body]:
    """One answer or several. Raises Malformed for what is none."""
    items: Any = body.get("items", [body])
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("text"), str) or not isinstance(item.get("meta_info"), dict):
            raise Malformed("the answer has no text or no meta_info")
    return items


def _metas(body: Body) -> list[Mapping[str, Any]]:
    items: Any = body.get("items", [body])
    return [item["meta_info"] for item in items if isinstance(item, dict) and isinstance(item.get("meta_info"), dict)]


def _usage(body: Body) -> Usage | None:
    """Of one prompt, whose n answers each report it."""
    metas = _metas(body)
    return replace(_usage_of_all(body) or Usage(), prompt_tokens=int(metas[0].get("prompt_tokens") or 0), cached_tokens=int(metas[0].get("cached_tokens") or 0)) if metas else None


def _usage_of_all(body: Body) -> Usage | None:
    """Of several prompts."""
    metas = _metas(body)
    if not metas:
        return None
    prompt, completion, cached = (sum(int(m.get(k) or 0) for m in metas) for k in ("prompt_tokens", "completion_tokens", "cached_tokens"))
    return Usage(prompt, completion, cached, 0, 1, 0)


def _listed(rows: Any) -> Listed | None:
    """Tokens as SGLang lists them: [log-probability, id, text]."""
    return tuple((row[0], row[1], row[2] or "") for row in rows) if isinstance(rows, list) else None


class _Growing:
    """A stream whose every event has the whole text so far."""

    def __init__(self, watch: Watch, read: Any) -> None:
        self._watch, self._read = watch, read
        self._last: Body = {}

    def add(self, body: Body) -> None:
        (item,) = _items(body)
        self._last = body
        self._watch.grown(item["text"])

    def result(self) -> Any:
        if not self._last.get("meta_info", {}).get("finish_reason"):
            raise Fault("the stream ended before the answer did")
        return self._read(self._last)
