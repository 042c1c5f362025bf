"""The fast attention path equals the reference, in float64, on ragged batches with shared, scattered and own slots."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.base import Span  # noqa: E402
from lmc.backend.engine.attention.torch_ref import FastPlan, fast, reference, span_mask  # noqa: E402

HEADS, KV_HEADS, DIM, SLOTS = 6, 2, 16, 4096


def store(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SLOTS, KV_HEADS, DIM, generator=generator) for _ in range(2)]


def attend(plan, rows, seed=0):
    """(ours in float32, the reference in float64) for random queries; slots of none of the spans hold NaN."""
    keys, values = store(seed)
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[torch.cat([span.slots for span in plan[0]])] = False
    keys[others] = values[others] = torch.nan
    q = torch.randn(rows, HEADS, DIM, generator=torch.Generator().manual_seed(seed + 1))
    spans, window = plan
    expected = reference(spans, window).attend(q.double(), keys.double(), values.double())
    return fast(spans, window).attend(q, keys, values), expected


def check(spans, window=None, seed=0):
    ours, expected = attend((spans, window), sum(s.length for s in spans), seed)
    torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=1e-4)


def spans_of(*contexts):
    """Spans from (length, slots), rows one after the other."""
    found, start = [], 0
    for length, slots in contexts:
        found.append(Span(start, length, torch.as_tensor(slots)))
        start += length
    return tuple(found)


def test_the_reference_is_the_definition():
    keys, values = store(3)
    q = torch.randn(2, HEADS, DIM)
    span = Span(0, 2, torch.tensor([7, 3, 9]))
    out = reference((span,)).attend(q, keys, values)
    for row, seen in ((0, [7, 3]), (1, [7, 3, 9])):
        for head in range(HEADS):
            k, v = keys[seen, head // 3], values[seen, head // 3]
            weights = torch.softmax(k @ q[row, head] / DIM**0.5, 0)
            torch.testing.assert_close(out[row, head], weights @ v)


ROOT, LEFT = [*range(500)], [*range(600, 900)]
PASSES = {
    "a prompt alone": [(17, range(100, 117))],
    "a chunk after earlier context": [(5, range(40, 60))],
    "a decode row over consecutive slots": [(1, range(10, 300))],
    "over scattered ones": [(1, [5, 900, 17, 3000, 2])],
    "over one": [(1, [77])],
    "decode rows of very different lengths": [(1, range(start, start + n)) for start, n in ((0, 1), (100, 700), (900, 3), (1000, 90), (2000, 64))],
    "siblings over a shared prefix, cousins over a shorter one": [
        (1, ROOT + own) for own in (LEFT + [1000], LEFT + [1001, 1002], LEFT + [1003], [1100, 1101], [1102])
    ],
    "rows that share all but their own slot": [(1, [*range(400), 500]), (1, [*range(400), 501])],
}


@pytest.mark.parametrize("name", PASSES)
def test_passes(name):
    check(spans_of(*PASSES[name]))


def test_shared_prefixes_are_read_once():
    plan = fast(spans_of(*((1, [*ROOT, 1000 + i]) for i in range(4))))
    assert isinstance(plan, FastPlan)
    assert len(plan.layered) == 2  # the prefix for all, the own slots for all


def test_a_sliding_window():
    check(spans_of((9, range(30))), window=4)
    check(spans_of((1, range(30)), (1, range(100, 103))), window=4)
    check(spans_of((9, range(9))), window=20)


@pytest.mark.parametrize("seed", range(25))
def test_random_mixed_batches(seed):
    rng = random.Random(seed)
    prefixes = [list(range(rng.choice([0, 3, 300, 700]))) for _ in range(2)]
    contexts = []
    free = rng.sample(range(1000, SLOTS), 2000)
    for _ in range(rng.randint(1, 9)):
        prefix = rng.choice(prefixes)
        prefix = prefix[: rng.randint(0, len(prefix))] if rng.random() < 0.3 else prefix
        own = [free.pop() for _ in range(rng.randint(1, 60))]
        if rng.random() < 0.5:
            own.sort()
        length = 1 if rng.random() < 0.6 else rng.randint(1, len(own))
        contexts.append((length, prefix + own))
    check(spans_of(*contexts), window=rng.choice([None, None, 50]), seed=seed)


@pytest.mark.parametrize(("window", "seen"), [(None, "111110 111110 111111"), (3, "011110 001110 000111")])
def test_rows_of_a_picture_see_all_of_it(window, seen):
    span = Span(0, 3, torch.tensor([9, 8, 40, 41, 42, 60]), mutual=((2, 5),))  # its last row is behind the picture
    rows = span_mask(span, window).int().tolist()
    assert " ".join("".join(map(str, row)) for row in rows) == seen
    check((span, Span(3, 1, torch.arange(100, 130))), window)
