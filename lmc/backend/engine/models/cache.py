"""Converted models in the user's cache: one safetensors file each, written completely or not at all.

The file holds the weights in the layout that the model runs and, in its header, config, tokenizer and chat template.
Its name is the digest of the source's content, the layout and the format's version; `sources.py` says when it goes.

A checksum guards the copy against the disk: CRC-32 of every tensor, 0.1 s for 330 MB (a cryptographic digest takes
0.2–0.4 s without adding protection: an attacker who can write here can write a digest too).
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.backend.engine.models import sources
from lmc.backend.engine.models.config import ModelConfig, RopeScaling
from lmc.config import cache_folder, replacing
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("lmc.models")


@dataclass(frozen=True)
class Converted:
    """The contents of a cache file."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: str  # tokenizer.json
    tokenizer_options: Mapping[str, Any]
    template: str | None


@dataclass(frozen=True)
class CacheEntry:
    """The place of the copy of a source with the content `digest`; the file may not exist."""

    path: Path
    source: Path
    digest: str

    @property
    def size(self) -> int:
        """Return bytes of the copy; 0 without one."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def load(self) -> Converted | None:
        """Return the copy, or None when there is none; a damaged one is reported in one line and treated as absent."""
        from safetensors import SafetensorError

        while (state := self._state()) is not None:
            try:
                return self._read()
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                if self._state() != state:
                    continue  # replaced while it was read: safetensors opens it twice, for header and weights
                log.warning("%s: the cached copy is damaged, or not this user's to read (%s); converting %s again", self.path, error, self.source)
                return None
        return None

    def _state(self) -> tuple[int, int] | None:
        """Return a key that changes with each writing of the file; None without a file, or in a folder that is another user's."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _read(self) -> Converted:
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            meta = file.metadata()
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if meta["checksum"] != _checksum(meta, weights):
            raise ValueError("its checksum does not fit its content")
        return Converted(
            _config(json.loads(meta["config"])),
            weights,
            meta["tokenizer"],
            json.loads(meta["tokenizer_options"]),
            meta.get("template"),
        )

    def store(self, found: Converted) -> None:
        """Write the copy beside its place and move it there; readers see the old one, none, or the complete new one."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        weights = {name: tensor.contiguous() for name, tensor in found.weights.items()}
        meta = {
            "config": json.dumps(asdict(found.config)),
            "tokenizer": found.tokenizer,
            "tokenizer_options": json.dumps(dict(found.tokenizer_options)),
        }
        if found.template is not None:
            meta["template"] = found.template
        meta["checksum"] = _checksum(meta, weights)
        try:
            with replacing(self.path) as name:
                save_file(weights, name, metadata=meta)
                if sources.content(self.source, self.path.parent) != self.digest:
                    raise OSError("the file was changed while it was read")
            sources.sweep(self.path.parent, self.digest)
        except (OSError, SafetensorError) as error:
            log.warning("%s: the converted copy cannot be kept (%s); the next load converts again", self.source, error)


def entry(source: Path, layout: str, check: Callable[[], object] = lambda: None) -> CacheEntry | None:
    """Return the entry of `source` in `layout`; None, after one log line, when there can be no cache directory.

    `check` may raise before all of a new source is read. Raises ModelLoadError if it cannot be."""
    folder = cache_folder("models", "every load converts the model again")
    if folder is None:
        return None
    try:
        digest = sources.content(source, folder, check)
    except OSError as error:
        raise ModelLoadError(f"{source}: cannot be read: {error.strerror or error}") from error
    return CacheEntry(folder / sources.copy_name(digest, layout), source, digest)


def _checksum(meta: Mapping[str, str], weights: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of all texts and weights, with their types and shapes, in the order of their names."""
    import torch

    found = 0
    for name in sorted(meta.keys() - {"checksum"}):
        found = zlib.crc32(f"{name}={meta[name]}".encode(), found)
    for name in sorted(weights):
        data = weights[name].flatten().view(torch.uint8).numpy().data
        found = zlib.crc32(data, zlib.crc32(f"{name} {weights[name].dtype} {list(weights[name].shape)}".encode(), found))
    return f"{found:08x}"


def _config(raw: dict[str, Any]) -> ModelConfig:
    """Rebuild a config from `asdict`."""
    scaling = raw.pop("rope_scaling")
    if scaling is not None:
        scaling = RopeScaling(**{**scaling, "factors": tuple(scaling["factors"])})
    lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    return ModelConfig(**{**raw, "rope_scaling": scaling, **lists})
