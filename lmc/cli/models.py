"""The backend that `--backend` names, and `lmc warmup`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import typer

from lmc import named
from lmc.cli.console import say, waiting
from lmc.cli.errors import as_usage
from lmc.userfiles import UsageError


def warmup(
    model: Annotated[str, typer.Argument(metavar="MODEL", show_default=False, help="smollm2, a GGUF file, a model folder with safetensors, or a hub id.")],
) -> None:
    """Prepare this machine, or a machine image, for a model.

    Load it once, and compile and cache all that its passes use.

    \b
    Example:
      lmc warmup path/to/model
    """
    if not named.is_model(model):
        raise UsageError(f"{model} does not run in this process; only models that do can be warmed up")
    began = time.monotonic()
    engine = open_backend(model)
    with engine:
        loaded = time.monotonic()
        with waiting("compiling kernels"):
            engine.warm_up()
    say(f"{model}: loaded in {loaded - began:.1f} s, kernels ready after another {time.monotonic() - loaded:.1f} s")


def open_backend(name: str, service: Callable[[str], Any] = named.open_backend, engine: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Open the backend that `--backend` names. `service`: only one that is not a model in this process; `engine`: options of one that is."""
    with as_usage():
        if not named.is_model(name):
            return service(name)
        named.check_model(name)
        with waiting("loading the model"):
            opened = named.open_backend(name, **engine)
    for line in getattr(opened, "topology", ()):
        say(line)
    return opened


def engine_options(
    name: str, *, tp: int | None, dp: int | None, adapter: Sequence[str] | None, drafts: Any, draft_model: str | None,
    quantization: str | None, kv_dtype: str | None, deterministic: bool,
) -> Mapping[str, Any]:  # fmt: skip
    """Return options of an engine, as those of the command say; refuse those that `name`, which is no model on this machine, would not heed."""
    given = {
        "tp": tp, "dp": dp, "adapters": _adapters(adapter or ()), "drafts": drafts, "draft_model": draft_model,
        "quantization": quantization, "kv_dtype": kv_dtype, "deterministic": deterministic,
    }  # fmt: skip
    given = {option: value for option, value in given.items() if value}
    if given and not named.is_model(name):
        option = "--" + next(iter(given)).replace("_", "-").replace("adapters", "adapter")
        raise UsageError(f"{option} is for models on this machine, and {name} is not one")
    with as_usage():
        if draft_model:
            named.check_model(draft_model)
    return given


def _adapters(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        key, equals, path = each.partition("=")
        if not (key and equals and path):
            raise UsageError(f"--adapter {each}: expected NAME=PATH, the directory of a LoRA adapter")
        if key in found:
            raise UsageError(f"--adapter: two adapters have the name {key}")
        found[key] = path
    return found
