"""The backend that `--backend` names, and `lmc warmup`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from lmc import named
from lmc.cli.console import say, waiting
from lmc.cli.errors import as_usage
from lmc.config import config
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


def open_backend(name: str, service: Callable[[str], Any] = named.open_backend) -> Any:
    """Open the backend that `--backend` names. `service`: only one that is not a model in this process."""
    with as_usage():
        if not named.is_model(name):
            return service(name)
        named.check_model(name)
        with waiting("loading the model"):
            opened = named.open_backend(name)
    for line in getattr(opened, "topology", ()):
        say(line)
    return opened


def use_drafts(name: str, drafts: str | None, model: str | None) -> None:
    """`--drafts` and `--draft-model`: how models are opened from now on."""
    if (drafts or model) and not named.is_model(name):
        raise UsageError(f"--drafts and --draft-model are for models on this machine, and {name} is not one")
    with as_usage():
        if drafts is not None:
            config(drafts=drafts)
        if model is not None:
            named.check_model(model)
            config(draft_model=model)


def use_kv_dtype(name: str, given: str | None) -> None:
    """`--kv-dtype`: how models are opened from now on."""
    if given is None:
        return
    if not named.is_model(name):
        raise UsageError(f"--kv-dtype is for models on this machine, and {name} is not one")
    with as_usage():
        config(kv_dtype=given)


def use_adapters(name: str, given: Sequence[str] | None) -> None:
    """`--adapter`: how models are opened from now on."""
    if not given:
        return
    if not named.is_model(name):
        raise UsageError(f"--adapter is for models on this machine, and {name} is not one")
    found: dict[str, str] = {}
    for each in given:
        key, equals, path = each.partition("=")
        if not (key and equals and path):
            raise UsageError(f"--adapter {each}: expected NAME=PATH, the directory of a LoRA adapter")
        if key in found:
            raise UsageError(f"--adapter: two adapters have the name {key}")
        found[key] = path
    config(adapters=found)


def use_devices(name: str, tp: int | None, dp: int | None) -> None:
    """Set `--tp` and `--dp` for models opened from now on."""
    if (tp or dp) and not named.is_model(name):
        raise UsageError(f"--tp and --dp are for models on this machine's GPUs, and {name} is not one")
    if tp is not None:
        config(tp=tp)
    if dp is not None:
        config(dp=dp)
