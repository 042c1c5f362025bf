"""`import lmc` is light, and every exported name is there."""

import ast
import importlib
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lmc
from tests.searching import apart

HEAVY = (
    "torch", "transformers", "triton", "xgrammar", "networkx", "typer", "rich", "numpy", "lark", "jinja2", "tqdm",
    "asyncio", "ssl", "socket", "subprocess", "json", "logging",
)


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(lmc.__file__).parent.parent).stdout


@apart
def test_it_runs_from_a_zip_archive(tmp_path):
    package = Path(lmc.__file__).parent
    with zipfile.ZipFile(tmp_path / "lmc.zip", "w") as archive:
        for path in package.rglob("*"):
            if path.suffix in (".py", ".lark"):
                archive.write(path, Path("lmc") / path.relative_to(package))
    (tmp_path / "prog.py").write_text("import lmc\n\n@lmc.function\ndef hello(s):\n    s += 'Hello' + lmc.gen('x')\n")
    code = "import lmc, prog; from lmc.ir.parser import parse; print(lmc.__file__, parse(lmc.compile(prog.hello, backend='mock').dump_ir()).name)"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'lmc.zip'}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.stdout.split() == [str(tmp_path / "lmc.zip" / "lmc" / "__init__.py"), "hello"], done.stderr


def test_pythons_without_their_lock_are_refused():
    """Free-threaded builds of Python 3.13 and later, unless they are told to have one."""
    in_fresh_python("import sys; sys._is_gil_enabled = lambda: True; import lmc")
    code = "import sys; sys._is_gil_enabled = lambda: False; import lmc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(lmc.__file__).parent.parent, check=False)
    assert done.returncode == 1 and "ImportError: lmc needs Python's global interpreter lock" in done.stderr and "PYTHON_GIL=1" in done.stderr


def test_import_brings_little_and_nothing_heavy():
    """Its cost is the modules it runs: four of its own and a few dozen small ones of Python's."""
    new = in_fresh_python("import sys; old = {*sys.modules}; import lmc; print(*{*sys.modules} - old)").split()
    assert sorted(m for m in new if m.startswith("lmc")) == ["lmc", "lmc.config", "lmc.errors", "lmc.version"]
    assert sorted({m.split(".")[0] for m in new} & {*HEAVY}) == []
    assert len(new) < 80


def test_public_names_go_to_other_processes():
    """A pool's initializer, for one: `ProcessPoolExecutor(initializer=lmc.set_default_backend, initargs=("mock",))`."""
    for name in lmc.__all__:
        value = getattr(lmc, name)
        again = pickle.loads(pickle.dumps(value))
        assert again is value or again == value or name == "global_config", name


RUNS = """
import asyncio, sys
sys.modules["opentelemetry"] = None  # importing it would raise
import lmc

@lmc.host
def tool(x): return x

@lmc.function
def program(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=3))
    s += lmc.user(tool(s["a"])) + lmc.assistant(lmc.gen("b", max_tokens=3))

mock = lmc.Mock()
program.run("x", backend=mock).sync()
lmc.compile(program)("x", backend=mock).sync()
lmc.compile(program).batch([{"q": "x"}] * 3, backend=mock)
program.run_batch([{"q": "x"}] * 3, backend=mock)
asyncio.run(program.arun("x", backend=mock))
print(*sys.modules)
"""


def test_running_on_the_mock_imports_no_model_journal_or_observer():
    loaded = in_fresh_python(RUNS).split()
    assert "lmc.backend.mock" in loaded
    assert [m for m in loaded if m.split(".")[0] in ("torch", "transformers", "xgrammar") or m.startswith("lmc.durable") or "otel" in m] == []


@pytest.mark.parametrize("name", [n for n in lmc.__all__ if n not in ("Engine", "Runtime")])
def test_exported_names_resolve(name):
    assert getattr(lmc, name) is not None


@pytest.mark.model
def test_engine_resolves():
    assert issubclass(lmc.Runtime, lmc.Engine)


def test_type_checkers_see_the_names_that_exist():
    tree = ast.parse(Path(lmc.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    imported = [(n.module, alias) for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names]
    everything = [name for module, alias in imported if alias.name == "*" for name in importlib.import_module(str(module)).__all__]
    seen = {alias.asname for _, alias in imported if alias.name != "*"} | {*everything}
    assert seen | {"config", "flush_cache", "get_server_info"} == set(lmc.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        lmc.no_such_name  # noqa: B018


def test_dspy_is_asked_for_where_it_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lmc.integrations.dspy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dspy", None)
    with pytest.raises(ModuleNotFoundError, match=r"lmc.dspy needs dspy, .*: pip install .*\[dspy\]"):
        _ = lmc.dspy
