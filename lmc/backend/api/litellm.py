"""LiteLLM: all its providers, by its own client, as OpenAI's chat API; including Vertex AI."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from lmc.backend.api.caching import AUTOMATIC, CacheBook, gemini_rules, rules_of
from lmc.backend.api.client import Patience
from lmc.backend.api.completions import Completions
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Malformed, Received
from lmc.backend.api.messages import MESSAGES
from lmc.backend.api.network import check_client_options, http_errors, imported
from lmc.backend.api.rates import retry_after
from lmc.backend.api.redaction import check_key, secrets_of_headers, secrets_of_url
from lmc.backend.api.terms import BEGIN, ApiTerms, OnRefusal
from lmc.backend.api.wire import lowered
from lmc.backend.usage import Prices
from lmc.errors import ParameterError, UnsupportedOpError
from lmc.extras import install_line


class LiteLLM(Completions):
    """A chat model behind any of LiteLLM's providers.

    model_name            LiteLLM's name for it, such as "anthropic/claude-…" or "ollama/llama3"
    chat_template         None: the provider renders the messages; anything else is refused
    api_key, base_url, …  passed to `litellm.acompletion` with every request; LiteLLM reads the environment itself
    prices                for a million tokens: `lmc.Prices(prompt, completion, cached)`
    concurrency, retries, timeout, patience, speculate, attempts, extra_body, on_refusal  as of `lmc.OpenAI`
    cache                 "auto": Claude's messages are marked to be cached as by `lmc.Anthropic`, and for Gemini,
                          OpenAI and DeepSeek, whose caches need no marks, the first of prompts with a common prefix
                          goes ahead; "5m", "1h": marks with that lifetime, for Claude and Gemini; "off"

    LiteLLM refuses parameters that a provider does not take (`drop_params` is never set); dispensable ones are then
    left out. Raises MissingPackageError without the extra `litellm`, ParameterError for options that do not fit the model.
    """

    def __init__(
        self,
        model_name: str,
        chat_template: Any = None,
        *,
        prices: Prices | None = None,
        concurrency: int = 64,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        attempts: int = 4,
        extra_body: Mapping[str, Any] | None = None,
        on_refusal: OnRefusal = "raise",
        cache: Literal["auto", "5m", "1h", "off"] = "auto",
        **options: Any,
    ) -> None:
        check_client_options(type(self).__name__, options)
        check_key(options.get("api_key"))
        if cache not in ("auto", "5m", "1h", "off"):
            raise ParameterError(f"cache={cache!r}: 'auto', '5m', '1h' or 'off'")
        claude, gemini = "claude" in model_name, "gemini" in model_name
        if cache in ("5m", "1h") and not (claude or gemini):
            raise ParameterError(f"cache={cache!r}: {model_name} is not known to have a prompt cache that requests control; leave cache= out")
        if chat_template is not None:
            raise UnsupportedOpError("LiteLLM(chat_template=…)", "LiteLLM", "it takes messages; leave it out")
        litellm = imported("lmc.LiteLLM", "litellm")
        rules = (
            None
            if cache == "off"
            else rules_of(model_name)
            if claude
            else gemini_rules(model_name, cache)
            if gemini
            else AUTOMATIC
            if model_name.startswith(_AUTOMATIC)
            else None
        )
        marks = rules if rules is not None and rules.marks else None
        patience = patience or Patience(retries=retries, timeout=timeout)
        self.key = "api_key=…, or the variable of its provider, such as OPENAI_API_KEY"
        fixed = {"timeout": patience.timeout, **options, "num_retries": 0, "max_retries": 0}
        prices = prices and prices.with_cache(marks.read, marks.write, marks.write_hour) if marks else prices
        super().__init__(
            f"LiteLLM({model_name})", model_name, lambda: LiteLLMWire(litellm, fixed),
            ApiTerms(concurrency, patience, prices, speculate, attempts, on_refusal, BEGIN), chat=True, template=MESSAGES, server="compatible",
            served_as="*", extra_body=extra_body, wait_for_cache=rules is not None, book=CacheBook(marks, cache) if marks else None,
        )  # fmt: skip
        self.cache_rules = rules
        self._reads_pdfs = True  # depends on the model; its provider decides


class VertexAI(LiteLLM):
    """A model of Google's Vertex AI, through LiteLLM.

    model_name         "gemini-2.5-flash", or one of its partners', such as "claude-sonnet-4-5"
    project, location  of Google Cloud; None: GCP_PROJECT_ID and GCP_LOCATION, else LiteLLM's and Google's defaults
    credentials        path or JSON of a service account; None: the application default credentials
    safety_settings    a list of `{"category": …, "threshold": …}`, or a dict of categories and thresholds

    All other options are those of `lmc.LiteLLM`. Raises MissingPackageError without the extra `vertexai`.
    """

    def __init__(
        self,
        model_name: str,
        safety_settings: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
        *,
        project: str | None = None,
        location: str | None = None,
        credentials: str | None = None,
        **options: Any,
    ) -> None:
        imported("lmc.VertexAI", "google-auth", "vertexai")
        listed = [{"category": name, "threshold": at} for name, at in safety_settings.items()] if isinstance(safety_settings, Mapping) else safety_settings
        given = {
            "vertex_project": project or os.environ.get("GCP_PROJECT_ID"),
            "vertex_location": location or os.environ.get("GCP_LOCATION"),
            "vertex_credentials": credentials,
            "safety_settings": listed,
        }
        super().__init__(f"vertex_ai/{model_name.removeprefix('vertex_ai/')}", **{k: v for k, v in given.items() if v is not None}, **options)


_AUTOMATIC = ("gpt-", "openai/", "azure/", "deepseek/")
"""Models whose servers cache prefixes of prompts automatically."""
_KEYS = ("API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "SECRET_ACCESS_KEY")


class LiteLLMWire:
    """Requests by `litellm.acompletion`."""

    def __init__(self, litellm: Any, fixed: Mapping[str, Any]) -> None:
        self._litellm, self._fixed = litellm, fixed

    @property
    def secrets(self) -> list[str]:
        """Return the secrets of its options, and those of the environment, where LiteLLM looks for keys itself."""
        given = {**os.environ, **{k: v for k, v in self._fixed.items() if isinstance(v, str)}}
        keys = [value for name, value in given.items() if name.upper().endswith(_KEYS)]
        headers = self._fixed.get("extra_headers") or {}
        account = str(self._fixed.get("vertex_credentials") or "")
        keys += [account] if account.startswith("{") else []  # otherwise it is a path
        return [*keys, *secrets_of_headers(headers), *(s for k in ("base_url", "api_base") for s in secrets_of_url(str(self._fixed.get(k) or "")))]

    async def post(self, request: HttpRequest) -> Received:
        answer = await self._sent(request)
        return Received(_plain(answer), _headers(answer))

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        try:
            answer = await self._sent(request)
            headers = _headers(answer)
            async for chunk in answer:
                body = _plain(chunk)
                said = getattr(answer, "received_finish_reason", "said") or getattr(answer, "intermittent_finish_reason", None)
                if not said and any(choice.get("finish_reason") for choice in body.get("choices") or ()):
                    raise Fault("the stream ended before the answer did")  # LiteLLM's last chunk says "stop" all the same
                yield Received(body, headers)
        except Fault:
            raise
        except Exception as error:
            raise _fault(error) from None

    async def _sent(self, request: HttpRequest) -> Any:
        more = {"extra_headers": {**(self._fixed.get("extra_headers") or {}), **request.headers}} if request.headers else {}
        try:
            return await self._litellm.acompletion(**{**request.body, **self._fixed, **more})
        except Exception as error:  # LiteLLM raises errors of many types, not all its own
            raise _fault(error) from None

    async def close(self) -> None:
        close = getattr(self._litellm, "close_litellm_async_clients", None)
        if close is not None:
            await close()


def _headers(answer: Any) -> dict[str, str]:
    """Return the provider's headers, which LiteLLM keeps beside an answer under names of its own."""
    hidden: Any = getattr(answer, "_hidden_params", None)
    found: Any = hidden.get("additional_headers") if isinstance(hidden, dict) else None
    return {name.removeprefix("llm_provider-"): value for name, value in lowered(found or {}).items()}


def _plain(answer: Any) -> Body:
    body = answer if isinstance(answer, dict) else answer.model_dump()
    if not isinstance(body, dict):
        raise Malformed("the answer is not a JSON object")
    return body


def _fault(error: Exception) -> Fault:
    """Translate an error of LiteLLM's or of a client below it."""
    if "No module named" in str(error):  # LiteLLM reports it as a failed connection
        return Fault(f"{error}: LiteLLM lacks a package, for tools it is mcp: {install_line('litellm')}", status=400)
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    silent = isinstance(error, TimeoutError) or any(word in f"{type(error).__name__} {error}" for word in ("Timeout", "APIConnection", "Connection error"))
    known = isinstance(status, int) and not silent  # LiteLLM also gives failed connections a status
    if not known and not isinstance(error, (OSError, *http_errors())) and status is None:
        return Fault(f"{type(error).__name__}: {error}", status=400)  # an error in the request, not in the connection
    given = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None)  # the second are mostly LiteLLM's own, and empty
    headers = lowered(given or {})
    return Fault(
        f"{type(error).__name__}: {error}",
        status=status if known else None,
        retry_after=retry_after(headers),
        param=getattr(error, "param", None),
        code=_code(error),
        headers=headers,
    )


def _code(error: Exception) -> str | None:
    """Return the provider's error code; LiteLLM has a class of its own for filters."""
    if type(error).__name__ == "ContentPolicyViolationError":
        return "content_filter"
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else None
