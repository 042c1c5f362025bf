"""Functions given to other processes in a journaled run: such a call is recorded as a whole; and pickles of functions."""

from __future__ import annotations

import asyncio
import copy
import functools
import io
import linecache
import multiprocessing
import os
import pickle
import re
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from lmc.errors import InDoubtEffect, JournalError, JournalWarning
from tests.durable.resuming import CALLS, lay, prefixes, recorded

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
FORKS: Any = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
POOLS: dict[str, Any] = {}


def look(x: int, file: str) -> int:
    with Path(file).open("a") as out:
        out.write(f"{x}\n")
    return x * x


def draft(x: int, file: str) -> str:
    """One of the program's own, since it names lmc; in another process nothing records what it calls."""
    return f"{lmc.__name__} {look(x, file)}"


marked = lmc.host(look)


@lmc.host
def found(x: int) -> int:
    return x


@pytest.fixture
def pools() -> Iterator[None]:
    with FORKS.Pool(1) as pool, ProcessPoolExecutor(1, mp_context=FORKS) as executor, ThreadPool(2) as threads:
        POOLS.update(pool=pool, executor=executor, threads=threads)
        yield
        POOLS.clear()


def called(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []


@contextmanager
def calls(file: Path, *expected: int) -> Iterator[None]:
    file.unlink(missing_ok=True)
    yield
    assert called(file) == sorted(map(str, expected))


@lmc.function
def maps(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    pool = POOLS["pool"]
    return (
        pool.starmap(draft, [(1, file), (2, file)]),
        pool.starmap(marked, [(2, file)]),
        pool.apply(look, (3, file)),
        pool.map(functools.partial(draft, file=file), [4]),
    )


@lmc.function
async def awaits(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    loop, executor = asyncio.get_running_loop(), POOLS["executor"]
    one = await loop.run_in_executor(executor, draft, 1, file)
    return one, await asyncio.gather(*(loop.run_in_executor(executor, f, 2, file) for f in (look, marked, draft)))


@pytest.mark.parametrize("program, made", [(maps, (1, 2, 2, 3, 4)), (awaits, (1, 2, 2, 2))], ids=["Pool", "run_in_executor"])
def test_what_a_pool_of_processes_calls_is_recorded_as_a_whole(program: Any, made: Any, tmp_path: Path, pools: None) -> None:
    file = tmp_path / "calls"
    with calls(file, *made):
        expected = program.run(file=str(file), backend=lmc.Mock()).ret_value
    with calls(file, *made):
        assert program.run(file=str(file), backend=lmc.Mock(), journal=tmp_path / "j").ret_value == expected
    with calls(file):
        assert lmc.compile(program, backend=lmc.Mock())(file=str(file), journal=tmp_path / "j").ret_value == expected


@pytest.mark.parametrize("program", [maps, awaits], ids=["Pool", "run_in_executor"])
def test_a_call_in_a_process_that_was_cut_off_is_in_doubt(program: Any, tmp_path: Path, pools: None) -> None:
    file, path, doubts = tmp_path / "calls", tmp_path / "j", 0
    expected = program.run(file=str(file), backend=lmc.Mock(), journal=path).ret_value
    for n, data in enumerate(prefixes(path)):
        lay(cut := tmp_path / str(n), data)
        begun = bool(records.read(cut).runs[0].effects)
        file.unlink(missing_ok=True)
        try:
            assert program.run(file=str(file), backend=lmc.Mock(), journal=cut).ret_value == expected
        except InDoubtEffect:
            doubts += 1
        assert called(file).count("1") == (not begun)  # of the first call
    assert doubts >= 4


@lmc.function
def submits(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    return POOLS["executor"].submit(draft, 3, file).result()


@lmc.function
def starts(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    process = FORKS.Process(target=draft, args=(3, file))
    process.start()
    process.join()
    return process.exitcode


@lmc.function
def own_pool(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    with ProcessPoolExecutor(1, mp_context=FORKS) as executor:
        return list(executor.map(draft, [3], [file]))


@lmc.function
async def own_awaited_pool(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    with ProcessPoolExecutor(1, mp_context=FORKS) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, draft, 3, file)


@pytest.mark.parametrize(
    "program, what, at, result",
    [
        (submits, "ProcessPoolExecutor.submit() gave a Future", ".submit(draft", "lmc 9"),
        (starts, "ForkProcess() gave a ForkProcess", "FORKS.Process(target=draft", 0),
        (own_pool, "ProcessPoolExecutor() gave a ProcessPoolExecutor", "with ProcessPoolExecutor(", ["lmc 9"]),
        (own_awaited_pool, "ProcessPoolExecutor() gave a ProcessPoolExecutor", "with ProcessPoolExecutor(", "lmc 9"),
    ],
)
def test_a_call_that_gives_no_data_warns_and_is_not_repeated(program: Any, what: str, at: str, result: Any, tmp_path: Path, pools: None) -> None:
    file = tmp_path / "calls"
    with calls(file, 3), pytest.warns(JournalWarning) as told:
        assert program.run(file=str(file), backend=lmc.Mock(), journal=tmp_path / "j").ret_value == result
    first = next(w for w in told if w.category is JournalWarning)  # from Python 3.12 on, os.fork() warns of threads, too
    assert what in str(first.message) and at in linecache.getline(first.filename, first.lineno)
    with calls(file), pytest.raises(JournalError, match=re.escape(what) + ".* in a function marked @lmc.host"):
        program.run(file=str(file), backend=lmc.Mock(), journal=tmp_path / "j")


@lmc.host
def drafts(file: str) -> list[Any]:
    with ProcessPoolExecutor(1, mp_context=FORKS) as executor, FORKS.Pool(1) as pool:
        return [
            *executor.map(draft, [1, 2], [file] * 2),
            executor.submit(found, 3).result(),
            executor.submit(marked, 3, file).result(),
            *pool.starmap(draft, [(4, file)]),
        ]


@lmc.host
async def adrafts(file: str) -> list[Any]:
    with ProcessPoolExecutor(1, mp_context=FORKS) as executor:
        return [await asyncio.get_running_loop().run_in_executor(executor, f, 3, file) for f in (draft, marked)]


@lmc.function
def hosted(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    return drafts(file)


@lmc.function
async def ahosted(s: Any, file: str) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    return await adrafts(file)


@pytest.mark.parametrize("program, made", [(hosted, (1, 2, 3, 4)), (ahosted, (3, 3))])
def test_a_marked_function_may_use_other_processes(program: Any, made: Any, tmp_path: Path) -> None:
    file = tmp_path / "calls"
    with calls(file, *made):
        expected = program.run(file=str(file), backend=lmc.Mock(), journal=tmp_path / "j").ret_value
    with calls(file):
        assert program.run(file=str(file), backend=lmc.Mock(), journal=tmp_path / "j").ret_value == expected


def note(x: int) -> int:
    CALLS.append(("note", x))
    return x


def think(x: int) -> int:
    return note(x) + len(lmc.__name__)


noted = lmc.host(note)


@lmc.function
def on_threads(s: Any) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    return POOLS["threads"].map(think, [1])


def test_what_a_pool_of_threads_calls_is_recorded_call_by_call(tmp_path: Path, pools: None) -> None:
    assert recorded(on_threads, tmp_path / "runs") == ["note"]


@lmc.function
def copies(s: Any) -> Any:
    s += "a" + lmc.gen("a", max_tokens=2)
    found = []
    for n, fn in enumerate([think, note, noted, functools.partial(think), functools.partial(noted)]):
        kept = io.BytesIO()
        pickle.dump(fn, kept)
        for f in (pickle.loads(pickle.dumps(fn)), pickle.loads(kept.getvalue()), copy.deepcopy(fn), copy.copy([fn])[0], copy.deepcopy({"f": fn})["f"]):
            found.append(f(n))
    return found


def test_functions_are_pickled_and_copied(tmp_path: Path) -> None:
    assert recorded(copies, tmp_path / "runs").count("note") == 25


class ByValue(pickle._Pickler):
    """Pickles functions by what they hold, as libraries do to send them to other processes."""

    def reducer_override(self, x: Any) -> Any:
        return (list, ([cell.cell_contents for cell in x.__closure__ or ()],)) if type(x) is types.FunctionType else NotImplemented


def test_what_records_a_function_goes_to_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sends = lambda fn: ByValue(io.BytesIO()).dump(fn)
    library = types.ModuleType("a_library")
    library.__file__ = "/usr/lib/site-packages/a_library.py"
    monkeypatch.setitem(sys.modules, "a_library", library)
    POOLS["send"] = types.FunctionType(sends.__code__, {"__name__": "a_library", "ByValue": ByValue, "io": io}, "send")

    @lmc.function
    def sending(s: Any) -> Any:
        s += "a" + lmc.gen("a", max_tokens=2)
        POOLS["send"](think)

    sending.run(backend=lmc.Mock())
    with pytest.raises(JournalError, match=r"given to another process.* marked @lmc\.host"):
        sending.run(backend=lmc.Mock(), journal=tmp_path / "j")
