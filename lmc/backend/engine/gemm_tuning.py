"""GEMM tuning: each size is multiplied in the way that was measured to be fastest here, by one of cuBLAS' algorithms or, few rows, by lmc's kernel; in
FP8 few rows always are.

Measured when a graph of the size is first captured, and kept on disk by GPU and version, so that all processes with the
same cache multiply in the same way. Without measurements PyTorch uses its default.
"""

from __future__ import annotations

import json
import logging
import statistics
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.kernels.cublas import Cublas, CublasError
from lmc.backend.engine.kernels.dependent_launch import can_launch_early
from lmc.backend.engine.kernels.few_rows import DENSE_CUTS, MOST, MOST_DENSE, Cut, FewRows
from lmc.backend.engine.models.fp8 import Fp8, Quantized
from lmc.backend.engine.models.linear import Dense, Linear
from lmc.config import cache_folder, replacing

log = logging.getLogger("lmc.engine")

Size = tuple[int, int, int]  # rows of x; rows and columns of w
Way = bytes | Cut | None
"""How a size is multiplied: by an algorithm of cuBLAS, by lmc's kernel for few rows, or (None) as PyTorch does."""

_FORMAT = 3
_NEAR = 1.7  # proposals of sizes with up to this ratio of rows are tried
_FINALISTS = 4  # algorithms measured again, alternating with PyTorch's own and lmc's
_ROUNDS = 7
_GAIN = 0.99  # largest share of PyTorch's time at which an algorithm is worthwhile
_WRONG = 0.02  # relative difference to PyTorch's result beyond which an algorithm is rejected
_MATRICES = 6  # matrices of a shape, multiplied in turns: a single one would stay in the GPU's cache


class TunedGemm:
    """Multiplies rows by matrices of the dtype; unmeasured sizes as PyTorch does.

    path    file of measurements; None: not stored
    """

    def __init__(self, cublas: Cublas, path: Path | None) -> None:
        self._cublas, self._path = cublas, path
        self._few: FewRows | None = None
        self._ways = _read(path)

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype) -> TunedGemm | None:
        """Create it; None where cuBLAS cannot be queried."""
        try:
            cublas = Cublas(device, dtype)
        except CublasError as error:
            log.info("products of matrices are not measured: %s", error)
            return None
        name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device))
        return cls(cublas, _folder_file(f"{name}-{cublas.version}-{str(dtype).removeprefix('torch.')}.json"))

    def __call__(self, matrix: Linear, x: Tensor | Quantized) -> Tensor:
        """Return x [rows, columns] times a matrix."""
        if isinstance(matrix, Fp8):
            return self._in_fp8(matrix, matrix.quantized(x) if isinstance(x, Tensor) else x)
        assert isinstance(x, Tensor)
        if isinstance(matrix, Dense) and matrix.bias is None:
            n, k = matrix.weight.shape
            way = self._ways.get((len(x), n, k))
            if way is not None and x.is_contiguous():
                return self._times(way, x, matrix.weight)
        return matrix(x)

    def _times(self, way: Way, x: Tensor, weight: Tensor) -> Tensor:
        if isinstance(way, Cut):
            return self._few_rows(x).dense(x, weight, way)
        if way is None:
            return F.linear(x, weight)
        y = x.new_empty(len(x), len(weight))
        self._cublas.multiply(way, x, weight, y)
        return y

    def mlp(self, gate_up: Fp8, down: Fp8, x: Tensor | Quantized) -> Tensor:
        """Return few rows times `gate_up`, gated, times `down`, where `few_rows.can_gate`."""
        x = gate_up.quantized(x) if isinstance(x, Tensor) else x
        few = self._few_rows(x.rows)
        inner = few.gate(x.rows, x.scales, gate_up.weight, gate_up.scale, x.dtype)
        return _biased(few.multiply_blocks(inner, down.weight, down.scale), down)

    def _in_fp8(self, matrix: Fp8, x: Quantized) -> Tensor:
        if len(x) > MOST:
            return matrix.multiply(x)
        return _biased(self._few_rows(x.rows).multiply(x.rows, x.scales, matrix.weight, matrix.scale, x.dtype), matrix)

    def _few_rows(self, x: Tensor) -> FewRows:
        self._few = self._few or FewRows(x.device)
        return self._few

    def measure(self, matrices: Iterable[Linear], sizes: Sequence[int]) -> None:
        """Find the ways of GEMMs of so many rows by these matrices, unless they are known."""
        shapes: dict[tuple[int, int], list[Tensor]] = {}
        for matrix in matrices:
            if isinstance(matrix, Dense) and matrix.bias is None and matrix.weight.is_contiguous():
                of = shapes.setdefault((matrix.weight.shape[0], matrix.weight.shape[1]), [])
                if len(of) < _MATRICES:
                    of.append(matrix.weight)
        missing = [(rows, shape) for shape in shapes for rows in sizes if (rows, *shape) not in self._ways]
        if not missing:
            return
        log.info("measuring %d sizes of products of matrices, once for this GPU", len(missing))
        ways = cache(self._cublas.ways)
        for rows, shape in missing:
            near = sorted((m for m in sizes if m / _NEAR <= rows <= m * _NEAR), key=lambda m, rows=rows: abs(m - rows))
            others = chain.from_iterable(ways(m, *shape) for m in near)
            self._ways[rows, *shape] = self._fastest(rows, shapes[shape], [way for way in dict.fromkeys(others) if self._cublas.can(way, rows, *shape)])
        _write(self._path, self._ways)

    def _fastest(self, rows: int, weights: Sequence[Tensor], ways: Sequence[Way]) -> Way:
        k, like = weights[0].shape[1], weights[0]
        x = torch.randn(rows, k, device=like.device).to(like.dtype)
        right = F.linear(x, weights[0]).float()
        every = lambda way: [self._times(way, x, w) for w in weights]
        is_right = lambda way: (self._times(way, x, weights[0]).float() - right).norm() <= _WRONG * right.norm()  # its first call loads it
        found = {way: _seconds(lambda way=way: every(way)) for way in ways if is_right(way)}
        best = sorted(found, key=found.__getitem__)[:_FINALISTS]
        if rows <= MOST_DENSE and k % 8 == 0 and can_launch_early():  # from Hopper on there is what the kernel needs; without a graph, Python would be timed
            best += filter(is_right, DENSE_CUTS)
        runs = [_captured(lambda way=way: every(way)) for way in (None, *best)]
        times = [[_seconds(graph.replay) for graph in runs] for _ in range(_ROUNDS + 1)][1:]
        own, *others = (statistics.median(each) for each in zip(*times, strict=True))
        return best[others.index(min(others))] if others and min(others) < _GAIN * own else None


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


def _read(path: Path | None) -> dict[Size, Way]:
    """Read measurements; missing, damaged or other-format files are measured again."""
    if path is None or not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if found["format"] != _FORMAT:
            return {}
        if found["checksum"] != _checksum(found["ways"]):
            raise ValueError("their checksum does not fit")  # a wrong algorithm may give wrong products
        return {(int(rows), int(n), int(k)): _way(way) for rows, n, k, way in found["ways"]}
    except (OSError, ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
        log.warning("%s: measurements are damaged (%s); measuring again", path, error)
        return {}


def _checksum(rows: list[Any]) -> int:
    return zlib.crc32(json.dumps(rows).encode())


def _way(kept: str | list[int] | None) -> Way:
    if kept is None:
        return None
    if isinstance(kept, list):
        return next(cut for cut in DENSE_CUTS if [*astuple(cut)] == kept)
    way = bytes.fromhex(kept)
    if len(way) != 64:
        raise ValueError(f"a way of {len(way)} bytes")
    return way


def _write(path: Path | None, ways: dict[Size, Way]) -> None:
    """Write, merged with what other processes have written meanwhile; one log line if that is not possible."""
    if path is None:
        return
    every = sorted((_read(path) | ways).items(), key=lambda item: item[0])
    rows = [[*size, way.hex() if isinstance(way, bytes) else way and [*astuple(way)]] for size, way in every]
    try:
        with replacing(path) as name:
            Path(name).write_text(json.dumps({"format": _FORMAT, "ways": rows, "checksum": _checksum(rows)}))
    except OSError as error:
        log.warning("%s: cannot keep measurements (%s)", path, error)
