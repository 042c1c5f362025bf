"""vLLM servers: OpenAI's completions with token ids in and out, vLLM's constraints, and choices by the log-probabilities of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.bodies import Listed, choices_of, cost_of, shared, usage_of
from lmc.backend.api.client import Body, Fault, Malformed, Patience, Request, Tally
from lmc.backend.api.completions import Completions
from lmc.backend.api.place import Place
from lmc.backend.api.redaction import without_userinfo
from lmc.backend.api.remote import Prompts, asked, headers_of, urls_of, wires
from lmc.backend.base import Capabilities, Hints, Output, Prices
from lmc.backend.engine.choices import decide
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import BackendError, LmcError
from lmc.prompt import ChoicesMethod, Gen, Select

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import Vocabulary


class VLLM(Completions):
    """A client of a vLLM server.

    url            of the server, or of several with the same model; `http://host:port`, with or without `/v1`
    model          its name there; None: the first that the server lists
    tokenizer      a directory, a .gguf file or a vocabulary; None: the server's model path, if it is one on this machine.
                   With it prompts are token ids: data is never taken for a special token, and answers are never encoded again
    chat_template  in place of the model's own

    What has to do with tools is asked as messages, which the server writes by the template it was started with; all else as tokens or text.
    """

    lookahead = False  # it has a prefix cache: what comes next is cheap to ask

    def __init__(
        self,
        url: str | Sequence[str],
        model: str | None = None,
        *,
        api_key: str | None = None,
        tokenizer: str | Vocabulary | None = None,
        chat_template: ChatTemplate | str | None = None,
        prices: Prices | None = None,
        concurrency: int = 256,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        urls, headers = tuple(u.removesuffix("/v1") for u in urls_of(url)), headers_of(api_key)
        listed: Any = asked(urls[0], ("/v1/models",), headers, "vLLM").get("data") or []
        found = next((m for m in listed if model in (None, m.get("id"))), None)
        if found is None:
            raise BackendError(f"the server at {without_userinfo(urls[0])} has no model {model!r}; it has {', '.join(str(m.get('id')) for m in listed) or 'none'}")
        name = str(found["id"])
        self._max_context: int | None = found.get("max_model_len")
        self._prompts = Prompts.of(name, found.get("root"), tokenizer, chat_template)
        patience = patience or Patience(retries=retries, timeout=timeout)
        super().__init__(
            f"VLLM({name})", name, wires(urls, "/v1", headers, patience, concurrency), chat=False, template=self._prompts.template,
            server="vllm", extra_body=extra_body, prices=prices, concurrency=concurrency, patience=patience, speculate=speculate,
        )  # fmt: skip

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), "model": self.model, "prompts": self._prompts.said, "max_context": self._max_context}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, tools=True)

    def by_messages(self, place: Place, ask: Gen | Select) -> bool:
        """Tools are written into prompts, and calls read from answers, by the server: it does so for messages alone."""
        return place.has_results or (isinstance(ask, Gen) and bool(ask.tools))

    async def prepare(self) -> None:
        """Routers in front of servers may refuse ids."""
        tokens = self._prompts.tokens
        if tokens is None:
            return
        body = {"model": self.model, "prompt": tokens.words.encode(("a",), at_start=True), "max_tokens": 1, "return_token_ids": True}
        try:
            await self.client.call(lambda: Request("/completions", body), usage_of, lambda body: choices_of(body, 1), Tally())
        except Fault as fault:
            if fault.status not in (400, 404, 405, 422):
                return  # not about the ids: the first real request will say
            self._prompts.as_text(f"ids are refused ({fault.message})", self.name)
        except LmcError as error:
            log("backend", f"{self.name}: whether it takes ids is not known: {error}")
        else:
            self._extra.setdefault("return_token_ids", True)

    async def warm(self, place: Place, hints: Hints) -> None:
        if place.has_results:
            return  # what the server makes of it is not known here
        body = {"model": self.model, "prompt": self.prompt(place), "max_tokens": 1}
        try:
            await self.client.call(lambda: Request("/completions", body, self.headers(place)), usage_of, lambda body: None, Tally())
        except (Fault, LmcError) as error:  # nobody needs it: what is asked next will fail by itself if the server is gone
            log("prefix", f"{self.name}: a prompt was not computed ahead: {error}")

    def prompt(self, place: Place) -> str | list[int]:
        return self._prompts.write(place, self.name)

    def headers(self, place: Place) -> Mapping[str, str]:
        return self._prompts.headers(place)

    def ids(self, choice: Body, text: str) -> tuple[int, ...] | None:
        found: Any = choice.get("token_ids")
        return self._prompts.tokens.of(found, text) if self._prompts.tokens is not None and isinstance(found, list) else None

    # -- select

    async def choose(self, place: Place, ask: Select, tally: Tally) -> Output:
        """By the prompts' log-probabilities where prompts are ids; else as any server that scores text."""
        tokens = self._prompts.tokens
        if self.by_messages(place, ask):
            return await self.choose_by_answer(place, ask, tally)
        if tokens is None:
            return await super().choose(place, ask, tally)
        unconditional = ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        places = [*[place.literal((c,)) for c in ask.choices], *([Place().literal((c,)) for c in ask.choices] if unconditional else ())]
        rows = await self._rows([tokens.ids(p) for p in places], place, tally)
        before = tuple((None, token, "") for token in tokens.ids(place))
        own = [row[shared(before, tuple((lp, token, "") for lp, token, _ in row)) :] for row in rows[: len(ask.choices)]]
        values = [[lp or 0.0 for lp, _, _ in row] for row in own]
        alone = [([lp or 0.0 for lp, _, _ in row] + [0.0] * len(v))[: len(v)] for row, v in zip(rows[len(own) :], values, strict=False)]
        decision = decide(ask.method, values, alone if unconditional else None)
        meta = {"input_token_logprobs": [[list(token) for token in row] for row in own], **decision.meta, **cost_of(tally)}
        return Output((ask.choices[decision.index],), (meta,), tally.usage)

    async def _rows(self, prompts: Sequence[list[int]], place: Place, tally: Tally) -> list[Listed]:
        """The tokens of prompts with their log-probabilities."""
        body = {"model": self.model, "prompt": list(prompts), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}

        def read(body: Body) -> list[Listed]:
            listed = [choice.get("prompt_logprobs") for choice in choices_of(body, len(prompts))]
            return [_row(ids, row) for ids, row in zip(prompts, listed, strict=True)]

        return await self.client.call(lambda: Request("/completions", body, self.headers(place)), usage_of, read, tally)


def _row(ids: Sequence[int], listed: Any) -> Listed:
    """The log-probability of each token of a prompt, which vLLM lists by its id; of the first there is none."""
    if not isinstance(listed, list) or len(listed) != len(ids):
        raise Malformed("the answer has not the log-probabilities that were asked for")
    found: list[tuple[float | None, int | None, str]] = []
    for token, entry in zip(ids, listed, strict=True):
        known: Any = (entry or {}).get(str(token))
        if entry is not None and known is None:
            raise Malformed(f"the answer has no log-probability of token {token}")
        found.append((None, token, "") if known is None else (known["logprob"], token, known.get("decoded_token") or ""))
    return tuple(found)
