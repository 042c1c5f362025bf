"""`Runtime`: the Engine by the names of SGLang's server arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc.backend.local_model import Engine
from lmc.chat import get_chat_template
from lmc.errors import ArgumentError, UnsupportedOpError
from lmc.parameters import suggestion
from lmc.segments import Text

_ARGUMENTS: Mapping[str, str] = {
    "device": "device",
    "dtype": "dtype",
    "max_total_tokens": "max_tokens",
    "max_running_requests": "max_batch",
    "chunked_prefill_size": "chunk",
    "random_seed": "seed",
    "tp_size": "tp",
}
"""SGLang's server arguments that an Engine supports, by its own names."""
_WITHOUT_EFFECT = frozenset({
    "attention_backend", "disable_cuda_graph", "host", "launch_timeout", "log_level", "log_level_http", "log_requests",
    "mem_fraction_static", "port", "sampling_backend", "tokenizer_mode", "trust_remote_code",
})  # fmt: skip
"""Ignored: there is no server to listen, log or wait for, and the pool is sized by `max_total_tokens`."""
_ONE: Mapping[str, str] = {"dp_size": "lmc.Engine(dp=…) has replicas", "pp_size": "tp_size spreads a model, too"}
_DTYPES: Mapping[str, str | None] = {"auto": None, "half": "float16", "float": "float32"}


class Runtime(Engine):
    """An Engine with the arguments of SGLang's `Runtime`; None means the default.

    model_path            a .gguf file, a directory, a hub id, or "smollm2"
    chat_template         the name of a chat template, in place of the model's own
    device, dtype         as of `lmc.Engine`; SGLang's names of dtypes, too ("auto", "half", "float")
    max_total_tokens      slots of the pool of KV, in tokens
    max_running_requests  most sequences in one pass
    chunked_prefill_size  most tokens of prompts in one pass
    random_seed           of runs that name none
    tp_size               GPUs that the model is spread over

    Arguments about a server's logs, ports and kernels are accepted without effect. Raises UnsupportedOpError for those that would change
    results, ArgumentError for names that SGLang does not have, and what `lmc.Engine` raises.
    """

    def __init__(self, model_path: str = "smollm2", *, chat_template: str | None = None, **server_arguments: Any) -> None:
        own: dict[str, Any] = {"model": model_path}
        for name, value in server_arguments.items():
            if name in _ARGUMENTS:
                own |= {} if value is None else {_ARGUMENTS[name]: value}
            elif name in _ONE and value not in (None, 1):
                raise UnsupportedOpError(f"{name}={value}", "Runtime", _ONE[name])
            elif name not in _WITHOUT_EFFECT | _ONE.keys():
                known = ["model_path", "chat_template", *_ARGUMENTS]
                raise ArgumentError(f"Runtime() has no argument {name!r}{suggestion(name, known)}")
        if own.get("dtype") in _DTYPES:
            own["dtype"] = _DTYPES[own["dtype"]]
        template = get_chat_template(chat_template) if chat_template else None  # before loading, which takes seconds
        super().__init__(**own)
        if template is not None:
            self.chat_template = template

    @property
    def endpoint(self) -> Runtime:
        """Return itself: SGLang's Runtime talks to a server of its own through this."""
        return self

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self.tokenizer

    def cache_prefix(self, prefix: str) -> None:
        """Compute `prefix`, a text that prompts will begin with; it stays cached while there is room."""
        self.prefill(None, [Text((prefix,))])

    def shutdown(self) -> None:
        """Close the engine."""
        self.close()
