"""A token far back is recalled from KV in FP8: one key among thousands has most of the weight, and the many small ones are not lost, either.

Sums of 14 bits lose them, which is what e4m3 products on Hopper are added up in unless a second sum takes over every few (arXiv 2407.08608, 2412.19437).
Attention here multiplies in float16 or wider and adds in float32, in one sum for a piece, however long: at full size the tolerance is between both.
"""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.base import Span  # noqa: E402
from lmc.backend.engine.attention.fixed import FixedAttention  # noqa: E402
from lmc.backend.engine.attention.torch_ref import fast  # noqa: E402
from lmc.backend.engine.kv_fp8 import Fp8Rows  # noqa: E402
from tests.backend.engine.test_attention_kernel import DEVICE, DTYPE, GPU, attended, reference  # noqa: E402

HEADS, KV_HEADS, DIM = 8, 2, 128
SIZES = [pytest.param(1024, id="1k"), pytest.param(32768, marks=pytest.mark.gpu, id="32k")]
TOLERANCE = 7e-3 if GPU else 2e-5  # of what the kernels compute from the rows as they are stored: bfloat16 rounds a result by up to 2e-3
STORED = 0.06  # and what e4m3 changes in them, at most
WEIGHT = 0.8  # that a needle has at least


class Haystack:
    """Keys, values and rows of q, each of which looks for a needle, but every fourth weighs all slots alike. The two heads of k differ in size."""

    def __init__(self, slots: int, rows: int) -> None:
        generator = torch.Generator().manual_seed(slots)
        sizes = torch.tensor([1.0, 50.0])[:, None]
        keys, values = (torch.randn(slots, KV_HEADS, DIM, generator=generator) for _ in range(2))
        self.needles = [i * (slots - rows - 1) // max(1, rows - 1) for i in range(rows)]  # the first slot is one, the last is near the rows
        keys *= DIM**0.5 / keys.norm(dim=-1, keepdim=True)
        values += 1.0  # so that the small ones add up
        values[self.needles] *= 3.0
        sharp = (np.log(slots) + 2.2) / (DIM**0.5 - 0.6)
        q = keys[self.needles].repeat_interleave(HEADS // KV_HEADS, 1) * sharp
        q[3::4] = 0.0
        self.q = (q / sizes.repeat_interleave(HEADS // KV_HEADS, 0)).to(DEVICE, DTYPE)
        self.keys, self.values = ((x * size).to(DEVICE) for x, size in ((keys, sizes), (values, 6 * sizes)))
        self.slots = torch.randperm(slots, generator=generator).to(DEVICE)  # where the tokens are in the pool
        self.stores = []
        for x in (self.keys, self.values):
            store = Fp8Rows.zeros(slots, KV_HEADS, DIM, DEVICE)
            store.index_copy_(0, self.slots, x)
            self.stores.append(store)

    def check(self, found: torch.Tensor) -> None:
        """Check that each row recalls its needle, as its own softmax over the stored rows, and nearly as over those before, in float64."""
        rows, found = len(self.q), found.double()
        exact = reference(self.q, self.keys, self.values, [(rows, torch.arange(len(self.keys), device=DEVICE))], None)
        stored = reference(self.q, *(x[:] for x in self.stores), [(rows, self.slots)], None)
        for expected, most in ((stored, TOLERANCE), (exact, STORED)):
            worst = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
            assert worst < most, f"a row's head is off by {worst}"
        needles = self.values[self.needles].double().repeat_interleave(HEADS // KV_HEADS, 1)
        near = torch.einsum("rhd,nhd->hrn", found, needles) / needles.pow(2).sum(-1).T[:, None]
        looks = [row for row in range(rows) if row % 4 < 3]
        assert bool((near[:, looks].argmax(-1) == torch.tensor(looks, device=DEVICE)).all()), "another needle"
        assert bool((near[:, looks, looks] > WEIGHT).all())


@pytest.mark.parametrize("slots", SIZES)
@pytest.mark.parametrize(("kind", "rows", "shares"), [("decode", 4, 9), ("prompt", 21, 1), ("widened", 21, 9)])
def test_one_key_of_thousands_is_recalled(slots, kind, rows, shares):
    """In tiles of decoding rows, of prompts, and of prompts over KV that is widened first; a tile in one piece, and cut into many."""
    hay = Haystack(slots, rows)
    hay.check(attended(hay.q, *hay.stores, [(rows, hay.slots.cpu().numpy())], shares=shares, widen=kind == "widened"))


@pytest.mark.parametrize("slots", [1024, 4096])
@pytest.mark.parametrize("rows", [1, 21])
@pytest.mark.skipif(GPU, reason="how a CPU attends")
@pytest.mark.parametrize("plan", [fast, FixedAttention(HEADS, KV_HEADS, DIM)], ids=["fast", "fixed"])
def test_so_it_is_on_a_cpu(slots, rows, plan):
    hay = Haystack(slots, rows)
    hay.check(plan([Span(0, rows, hay.slots)]).attend(hay.q, *hay.stores))


def test_sums_of_fourteen_bits_would_be_noticed():
    """Where nothing stands out each of many slots has a part in the mean: as products of 32 slots at a time would be added up."""
    hay, total = Haystack(32768, 4), np.zeros(DIM, np.float32)
    values = hay.values[:, 0].float().cpu().numpy().reshape(-1, 32, DIM).sum(1)
    for part in values:
        mantissa, exponent = np.frexp(total + part)
        total = np.ldexp(np.trunc(mantissa * 2**14) / 2**14, exponent).astype(np.float32)
    off = np.linalg.norm(total - values.sum(0, dtype=np.float64)) / np.linalg.norm(values.sum(0, dtype=np.float64))
    assert off > 2 * 7e-3, off
