"""`lmc.compile(module)`: a DSPy module whose predictors make the requests of one program, with run-ahead across them.

module(question=…)      DSPy's own call, executed by CPython: callbacks, history, traces, caches and errors are DSPy's
  └─ predictor ── adapter ── LM ── engine ──► made on a fork of the run's state: addresses, ledger, usage, journal of the program
while an answer is waited for: the module's `forward`, followed on stand-ins (followed.py), makes the next requests
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

import dspy

import lmc
from lmc.code_origin import FOLLOWED
from lmc.errors import ArgumentError
from lmc.explain import of_runs
from lmc.frontend.host import HostFunction
from lmc.frontend.state import State
from lmc.integrations.dspy import followed
from lmc.integrations.dspy.engine import OnBackend, RequestEngine
from lmc.integrations.dspy.pending import running, spec_of
from lmc.runahead.evaluating import ProgramSource

FOLLOWED.add(followed.__file__)


class CompiledModule(dspy.Module):
    """A module equivalent to `module`. Takes part in DSPy's evaluation and optimizers as any module; saving saves the
    module's state.

    module  the compiled module; its predictors are found under its name
    """

    def __init__(self, module: dspy.Module, **options: Any) -> None:
        super().__init__()
        self.module = module
        self._options = options
        self._program = lmc.compile(_run, **options)
        self._program.make_source = _foreseen

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Run the module once, on the backend of the `lmc.dspy.LM` in force; without one, as DSPy runs it."""
        backend = self._backend
        if backend is None:
            return self.module(*args, **inputs)
        return self._program.call({"module": self.module, "args": args, "inputs": inputs}, backend=backend, temperature=1.0).ret_value

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """As `forward`, on DSPy's own asynchronous path, which makes no requests ahead."""
        return await self.module.acall(*args, **inputs)

    def run(self, inputs: Mapping[str, Any], **options: Any) -> State:
        """Run the module once and return the state of the run: `ret_value`, and `usage` with the requests made ahead.

        options  of `program.call`: budget, timeout, ahead, seed, priority, …
        Raises ArgumentError if the LM in force is not an `lmc.dspy.LM`, and for `journal=` and `deadline=`.
        """
        if refused := [name for name in ("journal", "deadline", "stream") if options.get(name)]:
            raise ArgumentError(f"run({refused[0]}=…): a DSPy module's own calls are not recorded; write the steps as an lmc program to have that")
        backend = self._backend
        if backend is None:
            raise ArgumentError("run() needs dspy.configure(lm=lmc.dspy.LM(…)): the LM in force is not lmc's")
        return self._program.call({"module": self.module, "args": (), "inputs": dict(inputs)}, backend=backend, **options)

    @property
    def _backend(self) -> Any:
        """Return the backend of DSPy's LM, or of the first predictor that has an LM of its own; None if neither is lmc's."""
        lms = (dspy.settings.lm, *(predictor.lm for predictor in self.module.predictors()))
        return next((backend for lm in lms if (backend := _backend(lm)) is not None), None)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self.module, memo), **self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"], **state["_options"])

    def explain(self, format: str = "text") -> str:
        """Report the runs' requests, made ahead and wasted, as `program.explain` does; the text without a graph, which is drawn while a run waits."""
        return "\n".join([f"module {type(self.module).__name__}", *of_runs(self._program)]) if format == "text" else self._program.explain(format)


def compile_module(module: dspy.Module, **options: Any) -> CompiledModule:
    """Compile a module. Options as of `lmc.compile`, except those that need the graph of a program."""
    if unknown := {name for name in ("outputs", "aggressive") if options.get(name)}:
        raise ArgumentError(f"lmc.compile of a DSPy module takes no {', '.join(sorted(unknown))}: its graph is drawn while it runs")
    kept = {name: options[name] for name in ("opt", "ahead") if name in options}
    return CompiledModule(module.module if isinstance(module, CompiledModule) else module, **kept)


def _backend(lm: Any) -> Any:
    """Return the backend of an LM, if it is lmc's."""
    engine = getattr(lm, "engine", None)
    return engine.backend if isinstance(engine, OnBackend) else None


@lmc.function
def _run(s, module, args, inputs):
    """Run a module by DSPy's own call."""
    token = running.set(s)
    try:
        return module(*args, **inputs)
    finally:
        running.reset(token)


# -- predicting requests -----------------------------------------------------------------------------------------------


class _Foreseen:
    """Follows a module's `forward` on stand-ins, which are made when the program waits."""

    def __init__(self, bound: Any, state: State) -> None:
        _, self._module, *self._given = bound.args
        self._state, self._source = state, None
        self._lm, self._adapter = dspy.settings.lm, dspy.settings.adapter

    def evaluate(self, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        if self._source is None:
            standing = StandIns(self._lm, self._adapter, self._state.emitter.run.backend)
            module = standing.of(self._module)
            self._source = ProgramSource(followed.forward, followed.forward.arguments((module, standing.desk, *self._given)), self._state)
        return self._source.evaluate(ledger, run, stops)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def _foreseen(function: Any, bound: Any, state: State) -> Any:
    return _Foreseen(bound, state)


class StandIns:
    """Plain objects that represent modules: with the functions of their classes, and predictors as numbers of a
    desk."""

    def __init__(self, lm: Any, adapter: Any, backend: Any) -> None:
        """Set up; `backend`: of the run, on which alone requests are made ahead."""
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # keeps the objects of ids alive
        self._predictors: list[tuple[Any, tuple[Any, ...]]] = []  # and the modules around each
        self._agents: list[Any] = []
        self._around: tuple[Any, ...] = ()
        self._lm, self._adapter, self._backend = lm, _silent(adapter or dspy.ChatAdapter()), backend
        desk = _plain(followed.SharedRun)
        parses = lmc.host if isinstance(self._adapter, dspy.TwoStepAdapter) else lmc.pure  # that one asks a model to parse
        desk.spec, desk.values = lmc.pure(self.spec), parses(self.values)
        desk.trajectory, desk.tool = lmc.pure(self.trajectory), lmc.pure(self.tool)
        self.desk = desk

    def of(self, x: Any) -> Any:
        """Return the stand-in of a value: for a module a plain object, for a container of modules another one, else the
        value itself."""
        if isinstance(x, dspy.Module):
            known = self._made.get(id(x))
            if known is not None:
                return known
            around, self._around = self._around, (*self._around, x)
            try:
                return self._of_module(x)
            finally:
                self._around = around
        if type(x) in (list, tuple):
            return type(x)([self.of(item) for item in x])
        if type(x) is dict:
            return {key: self.of(item) for key, item in x.items()}
        return x

    def _of_module(self, x: Any) -> Any:
        self._kept.append(x)
        if type(x) is dspy.ChainOfThought:
            made = self._made[id(x)] = self.of(x.predict)
            return made
        if type(x) is dspy.Predict and _backend(x.lm or self._lm) is not self._backend:
            made = self._made[id(x)] = lmc.host(lambda **inputs: x(**inputs))  # only Python can tell what another model says
            return made
        if type(x) is dspy.Predict:
            made = self._made[id(x)] = followed.predictor(self.desk, len(self._predictors), list(x.signature.output_fields))
            self._predictors.append((x, self._around[:-1]))
            return made
        if type(x) is dspy.ReAct:
            tools = tuple(map(_function_of, x.tools.values()))
            made = self._made[id(x)] = followed.agent(self.desk, len(self._agents), self.of(x.react), self.of(x.extract), tools, x.max_iters)
            self._agents.append(x)
            return made
        functions = {
            name: member for cls in reversed(type(x).__mro__)
            if issubclass(cls, dspy.Module) and cls is not dspy.Module and not cls.__module__.startswith("dspy.")
            for name, member in vars(cls).items()
            if isinstance(member, types.FunctionType | staticmethod | classmethod | property) and not name.startswith("__")
        }  # fmt: skip
        made = self._made[id(x)] = _plain(followed.Module, functions)
        for name, value in vars(x).items():
            if name not in ("callbacks", "history"):
                setattr(made, name, self.of(value))
        return made

    # -- DSPy's part of a request, called ahead

    def spec(self, number: int, inputs: dict[str, Any], known: dict[str, str]) -> Any:
        """Return a predictor's request on these inputs, after the fields whose texts are known."""
        predictor, around = self._predictors[number]
        probe = _silent(predictor)
        lm, probe.lm = probe.lm or self._lm, None
        lm = _silent(lm.copy(engine=_SilentEngine(lm.engine), cache=False))
        try:
            with self._silently(lm=lm, trace=None, track_usage=False, caller_modules=[*around]):
                probe(**inputs)
        except _Probed as probed:
            return spec_of(probed.request, known)
        return None

    def values(self, number: int, inputs: dict[str, Any], known: dict[str, str], texts: list[str]) -> Any:
        """Return a predictor's outputs from the texts of its fields."""
        predictor, _ = self._predictors[number]
        spec = self.spec(number, inputs, known)
        text = spec["begun"] + "".join(field["header"] + text for field, text in zip(spec["fields"], texts, strict=True))
        with self._silently():
            return self._adapter.parse(predictor.signature, text + spec["closing"])

    def trajectory(self, number: int, trajectory: dict[str, Any]) -> str:
        """Return an agent's turns as it shows them to its model."""
        with self._silently():
            return self._agents[number]._format_trajectory(trajectory)

    def tool(self, number: int, name: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return which of an agent's tools has this name, and the arguments that it is called with."""
        tools = self._agents[number].tools
        return [*tools].index(name), tools[name]._validate_and_parse_args(**arguments)

    def _silently(self, **settings: Any) -> Any:
        """Enter DSPy's settings of what runs ahead: callbacks are told of what Python does."""
        return dspy.context(adapter=self._adapter, callbacks=[], **settings)


def _silent(x: Any) -> Any:
    """Return a copy of an object of DSPy's without its own callbacks."""
    made = copy.copy(x)
    made.callbacks = []
    return made


def _function_of(tool: dspy.Tool) -> Any:
    """Return a tool's own function: what a pure one gave ahead is what DSPy's call of it gets."""
    return tool.func if isinstance(tool.func, HostFunction) else (lmc.pure if tool.name == "finish" else lmc.host)(tool.func)


class _Probed(BaseException):
    """Carries a probed request: not an error that DSPy's handlers would catch."""

    def __init__(self, request: Any) -> None:
        self.request = request


class _SilentEngine(RequestEngine):
    """An engine that makes no requests."""

    def __init__(self, engine: OnBackend) -> None:
        super().__init__(engine.backend)

    def complete(self, request: Any) -> Any:
        raise _Probed(request)


def _plain(cls: type, functions: Mapping[str, Any] = {}) -> Any:
    """Return an object of such a class that the evaluator takes for one of the program's."""
    own = {name: member for name, member in vars(cls).items() if isinstance(member, types.FunctionType) or name == "__doc__"}
    return type(cls.__name__, (), {**own, **functions, "__module__": "dspy.lowered"})()


__all__ = ["CompiledModule", "compile_module"]
