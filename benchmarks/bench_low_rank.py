"""Times what LoRA adapters add to the products of layers, as CUDA graphs of passes have it; GPU only, within a minute.

    python -m benchmarks.bench_low_rank [--adapters 4] [--rank 16] [--rows 1,8,64,256,512,2048]   # the shapes of Llama-3.1-8B
    python -m benchmarks.bench_low_rank --cuts                                                     # instead, how the kernels are best cut

Four layers' products with their four matrices, one behind the other: *products* are theirs alone, µs a layer; *torch*, *lmc* what is added to that by products
with all adapters side by side, of which a mask leaves each row its own, and by lmc's kernels; for rows of one adapter, and of all in turns. *error* is the
distance of lmc's results from float32 sums, over the norm of what adapters add.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_fp8 import microseconds
from benchmarks.bench_programs import where
from lmc.backend.engine.kernels.grouped import Groups, Tile
from lmc.backend.engine.kernels.low_rank import LowRankCut, Stack, add, add_reference, cut_of, group, stack, tile_of
from lmc.backend.engine.models.adapters import AdaptedRows, Factors

Q, KV, HIDDEN, INNER = 4096, 1024, 4096, 14336
SHAPES = {"qkv": ((Q, KV, KV), HIDDEN), "o": ((HIDDEN,), Q), "gate_up": ((INNER, INNER), HIDDEN), "down": ((HIDDEN,), INNER)}
"""Outputs of each matrix's parts, and its columns."""

LAYERS = 4  # whose matrices do not fit the cache
HEIGHTS, PARTS, WARPS = ((16, 256, 4), (16, 512, 3), (64, 128, 3)), (1, 2, 4, 8, 16), (4, 8)
"""Tried by `--cuts`: rows of a block, columns of a step and how many steps are loaded ahead; parts; warps."""


class Matrix(NamedTuple):
    """A matrix and its adapters, also stacked, and side by side: A's [parts · adapters · rank, in], of each part its B's [outputs, adapters · rank]."""

    weight: Tensor
    every: list[Factors | None]
    stacked: Stack
    down: Tensor
    ups: list[AdaptedRows]


def matrix(outputs: Sequence[int], columns: int, adapters: int, rank: int) -> Matrix:
    noise = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5
    firsts = [sum(outputs[:i]) for i in range(len(outputs))]
    every: list[Factors | None] = [
        Factors(noise(rank * len(outputs), columns), tuple(AdaptedRows(first, noise(n, rank)) for first, n in zip(firsts, outputs, strict=True)))
        for _ in range(adapters)
    ]
    some = [f for f in every if f is not None]
    down = torch.stack([f.down.view(len(outputs), rank, columns) for f in some], 1).flatten(0, 2)
    ups = [AdaptedRows(first, torch.cat([f.parts[i].up for f in some], 1)) for i, first in enumerate(firsts)]
    return Matrix(noise(sum(outputs), columns), every, stack(every), down, ups)


def masked(x: Tensor, y: Tensor, own: Matrix, mask: Tensor) -> Tensor:
    """Add the same by torch, with a mask [T, adapters]."""
    low = F.linear(x, own.down).view(len(x), len(own.ups), mask.shape[1], -1) * mask[:, None, :, None]
    for i, (first, up) in enumerate(own.ups):
        y[:, first : first + len(up)] += F.linear(low[:, i].flatten(1), up)
    return y


Added = Callable[[str, Matrix, Tensor, Tensor], object]  # (matrix's name, matrix, x, y)


def layer_time(layers: Sequence[dict[str, Matrix]], given: dict[int, Tensor], added: Added) -> float:
    def work() -> None:
        for layer in layers:
            for name, own in layer.items():
                x = given[own.weight.shape[1]]
                added(name, own, x, F.linear(x, own.weight))

    return microseconds(work, len(layers))


def error(layer: dict[str, Matrix], given: dict[int, Tensor], numbers: Tensor, groups: Groups) -> float:
    worst = 0.0
    for own in layer.values():
        x = given[own.weight.shape[1]]
        y = F.linear(x, own.weight)
        right = add_reference(x.float(), y.float(), [f and Factors(f.down.float(), f.parts) for f in own.every], numbers)
        found = add(x, y.clone(), own.stacked, groups)
        worst = max(worst, float((found.float() - right).norm() / (right - y.float()).norm()))
    return worst


def cuts(layers: Sequence[dict[str, Matrix]], given: dict[int, Tensor], numbers: Tensor, count: int) -> None:
    """Print for each matrix the fastest cuts, µs more than its product alone."""
    for name in SHAPES:
        own, found = [{name: layer[name]} for layer in layers], dict[tuple[Tile, LowRankCut], float]()
        alone, dtype = layer_time(own, given, lambda *_: None), torch.bfloat16
        for height, inner, stages in HEIGHTS:
            tile = tile_of(len(numbers), dtype)._replace(height=height, inner=inner, stages=stages)
            groups = group(numbers, count, dtype, tile)
            usual = cut_of(own[0][name].stacked, groups)
            for parts, warps in product(PARTS, WARPS):
                if parts * height <= 256:
                    cut = usual._replace(parts=parts, warps=warps)
                    found[tile, cut] = layer_time(own, given, lambda _, m, x, y, groups=groups, cut=cut: add(x, y, m.stacked, groups, cut)) - alone
        best = sorted(found, key=found.__getitem__)[:6]
        now = group(numbers, count, dtype)
        chosen = found.get((now.tile, cut_of(own[0][name].stacked, now)), float("nan"))
        told = (f"{found[t, c]:.1f} height {t.height} step {t.inner}·{t.stages} parts {c.parts} warps {c.warps}" for t, c in best)
        print(f"{name}, {len(numbers)} rows: {chosen:.1f} as it is; {'; '.join(told)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", default="1,8,64,256,512,2048")
    parser.add_argument("--cuts", action="store_true", help="instead, how both kernels are best cut: the fastest six of each size, all adapters in turns")
    options = parser.parse_args()
    count = options.adapters
    print("  ".join(f"{k}: {v}" for k, v in (where() | {"gpu": torch.cuda.get_device_name(), "adapters": f"{count} of rank {options.rank}"}).items()))
    torch.manual_seed(0)
    layers = [{name: matrix(outputs, columns, count, options.rank) for name, (outputs, columns) in SHAPES.items()} for _ in range(LAYERS)]
    if not options.cuts:
        print(f"| rows | products µs | one: torch | one: lmc | all: torch | all: lmc | error |\n{'|---' * 7}|")
    for rows in map(int, options.rows.split(",")):
        given = {n: torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for n in (HIDDEN, INNER)}
        turns = torch.arange(rows, device="cuda", dtype=torch.int32) % count + 1
        if options.cuts:
            cuts(layers, given, turns, count)
            continue
        alone, cells = layer_time(layers, given, lambda *_: None), list[str]()
        for numbers in (torch.ones_like(turns), turns):
            groups = group(numbers, count, torch.bfloat16)
            mask = (numbers[:, None] == torch.arange(1, count + 1, device="cuda")).bfloat16()
            for way in (lambda _, m, x, y, mask=mask: masked(x, y, m, mask), lambda _, m, x, y, groups=groups: add(x, y, m.stacked, groups)):
                cells.append(f"{layer_time(layers, given, way) - alone:.1f}")
        print(f"| {rows} | {alone:.1f} | {' | '.join(cells)} | {error(layers[0], given, turns, group(turns, count, torch.bfloat16)):.1e} |", flush=True)


if __name__ == "__main__":
    main()
