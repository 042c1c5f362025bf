"""Times products of matrices in FP8 beside bfloat16's, as a decode pass and a prompt have them; GPU only, within a minute.

    python -m benchmarks.bench_fp8                      # the shapes of Llama-3.1-8B; --hidden 576 --intermediate 1536 --kv 192: SmolLM2

Each shape's products in a CUDA graph over as many matrices as do not fit the cache, µs a product: torch's bfloat16; FP8, with a scale a row and an
output, by lmc's kernel for few rows, and by torch without and with fast accumulation; and the
quantization of the rows alone. *error* is FP8's distance from float32 products of the same e4m3 numbers, over their norm. `--mlp`: norm, gate and up,
activation and down of a layer behind those of another, where launches overlap, matrix by matrix and with the activation inside the first product; *error* is
then that of the rows' quantization, too.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from benchmarks.bench_programs import where
from lmc.backend.engine.gemm_tuning import TunedGemm
from lmc.backend.engine.kernels.activation import silu_mul_quantized, silu_mul_reference
from lmc.backend.engine.kernels.few_rows import MOST, Cut, FewRows, can_gate
from lmc.backend.engine.kernels.norm import add_rms_norm_quantized
from lmc.backend.engine.kernels.quantize import quantize
from lmc.backend.engine.models.fp8 import Fp8, Quantized, fp8

CUTS = [
    *(Cut(64, 128, 8, split) for split in (1, 2, 4, 8)), *(Cut(64, 128, 6, split) for split in (1, 2, 4)), *(Cut(64, 256, 6, split) for split in (1, 2)),
    *(Cut(128, 128, 5, split, 8) for split in (1, 2, 4)), Cut(128, 128, 4, 1), Cut(128, 256, 3, 1, 8), Cut(256, 128, 4, 1, 8),
]  # fmt: skip
"""Of the kernel for few rows: tried by `--cuts`."""

_CACHE = 200 << 20  # bytes of matrices that are multiplied in turns


def microseconds(work: Callable[[], object], products: int, reps: int = 7) -> float:
    """Of each of the products that `work` has, replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(reps):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) * 1e3 / products)
    return statistics.median(times[1:])


def ways(x: torch.Tensor, dense: Sequence[torch.Tensor], small: Sequence[Fp8]) -> dict[str, Callable[[], list[torch.Tensor]]]:
    rows, scales = quantize(x)
    few = FewRows(x.device)

    def by_torch(fast: bool) -> Callable[[], list[torch.Tensor]]:
        return lambda: [torch._scaled_mm(rows, m.weight.t(), scale_a=scales, scale_b=m.scale, out_dtype=x.dtype, use_fast_accum=fast) for m in small]

    by_few = {"few": lambda: [few.multiply(rows, scales, m.weight, m.scale, x.dtype) for m in small]} if len(x) <= MOST else {}
    return by_few | {
        "bf16": lambda: [F.linear(x, w) for w in dense], "torch": by_torch(False), "fast": by_torch(True),
        "quantize": lambda: [quantize(x)[0] for _ in small],
    }  # fmt: skip


def cuts(x: torch.Tensor, small: Sequence[Fp8]) -> list[str]:
    (rows, scales), few, times = quantize(x), FewRows(x.device), dict[Cut, float]()
    for cut in CUTS:
        times[cut] = microseconds(lambda cut=cut: [few.multiply(rows, scales, m.weight, m.scale, x.dtype, cut) for m in small], len(small))
    return [f"{times[c]:.1f} µs {c.outputs}·{c.columns} stages {c.stages} split {c.split} warps {c.warps}" for c in sorted(times, key=times.__getitem__)[:8]]


def mlps(x: torch.Tensor, pairs: Sequence[tuple[Fp8, Fp8]], tuned: TunedGemm) -> list[str]:
    """Return cells: µs a layer apart and in blocks, and both errors."""
    weight, residual, dtype = torch.ones_like(x[0]), x.clone(), x.dtype

    def apart(gate_up: Fp8, down: Fp8, rows: Quantized) -> torch.Tensor:
        return tuned(down, Quantized(*silu_mul_quantized(tuned(gate_up, rows)), dtype))

    def chained(product: Callable[[Fp8, Fp8, Quantized], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def work() -> torch.Tensor:
            y = x
            for gate_up, down in pairs:
                y = product(gate_up, down, Quantized(*add_rms_norm_quantized(y, residual, weight, 1e-5), dtype))
            return y

        return work

    times = [f"{microseconds(chained(product), len(pairs)):.1f}" for product in (apart, tuned.mlp)]
    (gate_up, down), rows = pairs[0], Quantized(*quantize(x), dtype)
    both = rows.rows.float() * rows.scales @ (gate_up.weight.float() * gate_up.scale.t()).t()
    right = silu_mul_reference(both) @ (down.weight.float() * down.scale.t()).t()
    return times + [f"{float((product(gate_up, down, rows).float() - right).norm() / right.norm()):.1e}" for product in (apart, tuned.mlp)]


def time_mlps(hidden: int, inner: int, sizes: Sequence[int]) -> None:
    tuned = TunedGemm.of(torch.device("cuda"), torch.bfloat16)
    assert tuned is not None
    count = max(2, min(16, _CACHE // (3 * hidden * inner) + 1))
    made = [[fp8(torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5) for _ in range(count)] for n, k in ((2 * inner, hidden), (hidden, inner))]
    pairs = [(gate_up, down) for gate_up, down in zip(*made, strict=True) if gate_up is not None and down is not None]
    print(f"| rows | apart µs | in blocks µs | error apart | error in blocks |\n{'|---' * 5}|")
    for rows in sizes:
        if not can_gate(pairs[0][0], rows):
            print(f"| {rows} | – | – | – | – |")
            continue
        x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
        print(f"| {rows} | {' | '.join(mlps(x, pairs, tuned))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("hidden", 4096), ("intermediate", 14336), ("q", 0), ("kv", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rows", default="1,8,64,256,2048")
    parser.add_argument("--cuts", action="store_true", help="instead, how lmc's kernel for few rows is best cut: the fastest eight of each size")
    parser.add_argument("--mlp", action="store_true", help="instead, gate, up, activation and down in a chain of layers, both ways")
    options = parser.parse_args()
    hidden, inner, q = options.hidden, options.intermediate, options.q or options.hidden
    shapes = {"qkv": (q + 2 * options.kv, hidden), "o": (hidden, q), "gate_up": (2 * inner, hidden), "down": (hidden, inner)}
    print("  ".join(f"{k}: {v}" for k, v in (where() | {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}).items()))
    sizes = [int(rows) for rows in options.rows.split(",")]
    if options.mlp:
        time_mlps(hidden, inner, sizes)
        return
    titles, errors = ("bf16", "few", "torch", "fast", "quantize"), ("few", "torch", "fast")
    print(f"| matrix | rows | {' | '.join(f'{t} µs' for t in titles)} | {' | '.join(f'error {t}' for t in errors)} |\n{'|---' * 10}|")
    for name, (n, k) in shapes.items():
        count = max(2, min(16, _CACHE // (n * k) + 1))
        dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]
        small = [m for w in dense if (m := fp8(w)) is not None]
        for rows in sizes:
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            if options.cuts:
                print(f"{name} {n} × {k}, {rows} rows: {'; '.join(cuts(x, small))}", flush=True)
                continue
            found = {way: f"{microseconds(work, count):.1f}" for way, work in ways(x, dense, small).items()}
            right = small[0].reference(x.float())
            once = ways(x, dense[:1], small[:1])
            wrong = {way: f"{float((once[way]()[0].float() - right).norm() / right.norm()):.1e}" for way in errors if way in once}
            cells = [found.get(t, "–") for t in titles] + [wrong.get(t, "–") for t in errors]
            print(f"| {name} {n} × {k} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
