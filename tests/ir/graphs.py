"""Random graphs for property tests: every op kind, every literal, forks, host calls of all kinds, branches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st

from lmc.errors import Loc
from lmc.ir.builder import Builder
from lmc.ir.core import DEFAULT, Graph, Op, Symbol, Value
from lmc.prompt import Mark, Special

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
symbols = st.sampled_from(["py.eq", "tools:search", "ValueError", "mod.f.<locals>.<lambda>", "a b"]).map(Symbol)
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


class Maker:
    """Draws one graph; `stage` decides which ops there are."""

    def __init__(self, draw, stage: str) -> None:
        self.draw, self.stage = draw, stage
        self.ordinal = self.exits = self.order = 0
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
        self.block(scope, depth=0)
        return self.b.build("planned" if self.stage == "planned" else "traced")

    def block(self, scope: Scope, depth: int) -> None:
        for _ in range(self.draw(st.integers(0, 9 if depth else 12))):
            self.op(scope)
        choice = self.draw(st.sampled_from(["switch", "switch", "return", "exit", "raise"]))
        if choice == "switch" and depth < 3:
            return self.switch(scope, depth)
        loc = self.draw(locs)
        if choice == "exit":
            self.exits += 1
            self.b.terminate("exit", self.some(scope.prompts + scope.texts + scope.others), {"id": self.exits}, loc)
        elif choice == "raise":
            self.b.terminate("raise", (self.any(scope),), {}, loc)
        else:
            names_ = tuple(self.draw(st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True)))
            rest = [self.any(scope) for _ in range(2 * len(names_))]
            self.b.terminate("return", (self.any(scope), self.prompt(scope), *rest), {"vars": names_}, loc)

    def switch(self, scope: Scope, depth: int) -> None:
        cases = self.draw(
            st.sampled_from(
                [(True, False), ("a", DEFAULT), (DEFAULT,), (1, True, None, DEFAULT), (Symbol("ValueError"), DEFAULT)]
            )
        )
        if cases == (True, False):
            (on,) = self.b.emit(
                "host.call",
                (Symbol("py.eq"), self.any(scope), self.any(scope)),
                {"pure": True, "total": True},
                types=["bool"],
            )
        else:
            on = self.any(scope)
        arms = [(case, self.b.label(self.draw(st.sampled_from([None, "on"])))) for case in cases]
        self.b.terminate("switch", (on,), {}, self.draw(locs), cases=arms)
        for _, label in arms:
            self.b.at(label)
            self.block(scope.copy(), depth + 1)

    # -- ops

    def op(self, scope: Scope) -> None:
        kinds = "append append append append gen gen given read read select concat ctx.new ctx.text ctx.slice ctx.messages image video pure pure effect ordered show"
        kinds += " role role" if self.stage == "traced" else " prefill release" if self.stage == "planned" else ""
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

    def make_read(self, scope: Scope) -> None:
        self.emit(scope, "read", (self.text(scope),), types=["str"])

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
        self.emit(scope, "video", (self.prompt(scope), self.any(scope), 8))

    def make_role(self, scope: Scope) -> None:
        attrs = {"role": self.draw(roles), "previous": self.draw(st.one_of(st.none(), roles))}
        begun = self.b.emit("role.begin", (self.prompt(scope),), attrs)
        inside = self.b.emit("append", (*begun, self.draw(texts), self.text(scope)))
        self.emit(scope, "role.end", inside, {"role": attrs["role"]})

    def make_pure(self, scope: Scope) -> None:
        attrs = {"pure": True} | self.draw(st.fixed_dictionaries({}, optional={"total": st.just(True)}))
        self.emit(
            scope,
            "host.call",
            (self.draw(symbols), self.any(scope)),
            attrs,
            types=[self.draw(st.sampled_from(["any", "str"]))],
        )

    def make_effect(self, scope: Scope, kind: str = "touches") -> None:
        self.order += 1
        attrs = {kind: True, "ord": (0, self.order)} | ({"catch": True} if self.draw(st.booleans()) else {})
        types = ["any", "any", "any"] if "catch" in attrs else ["any"]
        self.emit(scope, "host.call", (self.draw(symbols), self.any(scope)), attrs, types=types)

    def make_ordered(self, scope: Scope) -> None:
        self.make_effect(scope, "ordered")

    def make_given(self, scope: Scope) -> None:
        self.order += 1
        names = self.draw(st.sampled_from([("stop",), ("max_tokens", "stop")]))
        self.emit(scope, "given", [self.any(scope) for _ in names], {"params": names, "ord": (0, self.order)}, types=["any"] * len(names))

    def make_show(self, scope: Scope) -> None:
        self.order += 1
        held = (self.text(scope), self.any(scope)) if self.draw(st.booleans()) else ()
        attrs = {"vars": ("x",) if held else (), "number": self.order}
        attrs |= self.draw(st.sampled_from([{}, {"opens": "x"}, {"closes": "x"}]))
        self.b.emit("show", (self.prompt(scope), *held), attrs)

    def make_prefill(self, scope: Scope) -> None:
        self.b.emit("prefill", (self.prompt(scope),), self.draw(st.sampled_from([{}, {"scope": "program"}])))

    def make_release(self, scope: Scope) -> None:
        self.b.emit("release", (self.prompt(scope),))


@st.composite
def graphs(draw, stage: str = "traced") -> Graph:
    """Valid graphs: `traced` as the tracer makes them, `planned` with prefill and release in any place."""
    return Maker(draw, stage).graph()
