"""The sampler: each parameter does what it says, and a sample depends on its seed alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from lmc.backend.engine.answer import Answer
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.token_ids import BROKEN, STUCK
from lmc.errors import ConstraintError
from lmc.fsm.tokens import TokenRow
from lmc.segments import SamplingParams
from tests.backend.engine_fakes import FakeWords

pytestmark = pytest.mark.model
torch: Any = None  # imported when the first test runs: collecting this file must not need it
V = 16


@pytest.fixture(scope="module", autouse=True)
def _import_torch() -> None:
    global torch
    torch = pytest.importorskip("torch")


@pytest.fixture
def sampler():
    from lmc.backend.engine.sampler import Sampler

    return Sampler(V)


def request(seed: int = 0, generated: tuple[int, ...] = (), stop_ids: tuple[int, ...] = (), **params) -> Request:
    made = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 50} | params)
    answer = Answer(FakeWords(), made, frozenset(stop_ids))
    req = Request(RequestKind.GENERATE, np.array([1, 2], np.int32), lambda _: None, params=made, seed=seed, answer=answer)
    for token in generated:
        req.append(token)
        answer.sampled += 1
    return req


def logits(*rows: dict[int, float]):
    out = torch.full((len(rows), V), -5.0)
    for i, row in enumerate(rows):
        for token, value in row.items():
            out[i, token] = value
    return out


def pick(sampler, values, *requests, rows=None):
    return sampler.sample(values.clone(), rows or list(range(len(requests))), requests)[0]


def counts(sampler, values, n=2000, **params) -> Counter:
    requests = [request(seed=i, **params) for i in range(n)]
    return Counter(pick(sampler, values, *requests, rows=[0] * n))


def test_two_requests_may_share_a_row(sampler):
    assert pick(sampler, logits({3: 2.0}, {5: 1.0}), request(), request(), request(), rows=[1, 0, 1]) == [5, 3, 5]


def test_samples_follow_the_distribution(sampler):
    p = torch.tensor([0.5, 0.3, 0.2] + [1e-9] * (V - 3))
    found = counts(sampler, p.log()[None], temperature=1.0)
    assert [found[i] / 2000 for i in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.04)


def test_temperature_sharpens(sampler):
    p = torch.tensor([0.6, 0.4] + [1e-9] * (V - 2))
    assert counts(sampler, p.log()[None], temperature=0.25)[0] / 2000 == pytest.approx(
        0.6**4 / (0.6**4 + 0.4**4), abs=0.04
    )


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({}, {0, 1, 2}),
    ],
)
def test_truncation(sampler, params, kept):
    p = torch.tensor([0.5, 0.3, 0.2] + [0.0] * (V - 3))
    assert set(counts(sampler, p.log()[None], 500, temperature=1.0, **params)) == kept


def test_rows_that_keep_more_than_the_best_are_looked_at_in_full(monkeypatch):
    from lmc.backend.engine import sampler

    values = torch.randn(6, 3000, generator=torch.Generator().manual_seed(2))
    values[::2] *= 20  # few tokens have all the mass
    params = [SamplingParams(temperature=1.0, top_p=p) for p in (0.5, 0.9, 0.99, 0.6, 1.0, 0.999)]
    found = {}
    for first in ((), (1024,), (2, 64, 1024)):
        monkeypatch.setattr(sampler, "_FIRST", first)
        found[first] = [sampler.draw_truncated(values, params, [u] * 6).tolist() for u in (0.01, 0.4, 0.7, 0.999)]
    assert found[()] == found[1024,] == found[2, 64, 1024]


def test_a_seed_gives_the_same_token_in_any_batch(sampler):
    values = torch.randn(8, V, generator=torch.Generator().manual_seed(1))
    alone = [pick(sampler, values[i : i + 1], request(seed=i, temperature=1.0)) for i in range(8)]
    mixed = [
        request(seed=i, temperature=1.0) if i % 2 else request(seed=i, temperature=1.0, top_p=0.999999)
        for i in range(8)
    ]
    together = pick(sampler, values, *mixed)
    assert [together[i] for i in (1, 3, 5, 7)] == [alone[i][0] for i in (1, 3, 5, 7)]


def test_steps_of_one_seed_differ():
    from lmc.backend.engine.sampler import uniform

    numbers = [uniform(7, step) for step in range(1000)]
    assert len(set(numbers)) == 1000 and abs(sum(numbers) / 1000 - 0.5) < 0.05


@pytest.mark.parametrize("options", [{}, {"top_k": 3}])
def test_the_tokens_of_one_answer_follow_the_distribution(sampler, options):
    """Each place of it is drawn by a number of its own."""
    p = torch.tensor([0.5, 0.3, 0.2] + [1e-9] * (V - 3))
    places = [request(seed=7, generated=(1,) * i, temperature=1.0, max_new_tokens=500, **options) for i in range(500)]
    found = Counter(pick(sampler, p.log()[None], *places, rows=[0] * len(places)))
    assert [found[i] / 500 for i in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.08)


# -- constraints ---------------------------------------------------------------------------------------------------


class Bits:
    """A matcher that allows some tokens; `row` as the automaton has it once the row was made, of few tokens, of all but few or of neither; "bits" has
    the mask alone, and writes to it, as xgrammar does."""

    done, refused = False, 0

    def __init__(self, allowed: set[int], *, has: str = "bits") -> None:
        self.allowed = allowed
        flags = np.zeros(32, np.uint8)
        flags[list(allowed)] = 1
        self.bits = np.packbits(flags, bitorder="little").view("<u4")
        self.row = {
            "few": TokenRow(self.bits, few=np.array(sorted(allowed))),
            "refused": TokenRow(self.bits, refused=np.flatnonzero(flags[:V] == 0)),
            "neither": TokenRow(self.bits),
        }.get(has)
        self.bits.flags.writeable = has == "bits"

    def allows(self, token: int) -> bool:
        return token in self.allowed


@pytest.mark.parametrize("has", ["few", "refused", "neither", "bits"])
def test_greedy_rows_get_the_best_allowed_token_whatever_else_is_in_the_batch(sampler, has):
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        values = torch.from_numpy(rng.integers(0, 5, (n, V + 2)).astype(np.float32))  # with ties, and padding
        requests: list[Any] = []
        expected: list[int] = []
        for row in values.numpy():
            legal = set(rng.choice(V, int(rng.integers(1, V)), replace=False).tolist())
            stops = tuple(rng.choice(V, 2, replace=False).tolist()) if rng.random() < 0.5 else ()
            req: Any = request(stop_ids=stops, min_new_tokens=3)
            if rng.random() < 0.7:
                req.answer.matcher = Bits(legal | {0, 1, 2}, has=has)
                req.answer.matcher.refused = int(rng.integers(4))
                legal = req.answer.matcher.allowed - set(stops)
            else:
                legal = set(range(V)) - set(stops)
            requests.append(req)
            expected.append(max(sorted(legal), key=lambda t: row[t]))
        assert pick(sampler, values, *requests) == expected


def test_a_row_that_several_requests_share_is_read_by_each(sampler):
    requests: list[Any] = [request() for _ in range(4)]
    for req, legal in zip(requests, ({3}, {4}, {5, 6}, set(range(V)))):
        req.answer.matcher = Bits(legal)
    assert pick(sampler, logits({9: 4.0, 8: 3.0, 7: 2.0, 6: 1.0}), *requests, rows=[0] * 4) == [3, 4, 6, 9]


@pytest.mark.parametrize("has", ["few", "refused", "neither", "bits"])
def test_drawn_rows_are_closed_but_for_what_is_allowed(has):
    from lmc.backend.engine.masking import Closing, mask

    req: Any = request(stop_ids=(5,), min_new_tokens=3)
    closing = Closing()
    req.answer.matcher = Bits({1, 5, 7}, has=has)
    row = torch.arange(V, dtype=torch.float32)
    assert mask(row, req, closing)
    assert {i: float(x) for i, x in enumerate(row) if x > -torch.inf} == {1: 1.0, 7: 7.0}
    req.params = SamplingParams(min_new_tokens=0)
    row = torch.arange(V, dtype=torch.float32)
    assert mask(row, req, closing) and {i for i, x in enumerate(row) if x > -torch.inf} == {1, 5, 7}


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_what_is_drawn_among_few_is_what_is_drawn_from_the_closed_row(sampler, params):
    rng = np.random.default_rng(1)
    for seed in range(100):
        values = torch.from_numpy(rng.standard_normal((3, V)).astype(np.float32))
        allowed = set(rng.choice(V, int(rng.integers(1, V)), replace=False).tolist())
        found: list[list[int]] = []
        for has in ("few", "refused", "neither", "bits"):
            requests: list[Any] = [request(seed=seed, temperature=0.7, **params) for _ in range(3)]
            requests[1].answer.matcher = Bits(allowed, has=has)
            found.append(pick(sampler, values, *requests))
        assert found[0][1] in allowed and found[1:] == found[:1] * 3


def test_a_model_that_is_refused_again_and_again_is_asked_less_often():
    class Counting(Bits):
        asked = 0

        def allows(self, token: int) -> bool:
            self.asked += 1
            return super().allows(token)

    from lmc.backend.engine.sampler import Sampler

    req: Any = request()
    req.answer.matcher = matcher = Counting({1, 2}, has="neither")
    for _ in range(32):
        assert pick(Sampler(V), logits({3: 2.0, 4: 1.5, 1: 1.0}), req) == [1]
    assert matcher.asked <= 12
    asked = matcher.asked
    for _ in range(32):  # and the model's own choice, when it is legal again, is soon found by itself
        assert pick(Sampler(V), logits({2: 2.0, 4: 1.5}), req) == [2]
    assert matcher.asked - asked >= 30 and matcher.refused == 0


class Closed:
    """A constraint that lets nothing follow, as a mask or as an error of the vocabulary."""

    done = complete = False
    row, refused = None, 0

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    @property
    def bits(self) -> np.ndarray:
        if self.raises:
            raise ConstraintError("no token begins with byte 0x00")
        return np.zeros(1, np.uint32)

    def allows(self, token: int) -> bool:
        return False

    def accept(self, token: int) -> None: ...

    def forced(self) -> tuple[int, ...]:
        return ()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}, {"return_logprob": True}]
)
def test_a_row_without_an_allowed_token_is_stuck_and_the_others_go_on(sampler, params, raises):
    closed = request(**params)
    closed.answer.matcher = Closed(raises)
    values = logits({3: 90.0}, {5: 90.0})
    assert pick(sampler, values, request(**params), closed, rows=[0, 1]) == [3, STUCK]
    assert pick(sampler, values, closed, request(**params), rows=[0, 1]) == [STUCK, 5]
    assert "lets nothing follow ''" in str(closed.answer.stuck())


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}, {"min_new_tokens": 3}])
def test_what_is_drawn_ahead_is_what_is_drawn(params):
    pytest.importorskip("triton")
    from lmc.backend.engine.device_automata import Kernels
    from lmc.backend.engine.kernels import automata, mask
    from lmc.backend.engine.sampler import Sampler

    kernels = Kernels(automata.close_reference, automata.fill_reference, automata.advance_reference, mask.close_reference)

    free, bound, closed, early = (request(seed=i, stop_ids=(7,), **params) for i in range(4))
    bound.answer.matcher, closed.answer.matcher, early.answer.matcher = Bits({1, 5, 7}), Closed(True), Bits({7, 9})
    bound._free = closed._free = early._free = False  # the host follows them
    values = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    requests, rows = [bound, free, closed, early], [1, 0, 2, 1]
    expected, _ = Sampler(V).sample(values.clone(), rows, requests)
    assert Sampler(V, kernels).sample_ahead(values.clone(), rows, requests).tokens.tolist() == expected
    assert expected[2] == STUCK


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_told_and_the_rows_beside_them_go_on(sampler, value):
    values = logits({3: 1.0}, {3: 1.0, 4: value}, {4: value}, {5: 30.0})
    asked = request(), request(), request(temperature=1.0, top_p=0.9), request(temperature=1.0)
    assert pick(sampler, values, *asked) == [3, BROKEN, BROKEN, 5]
    assert sampler.sample_ahead(values.clone(), [0, 1, 2, 3], asked).tokens.tolist() == [3, BROKEN, BROKEN, 5]
