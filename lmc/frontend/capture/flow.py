"""Where the values in a part of a program come from, by its source: so what a change of one of them may change, too.

A `Source` of a value is a name that it may be (or be inside of), or, of a new value (fresh), what that may hold. Other
syntax than the rules know gives all of its names.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lmc.frontend.scopes import Bindings

CHANGING = frozenset({
    "append", "extend", "insert", "pop", "remove", "clear", "add", "update", "setdefault", "sort", "discard", "popleft", "appendleft", "reverse",
    "popitem", "extendleft", "rotate", "intersection_update", "difference_update", "symmetric_difference_update", "subtract", "move_to_end",
    "write", "__setitem__", "__delitem__", "__next__", "send",
})  # fmt: skip
"""Methods that change what they are called on (by name: of lists, dicts, sets …)."""
SAYING = frozenset({"join", "user", "assistant", "system", "fork", "set_var", "each", "__iadd__", "copy", "var_scope"})
"""Methods that change a state."""
_PLAIN = frozenset("len str int float repr bool abs round ord chr isinstance hash id format print any all range hasattr".split())
"""Builtins that give nothing that can be changed, and keep nothing."""
_NEW = frozenset("list tuple set frozenset dict sorted zip enumerate map filter reversed".split())
"""Builtins that give something new, which holds what they get or parts of it."""
_OF_TEXT = frozenset("strip lstrip rstrip lower upper title split splitlines replace format startswith endswith join encode isdigit".split())
_PARTS = frozenset("get values items keys pop popleft popitem setdefault".split())
ANYTHING = "*"
"""Instead of a name: any that the part reads."""
LATER = "@later"
"""Instead of a name: what functions in the part do, with what their names are then."""

Loop = ast.For | ast.AsyncFor | ast.comprehension
Source = tuple[str, bool, bool]
"""Name, whether the value is a new one that holds it, whether it is what the name holds."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OF_ANYTHING = {(ANYTHING, False, False)}
_OF_LATER = _OF_ANYTHING | {(LATER, False, False)}
Names = frozenset[str]
Origins = tuple[frozenset[str], frozenset[str]]
"""Names that a value may be, and names that it may be inside of."""


def sources(node: ast.AST | None) -> set[Source]:
    """Return the sources of an expression's value."""
    match node:
        case None | ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return set()
        case ast.Name(name):
            return {(name, False, False)}
        case ast.Attribute(value, "__dict__") | ast.NamedExpr(_, value) | ast.Await(value):
            return sources(value)
        case ast.Attribute(value) | ast.Subscript(value) | ast.Starred(value):
            return inside(sources(value))
        case ast.IfExp(_, then, orelse):
            return sources(then) | sources(orelse)
        case ast.BoolOp(_, values):
            return _of_all(values)
        case ast.BinOp(left, _, right):
            return holding(inside(sources(left) | sources(right)))
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return holding(_of_all(items))
        case ast.Dict(_, values):
            return holding(any_of(_of_all(values)) if None in node.keys else _of_all(values))
        case ast.ListComp(element) | ast.SetComp(element) | ast.GeneratorExp(element) | ast.DictComp(_, element):
            return holding(sources(element))
        case ast.Call(fn, args, keywords):
            given = [*args, *(k.value for k in keywords)]
            method = fn.attr if isinstance(fn, ast.Attribute) else ""
            if method in _OF_TEXT or method == "fork" or (isinstance(fn, ast.Name) and fn.id in _PLAIN):
                return set()
            if isinstance(fn, ast.Name) and fn.id in _NEW:
                return holding(any_of(_of_all(given)))
            if method in _PARTS:
                return inside(sources(fn.value)) | _of_all(given)  # pyright: ignore[reportAttributeAccessIssue]
            return {(result_of(node), False, False)}
        case _:
            names = {(x.id, False, False) for x in ast.walk(node) if isinstance(x, ast.Name)}
            return any_of(names | {(LATER, False, False)} if isinstance(node, ast.Lambda) else names)


def result_of(call: ast.Call) -> str:
    """Return a name for what a call gives: its sources are what it is given, unless the function is known to give something else."""
    return f"result {id(call)}"


def _of_all(nodes: Iterable[ast.AST | None]) -> set[Source]:
    return {source for node in nodes for source in sources(node)}


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def inside(found: set[Source]) -> set[Source]:
    """Return the sources of what a value holds."""
    return {(name, False, True) for name, _, _ in found} | {(name, new, deep) for name, fresh, deep in found if fresh for new in (False, True)}


def holding(found: set[Source]) -> set[Source]:
    """Return the sources of a new value that holds a value."""
    return {(name, True, deep) for name, _, deep in found}


def any_of(found: set[Source]) -> set[Source]:
    """Return the sources of a value that may be another, be inside of it, or hold it."""
    return found | inside(found) | holding(found)


@dataclass(frozen=True, slots=True)
class CallFlow:
    """A call with the origins of its function (of a method: of what it is called on) and of its arguments, by position or name (None: any). `root`: the
    name that its function begins with, unless the part binds that."""

    node: ast.Call
    root: str | None
    method: str
    fn: Origins
    args: Sequence[tuple[int | str | None, Origins]]


@dataclass(frozen=True, slots=True)
class Flow:
    """What a part of a program may change, as far as the source tells it.

    changed   origins of what it changes in place
    said      those that may be states
    items     those of which it takes items, which a defaultdict may make
    held      of what it gives something to hold, with those of that
    bound     by name, those of what it binds it to
    calls     calls that it makes
    """

    changed: Origins
    said: Origins
    items: Origins
    held: Sequence[tuple[Origins, Origins]]
    bound: Mapping[str, Origins]
    calls: Sequence[CallFlow]


class Scan:
    """Bindings and changes of a part of a program.

    bound    names that it binds, other than by augmented assignment
    appends  targets of augmented assignment: it changes their objects, or rebinds them
    loads    names that it reads
    globals, nonlocals  names that it, or a function in it, declares so
    stores   attributes that it sets
    given    names that it reads other than to call them
    names    all names in it
    edges    by name, the sources of what it is bound to or given to hold; of calls, by the names of their results
    """

    def __init__(self, nodes: Sequence[ast.AST], over: Loop | None) -> None:
        self.edges = defaultdict[str, set[Source]](set)
        self.changed, self.said, self.items, self.returned = set[Source](), set[Source](), set[Source](), set[Source]()
        self.held = list[tuple[set[Source], set[Source]]]()
        self.binds, self.stores, self.attributes, self.calls = set[str](), set[str](), set[str](), list[ast.Call]()
        every = [x for node in nodes for x in ast.walk(node)]
        named = [x for x in every if isinstance(x, ast.Name)]
        self.globals, self.nonlocals = ({name for x in every if isinstance(x, kind) for name in x.names} for kind in (ast.Global, ast.Nonlocal))
        own = Bindings(nodes)
        self.bound, self.appends = {*(own.bound - own.appends), *self.globals, *self.nonlocals}, {*own.appends}
        self.loads = {x.id for x in named if isinstance(x.ctx, ast.Load)} | self.appends
        for node in every:
            self._read(node)
        self.returned |= any_of(_of_all([node for node in nodes if isinstance(node, ast.expr)]))
        loads = self.loads
        if over is not None:
            self._bind(over.target, inside(sources(over.iter)))
            for call in (x for x in ast.walk(over.iter) if isinstance(x, ast.Call)):
                self._give(call)
            loads = loads | {x.id for x in ast.walk(over.iter) if isinstance(x, ast.Name)}
        called = {id(call.func) for call in self.calls}
        called |= {id(x) for call in self.calls if isinstance(call.func, ast.Name) and call.func.id in _PLAIN for x in call.args}
        self.given = {x.id for x in named if isinstance(x.ctx, ast.Load) and id(x) not in called}
        self.reads_frame = any(isinstance(call.func, ast.Name) and call.func.id in ("exec", "locals", "globals", "vars") for call in self.calls)
        self.names = loads | self.binds | self.bound | {x.id for x in named}
        self.names |= {LATER} if any(isinstance(x, FUNCTIONS) for x in every) else set()
        self.edges[ANYTHING] = any_of({(name, False, False) for name in loads})
        self._flows: dict[Names, Flow] = {}

    @cached_property
    def roots(self) -> dict[ast.Call, str]:
        """Return the names that the functions of its calls begin with, unless it binds them."""
        return {call: root for call in self.calls if (root := _root(call.func)) is not None and root not in self.binds}

    @cached_property
    def is_quiet(self) -> bool:
        """Return whether it changes nothing that it is given, but by operators on it."""
        plain = all(isinstance(call.func, ast.Name) and call.func.id in _PLAIN for call in self.calls)
        noisy = (self.changed, self.said, self.stores, self.reads_frame, self.nonlocals, self.globals, self.appends, LATER in self.names)
        return plain and not any(noisy)

    @cached_property
    def gives(self) -> Names:
        """Return the names that what it returns, or its value, may be or be a part of."""
        return frozenset().union(*self.origins(self.returned))

    def origins(self, found: Iterable[Source], fresh_results: Names = frozenset(), holds: bool = False) -> Origins:
        """Return the origins of a value with these sources, where these results hold nothing that the calls are given. `holds`: and of what new values hold
        that it binds names to."""
        todo, seen = [(name, deep) for name, fresh, deep in found if holds or not fresh], set[tuple[str, bool]]()
        while todo:
            if (one := todo.pop()) in seen:
                continue
            seen.add(one)
            name, whole = one[0], not one[1]
            for other, fresh, deep in self.edges.get(name, ()) if name not in fresh_results else ():
                if whole:
                    todo += [] if fresh and not (holds and name in self.binds) else [(other, deep)]
                else:
                    todo += [(other, True)] if deep or not fresh else [(other, False), (other, True)]
        names = [frozenset([name for name, deep in seen if deep is inside and name in self.names]) for inside in (False, True)]
        return names[0], names[1]

    def flow(self, fresh_results: Names) -> Flow:
        if fresh_results not in self._flows:
            self._flows[fresh_results] = self._flow(fresh_results)
        return self._flows[fresh_results]

    def _flow(self, fresh_results: Names) -> Flow:
        any_in = lambda found: self.origins(found, fresh_results, holds=True)
        of = lambda node: any_in(sources(node))
        calls: list[CallFlow] = []
        for node in self.calls:
            if isinstance(node.func, ast.Name) and self.edges.get(node.func.id) == _OF_LATER:
                continue  # a function of its own, with any arguments
            args = [(None if isinstance(x, ast.Starred) else i, of(x)) for i, x in enumerate(node.args)]
            fn, method = (node.func.value, node.func.attr) if isinstance(node.func, ast.Attribute) else (node.func, "")
            calls.append(CallFlow(node, self.roots.get(node), method, of(fn), (*args, *((k.arg, of(k.value)) for k in node.keywords))))
        held = [(self.origins(to, fresh_results), any_in(found)) for to, found in self.held]
        changed, said, items = [self.origins(found, fresh_results) for found in (self.changed, self.said, self.items)]
        bound = {name: any_in(self.edges.get(name, ())) for name in self.bound | self.appends}
        return Flow(changed, said, items, held, bound, calls)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets, value):
                for target in targets:
                    self._bind(target, sources(value))
            case ast.AnnAssign(target, _, value) | ast.NamedExpr(target, value):
                self._bind(target, sources(value))
            case ast.AugAssign(target, _, value):
                self._hold(target, sources(value) | inside(sources(value)))
                self.said |= sources(target)
            case ast.For(target, items) | ast.AsyncFor(target, items) | ast.comprehension(target, items):
                self._bind(target, inside(sources(items)))
            case ast.withitem(manager, ast.AST() as target):
                self._bind(target, any_of(sources(manager)))
            case ast.ClassDef(name, bases):
                self._bind(ast.Name(name), _OF_LATER | _of_all(bases) | {(name, False, False)})
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                self._bind(ast.Name(name), _OF_LATER)
            case ast.arg(name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)) | ast.MatchMapping(rest=str(name)):
                self._bind(ast.Name(name), _OF_ANYTHING)
            case ast.Return(value) | ast.Yield(value) | ast.YieldFrom(value):
                self.returned |= any_of(sources(value))
            case ast.Subscript(value, ctx=ast.Store() | ast.Del()):
                self.changed |= sources(value)
            case ast.Subscript(value):
                self.items |= sources(value)
            case ast.Attribute(value, name, ctx):
                (self.attributes if isinstance(ctx, ast.Load) else self.stores).add(name)
                if name in SAYING and (name != "fork" or isinstance(value, ast.Name)):  # a state that an object holds keeps its prompt
                    self.said |= sources(value)
                elif name in CHANGING or not isinstance(ctx, ast.Load):  # a method may be called later
                    self.changed |= sources(value)
            case ast.Call(fn, args, keywords):
                self.calls.append(node)
                if isinstance(fn, ast.Name) and fn.id == "type":
                    self.attributes.add("__class__")
                elif isinstance(fn, ast.Name) and fn.id == "setattr" and len(args) == 3:
                    self.stores.add(str(args[1].value) if isinstance(args[1], ast.Constant) else ANYTHING)
                    self.changed |= sources(args[0])
                    self._hold(args[0], sources(args[2]))
                self._give(node)
                self._pass(fn, [*args, *(k.value for k in keywords)])
            case _:
                pass

    def _give(self, call: ast.Call) -> None:
        """Assume that what a call gives is, holds or is part of what it is given."""
        of = sources(call.func.value) if isinstance(call.func, ast.Attribute) else inside(sources(call.func))  # no function gives itself
        self.edges[result_of(call)] = any_of(of | _of_all([*call.args, *(k.value for k in call.keywords)]))

    def _pass(self, fn: ast.expr, given: list[ast.expr]) -> None:
        """Assume that a function keeps any of its arguments in another."""
        if isinstance(fn, ast.Attribute):
            if given and fn.attr in CHANGING and isinstance(fn.value, ast.Name) and fn.value.id in ("list", "dict", "set"):
                self.changed |= _of_all(given[:1])
                self._hold(given[0], any_of(_of_all(given[1:])))
            elif fn.attr in CHANGING or fn.attr == "set_var":
                self._hold(fn.value, any_of(_of_all(given)))
            given += [fn.value] if fn.attr not in _OF_TEXT else []
        elif isinstance(fn, ast.Name) and fn.id in (*_PLAIN, "setattr"):  # which `_read` knows
            return
        for one in given:
            self._hold(one, _of_all([other for other in given if other is not one]), may=True)

    def _bind(self, target: ast.AST, found: set[Source]) -> None:
        match target:
            case ast.Name(name):
                self.edges[name] |= found
                self.binds.add(name)
            case ast.Tuple(items) | ast.List(items):
                for item in items:
                    self._bind(item, inside(found))
            case ast.Starred(value):
                self._bind(value, holding(found))
            case ast.Attribute(value) | ast.Subscript(value):
                self._hold(value, found)
            case _:
                pass

    def _hold(self, node: ast.AST, found: set[Source], may: bool = False) -> None:
        """Note that a value is given others to hold. `may`: assume so of what other code does, as long as that is not followed."""
        for name, _, _ in sources(node):
            self.edges[name] |= holding(found)
        if found and not may:
            self.held.append((sources(node), found))
