"""A stand-in of an SGLang server's native protocol: `/generate`, `/model_info`; tokens of a small vocabulary with merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lmc.backend.mock import Mock
from lmc.chat import get_chat_template
from lmc.segments import Constraint, Gen, SamplingParams, Text
from tests.api.http import Answer, Body, Server
from tests.api.openai_server import VLLM, OpenAIModel
from tests.api.text_model import TextModel
from tests.backend.engine_fakes import EOS, FakeWords

WORDS = FakeWords()
_SAMPLING = {
    "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "n", "regex", "json_schema", "ebnf", "structural_tag", "logit_bias", "sampling_seed", "stream_interval",
    "skip_special_tokens", "spaces_between_special_tokens",
}  # fmt: skip
_SGLANG_CHAT = {
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "stop_regex",
    "regex",
    "ebnf",
    "continue_final_message",
    "add_generation_prompt",
}
_VLLM_CHAT = VLLM | {"return_token_ids"}
_REQUEST = {
    "text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "stream",
    "token_ids_logprob", "image_data",
}  # fmt: skip


def answer(model: TextModel, mock: Mock, prompt: str, params: Body) -> list[tuple[str, Body]]:
    """The n texts of a prompt, each with how it ended."""
    stop = params.get("stop") or ()
    tokens = {shown([token]): token for token in params.get("stop_token_ids") or ()}
    wanted = SamplingParams(
        max_new_tokens=params.get("max_new_tokens", 128),
        n=params.get("n", 1),
        stop=((stop,) if isinstance(stop, str) else tuple(stop)) + tuple(tokens),
        stop_regex=tuple(params.get("stop_regex") or ()),
        temperature=params.get("temperature", 1.0),
        ignore_eos=params.get("ignore_eos", False),
    )
    kind = next((k for k in ("regex", "json_schema") if params.get(k) is not None), None)
    constraint = Constraint(kind, params[kind]) if kind else None  # type: ignore[arg-type]
    output = mock.submit(None, (Text((prompt,)), Gen(wanted, constraint, params.get("sampling_seed", 0)))).results[0].output()
    ends = [dict(meta["finish_reason"]) for meta in output.metas]
    return [(text, {**end, "matched": tokens.get(end["matched"], end["matched"])} if end["type"] == "stop" else end) for text, end in zip(output.texts, ends)]


def prompt_ids(prompt: str | Sequence[int]) -> list[int]:
    """As the server's tokenizer reads a prompt: spelled special tokens in text are tokens."""
    return WORDS.encode(WORDS.split_specials(prompt)) if isinstance(prompt, str) else list(prompt)


def shown(ids: Sequence[int]) -> str:
    """Ids as text, specials spelled; the one that begins an empty prompt says nothing."""
    return "" if list(ids) == [WORDS.bos_token_id] else WORDS.decode(ids, with_specials=True)


def scored(model: TextModel, ids: Sequence[int]) -> list[float]:
    """A log-probability of each token behind those before it."""
    return model.row("", [shown([token]) for token in ids])


class PrefixCache:
    """How many tokens of prompts were read before, by blocks of 16."""

    def __init__(self, on: bool) -> None:
        self.on, self._read = on, set[tuple[int, ...]]()

    def cached(self, ids: Sequence[int]) -> int:
        if not self.on:
            return 0
        beginnings = [tuple(ids[:n]) for n in range(16, len(ids) + 1, 16)]
        known = next((i for i, b in enumerate(beginnings) if b not in self._read), len(beginnings))
        self._read |= {*beginnings}
        return known * 16


class SGLangModel:
    """The requests of the server. `takes_ids`: a router may not; `lacks`: parameters that it does not know; `texts`: what each prompt
    was, as text with specials spelled; `scored`: prompt tokens whose log-probabilities it gave."""

    def __init__(
        self, model: TextModel, *, takes_ids: bool = True, path: str = "small/qwen-model", lacks: frozenset[str] = frozenset(), caches: bool = False
    ) -> None:
        self._cache = PrefixCache(caches)
        self.model, self.takes_ids, self.lacks, self.scored = model, takes_ids, lacks, 0
        self._mock = Mock(answers=model.answer)
        info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        self.get: dict[str, Body] = {"/model_info": info, "/get_model_info": info}
        self.texts: list[str] = []
        self.seen: list[tuple[str, list[str]]] = []  # prompts with pictures, and those
        self._chat = OpenAIModel(model, name="*", extra=_SGLANG_CHAT, template=get_chat_template("chatml"))

    def handle(self, path: str, body: Body) -> Answer:
        if path == "/v1/chat/completions":
            return self._chat.handle(path, body)
        if path == "/flush_cache":
            self._cache = PrefixCache(self._cache.on)
            return Answer({}, counted=False)
        if path != "/generate":
            return Answer({"error": {"message": f"no {path}"}}, 404)
        given = body.get("text", body.get("input_ids"))
        batch = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        pictures = body.get("image_data")
        if not batch and pictures is not None and (body.get("sampling_params") or {}).get("n", 1) > 1:  # it makes a list of them
            if len(pictures) != 1:
                return Answer({"error": {"message": "The length of image_data should be equal to the batch size."}}, 400)
            body = {**body, "image_data": pictures[0] if isinstance(pictures[0], list) else pictures}
        bodies = [_member(body, i) for i in range(len(given))] if batch else [body]
        if unknown := body.keys() - _REQUEST or {name for one in bodies for name in one.get("sampling_params") or {}} - (_SAMPLING - self.lacks):
            return Answer({"error": {"message": f"unknown: {sorted(unknown)}"}}, 400)
        if "input_ids" in body and not self.takes_ids:
            return Answer({"error": {"message": "missing field `text`"}}, 422)
        for one in bodies:
            if "image_data" in one:
                if not isinstance(one.get("text"), str) or one["text"].count("<image>") != len(one["image_data"]):
                    return Answer({"error": {"message": "the number of image tokens is not that of images"}}, 400)
                self.seen.append((one["text"], one["image_data"]))
        prompts = [prompt_ids(one.get("text", one.get("input_ids"))) for one in bodies]
        if any(one.get("logprob_start_len", -1) >= len(ids) for one, ids in zip(bodies, prompts)):
            return Answer({"error": {"message": "logprob_start_len is higher than the number of input tokens"}}, 400)
        items = [item for one, ids in zip(bodies, prompts) for item in self._one(ids, one)]
        if body.get("stream"):
            return Answer({}, events=self._events(items, bodies))
        return Answer(items if batch or len(items) > 1 else items[0])  # type: ignore[arg-type]

    def _one(self, ids: list[int], body: Body) -> list[Body]:
        params = body.get("sampling_params") or {}
        self.texts.append(shown(ids))
        cached = self._cache.cached(ids)
        if params.get("max_new_tokens") == 0:
            texts: list[tuple[str, Body]] = [("", {"type": "length", "length": 0})]
        else:
            texts = answer(self.model, self._mock, shown(ids), params)
        return [self._item(ids, text, finish, body, cached) for text, finish in texts]

    def _item(self, ids: list[int], text: str, finish: Body, body: Body, cached: int) -> Body:
        out = WORDS.encode((text,))
        ended = [EOS] if finish["type"] == "stop" and finish.get("matched") is None else []
        if (matched := finish.get("matched")) is not None:
            ended = [matched] if isinstance(matched, int) else WORDS.encode((matched,)) if text else []
        meta: Body = {"id": "sg-1", "finish_reason": finish, "prompt_tokens": len(ids), "completion_tokens": len(out), "cached_tokens": cached}
        if body.get("return_logprob"):
            every = scored(self.model, [*ids, *out])
            start = body.get("logprob_start_len", -1)
            self.scored += len(ids) - start if start >= 0 else 0
            if body.get("token_ids_logprob"):
                before = shown(ids)
                meta["output_token_ids_logprobs"] = [[[self.model.logprob(before, shown([t])), t, shown([t])] for t in body["token_ids_logprob"]]]
            show = lambda t: shown([t]) if body.get("return_text_in_logprobs") else None
            rows = [[lp, token, show(token)] for lp, token in zip(every, [*ids, *out])]
            meta["input_token_logprobs"] = [[None, *row[1:]] if i == 0 else row for i, row in enumerate(rows[start : len(ids)])] if start >= 0 else []
            meta["output_token_logprobs"] = rows[len(ids) :]
            if asked_of := [row[0] for row in meta["input_token_logprobs"] if row[0]]:
                meta["normalized_prompt_logprob"] = sum(asked_of) / len(asked_of)  # older servers
        return {"text": text, "output_ids": [*out, *ended], "meta_info": meta}

    def _events(self, items: list[Body], bodies: list[Body]) -> list[Body]:
        """Of each answer what it is after its first pieces, and its end; the last of a list ends first."""
        found: list[Body] = []
        for index, (item, body) in reversed(list(enumerate(zip(items, bodies)))):
            text, step = item["text"], (body.get("sampling_params") or {}).get("stream_interval", 4)
            growing = [
                {"text": text[:i], "meta_info": {**item["meta_info"], "finish_reason": None}} for i in range(1 if step > 1 else 4, len(text), max(step, 4))
            ]
            found += [{**event, **({"index": index} if len(items) > 1 else {})} for event in (*growing, item)]
        return found


def _member(body: Body, i: int) -> Body:
    """One request of a list."""
    each = {name: value[i] if isinstance(value, list) else value for name, value in body.items() if name != "token_ids_logprob"}
    return each | ({"token_ids_logprob": body["token_ids_logprob"]} if "token_ids_logprob" in body else {})


class VLLMModel:
    """vLLM's completions: ids in and out, constraints, log-probabilities of prompts and of chosen tokens (`names_tokens`). `heeds`: fields
    that versions differ in; others that it does not know it leaves out, as vLLM does, unless it `refuses` them."""

    _KNOWN = {
        "model", "prompt", "max_tokens", "stop", "temperature", "top_p", "n", "seed", "logprobs", "echo", "frequency_penalty", "presence_penalty",
        "logit_bias", "stream", "stream_options", "stream_interval", "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos",
        "structured_outputs",
        "prompt_logprobs", "return_token_ids", "logprob_token_ids", "return_tokens_as_token_ids",
    }  # fmt: skip

    def __init__(
        self,
        model: TextModel,
        *,
        takes_ids: bool = True,
        names_tokens: bool = True,
        caches: bool = False,
        heeds: frozenset[str] = frozenset({"stream_interval"}),
        refuses: frozenset[str] = frozenset(),
    ) -> None:
        self._cache = PrefixCache(caches)
        self.model, self.takes_ids, self.names_tokens, self.scored, self.heeds, self.refuses = model, takes_ids, names_tokens, 0, heeds, refuses
        self._mock = Mock(answers=model.answer)
        self.get: dict[str, Body] = {"/v1/models": {"object": "list", "data": [{"id": "m", "root": "small/model", "max_model_len": 4096}]}}
        self.texts: list[str] = []
        self._chat = OpenAIModel(model, extra=_VLLM_CHAT, template=get_chat_template("chatml"))

    def handle(self, path: str, body: Body) -> Answer:
        if body.get("n", 1) > 1 and body.get("temperature") == 0:
            return Answer(
                {"error": {"message": f"n must be 1 when using greedy sampling, got {body['n']}.", "type": "BadRequestError", "param": None, "code": 400}}, 400
            )
        if path == "/v1/chat/completions":
            return self._chat.handle(path, body)
        if path != "/v1/completions":
            return Answer({"error": {"message": f"no {path}"}}, 404)
        if unknown := body.keys() - (self._KNOWN - self.refuses):
            return Answer({"error": {"message": f"unknown: {sorted(unknown)}"}}, 400)
        given = body["prompt"]
        ids = isinstance(given, list) and not isinstance(given[0], str)
        if ids and not self.takes_ids:
            return Answer({"error": {"message": "prompt: expected a string"}}, 422)
        batch = isinstance(given, list) and not isinstance(given[0], int)
        params: Body = {k: v for k, v in body.items() if k in ("stop", "stop_token_ids", "n", "temperature", "ignore_eos")} | {
            "max_new_tokens": body.get("max_tokens", 16),
            "sampling_seed": body.get("seed", 0),
        }
        structured = body.get("structured_outputs") or {}
        params |= {"regex": structured["regex"]} if "regex" in structured else {"json_schema": json.dumps(structured["json"])} if "json" in structured else {}
        choices: list[Body] = []
        costs: list[Body] = []
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
                costs.append({"prompt_tokens": len(tokens), "completion_tokens": len(out), "total_tokens": len(tokens) + len(out)})
                choice: Body = {"index": len(choices), "text": text, "finish_reason": finish["type"], "stop_reason": finish.get("matched"), "logprobs": None}
                if body.get("return_token_ids"):
                    choice["token_ids"] = [*out, *([EOS] if finish["type"] == "stop" and finish.get("matched") is None else [])]
                if body.get("logprobs") is not None:
                    values = self.model.row(shown(tokens), [shown([t]) for t in out])
                    choice["logprobs"] = {"tokens": [shown([t]) for t in out], "token_logprobs": values, "top_logprobs": None, "text_offset": []}
                if body.get("return_tokens_as_token_ids"):
                    named = [out[0], *(body["logprob_token_ids"] if self.names_tokens else ())]
                    top = {f"token_id:{t}": lp for t, lp in zip(named, self.model.logprobs(shown(tokens), [shown([t]) for t in named]))}
                    choice["logprobs"] = {"tokens": [f"token_id:{out[0]}"], "token_logprobs": [-1.0], "top_logprobs": [top], "text_offset": []}
                if body.get("prompt_logprobs") is not None:
                    self.scored += len(tokens)
                    rows: list[Any] = [{str(t): {"logprob": lp, "rank": 1, "decoded_token": shown([t])}} for t, lp in zip(tokens, scored(self.model, tokens))]
                    choice["prompt_logprobs"] = [None, *rows[1:]]
                choices.append(choice)
        usage: Body = {"prompt_tokens": total, "completion_tokens": completion, "total_tokens": total + completion}
        if not batch:  # of a list, vLLM says this of one prompt alone
            usage["prompt_tokens_details"] = {"cached_tokens": self._cache.cached(prompt_ids(given))}
        whole = {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": choices, "usage": usage}
        if not body.get("stream"):
            return Answer(whole)
        interval = body["stream_interval"] if "stream_interval" in self.heeds & body.keys() else 1
        each = (body.get("stream_options") or {}).get("continuous_usage_stats")
        events = [
            {"id": "c", "model": "m", "choices": [piece], **({"usage": costs[i]} if each else {})}
            for i, choice in reversed(list(enumerate(choices)))
            for piece in _pieces(choice, interval)
        ]
        return Answer({}, events=[*events, {"id": "c", "model": "m", "choices": [], "usage": usage}])


def _pieces(choice: Body, interval: int) -> list[Body]:
    """Its first token, and then an event for so many tokens. What ends an answer comes with its last."""
    tokens = WORDS.encode((choice["text"],))
    cuts = [0, *range(1, len(tokens), interval), len(tokens)]
    kept = {k: v for k, v in choice.items() if k in ("index", "stop_reason")}
    shown_to = [shown(tokens[:at]) for at in cuts]
    pieces = [{**kept, "text": after[len(before) :], "finish_reason": None} for before, after in pairwise(shown_to)]
    return [*pieces[:-1], {**choice, "text": pieces[-1]["text"]}] if pieces else [choice]


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
