"""GEMM tuning: each size is multiplied by the cuBLAS algorithm that was measured to be fastest here, unless the default is: PyTorch's, and in FP8
for few rows lmc's kernel.

Measured when a graph of the size is first captured, and kept on disk by GPU and version, so that all processes with the
same cache use the same algorithms.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmc.backend.engine.kernels.cublas import Cublas, CublasError
from lmc.backend.engine.models.fp8 import E4M3, Fp8, Quantized
from lmc.backend.engine.models.linear import Dense, Linear
from lmc.config import cache_folder, replacing

if TYPE_CHECKING:
    from lmc.backend.engine.kernels.few_rows import FewRows

log = logging.getLogger("lmc.engine")

Size = tuple[int, int, int]  # rows of x; rows and columns of w

_FORMAT = 1
_NEAR = 1.7  # proposals of sizes with up to this ratio of rows are tried
_FINALISTS = 4  # algorithms measured again, alternating with the default
_ROUNDS = 7
_GAIN = 0.99  # largest share of the default's time at which an algorithm is worthwhile
_GAIN_OF_FEW = 0.9  # the same beside lmc's kernel, whose launch overlaps what comes before it in a pass
_WRONG = 0.02  # relative difference to the default's result beyond which an algorithm is rejected
_MATRICES = 6  # matrices of a shape, multiplied in turns: a single one would stay in the GPU's cache


class Algorithms:
    """The fastest algorithm of each size, for matrices of one kind.

    path    file of measurements; None: not stored
    """

    def __init__(self, cublas: Cublas, path: Path | None) -> None:
        self._cublas, self._path = cublas, path
        self.ways: dict[Size, bytes | None] = _read(path)  # None: the default is the fastest

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, operands: torch.dtype | None = None) -> Algorithms:
        """Create them for a device; raise CublasError where cuBLAS cannot be queried. `operands`: see Cublas."""
        cublas = Cublas(device, dtype, operands)
        name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device))
        kind = "-".join(str(d).removeprefix("torch.") for d in (dtype, operands) if d is not None)
        return cls(cublas, _folder_file(f"{name}-{cublas.version}-{kind}.json"))

    def product(self, matrix: Tensor, x: Tensor | Quantized, scale: Tensor | None = None) -> Tensor | None:
        """Return x times a matrix, whose rows have a `scale` if it is in FP8; None if the default is best, or the size was not measured."""
        rows = x.rows if isinstance(x, Quantized) else x
        way = self.ways.get((len(rows), matrix.shape[0], matrix.shape[1]))
        if way is None or not rows.is_contiguous():
            return None
        y = rows.new_empty(len(rows), len(matrix), dtype=x.dtype)
        self._multiply(way, x, matrix, scale, y)
        return y

    def measure(
        self, matrices: Iterable[Dense | Fp8], sizes: Sequence[int], default: Callable[[Any, Any], Tensor], gain: Callable[[int], float] = lambda _: _GAIN,
    ) -> None:  # fmt: skip
        """Find the algorithms for GEMMs of so many rows by these matrices, unless they are known.

        default    what they must beat: takes at most `gain` of its time, by rows
        """
        shapes: dict[tuple[int, int], list[Dense | Fp8]] = {}
        for matrix in matrices:
            if matrix.weight.is_contiguous():
                of = shapes.setdefault((matrix.weight.shape[0], matrix.weight.shape[1]), [])
                if len(of) < _MATRICES:
                    of.append(matrix)
        missing = [(rows, shape) for shape in shapes for rows in sizes if (rows, *shape) not in self.ways]
        if not missing:
            return
        log.info("measuring %d sizes of products of matrices, once for this GPU", len(missing))
        ways = cache(self._cublas.ways)
        for rows, shape in missing:
            near = sorted((m for m in sizes if m / _NEAR <= rows <= m * _NEAR), key=lambda m, rows=rows: abs(m - rows))
            proposed = chain.from_iterable(ways(m, *shape) for m in near)
            self.ways[rows, *shape] = self._fastest(rows, shapes[shape], proposed, default, gain(rows))
        _write(self._path, self.ways)

    def _fastest(self, rows: int, matrices: Sequence[Dense | Fp8], ways: Iterable[bytes], default: Callable[[Any, Any], Tensor], gain: float) -> bytes | None:
        first = matrices[0]
        n, k = first.weight.shape
        x: Tensor | Quantized = torch.randn(rows, k, device=first.weight.device).to(self._cublas.dtype)
        if isinstance(first, Fp8):
            x = first.quantized(x)
        right = default(first, x)
        y = torch.empty_like(right)
        found: dict[bytes, float] = {}
        for way in dict.fromkeys(ways):
            if not self._cublas.can(way, rows, n, k):
                continue
            self._each(way, x, matrices[:1], y)  # its first call loads it
            if (y.float() - right.float()).norm() <= _WRONG * right.float().norm():
                found[way] = _seconds(lambda way=way: self._each(way, x, matrices, y))
        best = sorted(found, key=found.__getitem__)[:_FINALISTS]
        runs = [_captured(lambda: [default(m, x) for m in matrices])]
        runs += [_captured(lambda way=way: self._each(way, x, matrices, y)) for way in best]
        times = [[_seconds(graph.replay) for graph in runs] for _ in range(_ROUNDS + 1)][1:]
        own, *others = (statistics.median(each) for each in zip(*times, strict=True))
        return best[others.index(min(others))] if others and min(others) < gain * own else None

    def _each(self, way: bytes, x: Tensor | Quantized, matrices: Sequence[Dense | Fp8], y: Tensor) -> None:
        for m in matrices:
            self._multiply(way, x, m.weight, m.scale if isinstance(m, Fp8) else None, y)

    def _multiply(self, way: bytes, x: Tensor | Quantized, matrix: Tensor, scale: Tensor | None, y: Tensor) -> None:
        if isinstance(x, Quantized):
            assert scale is not None
            self._cublas.multiply(way, x.rows, matrix, y, (x.scales, scale))
        else:
            self._cublas.multiply(way, x, matrix, y)


class TunedGemm:
    """Multiplies rows by matrices of the dtype, or in FP8; unmeasured sizes as PyTorch does.

    in_fp8    of matrices in FP8; None: there are none
    """

    def __init__(self, algorithms: Algorithms, in_fp8: Algorithms | None = None) -> None:
        self._algorithms, self._in_fp8 = algorithms, in_fp8
        self._few: FewRows | None = None  # of matrices in FP8

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, *, fp8: bool = False) -> TunedGemm | None:
        """Create it; None where cuBLAS cannot be queried. `fp8`: there are matrices in FP8."""
        try:
            return cls(Algorithms.of(device, dtype), Algorithms.of(device, dtype, E4M3) if fp8 else None)
        except CublasError as error:
            log.info("products of matrices are not measured: %s", error)
            return None

    def __call__(self, matrix: Linear, x: Tensor | Quantized) -> Tensor:
        """Return x [rows, columns] times a matrix."""
        if isinstance(matrix, Fp8):
            x = matrix.quantized(x) if isinstance(x, Tensor) else x
            y = None if self._in_fp8 is None else self._in_fp8.product(matrix.weight, x, matrix.scale)
            return self._default(matrix, x) if y is None else _biased(y, matrix)
        assert isinstance(x, Tensor)
        if isinstance(matrix, Dense) and matrix.bias is None:
            y = self._algorithms.product(matrix.weight, x)
            if y is not None:
                return y
        return matrix(x)

    def mlp(self, gate_up: Fp8, down: Fp8, x: Tensor | Quantized) -> Tensor:
        """Return few rows times `gate_up`, gated, times `down`, where `few_rows.can_gate`."""
        x = gate_up.quantized(x) if isinstance(x, Tensor) else x
        few = self._few_rows(x)
        inner = few.gate(x.rows, x.scales, gate_up.weight, gate_up.scale, x.dtype)
        return _biased(few.multiply_blocks(inner, down.weight, down.scale), down)

    def measure(self, matrices: Sequence[Linear], sizes: Sequence[int]) -> None:
        """Find the algorithms for GEMMs of so many rows by these matrices, unless they are known."""
        self._algorithms.measure((m for m in matrices if isinstance(m, Dense) and m.bias is None), sizes, Dense.__call__)
        if self._in_fp8 is not None:
            from lmc.backend.engine.kernels.few_rows import MOST

            given = (m for m in matrices if isinstance(m, Fp8))
            self._in_fp8.measure(given, sizes, self._default, lambda rows: _GAIN if rows > MOST else _GAIN_OF_FEW)

    def _default(self, matrix: Fp8, x: Quantized) -> Tensor:
        from lmc.backend.engine.kernels.few_rows import MOST

        if len(x) > MOST:
            return matrix.multiply(x)
        return _biased(self._few_rows(x).multiply(x.rows, x.scales, matrix.weight, matrix.scale, x.dtype), matrix)

    def _few_rows(self, x: Quantized) -> FewRows:
        from lmc.backend.engine.kernels.few_rows import FewRows

        self._few = self._few or FewRows(x.rows.device)
        return self._few


def _biased(y: Tensor, matrix: Fp8) -> Tensor:
    return y if matrix.bias is None else y + matrix.bias


def _captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may pin memory
        work()
    return graph


def _seconds(work: Callable[[], object]) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    work()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3


# -- on disk -----------------------------------------------------------------------------------------------------------


def _folder_file(name: str) -> Path | None:
    folder = cache_folder("products", "every engine measures products again")
    return folder and folder / name


def _read(path: Path | None) -> dict[Size, bytes | None]:
    """Read measurements; missing, damaged or other-format files are measured again."""
    if path is None or not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if found["format"] != _FORMAT:
            return {}
        ways: dict[Size, bytes | None] = {}
        for rows, n, k, way in found["ways"]:
            ways[int(rows), int(n), int(k)] = None if way is None else _way(way)
        return ways
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: measurements are damaged (%s); measuring again", path, error)
        return {}


def _way(text: str) -> bytes:
    way = bytes.fromhex(text)
    if len(way) != 64:
        raise ValueError(f"a way of {len(way)} bytes")
    return way


def _write(path: Path | None, ways: dict[Size, bytes | None]) -> None:
    """Write, merged with what other processes have written meanwhile; one log line if that is not possible."""
    if path is None:
        return
    rows = [[*size, None if way is None else way.hex()] for size, way in sorted((_read(path) | ways).items())]
    try:
        with replacing(path) as name:
            Path(name).write_text(json.dumps({"format": _FORMAT, "ways": rows}))
    except OSError as error:
        log.warning("%s: cannot keep measurements (%s)", path, error)
