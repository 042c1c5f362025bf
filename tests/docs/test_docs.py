"""The Python code of README and docs runs (on the mock), and what the docs point at exists.

The page on APIs runs among their tests, the programs of issues-elsewhere.md in test_issues_elsewhere.py. A block whose fence says `python` is run; blocks
of one page share their names, as a reader would type them. Write
`python no-run` for code that needs what the tests have not.
"""

import inspect
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import lmc
from lmc import cli

ROOT = Path(__file__).parents[2]
COOKBOOK = sorted((ROOT / "docs" / "cookbook").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *COOKBOOK]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
GRAPH = re.compile(r"^graph @(\w+)\(.*\n((?:(?!```).*\n)*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: Path) -> str:
    """All code of a page at its own line numbers, so that a traceback points into the page."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        first = text.count("\n", 0, match.start(1))
        for i, line in enumerate(match.group(1).splitlines()):
            lines[first + i] = line
    return "\n".join(lines)


@pytest.fixture
def on_the_mock(monkeypatch):
    lmc.set_default_backend(lmc.Mock())
    monkeypatch.chdir(ROOT)
    yield
    lmc.set_default_backend(None)


ELSEWHERE = {ROOT / "docs" / "apis.md", ROOT / "docs" / "issues-elsewhere.md", *COOKBOOK}
"""Pages whose code other tests run; those of the cookbook show no graphs."""


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text()) and p not in ELSEWHERE], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_runs(page, on_the_mock, monkeypatch, tmp_path):
    run_page(page, monkeypatch, tmp_path)


def run_page(page, monkeypatch, tmp_path):
    source = blocks(page)
    code = tmp_path / f"{page.stem}.py"  # a real file: lmc.function reads its source
    code.write_text(source)
    for shared in ("examples", "docs"):  # what a page writes, it writes elsewhere
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    names["__file__"] = str(code)
    exec(compile(source, str(code), "exec"), names)
    for name, shown in GRAPH.findall(page.read_text()):
        planned, traced = (lmc.compile(names[name]).dump_ir(after=after) for after in (None, "trace"))
        assert is_in(shown, planned) or is_in(shown, traced), f"{page.name}: the graph of {name} looks otherwise"


def is_in(shown, graph):
    """Whether the lines of a page are lines of a graph, in its order; `…` is anything."""
    lines = iter(re.sub(r" loc\(.*\)", "", graph).replace("@page.", "@").splitlines())
    return all(any(re.fullmatch(re.escape(line).replace("…", ".*"), there) for there in lines) for line in shown.splitlines() if line.strip() not in ("", "…"))


@pytest.mark.parametrize("page", [p for p in COOKBOOK if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_the_cookbook_shows_what_its_programs_print(page):
    """On the mock, to the letter; `python docs/fill_outputs.py docs/cookbook/*.md` writes it."""
    filled = runpy.run_path(str(ROOT / "docs" / "fill_outputs.py"))["filled"]
    assert "```text\n" in page.read_text() and not GRAPH.search(page.read_text())
    assert filled(page.read_text(), f"{page.stem}.py") == page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


def test_the_pages_link_to_files_of_an_sdist():
    sdist = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    linked = {(page.parent / target).resolve().relative_to(ROOT).parts[0] for page in PAGES for target in LINK.findall(page.read_text())}
    assert sorted(linked - {"README.md", "LICENSE"} - {name.strip("/") for name in sdist}) == []


def test_every_module_is_on_the_map():
    text = (ROOT / "docs" / "structures.md").read_text()
    modules = [p for p in (ROOT / "lmc").rglob("*.py") if p.name != "__init__.py"]
    assert [str(p.relative_to(ROOT)) for p in modules if f"`{p.name}`" not in text] == []


def test_every_module_on_the_map_is_there():
    text = (ROOT / "docs" / "structures.md").read_text()
    there = {p.name for p in (ROOT / "lmc").rglob("*.py")}
    assert sorted(set(re.findall(r"`(\w+\.py)`", text)) - there) == []


def test_every_benchmark_is_in_its_list():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert [p.name for p in sorted((ROOT / "benchmarks").glob("bench_*.py")) if f"`{p.name}`" not in text] == []


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = re.findall(r"^::: lmc\.(\S+)$", text, re.MULTILINE)
    named = ["config" if name == "config.config" else name for name in named] + [name for name in lmc._ALIASES if f"`lmc.{name}`" in text]
    assert len(named) == len(set(named))
    assert set(lmc.__all__) - set(named) == set()


def test_parameters_of_a_docstring_are_a_list_in_the_reference():
    pytest.importorskip("griffe", reason="make docs installs it")
    listed = runpy.run_path(str(ROOT / "docs" / "site_docstrings.py"))["listed"]
    table = "What it is for.\n\nname     a text\n         of two lines\nverbose_one  a longer name\n\nIt raises."
    assert listed(table) == "What it is for.\n\n* `name`: a text of two lines\n* `verbose_one`: a longer name\n\nIt raises."
    prose = "Words in a row.\nNo table."
    assert listed(prose) == prose


def test_the_pictures_show_what_the_pages_say():
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "make_pictures.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_page_is_linked_from_the_readme():
    linked = {(ROOT / target).resolve() for target in LINK.findall((ROOT / "README.md").read_text())}
    assert [p.name for p in sorted((ROOT / "docs").glob("*.md")) if p.resolve() not in linked] == []


def test_every_command_is_in_the_changelog():
    from lmc.cli.command import app

    text = (ROOT / "CHANGELOG.md").read_text()
    names = [c.name or c.callback.__name__ for c in app.registered_commands]
    assert [name for name in names if f"lmc {name}`" not in text] == []


def test_documented_flags_exist():
    """Every LMC_* name in the docs is a setting."""
    from dataclasses import fields

    from lmc.config import Settings

    known = {f"LMC_{f.name.upper()}" for f in fields(Settings)}
    named = {name for page in PAGES for name in re.findall(r"\bLMC_[A-Z_]+[A-Z]\b", page.read_text())}
    assert named - known == set()


def test_the_table_of_what_run_ahead_understands_is_on_its_page():
    from lmc.frontend.capture.outside import CONTAINERS
    from lmc.frontend.capture.table import FUNCTIONS

    page = (ROOT / "docs" / "run-ahead.md").read_text()
    opaque = {"hash", "id", "time", "perf_counter", "monotonic", "now", "openssl_md5", "openssl_sha1", "openssl_sha256"}  # unknown by rule
    names = {name.rpartition(".")[2] for fn, name, _ in FUNCTIONS.values() if not str(fn.__module__).startswith("lmc")} | {kind.__name__ for kind in CONTAINERS}
    assert sorted(name for name in names - opaque if f"`{name}`" not in page) == []


TOUR = ROOT / "docs" / "tour.py"


def test_the_tour_runs(capsys):
    """docs/tour.py asserts what it claims, in 300 lines."""
    runpy.run_path(str(TOUR), run_name="__main__")
    assert "plain: 43 passes" in (out := capsys.readouterr().out) and "ahead: 33 passes" in out and "in little memory: 38 passes" in out
    assert "import lmc" not in TOUR.read_text() and len(TOUR.read_text().splitlines()) <= 300


def vote(s, question):
    votes = []
    for f, who in zip(s.fork(4), ("a cook", "a judge", "a poet", "a child")):
        f += "Ask " + who + ": " + question + " "
        f += Gen("vote")  # noqa: F821
        votes.append(f["vote"])
    s += "The votes are " + ", ".join(sorted(votes)) + ". So? "
    s += Gen("end")  # noqa: F821
    return max(sorted(votes), key=votes.count) + " " + s["end"]


def interview(s, question):
    answers = []
    for part in ["First", "then", "at last"]:
        s += part + ": " + question + " "
        s += Gen("answer")  # noqa: F821
        if s["answer"] == "yes, it is.":
            return answers
        answers.append(s["answer"])
    return answers


@pytest.mark.parametrize("program", ["judge", vote, interview], ids=lambda program: getattr(program, "__name__", program))
def test_programs_mean_the_same_in_the_tour_and_on_lmc(program, tmp_path):
    """In each of the tour's ways, with as many answers ahead, lies, and little memory; and on lmc, each run and as a batch."""
    tour = runpy.run_path(str(TOUR))
    source = inspect.getsource(tour[program] if isinstance(program, str) else program)
    small, whole = (tmp_path / f"{name}.py" for name in ("small", "whole"))
    small.write_text("Gen = None\n" + source)
    whole.write_text(f"import lmc\n\nGen = lmc.gen\n\n@lmc.function\n{source}")
    name = program if isinstance(program, str) else program.__name__
    here, there = runpy.run_path(str(small))[name], runpy.run_path(str(whole))[name]
    here.__globals__["Gen"] = tour["Gen"]
    texts = [f"Essay number {i}." for i in range(8)]
    graph, found = tour["Graph"](here, 1), []
    for slots, ways in ((1000, ("plain", "ahead", "lying")), (60, ("ahead",))):
        for way in ways:
            engine, results = tour["Engine"](slots), []
            for text in texts:
                run_ahead = {
                    "plain": lambda ledger: None,
                    "ahead": lambda ledger, text=text: tour["Evaluator"](here, (text,), tour["Ahead"](ledger)),
                    "lying": lambda ledger: [ledger.guess(address, ("Lies?",)) for address in graph.asks if address not in ledger.asked],
                }[way]
                ledger = tour["Ledger"](engine, run_ahead, {} if way == "plain" else tour["batch_forks"](graph))
                results.append(tour["run"](here, (text,), ledger))
            found.append(results)
    mock = lmc.Mock(answers=lambda prompt, ask: tour["say"](prompt))
    assert len({repr(result) for result in found[0]}) > 1
    assert found == [found[0]] * 4
    assert [there.run(text, backend=mock).ret_value for text in texts] == found[0]
    assert [state.ret_value for state in lmc.compile(there).batch([(text,) for text in texts], backend=mock)] == found[0]


COMMANDS = re.findall(r"^lmc (.*)$", (ROOT / "docs" / "passes.md").read_text(), re.MULTILINE)


def test_the_commands_of_the_page_on_passes_run(monkeypatch, capsys, tmp_path):
    """One after another, as a reader would: a command may read the file that one before it wrote."""
    assert len(COMMANDS) >= 4
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        monkeypatch.setattr("sys.argv", ["lmc", *shlex.split(command, comments=True)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None), f"lmc {command}: {capsys.readouterr().err}"
