"""Programs as files: what was saved runs in another process as it ran here, and what cannot be is refused by name and place."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmc
from benchmarks import workloads
from lmc import saved
from lmc.ir.text import print_graph
from lmc.userfiles import UsageError
from tests.conformance import test_semantics as semantics
from tests.saving import results
from tests.searching import apart

ROOT = Path(__file__).parent.parent
SMALL = workloads.Size(0.02)


def programs() -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Programs of the conformance tests and the benchmarks, with what they are run on."""
    own = [(name, x) for name, x in vars(semantics).items() if isinstance(x, lmc.Function) and x.params == ("q",) and name != "outside_list"]
    for name, fn in own[:20]:
        yield name, fn, [{"q": "a"}]
    for made in (workloads.few_shot_qa, workloads.choice_scoring, workloads.react, workloads.agents, workloads.tree_of_thought,
                 workloads.skeleton_of_thought, workloads.judge, workloads.json_decoding):  # fmt: skip
        load = made(SMALL)
        yield load.name, load.program, load.items(2, seed=1)


def in_another_process(jobs: list[Any], directory: Path) -> list[Any]:
    (directory / "jobs").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.saving", str(directory / "jobs"), str(directory / "results")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((directory / "results").read_text())


@apart
@pytest.mark.filterwarnings("ignore::lmc.CaptureWarning")
def test_round_trips(tmp_path: Path) -> None:
    jobs: list[Any] = []
    expected: list[Any] = []
    refused: dict[str, str] = {}
    for name, fn, items in programs():
        program = lmc.compile(fn)
        first = json.loads(json.dumps(results(program, items)))
        try:
            program.save(tmp_path / name)
        except lmc.ProgramError as error:
            refused[name] = str(error)
            continue
        jobs.append([str(tmp_path / name), items])
        expected.append(first)
    assert all("has changed since" in said for said in refused.values()), refused
    for (path, _), (seen, _), before in zip(jobs, (found := in_another_process(jobs, tmp_path)), expected, strict=True):
        assert seen == before, path
    assert len(jobs) >= 25 and sum(traces == 0 for _, traces in found) >= 25


# -- a module of a user's, which tests change ---------------------------------------------------------------------------------

SOURCE = """
import enum
import re
import lmc

MODE = "a"
NAMES = ["x", "y"]
LOG = []
DIGITS = re.compile("[0-9]+")

class Kind(enum.Enum):
    SHORT = "short"

def tool(x):
    LOG.append(x)
    return f"<{x}>"

@lmc.pure
def size(x, factor=1):
    return len(x) * factor

@lmc.function
def child(s, tip):
    s += tip + lmc.gen("c", max_tokens=3)

@lmc.function
def program(s, q: str, times: int = 2):
    s += lmc.system("Be brief.") + lmc.user(q) + ("B" if MODE == "b" else "A")
    forks = s.fork(times)
    for f, name in zip(forks, NAMES):
        f += name + lmc.gen("v", max_tokens=4)
    s += tool(forks[0]["v"]) + str(size(forks[0]["v"])) + str(DIGITS.findall(q))
    s += child(tip="t")["c"]
    if q == "long":
        s += tool("long") + lmc.gen("more", max_tokens=3)
    s += lmc.gen("out", max_tokens=3)
    return s["out"], Kind.SHORT
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes and imports a module; the text "" only forgets the one that is there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"user_{random.randrange(1 << 40)}"

    def made(source: str) -> Any:
        sys.modules.pop(name, None)
        if not source:
            return None
        (tmp_path / f"{name}.py").write_text(source)
        os.utime(tmp_path / f"{name}.py", (1, random.randrange(1 << 30)))  # no cached bytecode of the text before
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield made
    sys.modules.pop(name, None)


def saved_at(path: Path, module: Any, *items: dict[str, Any]) -> list[str]:
    program = lmc.compile(module.program)
    texts = [program(**item, seed=1, backend=lmc.Mock()).text() for item in items or ({"q": "a"},)]
    program.save(path)
    return texts


def test_module_is_imported_at_the_first_call(tmp_path: Path, user: Any) -> None:
    module = user(SOURCE)
    texts = saved_at(tmp_path / "p", module)
    name = module.__name__
    user("")
    program = lmc.load(tmp_path / "p", backend=lmc.Mock())
    assert "tool" in program.dump_ir() and program.explain() and name not in sys.modules
    state = program(q="a", seed=1)
    assert [state.text()] == texts and program.stats.traces == 0
    assert state.ret_value[1] is sys.modules[name].Kind.SHORT and len(sys.modules[name].LOG) == 1


def test_graph_is_the_one_that_was_saved(tmp_path: Path, user: Any) -> None:
    module = user(SOURCE)
    program = lmc.compile(module.program)
    for q in ("a", "long"):
        program(q=q, backend=lmc.Mock())
    program.save(tmp_path / "p")
    assert lmc.load(tmp_path / "p").dump_ir(after="trace") == program.dump_ir(after="trace")
    assert print_graph(lmc.load(tmp_path / "p").graph()) == print_graph(program.graph())


def test_path_that_was_not_saved(tmp_path: Path, user: Any) -> None:
    module = user(SOURCE)
    program = lmc.compile(module.program)
    program(q="a", backend=lmc.Mock())
    traced = lmc.compile(module.program)
    traced(q="a", backend=lmc.Mock())
    traced.save(tmp_path / "p")
    user("")
    loaded = lmc.load(tmp_path / "p")
    for q, times in (("a", 2), ("a", 3), ("long", 2), ("b", 3), ("long", 1)):
        here, there = lmc.Mock(), lmc.Mock()
        assert loaded(q=q, times=times, seed=4, backend=here).text() == program(q=q, times=times, seed=4, backend=there).text()
        assert len(here.call_log) == len(there.call_log)
    assert loaded.stats.replays == 1 and loaded.stats.traces
    with pytest.raises(lmc.ProgramError, match="has traced more since"):
        loaded.save(tmp_path / "again")


def test_path_that_was_not_saved_of_a_program_with_a_function_that_is_marked_under_another_name(tmp_path: Path, user: Any) -> None:
    source = "import lmc\n\ndef read(x):\n    return x + '?'\n\nlook_up = lmc.host(read, idempotent=True)\n\n"
    source += "@lmc.function\ndef program(s, n):\n    for _ in range(n):\n        s += lmc.gen('x', max_tokens=2)\n        s += look_up(s['x'])\n"
    program = lmc.compile(user(source).program)
    program(n=1, backend=lmc.Mock(), seed=1)
    program.save(tmp_path / "p")
    user("")
    loaded = lmc.load(tmp_path / "p")
    for n in (1, 3):
        assert loaded(n=n, seed=1, backend=lmc.Mock()).text() == program(n=n, seed=1, backend=lmc.Mock()).text()


def test_paths_that_no_file_can_have(tmp_path: Path, user: Any) -> None:
    program = lmc.compile(user(SOURCE).program)
    program(q="a", backend=lmc.Mock())
    for path in ("a\0b", str(tmp_path / ("x" * 300)), "", str(tmp_path / "no" / "where")):
        with pytest.raises(lmc.ProgramError, match=r"test_saved.py:\d+: .*cannot be written"):
            program.save(path)
        with pytest.raises(lmc.ProgramError, match=r"test_saved.py:\d+: .*cannot be read"):
            lmc.load(path)
    assert not list(tmp_path.glob(".*"))


def test_path_that_was_not_saved_without_its_module(tmp_path: Path, user: Any) -> None:
    module = user("import lmc\n\n@lmc.function\ndef program(s, n):\n    s += lmc.gen('x', max_tokens=2)\n    if n == 7:\n        s += '!'\n    return n\n")
    program = lmc.compile(module.program)
    program(n=1, backend=lmc.Mock())
    del program._trees.by_types[("int",)][0].tree.root.end.arms[(bool, True)]
    program.save(tmp_path / "p")
    Path(module.__file__).unlink()
    user("")
    importlib.invalidate_caches()
    loaded = lmc.load(tmp_path / "p", backend=lmc.Mock())
    assert loaded(n=1).ret_value == 1
    with pytest.raises(lmc.ProgramError, match=rf"came to .*{module.__name__}.py:6.* the module {module.__name__} cannot be imported"):
        loaded(n=7)
    assert loaded(n=2).ret_value == 2
    with pytest.raises(lmc.ProgramError, match="cannot be imported"):
        loaded(n="text")


@pytest.mark.parametrize(("old", "new", "said"), [
    ("return f\"<{x}>\"", "return f\"({x})\"", r":14: .*tool is not what it was .* its source differs"),
    ("def tool(x):", "def tool(x, y=1):", r"its parameters were \(x\) and are \(x, y=1\)"),
    ("def tool(x):", "def renamed(x):", r"tool is not in the module"),
    ("factor=1", "factor=2", r"size is not what it was"),
    ("import enum", "import enum\nraise RuntimeError('not here')", r"cannot be imported \(RuntimeError: not here\)"),
])  # fmt: skip
def test_changed_functions_are_refused_at_the_first_call(tmp_path: Path, user: Any, old: str, new: str, said: str) -> None:
    saved_at(tmp_path / "p", user(SOURCE))
    try:
        user(SOURCE.replace(old, new))
    except RuntimeError:
        pass
    program = lmc.load(tmp_path / "p", backend=(mock := lmc.Mock()))
    with pytest.raises(lmc.ProgramError, match=said):
        program(q="a")
    with pytest.raises(lmc.ProgramError, match=said):
        program.batch([{"q": "a"}])
    assert not mock.call_log


INDIRECT = """
import functools
import lmc

def base(x):
    return x + "base"

part = functools.partial(base)

class Tool:
    def go(self, x):
        return x + "go"

TOOL = Tool()

def wraps(fn):
    @functools.wraps(fn)
    def inner(x):
        return fn(x) + "inner"
    return inner

@wraps
def wrapped(x):
    return x + "wrapped"

@lmc.function
def program(s, q):
    s += q + lmc.gen("a", max_tokens=2)
    return part(s["a"]), TOOL.go(s["a"]), wrapped(s["a"])
"""


@pytest.mark.parametrize("change", ["base", "go", "inner", "wrapped"])
def test_changed_functions_behind_others_are_refused(tmp_path: Path, user: Any, change: str) -> None:
    saved_at(tmp_path / "p", user(INDIRECT))
    assert lmc.load(tmp_path / "p")(q="a", backend=lmc.Mock()).ret_value
    user(INDIRECT.replace(f'"{change}"', '"changed"'))
    with pytest.raises(lmc.ProgramError, match="is not what it was when the program was saved: its source differs"):
        lmc.load(tmp_path / "p")(q="a", backend=lmc.Mock())


def test_comments_do_not_count(tmp_path: Path, user: Any) -> None:
    texts = saved_at(tmp_path / "p", user(SOURCE))
    user("# a comment\n" + SOURCE.replace("LOG.append(x)", "LOG.append(x)  # kept"))
    assert [lmc.load(tmp_path / "p")(q="a", seed=1, backend=lmc.Mock()).text()] == texts


def test_changed_outside(tmp_path: Path, user: Any) -> None:
    """Where the module of a global is there, its value is the one that counts, as for a program that was compiled here."""
    saved_at(tmp_path / "p", user(SOURCE))
    module = user(SOURCE.replace('MODE = "a"', 'MODE = "b"').replace('["x", "y"]', '["x", "z"]'))
    assert lmc.load(tmp_path / "p")(q="a", seed=1, backend=lmc.Mock()).text() == module.program.run(q="a", seed=1, backend=lmc.Mock()).text()


def test_changed_helper_needs_no_source_until_a_new_path(tmp_path: Path, user: Any) -> None:
    texts = saved_at(tmp_path / "p", user(SOURCE), {"q": "a"})
    user(SOURCE.replace('s += tip + lmc.gen("c"', 's += tip + "!" + lmc.gen("c"'))
    program = lmc.load(tmp_path / "p", backend=lmc.Mock())
    assert program(q="a", seed=1).text() == texts[0]
    with pytest.raises(lmc.ProgramError, match="child is not what it was"):
        program(q="a", times=3)


def test_list_of_a_closure(tmp_path: Path) -> None:
    """It is in the file as it was, and one object from then on."""
    words = ["one"]

    @lmc.function
    def collecting(s: Any, q: str) -> int:
        s += q + ",".join(words) + lmc.gen("x", max_tokens=2)
        words.append(s["x"])
        return len(words)

    lmc.compile(collecting).lower(q="a").save(tmp_path / "p")
    loaded = lmc.load(tmp_path / "p", backend=lmc.Mock())
    assert loaded(q="a").ret_value == 2 and words == ["one"]
    with pytest.raises(lmc.ProgramError, match="local to a function"):  # the text is another one now
        loaded(q="a")


def test_data_of_closures(tmp_path: Path) -> None:
    def made(word: str, shots: tuple[str, ...]) -> Any:
        def programmed(s: Any, q: str) -> str:
            s += word + "".join(shots) + q + lmc.gen("x", max_tokens=2)
            return s["x"] + word

        return lmc.function(programmed)

    fn = made("w", ("one", "two"))
    program = lmc.compile(fn)
    before = program(q="a", seed=2, backend=lmc.Mock())
    program.save(tmp_path / "p")
    after = lmc.load(tmp_path / "p")(q="a", seed=2, backend=lmc.Mock())
    assert (after.text(), after.ret_value) == (before.text(), before.ret_value)


def test_reads_of_the_state(tmp_path: Path) -> None:
    @lmc.function
    def reading(s: Any, q: str) -> Any:
        s += lmc.user(q) + lmc.assistant(lmc.gen("x", n=2, max_tokens=2))
        s += lmc.gen("top", max_tokens=0, top_logprobs_num=2) + lmc.separate_reasoning(lmc.gen("y", max_tokens=3), "qwen3")
        return s.messages()[0], s.text(), s["x"], s["top"], s["y"], s.get_meta_info("x")[1]["finish_reason"], "x" in s

    program = lmc.compile(reading)
    before = program(q="a", seed=2, backend=lmc.Mock())
    program.save(tmp_path / "p")
    assert lmc.load(tmp_path / "p")(q="a", seed=2, backend=lmc.Mock()).ret_value == before.ret_value


@pytest.mark.parametrize("source", [
    "    def local(x):\n        return x + 1\n    @lmc.function\n    def program(s, q):\n        s += lmc.gen('x')\n        s += str(local(len(s['x'])))\n    return program",
    "    @lmc.function\n    def program(s, q):\n        s += lmc.gen('x')\n        s += re.sub('a', lambda m: '<' + s_ + '>', s['x'])\n    s_ = 'x'\n    return program",
    "    thing = object()\n    @lmc.function\n    def program(s, q):\n        s += lmc.gen('x')\n        print(thing)\n    return program",
])  # fmt: skip
def test_what_a_file_cannot_hold(source: str, tmp_path: Path, user: Any) -> None:
    module = user("import re\nimport lmc\n\ndef made():\n" + source + "\n\nprogram = made()\n")
    line = source.split("lmc.gen")[0].count("\n") + 5
    with pytest.raises(lmc.ProgramError, match=rf"{module.__name__}.py:({line}|{line + 1}): program cannot be saved: it uses .*") as refused:
        lmc.compile(module.program).save(tmp_path / "p")
    assert "local to a function" in str(refused.value) or "hands to host code" in str(refused.value) or "a object" in str(refused.value)
    assert not (tmp_path / "p").exists() and not list(tmp_path.glob(".p.*"))


def test_journals_of_both_are_the_same(tmp_path: Path, user: Any) -> None:
    saved_at(tmp_path / "p", module := user(SOURCE))
    first = lmc.compile(module.program)(q="a", journal=tmp_path / "journal", backend=lmc.Mock())
    again = lmc.load(tmp_path / "p")(q="a", journal=tmp_path / "journal", backend=(mock := lmc.Mock()))
    assert again.text() == first.text() and not mock.call_log and len(module.LOG) == 2


def test_options_are_kept(tmp_path: Path, user: Any) -> None:
    module = user(SOURCE)
    program = lmc.compile(module.program.bind(times=1), outputs=["out"], opt=0)
    program.save(tmp_path / "p")
    loaded = lmc.load(tmp_path / "p")
    assert (loaded.opt, loaded.outputs, loaded.aggressive) == (0, ("out",), False)
    assert loaded.function.bound == {"times": 1} and loaded.function.described == program.function.described


def test_dump_ir_of_a_file(tmp_path: Path, user: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from lmc import cli

    saved_at(tmp_path / "p.lmcp", user(SOURCE))
    user("")
    cli.app(["dump-ir", str(tmp_path / "p.lmcp")], standalone_mode=False)
    assert "graph @program(" in capsys.readouterr().out


def test_run_of_a_file(tmp_path: Path, user: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from lmc import cli

    def ran(*args: str) -> str:
        cli.app(["run", str(tmp_path / "p.lmcp"), "--backend", "mock", *args], standalone_mode=False)
        return capsys.readouterr().out

    module = user(SOURCE)
    saved_at(tmp_path / "p.lmcp", module)
    program, name = lmc.compile(module.program, backend=lmc.Mock()), module.__name__
    there = {(q, times): program(q=q, times=times, seed=1).ret_value[0] for q in ("a", "long") for times in (1, 2)}
    user("")
    assert there["a", 1] in ran("--arg", "q=a", "--arg", "times=1", "--seed", "1") and name in sys.modules  # a path that is not in the file
    (tmp_path / "items").write_text('{"q": "a"}\n{"q": "long", "times": 1}\n')
    lines = sorted(map(json.loads, ran("--input", str(tmp_path / "items"), "--seed", "1").splitlines()), key=lambda line: line["index"])
    assert [line["text"] for line in lines] == [s.text() for s in program.batch([{"q": "a"}, {"q": "long", "times": 1}], seed=1)]
    with pytest.raises(UsageError, match="has no parameter 'p'; its parameters are q: str, times: int = 2"):
        ran("--arg", "p=a")
    with pytest.raises(UsageError, match="no source to interpret"):
        ran("--arg", "q=a", "--interpret")


# -- files that are none ----------------------------------------------------------------------------------------------------------


def with_body(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file with its JSON changed, and a checksum that fits."""
    data = json.loads(path.read_bytes().partition(b"\n")[2])
    body = json.dumps(change(data) or data).encode()
    path.write_bytes(f"{saved.MAGIC} {saved.VERSION} {saved._checksum(body)}\n".encode() + body)
    return path


TRAP = "raise SystemExit('reading a file has imported a module')\n"


def test_bad_files(tmp_path: Path, user: Any) -> None:
    saved_at(tmp_path / "p", user(SOURCE))
    user("")
    whole = (tmp_path / "p").read_bytes()
    next(tmp_path.glob("user_*.py")).write_text(TRAP)
    rng = random.Random(7)
    bad = tmp_path / "bad"
    for content in [whole[: rng.randrange(len(whole))] for _ in range(40)] + [b"", b"{}", b"lmc-journal 1 x {}\n"]:
        bad.write_bytes(content)
        with pytest.raises(lmc.LmcError):
            lmc.load(bad)
    for _ in range(60):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        bad.write_bytes(changed)
        with pytest.raises(lmc.LmcError):
            lmc.load(bad)
    bad.write_bytes(whole.replace(b"lmc-program 1", b"lmc-program 2", 1))
    with pytest.raises(lmc.ProgramError, match="has format 2 of saved programs, and this lmc reads format 1: save the program again"):
        lmc.load(bad)
    with pytest.raises(lmc.ProgramError, match="cannot be read"):
        lmc.load(tmp_path / "nowhere")


def test_files_of_other_types(tmp_path: Path, user: Any) -> None:
    """Whatever stands in the place of what belongs there: a message, and nothing is imported."""
    saved_at(tmp_path / "p", user(SOURCE))
    user("")
    whole = (tmp_path / "p").read_bytes()
    next(tmp_path.glob("user_*.py")).write_text(TRAP)
    rng = random.Random(3)
    data = json.loads(whole.partition(b"\n")[2])

    def places(x: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for key, value in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
            yield (*at, key)
            yield from places(value, (*at, key))

    for place in rng.sample(list(places(data)), 12):
        for other in (None, {"ref": "os:system"}):
            changed = json.loads(json.dumps(data))
            inside = changed
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = other
            body = json.dumps(changed).encode()
            try:
                saved.SavedFile("p", saved.codec.from_bytes(body))
            except (lmc.LmcError, *saved._BAD):
                pass


@pytest.mark.parametrize("entry", [{"op": "system"}, {"op": []}, {"own": "os:system"}, {"own": "lmc.frontend.hooks:no_such"}, {"lmc": "x"}])
def test_what_lmc_has_not_is_refused_when_it_is_read(tmp_path: Path, user: Any, entry: Any) -> None:
    saved_at(tmp_path / "p", user(SOURCE))

    def change(data: Any) -> None:
        symbols = data["trees"][0]["symbols"]
        name = next(name for name, x in symbols.items() if "op" in x)
        symbols[name] = entry

    with pytest.raises(lmc.ProgramError, match="save the program again"):
        lmc.load(with_body(tmp_path / "p", change))


def test_graph_that_does_not_verify(tmp_path: Path, user: Any) -> None:
    saved_at(tmp_path / "p", user(SOURCE))

    def undefined(data: Any) -> None:
        data["trees"][0]["ir"] = [line.replace("append(%c", "append(%nothing", 1) for line in data["trees"][0]["ir"]]

    def no_tree(data: Any) -> None:
        data["trees"][0]["ir"] = ["// lmc ir 1", "graph @p() -> (any) {", "  %c0 = ctx.new()", "  return(%c0)", "}"]

    for change in (undefined, no_tree, lambda data: data["trees"][0].update(ir=["import os"])):
        path = tmp_path / "changed"
        path.write_bytes((tmp_path / "p").read_bytes())
        with pytest.raises(lmc.LmcError):
            lmc.load(with_body(path, change))


def test_own_functions_are_the_frontends() -> None:
    for name in ("os:system", "lmc.cli:app", "lmc.frontend.hostops:sys", "lmc.frontend.__init__:x", "lmc.frontend.hooks:types"):
        with pytest.raises(ValueError):
            saved._found_own(name)


@lmc.function
def greets(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)


def test_a_program_is_pickled_by_its_name_and_a_compiled_one_not_at_all() -> None:
    assert pickle.loads(pickle.dumps(greets)) is greets and copy.deepcopy([greets]) == [greets]
    with pytest.raises(pickle.PicklingError, match="greets"):
        pickle.dumps(greets.bind(q="x"))
    for fails in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(lmc.ProgramError, match=r"greets.* cannot be pickled or copied once it is compiled: program\.save\(path\) .* lmc\.load\(path\)"):
            fails(lmc.compile(greets))
