"""Type checkers judge users' code on the package as it is installed: a wheel, without the folder that it was built in."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, blocks

pytestmark = pytest.mark.api

WRONG = '''
import lmc
from typing import Any, Literal, Optional, assert_type


@lmc.function
def judge(s: lmc.State, essay: str, n: int = 1) -> str:
    s += part(essay) + lmc.assistant(lmc.gen("grade"))
    return s["grade"]


@lmc.function
def unannotated(s, essay):
    s += lmc.user(essay)
    return 3


@lmc.function
async def later(s: lmc.State, essay: str) -> float:
    return 1.0


class Grader:
    @lmc.function
    def grade(self, s: lmc.State, essay: str) -> int:
        return len(essay)

    @lmc.function(num_api_spec_tokens=3)
    async def later(self, s: lmc.State, essay: str) -> float:
        return 1.0

    @lmc.function
    @classmethod
    def of_class(cls, s: lmc.State, essay: str) -> int:
        return len(essay)

    @lmc.function()
    @staticmethod
    def of_none(s: lmc.State, essay: str) -> int:
        return len(essay)


@lmc.pure
def key(title: str) -> list[str]:
    return [title]


class Tools:
    @lmc.host(timeout=3)
    async def find(self, what: str) -> int:
        return len(what)


def part(text: str) -> lmc.Expr:
    return lmc.user(text)


program = lmc.compile(judge, backend=lmc.Mock())
lmc.set_default_backend(lmc.Mock())
lmc.config(debug=0, seed=3)
lmc.config.settings()

assert_type(judge.run(essay="x").ret_value, str)
assert_type(judge("x", 2).ret_value, str)
assert_type(judge.run(essay="x", temperature=0, backend=lmc.Mock()).ret_value, str)
assert_type(judge.run_batch([{"essay": "x"}])[0].ret_value, str)
assert_type(program(essay="x").ret_value, str)
assert_type(program.stream(essay="x", seed=1).ret_value, str)
assert_type(program.batch([{"essay": "x"}])[0].ret_value, str)
unannotated.run(essay="x").ret_value.real
quick = judge.options(temperature=0, backend=lmc.Mock(), seed=3, stop=["x"])
assert_type(quick("x", n=2).ret_value, str)
assert_type(quick.run(essay="x").ret_value, str)
assert_type(lmc.compile(quick)(essay="x").ret_value, str)
assert_type(program.options(ahead="likely").stream(essay="x").ret_value, str)
assert_type(program.options(seed=1).batch([{"essay": "x"}])[0].ret_value, str)
assert_type(Grader().grade.options(temperature=0)(essay="x").ret_value, int)
judge("x", priority=2, account="a")
judge("x", deadline="24h")
assert_type(later.run(essay="x").ret_value, float)
assert_type(Grader().grade.run(essay="x").ret_value, int)
assert_type(Grader().later.run(essay="x").ret_value, float)
assert_type(lmc.compile(Grader().grade)("x").ret_value, int)
assert_type(Grader.of_class.run(essay="x").ret_value, int)
assert_type(Grader().of_class("x").ret_value, int)
assert_type(lmc.compile(Grader.of_class)("x").ret_value, int)
assert_type(Grader.of_none.run(essay="x").ret_value, int)


async def opinion(f: lmc.State, dim: str) -> float:
    return 1.0


def summary(f: lmc.State) -> str:
    return f.text()


def grade(f: lmc.State, dim: str):
    return f[dim]


@lmc.function
def typed(s: lmc.State) -> list[str]:
    assert_type(s.parsed("n", list[int]), list[int])
    maybe: int | None = s.parsed("n", Optional[int])
    mark: Literal["a", "b"] = s.parsed("mark", Literal["a", "b"])
    either: int | str = s.parsed("either", int | str)
    marks = [f"{mark}{maybe}{either}" for mark in s.fork(2).each(grade, ["a", "b"])]
    return marks + [f"{mark}" for mark in s.fork(2).each(lambda f: f["mark"])]


@lmc.function
async def panel(s: lmc.State) -> None:
    assert_type(await s.fork(2).each(opinion, ["a", "b"]), list[float])
    assert_type(s.fork(2).each(summary), list[str])
    async for piece in s.text_async_iter("x"):
        assert_type(piece, str)
    async for piece, meta in s.text_async_iter("x", return_meta_data=True):
        assert_type(meta, dict[str, Any])
    assert_type(key("x"), list[str])
    assert_type(await Tools().find("x"), int)
    key(3)  # wrong
    await Tools().find(3)  # wrong


@lmc.function
def a_number(s: lmc.State, n: int) -> None:
    s += n  # wrong


async def main() -> None:
    assert_type((await judge.arun(essay="x")).ret_value, str)
    assert_type((await later.arun("x", seed=1)).ret_value, float)
    assert_type((await program.acall("x")).ret_value, str)
    assert_type((await quick.arun("x")).ret_value, str)
    await judge.arun(esay="x")  # wrong
    await quick.arun(esay="x")  # wrong
    await program.options(seed=1).acall(2)  # wrong
    await program.abatch([{"essay": "x"}], tmeout=3)  # wrong


judge.run(esay="x")  # wrong
judge.run(essay=1)  # wrong
judge.run()  # wrong
judge("x", 2, 3)  # wrong
judge("x", temperature="hot")  # wrong
program(esay="x")  # wrong
program.stream(essay=2)  # wrong
Grader().grade.run(essay=1)  # wrong
Grader.of_class.run(essay=1)  # wrong
judge.options(temperature=0).run(esay="x")  # wrong
judge.options(backend=lmc.Mock(), seed=3)(essay=1)  # wrong
quick()  # wrong
quick("x", 2, 3)  # wrong
lmc.compile(quick)(essay=1)  # wrong
program.options(temperature=0)(esay="x")  # wrong
program.options(temperature=0).stream(essay=2)  # wrong
Grader().grade.options(temperature=0)(essay=1)  # wrong
judge.options(temprature=0)  # wrong
judge.options(temperature="hot")  # wrong
program.options(backend=3)  # wrong
program.batch([{"essay": "x"}], progress=True, errors="return", temperature=0, backend=lmc.Mock(), journal="runs")
judge.run_batch([{"essay": "x"}], num_threads=2, progress_bar=True, errors="return", seed=1)
judge.run_batch([{"essay": "x"}], progress=True)  # wrong
program.batch([{"essay": "x"}], temprature=0)  # wrong
program.batch([{"essay": "x"}], errors="keep")  # wrong
program.as_completed([{"essay": "x"}], seed="one")  # wrong
program.call({"essay": "x"}, temprature=0)  # wrong
lmc.config(debugg=1)  # wrong
number: int = judge.run(essay="x").ret_value  # wrong
lmc.set_default_backend(3)  # wrong
'''
LINES = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
PAGES = [ROOT / "README.md", *[ROOT / "docs" / f"{name}.md" for name in ("tutorial", "language", "migration", "constraints")]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package of the wheel."""
    pytest.importorskip("hatchling", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def pyright(folder: Path, installed: Path, mode: str) -> list[tuple[str, int, str]]:
    """(file, line, message) of each error in a folder."""
    config = {"include": ["."], "extraPaths": [str(installed), str(folder)], "typeCheckingMode": mode, "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] > 0, done.stderr
    return [(Path(e["file"]).name, e["range"]["start"]["line"] + 1, e["message"]) for e in found["generalDiagnostics"] if e["severity"] == "error"]


def test_code_of_the_pages_has_no_errors(tmp_path, installed):
    for page in PAGES:
        (tmp_path / f"{page.stem}.py").write_text(blocks(page))
    assert pyright(tmp_path, installed, "standard") == []


def test_the_examples_are_annotated(tmp_path, installed):
    examples = tmp_path / "examples"
    examples.mkdir()
    for path in (ROOT / "examples").glob("*.py"):
        (examples / path.name).write_text(path.read_text())
    assert pyright(tmp_path, installed, "strict") == []


def test_wrong_calls_are_errors_of_pyright(tmp_path, installed):
    (tmp_path / "wrong.py").write_text(WRONG)
    assert sorted({line for _, line, _ in pyright(tmp_path, installed, "standard")}) == LINES


def mypy(file: Path, installed: Path, *options: str) -> list[list[str]]:
    """Errors in a file, as file, line, "error" and message."""
    api = pytest.importorskip("mypy.api")
    config = file.parent / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {installed}\nfollow_imports = silent\nignore_missing_imports = True\ncheck_untyped_defs = True\n")
    deepest = sys.getrecursionlimit()
    try:  # it raises the limit, and other tests of this process reach it
        said, failed, _ = api.run([str(file), "--config-file", str(config), "--cache-dir", str(file.parent / "cache"), "--no-site-packages", *options])
    finally:
        sys.setrecursionlimit(deepest)
    assert failed == "", failed
    return [at for line in said.splitlines() if ": error: " in line and (at := line.split(":", 3))[0].endswith(file.name)]


def test_wrong_calls_are_errors_of_mypy(tmp_path, installed):
    (tmp_path / "wrong.py").write_text(WRONG)
    lines = mypy(tmp_path / "wrong.py", installed)
    assert sorted({int(at[1]) for at in lines}) == LINES, lines


STRICT = '''
import lmc


@lmc.function
def judge(s: lmc.State, essay: str) -> str:
    s += lmc.user(essay) + lmc.assistant(lmc.gen("grade"))
    if s["grade"].strip() == "A" or "B" in s["grade"]:
        return s["grade"]
    s += "and " + s["grade"] + lmc.gen("n", dtype=int)
    numbers: list[str] = [fork["n"] for fork in s.fork(2)]
    print(int(s["n"]) + 1, numbers, {"of": s["n"]})
    return s["grade"]
'''


def test_a_program_that_returns_an_answer_has_no_errors_of_mypy(tmp_path, installed):
    (tmp_path / "strict.py").write_text(STRICT)
    assert mypy(tmp_path / "strict.py", installed, "--strict") == []
