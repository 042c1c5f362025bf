"""Answers of the mock: scripted, or a hash of prompt, parameters and seed as readable nonsense; then stops and limits."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from lmc import json_data
from lmc.backend.mock_prompt import MockNode, images_of, tokens_of
from lmc.backend.mock_samples import member_of
from lmc.backend.results import Output
from lmc.backend.usage import Usage
from lmc.errors import ArgumentError, BackendError, LmcError, shown
from lmc.segments import ChoicesMethod, Constraint, Gen, SamplingParams, Select
from lmc.signatures import signature_of
from lmc.tools import Call, call_of

Ask = Gen | Select
Answers = Callable[[str, Ask], Any] | Callable[[str, Ask, list[bytes | str]], Any] | Mapping[str, Any] | Sequence[Any]

_WORDS = tuple(a + b for a in ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")
               for b in ("", "lan", "mer", "nit", "ros", "tu", "la", "me", "ni", "ro", "ta", "ve", "kin", "dor", "sul", "pa"))  # fmt: skip
_BUDGET = 1 << 14  # bytes of an answer that ignores EOS and names no limit


@lru_cache(maxsize=4096)
def _ask_bytes(key: tuple[Any, ...]) -> bytes:
    """Return the parts of a request that its answer depends on, as bytes; equal numbers of different type are the
    same."""
    return repr(_plain(key)).encode()


def _plain(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_plain(item) for item in x)
    if isinstance(x, (SamplingParams, Constraint)):  # without the adapter, which `_digest` adds where there is one
        return tuple(_plain(getattr(x, f.name)) for f in fields(x) if f.repr)
    return float(x) if isinstance(x, int) else str(x) if isinstance(x, str) else x


def _digest(prompt: Any, ask: Ask, sample: int = 0) -> bytes:
    """Return the digest of a request; `prompt` is the hash of the prompt."""
    made = prompt.copy()
    made.update(b"\xff")
    if isinstance(ask, Gen):
        made.update(_ask_bytes((ask.params, ask.constraint, ask.tools) if ask.tools else (ask.params, ask.constraint)))
        sampled = ask.params.temperature > 0
    else:
        made.update(_ask_bytes((ask.choices, ask.method, ask.temperature)))
        sampled = ask.temperature > 0
    if adapter := ask.adapter if isinstance(ask, Select) else ask.params.adapter:
        made.update(b"\xff" + adapter.encode("utf-8", "surrogatepass"))
    if sampled:
        made.update(b"\xff%d.%d" % (ask.seed, sample))
    return made.digest()


def _words(digest: bytes, at_least: int) -> str:
    """Return readable nonsense: two to seven words, or as many as give `at_least` bytes."""
    text = " ".join([_WORDS[b] for b in digest[1 : 3 + digest[0] % 6]])
    while len(text) < at_least:
        digest = blake2b(digest, digest_size=32).digest()
        text += " " + " ".join([_WORDS[b] for b in digest])
    return text


def _hash_answer(prompt: Any, ask: Gen, sample: int) -> str:
    digest = _digest(prompt, ask, sample)
    params, constraint = ask.params, ask.constraint
    if constraint is None:
        wanted = min(params.max_new_tokens, _BUDGET) if params.ignore_eos else params.min_new_tokens
        return _words(digest, wanted)
    found = member_of(constraint.kind, constraint.source, digest)
    limit = params.max_new_tokens
    return found if constraint.kind != "json_schema" or len(tokens_of(found)) <= limit else _steered(constraint, found, limit)


def _steered(constraint: Constraint, text: str, limit: int) -> str:
    """Return the text, ended by the shortest path as its limit nears; unchanged if no end fits."""
    from lmc.fsm.completion import nearest_end
    from lmc.fsm.sources import begun

    machine, state, size = begun(constraint.kind, constraint.source), 0, 0
    kept: tuple[str, int] | None = None  # the longest beginning from which an end fits, and the state behind it
    for cut, character in enumerate(("", *text[:limit])):
        machine.begin()
        state, size = machine.step(state, character.encode("utf-8", "surrogatepass")), size + len(tokens_of(character))
        if state < 0:
            break
        if size + machine.distance(state) <= limit:  # a token has one byte
            kept = text[:cut], state
    return text if kept is None else kept[0] + nearest_end(machine, kept[1])


class _Answer(NamedTuple):
    """A raw answer after stop strings and limits: text, tokens and its end."""

    text: str
    tokens: str
    finish: Mapping[str, Any]


def _finish(raw: str, params: SamplingParams, stops: tuple[str, ...]) -> _Answer:
    """Cut a raw answer at the first stop string and at the limit, in that order of position."""
    finish: dict[str, Any] = {"type": "stop", "matched": None}
    cut = len(raw)
    for stop in stops:
        at = raw.find(stop, 0, cut + len(stop) - 1)
        if 0 <= at < cut:
            cut, finish = at, {"type": "stop", "matched": stop}
    for pattern in params.stop_regex:
        found = re.search(pattern, raw[:cut])
        if found is not None:
            cut, finish = found.start(), {"type": "stop", "matched": found.group()}
    text = raw if cut == len(raw) else raw[:cut]
    tokens = tokens_of(text)
    limit = params.max_new_tokens
    if len(tokens) > limit or (len(tokens) == limit and params.ignore_eos):
        tokens, finish = tokens[:limit], {"type": "length", "length": limit}
        text = _whole_characters(tokens)
        tokens = tokens_of(text)
    return _Answer(text, tokens, finish)


def _whole_characters(tokens: str) -> str:
    """Return the text of tokens whose last character may be cut."""
    return tokens if tokens.isascii() else tokens.encode("latin-1").decode("utf-8", "ignore")


def gen_output(node: MockNode, ask: Gen, scripted: Any, stops: tuple[str, ...]) -> tuple[Output, str]:
    params, prompt = ask.params, node.hash
    if params.n == 1 and not (ask.tools or params.return_logprob) and (scripted is None or scripted.__class__ is str):  # most are
        answer = _finish(_nonempty(prompt, ask, 0) if scripted is None else scripted, params, params.stop + stops)
        if scripted is not None and ask.constraint is not None:
            _check_script(answer, ask, ask.constraint)
        tokens = len(answer.tokens)
        meta = _meta(node, prompt, tokens)
        meta["finish_reason"] = answer.finish
        return Output((answer.text,), (meta,), Usage(node.length, tokens, node.answered, 0, 1, tokens or 1)), answer.tokens
    raws = _raw_answers(prompt, ask, scripted)
    called = [_calls(node, raw) for raw in raws] if ask.tools else []
    answers = [_finish("" if called and called[i] else raw, params, params.stop + stops) for i, raw in enumerate(raws)]
    if scripted is not None and ask.constraint is not None:
        for i, answer in enumerate(answers):
            if not (called and called[i]):
                _check_script(answer, ask, ask.constraint)
    tokens = 0
    metas: list[Mapping[str, Any]] = []
    for i, answer in enumerate(answers):
        tokens += len(answer.tokens)
        metas.append(_meta(node, prompt, len(answer.tokens)) | {"finish_reason": answer.finish})
        if ask.tools:
            metas[-1] = {**metas[-1], "tool_calls": called[i]} | ({"finish_reason": {"type": "tool_calls", "matched": None}} if called[i] else {})
        if params.return_logprob:
            metas[-1] = {**metas[-1], **_logprobs(node, answer.tokens, params)}
    usage = Usage(node.length, tokens, node.answered, 0, 1, max(1, tokens))
    return Output(tuple([answer.text for answer in answers]), tuple(metas), usage), answers[0].tokens


def _check_script(answer: _Answer, ask: Gen, constraint: Constraint) -> None:
    """Check that a scripted answer satisfies its constraint, or is the beginning of such a text if the limit has cut
    it."""
    from lmc.fsm.recognise import allows, begins

    cut = len(answer.tokens) >= ask.params.max_new_tokens
    if not (begins if cut else allows)(constraint.kind, constraint.source, answer.text):
        raise BackendError(f"the scripted answer for {ask.name!r} is {answer.text!r}, which its {constraint.kind} {shown(constraint.source)} does not allow")


def _calls(node: MockNode, raw: str) -> list[Call]:
    """Return tool calls: of an answer that is the JSON of one, `{"name": …, "arguments": {…}}`, or a list of them."""
    try:
        read: Any = json_data.loads(raw)
    except ValueError:
        return []
    found: list[Any] = read if isinstance(read, list) else [read]
    if not all(isinstance(call, dict) and "name" in call for call in found):
        return []
    return [call_of(f"call_{node.length}_{i}", call["name"], json.dumps(call.get("arguments", {}))) for i, call in enumerate(found)]


def _raw_answers(prompt: Any, ask: Gen, scripted: Any) -> Sequence[str]:
    n = ask.params.n
    if scripted is None:
        sampled = n if ask.params.temperature > 0 else 1
        raws = [_nonempty(prompt, ask, sample) for sample in range(sampled)]
        return raws if sampled == n else raws * n
    if isinstance(scripted, str):
        return [scripted] * n
    if not isinstance(scripted, (list, tuple)) or len(scripted) != n or not all(isinstance(t, str) for t in scripted):  # pyright: ignore
        raise BackendError(f"the scripted answer for {ask.name!r} must be text or a list of {n} texts, not {scripted!r}")
    return scripted  # pyright: ignore[reportUnknownVariableType]


def _nonempty(prompt: Any, ask: Gen, sample: int) -> str:
    """Return a hashed answer that does not start with a stop string, if one of the first few does not."""
    raw, stop = _hash_answer(prompt, ask, sample), ask.params.stop
    again = 1
    while stop and again < 8 and raw.startswith(stop):
        raw = _hash_answer(prompt, ask, sample + again * 1_000_003)
        again += 1
    return raw


def _meta(node: MockNode, prompt: Any, completion: int) -> dict[str, Any]:
    """Return the meta info of every answer: a function of only the prompt, regardless of the order of requests."""
    return {
        "id": f"mock-{prompt.hexdigest()[:12]}",
        "prompt_tokens": node.length,
        "completion_tokens": completion,
        "cached_tokens": node.answered,
    }


def _logprobs(node: MockNode, answer: str, params: SamplingParams) -> dict[str, Any]:
    """Return made-up log-probabilities in an engine's form, [log-probability, id, text]: of the prompt from
    `logprob_start_len` on (None or -1: not at all; its very first token has none), and of the answer."""
    start, prompt = params.logprob_start_len, node.tokens
    known = range(0) if start is None or start < 0 else range(start, len(prompt))

    def listed(logprob: float | None, token: str) -> list[Any]:
        return [logprob, ord(token), token if params.return_text_in_logprobs else None]

    def alternatives(token: str, logprob: float) -> list[Any]:
        others = [chr(97 + (ord(token) + k) % 26) for k in range(1, params.top_logprobs_num or 0)]
        return [listed(logprob, token), *[listed(logprob - k / 2, other) for k, other in enumerate(others, 1)]]

    found: dict[str, Any] = {
        "input_token_logprobs": [listed(_logprob(p, prompt[p]) if p else None, prompt[p]) for p in known],
        "output_token_logprobs": [listed(_logprob(node.length + i, token), token) for i, token in enumerate(answer)],
    }
    if params.top_logprobs_num:
        inputs, outputs = found["input_token_logprobs"], found["output_token_logprobs"]
        found["input_top_logprobs"] = [alternatives(chr(i), lp) if lp is not None else None for lp, i, _ in inputs]
        found["output_top_logprobs"] = [alternatives(chr(i), lp) for lp, i, _ in outputs]
    return found


def _logprob(position: int, token: str) -> float:
    """Return a number in (-8, 0)."""
    return -0.01 - zlib.crc32(b"%d.%d" % (position, ord(token))) / 2**29


def select_output(node: MockNode, ask: Select, scripted: Any) -> tuple[Output, str]:
    prompt = node.hash
    scores = _scores(prompt, ask)
    if scripted is not None:
        if scripted not in ask.choices:
            raise BackendError(f"the scripted answer for {ask.name!r} is {scripted!r}, which is not one of {list(ask.choices)}")
        scores[ask.choices.index(scripted)] = 0.0
    chosen = ask.choices[scores.index(max(scores))]
    tokens = [tokens_of(choice) for choice in ask.choices]
    meta = (
        _meta(node, prompt, 0)
        | {
            "normalized_prompt_logprobs": scores,
            "input_token_logprobs": [[[score, ord(token), token] for token in row] for score, row in zip(scores, tokens, strict=True)],
            "output_token_logprobs": [[] for _ in tokens],
        }
        | _EXTRA[ask.method](scores)
    )
    output = Output((chosen,), (meta,), Usage(node.length, 0, node.answered, 0, 1, 1))
    return output, tokens_of(chosen)


_EXTRA: Mapping[ChoicesMethod, Callable[[list[float]], dict[str, Any]]] = {
    ChoicesMethod.TOKEN_LENGTH_NORMALIZED: lambda scores: {},
    ChoicesMethod.GREEDY_TOKEN_SELECTION: lambda scores: {"greedy_logprob_matrix": [[score] for score in scores]},
    ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED: lambda scores: {"normalized_unconditional_prompt_logprobs": scores},
}


def _scores(prompt: Any, ask: Select) -> list[float]:
    """Return a log-probability in (-8, 0) for each choice, different ones for different prompts."""
    digest = _digest(prompt, ask)
    while len(digest) < 4 * len(ask.choices):
        digest += blake2b(digest, digest_size=32).digest()
    return [-0.01 - int.from_bytes(digest[4 * i : 4 * i + 4], "big") / 2**29 for i in range(len(ask.choices))]


def check_constraint(constraint: Constraint, ask: Gen) -> None:
    """Raise for a constraint that the mock cannot follow, at the request's location."""
    try:
        _check_source(constraint)
    except LmcError as error:
        raise placed(error, ask) from None


@lru_cache(maxsize=1024)
def _check_source(constraint: Constraint) -> None:
    member_of(constraint.kind, constraint.source, b"")


def placed(error: Exception, ask: Ask) -> Exception:
    if isinstance(error, LmcError) and error.loc is None:
        error.loc = ask.loc
    return error


# -- scripts ---------------------------------------------------------------------------------------------------------

Script = Callable[[MockNode, Ask], Any]


def script_of(answers: Answers | None) -> Script | None:
    """Return one function from prompt and request to the scripted answer, None where the hash decides."""
    if answers is None:
        return None
    if isinstance(answers, Mapping):
        by_name: dict[str, Script] = {name: _one_script(name, answer) for name, answer in answers.items()}
        return lambda node, ask: by_name[ask.name](node, ask) if ask.name in by_name else None  # pyright: ignore
    if callable(answers):
        return _called(answers)
    if isinstance(answers, (list, tuple)):
        return _in_order("the calls", answers)
    raise ArgumentError(f"Mock(answers=…) takes a function, a mapping or a list, not {answers!r}")


def _one_script(name: str, answer: Any) -> Script:
    if callable(answer):
        return _called(answer)
    if isinstance(answer, (list, tuple)):
        return _in_order(repr(name), answer)  # pyright: ignore[reportUnknownArgumentType]
    if answer is not None and not isinstance(answer, str):
        raise ArgumentError(f"Mock(answers={{{name!r}: …}}) takes text, a list or a function, not {answer!r}")
    return lambda node, ask: answer


def _in_order(what: str, answers: Sequence[Any]) -> Script:
    numbers = itertools.count()  # its next() is atomic

    def script(node: MockNode, ask: Ask) -> Any:
        number = next(numbers)
        if number >= len(answers):
            raise BackendError(f"the scripted answers for {what} are used up (there were {len(answers)})")
        answer = answers[number]
        return _called(answer)(node, ask) if callable(answer) else answer

    return script


def _called(answer: Callable[..., Any]) -> Script:
    """Return a function of the prompt's text and the request, and of its pictures if it takes a third argument."""
    try:
        positional = [p for p in signature_of(answer).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    except ValueError:  # a function of C
        positional = []
    if len(positional) == 3:
        return lambda node, ask: answer(node.text, ask, images_of(node))
    return lambda node, ask: answer(node.text, ask)
