"""Names that programs for SGLang use and lmc has under another name: global_config, a backend's token_usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc import config
from lmc.backend.api.spending import UsageLedger
from lmc.backend.usage import Usage
from lmc.errors import UnsupportedOpError


class GlobalConfig:
    """SGLang's `global_config`: its default backend is lmc's; its other fields keep the values that lmc works with."""

    _FIXED: Mapping[str, Any] = {
        "verbosity": 0,
        "skip_special_tokens_in_output": True,
        "spaces_between_special_tokens_in_out": True,
    }
    _WITHOUT_EFFECT: Mapping[str, Any] = {"enable_precache_with_tracing": True, "enable_parallel_encoding": True}

    @property
    def default_backend(self) -> Any:
        """Return the backend of runs that name none; None until one is set or made."""
        return config.default_backend() if config.has_default_backend() else None

    @default_backend.setter
    def default_backend(self, backend: Any) -> None:
        config.set_default_backend(backend)

    def __getattr__(self, name: str) -> Any:
        try:
            return {**self._FIXED, **self._WITHOUT_EFFECT}[name]
        except KeyError:
            raise AttributeError(f"global_config has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._FIXED and value != self._FIXED[name]:
            raise UnsupportedOpError(f"global_config.{name} = {value!r}", "lmc", "print(state.text()), or see lmc.config(…)")
        if name == "default_backend":
            super().__setattr__(name, value)
        elif name not in self._FIXED and name not in self._WITHOUT_EFFECT:
            raise AttributeError(f"global_config has no {name!r}; lmc's own settings are lmc.config(…)")


global_config = GlobalConfig()


class TokenUsage:
    """SGLang's `token_usage` of a backend: its tokens since it was made, or since `reset`. lmc's own are `backend.spent()` and `state.usage`."""

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger, self._before = ledger, Usage()

    @property
    def prompt_tokens(self) -> int:
        return self._ledger.spent().usage.prompt_tokens - self._before.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return self._ledger.spent().usage.completion_tokens - self._before.completion_tokens

    def reset(self) -> None:
        """Count from here on."""
        self._before = self._ledger.spent().usage

    def __repr__(self) -> str:
        return f"TokenUsage(prompt_tokens={self.prompt_tokens}, completion_tokens={self.completion_tokens})"
