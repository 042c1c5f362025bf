"""OpenAI's API, and compatible servers, on the openai SDK."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from lmc.backend.api import responses
from lmc.backend.api.batch_servers import OpenAIBatches
from lmc.backend.api.bodies import not_taken
from lmc.backend.api.client import Patience
from lmc.backend.api.completions import Completions
from lmc.backend.api.exchange import Fault, HttpRequest, Received, reading
from lmc.backend.api.network import check_client_options, imported
from lmc.backend.api.redaction import check_key, check_url, shown
from lmc.backend.api.sdk import SdkWire, client_of_sdk
from lmc.backend.api.terms import BEGIN, ApiTerms, OnRefusal
from lmc.backend.usage import Prices
from lmc.chat import ChatTemplate, get_chat_template
from lmc.compat import TokenUsage
from lmc.config import log
from lmc.errors import ArgumentError, ParameterError, UnsupportedOpError
from lmc.segments import Gen, Select

_CHAT = "/chat/completions"
_PATHS = (_CHAT, "/completions", responses.PATH)
_INSTRUCT = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")


class OpenAI(Completions):
    """A model behind OpenAI's API, or behind a server that speaks it.

    model, model_name  its name there, by either name
    is_azure       Azure's service: the client is an `openai.AsyncAzureOpenAI`
    is_chat_model  messages (chat completions) or text (completions); None: by the name, and messages for unknown ones
    chat_template  template for roles of a text model; its own special tokens are spelled out
    base_url, api_key, organization, default_headers, …  of the client; the environment's as the SDK reads it
    client         an `openai.AsyncOpenAI` of your own in place of one made here
    server         "openai", "compatible", "vllm" or "sglang": its parameters beyond OpenAI's; None: by the URL
    api            "chat" or "responses": API for messages; None: chat, and responses once the server reports that the
                   model needs them
    select         "logprobs" of the choices (text only), "decisions", or "constrained"; None: by the server
    service_tier   "flex", "priority", …: speed and price of requests; answers' meta info has the tier that served them
    wait_for_cache requests whose prompts have their first 1,024 tokens or more in common wait until the first of them begins to be answered, so
                   that they find it in the server's cache; None: where the server is "openai"
    prices         for a million tokens: `lmc.Prices(prompt, completion, cached)`
    served_as      the model's name as answers have it, if it is not the model's own; "*": any
    concurrency    most requests at once
    retries, timeout  attempts after the first, and seconds for each; with the delays between them in `patience` (`lmc.backend.api.client.Patience`)
    speculate      whether one request may cover several gens and the text between them
    attempts       requests for one answer whose constraint the server does not enforce, until one satisfies it
    extra_body     further fields of each request's body
    on_refusal     "raise": a refusal raises `Refused`, a filtered answer `Filtered`; "return": they are answers, marked
                   in their meta info

    A constraint that the server does not enforce is verified here, and the answer requested again (`attempts` times);
    its meta info tells it. If a chat model cannot continue a message, the program's part of it is sent as a message,
    and meta tells it.
    """

    def __init__(
        self,
        model: str | None = None,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        *,
        model_name: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        server: str | None = None,
        api: Literal["chat", "responses"] | None = None,
        select: Literal["logprobs", "decisions", "constrained"] | None = None,
        service_tier: str | None = None,
        wait_for_cache: bool | None = None,
        prices: Prices | None = None,
        concurrency: int = 64,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        attempts: int = 4,
        served_as: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        on_refusal: OnRefusal = "raise",
        **client_options: Any,
    ) -> None:
        model = model or model_name
        if model is None:
            raise ArgumentError('OpenAI() needs the name of a model, such as OpenAI("gpt-5-mini")')
        if api not in (None, "chat", "responses"):
            raise ParameterError(f"api={api!r}: must be 'chat' or 'responses'")
        if api is not None and is_chat_model is False:
            raise ParameterError(f"api={api!r} sends messages, but is_chat_model=False asks for text")
        base_url = base_url or (None if client is not None else os.environ.get("OPENAI_BASE_URL"))
        if base_url:
            check_url(base_url, "base_url=", "http://host:port/v1")
        host = urlsplit(base_url).hostname if base_url else None
        server = server or ("openai" if host in (None, "api.openai.com") else "compatible")
        patience = patience or Patience(retries=retries, timeout=timeout)
        terms = ApiTerms(concurrency, patience, prices, speculate, attempts, on_refusal, BEGIN if server == "openai" else None)
        self.key = f"api_key=… or {'AZURE_OPENAI_API_KEY' if is_azure else 'OPENAI_API_KEY'}"
        make = _wire_maker(client, is_azure, base_url, patience.timeout, client_options, api)
        super().__init__(
            f"OpenAI({model})",
            model,
            make,
            terms,
            chat=not model.startswith(_INSTRUCT) if is_chat_model is None and api is None else True if is_chat_model is None else bool(is_chat_model),
            template=get_chat_template(chat_template or "default") if chat_template is None or isinstance(chat_template, str) else chat_template,
            server=server,
            select=select,
            served_as=served_as,
            extra_body={**({"service_tier": service_tier} if service_tier else {}), **(extra_body or {})},
            wait_for_cache=wait_for_cache,
        )
        self._reads_pdfs = server == "openai"
        self.has_batches = server == "openai" and not is_azure
        self.token_usage = TokenUsage(self.ledger)

    @property
    def _wire(self) -> OpenAIWire:
        wire = self.client.wire
        assert isinstance(wire, OpenAIWire)
        return wire

    async def models(self) -> Sequence[str]:
        return await self._wire.models()

    def batch_api(self) -> OpenAIBatches:
        return OpenAIBatches(self._wire, self._wire.by_responses, self._wire.turned)

    def check_batched(self, ask: Gen | Select) -> None:
        if "service_tier" in self._extra:
            raise UnsupportedOpError("deadline=", self.name, "service_tier= says when it is answered: leave one of the two out", loc=ask.loc)
        if isinstance(ask, Select) and self._select == "decisions":
            raise UnsupportedOpError('select="decisions"', f"the batch API of {self.name}", 'use select="constrained", or leave deadline= out', loc=ask.loc)


# -- the SDK ---------------------------------------------------------------------------------------------------------


def _wire_maker(
    client: Any, azure: bool, base_url: str | None, timeout: float, options: Mapping[str, Any], api: Literal["chat", "responses"] | None
) -> Callable[[], OpenAIWire]:
    """Return a factory of the wire on the loop; that the SDK is installed and takes the options is checked before."""
    check_client_options("OpenAI", options)
    openai = imported("lmc.OpenAI", "openai")
    if client is not None:
        check_key(client.api_key)
        return lambda: OpenAIWire(client.with_options(max_retries=0), openai, api)
    if base_url and (path := next((path for path in _PATHS if base_url.rstrip("/").endswith(path)), None)):
        raise ParameterError(f"base_url={shown(base_url)!r} is the URL of a request; give that of the API: {shown(base_url.rstrip('/').removesuffix(path))!r}")
    given = {"max_retries": 0, "timeout": timeout, **options, **({"base_url": base_url} if base_url else {})}
    if base_url and urlsplit(base_url).hostname != "api.openai.com":
        given.setdefault("api_key", os.environ.get("OPENAI_API_KEY", "none"))
    try:
        made = client_of_sdk(openai, "AsyncAzureOpenAI" if azure else "AsyncOpenAI", given, {"api_key": "api_key=… or OPENAI_API_KEY"})
    except (openai.OpenAIError, TypeError) as error:
        if isinstance(error, openai.OpenAIError) and not azure and not (given.get("api_key") or os.environ.get("OPENAI_API_KEY")):
            raise ParameterError("OpenAI(…): no key; pass api_key=… or set OPENAI_API_KEY") from None
        raise ParameterError(f"OpenAI(…): {error}") from None
    return lambda: OpenAIWire(made, openai, api)  # it opens nothing before its first use


class OpenAIWire(SdkWire):
    """Requests by the SDK's client, of chat completions by the Responses API if the model needs it."""

    own = ("model", "messages", "prompt", "input", "questions", "stream")

    def __init__(self, client: Any, sdk: Any, api: Literal["chat", "responses"] | None = None) -> None:
        super().__init__(client, sdk)
        self._api = api
        self._include: tuple[str, ...] = (responses.ENCRYPTED,)  # until the model reports that it has no reasoning

    def turned(self, request: HttpRequest, fault: Fault) -> bool:
        """Return whether a refused request is sent differently from now on: by the Responses API, which takes it, or there without reasoning."""
        needed, bare = responses.wanted(fault), self._api == "responses" and not_taken(fault, "include")
        if request.path != _CHAT or self._api == "chat" or not (needed or bare):
            return False
        if bare:
            self._include = ()
        elif self._api is None:
            log("backend", "asks by the Responses API from now on: the server says that the model needs it")
            self._api = "responses"
        return True

    def by_responses(self, request: HttpRequest) -> HttpRequest | None:
        """Return a chat completion as a request of the Responses API; None if it is not used, or the request is of
        another kind."""
        if request.path != _CHAT or self._api != "responses":
            return None
        return replace(request, path=responses.PATH, body=responses.asked(request.body, *self._include))

    def _resource(self, request: HttpRequest) -> Any:
        resources = {"/completions": "completions", "/decisions": "decisions", responses.PATH: "responses"}
        if request.path == _CHAT:
            return self._client.chat.completions
        found = getattr(self._client, resources[request.path], None)
        if found is None:
            raise UnsupportedOpError(f"{request.path}", "this version of the openai package", "pip install -U openai")
        return found

    async def post(self, request: HttpRequest) -> Received:
        while True:
            other = self.by_responses(request)
            try:
                received = await super().post(other or request)
                break
            except Fault as fault:
                if not self.turned(request, fault) or self.by_responses(request) == other:
                    raise
        with reading():
            return received if other is None else replace(received, body=responses.answered(received.body))

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        while True:
            other = self.by_responses(request)
            try:
                async for received in self.streamed(request) if other is None else self._pieces(other):
                    yield received
                return
            except Fault as fault:
                if not self.turned(request, fault) or self.by_responses(request) == other:
                    raise

    async def _pieces(self, request: HttpRequest) -> AsyncIterator[Received]:
        """Convert a response's events to chunks of a chat completion."""
        async for received in self.streamed(request, responses.ends):
            with reading():
                body = responses.piece(received.body)
            if body is not None:
                yield replace(received, body=body)

    @staticmethod
    def _said(error: Any) -> str:
        return json.dumps({"error": error.body or error.message})

    def fault(self, error: Any) -> Fault:
        fault = super().fault(error)
        base = shown(str(self._client.base_url).rstrip("/"))
        if fault.status in (404, 405) and not urlsplit(base).path and "model" not in f"{fault.param} {fault.code} {fault.message}".lower():
            fault.message += f"; base_url has no path, and servers mostly have their API at {base}/v1"
        return fault
