"""`import lmc` is light, and every exported name is there."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import lmc

HEAVY = (
    "torch", "transformers", "triton", "xgrammar", "networkx", "typer", "rich", "numpy", "lark", "interegular", "jinja2", "tqdm",
    "asyncio", "ssl", "socket", "subprocess", "json", "logging",
)


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(lmc.__file__).parent.parent).stdout


def test_import_brings_little_and_nothing_heavy():
    """What it costs is the modules it runs: four of its own and a few dozen small ones of Python's."""
    new = in_fresh_python("import sys; old = {*sys.modules}; import lmc; print(*{*sys.modules} - old)").split()
    assert sorted(m for m in new if m.startswith("lmc")) == ["lmc", "lmc.config", "lmc.errors", "lmc.version"]
    assert sorted({m.split(".")[0] for m in new} & {*HEAVY}) == []
    assert len(new) < 80


def test_compiling_and_running_on_the_mock_needs_no_torch():
    code = """
import json, sys
import lmc

@lmc.function
def ask(s, question):
    s += question + lmc.gen("answer", max_tokens=4)

lmc.compile(ask, backend=lmc.Mock())(question="Why?").text()
print(json.dumps([m for m in ("torch", "transformers", "xgrammar") if m in sys.modules]))
"""
    assert json.loads(in_fresh_python(code)) == []


@pytest.mark.parametrize("name", [n for n in lmc.__all__ if n not in ("Engine", "Runtime")])
def test_exported_names_resolve(name):
    assert getattr(lmc, name) is not None


@pytest.mark.model
def test_engine_resolves():
    assert issubclass(lmc.Runtime, lmc.Engine)


def test_type_checkers_see_the_names_that_exist():
    tree = ast.parse(Path(lmc.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.asname for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
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
