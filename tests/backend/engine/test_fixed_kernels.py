"""What `deterministic=True` computes with on a GPU: the same bits for a row whatever else is in its pass. Compiled on a GPU, else under Triton's
interpreter (conftest.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.tiles import BLOCK, Tiler  # noqa: E402
from lmc.backend.engine.models.linear import Dense  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 16, 1200


@pytest.fixture(autouse=True)
def triton():
    return pytest.importorskip("triton")


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


@pytest.mark.parametrize("wide", [64, 10**6], ids=["one part", "parts"])
@pytest.mark.parametrize(("outputs", "columns"), [(96, 200), *([(4096, 14336), (28672, 4096), (1000, 576)] if GPU else [])])
def test_a_rows_product_is_the_same_among_1_7_64_and_more(wide, outputs, columns, monkeypatch):
    from lmc.backend.engine.kernels import fixed

    monkeypatch.setattr(fixed, "_WIDE", wide)
    weight, bias, x = random(outputs, columns), random(outputs, seed=1), random(600 if GPU else 140, columns, seed=2)
    product = fixed.fixed_products(torch.device(DEVICE))("layers.0.qkv", Dense(weight, bias))
    assert product.heights, "no height of tiles gives the same bits"
    every = product(x)
    for rows in (1, 7, 16, 64, 100):
        for first in (0, 5, len(x) - rows) if GPU else (5,):
            assert torch.equal(product(x[first : first + rows]), every[first : first + rows]), f"{rows} rows from {first} on"
    expected = x.double() @ weight.double().T + bias.double()
    assert (every - expected).norm() < (1e-2 if GPU else 1e-5) * expected.norm()


def test_heights_whose_bits_differ_are_not_used(monkeypatch):
    from lmc.backend.engine.kernels import fixed

    product = fixed.FixedProduct(Dense(random(32, 64)), fixed.Room(32, torch.device(DEVICE)))
    right = fixed.FixedProduct.multiply

    def other(self, x, height, dtype):
        y = right(self, x, height, dtype)
        return y + 1e-5 * y if height == 16 or (height == 64 and len(x) == 1) else y

    monkeypatch.setattr(fixed.FixedProduct, "multiply", other)
    assert not {16, 64} & set(product.agreeing())


def attended(spans, q, keys, values):
    """Of spans (rows, slots), the rows of `q` at the end of each context, in a pass."""
    from lmc.backend.engine.kernels.attention import attend
    from lmc.backend.engine.kernels.pieces import DevicePlan, Partials
    from tests.backend.engine.test_attention_kernel import TABLES

    lengths, slots = np.array([rows for rows, _ in spans]), [found for _, found in spans]
    tiler = Tiler(HEADS, KV_HEADS, shares=3, wide_shares=5, piece=2)
    plan = tiler.plan(lengths, slots, np.zeros(len(spans), np.int64), (), len(q))
    assert not len(plan.narrow)

    def to(array):
        return torch.as_tensor(np.ascontiguousarray(array, np.int32), device=DEVICE)

    positions = to(np.concatenate([np.arange(len(found) - rows, len(found)) for rows, found in spans]))
    tables = DevicePlan(*(to(getattr(plan, name)) for name in TABLES))
    partials = Partials(int(plan.indptr[-1]) + 1, HEADS, DIM, q.device)
    return attend(q, keys, values, positions, tables, partials, wide=True)


@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
def test_a_rows_attention_is_the_same_however_its_prompt_is_cut(fp8):
    from tests.backend.engine.test_attention_kernel import quantized, reference

    keys, values, n = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM, seed=1), 300 if GPU else 140
    if fp8:
        keys, values = quantized(keys), quantized(values)
    every, q = np.random.default_rng(0).permutation(SLOTS), random(n, HEADS, DIM, seed=2)
    own, others = every[:n], [every[n + 10 * i :][: 60 * i + 3] for i in range(6)]
    whole = attended([(n, own)], q, keys, values)
    expected = reference(q, keys[:], values[:], [(n, torch.as_tensor(own, device=DEVICE))], None)
    assert (whole - expected).norm() < (1e-2 if GPU else 1e-5) * expected.norm()
    for cut in (1, 37, 64):  # chunks, each beside other sequences
        for first in range(0, n, cut) if cut > 1 else (0, 63, 64, 127, 128, n - 1):
            rows = q[first : first + cut]
            beside = others[: first % 5]
            spans = [*((1, slots) for slots in beside), (len(rows), own[: first + len(rows)]), (3, others[5])]
            found = attended(spans, torch.cat((random(len(beside), HEADS, DIM, seed=first), rows, random(3, HEADS, DIM))), keys, values)
            assert torch.equal(found[len(beside) : len(beside) + len(rows)], whole[first : first + cut]), f"rows from {first} on"


def test_pieces_begin_at_multiples_of_their_length():
    tiler = Tiler(HEADS, KV_HEADS, shares=4, wide_shares=7, piece=3)
    lengths, contexts = np.array([1, 40, 1, 1]), [10, 700, 3 * BLOCK, 3 * BLOCK + 1]
    plan = tiler.plan(lengths, [np.arange(n) for n in contexts], np.zeros(4, np.int64), (), 50)
    assert (plan.wide[:, 4] % (3 * BLOCK) == 0).all() and (plan.wide[:, 3] - plan.wide[:, 2] <= 3).all()
    assert plan.wide_shares[0] == 0 and plan.wide_shares[-1] == len(plan.wide) and (np.diff(plan.wide_shares) >= 0).all()
    for row, context in ((0, 10), (40, 700), (41, 3 * BLOCK), (42, 3 * BLOCK + 1)):
        pieces = plan.wide[(plan.wide[:, 0] <= row) & (row < plan.wide[:, 0] + plan.wide[:, 1])]
        assert pieces[:, 6].sum() == context
        assert plan.indptr[row + 1] - plan.indptr[row] == (len(pieces) if len(pieces) > 1 else 0)
