"""Backends by name: values of `--backend`, `backend="…"` and `set_default_backend("…")`.

mock                          no model: made-up answers
smollm2, FOLDER, FILE.gguf    lmc.Engine, also a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct
openai:MODEL[@URL]            lmc.OpenAI and servers that speak its API; anthropic:MODEL[@URL], litellm:MODEL[@URL]; vertexai:MODEL
vllm:URL, sglang:URL          lmc.VLLM, lmc.SGLang; several servers of one model with commas between them
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lmc.backend.api.redaction import shown
from lmc.backend.usage import Prices
from lmc.config import settings
from lmc.errors import MissingPackageError, ModelLoadError, ParameterError
from lmc.extras import require
from lmc.tracebacks import hide_in_constructor

FORMS = (
    "mock, smollm2, a GGUF file, a folder with config.json, tokenizer.json and *.safetensors, a hub id such as "
    "HuggingFaceTB/SmolLM2-135M-Instruct, openai:MODEL[@URL], anthropic:MODEL[@URL], litellm:MODEL[@URL], vertexai:MODEL, vllm:URL or sglang:URL"
)


_AT = re.compile(r"@(?=[^@/]*:/|//)")
"""Separates a model from the URL of its server."""
_BETWEEN = re.compile(r",(?=\w*://)")
"""Between two servers: a password may have commas, too."""
_NO_MODEL = re.compile(r"[?#\s]|:/|//")
"""Text that no model's name contains: it indicates a misplaced URL."""
_NEARLY = re.compile("[:/]")
"""A URL without its scheme: host:port, host/path."""


def open_backend(name: str, **engine: Any) -> Any:
    """Return the backend of a name; `engine`: options of `lmc.Engine`, for a model in this process. Raises ParameterError for an unknown name, before
    anything heavy is imported."""
    if _is_service(name):
        return open_service(name)
    if name == "mock":
        return _constructor("lmc.backend.mock", "Mock")()
    check_model(name)
    try:
        return _engine(name, **engine)
    except (MissingPackageError, ModelLoadError) as error:
        kind, _, model = name.partition("/")
        if kind in _SERVICES and kind not in _SERVERS and not os.path.exists(name):  # a name of LiteLLM's, and perhaps one of the hub's
            error.message += f"\na model behind an API is written {kind}:{model}"
        raise


def open_service(name: str, **options: Any) -> Any:
    """Return the backend of a name that is no model in this process, with options of its class. Raises ParameterError
    for a model."""
    kind, _, rest = name.partition(":")
    if not _is_service(name):
        raise ParameterError(f"backend {name!r} is in this process, and takes no {', '.join(options)}")
    if not rest:
        raise ParameterError(f"backend {name!r} names no {'URL' if kind in _SERVERS else 'model'}; expected one of: {FORMS}")
    return _SERVICES[kind](rest, **options)


def open_unasked(name: str, prices: Prices | None = None) -> Any:
    """Return a backend of which only capabilities and prices are wanted: it makes no request, so it needs no key."""
    options: dict[str, Any] = {"api_key": "none"} if name.startswith(_KEYED) else {}
    if prices is not None:
        options["prices"] = prices
    return open_service(name, **options) if options else open_backend(name)


def public(name: str) -> str:
    """Return a backend's name for those who are not to know where it is or is asked, nor with which password."""
    if not _is_service(name):
        path = _path(name)
        return os.path.basename(os.path.realpath(path)) if os.path.exists(path) else name
    kind = name.partition(":")[0]
    if kind in _SERVERS:
        return f"{kind}:{','.join(map(shown, _BETWEEN.split(name.partition(':')[2])))}"
    return _NO_MODEL.split(_AT.split(name, maxsplit=1)[0], maxsplit=1)[0]


def _is_service(name: str) -> bool:
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in _SERVICES


def is_model(name: str) -> bool:
    """Return whether opening the name loads a model, which takes a while."""
    return name != "mock" and name.partition(":")[0] not in _SERVICES


def is_backend(name: str) -> bool:
    """Return whether a path or word looks like a backend's name, or its part before the colon."""
    path = _path(name)
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "~", "/")) and path.suffix not in (".py", ".lmcp") and not os.path.exists(path.parent)
    return name in ("mock", "smollm2", *_SERVICES) or path.suffix == ".gguf" or os.path.isfile(path / "config.json") or is_hub_id


def _path(name: str) -> Path:
    """Return the path that a name may be. Neither this nor `os.path` minds one that no file can have."""
    return Path(os.path.expanduser(name))


def check_model(name: str) -> None:
    """Refuse names that cannot be a model."""
    path = _path(name)
    if os.path.isdir(path) and not os.path.isfile(path / "config.json"):
        raise ParameterError(f"the folder {name} has no config.json, so it holds no model; expected one of: {FORMS}")
    if not os.path.exists(path) and name != "smollm2" and (name.count("/") != 1 or name.startswith((".", "/", "~")) or path.suffix == ".gguf"):
        near = difflib.get_close_matches(name.partition(":")[0], ("mock", "smollm2", *_SERVICES), n=1, cutoff=0.65)
        api = next((api for begin, api in (("gpt-", "openai"), ("claude-", "anthropic")) if name.startswith(begin)), None)
        meant = f"{api}:{name}" if api else f"{near[0]}{':…' if near[0] in _SERVICES else ''}" if near else ""
        hint = f"did you mean {meant}? " if meant else ""
        raise ParameterError(
            f"no model {shown(name) if '@' in name or '://' in name else name!r}: there is no such file or folder (looked in {Path.cwd()}); "
            f"{hint}expected one of: {FORMS}"
        )


def _engine(model: str, **options: Any) -> Any:
    """An engine on LMC_DEVICE (if it is not set: on a GPU, if there is one)."""
    require(f"the model {model}", "engine")
    from lmc.backend.local_model import Engine

    if device := settings().device:
        _check_device(device)
    return Engine(model, device=device or "auto", **options)


def _check_device(device: str) -> None:
    """Refuse a device that torch does not know or cannot reach, before a model is loaded."""
    import torch

    try:
        torch.ones(1, device=device).item()
    except Exception as error:  # torch raises many types, with long messages
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ParameterError(f"LMC_DEVICE={device!r} is not a device that torch can use here; set it to {' or '.join(['cpu', *gpus])}, or unset it") from error


def _constructor(module: str, name: str) -> Callable[..., Any]:
    """Return what makes a backend of a class, whose module is imported then; errors come back without lmc's frames."""

    def made(*args: Any, **options: Any) -> Any:
        found = getattr(import_module(module), name)
        hide_in_constructor(found)
        return found(*args, **options)

    return made


def _api(make: Callable[..., Any], *, own: bool = False) -> Callable[..., Any]:
    """Return what opens an API; `own`: without a URL it has servers of its own, which get the user's key."""

    def opened(rest: str, **options: Any) -> Any:
        model, *url = _AT.split(rest, maxsplit=1)
        at, behind = model.rpartition("@")[1:]
        if own and at and not url and (_NEARLY.search(behind) or behind in ("", "localhost")):
            raise ParameterError(
                f"the model {model.partition('@')[0]!r}: what is behind its @ is no URL, which begins with http:// or https://, as in openai:MODEL@http://host:port/v1"
            )
        if no_model := _NO_MODEL.search(model):
            raise ParameterError(
                f"the model {(model[0] + model[1:].partition('@')[0])[: no_model.start()]!r}…: a model's name has no {no_model[0]!r}; "
                "a URL is written behind it, as in openai:MODEL@http://host:port/v1"
            )
        return make(model, base_url=url[0], **options) if url else make(model, **options)

    return opened


def _server(make: Callable[..., Any]) -> Callable[..., Any]:
    def opened(rest: str, **options: Any) -> Any:
        urls = _BETWEEN.split(rest)
        return make(urls if len(urls) > 1 else rest, **options)

    return opened


_SERVERS = ("vllm", "sglang")
_KEYED = ("openai:", "anthropic:")  # their clients need a key
_SERVICES: Mapping[str, Callable[..., Any]] = {
    "openai": _api(_constructor("lmc.backend.api.openai", "OpenAI"), own=True),
    "anthropic": _api(_constructor("lmc.backend.api.anthropic", "Anthropic"), own=True),
    "litellm": _api(_constructor("lmc.backend.api.litellm", "LiteLLM")),
    "vertexai": _api(_constructor("lmc.backend.api.litellm", "VertexAI")),
    "vllm": _server(_constructor("lmc.backend.api.vllm", "VLLM")),
    "sglang": _server(_constructor("lmc.backend.api.sglang", "SGLang")),
}
