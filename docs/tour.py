"""The compiler in 300 lines: a working miniature of lmc, to read from top to bottom and to run (`python docs/tour.py`).

It has the ideas and the names of the real one, and says what it leaves out. Nothing here needs lmc.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

# -- 1. A model --------------------------------------------------------------------------------------------------------
# The prompt determines the answer. An answer takes one round, and requesting it does not wait: a request may depend on
# answers that are still to come. The model counts calls, rounds, and the characters that it had to read: text that it has
# read before is cached, and of requests submitted as one group the first reads what all of them share.


@dataclass(eq=False)
class Answer:
    text: str
    due: int  # the round in which it arrives


def say(prompt: str) -> str:
    return ("yes", "no", "maybe")[sum(map(ord, prompt)) % 3]


class Model:
    def __init__(self) -> None:
        self.now = self.calls = self.computed = 0
        self.read: list[tuple[str, int, Any]] = []

    def submit(self, prompt: Prompt, group: Any = None) -> Answer:
        text = "".join(part if isinstance(part, str) else part.text for part in prompt)
        known = [common(text, other) for other, due, of in self.read if due <= self.now or (group is not None and of == group)]
        due = 1 + max([self.now, *(part.due for part in prompt if isinstance(part, Answer))])
        self.read.append((text, due, group))
        self.calls += 1
        self.computed += len(text) - max(known, default=0)
        return Answer(say(text), due)


def common(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


# -- 2. The language ---------------------------------------------------------------------------------------------------
# A program appends text and `Gen`s to a state. `s += Gen(…)` makes a request and continues; reading the answer waits. A
# request's address is the stream of the state (its path of forks) and a number on it. A state writes to an emitter, which
# is either a run (the ledger) or an evaluation of the program. In lmc, addresses also have the run's seed and its item.

Prompt = tuple[Any, ...]  # text, answers, and in an evaluation UNKNOWN
Address = tuple[str, int]


@dataclass(frozen=True)
class Gen:
    name: str


class State:
    def __init__(self, emitter: Any, prompt: Prompt = (), stream: str = "") -> None:
        self.emitter, self.prompt, self.stream = emitter, prompt, stream
        self.variables, self.ordinal, self.forks = dict[str, Any](), 0, 0

    def __iadd__(self, x: Any) -> State:
        if isinstance(x, Gen):
            answer = self.emitter.ask((self.stream, self.ordinal), self.prompt)
            self.ordinal += 1
            self.variables[x.name] = x = answer
        self.prompt = (*self.prompt, x)
        return self

    def __getitem__(self, name: str) -> Any:
        return self.emitter.value(self.variables[name])

    def fork(self, n: int) -> list[State]:
        self.forks += 1
        return [State(self.emitter, self.prompt, f"{self.stream}/{self.forks - 1}.{i}") for i in range(n)]


# -- 3. The ledger -----------------------------------------------------------------------------------------------------
# The requests of one run by address: Python's own, and those made ahead (guesses). A guess is used only if it equals
# Python's own request, so a wrong, missing or malicious guess affects nothing but counters and time. Left out: sampling
# parameters and seeds (compared too), budgets, cancelling guesses that are no longer reached, lines that are turned off.


class Ledger:
    def __init__(self, model: Model, run_ahead: Callable[[Ledger], object], groups: Mapping[Address, Any]) -> None:
        self.model, self.run_ahead, self.groups = model, run_ahead, groups
        self.asked: dict[Address, Answer] = {}
        self.guesses: dict[Address, tuple[Prompt, Answer]] = {}
        self.used = self.wasted = 0

    def ask(self, address: Address, prompt: Prompt) -> Answer:
        guess = self.guesses.pop(address, None)
        equal = guess is not None and content(guess[0]) == content(prompt)
        self.used, self.wasted = self.used + equal, self.wasted + (guess is not None and not equal)
        self.asked[address] = guess[1] if equal else self.model.submit(prompt, self.groups.get(address))
        return self.asked[address]

    def guess(self, address: Address, prompt: Prompt) -> Answer:
        if address not in self.guesses:
            self.guesses[address] = prompt, self.model.submit(prompt, self.groups.get(address))
        return self.guesses[address][1]

    def value(self, answer: Answer) -> str:
        """Wait for an answer: the only time at which requests are made ahead."""
        while answer.due > self.model.now:
            self.run_ahead(self)
            self.model.now += 1
        return answer.text


def content(prompt: Prompt) -> list[Any]:
    """Return what equal prompts share, however their text was cut into appends. An answer stands for itself: what precedes it was compared before."""
    return ["".join(parts) if is_text else list(parts) for is_text, parts in groupby(prompt, lambda part: isinstance(part, str))]


# -- 4. The evaluator --------------------------------------------------------------------------------------------------
# Follows the source of a program with the values known so far. What is not in its table is UNKNOWN, and so is everything
# computed from it. It never calls the program's functions, and never waits. lmc's evaluator knows some hundred times as
# much (classes, generators, helpers, the library), compiles to closures, and copies the outside objects that it reads.


UNKNOWN = type("Unknown", (), {"__str__": lambda self: "…"})()
PURE = {fn: fn for fn in (zip, len, range, sorted, str, int, Gen)}
METHODS = {(type, fn.__name__): fn for type, fn in ((str, str.strip), (str, str.split), (str, str.join), (list, list.append), (State, State.fork))}
OPERATORS = {ast.Add: operator.add, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt}


def lacks(values: Iterable[Any]) -> bool:
    return any(x is UNKNOWN or (isinstance(x, (list, tuple)) and lacks(x)) for x in values)


class Evaluator:
    def __init__(self, program: Callable[..., Any], args: tuple[Any, ...], emitter: Any) -> None:
        (function,) = ast.parse(inspect.getsource(program)).body
        assert isinstance(function, ast.FunctionDef)
        self.names = {**program.__globals__, **dict(zip([a.arg for a in function.args.args], (State(emitter), *args), strict=True))}
        self.certain, emitter.evaluator = True, self  # whether only an exception can keep Python from getting here
        self.run(function.body)

    def run(self, statements: list[ast.stmt]) -> bool:  # whether execution continues after them
        return all(self.statement(node) for node in statements)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.bind(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                self.names[name] = self.apply(operator.iadd, [self.names[name], self.value(value)])
            case ast.If(test=test, body=body, orelse=orelse) if (known := self.value(test)) is not UNKNOWN:
                return self.run(body if known else orelse)
            case ast.For(target=target, iter=items, body=body) if (known := self.value(items)) is not UNKNOWN:
                return all(self.bind(target, item) or self.run(body) for item in known)
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return():
                return False
            case _:  # an undecided branch or loop, or an unknown statement: names bound there are unknown
                self.skip(node)
        return True

    def skip(self, node: ast.stmt) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
                self.certain = False
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                if isinstance(state := self.names.get(inner.id), State):
                    state.prompt = (*state.prompt, UNKNOWN)
                else:
                    self.names[inner.id] = UNKNOWN

    def bind(self, target: ast.expr, x: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = x
        elif isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, x, strict=True):
                self.bind(part, item)

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=x):
                return x
            case ast.Name(id=name):
                return self.names.get(name, getattr(builtins, name, UNKNOWN))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item) for item in items]
            case ast.BinOp(left=a, op=op, right=b) | ast.Compare(left=a, ops=[op], comparators=[b]):
                return self.apply(OPERATORS.get(type(op)), [self.value(a), self.value(b)])
            case ast.Subscript(value=a, slice=b):
                return self.apply(operator.getitem, [self.value(a), self.value(b)])
            case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=args):
                x = self.value(receiver)
                return self.apply(METHODS.get((type(x), name)), [x, *map(self.value, args)])
            case ast.Call(func=fn, args=args):
                return self.apply(PURE.get(self.value(fn)), [*map(self.value, args)])
        return UNKNOWN

    def apply(self, fn: Any, args: list[Any]) -> Any:
        if fn is list.append or (fn is operator.iadd and isinstance(args[0], State)):
            return fn(*args)  # these accept unknown values
        found = UNKNOWN if fn is None or lacks(args) else fn(*args)
        return list(found) if isinstance(found, zip) else found


class Ahead:
    """The emitter of an evaluation while Python waits: Python's requests are known, the ones after them become guesses."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def ask(self, address: Address, prompt: Prompt) -> Any:
        if address in self.ledger.asked:
            self.evaluator.certain = True  # Python has passed everything that was undecided before
            return self.ledger.asked[address]
        return self.ledger.guess(address, prompt) if self.evaluator.certain and not lacks(prompt) else UNKNOWN

    def value(self, answer: Any) -> Any:
        return UNKNOWN if answer is UNKNOWN or answer.due > self.ledger.model.now else answer.text


# -- 5. The graph and a pass -------------------------------------------------------------------------------------------
# The same evaluation with unknown arguments, before any run, shows which requests are made where. A pass looks at the
# graph and annotates addresses; this one says which requests are siblings. lmc's graph has ops, values, and regions for
# what is undecided; its passes plan prefixes, groups, constraints, lazy requests, and what one API request can cover.


class Graph:
    def __init__(self, program: Callable[..., Any], params: int) -> None:
        self.asks: dict[Address, Prompt] = {}
        Evaluator(program, (UNKNOWN,) * params, self)

    def ask(self, address: Address, prompt: Prompt) -> Any:
        self.asks[address] = prompt
        return UNKNOWN

    value = staticmethod(lambda answer: answer)

    def __str__(self) -> str:
        return "\n".join(f"  gen at {a}: {''.join(map(str, p))!r}" for a, p in self.asks.items())


def batch_forks(graph: Graph) -> Mapping[Address, Any]:
    return {(stream, ordinal): stream.rpartition(".")[0] for stream, ordinal in graph.asks if "." in stream}


# -- 6. A program, three ways ------------------------------------------------------------------------------------------


def run(program: Callable[..., Any], model: Model, args: Iterable[Any], run_ahead: Callable[[Ledger], Any], plan: Mapping[Address, Any]) -> tuple[Any, Ledger]:
    ledger = Ledger(model, run_ahead, plan)
    result = program(State(ledger), *args)  # Python itself runs the function, once
    ledger.wasted += len(ledger.guesses)
    return result, ledger


def judge(s, essay):
    s += "Essay: " + essay + "\nIs it one? "
    s += Gen("is_essay")
    if s["is_essay"] == "no":
        return "not an essay"
    verdicts = []
    for f, what in zip(s.fork(3), ("clarity", "wit", "truth")):
        f += "\nIs its " + what + " good? "
        f += Gen("verdict")
        verdicts.append(f["verdict"])  # reads, so Python waits here, three times
    s += "\nVerdicts: " + ", ".join(verdicts) + ". Print it? "
    s += Gen("print")
    return s["print"]


def main() -> None:
    graph = Graph(judge, 1)
    plan = batch_forks(graph)
    print(graph)
    lie = lambda ledger: [ledger.guess(address, ("What is the capital of France?",)) for address in graph.asks if address not in ledger.asked]
    totals, results = dict[str, list[int]](), dict[str, list[Any]]()
    for essay in (f"Essay number {i}." for i in range(8)):
        ahead = lambda ledger, essay=essay: Evaluator(judge, (essay,), Ahead(ledger))
        for how, source in (("plain", lambda ledger: None), ("ahead", ahead), ("lying", lie)):
            result, ledger = run(judge, model := Model(), (essay,), source, {} if how == "plain" else plan)
            results.setdefault(how, []).append(result)
            counted = (model.now, model.calls, model.computed, ledger.used, ledger.wasted)
            totals[how] = [a + b for a, b in zip(totals.get(how, [0] * 5), counted, strict=True)]
    assert results["plain"] == results["ahead"] == results["lying"]  # whatever was requested ahead
    for how, (rounds, calls, computed, used, wasted) in totals.items():
        print(f"{how}: {rounds} rounds, {calls} calls, {computed} characters read; {used} guesses used, {wasted} wasted")
    assert totals["ahead"][0] < totals["plain"][0] == totals["lying"][0]
    assert totals["ahead"][1:3] == totals["plain"][1:3] and totals["ahead"][4] == 0  # the same calls, and nothing read twice


if __name__ == "__main__":
    main()
