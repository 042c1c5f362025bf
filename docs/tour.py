"""The compiler in 300 lines: a working miniature of lmc, to read from top to bottom and to run (`python docs/tour.py`).

It has the ideas and the names of the real one, and says what it leaves out. Nothing here needs lmc."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby, takewhile
from os.path import commonprefix
from typing import Any

# -- 1. An engine --------------------------------------------------------------------------------------------------------------------------
# The model gives the next character of a text. A pass computes what is new in each running request, and a character more. What was
# computed is in a radix tree, where later prompts find their prefix. A request is admitted when its slots fit beside those of the running
# ones; guesses come last. An answer is one of CHOICES, so most characters are forced; others are drafted, here from the answer before,
# and kept if the model agrees: neither costs a pass. lmc's tree has a node for a run of tokens, and evicts; constraints are automata;
# there are several sources of drafts; runs' needs are predicted, and requests preempted.
CHOICES = ("yes, it is.", "yes and no.", "no, it is not.")

def say(prompt: str) -> str:
    return CHOICES[sum(map(ord, prompt)) % 3]

@dataclass(eq=False)
class Answer:
    prompt: Prompt
    group: Any
    is_guess: bool
    text: str = ""
    slots: int = 0
    is_done = property(lambda self: self.text in CHOICES)
    asked = property(lambda self: "".join(part if isinstance(part, str) else part.text for part in self.prompt))

class Engine:
    def __init__(self, slots: int = 1000) -> None:
        self.slots, self.latest, self.tree, self.waiting, self.running = slots, "", dict[str, Any](), list[Answer](), list[Answer]()
        self.passes = self.calls = self.computed = self.forced = self.drafted = 0

    def submit(self, prompt: Prompt, group: Any = None, is_guess: bool = False) -> Answer:
        self.calls += 1
        self.waiting.append(answer := Answer(prompt, group, is_guess))
        return answer

    def step(self) -> None:
        self.passes += 1
        for answer in sorted(self.waiting, key=lambda answer: answer.is_guess):
            if all(part.is_done for part in answer.prompt if isinstance(part, Answer)):
                self.admit(answer)
        for answer in self.running:
            self.extend(answer)
        self.running = [answer for answer in self.running if not answer.is_done]

    def admit(self, answer: Answer) -> None:
        beside = [len(commonprefix([answer.asked, one.asked])) for one in self.running if one.group is not None and one.group == answer.group]  # noqa: RUF071
        new = len(answer.asked) - max([self.cached(answer.asked), *beside])  # the first of a group computes what all of them share
        answer.slots = new + max(map(len, CHOICES))
        if not self.running or answer.slots + sum(other.slots for other in self.running) <= self.slots:
            self.running.append(self.waiting.pop(self.waiting.index(answer)))
            self.computed += new

    def extend(self, answer: Answer) -> None:
        whole, size = say(answer.asked), len(answer.text) + 1  # one character is sampled
        while size < len(whole):
            is_forced = len({choice[size] for choice in CHOICES if choice.startswith(whole[:size])}) == 1
            if not is_forced and not self.latest.startswith(whole[: size + 1]):
                break
            self.forced, self.drafted, size = self.forced + is_forced, self.drafted + (not is_forced), size + 1
        answer.text, node = whole[:size], self.tree
        for char in answer.asked + answer.text:
            node = node.setdefault(char, {})
        self.latest = whole if answer.is_done else self.latest

    def cached(self, text: str) -> int:
        nodes = accumulate(text, lambda node, char: node.get(char, {}), initial=self.tree)
        return sum(1 for _ in takewhile(lambda pair: pair[1] in pair[0], zip(nodes, text, strict=False)))

# -- 2. The language -----------------------------------------------------------------------------------------------------------------------
# A program appends text and `Gen`s to a state. `s += Gen(…)` makes a request and continues; reading the answer waits. A request's address
# is the stream of the state (its path of forks) and a number on it. A state writes to an emitter, which is either a run (the ledger) or
# an evaluation of the program. In lmc, addresses also have the run's seed and its item.
Prompt = tuple[Any, ...]  # text, answers, and in an evaluation UNKNOWN
Address = tuple[str, int]

@dataclass(frozen=True)
class Gen:
    name: str

class State:
    def __init__(self, emitter: Any, prompt: Prompt = (), stream: str = "") -> None:
        self.emitter, self.prompt, self.stream, self.variables, self.ordinal, self.forks = emitter, prompt, stream, dict[str, Any](), 0, 0

    def __iadd__(self, x: Any) -> State:
        if isinstance(x, Gen):
            self.variables[x.name] = x = self.emitter.ask((self.stream, self.ordinal), self.prompt)
            self.ordinal += 1
        self.prompt = (*self.prompt, x)
        return self

    def __getitem__(self, name: str) -> Any:
        return self.emitter.value(self.variables[name])

    def fork(self, n: int) -> list[State]:
        self.forks += 1
        return [State(self.emitter, self.prompt, f"{self.stream}/{self.forks - 1}.{i}") for i in range(n)]

# -- 3. The ledger -------------------------------------------------------------------------------------------------------------------------
# The requests of one run by address: Python's own, and those made ahead (guesses). A guess is used only if it equals Python's own
# request, so a wrong, missing or malicious guess affects nothing but counters and time. Left out: sampling parameters and seeds (compared
# too), budgets, cancelling guesses that are no longer reached, lines that are turned off.
class Ledger:
    def __init__(self, engine: Engine, run_ahead: Callable[[Ledger], object], groups: Mapping[Address, Any]) -> None:
        self.engine, self.run_ahead, self.groups, self.wasted = engine, run_ahead, groups, 0
        self.asked, self.guesses = dict[Address, Answer](), dict[Address, tuple[Prompt, Answer]]()

    def ask(self, address: Address, prompt: Prompt) -> Answer:
        guess = self.guesses.pop(address, None)
        equal = guess is not None and content(guess[0]) == content(prompt)
        self.wasted += guess is not None and not equal
        self.asked[address] = answer = guess[1] if equal else self.engine.submit(prompt, self.groups.get(address))
        answer.is_guess = False
        return answer

    def guess(self, address: Address, prompt: Prompt) -> Answer:
        if address not in self.guesses:
            self.guesses[address] = prompt, self.engine.submit(prompt, self.groups.get(address), is_guess=True)
        return self.guesses[address][1]

    def value(self, answer: Answer) -> str:
        """Wait for an answer: the only time at which requests are made ahead."""
        while not answer.is_done:
            self.run_ahead(self)
            self.engine.step()
        return answer.text

def content(prompt: Prompt) -> list[Any]:
    """Return what equal prompts share, however their text was cut into appends. An answer stands for itself: what precedes it was compared before."""
    return ["".join(parts) if is_text else list(parts) for is_text, parts in groupby(prompt, lambda part: isinstance(part, str))]

# -- 4. The evaluator ----------------------------------------------------------------------------------------------------------------------
# Follows the source of a program with the values known so far. What is not in its table is UNKNOWN, and so is everything computed from
# it. It never calls the program's functions, and never waits. lmc's evaluator knows some hundred times as much (classes, generators,
# helpers, the library), compiles to closures, and copies the outside objects that it reads.
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

@dataclass
class Ahead:
    """The emitter of an evaluation while Python waits: Python's requests are known, the ones after them become guesses."""

    ledger: Ledger

    def ask(self, address: Address, prompt: Prompt) -> Any:
        if address in self.ledger.asked:
            self.evaluator.certain = True  # Python has passed everything that was undecided before
            return self.ledger.asked[address]
        return self.ledger.guess(address, prompt) if self.evaluator.certain and not lacks(prompt) else UNKNOWN

    def value(self, answer: Any) -> Any:
        return answer.text if answer is not UNKNOWN and answer.is_done else UNKNOWN

# -- 5. The graph and a pass ---------------------------------------------------------------------------------------------------------------
# The same evaluation with unknown arguments, before any run, shows which requests are made where. A pass looks at the graph and annotates
# addresses; this one says which requests are siblings. lmc's graph has ops, values, and regions for what is undecided; its passes plan
# prefixes, groups, constraints, lazy requests, and what one API request can cover.
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

# -- 6. A program, four ways ---------------------------------------------------------------------------------------------------------------
def run(program: Callable[..., Any], args: Iterable[Any], ledger: Ledger) -> Any:
    return program(State(ledger), *args)  # Python itself runs the function, once

def judge(s, essay):
    s += "Essay: " + essay + "\nIs it one? "
    s += Gen("is_essay")
    if s["is_essay"] == "no, it is not.":
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
    print(graph := Graph(judge, 1))
    lie = lambda ledger: [ledger.guess(address, ("What is the capital of France?",)) for address in graph.asks if address not in ledger.asked]
    results, engines, wasted = dict[str, list[Any]](), dict[str, Engine](), Counter[str]()
    for essay in (f"Essay number {i}." for i in range(8)):
        ahead = lambda ledger, essay=essay: Evaluator(judge, (essay,), Ahead(ledger))
        for how, run_ahead in {"plain": lambda ledger: None, "ahead": ahead, "lying": lie, "in little memory": ahead}.items():
            engine = engines.setdefault(how, Engine(60 if how == "in little memory" else 1000))
            ledger = Ledger(engine, run_ahead, {} if how == "plain" else batch_forks(graph))
            results.setdefault(how, []).append(run(judge, (essay,), ledger))
            wasted[how] += ledger.wasted + len(ledger.guesses)
    for how, e in engines.items():
        print(f"{how}: {e.passes} passes, {e.calls} calls, {wasted[how]} wasted, {e.computed} characters computed, {e.forced} forced, {e.drafted} drafted")
        assert results[how] == results["plain"]  # whatever was requested ahead, and however much room there was
    plain, ahead, _, little = engines.values()
    assert ahead.passes < little.passes < plain.passes and wasted["ahead"] == 0 and ahead.forced > ahead.drafted > 0
    assert (ahead.calls, ahead.computed) == (plain.calls, plain.computed)  # the same calls, and nothing computed twice

if __name__ == "__main__":
    main()
