"""The Triton kernels equal the torch code beside them: compiled on a GPU, else under Triton's interpreter (conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.bfloat16] if GPU else [torch.float32]  # the interpreter's bfloat16 rounds otherwise
TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2}}


@pytest.fixture(scope="module")
def k():
    """The kernels and their references; imported late, because Triton itself is slow to import."""
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels import activation, embedding, grouped, mask, norm, peer_sum, rope

    return SimpleNamespace(
        **{n: getattr(m, n) for m in (activation, embedding, grouped, mask, norm, peer_sum, rope) for n in dir(m) if n[0] != "_"}
    )


def noise(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [64, 576])
def test_norm_after_an_addition(k, dtype, columns):
    x, residual, weight = (
        noise(5, columns, dtype=dtype),
        noise(5, columns, dtype=dtype, seed=1),
        noise(columns, dtype=dtype, seed=2),
    )
    expected, total = k.add_rms_norm_reference(x, residual, weight, 1e-5)
    torch.testing.assert_close(k.add_rms_norm(x, residual, weight, 1e-5), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(residual, total, **TOLERANCE[dtype])


def test_norm_alone_leaves_its_input(k):
    x, weight = noise(3, 96, dtype=torch.float32), noise(96, dtype=torch.float32, seed=2)
    kept = x.clone()
    expected, _ = k.add_rms_norm_reference(None, x, weight, 1e-6)
    torch.testing.assert_close(k.add_rms_norm(None, x, weight, 1e-6), expected, **TOLERANCE[torch.float32])
    assert torch.equal(x, kept)


class ThreeRanks:
    """Rank 1 of three, all played by this device."""

    def __init__(self, k, columns=96, most=8):
        self.k, self.most, self.columns, self.round = k, most, columns, 0
        self.places = [torch.full((k.PLACES, 3, most, columns), k.EMPTY, dtype=torch.int16, device=DEVICE) for _ in range(3)]
        self.addresses = torch.tensor([p.data_ptr() for p in self.places], device=DEVICE)
        self.stop, self.rounds = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in (1, 4))

    def sum(self, x, residual, weight):
        turn, self.round = self.round % 2, self.round + 1
        return self.k.sum_add_rms_norm(x, self.addresses, self.stop, self.rounds, 1, turn, self.most, residual, weight, 1e-5)


@pytest.mark.parametrize(("programs", "columns"), [(1, 96), (3, 96), (3, 99), (224, 96)])
def test_norm_after_a_sum_of_ranks_and_an_addition(k, monkeypatch, programs, columns):
    from lmc.backend.engine.kernels import peer_sum

    monkeypatch.setattr(peer_sum, "_PROGRAMS", programs)  # 1: several tiles of several rows; 3: several rows
    ranks, weight = ThreeRanks(k, columns), noise(columns, dtype=torch.float16, seed=9)
    for number, rows in enumerate((5, 5, 3, 3, 5, 8, 1, 1, 8, 8)):
        x = [noise(rows, columns, dtype=torch.float16, seed=10 * number + i) for i in range(3)]
        x[1][0, 0] = -0.0  # empty places look like that
        place = number % 3
        for other in (0, 2):  # theirs have come
            ranks.places[1][place, other, :rows] = x[other].view(torch.int16)
        residual = noise(rows, columns, dtype=torch.float16, seed=7)
        expected, total = k.add_rms_norm_reference(sum(part.float() for part in x), residual, weight, 1e-5)
        torch.testing.assert_close(ranks.sum(x[1], residual, weight), expected, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(residual, total, atol=2e-3, rtol=2e-3)
        for other in (0, 2):
            assert torch.equal(ranks.places[other][place, 1, :rows].view(torch.float16), x[1])
        used = [int((p != k.EMPTY).any(-1).any(0).sum()) for p in ranks.places[1]]
        assert used == [rows if i == place else 0 for i in range(3)], "the places of the round before are empty again"


def test_a_sum_of_lost_ranks_ends(k):
    ranks, residual = ThreeRanks(k), torch.zeros(2, 96, dtype=torch.float16, device=DEVICE)
    ranks.stop += 1  # the others never come
    x = noise(2, 96, dtype=torch.float16)
    ranks.sum(x, residual, torch.ones_like(residual[0]))
    assert torch.equal(residual, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "count", "experts"), [(1, 1, 1), (1, 2, 8), (5, 2, 4), (40, 3, 5), (90, 2, 2), (300, 2, 3)])
def test_products_of_groups(k, dtype, rows, count, experts):
    scores = noise(rows, experts, dtype=torch.float32, seed=3)
    if rows > 20:
        scores[:, 0] -= 100.0  # nobody chooses it, if others do
    chosen = scores.topk(min(count, experts), -1).indices
    x, w = noise(rows, 70, dtype=dtype), noise(experts, 90, 70, dtype=dtype, seed=1)
    weights = noise(chosen.numel(), dtype=torch.float32, seed=2)
    groups, expected = k.groups_of(chosen, experts, dtype), k.groups_of_reference(chosen, experts, dtype)
    assert int(groups.rows.sum()) == chosen.numel()
    assert all(map(torch.equal, groups[:-1], expected[:-1])) and groups.tile == expected.tile
    near = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.2, "rtol": 2e-2}
    y = k.multiply(x, w, groups, chosen.shape[1])
    torch.testing.assert_close(y, k.multiply_reference(x, w, chosen.flatten(), chosen.shape[1]), **near)
    down = noise(experts, 70, 90, dtype=dtype, seed=4)
    expected = k.multiply_reference(y, down, chosen.flatten(), 1, weights)
    near = near if dtype == torch.float32 else {"atol": 3.0, "rtol": 3e-2}
    torch.testing.assert_close(k.multiply(y, down, groups, 1, weights), expected, **near)


@pytest.mark.parametrize(("rows", "experts"), [(2, 4), (40, 4), (300, 3), (700, 3)])
def test_blocks_of_halves(k, rows, experts):
    """The tiles of 16-bit numbers, which the interpreter does not multiply."""
    chosen = noise(rows, experts, dtype=torch.float32).topk(2, -1).indices.int()
    found, expected = (groups_of(chosen, experts, torch.bfloat16) for groups_of in (k.groups_of, k.groups_of_reference))
    assert all(map(torch.equal, found[:-1], expected[:-1])) and found.tile == expected.tile
    assert int(found.rows.max()) <= found.tile.height


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("rows", "count", "experts"), [(1, 1, 1), (3, 2, 8), (9, 8, 60)])
def test_choice_of_experts(k, rows, count, experts, normed):
    from lmc.backend.engine.models.experts import routed

    scores = noise(rows, experts, dtype=torch.float32, seed=experts)
    scores[0] = 0.5  # of equals the first
    weights, chosen = k.choose(scores, count, normed=normed)
    expected, those = routed(scores, count, normed=normed)
    torch.testing.assert_close(weights, expected)
    assert torch.equal(chosen[1:], those[1:].int()) and chosen[0].tolist() == [*range(count)]


@pytest.mark.parametrize("normed", [True, False])
def test_a_row_without_scores_goes_to_experts_that_exist(k, normed):
    """Its weights are NaN, so that its answer fails; a place behind the last expert would end the device."""
    scores = noise(5, 5, dtype=torch.float32)
    scores[0], scores[1, 2], scores[2, 4], scores[3] = float("nan"), float("nan"), float("inf"), -float("inf")
    weights, chosen = k.choose(scores, 3, normed=normed)
    assert int(chosen.max()) < 5 and all(len(set(row)) == 3 for row in chosen.tolist())
    assert weights[:3].isnan().all() and not weights[4].isnan().any()


@pytest.mark.parametrize("normed", [True, False])
def test_experts_by_groups_are_those_one_by_one(k, normed):
    from lmc.backend.engine.models.experts import Experts, GroupedExperts
    from lmc.backend.engine.models.linear import Dense

    gate_up, down = noise(6, 2 * 40, 64, dtype=torch.float32, seed=1) * 0.2, noise(6, 64, 40, dtype=torch.float32, seed=2)
    experts = Experts(Dense(noise(6, 64, dtype=torch.float32)), [*map(Dense, gate_up)], [*map(Dense, down)], 2, normed, (gate_up, down))
    for rows in (1, 7, 120):
        x = noise(rows, 64, dtype=torch.float32, seed=5)
        torch.testing.assert_close(GroupedExperts(experts)(x), experts(x), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activation(k, dtype):
    gate_up = noise(3, 2 * 1500, dtype=dtype)
    torch.testing.assert_close(k.silu_mul(gate_up), k.silu_mul_reference(gate_up), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("dim", [16, 24], ids=["power of two", "other"])
def test_rotation_and_append(k, dtype, normed, dim):
    rows, heads, kv_heads, slots = 4, 6, 2, 11
    qkv = noise(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = torch.outer(torch.arange(32.0), torch.logspace(0, -2, dim // 2))
    turns = torch.stack((angles.cos(), angles.sin()), -1).to(DEVICE)
    positions, where = torch.tensor([0, 7, 31, 7], device=DEVICE), torch.tensor([3, 0, 10, 5], device=DEVICE)
    norms = (noise(dim, dtype=dtype, seed=4), noise(dim, dtype=dtype, seed=5)) if normed else None
    stores = [torch.full((slots, kv_heads, dim), -7.0, device=DEVICE, dtype=dtype) for _ in range(4)]
    expected = k.rope_append_reference(qkv, positions, where, turns, *stores[:2], norms, 1e-5)
    found = k.rope_append(qkv, positions, where, turns, *stores[2:], norms, 1e-5)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
    for ours, reference in zip(stores[2:], stores[:2], strict=True):  # other slots untouched too
        torch.testing.assert_close(ours, reference, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("dim", [16, 24], ids=["power of two", "other"])
def test_rotation_and_append_in_fp8(k, dtype, normed, dim):
    from lmc.backend.engine.kv_fp8 import Fp8Rows

    rows, heads, kv_heads, slots = 4, 6, 2, 11
    qkv = noise(rows, (heads + 2 * kv_heads) * dim, dtype=dtype) * torch.logspace(-3, 3, rows, device=DEVICE, dtype=dtype)[:, None]
    qkv[1, heads * dim :] = 0  # scales of zeros
    angles = torch.outer(torch.arange(32.0), torch.logspace(0, -2, dim // 2))
    turns = torch.stack((angles.cos(), angles.sin()), -1).to(DEVICE)
    positions, where = torch.tensor([0, 7, 31, 7], device=DEVICE), torch.tensor([3, 0, 10, 5], device=DEVICE)
    norms = (noise(dim, dtype=dtype, seed=4), noise(dim, dtype=dtype, seed=5)) if normed else None
    stores = [Fp8Rows.zeros(slots, kv_heads, dim, DEVICE) for _ in range(4)]
    expected = k.rope_append_reference(qkv, positions, where, turns, *stores[:2], norms, 1e-5)
    found = k.rope_append(qkv, positions, where, turns, *stores[2:], norms, 1e-5)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
    for ours, right in zip(stores[2:], stores[:2], strict=True):
        torch.testing.assert_close(ours.scales, right.scales, rtol=1e-5, atol=0)
        a, b = ours[:], right[:]
        step = right.scales[..., None] * 32  # of its largest numbers; the interpreter forgets the carry where one is rounded up to a power of two
        differs = (a - b).abs()
        if not GPU:
            differs[torch.frexp(right.numbers.float().abs())[0] == 0.5] = 0.0
        assert bool((differs <= step).all()) and float((differs > step * 1e-4).float().mean()) < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_of_known_and_sampled_tokens(k, dtype):
    table, sampled = noise(20, 48, dtype=dtype), torch.tensor([7, 3, 11], dtype=torch.int32, device=DEVICE)
    ids = torch.tensor([0, -1, 19, -3, -2, 5], dtype=torch.int32, device=DEVICE)
    found = k.embed(ids, sampled, table)
    assert torch.equal(found, k.embed_reference(ids, sampled, table))
    assert torch.equal(found, table[[0, 7, 19, 11, 3, 5]])


@pytest.mark.parametrize("columns", [40, 2100])
def test_closing_what_a_constraint_does_not_allow(k, columns):
    logits, words = noise(4, columns, dtype=torch.float32), (columns + 31) // 32
    bits = torch.randint(-(2**31), 2**31, (2, words), generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.int32)
    rows, found = torch.tensor([3, 1], device=DEVICE), logits.clone()
    k.close(found, rows, bits)
    k.close_reference(logits, rows, bits)
    assert torch.equal(found, logits)
    assert 0 < int((found[rows] == -torch.inf).sum()) < 2 * columns
    assert bool((found[[0, 2]] > -torch.inf).all())


def test_no_rows_is_no_launch(k):
    empty = torch.empty(0, 64, device=DEVICE)
    assert k.add_rms_norm(None, empty, torch.ones(64, device=DEVICE), 1e-5).shape == (0, 64)
    assert k.silu_mul(empty).shape == (0, 32)


@pytest.mark.parametrize("shapes", [[(2, 8)] * 4, [(2, 4), (2, 4), (1, 6), (1, 3)], [(1, 3), (8, 300)]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # bits are copied
def test_scattered_slots_of_all_layers_are_packed_and_unpacked(shapes, dtype):
    """Shapes that are alike, that are not, and one of which a program copies in several steps."""
    from lmc.backend.engine.kernels.kv_gather import Packing
    from lmc.backend.engine.kv_copy import gather_reference, scatter_reference

    stores = [noise(20, *shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    slots, others = torch.tensor([3, 9, 4, 0, 19], device=DEVICE), torch.tensor([1, 2, 8, 11, 12], device=DEVICE)
    width = sum(heads * dim for heads, dim in shapes)
    rows, expected = torch.empty(6, width, dtype=dtype, device=DEVICE), torch.empty(5, width, dtype=dtype, device=DEVICE)
    rows[5] = 7.0
    packing = Packing.of(stores)
    packing.gather(slots, rows[:5])
    gather_reference(stores, slots, expected)
    assert torch.equal(rows[:5], expected) and bool((rows[5] == 7.0).all())
    copies = [store.clone() for store in stores]
    packing.scatter(others, rows[:5])
    scatter_reference(copies, others, expected)
    assert all(torch.equal(store, copy) for store, copy in zip(stores, copies, strict=True))
    assert torch.equal(stores[0][others], stores[0][slots])
