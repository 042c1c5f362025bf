"""lmc: a JIT compiler and runtime for language-model programs.

Names are imported when they are first used, so that `import lmc` costs next to nothing and never imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

from lmc import config as _config
from lmc import errors as _errors
from lmc.version import __version__ as __version__

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # counters and caches are shared between threads without locks of their own
    raise ImportError("lmc needs Python's global interpreter lock, which is off in this free-threaded build: start it with `python -X gil=1` or PYTHON_GIL=1")

_HOMES = {
    "lmc.constraints": "REGEX_BOOL REGEX_FLOAT REGEX_INT REGEX_STR",
    "lmc.frontend.expressions": "Expr",
    "lmc.frontend.primitives":
        "assistant assistant_begin assistant_end document gen gen_int gen_string greedy_token_selection image select separate_reasoning special "
        "system system_begin system_end token_length_normalized unconditional_likelihood_normalized user user_begin user_end video",
    "lmc.frontend.host": "host pure",
    "lmc.frontend.attempts": "Done Retry",
    "lmc.frontend.interrupts": "interrupt",
    "lmc.journals": "Journal",
    "lmc.frontend.tools": "call_tool tool_result",
    "lmc.frontend.interpreter": "Function State function",
    "lmc.segments": "ChoicesMethod SamplingParams",
    "lmc.chat": "get_chat_template register_chat_template",
    "lmc.limits": "Budget",
    "lmc.config": "set_default_backend",
    "lmc.runahead.program": "Program compile",
    "lmc.loading": "load",
    "lmc.timeline": "trace",
    "lmc.certifying": "Certificate certify",
    "lmc.backend.mock": "Mock",
    "lmc.backend.routed": "Routed",
    "lmc.backend.usage": "Prices",
    "lmc.backend.api.openai": "OpenAI",
    "lmc.backend.api.anthropic": "Anthropic",
    "lmc.backend.api.litellm": "LiteLLM VertexAI",
    "lmc.backend.api.sglang": "SGLang",
    "lmc.backend.api.vllm": "VLLM",
    "lmc.backend.local_model": "Engine",
    "lmc.backend.runtime": "Runtime",
    "lmc.compat": "global_config",
    "lmc.errors": " ".join(_errors.__all__),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_ALIASES = {"ProgramState": "State", "RuntimeEndpoint": "SGLang"}
_CONSTRUCTED = frozenset({
    "Anthropic", "Budget", "Engine", "Journal", "LiteLLM", "Mock", "OpenAI", "Prices", "Retry", "Routed", "Runtime", "RuntimeEndpoint", "SGLang", "VLLM",
    "VertexAI",
})  # fmt: skip
"""Classes that users construct: their errors come back without lmc's frames."""
_CALLED = ("certify", "get_chat_template", "register_chat_template", "set_default_backend")
"""The same of functions whose modules know nothing of tracebacks."""
_OF_THE_ENGINE = ("lmc.backend.local_model", "lmc.backend.runtime")

__all__ = [*_HOME, *_ALIASES, "config", "flush_cache", "get_server_info"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS:
        return _integration(name)
    home = _HOME.get(_ALIASES.get(name, name))
    if home is None and name.startswith("__"):  # dunder names are looked up by Python itself and are no misspelling
        raise AttributeError(f"module 'lmc' has no attribute {name!r}")
    if name == "audio":
        raise AttributeError("lmc has no audio(): no backend takes sound; append a transcript as text")
    if home is None:
        from lmc.parameters import suggestion

        known = [n for n in __all__ if not n.startswith("_")]
        near = suggestion(name, known)
        raise AttributeError(f"module 'lmc' has no attribute {name!r}{near if 'did you mean' in near else ''}")
    if home in _OF_THE_ENGINE:
        import_module("lmc.extras").require(f"lmc.{name}", "engine")
    value = getattr(import_module(home), _ALIASES.get(name, name))
    if name in _CONSTRUCTED:
        import_module("lmc.tracebacks").hide_in_constructor(value)
    if name in _CALLED:
        value = import_module("lmc.tracebacks").users_frames(value)
        value.__module__ = "lmc"  # pickled by that name
    globals()[name] = value
    return value


_INTEGRATIONS = {"dspy": "dspy", "langchain": "langchain", "llama_index": "llama-index"}
"""Other libraries on lmc's backends, and the extra of each."""


def _integration(name: str) -> ModuleType:
    """`lmc.dspy`, …: another library's programs on lmc."""
    import_module("lmc.extras").require(f"lmc.{name}", _INTEGRATIONS[name])
    return import_module(f"lmc.integrations.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def flush_cache(backend: Any = None, empty_cache: bool = True) -> bool:
    """Empty the prefix cache of a backend or that of a name (of the default one, if none is given); return False if there is no backend.

    `empty_cache` is accepted and not used: memory that an engine freed is its own.
    """
    backend = _given_or_default(backend)
    if backend is None:
        return False
    backend.flush_cache()
    return True


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """Return what a backend or that of a name (default: the default one) reports of itself: model, limits, cache; None
    if there is none."""
    backend = _given_or_default(backend)
    return None if backend is None else backend.server_info()


def _given_or_default(backend: Any) -> Any:
    """Return `backend`, or that of its name; for None the default one if it exists: asking about a cache must not load a model."""
    if backend is not None:
        return _config.as_backend(backend)
    return _config.default_backend() if _config.has_default_backend() else None


def _of_module(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module, which is imported when it is called."""
    return lambda *args: getattr(import_module(module), name)(*args)


def _open_telemetry() -> Any:
    from lmc.extras import require

    require("LMC_OTEL=1, or lmc.config(otel=True),", "otel")
    from lmc.integrations.otel import OpenTelemetry

    return OpenTelemetry()


class _CallableModule(ModuleType):
    """`lmc.config` is the module of the settings and, called, changes them. It is pickled by its name."""

    def __call__(self, **changes: Unpack[_config.Changes]) -> _config.Settings:
        try:
            return _config.config(**changes)
        except Exception as error:
            import_module("lmc.tracebacks").hide(error)
            raise

    def __reduce__(self) -> str:
        return "config"


sys.modules["lmc.config"].__class__ = _CallableModule
_config.provide(
    backend=lambda: import_module("lmc.named").open_backend(_config.settings().model or "smollm2"),
    named=_of_module("lmc.named", "open_backend"),
    program=_of_module("lmc.runahead.program", "compile"),
    observer=_open_telemetry,
)

if TYPE_CHECKING:  # the same table for type checkers and editors
    config: _CallableModule
    from lmc.backend.api.anthropic import Anthropic as Anthropic
    from lmc.backend.api.litellm import LiteLLM as LiteLLM
    from lmc.backend.api.litellm import VertexAI as VertexAI
    from lmc.backend.api.openai import OpenAI as OpenAI
    from lmc.backend.api.sglang import SGLang as RuntimeEndpoint
    from lmc.backend.api.sglang import SGLang as SGLang
    from lmc.backend.api.vllm import VLLM as VLLM
    from lmc.backend.local_model import Engine as Engine
    from lmc.backend.mock import Mock as Mock
    from lmc.backend.routed import Routed as Routed
    from lmc.backend.runtime import Runtime as Runtime
    from lmc.backend.usage import Prices as Prices
    from lmc.certifying import Certificate as Certificate
    from lmc.certifying import certify as certify
    from lmc.chat import get_chat_template as get_chat_template
    from lmc.chat import register_chat_template as register_chat_template
    from lmc.compat import global_config as global_config
    from lmc.config import set_default_backend as set_default_backend
    from lmc.constraints import REGEX_BOOL as REGEX_BOOL
    from lmc.constraints import REGEX_FLOAT as REGEX_FLOAT
    from lmc.constraints import REGEX_INT as REGEX_INT
    from lmc.constraints import REGEX_STR as REGEX_STR
    from lmc.errors import *  # noqa: F403
    from lmc.frontend.attempts import Done as Done
    from lmc.frontend.attempts import Retry as Retry
    from lmc.frontend.expressions import Expr as Expr
    from lmc.frontend.host import host as host
    from lmc.frontend.host import pure as pure
    from lmc.frontend.interpreter import Function as Function
    from lmc.frontend.interpreter import State as ProgramState
    from lmc.frontend.interpreter import State as State
    from lmc.frontend.interpreter import function as function
    from lmc.frontend.interrupts import interrupt as interrupt
    from lmc.frontend.primitives import *  # noqa: F403
    from lmc.frontend.tools import call_tool as call_tool
    from lmc.frontend.tools import tool_result as tool_result
    from lmc.journals import Journal as Journal
    from lmc.limits import Budget as Budget
    from lmc.loading import load as load
    from lmc.runahead.program import Program as Program
    from lmc.runahead.program import compile as compile
    from lmc.segments import ChoicesMethod as ChoicesMethod
    from lmc.segments import SamplingParams as SamplingParams
    from lmc.timeline import trace as trace
