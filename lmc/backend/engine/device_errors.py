"""Errors after which an engine cannot go on: a device that its process can use no more, ranks that are gone."""

from __future__ import annotations

from lmc.errors import BackendEnded, BackendError

NO_MEMORY = ("OutOfMemoryError", "MemoryError")  # torch's and Python's
_SIGNS = ("CUDA error", "device-side assert", "CUBLAS_STATUS", "CUDNN_STATUS", "cudaError", "an illegal memory access", "Triton Error [CUDA]")


class RanksLost(BackendEnded):
    """Ranks of a tensor-parallel engine have ended, or their passes cannot go on together; the message says which and why."""


def is_device_error(error: BaseException) -> bool:
    """Whether the process can use its device no more. Too little memory is no such error."""
    if type(error).__name__ in NO_MEMORY or not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "AcceleratorError" or any(sign in str(error) for sign in _SIGNS)


def ended_by(error: BaseException) -> BackendError | None:
    """What an engine says from now on that cannot go on after `error`; None if it can."""
    if isinstance(error, RanksLost):
        return error
    if not is_device_error(error):
        return None
    return BackendEnded(
        "the engine has ended with a device error, after which its process cannot use the device: "
        f"{type(error).__name__}: {error}; start a new process (lmc serve --restart does)"
    )
