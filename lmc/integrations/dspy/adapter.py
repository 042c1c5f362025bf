"""`lmc.dspy.Adapter`: DSPy's chat format as a template whose holes are constrained, so that every answer parses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
from dspy import lm15

from lmc.errors import ConstraintError
from lmc.integrations.dspy.engine import OnBackend, several
from lmc.integrations.dspy.fields import fields_of
from lmc.integrations.dspy.requests import EXTENSION


class ChatAdapter(dspy.ChatAdapter):  # DSPy's stream listeners know a format by the name of its class
    """As dspy.ChatAdapter, whose prompts and format it keeps, for an `lmc.dspy.LM`.

    Headers are not generated but given; each output field is an answer of its own, free text up to the next header, or
    text of a language whose members all are values of the field's type. `max_tokens` bounds each field; a value that is
    cut off is completed in the shortest way. So parsing cannot fail, and nothing has to be retried.

    Arguments of tools (dspy.ReAct's `next_tool_args`, dspy.ToolCalls) are of the schema of the tool that is called.

    A type without a JSON schema, or with one that cannot be enforced, raises ConstraintError before the model is asked.
    Validators of pydantic models that a JSON schema does not express may still refuse a value.
    """

    def __init__(self, callbacks: list[Any] | None = None) -> None:
        super().__init__(callbacks=callbacks, use_json_adapter_fallback=False)

    def __call__(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> Any:
        processed, request, calls = self._asked(lm, lm_kwargs, signature, demos, inputs)
        with several(len(calls)):
            responses = [lm(request, **call) for call in calls]
        return self._call_postprocess(processed, signature, [_output(r, request) for r in responses], lm, lm_kwargs)

    async def acall(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> Any:
        processed, request, calls = self._asked(lm, lm_kwargs, signature, demos, inputs)
        with several(len(calls)):
            responses = [await lm.acall(request, **call) for call in calls]
        return self._call_postprocess(processed, signature, [_output(r, request) for r in responses], lm, lm_kwargs)

    def _asked(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> tuple[Any, Any, list[dict[str, Any]]]:
        """Return the signature to fill, the request, and the options of each of its n calls."""
        if not isinstance(getattr(lm, "engine", None), OnBackend):
            raise TypeError(f"lmc.dspy.Adapter fills templates on lmc's runtime: use it with lmc.dspy.LM, not {type(lm).__name__}")
        lm_kwargs.pop("response_format", None)
        processed = self._call_preprocess(lm, lm_kwargs, signature, inputs)
        given = {**lm.kwargs, **lm_kwargs}
        n, rollout, cache = given.pop("n", None) or 1, given.pop("rollout_id", None), given.pop("cache", None)
        body = {name: value for name, value in given.items() if value is not None and name != "prompt_cache"}
        try:
            fields = [field.as_json() for field in fields_of(processed, _tools(inputs))]
        except ConstraintError as error:
            raise ConstraintError(f"{signature.__name__}: {error.message}") from None
        request = lm15.request_from_openai_chat({"model": lm.model, "messages": self.format(processed, demos, inputs), **body})
        extensions = {**(request.config.extensions or {}), EXTENSION: fields}
        request = replace(request, config=replace(request.config, extensions=extensions))
        options = {} if cache is None else {"cache": cache}
        ids = [rollout] if n == 1 else [f"{rollout or 0}.{i}" for i in range(n)]  # n answers are n entries of DSPy's cache
        return processed, request, [{**options, **({} if each is None else {"rollout_id": each})} for each in ids]


def _tools(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the tools that the answer may call: of the inputs, or of the calling module (dspy.ReAct)."""
    given = [tool for value in inputs.values() for tool in (value if isinstance(value, list) else [value]) if isinstance(tool, dspy.Tool)]
    if given:
        return {tool.name: tool for tool in given}
    for module in reversed(dspy.settings.caller_modules or []):
        tools = getattr(module, "tools", None)
        if isinstance(tools, dict) and tools and all(isinstance(tool, dspy.Tool) for tool in tools.values()):
            return tools
    return {}


def _output(response: Any, request: Any) -> Any:
    return {"text": response.text, "logprobs": response.logprobs} if request.config.logprobs is not None else response.text


Adapter = ChatAdapter
