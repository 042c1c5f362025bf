"""Random graphs for property tests: every op kind, every literal, forks, unknown values, arms that go on, loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st

from lmc.errors import Loc
from lmc.ir.builder import Builder
from lmc.ir.core import DEFAULT, Graph, Op, Symbol, Value
from lmc.segments import Mark, Special

texts = st.one_of(
    st.sampled_from(
        [
            "",
            "a",
            "\n",
            "Judge its ",
            "Judge its clarity.",
            "Judge it well",
            "a longer text that is worth sharing. ",
            '"\\',
            "%c0",
        ]
    ),
    st.text(max_size=6),
)
literals = st.one_of(
    texts,
    st.integers(),
    st.floats(allow_nan=False),
    st.just(math.nan),
    st.booleans(),
    st.none(),
    st.binary(max_size=4),
)
SYMBOLS = ("fsm0", "a b", "größe.1")
symbols = st.sampled_from(SYMBOLS).map(Symbol)
names = st.one_of(st.sampled_from(["x", "out", "größe", "a.b"]), st.text(min_size=1, max_size=4))
attr_values = st.recursive(
    st.one_of(literals, symbols), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
locs = st.one_of(
    st.none(), st.builds(Loc, st.sampled_from(["judge.py", 'a "b".py']), st.integers(1, 999), st.integers(0, 80))
)
parts = st.one_of(
    texts,
    st.sampled_from([Special("<|im_start|>"), Special("<|im_end|>"), Mark("user", "begin"), Mark("user", "end")]),
)
roles = st.sampled_from(["system", "user", "assistant"])


@dataclass
class Scope:
    """Values that ops of a path may use."""

    prompts: list[Value] = field(default_factory=list)
    texts: list[Value] = field(default_factory=list)
    others: list[Value] = field(default_factory=list)

    def copy(self) -> Scope:
        return Scope(list(self.prompts), list(self.texts), list(self.others))

    def add(self, *values: Value) -> None:
        for v in values:
            {"ctx": self.prompts, "str": self.texts}.get(v.type, self.others).append(v)


@dataclass(frozen=True)
class Region:
    """The surroundings of a block: `goes_on` says what a `yield` in it gives, and `turn` what `break` and `continue` do; None: there is none."""

    goes_on: tuple[str, ...] | None = None
    turn: tuple[str, ...] | None = None


class Maker:
    """Draws one graph; `stage` decides which ops there are."""

    def __init__(self, draw, stage: str) -> None:
        self.draw, self.stage = draw, stage
        self.ordinal = 0
        self.b = Builder(draw(names), result=draw(st.sampled_from(["any", "str"])))

    def graph(self) -> Graph:
        scope = Scope()
        scope.add(self.b.param("essay", "str"), self.b.param("k", "any"))
        if self.draw(st.booleans()):
            scope.add(self.b.param("before", "ctx"))
        else:
            scope.add(*self.b.emit("ctx.new"))
        if self.draw(st.booleans()):
            self.b.constants["fsm0"] = Op("fsm", (self.draw(texts),), (), {"states": 3, "forced": 0.5})
        self.block(scope, 0, Region())
        return self.b.build("planned" if self.stage == "planned" else "traced")

    def block(self, scope: Scope, depth: int, region: Region) -> None:
        for _ in range(self.draw(st.integers(0, 9 if depth else 12))):
            self.op(scope)
        ends = ["return", "raise"]
        if depth < 3:
            ends = ["switch", "switch", "loop", *ends]
        if region.goes_on is not None:
            ends = ["yield", "yield", *ends]
        if region.turn is not None:
            ends = ["continue", "break", *ends]
        getattr(self, "end_" + self.draw(st.sampled_from(ends)))(scope, depth, region)

    def end_raise(self, scope: Scope, depth: int, region: Region) -> None:
        self.b.terminate("raise", (self.any(scope),), {}, self.draw(locs))

    def end_return(self, scope: Scope, depth: int, region: Region) -> None:
        names_ = tuple(self.draw(st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True)))
        rest = [self.any(scope) for _ in names_]
        self.b.terminate("return", (self.any(scope), self.prompt(scope), *rest), {"vars": names_}, self.draw(locs))

    def end_yield(self, scope: Scope, depth: int, region: Region) -> None:
        self.b.terminate("yield", self.carried(scope, region.goes_on or ()))

    def end_continue(self, scope: Scope, depth: int, region: Region) -> None:
        self.b.terminate("continue", self.carried(scope, region.turn or ()))

    def end_break(self, scope: Scope, depth: int, region: Region) -> None:
        self.b.terminate("break", self.carried(scope, region.turn or ()))

    def end_switch(self, scope: Scope, depth: int, region: Region) -> None:
        cases = self.draw(st.sampled_from([(True, False), ("a", DEFAULT), (DEFAULT,), (1, True, None, DEFAULT)]))
        on = self.any(scope)
        if cases == (True, False):
            (on,) = self.b.emit("py.eq", (self.any(scope), self.any(scope)), types=["bool"])
        arms = [(case, self.b.label(self.draw(st.sampled_from([None, "on"])))) for case in cases]
        then = self.b.label("then") if self.draw(st.booleans()) else None
        attrs = {"taken": tuple(range(len(arms)))} if self.draw(st.booleans()) else {}
        self.b.terminate("switch", (on,), attrs, self.draw(locs), cases=arms, then=then)
        types = self.types()
        for _, label in arms:
            self.b.at(label)
            self.block(scope.copy(), depth + 1, Region(None if then is None else types, region.turn))
        if then is not None:
            self.go_on(scope, then, types, depth, region)

    def end_loop(self, scope: Scope, depth: int, region: Region) -> None:
        body, then, types = self.b.label("body"), self.b.label("after"), self.types()
        self.b.terminate("loop", (self.any(scope), *self.carried(scope, types)), {}, self.draw(locs), cases=[(DEFAULT, body)], then=then)
        inside = scope.copy()
        inside.add(*(self.b.block_param(t, body) for t in types))
        self.b.at(body)
        self.block(inside, depth + 1, Region(types, types))
        self.go_on(scope, then, types, depth, region)

    def go_on(self, scope: Scope, label: str, types: tuple[str, ...], depth: int, region: Region) -> None:
        scope.add(*(self.b.block_param(t, label) for t in types))
        self.b.at(label)
        self.block(scope, depth + 1, region)

    def types(self) -> tuple[str, ...]:
        return self.draw(st.sampled_from([(), ("ctx",), ("ctx", "str"), ("any", "ctx", "ctx")]))

    def carried(self, scope: Scope, types: tuple[str, ...]) -> list:
        return [self.prompt(scope) if t == "ctx" else self.text(scope) if t == "str" else self.any(scope) for t in types]

    # -- ops

    def op(self, scope: Scope) -> None:
        kinds = "append append append append gen gen gen select concat ctx.new ctx.text ctx.slice ctx.messages image video py py unknown unknown"
        kinds += " role role" if self.stage == "traced" else " prefill prefill release" if self.stage == "planned" else ""
        getattr(self, "make_" + self.draw(st.sampled_from(kinds.split())).replace(".", "_"))(scope)

    def emit(self, scope: Scope, kind: str, operands=(), attrs=None, **kw) -> None:
        scope.add(*self.b.emit(kind, operands, attrs, self.draw(locs), **kw))

    def prompt(self, scope: Scope) -> Value:
        return self.draw(st.sampled_from(scope.prompts[-4:]))

    def text(self, scope: Scope):
        return self.draw(st.sampled_from(scope.texts[-4:]))

    def any(self, scope: Scope):
        return self.draw(st.one_of(st.sampled_from((scope.texts + scope.others)[-5:]), literals))

    def some(self, values: list[Value]) -> tuple[Value, ...]:
        return tuple(self.draw(st.lists(st.sampled_from(values), max_size=4)))

    def make_append(self, scope: Scope) -> None:
        items = self.draw(st.lists(st.one_of(parts, parts, st.sampled_from(scope.texts[-4:])), max_size=4))
        self.emit(scope, "append", (self.prompt(scope), *items))

    def make_concat(self, scope: Scope) -> None:
        self.emit(scope, "concat", self.draw(st.lists(st.one_of(texts, st.sampled_from(scope.texts[-4:])), max_size=3)))

    def ask(self) -> dict:
        self.ordinal += 1
        return {
            "name": self.draw(st.one_of(st.none(), names)),
            "stream": self.draw(st.sampled_from(["", "/0.1"])),
            "ordinal": self.ordinal,
        }

    def make_gen(self, scope: Scope) -> None:
        attrs = self.ask() | self.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "max_tokens": st.integers(1, 9),
                    "stop": st.lists(texts, max_size=2).map(tuple),
                    "regex": st.sampled_from(["[a-c]{2}", "a*", "a(?=b)"]),
                },
            )
        )
        given = ()
        match self.draw(st.integers(0, 3)):
            case 0:
                given, attrs["params"] = (self.any(scope),), ("temperature",)
            case 1:
                attrs |= {"name": "x", "temperature": self.draw(st.sampled_from([0.0, 0.7]))}
        prompt = self.prompt(scope)
        self.emit(scope, "gen", (prompt, *given), attrs)
        for i in range(self.draw(st.sampled_from([0, 0, 1, 2]))):  # siblings that ask the same
            self.emit(scope, "gen", (prompt, *given), attrs | {"stream": f"/1.{i}"})

    def make_select(self, scope: Scope) -> None:
        attrs = self.ask() | self.draw(st.sampled_from([{}, {"name": "x", "temperature": 0.0}]))
        self.emit(scope, "select", (self.prompt(scope), "yes", self.text(scope)), attrs)

    def make_ctx_new(self, scope: Scope) -> None:
        self.emit(scope, "ctx.new")

    def make_ctx_text(self, scope: Scope) -> None:
        self.emit(scope, "ctx.text", (self.prompt(scope),))

    def make_ctx_slice(self, scope: Scope) -> None:
        prompt = self.prompt(scope)
        scope.add(*(longer := self.b.emit("append", (prompt, "more"))))
        self.emit(scope, "ctx.slice", (*longer, prompt))

    def make_ctx_messages(self, scope: Scope) -> None:
        self.emit(scope, "ctx.messages", (self.prompt(scope),))

    def make_image(self, scope: Scope) -> None:
        self.emit(scope, "image", (self.prompt(scope), self.any(scope)))

    def make_video(self, scope: Scope) -> None:
        self.emit(scope, "video", (self.prompt(scope), self.any(scope), 8, None))

    def make_role(self, scope: Scope) -> None:
        attrs = {"role": self.draw(roles), "previous": self.draw(st.one_of(st.none(), roles))}
        begun = self.b.emit("role.begin", (self.prompt(scope),), attrs)
        inside = self.b.emit("append", (*begun, self.draw(texts), self.text(scope)))
        self.emit(scope, "role.end", inside, {"role": attrs["role"]})

    def make_py(self, scope: Scope) -> None:
        kind = self.draw(st.sampled_from(["py.eq", "py.str.strip", "py.json.loads", "py.add"]))
        types = ["str"] if kind == "py.add" else [self.draw(st.sampled_from(["any", "str"]))]
        attrs = self.draw(st.sampled_from([{}, {"kwargs": ("sep",)}]))
        self.emit(scope, kind, (self.any(scope), self.any(scope)), attrs, types=types)

    def make_unknown(self, scope: Scope) -> None:
        attrs = self.draw(st.sampled_from([{}, {"reason": "not in the table"}, {"calls": "search", "reason": "unknown code"}]))
        self.emit(scope, "unknown", self.some(scope.prompts + scope.texts + scope.others), attrs)

    def make_prefill(self, scope: Scope) -> None:
        self.b.emit("prefill", (self.prompt(scope),), self.draw(st.sampled_from([{}, {"scope": "program"}])))

    def make_release(self, scope: Scope) -> None:
        self.b.emit("release", (self.prompt(scope),))


@st.composite
def graphs(draw, stage: str = "traced") -> Graph:
    """Valid graphs: `traced` as the tracer makes them, `planned` with prefill and release in any place."""
    return Maker(draw, stage).graph()
