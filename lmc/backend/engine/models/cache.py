"""Converted models in the user's cache: one safetensors file each, written whole or not at all.

The file holds the weights in the layout that the model runs and, in its header, config, tokenizer and chat template.
Its name says whose copy it is (source path, layout) and of which state of it (size, time, first and last bytes,
format version): a changed source is another file, and the outdated one is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.engine.models.config import ModelConfig, RopeScaling
from lmc.config import cache_dir

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("lmc.models")

FORMAT = 1  # change it whenever the content's meaning changes
_PROBE = 4 << 20  # bytes of the source that are hashed at its beginning: all of a GGUF's metadata, as a rule


@dataclass(frozen=True)
class Converted:
    """What a cache file holds."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: str  # tokenizer.json
    tokenizer_options: Mapping[str, Any]
    template: str | None


@dataclass(frozen=True)
class Entry:
    """The place of one source's copy; the file may not be there."""

    path: Path
    source: Path
    family: str  # file names that begin so are copies of the same source in the same layout

    def load(self) -> Converted | None:
        """The copy, or None when there is none; a damaged one is reported in one line and treated as absent."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                meta = file.metadata()
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return Converted(
                _config(json.loads(meta["config"])),
                weights,
                meta["tokenizer"],
                json.loads(meta["tokenizer_options"]),
                meta.get("template"),
            )
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            log.warning("%s: the cached copy is damaged (%s); converting %s again", self.path, error, self.source)
            return None

    def store(self, found: Converted) -> None:
        """Writes the copy beside its place and moves it there; readers see the old one, none, or the whole new one."""
        from safetensors.torch import save_file

        meta = {
            "config": json.dumps(asdict(found.config)),
            "tokenizer": found.tokenizer,
            "tokenizer_options": json.dumps(dict(found.tokenizer_options)),
        }
        if found.template is not None:
            meta["template"] = found.template
        try:
            handle, name = tempfile.mkstemp(prefix=".part-", dir=self.path.parent)
            os.close(handle)
            try:
                save_file({n: t.contiguous() for n, t in found.weights.items()}, name, metadata=meta)
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
            self._remove_outdated()
        except OSError as error:
            log.warning("%s: the converted copy cannot be kept (%s); the next load converts again", self.path, error)

    def _remove_outdated(self) -> None:
        for old in self.path.parent.iterdir():
            if old.name.startswith(self.family) and old != self.path:
                old.unlink(missing_ok=True)


def entry(source: Path, layout: str) -> Entry | None:
    """Where the copy of `source` in `layout` lies; None, after one log line, when there can be no cache directory."""
    try:
        folder = cache_dir() / "models"
        folder.mkdir(exist_ok=True)
    except OSError as error:
        log.warning("no cache directory (%s): every load converts the model again; set LMC_CACHE_DIR", error)
        return None
    stat, place = source.stat(), source.resolve()
    family = f"{source.stem}-{layout}-{_digest(str(place).encode())}-"
    with source.open("rb") as file:
        first = file.read(_PROBE)
        file.seek(max(0, stat.st_size - 4096))
        last = file.read()
    state = _digest(f"{FORMAT} {stat.st_size} {stat.st_mtime_ns}".encode(), first, last)
    return Entry(folder / f"{family}{state}.safetensors", source, family)


def _digest(*data: bytes) -> str:
    found = hashlib.blake2b(digest_size=6)
    for part in data:
        found.update(part)
    return found.hexdigest()


def _config(raw: dict[str, Any]) -> ModelConfig:
    """`asdict`, undone."""
    scaling = raw.pop("rope_scaling")
    if scaling is not None:
        scaling = RopeScaling(**{**scaling, "factors": tuple(scaling["factors"])})
    return ModelConfig(**{**raw, "rope_scaling": scaling, "eos_token_ids": tuple(raw["eos_token_ids"])})
