"""`Runtime`: the Engine by the names of SGLang's server arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc.backend.local import Engine
from lmc.errors import ArgumentError
from lmc.prompt import suggestion

_ARGUMENTS: Mapping[str, str] = {
    "model_path": "model",
    "device": "device",
    "dtype": "dtype",
    "max_total_tokens": "max_tokens",
    "max_running_requests": "max_batch",
    "chunked_prefill_size": "chunk",
    "random_seed": "seed",
}
"""SGLang's server arguments that an Engine has, by its own names."""
_WITHOUT_EFFECT = frozenset({"log_level", "log_level_http", "log_requests", "disable_cuda_graph", "attention_backend", "sampling_backend"})
_DTYPES: Mapping[str, str | None] = {"auto": None, "half": "float16", "float": "float32"}


class Runtime(Engine):
    """An Engine with the arguments of SGLang's `Runtime`: `model_path`, `device`, `dtype`, `max_total_tokens`, …

    None stands for the default. Arguments about logs and kernels are accepted without effect; those that would change
    results are refused.
    """

    def __init__(self, model_path: str = "smollm2", **server_arguments: Any) -> None:
        own: dict[str, Any] = {}
        for name, value in {"model_path": model_path, **server_arguments}.items():
            if name in _ARGUMENTS:
                own |= {} if value is None else {_ARGUMENTS[name]: value}
            elif name not in _WITHOUT_EFFECT:
                raise ArgumentError(f"Runtime() has no argument {name!r}{suggestion(name, list(_ARGUMENTS))}")
        if own.get("dtype") in _DTYPES:
            own["dtype"] = _DTYPES[own["dtype"]]
        super().__init__(**own)

    def shutdown(self) -> None:
        """Closes the engine."""
        self.close()
