"""The pass manager: the passes of each target, in one visible tuple each, and a report of each pass.

A pass is a frozen dataclass (its fields are its options) that maps a graph to a graph and returns the same object when
there was nothing to do. `LMC_VERIFY` sets how often graphs are verified, `LMC_PRINT_IR` what is printed. A pass that
fails leaves a file whose first line is the command that fails.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from lmc.chat import CHATML, ChatTemplate, known_chat_template
from lmc.config import cache_dir, keep_newest, logs, settings
from lmc.errors import IRError, LmcError, ParameterError
from lmc.ir.core import Graph
from lmc.ir.ops import Stage, spec_of
from lmc.ir.parser import parse
from lmc.ir.text import print_graph
from lmc.ir.verifier import verify, verify_level
from lmc.parameters import suggestion
from lmc.passes.base import Pass, PassContext, Target, registry

# -- pipelines -------------------------------------------------------------------------------------------------------

_CLEANED = "canonicalize, lower-chat, canonicalize, cse, dce, canonicalize, lower-constraint"
_PIPELINES: Mapping[str, str] = {
    "tokens": f"{_CLEANED}, plan-prefix, batch-forks",
    "text": f"{_CLEANED}, plan-speculation, batch-forks",
    "chat": f"{_CLEANED}, plan-speculation, batch-forks, plan-cache",
}
_REWRITTEN = "canonicalize, lower-chat, canonicalize, aggressive"  # prepended when prompts may be changed
_UNOPTIMIZED = "lower-chat"  # required for execution, and nothing else


def pipeline_for(target: Target, *, opt: int = 1, outputs: Sequence[str] | None = None, aggressive: bool = False) -> tuple[Pass, ...]:
    """Return the passes of a target, in order, except those that LMC_SKIP_PASSES names.

    opt=0 lowers only; `outputs`: the variables that dce keeps; `aggressive` also changes prompts, at any level.
    """
    if target.kind not in _PIPELINES:
        raise ParameterError(f"there is no pipeline for {target.kind!r}; there are {', '.join(_PIPELINES)}")
    passes = _parsed(_PIPELINES[target.kind] if opt else _UNOPTIMIZED)
    if aggressive:
        passes = (*_parsed(_REWRITTEN), *(p for p in passes if p.name != "lower-chat"))
    if skipped := settings().skip_passes:
        passes = tuple(p for p in passes if p.name not in skipped or p.name == "lower-chat")
    if outputs is None:
        return passes
    wanted = cast(Callable[..., Pass], registry()["dce"])(outputs=tuple(outputs))
    return tuple(wanted if p.name == "dce" else p for p in passes) if opt else (*passes, wanted)


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Parse `canonicalize,plan-prefix{min_chars = 32}`; raises ParameterError that names the unknown part."""
    return tuple(_parse_pass(item) for item in _split(text))


_parsed = functools.cache(parse_pipeline)  # passes are frozen


def print_pipeline(passes: Sequence[Pass]) -> str:
    """Print a pipeline: the inverse of `parse_pipeline`."""
    return ",".join(p.text for p in passes)


def described() -> Iterator[str]:
    """Return a line for each pass: its name with all options at their defaults, and its description."""
    for name, cls in sorted(registry().items()):
        options = ", ".join(f"{f.name} = {json.dumps(f.default)}" for f in fields(cls))  # pyright: ignore[reportArgumentType]
        yield f"{name}{f'{{{options}}}' if options else ''}: {(cls.__doc__ or '').strip().splitlines()[0]}"


def _split(text: str) -> Iterator[str]:
    depth, start, quoted = 0, 0, False
    for i, char in enumerate(text + ","):
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        if quoted:
            continue
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            if item := text[start:i].strip():
                yield item
            start = i + 1
    if depth or quoted:
        raise ParameterError(f"the pipeline {text!r} has an unclosed brace, bracket or quote")


def _parse_pass(item: str) -> Pass:
    match = re.fullmatch(r"([\w-]+)\s*(?:\{(.*)\})?", item, re.DOTALL)
    name = match[1] if match else item
    cls = registry().get(name)
    if match is None or cls is None:
        raise ParameterError(f"there is no pass {name!r}; there are {', '.join(sorted(registry()))}")
    if not match[2]:
        return cls()
    known = {f.name: f for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    hints = get_type_hints(cls)
    options: dict[str, Any] = {}
    for option in _split(match[2]):
        key, equals, value = (part.strip() for part in option.partition("="))
        if key not in known or not equals:
            raise ParameterError(f"pass {name} has no option {key!r}; it has {', '.join(known) or 'none'}")
        try:
            parsed: Any = json.loads(value)
        except ValueError:
            raise ParameterError(f'pass {name}: {key} = {value} is not a value; write a number, true, false, "text" or [list]') from None
        options[key] = _typed(name, key, hints[key], parsed)
    return cls(**options)


def _typed(name: str, key: str, hint: Any, value: Any) -> Any:
    """Return an option's value as its field declares it, or raise ParameterError that names its type."""
    kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    for kind in kinds:
        if get_origin(kind) is tuple and isinstance(value, list):
            items = cast("list[Any]", value)
            if all(isinstance(x, get_args(kind)[0]) for x in items):
                return tuple(items)
        elif type(cast("object", value)) is kind:
            return cast("object", value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    wanted = " or ".join(_TYPES.get(kind, "a list of texts") for kind in kinds)
    raise ParameterError(f"pass {name}: {key} = {json.dumps(value)} is of the wrong type; it is {wanted}")


_TYPES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}


# -- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """The effect of one pass on one graph: time in seconds, its statistics, the graph after it, and notes for
    `explain`."""

    pass_: Pass
    seconds: float
    stats: Mapping[str, int]
    before: Graph
    graph: Graph
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.graph is not self.before


@dataclass(frozen=True)
class Planned:
    """A graph after its pipeline, with a report per pass."""

    graph: Graph
    reports: tuple[Report, ...] = ()

    @property
    def stats(self) -> Mapping[str, int]:
        """Return all passes' statistics by `pass.what`."""
        total: dict[str, int] = {}
        for r in self.reports:
            for what, n in r.stats.items():
                key = f"{r.pass_.name}.{what}"
                total[key] = total.get(key, 0) + n
        return total

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the passes, as `pass: text`."""
        return tuple(f"{r.pass_.name}: {note}" for r in self.reports for note in r.notes)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.reports)

    def table(self) -> str:
        """Return a line for each pass that ran: milliseconds, ops after it, its counts."""
        lines = [f"{'pass':<18} {'ms':>8} {'ops':>6}  what it did"]
        for r in self.reports:
            ops = sum(1 for _ in r.graph.ops())
            did = ", ".join(f"{n} {what}" for what, n in r.stats.items())
            lines.append(f"{r.pass_.name:<18} {r.seconds * 1e3:8.2f} {ops:6}  {did or ('changed' if r.changed else 'nothing')}")
        return "\n".join([*lines, f"{'all':<18} {self.seconds * 1e3:8.2f}"])


class PassManager:
    """Runs a tuple of passes, one after another.

    verify_each  checks the graph after every pass, as LMC_VERIFY=2 does
    print_after  prints the graph after these passes (names with commas, or "all"), as LMC_PRINT_IR does
    """

    def __init__(self, passes: Sequence[Pass], *, verify_each: bool = False, print_after: str = "") -> None:
        self.passes = tuple(passes)
        self.verify_each = verify_each
        self._printed = frozenset(name.strip() for name in print_after.split(",") if name.strip())
        if unknown := sorted(self._printed - registry().keys() - {p.name for p in passes} - {"all"}):
            raise ParameterError(f"there is no pass {unknown[0]!r} to print after; there are {', '.join(sorted(registry()))}")

    def _prints(self, p: Pass) -> bool:
        return not self._printed.isdisjoint(("all", p.name)) or _wants(p.name)

    def run(self, graph: Graph, target: Target | None = None) -> Graph:
        """Return the graph after all passes."""
        return self.plan(graph, target).graph

    def plan(self, graph: Graph, target: Target | None = None) -> Planned:
        """Return the graph after all passes, with a report of each.

        Raises IRError that names the pass and the reproducer file when a pass fails or breaks a rule of the IR;
        errors about the user's program (any other LmcError) pass through.
        """
        target = target or Target()
        _show(graph, "before the pipeline", settings().debug >= 3)
        reports: list[Report] = []
        first = graph
        for p in self.passes:
            report = _run_one(p, graph, target, 2 if self.verify_each else 0)
            reports.append(report)
            graph = report.graph
            _show(graph, f"after {p.text}", self._prints(p) or (settings().debug >= 4 and report.changed))
            if logs("passes"):
                stats = ", ".join(f"{n} {what}" for what, n in report.stats.items())
                print(f"lmc[passes] {p.name}: {report.seconds * 1e3:.2f} ms  {stats or 'no change'}", file=sys.stderr)
        if verify_level() >= 1:
            _blame(None, first, self.passes, target, lambda: verify(graph, stage_of(graph)))
        _show(graph, "after the pipeline", settings().debug == 3)
        return Planned(graph, tuple(reports))


def run_pipeline(
    graph: Graph,
    passes: Sequence[Pass] | None = None,
    *,
    template: ChatTemplate = CHATML,
    kind: str = "tokens",
    opt: int = 1,
    outputs: Sequence[str] | None = None,
    aggressive: bool = False,
    after: str | None = None,
) -> Graph:
    """Return the graph after its target's pipeline (or after `passes`), or as it is after the last run of pass
    `after`."""
    target = Target(kind, template)
    chosen = pipeline_for(target, opt=opt, outputs=outputs, aggressive=aggressive) if passes is None else tuple(passes)
    return PassManager(upto(chosen, after) if after else chosen).run(graph, target)


def upto(passes: Sequence[Pass], after: str) -> tuple[Pass, ...]:
    """Return the passes up to and including the last one called `after`; `trace` means none of them."""
    if after == "trace":
        return ()
    for i in range(len(passes) - 1, -1, -1):
        if passes[i].name == after:
            return tuple(passes[: i + 1])
    raise ParameterError(f"no pass {after!r} in this pipeline{suggestion(after, ('trace', *dict.fromkeys(p.name for p in passes)))}")


def stage_of(graph: Graph) -> Stage:
    """Return `planned` as soon as no op is left that only the evaluator emits."""
    specs = (spec_of(op.kind) for op in graph.ops())
    return "planned" if all("planned" in spec.stages for spec in specs if spec is not None) else "traced"


def _run_one(p: Pass, graph: Graph, target: Target, verified: int) -> Report:
    ctx = PassContext(target)
    start = time.perf_counter()
    after = _blame(p, graph, (p,), target, lambda: p.run(graph, ctx))
    seconds = time.perf_counter() - start
    if max(verified, verify_level()) >= 2:
        _blame(p, graph, (p,), target, lambda: _check(graph, after))
    return Report(p, seconds, ctx.stats, graph, after, tuple(ctx.notes))


def _check(before: Graph, after: Graph) -> None:
    if after is not before:
        verify(after, stage_of(after))
        if interface(before) != interface(after):
            raise IRError("the pass changed the graph's parameters, the number of operands of a return, or lost an address")
    if verify_level() >= 3 and parse(print_graph(after)) != after:
        raise IRError("the graph does not survive being printed and parsed")


def interface(graph: Graph) -> object:
    """Return the interface that no pass may change: parameters, shapes of returns, and the addresses of the program's
    requests."""
    returns = [len(op.operands) for op in graph.ops() if op.kind == "return"]
    asked = [(op.attr("stream"), op.attr("ordinal")) for op in graph.ops() if op.kind in ("gen", "select")]
    asked += [item for op in graph.ops() if op.kind in ("gen", "select") for item in op.attr("also", ())]
    return graph.params, returns, Counter(asked)


# -- failing ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")
REPRODUCERS = 100  # files that are kept


def _blame(p: Pass | None, graph: Graph, passes: Sequence[Pass], target: Target, work: Callable[[], T]) -> T:
    try:
        return work()
    except LmcError as e:
        if not isinstance(e, IRError):
            raise
        cause: Exception = e
    except Exception as e:
        cause = e
    try:
        command = _reproducer(graph, passes, target)
    except OSError as e:
        command = f"a reproducer, which could not be written ({e}); set LMC_CACHE_DIR"
    who = f"pass {p.name}" if p else "the pipeline"
    raise IRError(
        f"{who} failed on @{graph.name}: {type(cause).__name__}: {cause}\n    reproduce with: {command}",
        loc=getattr(cause, "loc", None),
    ) from cause


def _reproducer(graph: Graph, passes: Sequence[Pass], target: Target) -> str:
    """Write the graph to a file whose first line is the command that fails; return the command."""
    text = print_graph(graph)
    directory = cache_dir() / "reproducers"
    directory.mkdir(exist_ok=True)
    name = re.sub(r"\W+", "-", graph.name)[:40]
    path = directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.lmir"
    command = f"lmc opt {path} --passes={shlex.quote(print_pipeline(passes))}{_options(target)}"
    path.write_text(f"// {command}\n// chat template: {target.template.name}\n{text}", encoding="utf-8")
    keep_newest(directory, REPRODUCERS)
    return command


def _options(target: Target) -> str:
    """Return the `lmc opt` options of a target. A model's own template has no name there; it is in the comment."""
    kind = f" --target={target.kind}" if target.kind != "tokens" else ""
    kind += " --greedy" if target.greedy else ""
    named = target.template is not CHATML and known_chat_template(target.template)
    return kind + (f" --template={shlex.quote(target.template.name)}" if named else "")


# -- showing ---------------------------------------------------------------------------------------------------------


def _wants(name: str) -> bool:
    wanted = settings().print_ir
    return wanted == "after-all" or (wanted.startswith("after=") and name in wanted.removeprefix("after=").split(","))


def _show(graph: Graph, when: str, wanted: bool) -> None:
    if wanted:
        print(f"// -- {when}\n{print_graph(graph)}", file=sys.stderr)
