"""Code: a planned graph compiled to instructions, with every value given a slot. One rule an op."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from lmc.backend.base import check_supported
from lmc.backend.instructions import (
    ALL,
    EFFECT,
    LOOSE,
    RAISE,
    READ,
    Ask,
    Awaiting,
    CatchingAwait,
    CatchingHostCall,
    CatchingRead,
    CatchingReadPrompt,
    CatchingSimple,
    Const,
    Enter,
    Exit,
    Fetch,
    Get,
    Given,
    HostCall,
    Instruction,
    Prefill,
    Raise,
    Read,
    ReadPrompt,
    Release,
    Return,
    Run,
    Show,
    Simple,
    Switch,
    UnorderedCall,
    Visit,
    case_key,
)
from lmc.backend.pins import Pins
from lmc.checks import Since, Site, shown
from lmc.ir.core import DEFAULT, Case, Graph, Op, Operand, Symbol, Value
from lmc.ir.ops import GEN_PARAMS, trait
from lmc.prompt import Fixed, Image, Mark, Origin, Prompt, SamplingParams, Special, make_gen, make_select


class Changing:
    """Which objects of a run calls may have changed that come before: an unordered call that is handed one of them waits for those.

    Values that may hold each other count as one object; so do those of another branch.
    """

    def __init__(self, before: Sequence[Value]) -> None:
        """`before`: values of earlier code, with which anything may have happened."""
        self._with: dict[Value, Value] = {}
        self._changed: set[Value] = set()
        self._joined(before, True)

    def seen(self, op: Op, fn: object) -> bool:
        """Takes note of a host call, the next in program order; whether what it is handed may have been changed."""
        handed = [v for v in op.operands if isinstance(v, Value) and v.type == "any"]
        found = any(self._root(v) in self._changed for v in handed)
        changes = trait(op) != "pure" and not op.attr("unordered") and id(fn) not in _ONLY_READ and op.operands[0].name not in _READS  # type: ignore[union-attr]
        self._joined([*handed, *[v for v in op.results if v.type == "any"]], changes and bool(handed))
        return found

    def _root(self, value: Value) -> Value:
        while (above := self._with.get(value, value)) is not value:
            value = above
        return value

    def _joined(self, values: Sequence[Value], changed: bool) -> None:
        roots = list(dict.fromkeys(map(self._root, values)))
        for other in roots[1:]:
            self._with[other] = roots[0]
        if changed or not self._changed.isdisjoint(roots):
            self._changed.update(roots[:1])


_ONLY_READ = frozenset(map(id, (len, list, tuple, str, repr, isinstance, type, print, sorted, sum, min, max, json.dumps)))
_READS = frozenset({f"py.{name}" for name in (
    "getitem", "getattr", "iter", "next", "in", "not_in", "eq", "ne", "lt", "le", "gt", "ge", "bool", "not", "format", "text", "unpack", "list", "dict", "set",
    "as_tuple", "match_sequence", "match_mapping", "read_list")})  # fmt: skip


class Code:
    """A planned graph as instructions. `bound` places the parameters of a continuation: slots or constants.

    pins  where pins of the program's own beginnings are kept between runs
    """

    def __init__(
        self,
        graph: Graph,
        *,
        strict: bool = False,
        bound: Sequence[int | Const] | None = None,
        first: int = 0,
        pins: Pins | None = None,
    ) -> None:
        self.graph = graph
        self.pins = Pins() if pins is None else pins
        self.strict = strict  # what the model is asked waits for everything before it (opt=0)
        self._place: dict[Value, int | Const] = {}
        self.loose: set[int] = set()  # slots of values computed from what unordered calls gave
        self.changing = Changing(() if bound is None else graph.params) if any(op.attr("unordered") for op in graph.ops()) else None
        self.slots = self.first = first
        self._asks = count()
        self.since: dict[Value, Since] = {}  # prompts whose text since their last answer is known, but for its values
        for i, param in enumerate(graph.params):
            self._place[param] = bound[i] if bound is not None else self._new()
        blocks: dict[str, list[Instruction]] = {b.label: [] for b in graph.blocks}
        for block in graph.blocks:  # a block stands after its predecessor
            blocks[block.label].extend([_RULES[op.kind](self, op) for op in block.ops])
            blocks[block.label].append(self._terminator(block.terminator, blocks))
        for block in graph.blocks:
            end = blocks[block.label][-1]
            if isinstance(end, Switch):
                for _, label in block.terminator.cases:
                    last = blocks[label][-1]
                    if isinstance(last, Exit) and not isinstance(last.switch, Switch) and last.reason is None:
                        last.switch = end
        self.entry: Sequence[Instruction] = blocks[graph.entry.label]
        if bound is not None:
            blocks[graph.entry.label].insert(0, Enter(self.slots))

    def visit(self, op: Op) -> Visit:
        """When the plan wants an ask to be visited, and with whom."""
        place = next(self._asks)
        group, members = op.attr("group", (None, 1))
        constant = self.graph.constants[op.attrs["constraint"].name] if "constraint" in op.attrs else None  # type: ignore
        longest = constant.attr("longest") if constant is not None else None
        reserve = None if longest is None else longest + 1
        return Visit((self.first, op.attr("order", place)), group, members, op.attr("ways", (0, 1)), reserve, self._covers(op))

    def site(self, op: Op, places: Sequence[tuple[str, int]]) -> Site | None:
        """Where an ask is, if what its prompt has since the last answer is text for certain, and where."""
        since = self.since.get(op.operands[0])  # type: ignore[arg-type]  # a prompt is a value
        return Site(places, since) if since is not None and since.certain else None

    def _covers(self, op: Op) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """What the plan says that one request can cover besides a gen: texts, and the attributes of the gens behind them."""
        template: tuple[Any, ...] = op.attr("lookahead", ())
        if not template:
            return ()
        gens = {(o.attr("stream"), o.attr("ordinal")): o.attrs for o in self.graph.ops() if o.kind == "gen"}
        return tuple((text, gens[tuple(key)]) for text, key in zip(template[::2], template[1::2], strict=True))

    def constraint(self, op: Op) -> dict[str, Any]:
        """The constraint of a gen as a parameter; a dtype that became a constant is given as itself."""
        if "constraint" not in op.attrs or "dtype" in op.attrs:
            return {}
        constant = self.graph.constants[op.attrs["constraint"].name]  # type: ignore[union-attr]  # always a symbol
        *kind, source = constant.operands
        return {kind[0] if kind else "regex": source}  # type: ignore[dict-item]

    # places of values

    def _new(self) -> int:
        self.slots += 1
        return self.slots - 1

    def out(self, value: Value) -> int:
        slot = self._place[value] = self._new()
        return slot

    def outs(self, op: Op) -> int:
        """The slot of an op's first result; those of its other ones follow."""
        first, *_ = [self.out(v) for v in op.results] or [self._new()]
        return first

    def place(self, operand: Operand) -> int | Const:
        """Where an operand's run-time value is: a slot, or here."""
        if isinstance(operand, Value):
            return self._place[operand]
        if isinstance(operand, Symbol):
            return Const(self.graph.symbols[operand.name])
        return Const(operand)

    def slot(self, operand: Operand) -> int:
        place = self.place(operand)
        assert isinstance(place, int), f"{operand} is a constant"
        return place

    def deps(self, *operands: Operand) -> tuple[int, ...]:
        places = [self.place(x) for x in operands]
        return tuple(dict.fromkeys(p for p in places if isinstance(p, int)))

    def get(self, operand: Operand) -> Get:
        place = self.place(operand)
        if isinstance(place, int):
            return lambda env: env[place]
        constant = place.value
        return lambda env: constant

    def fetch(self, operands: Sequence[Operand]) -> Fetch:
        """All operands' values as a new list."""
        places = [self.place(x) for x in operands]
        if not any(isinstance(p, int) for p in places):
            constants = [p.value for p in places if isinstance(p, Const)]
            return lambda env: list(constants)
        template = [None if isinstance(p, int) else p.value for p in places]
        holes = [(i, p) for i, p in enumerate(places) if isinstance(p, int)]
        if len(holes) == len(places):
            slots = [p for _, p in holes]
            return lambda env: [env[s] for s in slots]

        def fill(env: list[Any]) -> list[Any]:
            values = template.copy()
            for i, slot in holes:
                values[i] = env[slot]
            return values

        return fill

    # terminators

    def _terminator(self, op: Op, blocks: Mapping[str, list[Instruction]]) -> Instruction:
        match op.kind:
            case "switch":
                switch = Switch(self.deps(*op.operands), op.loc, self.get(op.operands[0]))
                for case, label in op.cases:
                    if case is DEFAULT:
                        switch.default = blocks[label]
                    else:
                        switch.arms[case_key(self._case(case))] = blocks[label]
                return switch
            case "return":
                value, prompt, *held = op.operands
                return Return(
                    self.deps(*op.operands), op.loc, self.get(value), self.get(prompt), self.fetch(held), op.attrs
                )
            case "raise":
                error, prompt, *held = op.operands
                return Raise(
                    self.deps(*op.operands), op.loc, self.get(error), self.get(prompt), self.fetch(held), op.attrs
                )
            case "exit":
                return Exit(self, op.loc, op.attr("reason"), tuple(self.place(x) for x in op.operands))
            case _:
                raise NotImplementedError(f"the executor has no rule for {op.kind}")

    def _case(self, case: Case) -> Any:
        return self.graph.symbols[case.name] if isinstance(case, Symbol) else case


def _append(code: Code, op: Op) -> Instruction:
    ctx, *parts = op.operands
    at = code.slot(ctx)
    since = code.since.get(ctx)  # type: ignore[arg-type]  # a prompt is a value
    if since is not None:
        places = map(code.place, parts)
        certain = all(p.type == "str" for p in parts if isinstance(p, Value))
        code.since[op.results[0]] = since.with_parts([p if isinstance(p, int) else shown((p.value,)) for p in places], certain=certain)
    if all(isinstance(p, str | Special | Mark) for p in parts):
        fixed = Fixed(parts)  # type: ignore[arg-type]
        return Simple(code.deps(ctx), 0, op.loc, code.out(op.results[0]), lambda run: run.env[at].append_fixed(fixed))
    fetch = code.fetch(parts)
    return Simple(code.deps(*op.operands), 0, op.loc, code.out(op.results[0]), lambda run: run.env[at].append(*fetch(run.env)))


def _new(code: Code, op: Op) -> Instruction:
    code.since[op.results[0]] = Since(None)
    return Simple((), 0, op.loc, code.out(op.results[0]), lambda run: Prompt())


def _concat(code: Code, op: Op) -> Instruction:
    fetch = code.fetch(op.operands)
    return Simple(code.deps(*op.operands), 0, op.loc, code.out(op.results[0]), lambda run: "".join(fetch(run.env)))


def _image(code: Code, op: Op) -> Instruction:
    prompt, fetch = code.get(op.operands[0]), code.fetch(op.operands[1:])

    def compute(run: Run) -> Prompt:
        image = Image(*fetch(run.env))
        check_supported(run.backend.capabilities, (image,))
        return prompt(run.env).append(image)

    return Simple(code.deps(*op.operands), RAISE, op.loc, code.out(op.results[0]), compute)


def _given(code: Code, op: Op) -> Instruction:
    deps, values = code.deps(*op.operands), code.fetch(op.operands)
    return Given(deps, op.loc, tuple(map(code.out, op.results)), op.attr("params"), values, op.attr("ord"))


_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def _gen(code: Code, op: Op) -> Instruction:
    given: dict[str, Any] = {k: op.attrs[k] for k in GEN_PARAMS if k in op.attrs} | code.constraint(op)
    if given.get("dtype") in _TYPES:
        given["dtype"] = _TYPES[given["dtype"]]
    names: tuple[str, ...] = op.attr("params", ())
    fetch = code.fetch(op.operands[1:])
    stream, ordinal, name, loc = op.attr("stream"), op.attr("ordinal"), op.attr("name"), op.loc
    known: dict[SamplingParams, Any] = {}  # requests that are the same in every run

    def make(run: Run) -> Any:
        if not names and (same := known.get(run.defaults)) is not None:
            return same
        full = {**given, **dict(zip(names, fetch(run.env), strict=True))} if names else given
        ask = make_gen(run.defaults, full, Origin(run.seed, run.item, run.stream + stream, ordinal), name, loc)
        if not names and ask.params.temperature == 0:
            known[run.defaults] = ask
        return ask

    return _ask(code, op, make)


def _ask(code: Code, op: Op, make: Callable[[Run], Any]) -> Ask:
    """What gen and select have in common: the request that `make` gives, asked of the op's prompt."""
    outs = tuple(map(code.out, op.results))
    keys = (op.attr("stream"), op.attr("ordinal")), *op.attr("also", ())
    site = code.site(op, keys)
    code.since[op.results[0]] = Since(outs[1])
    return Ask(
        code.deps(*op.operands),
        ALL if code.strict else RAISE,
        op.loc,
        outs,
        code.slot(op.operands[0]),
        keys,
        make,
        code.visit(op),
        site,
    )


def _select(code: Code, op: Op) -> Instruction:
    names: tuple[str, ...] = op.attr("params", ())
    operands = op.operands[1:]
    count = len(operands) - len(names)
    fetch = code.fetch(operands)
    stream, ordinal = op.attr("stream"), op.attr("ordinal")
    fixed = {"method": op.attr("method"), "temperature": op.attr("temperature", 0.0)}

    def make(run: Run) -> Any:
        values = fetch(run.env)
        given = {**fixed, **dict(zip(names, values[count:], strict=True))}
        origin = Origin(run.seed, run.item, run.stream + stream, ordinal)
        return make_select(values[:count], given["temperature"], given["method"], origin, op.attr("name"), op.loc)

    return _ask(code, op, make)


def _read(code: Code, op: Op) -> Instruction:
    deps = code.deps(*op.operands)
    source = code.slot(op.operands[0])
    kind = CatchingRead if op.attr("catch") else Read
    return kind(deps, op.loc, code.outs(op), source)


def _read_prompt(code: Code, op: Op) -> Instruction:
    prompt = code.get(op.operands[0])
    if op.kind == "ctx.slice":
        since = code.get(op.operands[1])
        view: Callable[[Run], Any] = lambda run: prompt(run.env).text(since(run.env))
    elif op.kind == "ctx.text":
        view = lambda run: prompt(run.env).text()
    else:
        view = lambda run: prompt(run.env).messages()
    kind = CatchingReadPrompt if op.attr("catch") else ReadPrompt
    return kind(code.deps(*op.operands), op.loc, code.outs(op), code.slot(op.operands[0]), view)


def _host(code: Code, op: Op) -> Instruction:
    symbol, *operands = op.operands
    assert isinstance(symbol, Symbol)
    fn = code.graph.symbols[symbol.name]
    deps, fetch, kwargs = code.deps(*operands), code.fetch(operands), op.attr("kwargs", ())
    out, catch = code.outs(op), op.attr("catch")
    unordered = bool(op.attr("unordered")) and not code.strict
    if unordered or not code.loose.isdisjoint(deps):
        code.loose.add(out)
    changing = code.changing is not None and code.changing.seen(op, fn)
    if trait(op) != "pure":
        kind = _TYPES.get(op.results[0].type) if op.results else None
        if op.attr("awaits"):
            awaiting = CatchingAwait if catch else Awaiting
            call = awaiting(deps, op.loc, out, fn, fetch, kwargs, op.attr("ord"), kind, False)
            call.effect = op.attr("ord") is not None and not op.attr("ordered")
            return call
        make = CatchingHostCall if catch else UnorderedCall if unordered else HostCall
        call = make(deps, op.loc, out, fn, fetch, kwargs, op.attr("ord"), kind, bool(op.attr("inline")))
        call.within = bool(op.attr("within"))
        call.effect = op.attr("ord") is not None and not op.attr("ordered")
        if unordered and changing:
            call.waits = EFFECT
        return call
    simple = CatchingSimple if catch else Simple
    marks = 0 if op.attr("total") or catch else LOOSE if out in code.loose else READ if symbol.name == "py.text" else RAISE  # as what it is appended to
    if not kwargs:
        return simple(deps, marks, op.loc, out, lambda run: fn(*fetch(run.env)))
    n = len(operands) - len(kwargs)

    def compute(run: Run) -> Any:
        values = fetch(run.env)
        return fn(*values[:n], **dict(zip(kwargs, values[n:], strict=True)))

    return simple(deps, marks, op.loc, out, compute)


def _show(code: Code, op: Op) -> Instruction:
    prompt, *held = op.operands
    return Show(code.deps(*op.operands), op.loc, code.get(prompt), code.fetch(held), op.attrs)


def _prefill(code: Code, op: Op) -> Instruction:
    shared = code.pins if op.attr("scope") == "program" else None
    spare = op.attr("scope") == "spare"
    return Prefill(code.deps(*op.operands), op.loc, code.slot(op.operands[0]), shared, spare)


def _release(code: Code, op: Op) -> Instruction:
    return Release(code.deps(*op.operands), op.loc, code.slot(op.operands[0]))


_RULES: Mapping[str, Callable[[Code, Op], Instruction]] = {
    "ctx.new": _new, "append": _append, "image": _image, "video": _image, "ctx.text": _read_prompt, "ctx.slice": _read_prompt,
    "ctx.messages": _read_prompt, "concat": _concat, "given": _given, "gen": _gen, "select": _select, "read": _read, "host.call": _host,
    "show": _show, "prefill": _prefill, "release": _release,
}  # fmt: skip
