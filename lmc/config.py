"""Settings: one frozen value read from `LMC_*` and changed by `lmc.config(…)`; the default backend; log channels."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import uuid4

from lmc.errors import ArgumentError, ParameterError

if TYPE_CHECKING:
    from lmc.backend.base import Backend

_CACHE = Path("~/.cache/lmc")
_UNFINISHED = ".part-", ".tmp"
"""Prefixes of names of files in the cache directory that are being written: by lmc, and by safetensors."""
_ABANDONED = 3600.0
"""Seconds without a change after which the writer of such a file counts as dead; one that works touches it all the time."""
CHANNELS = ("ahead", "backend", "engine", "passes", "prefix", "schedule", "spec")
PASSES = (
    "aggressive", "batch-forks", "canonicalize", "cse", "dce", "lower-chat", "lower-constraint", "plan-cache", "plan-prefix", "plan-speculation"
)  # fmt: skip
"""Names of the passes (`lmc.passes`), which settings name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings: `LMC_<NAME>` in the environment, or `lmc.config(name=…)`, which wins.

    debug      0–5: 1 what run-ahead could not follow, 3 + IR before and after the pipeline, 4 + IR after each pass that changed it,
               5 + each engine batch
    log        channels to print: ahead, prefix, schedule, spec, …
    print_ir   `after-all` or `after=PASS`; "" for none
    verify     0–3: how often graphs are verified
    skip_passes  passes that pipelines leave out, to see what each is worth; lower-chat stays
    seed       the seed of runs that name none; None for a fresh one each time
    cache_dir  where converted weights, compiled constraints, measurements and reproducers are kept; made when it is missing, in a folder that is there
    model      the model of the default backend, "" for the small one
    device     the device of the default backend and of `lmc run`, "" for a GPU, if there is one
    host_threads  how many items of a batch are in flight, each on a thread while it runs; None: 512
    otel       runs, requests, tools and batches are OpenTelemetry spans (the extra `otel`)
    """

    debug: int = 0
    log: frozenset[str] = frozenset()
    print_ir: str = ""
    verify: int = 1
    skip_passes: frozenset[str] = frozenset()
    seed: int | None = None
    cache_dir: Path = _CACHE
    model: str = ""
    device: str = ""
    host_threads: int | None = None
    otel: bool = False


class Changes(TypedDict, total=False):
    """Arguments of `lmc.config(…)`: each setting, or its text as written in the environment."""

    debug: int | str
    log: str | Iterable[str]
    print_ir: str
    verify: int | str
    skip_passes: str | Iterable[str]
    seed: int | str | None
    cache_dir: str | Path
    model: str
    device: str
    host_threads: int | str | None
    otel: bool | str


def _whole(low: int, high: int | None) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise ParameterError(f"{name}={value!r}: must be a whole number") from None
        if number < low or (high is not None and number > high):
            raise ParameterError(f"{name}={value!r}: must be {f'{low} to {high}' if high is not None else f'at least {low}'}")
        return number

    return read


def _among(what: str, known: Iterable[str]) -> Callable[[str, Any], frozenset[str]]:
    def read(name: str, value: Any) -> frozenset[str]:
        items = value.split(",") if isinstance(value, str) else value
        if not (isinstance(items, Iterable) and all(isinstance(item, str) for item in items)):
            raise ArgumentError(f"{name}={value!r}: must be a list of names, or a text of them with commas between")
        found = frozenset(item.strip() for item in items if item.strip())
        if unknown := sorted(found - set(known)):
            raise ParameterError(f"{name}: there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
        return found

    return read


_passes = _among("pass", PASSES)


def _print_ir(name: str, value: Any) -> str:
    text = str(value)
    if text not in ("", "after-all"):
        if not text.startswith("after="):
            raise ParameterError(f"{name}={value!r}: must be after-all or after=PASS")
        _passes(name, text.removeprefix("after="))
    return text


def _optional(low: int) -> Callable[[str, Any], int | None]:
    return lambda name, value: None if value is None or value == "" else _whole(low, None)(name, value)


def _switch(name: str, value: Any) -> bool:
    said = str(value).strip().lower()
    if said not in ("", "0", "false", "1", "true"):
        raise ParameterError(f"{name}={value!r}: must be 1 or 0")
    return said in ("1", "true")


def _path(name: str, value: Any) -> Path:
    from lmc import arguments  # `import lmc` is to bring little

    return arguments.path(name, value)


_READ: Mapping[str, Callable[[str, Any], Any]] = {
    "debug": _whole(0, 5),
    "log": _among("channel", CHANNELS),
    "print_ir": _print_ir,
    "verify": _whole(0, 3),
    "skip_passes": _passes,
    "seed": _optional(0),
    "cache_dir": _path,
    "model": lambda _, value: str(value),
    "device": lambda _, value: str(value),
    "host_threads": _optional(1),
    "otel": _switch,
}


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Read settings from the environment; raises ParameterError that names the variable."""
    changes: dict[str, Any] = {}
    for f in fields(Settings):
        variable = f"LMC_{f.name.upper()}"
        if variable in environ:
            changes[f.name] = _READ[f.name](variable, environ[variable])
    return replace(Settings(), **changes)


_overrides: dict[str, Any] = {}
_settings: Settings | None = None


def settings() -> Settings:
    """Return the settings in force."""
    global _settings
    if _settings is None:
        _settings = replace(from_environment(os.environ), **_overrides)
    return _settings


def config(**changes: Unpack[Changes]) -> Settings:
    """Change settings for the process and return those in force; without arguments only return them."""
    global _settings
    for name, value in changes.items():
        if name not in _READ:
            from lmc.parameters import suggestion

            raise ArgumentError(f"config() has no setting {name!r}{suggestion(name, _READ)}")
        _overrides[name] = _READ[name](name, value)
    if changes:
        _settings = None
    return settings()


def reset() -> None:
    """Forget what `config(…)` changed and read the environment again."""
    global _settings
    _overrides.clear()
    _settings = None


def cache_dir() -> Path:
    """Return the directory for derived data, created the first time it is needed.

    Raises FileNotFoundError if it was set and its parent is missing: a misspelt path creates no folders; and without a home directory.
    """
    chosen = settings().cache_dir
    try:
        path = chosen.expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"cache_dir={str(chosen)!r}: {error}") from None
    if chosen != _CACHE and not path.parent.is_dir():
        raise FileNotFoundError(f"cache_dir={str(chosen)!r}: there is no folder {path.parent}")
    path.mkdir(parents=chosen == _CACHE, exist_ok=True)
    return path


def cache_folder(name: str, otherwise: str) -> Path | None:
    """Return a folder of the cache directory; None, after one log line that says what happens `otherwise`, when there can be none.

    What killed writers have left there is removed."""
    try:
        folder = cache_dir() / name
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            with suppress(FileNotFoundError, PermissionError):  # another process removed it, or its writer has finished; it is another user's
                if path.name.startswith(_UNFINISHED) and time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
    except OSError as error:
        import logging

        logging.getLogger("lmc.cache").warning("no cache directory (%s): %s; set LMC_CACHE_DIR", error, otherwise)
        return None
    return folder


def keep_newest(folder: Path, count: int) -> None:
    """Remove all files of a folder but the `count` that were written last."""
    times: dict[Path, float] = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process was faster
            times[path] = path.stat().st_mtime
    for path in sorted(times, key=times.__getitem__, reverse=True)[count:]:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[str]:
    """Yield the name of an empty file beside `path`, which replaces it when the block ends: readers see the old file,
    none, or the whole new one. Its permissions are the process's default (umask), whatever the block has done."""
    name = os.fspath(path.parent / f"{_UNFINISHED[0]}{uuid4().hex}")
    with open(name, "xb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    try:
        yield name
        os.chmod(name, mode)  # safetensors makes files that only their owner may read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# -- log channels ----------------------------------------------------------------------------------------------------

# a channel prints when it is named in LMC_LOG, or from this debug level on
_FROM_LEVEL: Mapping[str, int] = {"ahead": 1, "passes": 3, "engine": 5, "schedule": 5}


def logs(channel: str) -> bool:
    """Return whether a channel is on; check it first when the message is expensive to build."""
    now = settings()
    return channel in now.log or now.debug >= _FROM_LEVEL.get(channel, 6)


def log(channel: str, message: str) -> None:
    """Print one line on stderr, if the channel is on."""
    if logs(channel):
        print(f"lmc[{channel}] {message}", file=sys.stderr, flush=True)


# -- the default backend ---------------------------------------------------------------------------------------------

_lock = threading.Lock()
_default: Backend | None = None
_provided: dict[str, Callable[..., Any]] = {}


def provide(**makers: Callable[..., Any]) -> None:
    """Set what makes the objects that modules below theirs ask for here: `backend`, the default one; `named`, one of a name; `program`, a compiled
    one; `observer`, that of the setting `otel` (lmc/observing.py)."""
    _provided.update(makers)


def as_backend(given: Any) -> Backend:
    """Return a backend that was given, or that of a name (`named_backend`). Raises ArgumentError for anything else."""
    if isinstance(given, str):
        return named_backend(given)
    if not hasattr(given, "submit"):
        raise ArgumentError(f"backend={given!r:.200}: a backend such as lmc.Engine() or its name, such as 'mock', not {type(given).__name__}")
    if isinstance(given, type):
        raise ArgumentError(f"backend={given.__name__}: that is the class, not a backend; call it, as in lmc.{given.__name__}(…)")
    return given


def set_default_backend(backend: Backend | str | None) -> None:
    """Set the backend of runs that name none, or its name (`named_backend`). None goes back to the small model."""
    global _default
    found = None if backend is None else as_backend(backend)
    with _lock:
        _default = found


def default_backend() -> Backend:
    """Return the default backend, made on first use."""
    global _default
    with _lock:  # held while the model loads, so that two first runs load it once
        found: Backend = _provided["backend"]() if _default is None else _default
        _default = found
        return found


_named: dict[str, Backend] = {}


def named_backend(name: str) -> Backend:
    """Return the backend of a name (lmc/named.py): made the first time, the same one from then on."""
    with _lock:
        if name not in _named:
            _named[name] = _provided["named"](name)
        return _named[name]


def compiler() -> Callable[[Any], Any]:
    """Return the function that compiles a program."""
    return _provided["program"]


def new_observer() -> Any:
    return _provided["observer"]()


def has_default_backend() -> bool:
    """Return whether a default backend is set or was made already."""
    return _default is not None
