"""The trace trees of a program: one for each list of argument types and state of the outside. Finds a run's, and traces what is not known.

A tree itself is frontend/tree.py; when it applies, traced.py; when tracing is worth its time, growth.py.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from lmc.config import log, logs, settings
from lmc.errors import ProgramError
from lmc.frontend import reach, tracer
from lmc.frontend.arguments import Parameters
from lmc.frontend.interpreter import Function
from lmc.frontend.primitives import caller_loc
from lmc.frontend.tree import Decision, Site, Switch, Tree, decision_of
from lmc.frontend.values import TraceEscape
from lmc.ir.core import Value as IRValue
from lmc.jit.notices import Notices, Stats
from lmc.jit.traced import Traced
from lmc.saved import SavedFile

MAX_TREES = 8
"""Trace trees of one program for one list of argument types; further states of the outside run in the interpreter."""
MAX_SHAPES = 64
"""Lists of argument types, lengths of `*args` and names of `**kwargs` of one program; further ones run in the interpreter."""
AHEAD_DEPTH = 3
AHEAD_TRACES = 8
"""How far arms of decisions with few answers are explored before a run takes them."""

Types = tuple[str, ...]
"""What runs have in common that may share a tree: the types of their arguments, how many and which there are, whether others watch."""


class Trees:
    """All trees of one program. `lock` is held while one grows or is planned."""

    def __init__(self, function: Function, stats: Stats, notices: Notices) -> None:
        self.function, self.stats, self.notices = function, stats, notices
        self.parameters = Parameters(function.signature)
        self.by_types: dict[Types, list[Traced]] = {}
        self.lock = threading.RLock()
        self.interpreted: str | None = None  # why, if nothing of the program can be captured
        self.saved: SavedFile | None = None  # the file that the program is of

    # -- the tree of a run

    def captured(self) -> bool:
        """Whether anything of the program is, or is to be (LMC_JIT). Says why it cannot be."""
        if self.interpreted is not None:
            self.notices.say(f"{self.function.name} runs in the interpreter: {self.interpreted}")
            return False
        return settings().jit

    def find(self, arguments: inspect.BoundArguments, values: Sequence[Any], watched: bool = False) -> Traced | None:
        """The tree for these arguments and the outside as it is now; a new one if there is none. None: the interpreter runs all of it."""
        if not self.captured() or self._handed_language(values):
            return None
        if self.saved is not None and not self.saved.linked:
            self._link(self.saved)
        types = tuple([_type_of(v) for v in values])
        key = (*types, *self.parameters.shape(arguments), *(("watched",) if watched else ()))
        for traced in self.by_types.get(key, ()):
            if traced.applies() and not traced.outgrown:
                return traced
        with self.lock:
            return self._find_again(key, arguments, types, watched)

    def _handed_language(self, values: Sequence[Any]) -> bool:
        for value in values:
            if value.__class__ is not str and reach.holds_language(value):
                self.notices.say(f"{self.function.name} runs in the interpreter when it is handed a state or an expression")
                return True
        return False

    def _find_again(self, key: Types, arguments: inspect.BoundArguments, types: Types, watched: bool) -> Traced | None:
        """The tree that is there by now, or a new one in place of those that were outgrown."""
        name = self.function.name
        if self.parameters.open and len(self.by_types) >= MAX_SHAPES and key not in self.by_types:
            self.notices.say(f"{name}: more than {MAX_SHAPES} forms of *args and **kwargs; further ones run in the interpreter")
            return None
        trees = self.by_types.setdefault(key, [])
        sites: frozenset[Site] = frozenset()
        for traced in tuple(trees):
            if not traced.applies():
                log("guards", f"{name}: a trace does not apply any more: {traced.missed()}")
            elif traced.outgrown:  # runs on it end in the interpreter; new ones get a better tree
                sites |= traced.tree.wanted
                trees.remove(traced)
            else:
                return traced
        if len(trees) >= MAX_TREES:
            self.notices.say(f"{name}: more than {MAX_TREES} states of the outside; further ones run in the interpreter")
            return None
        new = self._new(arguments, types, sites, watched)
        if new is not None:
            trees.insert(0, new)
        return new

    def _new(self, arguments: inspect.BoundArguments, types: Types, sites: frozenset[Site], watched: bool) -> Traced | None:
        """A tree with the path that is traced first; traced again while it finds containers that should be objects of the run."""
        params = tuple(IRValue(n, t) for n, t in zip(self.parameters.names(arguments), types, strict=True))  # type: ignore[arg-type]
        while True:
            traced = Traced(Tree(self.function.name, params, sites, watched), arguments)
            if self.grow(traced, ()) is not None:
                return None
            if not traced.outgrown:
                return traced
            sites = traced.tree.wanted

    # -- growing

    def grow(self, traced: Traced, path: tuple[Decision, ...]) -> str | None:
        """Traces a path, and explores the arms of decisions with few answers ahead. If the interpreter runs it: why."""
        name, start, before = self.function.name, time.perf_counter(), self.stats.traces
        try:
            self._explore(traced, path)
            return None
        except TraceEscape as escape:
            self.interpreted = escape.reason
            self.notices.say(f"{name} runs in the interpreter: {escape.reason}")
            return str(escape.reason)
        except tracer.Diverged as error:
            self.notices.say(f"{name}: {error}; this path runs in the interpreter")
            return str(error)
        finally:
            took = time.perf_counter() - start
            self.stats.trace_seconds += took
            if logs("trace"):
                shown = ", ".join(f"{p.name}: {p.type}" for p in traced.tree.params)
                log("trace", f"{name}: {self.stats.traces - before} traces for ({shown}), {traced.tree.size} ops, {took * 1e3:.1f} ms")

    def _explore(self, traced: Traced, path: tuple[Decision, ...]) -> None:
        todo = [(path, 0)]
        for count in range(AHEAD_TRACES):
            if not todo or (count and traced.large):
                break
            here, depth = todo.pop(0)
            self.stats.traces += 1
            traced.growth.traced()
            try:
                tracer.trace(traced.tree, self.function, traced.arguments, here)
            except tracer.Diverged:
                if not depth:
                    raise
                continue  # the run that comes there says it
            here, end = _followed(traced.tree, here)
            if end is not None and end.domain and depth < AHEAD_DEPTH and traced.growth.ahead:
                keys = [decision_of(x) for x in end.domain]
                todo += [((*here, k), depth + 1) for k in keys if k is not None and k not in end.arms]

    # -- before any call

    def ensure(self) -> None:
        """Traces for arguments of the annotated types if nothing was traced."""
        if not self.by_types and self.interpreted is None:
            self.find(*self._guessed())

    def _guessed(self) -> tuple[inspect.BoundArguments, list[Any]]:
        """Arguments of the annotated types (text where nothing is said), to trace with before any call."""
        samples = {str: "", int: 0, float: 0.0, bool: False, "str": "", "int": 0, "float": 0.0, "bool": False}
        given: dict[str, Any] = {}
        for name, parameter in list(self.function.signature.parameters.items())[1:]:
            if parameter.default is parameter.empty and name not in self.function.bound and parameter.kind not in _STARS:
                known = parameter.annotation is parameter.empty or parameter.annotation in samples
                given[name] = samples.get(parameter.annotation, "") if known else object()
        return self.completed(self.function.arguments((), given))

    def completed(self, bound: inspect.BoundArguments) -> tuple[inspect.BoundArguments, list[Any]]:
        """Arguments with their defaults, and what there is of them."""
        bound.apply_defaults()
        return bound, self.parameters.values(bound)

    # -- all of them

    def all(self) -> list[Traced]:
        return [traced for trees in self.by_types.values() for traced in trees]

    def latest(self) -> Tree | None:
        """The newest tree of the latest list of argument types, if there is one that others do not watch."""
        trees = [trees[0].tree for trees in reversed(self.by_types.values()) if trees]
        return next((tree for tree in trees if not tree.watched), trees[0] if trees else None)

    # -- as a file

    def trace_streams(self) -> None:
        """Traces for every tree what a stream of it looks like."""
        for key, trees in tuple(self.by_types.items()):
            if not trees or trees[0].tree.watched or (*key, "watched") in self.by_types:
                continue
            watched = self.find(trees[0].arguments, self.parameters.values(trees[0].arguments), watched=True)
            if watched is not None:
                for path in trees[0].tree.paths():
                    with contextlib.suppress(tracer.Diverged, TraceEscape):  # a stream that comes there needs the source
                        self._explore(watched, path)

    def current(self) -> dict[Types, Tree]:
        """The trees that apply now. Raises ProgramError if there is none."""
        found = {key: next((t.tree for t in trees if t.applies() and not t.outgrown), None) for key, trees in self.by_types.items()}
        if not any(found.values()):
            what = f"{self.function.described} cannot be saved: what it read of the outside has changed since; call it first"
            raise ProgramError(what, loc=caller_loc())
        return {key: tree for key, tree in found.items() if tree is not None}

    def use(self, saved: SavedFile) -> None:
        """The trees of a file, in place of those that are there."""
        self.saved = saved
        nothing = inspect.BoundArguments(self.function.signature, OrderedDict())
        self.by_types = {key: [Traced(tree, nothing, saved=True)] for key, tree in saved.trees()}

    def _link(self, saved: SavedFile) -> None:
        """Before the first call of a program of a file."""
        with self.lock:
            if not saved.linked:
                saved.link()
                self.use(saved)


_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _followed(tree: Tree, path: tuple[Decision, ...]) -> tuple[tuple[Decision, ...], Switch | None]:
    """Where a trace along a path has ended, by the answers that it expected; with the decision there, if it is one."""
    node = tree.node(path)
    while node is not None and isinstance(node.end, Switch) and node.end.expected in node.end.arms:
        path, node = (*path, node.end.expected), node.end.arms[node.end.expected]
    return path, node.end if node is not None and isinstance(node.end, Switch) else None


def _type_of(x: Any) -> str:
    return x.__class__.__name__ if x.__class__ in (str, int, float, bool) else "any"
