"""Errors after which a process can use its device no more."""

from __future__ import annotations

NO_MEMORY = ("OutOfMemoryError", "MemoryError")  # torch's and Python's
_SIGNS = ("CUDA error", "device-side assert", "CUBLAS_STATUS", "CUDNN_STATUS", "cudaError", "an illegal memory access", "Triton Error [CUDA]")


def is_device_error(error: BaseException) -> bool:
    """Whether the process can use its device no more. Too little memory is no such error."""
    if type(error).__name__ in NO_MEMORY or not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "AcceleratorError" or any(sign in str(error) for sign in _SIGNS)
