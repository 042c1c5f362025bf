"""The compiler in 200 lines: a working miniature of lmc, to read from top to bottom and to run (`python docs/tour.py`).

Same ideas and names as the real one; what is left out is said where it is left out. Nothing here imports lmc.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

# -- 1. A model --------------------------------------------------------------------------------------------------------
# Deterministic: the answer follows from the prompt. It counts its calls, the rounds (calls of one round run together),
# and the characters it had to read: a prefix that it has read before is cached.


@dataclass
class Model:
    calls: int = 0
    rounds: int = 0
    computed: int = 0
    seen: set[str] = field(default_factory=set)

    def answer(self, prompts: list[str]) -> list[str]:
        self.rounds += 1
        return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: str) -> str:
        self.calls += 1
        known = next(n for n in range(len(prompt), -1, -1) if n == 0 or prompt[:n] in self.seen)
        self.computed += len(prompt) - known
        self.seen.update(prompt[:n] for n in range(1, len(prompt) + 1))
        return ("yes", "no", "maybe")[sum(map(ord, prompt)) % 3]


# -- 2. The language ---------------------------------------------------------------------------------------------------
# A program appends text and `gen`s to a state. A state writes to an emitter, and knows nothing else: the emitter is the
# model at once (the interpreter), or a graph under construction (the tracer).


@dataclass(frozen=True)
class Gen:
    name: str


class State:
    def __init__(self, emitter: Any, ctx: Any, variables: dict[str, Any] | None = None) -> None:
        self.emitter, self.ctx, self.variables = emitter, ctx, dict(variables or {})

    def __iadd__(self, x: Any) -> State:
        if isinstance(x, Gen):
            self.ctx, self.variables[x.name] = self.emitter.gen(self.ctx, x.name)
        else:
            self.ctx = self.emitter.append(self.ctx, x)
        return self

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def fork(self, n: int) -> list[State]:
        return [State(self.emitter, self.ctx, self.variables) for _ in range(n)]


class Interpreter:
    """The reference: one op after another, a prompt is a string."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def append(self, ctx: str, text: str) -> str:
        return ctx + text

    def gen(self, ctx: str, name: str) -> tuple[str, str]:
        (text,) = self.model.answer([ctx])
        return ctx + text, text


Program = Callable[..., Any]


def interpret(program: Program, model: Model, *args: Any) -> Any:
    return program(State(Interpreter(model), ""), *args)


# -- 3. The IR ---------------------------------------------------------------------------------------------------------
# An op is immutable and makes new values from old ones. The prompt is a value like any other: two ops that use the same
# ctx are a fork. `host` is any Python operation on values.


@dataclass(frozen=True)
class Op:
    kind: str  # append (ctx, text), gen (ctx), host (fn, …)
    out: str
    operands: tuple[Any, ...]

    def __str__(self) -> str:
        shown = ", ".join(getattr(x, "__name__", str(x)) if not isinstance(x, str) else repr(x) for x in self.operands)
        return f"  {self.out} = {self.kind}({shown})"


@dataclass(frozen=True)
class Ref:
    """An op's result, as an operand."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass
class Block:
    """Ops, then an end: `returns`, or a `switch` on a value with a block for each answer that was seen."""

    ops: list[Op] = field(default_factory=list)
    switch: Ref | None = None
    arms: dict[bool, Block] = field(default_factory=dict)
    returns: Any = None


# -- 4. The tracer -----------------------------------------------------------------------------------------------------
# Runs the program with symbolic values; never asks the model. A comparison or an addition is recorded as a host op. A
# truth test needs an answer: the path so far gives it, or the trace stops there (`Unknown`) and the arm is an exit.
# lmc rewrites the program's source instead of overloading operators, since f-strings, `in`, `len` and C code do not ask.


class Unknown(Exception):
    pass


class Value:
    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer, self.name = tracer, name

    def __eq__(self, other: object) -> Any:
        return self.tracer.emit("host", operator.eq, self, other)

    def __add__(self, other: Any) -> Any:
        return self.tracer.emit("host", operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self.tracer.emit("host", operator.add, other, self)

    def __bool__(self) -> bool:
        return self.tracer.decide(self)


class Tracer:
    def __init__(self, root: Block, path: list[bool]) -> None:
        self.block, self.path, self.at, self.count = root, path, 0, 0

    def emit(self, kind: str, *operands: Any) -> Value:
        self.count += 1
        name = f"%{self.count}"
        if self.at == len(self.block.ops):  # new; else the op is there from an earlier trace of this path
            self.block.ops.append(Op(kind, name, tuple(Ref(x.name) if isinstance(x, Value) else x for x in operands)))
        self.at += 1
        return Value(self, name)

    def append(self, ctx: Any, text: Any) -> Value:
        return self.emit("append", ctx, text)

    def gen(self, ctx: Any, name: str) -> tuple[Value, Value]:
        answer = self.emit("gen", ctx)
        return self.append(ctx, answer), answer

    def decide(self, value: Value) -> bool:
        self.block.switch = Ref(value.name)
        if not self.path:
            raise Unknown
        self.block, self.at, answer = self.block.arms.setdefault(self.path[0], Block()), 0, self.path[0]
        self.path = self.path[1:]
        return answer


def trace(program: Program, root: Block, path: list[bool], params: int) -> None:
    tracer = Tracer(root, path)
    try:
        result = program(State(tracer, ""), *(Value(tracer, f"%arg{i}") for i in range(params)))
        tracer.block.returns = Ref(result.name) if isinstance(result, Value) else result
    except Unknown:
        pass


# -- 5. A pass ---------------------------------------------------------------------------------------------------------
# Graph in, graph out. This one gives equal pure ops one name (cse); a gen is never merged, since it may be a sample.
# lmc's pipeline has five of the kind, and verifies the graph after each.


def cse(block: Block, seen: dict[Any, str] | None = None, same: dict[Ref, Ref] | None = None) -> Block:
    seen, same, ops = dict(seen or {}), dict(same or {}), []

    def new(x: Any) -> Any:
        return same.get(x, x) if isinstance(x, Ref) else x

    for op in block.ops:
        op = replace(op, operands=tuple(map(new, op.operands)))
        first = seen.setdefault((op.kind, op.operands), op.out) if op.kind != "gen" else op.out
        if first == op.out:
            ops.append(op)
        else:
            same[Ref(op.out)] = Ref(first)
    return Block(ops, new(block.switch), {k: cse(b, seen, same) for k, b in block.arms.items()}, new(block.returns))


# -- 6. The executor ---------------------------------------------------------------------------------------------------
# A run is a generator that does what it can and yields the prompts it wants answered. All runs of a batch, and all forks
# of a run, are answered in one round. A run that reaches an arm nobody has seen traces it, and goes on.


class Compiled:
    def __init__(self, program: Program, params: int) -> None:
        self.program, self.params, self.root = program, params, Block()
        trace(program, self.root, [], params)

    def run(self, args: tuple[Any, ...]) -> Iterator[Any]:
        env: dict[Any, Any] = {Ref(f"%arg{i}"): x for i, x in enumerate(args)}
        path: list[bool] = []
        block = self.block(path)
        while True:
            todo = block.ops
            while todo:
                waiting = []
                ready = [op for op in todo if all(x in env for x in op.operands if isinstance(x, Ref))]
                for op in ready:
                    values = [env[x] if isinstance(x, Ref) else x for x in op.operands]
                    if op.kind == "gen":
                        waiting.append((op, values[0]))
                    else:
                        env[Ref(op.out)] = values[0] + values[1] if op.kind == "append" else values[0](*values[1:])
                if waiting:
                    answers = yield [prompt for _, prompt in waiting]
                    env |= {Ref(op.out): answer for (op, _), answer in zip(waiting, answers, strict=True)}
                todo = [op for op in todo if Ref(op.out) not in env]
            if block.switch is None:
                return env[block.returns] if isinstance(block.returns, Ref) else block.returns
            path.append(bool(env[block.switch]))
            block = self.block(path)

    def block(self, path: list[bool]) -> Block:
        block = cse(self.root)  # lmc plans each block once
        for answer in path:
            if answer not in block.arms:
                trace(self.program, self.root, path, self.params)
                return self.block(path)
            block = block.arms[answer]
        return block

    def batch(self, model: Model, items: list[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = [None] * len(items)
        runs: dict[int, tuple[Iterator[Any], Any]] = {i: (self.run(item), None) for i, item in enumerate(items)}
        while runs:
            wanted: dict[int, list[str]] = {}
            for i, (run, answers) in list(runs.items()):
                try:
                    wanted[i] = run.send(answers)  # type: ignore[attr-defined]
                except StopIteration as end:
                    results[i] = end.value
                    del runs[i]
            answers = iter(model.answer([p for prompts in wanted.values() for p in prompts]) if wanted else [])
            runs = {i: (run, [next(answers) for _ in wanted[i]]) for i, (run, _) in runs.items()}
        return results


# -- 7. A program, both ways -------------------------------------------------------------------------------------------


def judge(s: State, essay: Any) -> Any:
    s += "Essay: " + essay + "\nIs it one? "
    s += Gen("is_essay")
    if s["is_essay"] == "no":
        return "not an essay"
    forks = s.fork(3)
    for f, what in zip(forks, ("clarity", "wit", "truth"), strict=True):
        f += "\nIs its " + what + " good? "
        f += Gen("verdict")
    return forks[0]["verdict"] + "," + forks[1]["verdict"] + "," + forks[2]["verdict"]


def listing(block: Block, indent: str = "") -> str:
    lines = [indent + str(op) for op in block.ops]
    if block.switch is not None:
        lines.append(f"{indent}  switch {block.switch}")
    for answer, arm in block.arms.items():
        lines += [f"{indent}  {answer}:", listing(arm, indent + "  ")]
    return "\n".join([*lines, *([f"{indent}  return {block.returns}"] if block.returns is not None else [])])


def main() -> None:
    essays = [(f"Essay number {i}.",) for i in range(8)]
    one, other, compiled = Model(), Model(), Compiled(judge, 1)
    expected = [interpret(judge, one, *item) for item in essays]
    assert compiled.batch(other, essays) == expected  # the same answers,
    assert (one.calls, one.computed) == (other.calls, other.computed)  # by the same calls
    print(listing(cse(compiled.root)))
    print(f"{len(essays)} essays, {one.calls} calls: {one.rounds} rounds interpreted, {other.rounds} compiled")
    assert other.rounds == 2 < one.rounds


if __name__ == "__main__":
    main()
