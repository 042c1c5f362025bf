"""The states of compiled runs: what the owner keeps of a run, what others see while it goes on, and what it returns."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.backend.instructions import Run
from lmc.errors import ProgramError
from lmc.frontend import tracer
from lmc.frontend.emitter import Scoped
from lmc.frontend.interpreter import LiveEmitter
from lmc.frontend.primitives import caller_loc
from lmc.frontend.state import State
from lmc.jit.growth import Start
from lmc.jit.traced import Traced
from lmc.passes.manager import Target


@dataclass(eq=False, slots=True)
class Root:
    """What the owner keeps of a run: its live state, its arguments, its place in the batch, and the tree it runs on."""

    state: State
    arguments: inspect.BoundArguments
    index: int
    batch: bool
    watched: weakref.ref[State] | None = None  # what others see of the run while it goes on
    shown: int = 0  # how many appends they have seen
    traced: Traced | None = None
    target: Target | None = None
    start: Start = Start.GRAPH
    grew: int = 0  # how often the tree did for this run
    why: str = ""  # it left the graph at a decision

    @property
    def live(self) -> LiveEmitter:
        """The emitter that knows backend, sampling defaults and seed of the run."""
        return self.state.emitter  # type: ignore[return-value]  # states of runs are live


# -- while it goes on


def show(root: Root, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Lets those who watch a run see how far it is (op `show`)."""
    assert root.watched is not None, "only runs that are watched show anything"
    root.shown = attrs["number"]
    state = root.watched()
    if state is None:
        return  # the run is being stopped
    state.ctx = prompt
    state.variables.update(_variables(held, attrs))
    if opened := attrs.get("opens"):
        state.scopes.setdefault(opened, []).append(Scoped(prompt))
    if closed := attrs.get("closes"):
        scope = state.variables[closed] = state.scopes[closed].pop()
        scope.until = prompt
        if not state.scopes[closed]:
            del state.scopes[closed]
    assert state.progress is not None
    state.progress.notify()


def _variables(held: Sequence[Any], attrs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[Any, Any]:
    """The variables that an op holds, by name."""
    return {
        name: tracer.held_of(held[2 * i], held[2 * i + 1])
        for i, name in enumerate(attrs["vars"])
        if outputs is None or name in outputs
    }


# -- at its end


def returned(
    run: Run, name: str, value: Any, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any], outputs: Sequence[str] | None
) -> State:
    """The state of a run of the program `name` that came to its end on the graph (ops `return` and `raise`)."""
    root: Root = run.root
    asked: list[Any] = list(dict.fromkeys([after.result for _, _, after in run.answers.values()]))  # merged ones once
    emitter = root.state.emitter if outputs is None else Narrowed(root.live.run, outputs)
    state = State(
        emitter, prompt, variables=_variables(held, attrs, outputs), stream=run.stream, ordinal=attrs["ordinal"], forks=attrs["forks"],
        calls=attrs["calls"], role=attrs["role"], previous=attrs["previous"], asked=[*asked, root.state.asked], name=name,
    )  # fmt: skip
    state.ret_value = _value(run, state, value)
    return state


def _value(run: Run, state: State, value: Any) -> Any:
    """What the program returned, with states for what stands for them. `state` is the one that returns it."""
    if value is tracer.SELF:
        return state
    if type(value) is tuple and any(x is tracer.SELF or isinstance(x, tracer.Returned) for x in value):
        return tuple([_value(run, state, x) for x in value])
    if not isinstance(value, tracer.Returned):
        return value
    own = run.stream + value.stream
    asked = [after.result for (stream, _), (_, _, after) in run.answers.items() if f"{stream}/".startswith(f"{own}/")]
    other = State(
        state.emitter, value.prompt, variables=value.variables, stream=own, ordinal=value.ordinal, forks=value.forks,
        calls=value.calls, role=value.role, previous=value.previous, asked=asked, name=value.name,
    )  # fmt: skip
    other.ret_value = _value(run, other, value.value)
    return other


class Narrowed(LiveEmitter):
    """For the states of programs compiled with `outputs`, whose prompts are not complete."""

    __slots__ = ("_outputs",)

    def __init__(self, run: Any, outputs: Sequence[str]) -> None:
        super().__init__(run)
        self._outputs = outputs

    def _refuse(self, what: str) -> ProgramError:
        return ProgramError(
            f"this program was compiled with outputs={list(self._outputs)}, so its {what} is not complete; compile it without outputs",
            loc=caller_loc(),
        )

    def text(self, ctx: Any, since: Any = None) -> str:
        raise self._refuse("text")

    def messages(self, ctx: Any) -> list[dict[str, str]]:
        raise self._refuse("list of messages")
