"""Backends by name: what `--backend`, `backend="…"` and `set_default_backend("…")` take.

    mock                          no model: made-up answers
    smollm2, FOLDER, FILE.gguf    lmc.Engine, also a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct
    openai:MODEL[@URL]            lmc.OpenAI and servers that speak its API; anthropic:MODEL[@URL], litellm:MODEL[@URL]; vertexai:MODEL
    vllm:URL, sglang:URL          lmc.VLLM, lmc.SGLang; several servers of one model with commas between them
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmc
from lmc.errors import ParameterError

FORMS = ("mock, smollm2, a GGUF file, a folder with config.json, tokenizer.json and *.safetensors, a hub id such as "
         "HuggingFaceTB/SmolLM2-135M-Instruct, openai:MODEL[@URL], anthropic:MODEL[@URL], litellm:MODEL[@URL], vertexai:MODEL, vllm:URL or sglang:URL")


def open_backend(name: str) -> Any:
    """The backend of a name. Raises ParameterError for what names none, before anything heavy is imported."""
    kind, colon, rest = name.partition(":")
    if colon and kind in _SERVICES:
        if not rest:
            raise ParameterError(f"backend {name!r} names no {'URL' if kind in _SERVERS else 'model'}; expected {FORMS}")
        return _SERVICES[kind](rest)
    if name == "mock":
        return lmc.Mock()
    check_model(name)
    return lmc._engine(name)


def is_model(name: str) -> bool:
    """Whether opening it loads a model, which takes a while."""
    return name != "mock" and name.partition(":")[0] not in _SERVICES


def check_model(name: str) -> None:
    """Refuse what can be no model."""
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise ParameterError(f"the folder {name} has no config.json, so it holds no model; expected {FORMS}")
    if not path.exists() and name != "smollm2" and (name.count("/") != 1 or name.startswith((".", "/", "~")) or path.suffix == ".gguf"):
        near = difflib.get_close_matches(name.partition(":")[0], ("mock", "smollm2", *_SERVICES), n=1)
        hint = f"did you mean {near[0]}{':…' if near[0] in _SERVICES else ''}? " if near else ""
        raise ParameterError(f"no model {name!r}: there is no such file or folder (looked in {Path.cwd()}); {hint}expected is {FORMS}")


def _api(make: Callable[..., Any]) -> Callable[[str], Any]:
    def opened(rest: str) -> Any:
        model, *url = re.split(r"@(?=https?://)", rest, maxsplit=1)
        return make(model, base_url=url[0]) if url else make(model)

    return opened


def _server(make: Callable[..., Any]) -> Callable[[str], Any]:
    def opened(rest: str) -> Any:
        urls = rest.split(",")
        return make(urls if len(urls) > 1 else rest)

    return opened


_SERVERS = ("vllm", "sglang")
_SERVICES: Mapping[str, Callable[[str], Any]] = {
    "openai": _api(lambda *model, **url: lmc.OpenAI(*model, **url)),
    "anthropic": _api(lambda *model, **url: lmc.Anthropic(*model, **url)),
    "litellm": _api(lambda *model, **url: lmc.LiteLLM(*model, **url)),
    "vertexai": _api(lambda *model, **url: lmc.VertexAI(*model, **url)),
    "vllm": _server(lambda urls: lmc.VLLM(urls)),
    "sglang": _server(lambda urls: lmc.SGLang(urls)),
}
