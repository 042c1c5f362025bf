"""A model's files: those of a directory, read and refused where they are not what they should be, and a hub id's, downloaded."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor


SOURCES = 'a model is a .gguf file, a directory with config.json, tokenizer.json and *.safetensors, a hub id "owner/name", or "smollm2"'


def local_path(source: str) -> Path:
    """Return the path that a source may be. Raises ModelLoadError for one that nothing can have, or whose folder cannot be read."""
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: without a home directory
        raise ModelLoadError(f"{source:.200}: {getattr(error, 'strerror', None) or error}; {SOURCES}") from None
    return path


def other_files(path: Path) -> str:
    """Return a hint at other model files that a directory has, if any."""
    found = sorted(p.name for p in path.glob("*.gguf"))
    found += sorted(f"{p.parent.name}/" for p in path.glob("*/config.json"))
    return f" (but {', '.join(found[:4])}: name that)" if found else ""


def json_of(path: Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds. Raises ModelLoadError."""
    try:
        found = json.loads(_text_of(path))
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}; make it readable, or download it again") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}; download it again") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path}: holds no JSON object; download it again")
    return found


def _text_of(path: Path) -> str:
    check_size(path)
    return path.read_text(encoding="utf-8")


def check_size(path: Path) -> None:
    """Raise ModelLoadError for a text that is far too large."""
    if (size := path.stat().st_size) > _MOST_TEXT:
        raise ModelLoadError(f"{path}: has {size:,} bytes, and at most {_MOST_TEXT:,} of a text are read; download it again")


_MOST_TEXT = 1 << 26  # bytes; indices of weights have some MB


def json_or_none(path: Path) -> dict[str, Any] | None:
    return json_of(path) if path.is_file() else None


def template_source(path: Path, options: dict[str, Any]) -> str | None:
    """Return the Jinja source: `chat_template.jinja`, or in tokenizer_config.json (one, or a list of named ones)."""
    file = path / "chat_template.jinja"
    if "chat_template" not in options and not file.is_file():  # processors of transformers 4 kept theirs here
        options = json_or_none(path / "chat_template.json") or {}
    if file.is_file():
        try:
            return _text_of(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{file}: cannot be read: {error}; download it again") from error
    found, where = options.get("chat_template"), f"{path / 'tokenizer_config.json'}: chat_template"
    if isinstance(found, list):
        named = [t for t in found if isinstance(t, dict) and t.get("name") == "default"]
        found = named[0].get("template") if named else None
    return text_or_none(found, where)


def text_or_none(found: Any, where: str) -> str | None:
    if found is not None and not isinstance(found, str):
        raise ModelLoadError(f"{where} is {found!r:.60}; expected text; download it again")
    return found


def shards_of(path: Path) -> list[Path]:
    """Return the weights' files."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return [path / "model.safetensors"]
    places = json_of(index).get("weight_map")
    if not isinstance(places, dict):
        raise ModelLoadError(f"{index}: 'weight_map' is missing; download it again")
    names = set(map(str, places.values()))
    if odd := [name for name in names if Path(name).name != name or not name.isprintable() or len(name.encode()) > 255]:
        raise ModelLoadError(f"{index}: {odd[0]!r:.60} is not a file of this directory; download it again")
    return [path / name for name in sorted(names)]


def check_layers(path: Path, field: str, layers: int) -> None:
    """Refuse a configuration with more layers than the weights have tensors of, before any is made; reads only their names."""
    from safetensors import safe_open

    names = list[str]()
    for shard in shards_of(path):
        with reading(shard), safe_open(shard, framework="pt") as file:
            names += file.keys()
    if layers > len(names):
        raise ModelLoadError(f"{path / 'config.json'}: {field} is {layers}, and the weights have {len(names)} tensors; do both belong to the same model?")


def check_regular(file: Path) -> None:
    """Raise ModelLoadError for a directory or a device, and a named pipe: opening one would wait for a writer."""
    if file.exists() and not file.is_file():
        raise ModelLoadError(f"{file}: not a regular file; download it again")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    return {name: tensor for shard in shards_of(path) for name, tensor in safetensors_of(shard).items()}


def safetensors_of(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file. Raises ModelLoadError."""
    from safetensors.torch import load_file

    with reading(file):
        return load_file(file)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise ModelLoadError if safetensors cannot read the file."""
    from safetensors import SafetensorError

    check_regular(file)
    try:
        yield
    except OSError as error:
        raise ModelLoadError(f"{file}: the weights cannot be read: {error}") from error
    except SafetensorError as error:
        raise ModelLoadError(f"{file}: damaged safetensors ({error}); download it again") from error


_HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+", re.ASCII)


def _nearest(missing: Path) -> str:
    """Return where the name was looked up, and similar names there."""
    like = difflib.get_close_matches(missing.name, _names(missing.parent), n=1)
    also = f", which has {like[0]!r}" if like else "" if missing.parent.is_dir() else ", which does not exist either"
    return f" in {missing.parent}{also}"


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []  # only costs a hint


def download(source: str) -> Path:
    """Download a hub id's files to huggingface_hub's cache; it honours HF_HUB_OFFLINE and HF_HOME."""
    if not _HUB_ID.fullmatch(source) or source.endswith(".gguf"):
        looked = local_path(source).absolute()
        raise ModelLoadError(f"{source}: no such file or directory{_nearest(looked)}; {SOURCES}")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(snapshot_download(source, allow_patterns=patterns))
    except Exception as error:  # network, authorization, unknown id: the hub's own message tells which
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ModelLoadError(f"{source}: no such file or directory, and not loadable as a hub id{offline}: {error}") from error
