"""Prices of models by the names of their backends, from the list that LiteLLM brings, where that is installed.

lmc has no list of its own: it would soon be out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmc.backend.usage import Prices

_FILE = "model_prices_and_context_window_backup.json"  # in LiteLLM's package; read without importing it, which takes seconds


def listed(backend: str) -> tuple[Prices, str] | None:
    """Return prices of a backend such as "openai:gpt-4.1-mini", and whose list has them; None where none has the model, or it is asked at a URL of its own."""
    found = _list()
    if found is None:
        return None
    for name, provider in _names(backend):
        entry = found.get(name)
        if isinstance(entry, dict) and (provider is None or _is_of(str(entry.get("litellm_provider")), provider)):
            dollars = [entry.get(key) for key in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")]
            prompt, completion, cached = [round(price * 1e6, 9) if isinstance(price, int | float) and price >= 0 else None for price in dollars]
            if prompt is not None and completion is not None:
                return Prices(prompt, completion, cached), f"LiteLLM {metadata.version('litellm')}"
    return None


def _names(backend: str) -> Iterator[tuple[str, str | None]]:
    """Under which names the list may have a backend's model, and of which provider."""
    kind, _, model = backend.partition(":")
    if "//" in model:  # the URL of another server; behind an @ alone is a version, in Vertex AI's names
        return
    if kind == "vertexai":
        kind, model = "litellm", f"vertex_ai/{model.removeprefix('vertex_ai/')}"
    if kind in ("openai", "anthropic"):
        yield model, kind
    elif kind == "litellm":
        yield model, None
        yield model.partition("/")[2], model.partition("/")[0]


def _is_of(listed: str, provider: str) -> bool:
    """Return whether the list's provider is this one, which may have a name for each kind of its models there."""
    return listed == provider or listed.startswith(f"{provider}-")


def _list() -> dict[str, Any] | None:
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / _FILE
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return None
