"""Attention by tiles gives what each row's own softmax gives, however a pass is cut: compiled on a GPU, else under Triton's
interpreter (conftest.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.tiles import Shared, Tiler  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
SLOTS = 1200


def reference(q, keys, values, spans, window):
    """[T, num_heads, head_dim] float64, a span (rows, slots) after the other."""
    out, begin, share = torch.empty_like(q, dtype=torch.float64), 0, q.shape[1] // keys.shape[1]
    for rows, slots in spans:
        k, v = (x[slots].double().repeat_interleave(share, 1) for x in (keys, values))
        score = torch.einsum("thd,nhd->htn", q[begin : begin + rows].double(), k) * q.shape[2] ** -0.5
        row, slot = torch.arange(rows)[:, None] + len(slots) - rows, torch.arange(len(slots))[None]
        hidden = slot > row
        if window is not None:
            hidden |= slot <= row - window
        score.masked_fill_(hidden.to(q.device), -torch.inf)
        out[begin : begin + rows] = torch.einsum("htn,nhd->thd", score.softmax(-1), v)
        begin += rows
    return out


def check(spans, groups=(), shape=(4, 2, 16), shares=3, window=None, fp8=False):
    """spans: (rows, slots); groups: (first span, spans, slots that they share)."""
    from lmc.backend.engine.kernels.attention import DevicePlan, Partials, attend, attend_quantized
    from lmc.backend.engine.kernels.quantize import quantize

    heads, kv_heads, dim = shape
    lengths, generator = np.array([n for n, _ in spans]), torch.Generator().manual_seed(0)
    rows = int(lengths.sum())
    q = torch.randn(rows, heads, dim, generator=generator).to(DEVICE, DTYPE)
    keys, values = (torch.randn(SLOTS, kv_heads, dim, generator=generator).to(DEVICE, DTYPE) for _ in range(2))
    if fp8:
        keys, values = (quantized(x) for x in (keys, values))
    cuts = np.zeros(len(spans), np.int64)
    for first, n, length in groups:
        cuts[first : first + n] = length
    own = [slots[cut:] for (_, slots), cut in zip(spans, cuts, strict=True)]
    shared = [Shared(first, n, spans[first][1][:length]) for first, n, length in groups]
    tiler = Tiler(heads, kv_heads, shares, window)
    plan = tiler.plan(lengths, own, cuts, shared, rows)

    def to(array):
        return torch.as_tensor(np.ascontiguousarray(array, np.int32), device=DEVICE)

    positions = to(np.concatenate([np.arange(len(slots) - n, len(slots)) for n, slots in spans]))
    tables = DevicePlan(*(to(getattr(plan, name)) for name in DevicePlan.__dataclass_fields__))
    partials = Partials(tiler.most_partials(rows), heads, dim, q.device)
    how = {"wide": len(plan.wide) > 0, "window": window or 0}
    found = attend(q, keys, values, positions, tables, partials, **how)
    for given, expected in zip(attend_quantized(q, keys, values, positions, tables, partials, **how), quantize(found.view(rows, -1)), strict=True):
        assert torch.equal(given.float(), expected.float())
    found = found.double()
    if fp8:
        keys, values = keys[:], values[:]
    expected = reference(q, keys, values, [(n, torch.as_tensor(s, device=DEVICE)) for n, s in spans], window)
    worst = ((found - expected).flatten(1).norm(dim=-1) / expected.flatten(1).norm(dim=-1)).max()
    assert worst < (2e-2 if GPU else 1e-5), f"a row is off by {worst}"


def quantized(x):
    """Rows of very different sizes, each with scales of its own."""
    from lmc.backend.engine.kv_fp8 import Fp8Rows

    found = Fp8Rows.zeros(*x.shape, DEVICE)
    sizes = torch.logspace(-3, 1, len(x), device=DEVICE)[torch.randperm(len(x), generator=torch.Generator().manual_seed(3)), None, None]
    found.index_copy_(0, torch.arange(len(x), device=DEVICE), x.float() * sizes)
    return found


def spans_of(*sizes):
    """(rows, context) each, over slots of its own."""
    slots, begin = np.random.default_rng(0).permutation(SLOTS), 0
    for rows, context in sizes:
        yield rows, slots[begin : begin + context]
        begin += context


CASES = {
    "one row": [(1, 170)],
    "decode": [(1, n) for n in (3, 200, 64, 65)],
    "constants": [(1, 90), (3, 50), (7, 130), (2, 2)],
    "prompts": [(40, 40), (1, 150), (35, 100)],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
def test_rows_read_their_slots(case, window, fp8):
    check(list(spans_of(*CASES[case])), window=window, shares=3, fp8=fp8)


@pytest.mark.parametrize("shape", [(6, 2, 24), (4, 4, 16), (3, 1, 16)], ids=str)
@pytest.mark.parametrize("shares", [1, 40])
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
def test_any_shape_and_any_cut(shape, shares, fp8):
    check(list(spans_of((1, 90), (3, 50), (20, 130), (1, 200))), shape=shape, shares=shares, fp8=fp8)


@pytest.mark.parametrize("shares", [2, 9])
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
def test_a_prefix_is_read_by_its_group(shares, fp8):
    slots = np.random.default_rng(1).permutation(SLOTS)
    first, second = slots[:150], slots[150:230]
    own = [slots[300 + 20 * i :][: 3 + i % 9] for i in range(26)]
    spans = [(1, np.concatenate((first if i < 19 else second, tail))) for i, tail in enumerate(own)]
    spans += [(1, slots[900:1000]), (9, slots[1000:1050])]
    check(spans, [(0, 19, 150), (19, 7, 80)], shares=shares, fp8=fp8)
