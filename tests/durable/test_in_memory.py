"""Objects of Python's library that a program makes: futures, events, queues, threads, parsers; they are made again, and wait for nobody who does not come."""

from __future__ import annotations

import argparse
import asyncio
import configparser
import contextlib
import decimal
import functools
import graphlib
import hmac
import importlib
import io
import json
import queue
import random
import string
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import lmc
from lmc.errors import JournalError
from tests.durable.resuming import CALLS, lay, prefixes, resumes_anywhere


@lmc.host(idempotent=True)
def tool(x: Any) -> str:
    CALLS.append(("tool", x))
    return f"<{x}>"


@lmc.host(idempotent=True)
async def fetch(x: Any) -> str:
    await asyncio.sleep(0)
    CALLS.append(("fetch", x))
    return f"<{x}>"


@lmc.function
async def sets_a_future(s: Any) -> Any:
    loop, found = asyncio.get_running_loop(), list[str]()
    future = loop.create_future()
    future.add_done_callback(lambda done: found.append(tool(done.result())))
    loop.call_soon(future.set_result, "four")
    s += await future + lmc.gen("a", max_tokens=2)
    later = loop.create_future()
    loop.call_later(0.001, lambda: later.set_result(tool("later")))
    task = loop.create_task(fetch("task"))
    task.add_done_callback(lambda _: found.append(tool("done")))
    return [await later, await task, await asyncio.sleep(0)], found


@lmc.function
async def hands_on_by_a_queue(s: Any) -> Any:
    items, over, found = asyncio.Queue[Any](1), asyncio.Event(), list[str]()

    async def produce() -> None:
        for i in range(2):
            await items.put(await fetch(i))
        await items.put(None)
        over.set()

    async def consume() -> None:
        while (x := await asyncio.wait_for(items.get(), 60)) is not None:
            s.__iadd__(x + lmc.gen("a", max_tokens=2))
            found.append(s["a"])

    await asyncio.gather(produce(), consume())
    await over.wait()
    return found, items.qsize()


@lmc.function
def works_on_threads(s: Any) -> Any:
    begun, turn, found = threading.Event(), threading.Condition(), list[str]()
    f, g = s.fork(2)

    def work() -> None:
        begun.wait(60)
        with turn:
            found.append(tool("work"))
            f.__iadd__("w" + lmc.gen("a", max_tokens=2))
            turn.notify()

    threads = [threading.Thread(target=work), threading.Timer(0.001, tool, ["timer"]), threading.Thread(target=tool, args=("thread",))]
    for thread in threads:
        thread.start()
    g += "x" + lmc.gen("a", max_tokens=2)
    with turn:
        begun.set()
        turn.wait_for(lambda: found, 60)
    for thread in threads:
        thread.join()
    with ThreadPoolExecutor(2) as pool:
        found += sorted(future.result() for future in as_completed([pool.submit(tool, x) for x in "ab"]))
        found += [future.result() for future in wait([pool.submit(tool, "c")]).done]
    return found, f["a"], g["a"]


class Worker(threading.Thread):
    def __init__(self, x: str) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.x, self.found = x, list[str]()

    def run(self) -> None:
        self.found.append(tool(self.x))


class Walker(threading.Thread):
    """Names the language, and calls its base's `run`."""

    def __init__(self, fork: lmc.State) -> None:
        super().__init__(target=tool, args=("walker",))
        self.fork = fork

    def run(self) -> None:
        self.fork += "x" + lmc.gen("a", max_tokens=2)
        super().run()


class Alarm(threading.Timer):
    pass


@lmc.function
def has_threads_of_its_own(s: Any) -> Any:
    (f,) = s.fork(1)
    threads = [Worker("a"), Worker("b"), Walker(f), Alarm(0.001, tool, ["alarm"])]
    for thread in threads:
        thread.start()
        thread.join()
    s += lmc.gen("b", max_tokens=2)
    return [*threads[0].found, *threads[1].found], f["a"]


@lmc.function
async def works_in_executors(s: Any) -> Any:
    loop, found = asyncio.get_running_loop(), list[str]()

    def work(x: str) -> int:
        found.append(tool(x))
        return len(found)

    with ThreadPoolExecutor(2) as pool:
        s += f"{await loop.run_in_executor(None, work, 'a')}{await loop.run_in_executor(pool, functools.partial(work, 'b'))}"
        s += lmc.gen("a", max_tokens=2)
        done, _ = await asyncio.wait([loop.run_in_executor(pool, tool, "c"), loop.run_in_executor(None, tool, "d")])
        found += sorted(future.result() for future in done)
        return found, await asyncio.gather(loop.run_in_executor(pool, tool, "e"), loop.run_in_executor(pool, tool, "f"))


@lmc.function
def writes_and_parses(s: Any) -> Any:
    out = io.StringIO()
    print("x", 1, file=out, sep="-")
    json.dump({"a": tool("dumped")}, out)
    with warnings.catch_warnings(), decimal.localcontext() as context:
        warnings.simplefilter("ignore")
        context.prec = 3
        s += str(decimal.Decimal(1) / 3) + lmc.gen("a", max_tokens=2)
    parser, ini = argparse.ArgumentParser(), configparser.ConfigParser()
    parser.add_argument("--n", type=tool)
    ini.read_string("[x]\na = 1\n")
    ini.set("x", "b", tool("b"))
    digest = hmac.new(b"k", b"m", "sha1")
    digest.update(tool("m").encode())
    decoded = json.JSONDecoder(object_hook=lambda d: tool(len(d))).decode('[{"a": 1}]')
    return out.getvalue(), parser.parse_args(["--n", "3"]).n, dict(ini["x"]), digest.hexdigest(), decoded, string.Formatter().format("{a}", a=1)


@lmc.host(idempotent=True)
def write(x: str, to: Any = None) -> None:
    CALLS.append(("write", x))
    print(x, file=to)
    if to is not None:
        to.seek(1)


@lmc.function
def captures_output(s: Any) -> Any:
    out, given = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out):
        print("first")
        write("second")
        s += out.getvalue() + lmc.gen("a", max_tokens=2)
        print(s["a"])
    write("third", given)
    given.write("!")
    write("outside")
    return out.getvalue(), given.getvalue(), given.tell()


@lmc.function
def sorts_by_what_comes_first(s: Any) -> Any:
    order, found = graphlib.TopologicalSorter({"c": {"a", "b"}, "b": {"a"}}), list[str]()
    order.prepare()
    while order.is_active():
        for name in order.get_ready():
            s += tool(name) + lmc.gen("a", max_tokens=2)
            found.append(s["a"])
            order.done(name)
    return found


@lmc.host(idempotent=True)
def run(x: str) -> Any:
    CALLS.append(("run", x))
    return subprocess.run([sys.executable, "-c", f"print({x})"], capture_output=True, text=True, check=True)


@lmc.host(idempotent=True)
def page(x: str) -> Any:
    CALLS.append(("page", x))
    return types.SimpleNamespace(text=x, links=[1], at=time.gmtime(5))


@lmc.host(idempotent=True)
def follow(found: Any) -> None:
    CALLS.append(("follow", found.text))
    found.links.append(2)
    found.seen = True


@lmc.function
def takes_what_has_names(s: Any) -> Any:
    ran, found = run("3 * 4"), page("q")
    s += ran.stdout + lmc.gen("a", max_tokens=2)
    follow(found)
    links = found.links
    links.append(3)
    return ran, ran.returncode, found, links is found.links, found.at.tm_sec


@lmc.function
async def stacks_managers(s: Any) -> Any:
    found: list[str] = []

    @contextlib.asynccontextmanager
    async def opened(x: str) -> AsyncIterator[str]:
        found.append(await fetch(f"open {x}"))
        try:
            yield x
        finally:
            found.append(await fetch(f"close {x}"))

    async def end(x: str) -> None:
        s.__iadd__(x + lmc.gen("a", max_tokens=2))
        found.append(await fetch(s["a"]))

    async with contextlib.AsyncExitStack() as stack:
        s += await stack.enter_async_context(opened("1")) + lmc.gen("a", max_tokens=2)
        stack.push_async_callback(fetch, "called back")
        stack.push_async_callback(end, "end")
        stack.callback(tool, "at last")
        s += await stack.enter_async_context(opened("2")) + lmc.gen("b", max_tokens=2)
    return found


@lmc.function
def runs_loops(s: Any) -> Any:
    """Of its own, one after the other."""
    found: list[str] = []

    async def work(f: Any, x: int) -> str:
        f += f"{x}" + lmc.gen("a", max_tokens=2)
        found.append(await fetch((x, f["a"])))
        return f["a"]

    async def main() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(f, x)) for x, f in enumerate(s.fork(2))]
        return [*[task.result() for task in tasks], *await asyncio.gather(fetch("x"), fetch("y"))]

    first = asyncio.run(main())
    s += str(first) + lmc.gen("b", max_tokens=2)
    return first, asyncio.run(main()), sorted(found)


@lmc.function
async def tells_handlers(s: Any) -> Any:
    """Handlers may be async or not; a document is read and written."""
    root, said = ElementTree.fromstring("<r><i v='1'/><i>two</i></r>"), list[str]()

    async def reads(x: str) -> None:
        s.__iadd__(await fetch(x) + lmc.gen("a", max_tokens=2))
        name = task.get_name()[:0] if (task := asyncio.current_task()) else "none"
        ElementTree.SubElement(root, "answer", name=name).text = s["a"]

    for handler in (reads, lambda x: said.append(tool(x)), reads):
        found = handler("x")
        if asyncio.iscoroutine(found):
            await found
    for item in root.iter("i"):
        said.append(tool(item.get("v") or item.text))
    text = importlib.import_module("textwrap").shorten(ElementTree.tostring(root, "unicode"), 99)
    s += text + lmc.gen("b", max_tokens=2)
    return said, text, [item.tag for item in root]


PROGRAMS = [
    tells_handlers, stacks_managers, runs_loops, sets_a_future, hands_on_by_a_queue, works_on_threads, writes_and_parses, captures_output,
    sorts_by_what_comes_first, takes_what_has_names, has_threads_of_its_own, works_in_executors,
]  # fmt: skip


@pytest.mark.search
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_what_a_program_makes_of_the_library_is_made_again(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path)


def once(x: str, into: list[str]) -> None:
    into.append(x)


@lmc.function
def takes_what_a_thread_found(s: Any) -> Any:
    found = list[str]()
    with ThreadPoolExecutor() as pool:
        pool.submit(once, "x", found)
    return found[0]


def test_an_error_because_of_a_thread_in_doubt_says_so(tmp_path: Path) -> None:
    takes_what_a_thread_found.run(backend=lmc.Mock(), journal=tmp_path / "whole")
    lay(path := tmp_path / "again", prefixes(tmp_path / "whole")[1])
    with pytest.raises(IndexError) as raised:
        takes_what_a_thread_found.run(backend=lmc.Mock(), journal=path)
    (note,) = raised.value.__notes__
    assert "once('x', []) was begun before the run was cut off" in note


@lmc.function
def derives_from_pythons_classes(s: Any) -> Any:
    class Mailbox(queue.Queue[str]):
        def __init__(self) -> None:
            super().__init__(5)
            self.seen: list[str] = []

        def put(self, item: str) -> None:  # type: ignore[override]
            self.seen.append(item)
            super().put(item)

    class Page(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.lines = 0

        def write(self, text: str) -> int:
            self.lines += 1
            return super().write(text.upper())

    class Encoder(json.JSONEncoder):
        def __init__(self) -> None:
            json.JSONEncoder.__init__(self, indent=1)
            self.unknown = 0

        def default(self, o: Any) -> Any:
            self.unknown += 1
            return str(o)

    class Filler(string.Formatter):
        missing = 0

        def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
            self.missing += key not in kwargs
            return kwargs.get(key, "?")

    box, page, encoder, filler = Mailbox(), Page(), Encoder(), Filler()
    box.put("a")
    page.write("a")
    texts = [encoder.encode([{1}]), filler.format("{a}{b}", a="x")]
    s += "".join(texts) + lmc.gen("a", max_tokens=2)
    box.put(s["a"])
    page.write(s["a"])
    texts += [encoder.encode([{2}]), filler.format("{c}")]
    s += "".join(texts) + lmc.gen("b", max_tokens=2)
    return box.seen, box.get(), box.qsize(), page.getvalue(), page.lines, encoder.unknown, filler.missing, texts


@pytest.mark.search
def test_objects_of_a_programs_subclasses_are_made_again(tmp_path: Path) -> None:
    resumes_anywhere(derives_from_pythons_classes, {}, tmp_path, doubtful=True)


@lmc.function
def derives_a_generator(s: Any) -> Any:
    class Dice(random.Random):
        def __init__(self, seed: int | None = None) -> None:
            super().__init__(seed)

    dice = Dice()
    s += str(dice.random()) + lmc.gen("a", max_tokens=2)
    return s["a"], dice.random()


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_a_generator_of_a_programs_subclass_ends_in_an_error_on_resuming(tmp_path: Path) -> None:
    derives_a_generator.run(backend=lmc.Mock(), journal=tmp_path / "j")
    with pytest.raises(JournalError, match="cannot be resumed"):
        derives_a_generator.run(backend=lmc.Mock(), journal=tmp_path / "j")


def finish(x: Any) -> None:
    x.set() if isinstance(x, threading.Event | asyncio.Event) else x.prepare()


@lmc.function
def hands_out(s: Any, call: Any, make: Any) -> Any:
    made = make()
    s += "q" + lmc.gen("a", max_tokens=2)
    call(made)
    return s["a"]


def draws(numbers: random.Random) -> float:
    return numbers.random()


def puts(items: queue.Queue[str]) -> None:
    items.put("more")


HANDED = [(finish, threading.Event), (finish, asyncio.Event), (finish, graphlib.TopologicalSorter),
          (draws, functools.partial(random.Random, 5)), (puts, queue.Queue), (puts, queue.SimpleQueue)]  # fmt: skip


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@pytest.mark.parametrize(("call", "make"), HANDED)
def test_what_a_tool_does_to_such_an_object_ends_in_an_error_on_resuming(call: Any, make: Any, tmp_path: Path) -> None:
    hands_out.run(call, make, backend=lmc.Mock(), journal=tmp_path / "j")
    with pytest.raises(JournalError, match="cannot be resumed"):
        hands_out.run(call, make, backend=lmc.Mock(), journal=tmp_path / "j")
