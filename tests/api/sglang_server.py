"""A stand-in of an SGLang server's native protocol: `/generate`, `/model_info`; tokens of a small vocabulary with merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lmc.backend.mock import Mock
from lmc.chat import get_chat_template
from lmc.prompt import Constraint, Gen, SamplingParams, Text
from tests.api.http import Answer, Body, Server
from tests.api.openai_server import VLLM, OpenAIModel
from tests.api.text_model import TextModel
from tests.backend.engine_fakes import EOS, FakeWords

WORDS = FakeWords()
_SAMPLING = {
    "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "n", "regex", "json_schema", "ebnf", "structural_tag", "logit_bias", "sampling_seed",
}  # fmt: skip
_SGLANG_CHAT = {"top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos", "stop_regex", "regex", "ebnf", "continue_final_message", "add_generation_prompt"}
_VLLM_CHAT = VLLM | {"return_token_ids"}
_REQUEST = {
    "text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "stream",
}  # fmt: skip


def answer(model: TextModel, mock: Mock, prompt: str, params: Body) -> list[tuple[str, Body]]:
    """The n texts of a prompt, each with how it ended."""
    stop = params.get("stop") or ()
    wanted = SamplingParams(
        max_new_tokens=params.get("max_new_tokens", 128),
        n=params.get("n", 1),
        stop=tuple(stop),
        stop_regex=tuple(params.get("stop_regex") or ()),
        temperature=params.get("temperature", 1.0),
        ignore_eos=params.get("ignore_eos", False),
    )
    kind = next((k for k in ("regex", "json_schema") if k in params), None)
    constraint = Constraint(kind, params[kind]) if kind else None  # type: ignore[arg-type]
    output = mock.submit(None, (Text((prompt,)), Gen(wanted, constraint, params.get("sampling_seed", 0)))).results[0].output()
    return [(text, dict(meta["finish_reason"])) for text, meta in zip(output.texts, output.metas)]


def prompt_ids(prompt: str | Sequence[int]) -> list[int]:
    """As the server's tokenizer reads a prompt: spelled special tokens in text are tokens."""
    return WORDS.encode(WORDS.split_specials(prompt)) if isinstance(prompt, str) else list(prompt)


def shown(ids: Sequence[int]) -> str:
    """Ids as text, specials spelled; the one that begins an empty prompt says nothing."""
    return "" if list(ids) == [WORDS.bos_token_id] else WORDS.decode(ids, with_specials=True)


def scored(model: TextModel, ids: Sequence[int]) -> list[float]:
    """A log-probability of each token: of its first character, so that how a text is cut does not matter much."""
    found, before = [], ""
    for token in ids:
        text = shown([token])
        found.append(model.logprob(before, text))
        before += text
    return found


class SGLangModel:
    """The requests of the server. `takes_ids`: a router may not; `texts`: what each prompt was, as text with specials spelled."""

    def __init__(self, model: TextModel, *, takes_ids: bool = True, path: str = "small/qwen-model") -> None:
        self.model, self.takes_ids = model, takes_ids
        self._mock = Mock(answers=model.answer)
        self.get: dict[str, Body] = {"/model_info": {"model_path": path, "tokenizer_path": path, "is_generation": True}}
        self.texts: list[str] = []
        self._chat = OpenAIModel(model, name="*", extra=_SGLANG_CHAT, template=get_chat_template("chatml"))

    def handle(self, path: str, body: Body) -> Answer:
        if path == "/v1/chat/completions":
            return self._chat.handle(path, body)
        if path != "/generate":
            return Answer({"error": {"message": f"no {path}"}}, 404)
        if unknown := body.keys() - _REQUEST or (body.get("sampling_params") or {}).keys() - _SAMPLING:
            return Answer({"error": {"message": f"unknown: {sorted(unknown)}"}}, 400)
        if "input_ids" in body and not self.takes_ids:
            return Answer({"error": {"message": "missing field `text`"}}, 422)
        given = body.get("text", body.get("input_ids"))
        batch = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        items = [item for one in (given if batch else [given]) for item in self._one(prompt_ids(one), body)]
        if body.get("stream"):
            return Answer({}, events=self._events(items[0]))
        return Answer(items if batch or len(items) > 1 else items[0])  # type: ignore[arg-type]

    def _one(self, ids: list[int], body: Body) -> list[Body]:
        params = body.get("sampling_params") or {}
        self.texts.append(shown(ids))
        if params.get("max_new_tokens") == 0:
            texts: list[tuple[str, Body]] = [("", {"type": "length", "length": 0})]
        else:
            texts = answer(self.model, self._mock, shown(ids), params)
        return [self._item(ids, text, finish, body) for text, finish in texts]

    def _item(self, ids: list[int], text: str, finish: Body, body: Body) -> Body:
        out = WORDS.encode((text,))
        ended = [EOS] if finish["type"] == "stop" and finish.get("matched") is None else []
        if finish.get("matched") and text:
            ended = WORDS.encode((finish["matched"],))
        meta: Body = {"id": "sg-1", "finish_reason": finish, "prompt_tokens": len(ids), "completion_tokens": len(out), "cached_tokens": 0}
        if body.get("return_logprob"):
            every = scored(self.model, [*ids, *out])
            start = body.get("logprob_start_len", -1)
            show = lambda t: shown([t]) if body.get("return_text_in_logprobs") else None
            rows = [[lp, token, show(token)] for lp, token in zip(every, [*ids, *out])]
            meta["input_token_logprobs"] = [[None, *row[1:]] if i == 0 else row for i, row in enumerate(rows[start : len(ids)])] if start >= 0 else []
            meta["output_token_logprobs"] = rows[len(ids) :]
        return {"text": text, "output_ids": [*out, *ended], "meta_info": meta}

    def _events(self, item: Body) -> list[Body]:
        text: str = item["text"]
        growing = [{"text": text[:i], "meta_info": {**item["meta_info"], "finish_reason": None}} for i in range(4, len(text), 4)]
        return [*growing, item]


class VLLMModel:
    """vLLM's completions: ids in and out, constraints, log-probabilities of prompts."""

    _KNOWN = {
        "model", "prompt", "max_tokens", "stop", "temperature", "top_p", "n", "seed", "logprobs", "echo", "frequency_penalty", "presence_penalty",
        "logit_bias", "stream", "stream_options", "top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos", "structured_outputs",
        "prompt_logprobs", "return_token_ids",
    }  # fmt: skip

    def __init__(self, model: TextModel, *, takes_ids: bool = True) -> None:
        self.model, self.takes_ids = model, takes_ids
        self._mock = Mock(answers=model.answer)
        self.get: dict[str, Body] = {"/v1/models": {"object": "list", "data": [{"id": "m", "root": "small/model", "max_model_len": 4096}]}}
        self.texts: list[str] = []
        self._chat = OpenAIModel(model, extra=_VLLM_CHAT, template=get_chat_template("chatml"))

    def handle(self, path: str, body: Body) -> Answer:
        if body.get("n", 1) > 1 and body.get("temperature") == 0:
            return Answer({"error": {"message": f"n must be 1 when using greedy sampling, got {body['n']}.", "type": "BadRequestError", "param": None, "code": 400}}, 400)
        if path == "/v1/chat/completions":
            return self._chat.handle(path, body)
        if path != "/v1/completions":
            return Answer({"error": {"message": f"no {path}"}}, 404)
        if unknown := body.keys() - self._KNOWN:
            return Answer({"error": {"message": f"unknown: {sorted(unknown)}"}}, 400)
        given = body["prompt"]
        ids = isinstance(given, list) and not isinstance(given[0], str)
        if ids and not self.takes_ids:
            return Answer({"error": {"message": "prompt: expected a string"}}, 422)
        batch = isinstance(given, list) and not isinstance(given[0], int)
        params: Body = {k: v for k, v in body.items() if k in ("stop", "n", "temperature", "ignore_eos")} | {"max_new_tokens": body.get("max_tokens", 16), "sampling_seed": body.get("seed", 0)}
        structured = body.get("structured_outputs") or {}
        params |= {"regex": structured["regex"]} if "regex" in structured else {"json_schema": json.dumps(structured["json"])} if "json" in structured else {}
        choices: list[Body] = []
        total = completion = 0
        for one in given if batch else [given]:
            tokens = prompt_ids(one)
            self.texts.append(shown(tokens))
            total += len(tokens)
            if body.get("echo") and body.get("max_tokens") == 0:
                values: list[Any] = [None, *scored(self.model, tokens)[1:]]
                listed = {"tokens": [shown([t]) for t in tokens], "token_logprobs": values, "top_logprobs": None, "text_offset": []}
                choices.append({"index": len(choices), "text": one, "finish_reason": "length", "logprobs": listed})
                continue
            for text, finish in answer(self.model, self._mock, shown(tokens), params):
                out = WORDS.encode((text,))
                completion += len(out)
                choice: Body = {"index": len(choices), "text": text, "finish_reason": finish["type"], "stop_reason": finish.get("matched"), "logprobs": None}
                if body.get("return_token_ids"):
                    choice["token_ids"] = [*out, *([EOS] if finish["type"] == "stop" and finish.get("matched") is None else [])]
                if body.get("logprobs") is not None:
                    values = scored(self.model, [*tokens, *out])[len(tokens) :]
                    choice["logprobs"] = {"tokens": [shown([t]) for t in out], "token_logprobs": values, "top_logprobs": None, "text_offset": []}
                if body.get("prompt_logprobs") is not None:
                    rows: list[Any] = [{str(t): {"logprob": lp, "rank": 1, "decoded_token": shown([t])}} for t, lp in zip(tokens, scored(self.model, tokens))]
                    choice["prompt_logprobs"] = [None, *rows[1:]]
                choices.append(choice)
        usage = {"prompt_tokens": total, "completion_tokens": completion, "total_tokens": total + completion}
        whole = {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": choices, "usage": usage}
        if not body.get("stream"):
            return Answer(whole)
        text = choices[0]["text"]
        events = [{"id": "c", "model": "m", "choices": [{"index": 0, "text": text[i : i + 4], "finish_reason": None}]} for i in range(0, len(text), 4)]
        events.append({"id": "c", "model": "m", "choices": [{**choices[0], "text": ""}]})
        return Answer({}, events=[*events, {"id": "c", "model": "m", "choices": [], "usage": usage}])


def serve(stand_in: SGLangModel | VLLMModel, **options: Any) -> Server:
    return Server(stand_in.handle, get=stand_in.get, **options)


class TokenModel(TextModel):
    """The same model, with choices scored by the tokens of the small vocabulary, as an engine scores them."""

    def rows(self, prompt: str, choices: Sequence[str]) -> list[list[float]]:
        before, found = prompt_ids(prompt), []
        for choice in choices:
            ids = prompt_ids(prompt + choice)
            same = 0
            while same < min(len(before), len(ids) - 1) and before[same] == ids[same]:
                same += 1
            found.append(scored(self, ids)[same:])
        return found
