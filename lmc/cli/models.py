"""The backend that `--backend` names."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from lmc.cli.console import waiting
from lmc.cli.errors import as_usage
from lmc.userfiles import UsageError


def open_backend(name: str) -> Any:
    """The backend that `--backend` names."""
    import lmc

    if name == "mock":
        return lmc.Mock()
    _check_model(name)
    with waiting("loading the model"), as_usage():
        return lmc._engine(name)


_MODELS = ("expected is mock, smollm2, a GGUF file, a folder with config.json, tokenizer.json and *.safetensors, "
           "or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct (--backend, or LMC_MODEL)")


def _check_model(name: str) -> None:
    """Refuses what can be no model before anything heavy is imported."""
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise UsageError(f"the folder {name} has no config.json, so it holds no model; {_MODELS}")
    if not path.exists() and name != "smollm2" and (name.count("/") != 1 or name.startswith((".", "/", "~")) or path.suffix == ".gguf"):
        near = difflib.get_close_matches(name, ("mock", "smollm2"), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no model {name!r}: there is no such file or folder (looked in {Path.cwd()}); {hint}{_MODELS}")
