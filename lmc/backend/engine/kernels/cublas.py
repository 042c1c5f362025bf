"""cuBLASLt, the library of matrix products, with access to all its algorithms.

PyTorch takes the first algorithm that cuBLAS proposes for a size. Often another of its proposals, or one for a nearby
size, is some per cent faster; which one must be measured (gemm_tuning.py).

    https://docs.nvidia.com/cuda/cublas/ (cublasLtMatmul, cublasLtMatmulAlgoGetHeuristic)
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache

import torch
from torch import Tensor

WORKSPACE = 32 << 20  # bytes for partial products
_PROPOSALS = 32

# constants of library_types.h, cublas_api.h and cublasLt.h
_TYPES = {torch.bfloat16: 14, torch.float16: 2}
_FLOAT32, _COMPUTE_FLOAT32 = 0, 68
_TRANSPOSES_A = 3  # CUBLASLT_MATMUL_DESC_TRANSA
_MOST_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _Result(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4),
    ]  # fmt: skip


class CublasError(Exception):
    """A call that the library refused."""


class Cublas:
    """y [rows, n] = x [rows, k] · wᵀ, w [n, k]; all of one dtype and contiguous, sums in float32. Not thread-safe.

    A *way* (an algorithm with its settings) is 64 bytes, with the same meaning in every process with the same GPU and
    version.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if dtype not in _TYPES:
            raise CublasError(f"no products of {dtype}")
        self._lib, self._type = _library(), _TYPES[dtype]
        self.version: int = self._lib.cublasLtGetVersion()
        self._handle = c_void_p()
        self._call("Create", byref(self._handle))
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        self._shapes: dict[tuple[int, int, int], tuple[c_void_p, c_void_p, c_void_p, c_void_p]] = {}
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def ways(self, rows: int, n: int, k: int) -> list[bytes]:
        """Return the library's proposals for a size, its best guess first."""
        product, w, x, y = self._shape(rows, n, k)
        wish = c_void_p()
        self._call("MatmulPreferenceCreate", byref(wish))
        try:
            most = c_uint64(WORKSPACE)
            self._call("MatmulPreferenceSetAttribute", wish, _MOST_WORKSPACE, byref(most), c_size_t(8))
            found, count = (_Result * _PROPOSALS)(), c_int()
            self._call(
                "MatmulAlgoGetHeuristic", self._handle, product, w, x, y, y, wish, _PROPOSALS, found, byref(count)
            )  # fmt: skip
        finally:
            self._call("MatmulPreferenceDestroy", wish)
        return [bytes(r.algorithm) for r in found[: count.value] if r.state == 0]

    def can(self, way: bytes, rows: int, n: int, k: int) -> bool:
        """Return whether a way, proposed for any size, works for this one."""
        product, w, x, y = self._shape(rows, n, k)
        found = _Result()
        refused = self._lib.cublasLtMatmulAlgoCheck(
            self._handle, product, w, x, y, y, byref(_Algorithm.from_buffer_copy(way)), byref(found)
        )  # fmt: skip
        return not refused and found.state == 0 and found.workspace <= WORKSPACE

    def multiply(self, way: bytes, x: Tensor, w: Tensor, y: Tensor) -> None:
        """Multiply on the current stream; products on several streams at once would share the workspace."""
        product, of_w, of_x, of_y = self._shape(len(x), *w.shape)
        stream = torch.cuda.current_stream(x.device).cuda_stream
        self._call(
            "Matmul", self._handle, product, byref(self._one), c_void_p(w.data_ptr()), of_w, c_void_p(x.data_ptr()), of_x,
            byref(self._zero), c_void_p(y.data_ptr()), of_y, c_void_p(y.data_ptr()), of_y,
            byref(_Algorithm.from_buffer_copy(way)), c_void_p(self._workspace.data_ptr()), c_size_t(WORKSPACE), c_void_p(stream),
        )  # fmt: skip

    def _shape(self, rows: int, n: int, k: int) -> tuple[c_void_p, c_void_p, c_void_p, c_void_p]:
        """Return the product, and the layouts of w, x and y, which the library sees column by column: yᵀ = w · xᵀ."""
        if (known := self._shapes.get((rows, n, k))) is not None:
            return known
        product, transposed = c_void_p(), c_int32(1)
        self._call("MatmulDescCreate", byref(product), _COMPUTE_FLOAT32, _FLOAT32)
        self._call("MatmulDescSetAttribute", product, _TRANSPOSES_A, byref(transposed), c_size_t(4))
        made = product, self._layout(k, n), self._layout(k, rows), self._layout(n, rows)
        return self._shapes.setdefault((rows, n, k), made)

    def _layout(self, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        self._call("MatrixLayoutCreate", byref(layout), self._type, c_uint64(rows), c_uint64(columns), c_int64(rows))
        return layout

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, f"cublasLt{name}")(*args)
        if status:
            raise CublasError(f"cublasLt{name} failed with status {status}")


@cache
def _library() -> ctypes.CDLL:
    """Return the library that PyTorch has loaded."""
    version = torch.version.cuda
    if version is None:
        raise CublasError("this torch has no CUDA")
    try:
        found = ctypes.CDLL(f"libcublasLt.so.{version.split('.')[0]}")
    except OSError as error:
        raise CublasError(str(error)) from error
    found.cublasLtGetVersion.restype = c_size_t
    found.cublasLtCreate.argtypes = [POINTER(c_void_p)]
    return found
