"""The pass manager: pipelines as text, verification, printing, reproducers, statistics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from lmc.chat import get_chat_template
from lmc.config import reset
from lmc.errors import IRError, ParameterError, ProgramError
from lmc.ir import Builder, Graph, Op, Value, parse, print_graph, rewrite
from lmc.passes.base import Pass, PassContext, Target, registry
from lmc.passes.canonicalize import Canonicalize
from lmc.passes.dce import Dce
from lmc.passes.manager import REPRODUCERS, PassManager, described, parse_pipeline, pipeline_for, print_pipeline, run_pipeline
from lmc.passes.plan_prefix import PlanPrefix
from tests.passes.filecheck import graph_of

GRAPH = '%c1 = append(%c0, "a")\n%c2 = append(%c1, "b")\n%c3, %x, %m = gen(%c2)\nreturn(%x, %c3)'


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("LMC_CACHE_DIR", str(tmp_path))
    reset()
    yield monkeypatch
    monkeypatch.undo()
    reset()


@dataclass(frozen=True)
class Broken(Pass):
    """Does what passes must not do."""

    name: ClassVar[str] = "broken"
    how: str = "raise"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if self.how == "raise":
            raise ZeroDivisionError("no")
        if self.how == "user":
            raise ProgramError("the user's fault")
        if self.how == "end":
            return rewrite(graph, lambda op, _: (Op("raise", ("x",)),) if op.kind == "return" else None)
        return rewrite(graph, lambda op, _: () if op.kind == "gen" else None)


def graph() -> Graph:
    return graph_of(GRAPH, params="%c0: ctx")


def test_a_pipeline_reads_as_it_prints() -> None:
    text = 'canonicalize,plan-prefix{min_chars = 4, unknown_chars = 9},dce{outputs = ["a", "b,}"]}'
    passes = parse_pipeline(' canonicalize , plan-prefix{min_chars=4, unknown_chars = 9} ,dce{outputs=["a","b,}"]}')
    assert passes == (Canonicalize(), PlanPrefix(4, 9), Dce(("a", "b,}")))
    assert print_pipeline(passes) == text and parse_pipeline(text) == passes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "canonicalise",
            "there is no pass 'canonicalise'; there are aggressive, batch-forks, canonicalize, cse, dce, lower-chat, lower-constraint, plan-cache, plan-prefix",
        ),
        ("dce{input = 1}", "pass dce has no option 'input'; it has outputs"),
        ("cse{x = 1}", "pass cse has no option 'x'; it has none"),
        ("plan-prefix{min_chars = many}", "min_chars = many is not a value"),
        ("plan-prefix{min_chars = 1", "unclosed"),
        ('plan-prefix{min_chars = "1"}', 'plan-prefix: min_chars = "1" is of the wrong type; it is a whole number'),
        ("plan-prefix{min_chars = true}", "it is a whole number"),
        ("lower-chat{template = 3}", "it is a text"),
        ("dce{outputs = [1]}", "it is a list of texts or null"),
    ],
)
def test_a_wrong_pipeline_says_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ParameterError) as e:
        parse_pipeline(text)
    assert message in str(e.value)


def test_every_pass_is_documented_and_has_its_file() -> None:
    for name, cls in registry().items():
        assert cls.__doc__ and cls.__module__ == "lmc.passes." + name.replace("-", "_")


def test_each_target_has_its_pipeline() -> None:
    names = [p.name for p in pipeline_for(Target("tokens"))]
    assert names == [
        "canonicalize",
        "lower-chat",
        "canonicalize",
        "cse",
        "dce",
        "canonicalize",
        "lower-constraint",
        "plan-prefix",
        "batch-forks",
    ]
    assert "plan-prefix" not in [p.name for p in pipeline_for(Target("chat"))]
    assert [p.name for p in pipeline_for(Target(), opt=0)] == ["lower-chat"]
    assert Dce(("x",)) in pipeline_for(Target(), outputs=["x"])
    with pytest.raises(ParameterError, match="no pipeline for 'gpu'; there are tokens, text, chat"):
        pipeline_for(Target("gpu"))


def test_reports_say_what_each_pass_did() -> None:
    planned = PassManager(parse_pipeline("cse,canonicalize")).plan(graph())
    cse, canonicalize = planned.reports
    assert not cse.changed and cse.graph is cse.before
    assert canonicalize.changed and canonicalize.stats == {"merged": 1} and canonicalize.graph is planned.graph
    assert planned.stats == {"canonicalize.merged": 1} and planned.seconds > 0


def test_after_stops_behind_the_last_run_of_a_pass() -> None:
    g = graph()
    assert run_pipeline(g, after="trace") is g
    assert "ab" in print_graph(run_pipeline(g, after="canonicalize"))
    with pytest.raises(
        ParameterError, match="no pass 'fuse' in this pipeline; there are trace, canonicalize, lower-chat"
    ):
        run_pipeline(g, after="fuse")
    with pytest.raises(ParameterError, match=r"in this pipeline; did you mean 'plan-prefix'\?"):
        run_pipeline(g, after="plan_prefix")


def test_a_pass_that_fails_leaves_a_reproducer(env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(IRError, match="pass broken failed on @f: ZeroDivisionError: no") as e:
        PassManager([Canonicalize(), Broken()]).run(graph())
    (path,) = (tmp_path / "reproducers").iterdir()
    command, *_ = path.read_text().splitlines()
    assert command == f"// lmc opt {path} --passes=broken" and command[3:] in e.value.message
    assert "ab" in print_graph(parse(path.read_text()))  # the graph as the failing pass got it
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_only_the_newest_reproducers_are_kept(env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "reproducers"
    folder.mkdir()
    for i in range(REPRODUCERS + 3):
        (folder / f"{i}.lmir").write_text("")
        os.utime(folder / f"{i}.lmir", (i, i))
    with pytest.raises(IRError) as e:
        PassManager([Broken()]).run(graph())
    kept = {p.name for p in folder.iterdir()}
    assert len(kept) == REPRODUCERS and not kept & {f"{i}.lmir" for i in range(4)}
    assert any(name in e.value.message for name in kept)


def test_a_reproducer_names_target_and_template(env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(IRError) as e:
        PassManager([Broken()]).run(graph(), Target("chat", get_chat_template("qwen")))
    assert e.value.message.endswith(".lmir --passes=broken --target=chat --template=qwen")


def test_errors_about_the_program_pass_through(env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="the user's fault"):
        PassManager([Broken("user")]).run(graph())
    assert not (tmp_path / "reproducers").exists()


@pytest.mark.parametrize(
    ("how", "message"), [("drop", "%x is not defined"), ("end", "changed the graph's parameters, the number")]
)
def test_a_pass_that_breaks_the_ir_is_named(env: pytest.MonkeyPatch, how: str, message: str) -> None:
    env.setenv("LMC_VERIFY", "2")
    reset()
    with pytest.raises(IRError) as e:
        PassManager([Broken(how), Canonicalize()]).run(graph())
    assert "pass broken failed" in e.value.message and message in e.value.message


def test_graphs_are_printed_on_demand(env: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    env.setenv("LMC_PRINT_IR", "after=cse")
    reset()
    run_pipeline(graph())
    assert capsys.readouterr().err.count("// -- after ") == 1
    env.setenv("LMC_PRINT_IR", "after-all")
    reset()
    run_pipeline(graph())
    assert capsys.readouterr().err.count("// -- after ") == 9


def test_a_manager_verifies_and_prints_when_it_is_told(
    env: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(IRError, match="pass broken failed"):
        PassManager([Broken("drop"), Canonicalize()], verify_each=True).run(graph())
    PassManager(parse_pipeline("cse,canonicalize"), print_after="canonicalize").run(graph())
    assert capsys.readouterr().err.count("// -- after canonicalize") == 1
    with pytest.raises(ParameterError, match="no pass 'fuse' to print after"):
        PassManager([], print_after="fuse")


def test_a_plan_has_a_table() -> None:
    table = PassManager(parse_pipeline("cse,canonicalize")).plan(graph()).table()
    head, cse, canonicalize, total = table.splitlines()
    assert head.split()[0] == "pass" and total.split()[0] == "all"
    assert cse.endswith("nothing") and canonicalize.endswith("1 merged")


def test_all_passes_are_described_with_their_options() -> None:
    lines = list(described())
    assert [line.split("{")[0].split(":")[0] for line in lines] == sorted(registry())
    assert any(line.startswith("plan-prefix{min_chars = 16, ") for line in lines)


@pytest.mark.parametrize(
    "name", ["canonicalize", "lower-chat", "cse", "plan-prefix", "batch-forks", "plan-speculation"]
)
def test_a_passs_work_grows_with_the_graph(name: str) -> None:
    """Work is counted in calls, not in seconds: an op of 120 gens costs about what an op of 39 gens costs."""
    small, large = _tree(levels=3), _tree(levels=4)
    assert [sum(op.kind == "gen" for op in g.ops()) for g in (small, large)] == [39, 120]
    at = [p.name for p in WHOLE].index(name)
    per_op: list[float] = []
    for graph in (small, large):
        before = PassManager(WHOLE[:at]).run(graph)
        per_op.append(
            _calls_of(lambda g=before: WHOLE[at].run(g, PassContext(Target()))) / sum(1 for _ in before.ops())
        )
    assert per_op[1] < 1.1 * per_op[0]


WHOLE = parse_pipeline("canonicalize,lower-chat,canonicalize,cse,canonicalize,plan-speculation,plan-prefix,batch-forks")


def test_a_long_loop_that_forks_is_planned_in_linear_work() -> None:
    """Every step extends the prompt and asks beside it: each prompt is a fork point above all that follow."""

    def loop(steps: int) -> Graph:
        b = Builder("loop")
        (ctx,) = b.emit("ctx.new")
        for i in range(steps):
            (ctx,) = b.emit("append", (ctx, f"Step {i} of a long loop. "))
            b.emit("gen", (ctx,), {"stream": str(i), "ordinal": 0})
        b.terminate("return", (None, ctx), {"vars": ()})
        return b.build()

    def work(graph: Graph) -> int:
        return _calls_of(lambda: PlanPrefix().run(graph, PassContext(Target())))

    small, large = work(loop(100)), work(loop(400))
    assert large < 4.4 * small


def _calls_of(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, `work` calls in this thread."""
    count = 0

    def profile(frame: object, event: str, what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _tree(levels: int) -> Graph:
    """A program of forks: at each level every branch forks in three, with a gen in each."""
    b = Builder("tree", [Value("question", "str")])
    (c0,) = b.emit("ctx.new")
    level = [b.emit("append", (c0, "Answer the question: ", b.params[0]))[0]]
    for _ in range(levels):
        level = [_turn(b, ctx, i) for ctx in level for i in range(3)]
    b.terminate("return", (None, level[0]), {"vars": ()})
    return b.build()


def _turn(b: Builder, ctx: Value, i: int) -> Value:
    (ctx,) = b.emit("role.begin", (ctx,), {"role": "user", "previous": None})
    (ctx,) = b.emit("append", (ctx, f"Think of step {i} now."))
    (ctx,) = b.emit("role.end", (ctx,), {"role": "user"})
    ctx, text, _ = b.emit("gen", (ctx,), {"name": "step", "stream": str(i), "ordinal": 0})
    b.emit("py.int", (text,))
    return ctx
