"""Penalties and log-probabilities of many rows at once: to the bit what a row alone gets, ahead or waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmc.backend.engine.answer import Answer
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.token_ids import TokenLogprob
from lmc.segments import SamplingParams
from tests.backend.engine_fakes import FakeWords

pytestmark = pytest.mark.model
torch: Any = None  # imported when the first test runs: collecting this file must not need it
V, PADDED = 300, 320
STOPS = frozenset({7, 40})


@pytest.fixture(scope="module", autouse=True)
def _import_torch() -> None:
    global torch
    torch = pytest.importorskip("torch")


def random_params(rng: np.random.Generator) -> SamplingParams:
    options: dict[str, Any] = {"temperature": float(rng.choice([0.0, 0.8])), "max_new_tokens": 40}
    if rng.random() < 0.7:
        options |= {"frequency_penalty": float(rng.uniform(-2, 2)), "presence_penalty": float(rng.choice([0, 0.3, -1.1]))}
    if rng.random() < 0.3:
        ids = rng.choice(V, 5, replace=False).tolist()
        options["logit_bias"] = tuple((i, float(rng.normal())) for i in ids[:4]) + ((ids[4], -np.inf),)
    if rng.random() < 0.3:
        options["min_new_tokens"] = 6
    if rng.random() < 0.4:
        options |= {"return_logprob": True, "top_logprobs_num": int(rng.integers(0, 6))}
    if rng.random() < 0.3:
        options["top_p"] = 0.9
    return SamplingParams(**options)


def request(params: SamplingParams, seed: int, said: tuple[int, ...] = ()) -> Request:
    answer = Answer(FakeWords(), params, STOPS)
    req = Request(RequestKind.GENERATE, np.array([3, 3, 5], np.int32), lambda _: None, params=params, seed=seed, answer=answer)
    req.extend(said)
    return req


def adjusted(row, req: Request):
    """The definition, a row at a time."""
    row, p = row.clone(), req.params
    row[V:] = -torch.inf
    for token, count in zip(*np.unique(req.ids[req.prompt_len : req.length], return_counts=True)):
        if p.frequency_penalty or p.presence_penalty:
            row[int(token)] -= torch.tensor(float(count)) * p.frequency_penalty + p.presence_penalty
    for token, bias in p.logit_bias:
        row[token] += bias
    if req.length - req.prompt_len < p.min_new_tokens:
        row[sorted(STOPS)] = -torch.inf
    return row


def told(row, req: Request, token: int) -> TokenLogprob | None:
    """The definition; of equals the lower ids come first."""
    if not req.params.return_logprob:
        return None
    known = row.log_softmax(-1)
    best = sorted(range(PADDED), key=lambda i: (-float(row[i]), i))[: req.params.top_logprobs_num or 0]
    return TokenLogprob(token, float(known[token]), tuple((float(known[i]), i) for i in best))


def alone(row, req: Request) -> tuple[int, TokenLogprob | None]:
    """Return the penalties of a row by itself, from a sampler that knows nothing of the others."""
    from lmc.backend.engine.sampler import Sampler

    fresh = request(req.params, req.seed, tuple(req.ids[req.prompt_len : req.length].tolist()))
    [token], [logprob] = Sampler(V).sample(row[None].clone(), [0], [fresh])
    return token, logprob


def check_passes(device: str, ahead: bool) -> None:
    """Passes over answers that come, wait and go. Ahead, a pass is drawn before the tokens of the one before it are known."""
    from lmc.backend.engine.sampler import Sampler

    rng, sampler = np.random.default_rng(5), Sampler(V)
    torch.manual_seed(5)
    running: list[Request] = []
    flying: list[Any] = []

    def land() -> None:
        """Looks at what the pass before gave, and judges it."""
        requests, places, before, after, output = flying.pop()
        tokens, logprobs = output.read() if ahead else output
        for i, (req, place) in enumerate(zip(requests, places, strict=True)):
            as_it_was = request(req.params, req.seed, tuple(req.ids[req.prompt_len : place].tolist()))
            assert torch.equal(after[i], adjusted(before[i], as_it_was)), "other logits than the definition"
            assert (tokens[i], logprobs[i]) == alone(before[i], as_it_was)
            assert logprobs[i] == told(before[i], req, tokens[i])
            if req.ids[place] == -1:
                req.learn(place, tokens[i])
            if rng.random() < 0.1 or req.length >= len(req.ids) - 3:
                req.done = True

    for _ in range(25):
        running = [req for req in running if not req.done]
        while len(running) < 12:
            running.append(request(random_params(rng), int(rng.integers(1 << 60))))
        some = [req for req in running if rng.random() < 0.8 and not req.done]
        for req in some[::5]:  # what a constraint forces is known without a sample
            if not req.awaited:
                req.extend(rng.integers(0, V, 2).tolist())
        logits = (torch.randn(len(some), PADDED) * 3).bfloat16().float()  # with ties
        before = logits.clone()
        logits = logits.to(device)
        rows = list(range(len(some)))
        output = sampler.sample_ahead(logits, rows, some) if ahead else sampler.sample(logits, rows, some)
        places = [req.length for req in some]
        if ahead:
            for req in some:
                req.expect()
            if flying:
                land()
        flying.append((some, places, before, logits.cpu(), output))
        if not ahead:
            tokens: list[Any] = list(output[0])
            for req, token in zip(some, tokens, strict=True):
                req.append(token)
            land()


@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_sampled_of_many_rows_is_what_each_gets_alone(ahead):
    check_passes("cpu", ahead)


def test_counts_are_let_go_with_the_last_answer():
    from lmc.backend.engine.penalties import Penalties

    penalties, params = Penalties(), SamplingParams(frequency_penalty=1.0, max_new_tokens=8)
    first, second, free = request(params, 0, (4,)), request(params, 1, (4, 4)), request(SamplingParams(), 2)
    found = torch.zeros(3, V)
    assert penalties.apply(found, [first, free, second]) is not None
    assert found.nonzero().tolist() == [[0, 4], [2, 4]] and found[:, 4].tolist() == [-1.0, 0.0, -2.0]
    first.done = True
    third = request(params, 3)
    found = torch.zeros(1, V)
    penalties.apply(found, [third])  # in the place of the first
    assert not found.any() and len(penalties._places) == 2
    second.done = third.done = True
    assert penalties.apply(found, [free]) is None
    assert penalties._counts is None and not penalties._places and not penalties._counted


def test_likeliest_tokens_are_ordered_and_equals_by_id():
    from lmc.backend.engine.logprobs import likeliest, ordered

    values = torch.tensor([[1.0, -2.0, 1.0, 3.0, -torch.inf, 1.0], [-3.0, -2.0, -3.0, -4.0, -2.0, 0.0]])
    assert likeliest(values, 4).tolist() == [[3, 0, 2, 5], [5, 1, 4, 0]]
    many = torch.randn(5, 2000).bfloat16().float()
    expected = [sorted(range(2000), key=lambda i: (-float(row[i]), i)) for row in many]
    assert likeliest(many, 50).tolist() == [best[:50] for best in expected]
    assert (1999 - (ordered(many).sort(descending=True).values & 0xFFFFFFFF)).tolist() == expected  # as on a GPU
    many[0, 3] = float("nan")
    assert likeliest(many, 50)[1:].tolist() == [best[:50] for best in expected[1:]]


def test_scores_are_the_same_however_many_are_looked_at_together(monkeypatch):
    from lmc.backend.engine import logprobs

    values = torch.randn(9, V)
    rows, tokens = [8, 1, 1, 3, 8, 0, 5, 5], torch.arange(8)
    wanted = [3, 0, 2, 0, 5, 1, 0, 4]
    found = logprobs.logprobs(values, rows, tokens, wanted).read()
    assert [known for known, _ in found] == values.log_softmax(-1)[rows, tokens].tolist()
    assert [len(top) for _, top in found] == wanted
    monkeypatch.setattr(logprobs, "_AT_ONCE", 3 * V)
    assert logprobs.logprobs(values, rows, tokens, wanted).read() == found
