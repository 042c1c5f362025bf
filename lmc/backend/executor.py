"""The executor: runs planned graphs on a backend, for one or many bindings at once, without a thread per program or fork.

A run walks its path block by block. Each op executes as soon as its operands are there and program order allows it:
what the model is asked goes out early, what can be seen from outside (effects, exceptions) keeps the program's order.
Where the graph does not go on, the owner of the run extends it, or takes the run over.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from lmc.backend.base import Backend, Handle, Hints, Meta, Result, TakeOver, check_supported
from lmc.errors import Loc
from lmc.ir.core import DEFAULT, Case, Graph, Op, Operand, Symbol, Value, exact
from lmc.ir.ops import GEN_PARAMS, trait
from lmc.prompt import Image, Mark, Origin, Part, Prompt, SamplingParams, Special, make_gen, make_select

# What an unfinished op holds back, and what an op waits for (bit masks).
READ = 1  # may raise what the backend failed with
RAISE = 2  # may raise an exception of the program's own
EFFECT = 4  # touches the world, or an object that can change
ALL = READ | RAISE | EFFECT


class _Pending:
    def __repr__(self) -> str:
        return "PENDING"


PENDING = _Pending()


class Run:
    """One run of a program: a binding of its parameters and everything that has become known since.

    env      values by slot, PENDING until they are there
    pending  instructions of the path not finished yet, in program order
    path     the answers given to the decisions so far
    record   results of host operations that must not happen twice, by their key
    answers  what was asked, by stream and ordinal: (prompt before, request, prompt after)
    """

    __slots__ = (
        "answers", "backend", "busy", "context", "defaults", "env", "error", "failure", "inflight", "item", "owner", "path", "pending",
        "pins", "record", "result", "root", "seed", "stream", "taken",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, backend: Backend, defaults: SamplingParams, seed: int, item: int, arguments: Sequence[Any], stream: str = ""
    ) -> None:
        """`stream` is what the streams of the graph are relative to: "" unless this is a run inside of another program."""
        self.owner, self.backend, self.defaults, self.seed, self.item, self.stream = owner, backend, defaults, seed, item, stream
        self.root: Any = None  # the owner's
        self.taken = False  # by the interpreter
        self.context: Context | None = None
        self.env: list[Any] = list(arguments)
        self.pending: list[Instruction] = []
        self.path: list[Any] = []
        self.record: dict[Any, tuple[bool, Any]] = {}
        self.answers: dict[tuple[str, int], tuple[Prompt, Any, Prompt]] = {}
        self.busy: set[Instruction] = set()  # started, or waiting for an answer
        self.inflight = 0  # of those, host calls running on the pool
        self.pins: list[Handle] = []
        self.failure: BaseException | None = None
        self.result: Any = None  # what the owner made of the end
        self.error: BaseException | None = None  # what the program raised

    def enter(self, code: Code) -> None:
        """Starts at the beginning of a compiled graph."""
        self.grow(code.slots)
        self.pending = list(code.entry)

    def grow(self, slots: int) -> None:
        self.env.extend([PENDING] * (slots - len(self.env)))


class Owner(Protocol):
    """Who started a run: knows the program, so it can extend the graph, take over, and say what a run returns."""

    def extend(self, run: Run, exit: Exit) -> Sequence[Instruction] | None:
        """The instructions that follow for the last decision of `run.path`; None: the interpreter takes over."""
        ...

    def finish(self, run: Run, value: Any, prompt: Prompt, held: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """What a run that returned gives back. `held`: value and meta of each variable."""
        ...

    def replay(self, run: Run) -> Any:
        """Runs the rest in the interpreter, on the run's record; gives what the run gives back, or raises."""
        ...

    def context(self, run: Run) -> Context:
        """The context in which the run's host calls execute."""
        ...


# -- instructions ------------------------------------------------------------------------------------------------------


class Instruction:
    """An op made ready to execute. `execute` gives False when it has only been started or must wait for an answer."""

    __slots__ = ("deps", "loc", "marks", "waits")

    def __init__(self, deps: tuple[int, ...], waits: int, marks: int, loc: Loc | None) -> None:
        self.deps, self.waits, self.marks, self.loc = deps, waits, marks, loc

    def execute(self, run: Run, x: Execution) -> bool:
        raise NotImplementedError


class Terminator(Instruction):
    """The end of a block. `drains`: only when everything before it is finished."""

    __slots__ = ()
    drains = True

    def follow(self, run: Run) -> Sequence[Instruction] | None:
        """The next instructions, or None when the run is over."""
        raise NotImplementedError


class _Simple(Instruction):
    """An op that computes one value from its operands at once."""

    __slots__ = ("compute", "out")

    def __init__(self, deps: tuple[int, ...], marks: int, loc: Loc | None, out: int, compute: Callable[[Run], Any]) -> None:
        super().__init__(deps, 0, marks, loc)
        self.out, self.compute = out, compute

    def execute(self, run: Run, x: Execution) -> bool:
        run.env[self.out] = self.compute(run)
        return True


class _Ask(Instruction):
    """gen and select: submits at once, waits for nothing."""

    __slots__ = ("ctx", "key", "make", "outs")

    def __init__(self, deps: tuple[int, ...], waits: int, loc: Loc | None, outs: tuple[int, ...], ctx: int, key: tuple[str, int],
                 make: Callable[[Run], Any]) -> None:  # fmt: skip
        super().__init__(deps, waits, READ, loc)
        self.outs, self.ctx, self.key, self.make = outs, ctx, key, make

    def execute(self, run: Run, x: Execution) -> bool:
        env = run.env
        before: Prompt = env[self.ctx]
        ask = self.make(run)
        after = before.submit(run.backend, ask)
        run.answers[run.stream + self.key[0], self.key[1]] = (before, ask, after)
        ctx, value, meta = self.outs
        env[ctx], env[value], env[meta] = after, after.result, Meta(after.result)  # type: ignore[arg-type]
        return True


class _Read(Instruction):
    """read: waits for an answer and raises what it failed with."""

    __slots__ = ("out", "source")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, source: int) -> None:
        super().__init__(deps, 0, READ, loc)
        self.out, self.source = out, source

    def execute(self, run: Run, x: Execution) -> bool:
        answer = run.env[self.source]
        if answer.__class__ is Meta:
            if not answer.result.done:
                return x.wait(run, self, answer.result)
            run.env[self.out] = answer.result.output().meta
        elif isinstance(answer, Result):
            if not answer.done:
                return x.wait(run, self, answer)
            run.env[self.out] = answer.output().value
        else:
            run.env[self.out] = answer
        return True


class _ReadPrompt(Instruction):
    """ctx.text, ctx.slice, ctx.messages: wait for every answer in the prompt."""

    __slots__ = ("ctx", "out", "view")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, ctx: int, view: Callable[[Run], Any]) -> None:
        super().__init__(deps, 0, READ, loc)
        self.out, self.ctx, self.view = out, ctx, view

    def execute(self, run: Run, x: Execution) -> bool:
        for node in run.env[self.ctx].nodes():
            if node.result is not None and not node.result.done:
                return x.wait(run, self, node.result)
        run.env[self.out] = self.view(run)
        return True


class _Host(Instruction):
    """host.call, ordered or effect: in program order, and its result is recorded."""

    __slots__ = ("args", "fn", "inline", "key", "kwargs", "out")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, out: int, fn: Callable[..., Any], args: _Fetch, kwargs: tuple[str, ...],
                 key: Any, inline: bool) -> None:  # fmt: skip
        super().__init__(deps, ALL, ALL, loc)
        self.out, self.fn, self.args, self.kwargs, self.key, self.inline = out, fn, args, kwargs, key, inline

    def execute(self, run: Run, x: Execution) -> bool:
        args = self.args(run.env)
        if self.inline or not x.parallel:
            self.settle(run, *self.call(run, args))
            return True
        return x.start(run, self, args)

    def call(self, run: Run, args: list[Any]) -> tuple[bool, Any]:
        """(True, result) or (False, exception)."""
        n = len(args) - len(self.kwargs)
        named = dict(zip(self.kwargs, args[n:], strict=True)) if self.kwargs else {}
        try:
            if run.context is None:
                return True, self.fn(*args[:n], **named)
            return True, run.context.run(self.fn, *args[:n], **named)
        except Exception as error:
            return False, error

    def settle(self, run: Run, ok: bool, value: Any) -> None:
        if self.key is not None and not isinstance(value, TakeOver):
            run.record[self.key] = (ok, value)
        if not ok:
            raise value
        run.env[self.out] = value


class _Prefill(Instruction):
    """prefill: hands the prompt's text to the backend and pins it. What follows builds on the prefilled prompt."""

    __slots__ = ("ctx", "shared")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, ctx: int, shared: WeakKeyDictionary[Backend, Handle] | None) -> None:
        super().__init__(deps, 0, 0, loc)
        self.ctx = ctx
        self.shared = shared  # what all runs have in common, by backend; it stays pinned

    def execute(self, run: Run, x: Execution) -> bool:
        prompt: Prompt = run.env[self.ctx]
        if self.shared is not None:
            handle = self.shared.get(run.backend)
            if handle is None:
                handle = prompt.prefill(run.backend, Hints(pin=True)).handle
                assert handle is not None
                self.shared[run.backend] = handle
            run.env[self.ctx] = Prompt(prompt, (), None, handle, ())
            return True
        prompt = run.env[self.ctx] = prompt.prefill(run.backend, Hints(pin=True))
        assert prompt.handle is not None
        run.pins.append(prompt.handle)
        return True


class _Release(Instruction):
    """release: ends the pin of a prefilled prompt."""

    __slots__ = ("ctx",)

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, ctx: int) -> None:
        super().__init__(deps, READ, 0, loc)
        self.ctx = ctx

    def execute(self, run: Run, x: Execution) -> bool:
        handle = run.env[self.ctx].handle
        if handle in run.pins:
            run.pins.remove(handle)
            run.backend.release(handle)
        return True


class Enter(Instruction):
    """The first instruction of a continuation: makes room for its values."""

    __slots__ = ("slots",)

    def __init__(self, slots: int) -> None:
        super().__init__((), 0, 0, None)
        self.slots = slots

    def execute(self, run: Run, x: Execution) -> bool:
        run.grow(self.slots)
        return True


class Switch(Terminator):
    """switch: takes the arm of the operand's value."""

    __slots__ = ("arms", "cond", "default")
    drains = False

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, cond: Callable[[list[Any]], Any]) -> None:
        super().__init__(deps, 0, 0, loc)
        self.cond = cond
        self.arms: dict[Any, Sequence[Instruction]] = {}
        self.default: Sequence[Instruction] = ()

    def follow(self, run: Run) -> Sequence[Instruction]:
        answer = self.cond(run.env)
        run.path.append(answer)
        return self.arms.get(case_key(answer), self.default)


class Return(Terminator):
    __slots__ = ("attrs", "held", "prompt", "value")

    def __init__(self, deps: tuple[int, ...], loc: Loc | None, value: _Get, prompt: _Get, held: _Fetch, attrs: Mapping[str, Any]) -> None:
        super().__init__(deps, 0, 0, loc)
        self.value, self.prompt, self.held, self.attrs = value, prompt, held, attrs

    def follow(self, run: Run) -> None:
        env = run.env
        run.result = run.owner.finish(run, self.value(env), self.prompt(env), self.held(env), self.attrs)


class Exit(Terminator):
    """exit: where the graph ends but the program goes on. `switch` is the decision it hangs on (None: an escape)."""

    __slots__ = ("code", "operands", "reason", "switch")

    def __init__(self, code: Code, loc: Loc | None, reason: str | None, operands: tuple[int | _Const, ...]) -> None:
        super().__init__((), 0, 0, loc)
        self.code, self.reason, self.operands = code, reason, operands
        self.switch: Switch | None = None

    def follow(self, run: Run) -> Sequence[Instruction]:
        following = run.owner.extend(run, self) if self.switch is not None else None
        if following is None:
            raise TakeOver(self.reason or "")
        return following


def case_key(answer: Any) -> Any:
    """The key of a decision's answer: exact for literals, identity for other objects."""
    kind = answer.__class__
    if kind is bool or kind is str or kind is int:
        return kind, answer
    if kind in (float, bytes, type(None), tuple):
        return kind, exact(answer)
    return id(answer)


# -- compiling a graph -----------------------------------------------------------------------------------------------------


class _Const:
    """An operand that is known when the graph is compiled."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_Get = Callable[[list[Any]], Any]
_Fetch = Callable[[list[Any]], list[Any]]


class Code:
    """A planned graph as instructions. `bound` places the parameters of a continuation: slots or constants."""

    def __init__(self, graph: Graph, *, strict: bool = False, bound: Sequence[int | _Const] | None = None, first: int = 0) -> None:
        self.graph = graph
        self.strict = strict  # what the model is asked waits for everything before it (opt=0)
        self._place: dict[Value, int | _Const] = {}
        self.slots = first
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

    # places of values

    def _new(self) -> int:
        self.slots += 1
        return self.slots - 1

    def out(self, value: Value) -> int:
        slot = self._place[value] = self._new()
        return slot

    def place(self, operand: Operand) -> int | _Const:
        """Where an operand's run-time value is: a slot, or here."""
        if isinstance(operand, Value):
            return self._place[operand]
        if isinstance(operand, Symbol):
            return _Const(self.graph.symbols[operand.name])
        return _Const(operand)

    def slot(self, operand: Operand) -> int:
        place = self.place(operand)
        assert isinstance(place, int), f"{operand} is a constant"
        return place

    def deps(self, *operands: Operand) -> tuple[int, ...]:
        places = [self.place(x) for x in operands]
        return tuple(dict.fromkeys(p for p in places if isinstance(p, int)))

    def get(self, operand: Operand) -> _Get:
        place = self.place(operand)
        if isinstance(place, int):
            return lambda env: env[place]
        constant = place.value
        return lambda env: constant

    def fetch(self, operands: Sequence[Operand]) -> _Fetch:
        """All operands' values as a new list."""
        places = [self.place(x) for x in operands]
        if not any(isinstance(p, int) for p in places):
            constants = [p.value for p in places if isinstance(p, _Const)]
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
                return Return(self.deps(*op.operands), op.loc, self.get(value), self.get(prompt), self.fetch(held), op.attrs)
            case "exit":
                return Exit(self, op.loc, op.attr("reason"), tuple(self.place(x) for x in op.operands))
            case _:
                raise NotImplementedError(f"the executor has no rule for {op.kind}")

    def _case(self, case: Case) -> Any:
        return self.graph.symbols[case.name] if isinstance(case, Symbol) else case


def _append(code: Code, op: Op) -> Instruction:
    ctx, *parts = op.operands
    prompt = code.get(ctx)
    if all(isinstance(p, str | Special | Mark) for p in parts):
        constant: tuple[Part, ...] = tuple(parts)  # type: ignore[arg-type]
        return _Simple(code.deps(ctx), 0, op.loc, code.out(op.results[0]), lambda run: prompt(run.env).append(*constant))
    fetch = code.fetch(parts)
    return _Simple(code.deps(*op.operands), 0, op.loc, code.out(op.results[0]), lambda run: prompt(run.env).append(*fetch(run.env)))


def _new(code: Code, op: Op) -> Instruction:
    return _Simple((), 0, op.loc, code.out(op.results[0]), lambda run: Prompt())


def _concat(code: Code, op: Op) -> Instruction:
    fetch = code.fetch(op.operands)
    return _Simple(code.deps(*op.operands), 0, op.loc, code.out(op.results[0]), lambda run: "".join(fetch(run.env)))


def _image(code: Code, op: Op) -> Instruction:
    prompt, fetch = code.get(op.operands[0]), code.fetch(op.operands[1:])

    def compute(run: Run) -> Prompt:
        image = Image(*fetch(run.env))
        check_supported(run.backend.capabilities, (image,))
        return prompt(run.env).append(image)

    return _Simple(code.deps(*op.operands), RAISE, op.loc, code.out(op.results[0]), compute)


_DTYPES = {"int": int, "float": float, "str": str, "bool": bool}


def _gen(code: Code, op: Op) -> Instruction:
    given: dict[str, Any] = {k: op.attrs[k] for k in GEN_PARAMS if k in op.attrs}
    if given.get("dtype") in _DTYPES:
        given["dtype"] = _DTYPES[given["dtype"]]
    names: tuple[str, ...] = op.attr("params", ())
    ctx, *extra = op.operands
    fetch = code.fetch(extra)
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

    return _Ask(
        code.deps(*op.operands), ALL if code.strict else RAISE, op.loc, tuple(map(code.out, op.results)), code.slot(ctx), (stream, ordinal), make
    )


def _select(code: Code, op: Op) -> Instruction:
    names: tuple[str, ...] = op.attr("params", ())
    ctx, *operands = op.operands
    count = len(operands) - len(names)
    fetch = code.fetch(operands)
    stream, ordinal = op.attr("stream"), op.attr("ordinal")
    fixed = {"method": op.attr("method"), "temperature": op.attr("temperature", 0.0)}

    def make(run: Run) -> Any:
        values = fetch(run.env)
        given = {**fixed, **dict(zip(names, values[count:], strict=True))}
        origin = Origin(run.seed, run.item, run.stream + stream, ordinal)
        return make_select(values[:count], given["temperature"], given["method"], origin, op.attr("name"), op.loc)

    return _Ask(
        code.deps(*op.operands), ALL if code.strict else RAISE, op.loc, tuple(map(code.out, op.results)), code.slot(ctx), (stream, ordinal), make
    )


def _read(code: Code, op: Op) -> Instruction:
    deps = code.deps(*op.operands)
    source = code.slot(op.operands[0])
    return _Read(deps, op.loc, code.out(op.results[0]), source)


def _read_prompt(code: Code, op: Op) -> Instruction:
    prompt = code.get(op.operands[0])
    if op.kind == "ctx.slice":
        since = code.get(op.operands[1])
        view: Callable[[Run], Any] = lambda run: prompt(run.env).text(since(run.env))
    elif op.kind == "ctx.text":
        view = lambda run: prompt(run.env).text()
    else:
        view = lambda run: prompt(run.env).messages()
    return _ReadPrompt(code.deps(*op.operands), op.loc, code.out(op.results[0]), code.slot(op.operands[0]), view)


def _host(code: Code, op: Op) -> Instruction:
    symbol, *operands = op.operands
    assert isinstance(symbol, Symbol)
    fn = code.graph.symbols[symbol.name]
    deps, fetch, kwargs = code.deps(*operands), code.fetch(operands), op.attr("kwargs", ())
    out = code.out(op.results[0]) if op.results else code._new()
    if trait(op) != "pure":
        return _Host(deps, op.loc, out, fn, fetch, kwargs, op.attr("ord"), bool(op.attr("inline")))
    marks = 0 if op.attr("total") else RAISE
    if not kwargs:
        return _Simple(deps, marks, op.loc, out, lambda run: fn(*fetch(run.env)))
    n = len(operands) - len(kwargs)

    def compute(run: Run) -> Any:
        values = fetch(run.env)
        return fn(*values[:n], **dict(zip(kwargs, values[n:], strict=True)))

    return _Simple(deps, marks, op.loc, out, compute)


def _prefill(code: Code, op: Op) -> Instruction:
    shared = WeakKeyDictionary[Backend, Handle]() if op.attr("scope") == "program" else None
    return _Prefill(code.deps(*op.operands), op.loc, code.slot(op.operands[0]), shared)


def _release(code: Code, op: Op) -> Instruction:
    return _Release(code.deps(*op.operands), op.loc, code.slot(op.operands[0]))


_RULES: Mapping[str, Callable[[Code, Op], Instruction]] = {
    "ctx.new": _new, "append": _append, "image": _image, "video": _image, "ctx.text": _read_prompt, "ctx.slice": _read_prompt,
    "ctx.messages": _read_prompt, "concat": _concat, "gen": _gen, "select": _select, "read": _read, "host.call": _host,
    "prefill": _prefill, "release": _release,
}  # fmt: skip


# -- executing -------------------------------------------------------------------------------------------------------------


class Execution:
    """Drives a set of runs to their ends in the calling thread.

    parallel  host calls that may block run on a pool, so that they do not hold up other runs
    """

    def __init__(self, *, parallel: bool, workers: int = 64) -> None:
        self.parallel, self.workers = parallel, workers
        self._events: queue.SimpleQueue[tuple[Run, Instruction | None]] = queue.SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        self._unfinished: dict[Run, None] = {}

    def run(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Gives each run when it is over: with `result`, or with `error` if the program raised."""
        try:
            for run in runs:
                self._unfinished[run] = None
                yield from self._advanced(run)
                while not self._events.empty():
                    yield from self._handle(*self._events.get())
            while self._unfinished:
                yield from self._handle(*self._events.get())
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what is not finished; an exception or an abandoned iteration leaves nothing running."""
        for run in self._unfinished:
            cancel(run)
        self._unfinished.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _handle(self, run: Run, instruction: Instruction | None) -> Iterator[Run]:
        if run not in self._unfinished:
            return
        if instruction is None:  # a replay on the pool is over
            yield from self._over(run)
            return
        run.busy.discard(instruction)
        if run.taken:
            return
        if run.failure is not None:
            yield from self._failed(run)
            return
        if isinstance(instruction, _Host):  # done on the pool; a read is executed again instead
            run.pending.remove(instruction)
        yield from self._advanced(run)

    # what instructions need

    def wait(self, run: Run, instruction: Instruction, answer: Result) -> bool:
        """Executes the instruction again when the answer is there."""
        run.busy.add(instruction)

        def notify(result: Result) -> None:
            if result.done:
                self._events.put((run, instruction))

        answer.on_change(notify)
        return False

    def start(self, run: Run, instruction: _Host, args: list[Any]) -> bool:
        """Runs a host call on the pool."""
        if run.context is None:
            run.context = run.owner.context(run)
        run.busy.add(instruction)
        run.inflight += 1

        def work() -> None:
            try:
                outcome = instruction.call(run, args)
            except BaseException as error:  # SystemExit and the like end the run, and are raised to the caller
                run.taken, run.error = True, error
                self._events.put((run, None))
                return
            run.inflight -= 1
            self._settle(run, instruction, outcome)
            self._events.put((run, instruction))

        self.pool.submit(work)
        return False

    def _settle(self, run: Run, instruction: _Host, outcome: tuple[bool, Any]) -> None:
        try:
            instruction.settle(run, *outcome)
        except Exception as error:
            run.failure = run.failure or error

    @property
    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="lmc-host")
        return self._pool

    # one run

    def _advanced(self, run: Run) -> Iterator[Run]:
        try:
            over = self._advance(run)
        except Exception as error:  # of the program, or TakeOver: the interpreter goes on from the record
            run.failure = error
            yield from self._failed(run)
            return
        if over:
            yield from self._over(run)

    def _advance(self, run: Run) -> bool:
        """Executes all that can be executed now, in program order; True when the run is over."""
        env, busy = run.env, run.busy
        todo: Sequence[Instruction] = run.pending
        kept: list[Instruction] = []
        held = 0  # marks of the unfinished instructions so far
        i = 0
        while i < len(todo):
            instruction = todo[i]
            i += 1
            ready = not (instruction.waits & held or instruction in busy) and all([env[d] is not PENDING for d in instruction.deps])
            if ready and isinstance(instruction, Terminator):
                if kept and instruction.drains:
                    kept.append(instruction)
                    break
                following = instruction.follow(run)
                if following is None:
                    return True
                todo, i = following, 0
                continue
            if ready and instruction.execute(run, self):
                continue
            kept.append(instruction)
            held |= instruction.marks
        run.pending = kept
        return False

    def _failed(self, run: Run) -> Iterator[Run]:
        """The program raised, or left the graph: once running host calls are settled, the interpreter goes on."""
        if run.inflight:
            return
        run.taken = True
        if not self.parallel:
            self._replay(run)
            yield from self._over(run)
        else:
            def work() -> None:
                self._replay(run)
                self._events.put((run, None))

            self.pool.submit(work)

    def _replay(self, run: Run) -> None:
        try:
            run.result = run.owner.replay(run)
        except Exception as error:
            run.error = error
            cancel(run)  # nobody can read what it asked

    def _over(self, run: Run) -> Iterator[Run]:
        del self._unfinished[run]
        unpin(run)
        run.pending, run.env = [], []
        yield run


def unpin(run: Run) -> None:
    """Ends the run's pins that no release has ended."""
    for handle in run.pins:
        run.backend.release(handle)
    run.pins.clear()


def cancel(run: Run) -> None:
    """Cancels everything the run has asked."""
    for _, _, prompt in run.answers.values():
        if prompt.handle is not None and prompt.result is not None and not prompt.result.done:
            prompt.handle.cancel()
    unpin(run)
