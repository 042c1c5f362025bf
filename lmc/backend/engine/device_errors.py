"""Errors that end an engine: a device that its process can no longer use, lost ranks."""

from __future__ import annotations

from lmc.errors import BackendEnded, BackendError

NO_MEMORY = ("OutOfMemoryError", "MemoryError")  # torch's and Python's
_NO_ROOM = ("can't allocate memory", "CUDA error: out of memory", "CUDA out of memory", "[CUDA]: out of memory")
_SIGNS = ("CUDA error", "device-side assert", "CUBLAS_STATUS", "CUDNN_STATUS", "cudaError", "an illegal memory access", "Triton Error [CUDA]")


class RanksLost(BackendEnded):
    """Ranks of a tensor-parallel engine have ended, or their passes cannot continue together; the message says which
    and why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory has run out, on a device or of the host: torch raises a RuntimeError for the latter, and for what it pins."""
    if isinstance(error, MemoryError) or type(error).__name__ in NO_MEMORY:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_ROOM)


def is_device_error(error: BaseException) -> bool:
    """Return whether the process can no longer use its device. Out of memory is no such error."""
    if type(error).__name__ in NO_MEMORY or not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "AcceleratorError" or any(sign in str(error) for sign in _SIGNS)


def ended_by(error: BaseException) -> BackendError | None:
    """Return the error that an engine raises from now on if it cannot continue after `error`; None if it can."""
    if isinstance(error, RanksLost):
        return error
    if not is_device_error(error):
        return None
    return BackendEnded(
        "the engine has ended with a device error, after which its process cannot use the device: "
        f"{type(error).__name__}: {error}; start a new process (lmc serve --restart does)"
    )
