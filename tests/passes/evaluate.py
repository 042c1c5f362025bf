"""A reference evaluator of graphs, for properties of passes: prompts are lists of pieces, the model is a hash.

Everything happens at once and in order. It shares nothing with the executor but the op table's meaning.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmc.chat import CHATML, ChatTemplate
from lmc.ir.core import DEFAULT, Graph, Op, Symbol, Value, exact
from lmc.prompt import Mark


def digest(x: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(x).encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


@dataclass(frozen=True)
class Answered:
    """The text of an answer inside a prompt: not the same as equal literal text."""

    text: str


@dataclass(frozen=True)
class Failed:
    """What a gen gave that the backend failed; reading it raises."""

    why: int


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
        failed = next((x for x in self.pieces if isinstance(x, Failed)), None)
        if failed:
            raise Raised(failed)
        return "".join(
            x if isinstance(x, str) else x.text if isinstance(x, Answered) else "" if isinstance(x, Mark) else repr(x)
            for x in self.pieces
        )


HINTS = ("order", "group", "ways", "trie", "lookahead")
"""Attributes of an ask that change nothing of its answer."""


class Raised(Exception):
    """An exception in the program, by what it is about."""


@dataclass
class Outcome:
    """What a run showed: how it ended, its effects in order, what it asked the model."""

    end: object = None
    effects: list[object] = field(default_factory=list)
    asked: Counter[object] = field(default_factory=Counter)

    @property
    def observable(self) -> object:
        return self.end, self.effects


def evaluate(
    graph: Graph, seed: int = 0, template: ChatTemplate = CHATML, outputs: tuple[str, ...] | None = None
) -> Outcome:
    """Runs a graph on arguments, a model and host functions that `seed` decides.

    With `outputs`, a return shows its value and those variables only.
    """
    return _Run(graph, seed, template, outputs).go()


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
        block = self.graph.entry
        try:
            while True:
                for op in block.ops:
                    self.op(op)
                next_label = self.terminator(block.terminator)
                if next_label is None:
                    break
                block = self.graph.block[next_label]
        except Raised as e:
            self.out.end = ("raised", e.args)
        else:
            assert not self.pinned, f"never released: {self.pinned}"
        return self.out

    def get(self, x: object) -> Any:
        return self.env[x] if isinstance(x, Value) else x

    def op(self, op: Op) -> None:
        results = _RULES[op.kind](self, op, [self.get(x) for x in op.operands])
        self.env.update(zip(op.results, results if isinstance(results, tuple) else (results,), strict=True))
        if op.operands and isinstance(parent := op.operands[0], Value) and any(v.type == "ctx" for v in op.results):
            holds = self.holds.get(parent, frozenset()) | {parent}
            self.extended.add(parent)
            if op.kind in ("gen", "select"):
                late = holds & self.released
                assert not late, f"{late} is needed after its release"
            else:
                self.holds[op.results[0]] = holds

    def terminator(self, op: Op) -> str | None:
        values = [self.get(x) for x in op.operands]
        if op.kind == "switch":
            return next(
                (label for case, label in op.cases if case is DEFAULT or exact(case) == exact(values[0])),
                op.cases[-1][1],
            )
        if op.kind == "return" and self.outputs is not None:
            names = op.attrs["vars"]
            kept = {n: values[2 + 2 * i : 4 + 2 * i] for i, n in enumerate(names) if n in self.outputs}
            values = [values[0], kept]
        shown = {k: v for k, v in op.attrs.items() if k != "outputs"}
        self.out.end = (op.kind, tuple(sorted(shown.items())), repr(values))
        return None

    # -- rules

    def ask(self, op: Op, values: list[Any]) -> tuple[Any, ...]:
        prompt, *given = values
        attrs = {name: value for name, value in op.attrs.items() if name not in HINTS}
        if "constraint" in attrs:
            attrs["regex"] = self.graph.constants[attrs.pop("constraint").name].operands[-1]  # pyright: ignore
        if attrs.get("temperature") == 0:  # the likeliest answer: whose it is does not matter
            for name in ("stream", "ordinal", "also", "seed"):
                attrs.pop(name, None)
        key = (
            op.kind,
            prompt.pieces,
            tuple(exact(v) for v in given),
            tuple(sorted((k, exact(v)) for k, v in attrs.items())),
        )
        self.out.asked[repr(key)] += 1
        number = digest((self.seed, key))
        if number % 8 == 0 or any(isinstance(x, Failed) for x in (*prompt.pieces, *given)):
            failed = Failed(number % 100)
            return prompt.plus(failed), failed, failed
        text = ("yes", "no", "a", f"answer{number % 50}")[number % 4]
        return prompt.plus(Answered(text)), text, f"meta{number % 50}"

    def read(self, op: Op, values: list[Any]) -> Any:
        if isinstance(values[0], Failed):
            raise Raised(values[0])
        return values[0]

    def call(self, op: Op, values: list[Any]) -> Any:
        fn, *args = values
        assert isinstance(fn, Symbol)
        number = digest((self.seed, fn.name, args))
        if not op.attr("pure"):
            self.out.effects.append((fn.name, op.attrs.get("ord"), repr(args)))
        value = number % 2 == 0 if op.results[0].type == "bool" else f"host{number % 9}"
        failed = number % 4 == 0 and not op.attr("total")
        if op.attr("catch"):
            return (value, "Error", f"error{number % 9}") if failed else (value, None, None)
        if failed:
            raise Raised(fn.name, number % 9)
        return value

    def given(self, op: Op, values: list[Any]) -> Any:
        if digest((self.seed, op.attrs["params"], repr(values))) % 8 == 0:
            raise Raised("given", len(values))
        found = [f"given {value!r}" for value in values]
        return found[0] if len(found) == 1 else tuple(found)

    def show(self, op: Op, values: list[Any]) -> tuple[()]:
        self.out.effects.append(("show", op.attrs["number"], repr((op.attrs["vars"], values))))
        return ()

    def slice(self, op: Op, values: list[Any]) -> Any:
        whole, since = values
        whole.text()
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
            assert prompt not in self.pinned
            self.pinned.add(prompt)
        return ()

    def release(self, op: Op, values: list[Any]) -> tuple[()]:
        (prompt,) = op.uses
        self.pinned.remove(prompt)
        self.released.add(prompt)
        return ()


_RULES: Mapping[str, Any] = {
    "ctx.new": lambda run, op, values: Prompt(),
    "append": lambda run, op, values: values[0].plus(*values[1:]),
    "image": lambda run, op, values: values[0].plus(("image", repr(values[1]))),
    "video": lambda run, op, values: values[0].plus(("video", repr(values[1:]))),
    "role.begin": _Run.role_begin,
    "role.end": _Run.role_end,
    "ctx.text": lambda run, op, values: values[0].text(),
    "ctx.slice": _Run.slice,
    "ctx.messages": lambda run, op, values: ["messages", values[0].text()],
    "concat": lambda run, op, values: "".join(x if isinstance(x, str) else repr(x) for x in values),
    "given": _Run.given,
    "gen": _Run.ask,
    "select": _Run.ask,
    "read": _Run.read,
    "host.call": _Run.call,
    "show": _Run.show,
    "prefill": _Run.prefill,
    "release": _Run.release,
}
