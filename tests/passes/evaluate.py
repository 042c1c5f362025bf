"""A reference evaluator of graphs, for properties of passes: prompts are lists of pieces, the model is a hash.

Everything happens at once and in order; a loop turns as often as a hash says. It shares nothing with lmc but the op table's meaning.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmc.chat import CHATML, ChatTemplate
from lmc.ir.core import DEFAULT, Graph, Op, Value, exact
from lmc.segments import Mark, Special


def digest(x: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(x).encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


@dataclass(frozen=True)
class Answered:
    """The text of an answer inside a prompt: not the same as equal literal text."""

    text: str


class Lazy:
    """A stand-in for the answer of a lazy ask: code that looks at it shows that the ask was needed."""

    def __repr__(self) -> str:
        raise AssertionError("a lazy answer is needed")


LAZY = Lazy()


@dataclass(frozen=True)
class Prompt:
    """Pieces of a prompt, adjacent text joined, so that it does not matter how it was cut."""

    pieces: tuple[object, ...] = ()

    def plus(self, *more: object) -> Prompt:
        pieces = list(self.pieces)
        for x in more:
            if isinstance(x, str):
                if pieces and isinstance(pieces[-1], str):
                    pieces[-1] += x
                    continue
                if not x:
                    continue
            pieces.append(x)
        return Prompt(tuple(pieces))

    def text(self) -> str:
        return "".join(
            x if isinstance(x, str) else x.text if isinstance(x, Answered) else "" if isinstance(x, Mark) else repr(x)
            for x in self.pieces
        )


HINTS = ("order", "group", "ways", "trie", "lookahead", "shifted")
"""Attributes of an ask that change nothing of its answer."""


@dataclass
class Outcome:
    """The record of a run: how it ended, what unknown code was handed, in order, what it asked the model."""

    end: object = None
    effects: list[object] = field(default_factory=list)
    asked: Counter[object] = field(default_factory=Counter)

    @property
    def observable(self) -> object:
        return self.end, self.effects


def evaluate(
    graph: Graph, seed: int = 0, template: ChatTemplate = CHATML, outputs: tuple[str, ...] | None = None
) -> Outcome:
    """Runs a graph on arguments, a model and unknown code that `seed` decides.

    With `outputs`, a return shows its value and those variables only.
    """
    return _Run(graph, seed, template, outputs).go()


Leave = tuple[str, list[Any]]
"""How a region ended (the kind of the terminator), and what it yields."""


class _Run:
    def __init__(self, graph: Graph, seed: int, template: ChatTemplate, outputs: tuple[str, ...] | None) -> None:
        self.graph, self.seed, self.template, self.outputs = graph, seed, template, outputs
        self.env: dict[Value, Any] = {}
        self.out = Outcome()
        self.pinned: set[Value] = set()
        self.extended: set[Value] = set()
        self.released: set[Value] = set()
        self.holds: dict[Value, frozenset[Value]] = {}  # prompts between a prompt and the answer before it

    def go(self) -> Outcome:
        for p in self.graph.params:
            self.env[p] = (
                Prompt().plus(f"given {p.name}") if p.type == "ctx" else f"arg{digest((self.seed, p.name)) % 3}"
            )
        self.blocks(self.graph.entry.label)
        return self.out

    def blocks(self, label: str) -> Leave:
        """Runs a block and what goes on behind it, to the end of its region; says how that ended."""
        while True:
            block = self.graph.block[label]
            for op in block.ops:
                self.op(op)
            how, values, then = self.terminator(block.terminator)
            if how != "yield" or then is None:
                return how, values
            self.give(then, values)
            label = then

    def give(self, label: str, values: list[Any]) -> None:
        self.env.update(zip(self.graph.block[label].params, values, strict=True))

    def terminator(self, op: Op) -> tuple[str, list[Any], str | None]:
        """How the region goes on: "yield" to the block `then` or, if that is None, out of the region; another kind leaves it."""
        values = [self.get(x) for x in op.operands]
        if op.kind == "switch":
            label = next((label for case, label in op.cases if case is DEFAULT or exact(case) == exact(values[0])), op.cases[-1][1])
            return *self.blocks(label), op.then
        if op.kind == "loop":
            return *self.loop(op, values[1:], repr(values[0])), op.then
        if op.kind not in ("return", "raise"):
            return op.kind, values, None
        if op.kind == "return" and self.outputs is not None:
            kept = {n: value for n, value in zip(op.attr("vars", ()), values[2:], strict=True) if n in self.outputs}
            values = [values[0], kept]
        shown = {k: v for k, v in op.attrs.items() if k != "outputs"}
        self.out.end = (op.kind, tuple(sorted(shown.items())), repr(values))
        return op.kind, [], None

    def loop(self, op: Op, carried: list[Any], over: str) -> Leave:
        body = op.cases[0][1]
        for _ in range(digest((self.seed, body, over)) % 3):
            self.give(body, carried)
            how, values = self.blocks(body)
            if how in ("return", "raise"):
                return how, values
            carried = values
            if how == "break":
                break
        return "yield", carried

    def get(self, x: object) -> Any:
        return self.env[x] if isinstance(x, Value) else x

    def op(self, op: Op) -> None:
        rule = _RULES["py" if op.kind.startswith("py.") else op.kind]
        results = rule(self, op, [self.get(x) for x in op.operands])
        for v in op.results:  # of a loop's last turn
            for seen in (self.pinned, self.extended, self.released):
                seen.discard(v)
        self.env.update(zip(op.results, results if isinstance(results, tuple) else (results,), strict=True))
        if op.operands and isinstance(parent := op.operands[0], Value) and any(v.type == "ctx" for v in op.results):
            holds = self.holds.get(parent, frozenset()) | {parent}
            self.extended.add(parent)
            if op.kind in ("gen", "select"):
                late = holds & self.released
                assert not late, f"{late} is needed after its release"
            else:
                self.holds[op.results[0]] = holds

    # -- rules

    def ask(self, op: Op, values: list[Any]) -> tuple[Any, ...]:
        prompt, *given = values
        if op.attr("lazy"):
            return prompt.plus(LAZY), LAZY, LAZY
        attrs = {name: value for name, value in op.attrs.items() if name not in HINTS}
        if "constraint" in attrs:
            attrs["regex"] = self.graph.constants[attrs.pop("constraint").name].operands[-1]  # pyright: ignore
        if attrs.get("temperature") == 0:  # the likeliest answer: whose it is does not matter
            for name in ("stream", "ordinal", "also", "seed"):
                attrs.pop(name, None)
        key = (
            op.kind,
            repr(prompt.pieces),
            tuple(exact(v) for v in given),
            tuple(sorted((k, exact(v)) for k, v in attrs.items())),
        )
        self.out.asked[repr(key)] += 1
        number = digest((self.seed, key))
        text = ("yes", "no", "a", f"answer{number % 50}")[number % 4]
        return prompt.plus(Answered(text)), text, f"meta{number % 50}"

    def function(self, op: Op, values: list[Any]) -> Any:
        if op.kind == "py.add":
            return "".join(x if isinstance(x, str) else repr(x) for x in values)
        number = digest((self.seed, op.kind, repr(op.attrs), repr(values)))
        return number % 2 == 0 if op.results[0].type == "bool" else f"py{number % 9}"

    def unknown(self, op: Op, values: list[Any]) -> Any:
        self.out.effects.append((repr(op.attrs), repr(values)))
        return f"unknown{digest((self.seed, len(self.out.effects))) % 9}"

    def slice(self, op: Op, values: list[Any]) -> Any:
        whole, since = values
        return whole.text()[len(since.text()) :]

    def role_begin(self, op: Op, values: list[Any]) -> Any:
        role = op.attrs["role"]
        return values[0].plus(*self.template.begin(role, op.attr("previous")), Mark(role, "begin"))

    def role_end(self, op: Op, values: list[Any]) -> Any:
        role = op.attrs["role"]
        return values[0].plus(Mark(role, "end"), *self.template.end(role))

    def prefill(self, op: Op, values: list[Any]) -> tuple[()]:
        (prompt,) = op.uses
        assert prompt not in self.extended, f"{prompt} is prefilled after it was extended"
        if op.attr("scope") != "program":
            self.pinned.add(prompt)
        return ()

    def release(self, op: Op, values: list[Any]) -> tuple[()]:
        (prompt,) = op.uses
        self.pinned.discard(prompt)
        self.released.add(prompt)
        return ()


_RULES: Mapping[str, Any] = {
    "ctx.new": lambda run, op, values: Prompt(),
    "append": lambda run, op, values: values[0].plus(*(x if isinstance(x, str | Special | Mark | Lazy) else repr(x) for x in values[1:])),
    "image": lambda run, op, values: values[0].plus(("image", repr(values[1]))),
    "video": lambda run, op, values: values[0].plus(("video", repr(values[1:]))),
    "role.begin": _Run.role_begin,
    "role.end": _Run.role_end,
    "ctx.text": lambda run, op, values: values[0].text(),
    "ctx.slice": _Run.slice,
    "ctx.messages": lambda run, op, values: ["messages", values[0].text()],
    "concat": lambda run, op, values: "".join(x if isinstance(x, str) else repr(x) for x in values),
    "gen": _Run.ask,
    "select": _Run.ask,
    "py": _Run.function,
    "unknown": _Run.unknown,
    "prefill": _Run.prefill,
    "release": _Run.release,
}
