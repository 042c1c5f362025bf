"""lmc: a JIT compiler and runtime for language-model programs.

Names are imported when they are first used, so that `import lmc` costs next to nothing and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES: dict[str, tuple[str, ...]] = {
    "lmc.frontend.primitives": (
        "REGEX_BOOL", "REGEX_FLOAT", "REGEX_INT", "REGEX_STR",
        "assistant", "assistant_begin", "assistant_end", "gen", "gen_int", "gen_string", "greedy_token_selection", "image",
        "select", "separate_reasoning", "special", "system", "system_begin", "system_end", "token_length_normalized",
        "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "video",
    ),
    "lmc.frontend.interpreter": ("Function", "State", "function"),
    "lmc.prompt": ("ChoicesMethod", "SamplingParams"),
    "lmc.jit": ("Program", "compile"),
    "lmc.backend.mock": ("Mock",),
    "lmc.backend.local": ("Engine",),
    "lmc.errors": (
        "BackendError", "CancelledError", "ConstraintError", "IRError", "LmcError", "ModelLoadError", "ProgramError",
        "PromptTooLongError", "UnsupportedOpError",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_ALIASES = {"ProgramState": "State", "Runtime": "Engine"}

__all__ = [*_HOME, *_ALIASES]


def __getattr__(name: str) -> Any:
    home = _HOME.get(_ALIASES.get(name, name))
    if home is None:
        raise AttributeError(f"module 'lmc' has no attribute {name!r}")
    value = getattr(import_module(home), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    pass
