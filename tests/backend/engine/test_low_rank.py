"""What adapters add to products on a GPU: compiled on one, else under Triton's interpreter (conftest.py)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

from lmc.backend.engine.models.adapters import AdaptedRows, Factors  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NEAR = {torch.float32: {"atol": 1e-4, "rtol": 1e-4}, torch.float16: {"atol": 2e-2, "rtol": 2e-3}, torch.bfloat16: {"atol": 0.15, "rtol": 2e-2}}
DTYPES = [*NEAR] if GPU else [torch.float32, torch.float16]  # the interpreter does not multiply bfloat16


@pytest.fixture(autouse=True)
def low_rank():
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels import low_rank

    return low_rank


class Noise:
    def __init__(self, dtype, seed=0):
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(seed)

    def __call__(self, *shape, size=0.3):
        return (torch.randn(*shape, generator=self.generator) * size).to(DEVICE, self.dtype)

    def numbers(self, rows, count):
        return torch.randint(0, count + 1, (rows,), generator=self.generator, dtype=torch.int32).to(DEVICE)

    def factors(self, rank, columns, parts):
        return Factors(self(rank * len(parts), columns, size=columns**-0.5), tuple(AdaptedRows(first, self(n, rank)) for first, n in parts))


PARTS = {"even": ((0, 304), (304, 32), (336, 128)), "odd": ((0, 300), (300, 10), (310, 23)), "one": ((0, 130),)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("parts", "columns"), [("even", 700), ("odd", 48), ("one", 256)])
def test_rows_of_adapters_of_several_ranks(low_rank, dtype, parts, columns):
    """One leaves the matrix as it is, others change some of its parts; one has more ranks than a step."""
    noise, parts = Noise(dtype), PARTS[parts]
    outputs = parts[-1][0] + parts[-1][1]
    every = [noise.factors(8, columns, parts), None, noise.factors(64, columns, parts[1:] or parts), noise.factors(16, columns, parts[:1])]
    stacked = low_rank.stack(every)
    assert stacked.even == all(n % 16 == 0 for part in parts for n in part)
    for rows in (1, 23, 133):
        numbers, x, y = noise.numbers(rows, len(every)), noise(rows, columns), noise(rows, outputs)
        numbers[-1] = 3
        expected = low_rank.add_reference(x, y, every, numbers)
        groups, found = low_rank.group(numbers, len(every), dtype), y.clone()
        assert low_rank.add(x, found, stacked, groups) is found
        torch.testing.assert_close(found, expected, **NEAR[dtype])
        untouched = (numbers == 0) | (numbers == 2)
        assert torch.equal(found[untouched], y[untouched]) and not torch.equal(found[-1], y[-1])


def test_rows_of_one_adapter_among_many_and_none_at_all(low_rank):
    noise = Noise(torch.float32)
    every = [noise.factors(3, 64, ((0, 40),)) for _ in range(30)]
    stacked, x, y = low_rank.stack(every), noise(20, 64), noise(20, 40)
    for number in (0, 1, 30):
        numbers = torch.full((20,), number, dtype=torch.int32, device=DEVICE)
        found = low_rank.add(x, y.clone(), stacked, low_rank.group(numbers, 30, x.dtype))
        torch.testing.assert_close(found, low_rank.add_reference(x, y, every, numbers), **NEAR[x.dtype])
    assert low_rank.add(x[:0], y[:0], stacked, low_rank.group(numbers[:0], 30, x.dtype)).shape == (0, 40)


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("ranks", [16, 64])
def test_products_are_the_same_however_they_are_cut(low_rank, parts, ranks):
    """Of columns that end in the middle of a step, with parts that have none."""
    noise = Noise(torch.float32)
    every = [noise.factors(20, 600, ((0, 64), (64, 96))) for _ in range(2)]
    numbers, x, y = noise.numbers(9, 2), noise(9, 600), noise(9, 160)
    found = low_rank.add(x, y.clone(), low_rank.stack(every), low_rank.group(numbers, 2, x.dtype), low_rank.LowRankCut(parts, ranks, 16))
    torch.testing.assert_close(found, low_rank.add_reference(x, y, every, numbers), **NEAR[x.dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 64, 300])
def test_graphs_follow_the_adapters_of_rows(low_rank, rows):
    """MLPs one behind the other, so that launches overlap: replayed with other adapters, and with the same bits each time."""
    from lmc.backend.engine.kernels.activation import silu_mul, silu_mul_reference
    from lmc.backend.engine.kernels.norm import add_rms_norm, add_rms_norm_reference

    noise, hidden, inner = Noise(torch.bfloat16), 2048, 5632
    shapes = ((hidden, ((0, inner), (inner, inner))), (inner, ((0, hidden),)))
    every = [[[noise.factors(rank, n, parts) for rank in (16, 8, 64, 16)] for n, parts in shapes] for _ in range(6)]
    weights = [[noise(sum(n for _, n in parts), columns, size=columns**-0.5) for columns, parts in shapes] for _ in every]
    stacks = [[low_rank.stack(factors) for factors in layer] for layer in every]
    numbers, x, ones = noise.numbers(rows, 4), noise(rows, hidden, size=1.0), torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16)

    def computed():
        groups, more, residual = low_rank.group(numbers, 4, x.dtype), x, torch.zeros_like(x)
        for (up, down), (of_up, of_down) in zip(weights, stacks, strict=True):
            normed = add_rms_norm(more, residual, ones, 1e-5)
            inside = silu_mul(low_rank.add(normed, normed @ up.t(), of_up, groups))
            more = low_rank.add(inside, inside @ down.t(), of_down, groups)
        return more

    def expected():
        more, residual = x, torch.zeros_like(x)
        for (up, down), (of_up, of_down) in zip(weights, every, strict=True):
            normed, residual = add_rms_norm_reference(more, residual, ones, 1e-5)
            inside = silu_mul_reference(low_rank.add_reference(normed, normed @ up.t(), of_up, numbers))
            more = low_rank.add_reference(inside, inside @ down.t(), of_down, numbers)
        return more

    computed()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = computed()
    for seed in range(3):
        numbers.copy_(Noise(torch.bfloat16, seed).numbers(rows, 4))
        x.copy_(Noise(torch.bfloat16, seed)(rows, hidden, size=1.0))
        graph.replay()
        once, right = found.float(), expected().float()
        assert ((once - right).norm(dim=1) < 0.1 * right.norm(dim=1)).all()
        for _ in range(20):
            graph.replay()
            assert torch.equal(found.float(), once)
