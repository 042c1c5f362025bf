"""Attention by tiles gives what each row's own softmax gives, however a pass is cut: compiled on a GPU, else under Triton's
interpreter (conftest.py)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.tiles import Shared, Tiler  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
SLOTS = 1200
TABLES = ("narrow", "narrow_shares", "wide", "wide_shares", "indptr", "indices")  # of a plan, as kernels read them


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


def attended(q, keys, values, spans, groups=(), shares=3, window=None, widen=False):
    """What the kernels compute of a pass, see `check`. widen: wide tiles read KV in FP8 that was widened first."""
    from lmc.backend.engine.kernels.attention import attend, attend_quantized
    from lmc.backend.engine.kernels.pieces import DevicePlan, Partials, Widened
    from lmc.backend.engine.kernels.quantize import quantize

    (rows, heads, dim), kv_heads = q.shape, keys.shape[1]
    cuts = np.zeros(len(spans), np.int64)
    for first, n, length in groups:
        cuts[first : first + n] = length
    own = [slots[cut:] for (_, slots), cut in zip(spans, cuts, strict=True)]
    shared = [Shared(first, n, spans[first][1][:length]) for first, n, length in groups]
    tiler = Tiler(heads, kv_heads, shares, window)
    plan = tiler.plan(np.array([n for n, _ in spans]), own, cuts, shared, rows, widen=widen)

    def to(array):
        return torch.as_tensor(np.ascontiguousarray(array, np.int32), device=DEVICE)

    positions = to(np.concatenate([np.arange(len(slots) - n, len(slots)) for n, slots in spans]))
    room = Widened.empty(plan.widened * 64, kv_heads, dim, q.dtype, q.device) if widen and plan.widened else None
    tables = DevicePlan(*(to(getattr(plan, name)) for name in TABLES), room)
    partials = Partials(tiler.most_partials(rows), heads, dim, q.device)
    how = {"wide": len(plan.wide) > 0, "window": window or 0}
    found = attend(q, keys, values, positions, tables, partials, **how)
    if GPU or isinstance(keys, torch.Tensor):  # which differs where all KV has been read
        for given, expected in zip(attend_quantized(q, keys, values, positions, tables, partials, **how), quantize(found.view(rows, -1)), strict=True):
            assert torch.equal(given.float(), expected.float())
    return found


def check(spans, groups=(), shape=(4, 2, 16), shares=3, window=None, kv=""):
    """spans: (rows, slots); groups: (first span, spans, slots that they share); kv: a key of KV."""
    heads, kv_heads, dim = shape
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(sum(n for n, _ in spans), heads, dim, generator=generator).to(DEVICE, DTYPE)
    keys, values = (torch.randn(SLOTS, kv_heads, dim, generator=generator).to(DEVICE, DTYPE) for _ in range(2))
    if kv:
        keys, values = (quantized(x) for x in (keys, values))
    found = attended(q, keys, values, spans, groups, shares, window, kv == "widened").double()
    if kv:
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


def pairs(names, one, other):
    """All of one with all of the other on a GPU; under the interpreter, which takes seconds, each with one, in turn: they choose among different lines."""
    return pytest.mark.parametrize(names, list(itertools.product(one, other) if GPU else zip(one, itertools.cycle(other))), ids=str)


KV = pytest.mark.parametrize("kv", ("", "fp8", "widened"))
DECODE = [(1, n) for n in (3, 200, 64, 65)]
MIXED = [(1, 90), (3, 50), (7, 130), (2, 2), (40, 40), (1, 150), (35, 100)]


@pytest.mark.parametrize("sizes", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("window", [None, 37])
@KV
def test_rows_read_their_slots(sizes, window, kv):
    check(list(spans_of(*sizes)), window=window, kv=kv)


@pairs(("shape", "shares"), [(6, 2, 24), (4, 4, 16), (3, 1, 16)], [1, 7, 40])
@KV
def test_any_shape_and_any_cut(shape, shares, kv):
    check(list(spans_of((1, 90), (3, 50), (20, 130), (1, 200))), shape=shape, shares=shares, kv=kv)


@pairs(("span", "shares"), [(1, 170), (6, 70), (20, 300)], [3, 40])
@KV
def test_a_lone_span_sees_nothing_behind_its_slots(span, shares, kv):
    check(list(spans_of(span)), shares=shares, kv=kv)


@pairs(("kv", "shares"), ["", "fp8", "widened"], [2, 9])
def test_a_prefix_is_read_by_its_group(kv, shares):
    slots = np.random.default_rng(1).permutation(SLOTS)
    first, second = slots[:150], slots[150:230]
    own = [slots[300 + 20 * i :][: 3 + i % 9] for i in range(26)]
    spans = [(1, np.concatenate((first if i < 19 else second, tail))) for i, tail in enumerate(own)]
    spans += [(1, slots[900:1000]), (9, slots[1000:1050])]
    check(spans, [(0, 19, 150), (19, 7, 80)], shares=shares, kv=kv)


def test_what_several_prompts_read_is_widened_once():
    slots = np.random.default_rng(2).permutation(SLOTS)
    prefix = slots[:200]
    spans = [(20 + i, np.concatenate((prefix[: 200 - 70 * (i % 2)], slots[300 + 40 * i :][: 20 + i]))) for i in range(6)]
    plan = Tiler(4, 2, 3).plan(np.array([n for n, _ in spans]), [s for _, s in spans], np.zeros(6, np.int64), (), 135, widen=True)
    assert plan.widened == 3 + 6  # 192 slots and 128 are three full blocks; each has what is behind them for itself
    check(spans, kv="widened")
