"""A stand-in of OpenAI's API (completions, chat completions, decisions): the protocol as its reference has it, answers of a text model.

Tokens are bytes. Every answer reports its usage. What the real API refuses is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmc.backend.mock import Mock
from lmc.backend.results import Output
from lmc.chat import ChatTemplate, conversation
from lmc.segments import Constraint, Gen, SamplingParams, Select, Text, plain
from lmc.tools import call_line, call_of
from tests.api.http import Answer, Body, Server
from tests.api.text_model import TextModel

_CHAT = {
    "model", "messages", "max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "n", "seed", "logprobs", "top_logprobs",
    "frequency_penalty", "presence_penalty", "logit_bias", "response_format", "stream", "stream_options", "prompt_cache_key", "tools", "tool_choice",
}  # fmt: skip
_RESPONSES = {
    "model",
    "input",
    "max_output_tokens",
    "temperature",
    "top_p",
    "stream",
    "store",
    "text",
    "tools",
    "prompt_cache_key",
    "reasoning",
    "include",
    "tool_choice",
    "parallel_tool_calls",
    "service_tier",
}
_TEXT = {
    "model", "prompt", "max_tokens", "stop", "temperature", "top_p", "n", "seed", "logprobs", "echo", "frequency_penalty",
    "presence_penalty", "logit_bias", "stream", "stream_options",
}  # fmt: skip
VLLM = {
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "structured_outputs",
    "continue_final_message",
    "add_generation_prompt",
}


class OpenAIModel:
    """The requests of the API. `refuses`: parameters that this model does not take; `extra`: what it takes in addition; `reasons`: whether it
    thinks before it answers, which the Responses API gives encrypted and wants to see again as it was."""

    def __init__(
        self,
        model: TextModel,
        *,
        name: str = "m",
        refuses: Sequence[str] | Mapping[str, Answer] = (),
        extra: set[str] = VLLM,
        continues: bool = True,
        only_responses: bool = False,
        reasons: bool = False,
        template: ChatTemplate | None = None,
    ) -> None:
        self.model, self.name, self.refuses, self.extra, self.continues = model, name, refuses, extra, continues
        self.only_responses, self.reasons, self.template = only_responses, reasons, template
        self._thought: dict[str, str] = {}  # encrypted reasoning, by the id of the item that follows it
        self._mock = Mock(answers=model.answer)

    def handle(self, path: str, body: Body) -> Answer:
        rules = {"/v1/chat/completions": (_CHAT, self._chat), "/v1/completions": (_TEXT, self._text)}
        if path == "/v1/decisions":
            return self._decide(body)
        if path == "/v1/responses":
            return self._responses(body)
        if self.only_responses and path == "/v1/chat/completions":
            return refusal(404, "This model is only supported in v1/responses and not in v1/chat/completions.", "model")
        if path not in rules:
            return refusal(404, f"no {path}")
        known, handle = rules[path]
        for key in body:
            if key in self.refuses:
                if isinstance(self.refuses, Mapping):
                    return self.refuses[key]
                return refusal(400, f"Unsupported parameter: '{key}' is not supported with this model.", key, "unsupported_parameter")
            if key not in known | self.extra:
                return refusal(400, f"Unrecognized request argument supplied: {key}")
        if self.name == "*":
            return handle(body)
        if body.get("model") != self.name:
            return refusal(404, f"The model '{body.get('model')}' does not exist", "model", "model_not_found")
        if len(body.get("stop") or ()) > 4:
            return refusal(400, "'stop' takes at most 4", "stop")
        form = body.get("response_format", {}).get("json_schema") or (body.get("text") or {}).get("format")
        if form and (form["schema"].get("type") != "object" or "anyOf" in form["schema"]):
            kind = form["schema"].get("type")
            return refusal(
                400,
                f"Invalid schema for response_format '{form['name']}': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.",
                "response_format",
            )
        return handle(body)

    def _named(self, body: Body) -> str:
        return str(body["model"]) if self.name == "*" else self.name

    # the two forms of asking

    def _chat(self, body: Body) -> Answer:
        prompt = self._written(body)
        output = self._answer(prompt, body)
        chars = [list(text) for text in output.texts]

        def logprobs(i: int) -> Body | None:
            before = prompt
            found = []
            for char in chars[i]:
                found.append({"token": char, "bytes": list(char.encode()), "logprob": self.model.logprob(before, char), "top_logprobs": []})
                before += char
            return {"content": found} if body.get("logprobs") else None

        wrong = _out_of_place(body["messages"]) or ("When using `tool_choice`, `tools` must be set." if "tool_choice" in body and not body.get("tools") else "")
        if wrong:
            return refusal(400, wrong, "messages")
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": text or None if (calls := _calls(output, i)) else text, **calls},
                "finish_reason": _finish(output, i),
                "logprobs": logprobs(i),
            }
            for i, text in enumerate(output.texts)
        ]
        whole = {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1,
            "model": self._named(body),
            "choices": choices,
            "usage": _usage(prompt, output.texts),
        }
        if not body.get("stream"):
            return Answer(whole)
        return Answer({}, events=self._events(body, whole, lambda text: {"delta": {"content": text}}, _called_in_pieces(choices[0]["message"])))

    def _written(self, body: Body) -> str:
        """The prompt: contents alone, or by the template of a server that has one, results as lmc writes them."""
        if self.template is None:
            return "".join(_content(m["content"]) for m in body["messages"])
        calls = {c["id"]: c for m in body["messages"] for c in m.get("tool_calls") or ()}
        turns = [(m["role"], _line(calls[m["tool_call_id"]]) + m["content"] if m["role"] == "tool" else _content(m["content"])) for m in body["messages"]]
        whole = plain(conversation(self.template, turns))
        if not body.get("continue_final_message"):
            return whole
        return whole.removesuffix(plain((*self.template.end("assistant"), *self.template.begin("assistant", "assistant"))))

    def _responses(self, body: Body) -> Answer:
        """The same as items: messages in, an output of messages and calls."""
        for key in body:
            if key not in _RESPONSES:
                return refusal(400, f"Unknown parameter: '{key}'.", key, "unknown_parameter")
        if body.get("include") and not self.reasons:
            return refusal(400, "Encrypted content is not supported with this model.", "include")
        if wrong := self._misplaced(body["input"]):
            return refusal(400, wrong, "input")
        prompt = "".join(_content(item.get("content", item.get("output", ""))) for item in body["input"] if item.get("type") != "reasoning")
        calls = {item["call_id"] for item in body["input"] if item.get("type") == "function_call"}
        if {item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"} != calls:
            return refusal(400, "No tool output found for function call.", "input")
        form = (body.get("text") or {}).get("format")
        asked: Body = {**body, "max_tokens": body["max_output_tokens"], "tools": [{"function": tool} for tool in body.get("tools") or ()]}
        output = self._answer(prompt, asked | ({"response_format": {"type": "json_schema", "json_schema": form}} if form else {}))
        finish = _finish(output, 0)
        items: list[Body] = []
        if finish == "tool_calls":
            items += [{"type": "function_call", "id": f"fc_{c['id']}", "call_id": c["id"], **c["function"]} for c in _calls(output, 0)["tool_calls"]]
        else:
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{len(self._thought)}_{len(prompt)}",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": output.text, "annotations": []}],
                }
            )
        items.insert(0, self._reasoning(body, prompt, items[0]["id"]))
        usage = _usage(prompt, output.texts)
        ended: Body = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}} if finish == "length" else {"status": "completed"}
        whole = {"id": "resp_1", "object": "response", "model": self._named(body), "output": items, **ended}
        whole["usage"] = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"], "input_tokens_details": {"cached_tokens": 0}}
        if not body.get("stream"):
            return Answer(whole)
        deltas = [{"type": "response.output_text.delta", "delta": output.text[i : i + 4]} for i in range(0, len(output.text), 4)]
        last = {"type": f"response.{ended['status']}", "response": whole}
        called = [event for i, item in enumerate(items) if item["type"] == "function_call" for event in _arguments(i, item)]
        return Answer({}, events=[{"type": "response.created", "response": {"id": "resp_1"}}, *deltas, *called, last], sentinel=None)

    def _reasoning(self, body: Body, prompt: str, following: str) -> Body:
        if not self.reasons:
            return {"type": "reasoning", "id": "rs_1", "summary": []}
        self._thought[following] = f"sealed {len(self._thought)}"
        said = [{"type": "summary_text", "text": f"{len(prompt)} bytes to think about."}]
        sealed = {"encrypted_content": self._thought[following]} if "reasoning.encrypted_content" in body.get("include", ()) else {}
        return {"type": "reasoning", "id": f"rs_{following}", "summary": said, **sealed}

    def _misplaced(self, items: Sequence[Body]) -> str:
        """Return the API's refusal of reasoning that is not what it gave, or not with what it gave it for, and of items that lack theirs."""
        for item, following in zip(items, [*items[1:], {}]):
            if item.get("type") == "reasoning" and (not item.get("encrypted_content") or item.get("status") == "stored"):
                return f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
            if item.get("type") == "reasoning" and item["encrypted_content"] != self._thought.get(following.get("id", "")):
                return f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
        for item, before in zip(items, [{}, *items]):
            if item.get("id") in self._thought and before.get("type") != "reasoning":
                return f"Item '{item['id']}' was provided without its required 'reasoning' item."
        return ""

    def _text(self, body: Body) -> Answer:
        prompts: list[str] = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        choices: list[Body] = []
        prompt_tokens = completion = 0
        for prompt in prompts:
            if body.get("echo") and body.get("max_tokens") == 0:
                texts, ends = (prompt,), ["length"]
            else:
                output = self._answer(prompt, body)
                texts, ends = output.texts, [_finish(output, i) for i in range(len(output.texts))]
                completion += sum(len(t.encode()) for t in texts)
            prompt_tokens += len(prompt.encode())
            for text, end in zip(texts, ends, strict=True):
                before = "" if body.get("echo") else prompt
                row: list[float | None] = [*self.model.row(before, text)]
                if body.get("echo"):
                    row[:1] = [None]
                listed = {"tokens": list(text), "token_logprobs": row, "top_logprobs": None, "text_offset": list(range(len(text)))}
                choices.append({"index": len(choices), "text": text, "finish_reason": end, "logprobs": listed if body.get("logprobs") is not None else None})
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion, "total_tokens": prompt_tokens + completion}
        whole = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self._named(body), "choices": choices, "usage": usage}
        if not body.get("stream"):
            return Answer(whole)
        return Answer({}, events=self._events(body, whole, lambda text: {"text": text}))

    def _events(self, body: Body, whole: Body, piece: Any, called: Sequence[Body] = ()) -> list[Body]:
        (choice,) = whole["choices"]
        text: str = choice["message"]["content"] or "" if "message" in choice else choice["text"]
        head = {k: whole[k] for k in ("id", "model", "created")}
        cuts = [text[i : i + 4] for i in range(0, len(text), 4)]
        events = [{**head, "choices": [{"index": 0, **piece(t), "finish_reason": None}]} for t in cuts]
        events += [{**head, "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]} for call in called]
        events.append({**head, "choices": [{"index": 0, **piece(""), "finish_reason": choice["finish_reason"]}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**head, "choices": [], "usage": whole["usage"]})
        return events

    def _answer(self, prompt: str, body: Body) -> Output:
        stop = body.get("stop") or ()
        params = SamplingParams(
            max_new_tokens=body.get("max_tokens", body.get("max_completion_tokens", 16)),
            n=body.get("n", 1),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            temperature=body.get("temperature", 1.0),
            ignore_eos=body.get("ignore_eos", False),
        )
        tools = [tool["function"] for tool in body.get("tools") or ()]
        ask = Gen(params, _constraint(body), body.get("seed", 0), tools=json.dumps(tools) if tools else "")
        return self._mock.submit(None, (Text((prompt,)), ask)).results[0].output()

    def _decide(self, body: Body) -> Answer:
        given = body["input"]
        prompt = given if isinstance(given, str) else "".join(_content(m["content"]) for m in given)
        answers = []
        for question in body["questions"]:
            values = [c["value"] for c in question["choices"]]
            chosen = self.model.answer(prompt, Select(tuple(values)))
            probabilities = [{"value": v, "probability": 0.9 if v == chosen else 0.1 / max(1, len(values) - 1)} for v in values]
            answers.append({"type": "choice", "name": question.get("name"), "choice": chosen, "confidence": 0.9, "probabilities": probabilities})
        usage = {"input_tokens": len(prompt.encode()), "output_tokens": 1, "total_tokens": len(prompt.encode()) + 1}
        return Answer({"model": self._named(body), "answers": answers, "usage": usage})


def _constraint(body: Body) -> Constraint | None:
    wanted = body.get("response_format")
    if wanted is not None and wanted["type"] == "json_schema":
        return Constraint("json_schema", json.dumps(wanted["json_schema"]["schema"]))
    structured = body.get("structured_outputs") or {}
    if regex := structured.get("regex", body.get("regex")):
        return Constraint("regex", regex)
    if "json" in structured:
        return Constraint("json_schema", json.dumps(structured["json"]))
    return None


def _line(call: Body) -> str:
    return call_line(call_of(call["id"], call["function"]["name"], call["function"]["arguments"]))


def _content(content: Any) -> str:
    return content or "" if not isinstance(content, list) else "".join(part.get("text", "") for part in content)


def _calls(output: Output, i: int) -> Body:
    calls = output.metas[i].get("tool_calls")
    made = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}} for c in calls or ()]
    return {"tool_calls": made} if made else {}


def _called_in_pieces(message: Body) -> list[Body]:
    """A message's calls as a stream has them: the name first, then the arguments bit by bit."""
    found: list[Body] = []
    for i, call in enumerate(message.get("tool_calls") or ()):
        said = call["function"]
        found.append({"index": i, "id": call["id"], "type": "function", "function": {"name": said["name"], "arguments": ""}})
        found += [{"index": i, "function": {"arguments": said["arguments"][at : at + 5]}} for at in range(0, len(said["arguments"]), 5)]
    return found


def _arguments(index: int, item: Body) -> list[Body]:
    """The events of a call in a stream of the Responses API: the item without its arguments, these bit by bit, and all of it."""
    of = {"output_index": index, "item_id": item["id"]}
    said = item["arguments"]
    pieces = [{"type": "response.function_call_arguments.delta", **of, "delta": said[at : at + 5]} for at in range(0, len(said), 5)]
    return [
        {"type": "response.output_item.added", **of, "item": {**item, "arguments": ""}}, *pieces,
        {"type": "response.function_call_arguments.done", **of, "arguments": said}, {"type": "response.output_item.done", **of, "item": item},
    ]  # fmt: skip


def _out_of_place(messages: Sequence[Body]) -> str:
    """Return the API's refusal of calls without results, and of results without calls."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.remove(message["tool_call_id"])
        elif waiting:
            break
        waiting += [call["id"] for call in message.get("tool_calls") or ()]
    return "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'." if waiting else ""


def _finish(output: Output, i: int) -> str:
    if output.metas[i].get("tool_calls"):
        return "tool_calls"
    return "length" if output.metas[i]["finish_reason"]["type"] == "length" else "stop"


def _usage(prompt: str, texts: Sequence[str]) -> Body:
    completion = sum(len(t.encode()) for t in texts)
    return {"prompt_tokens": len(prompt.encode()), "completion_tokens": completion, "total_tokens": len(prompt.encode()) + completion}


def refusal(status: int, message: str, param: str | None = None, code: str | None = None) -> Answer:
    return Answer({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}, status)


def serve(model: TextModel, **options: Any) -> Server:
    """A server of this model; `plant` and the options of `OpenAIModel`."""
    plant = {"plant": options.pop("plant")} if "plant" in options else {}
    return Server(OpenAIModel(model, **options).handle, **plant)
