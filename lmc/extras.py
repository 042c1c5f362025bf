"""Extras: which packages a part of lmc needs besides the core, and the line that installs them where lmc is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lmc.errors import MissingPackageError

DISTRIBUTION = "lmc-lang"  # on a package index; what is imported is lmc

MODULES = {
    "images": ("PIL", "numpy"),
    "video": ("av", "num2words", "PIL", "numpy"),
    "engine": ("torch", "transformers", "tokenizers", "safetensors", "numpy"),
    "tokens": ("tokenizers", "numpy"),
    "gpu": ("triton",),
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "litellm": ("litellm",),
    "vertexai": ("litellm", "google.auth"),
    "remote": ("httpx", "orjson", "uvloop"),
    "serve": ("starlette", "uvicorn", "h11", "pydantic", "prometheus_client"),
    "dspy": ("dspy",),
    "langchain": ("langchain_core",),
    "llama-index": ("llama_index.core",),
    "journals": ("cryptography",),
    "otel": ("opentelemetry.sdk",),
    "types": ("pydantic",),
}
"""Modules that the parts of lmc behind each extra import."""


def require(what: str, extra: str) -> None:
    """Raise MissingPackageError if modules of an extra are not installed; `what` needs them."""
    lacking = [name for name in MODULES[extra] if not _is_there(name)]
    if lacking:
        raise missing(what, lacking, extra)


def _is_there(name: str) -> bool:
    """Return whether a module can be found, importing only the packages that contain it."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def missing(what: str, packages: Iterable[str], extra: str, why: str = "") -> MissingPackageError:
    """Return the error that `what` needs packages of an extra, with the command that installs them."""
    names = list(packages)
    verb = "which is not installed" if len(names) == 1 else "which are not installed"
    return MissingPackageError(f"{what} needs {', '.join(names)}, {why or verb}: {install_line(extra)}", name=names[0])


def install_line(*extras: str) -> str:
    """Return the command that installs extras into the running lmc: from a package index, the clone, or its other
    origin."""
    return f"{'' if _is_there('pip') else 'uv '}pip install {_requirement(','.join(extras))}"  # uv's environments have no pip


def _requirement(extras: str) -> str:
    root = Path(__file__).resolve().parent.parent
    origin = _origin(root)
    if origin is None:  # from a package index, unless this is a clone that is not installed
        return f'-e "{root}[{extras}]"' if (root / "pyproject.toml").is_file() else f'"{DISTRIBUTION}[{extras}]"'
    folder = _folder(origin)
    if "dir_info" in origin and folder is not None:
        return f'{"-e " if origin["dir_info"].get("editable") else ""}"{folder}[{extras}]"'
    vcs = origin.get("vcs_info")
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
    return f'"{DISTRIBUTION}[{extras}] @ {url}"'


def _origin(root: Path) -> dict[str, Any] | None:
    """Return the origin of the installed distribution (PEP 610); None for an index, or if it is not the one running
    from `root`."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(found.read_text("direct_url.json") or "null")
    if origin is None:
        return None
    here = Path(str(found.locate_file(""))).resolve() == root
    return origin if here or _folder(origin) == root else None


def _folder(origin: dict[str, Any]) -> Path | None:
    url = urlsplit(origin["url"])
    return Path(url2pathname(url.path)).resolve() if url.scheme == "file" else None
