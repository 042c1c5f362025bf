"""Stand-ins that run-ahead follows in place of DSPy's own classes. The evaluator reads this source; Python itself only
runs `ask`.

A call of a predictor becomes a fork on which its request is made. DSPy's computations before (`desk.spec`) and after it
(`desk.values`) are pure, and are called ahead on known arguments only.
"""

from __future__ import annotations

from typing import Any

import lmc


@lmc.function
def forward(s, module, desk, args, inputs):
    """Run a module: the stand-in for its run."""
    desk.state = s
    return module(*args, **inputs)


class Module:
    """Stand-in for a `dspy.Module`: its own attributes, and the functions of its class."""

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        return self.forward(*args, **inputs)  # type: ignore[attr-defined]


class Predictor:
    """Stand-in for a `dspy.Predict`, by its number on the desk."""

    desk: Any
    number: int
    names: list[str]

    def __call__(self, **inputs: Any) -> Any:
        (own,) = self.desk.state.fork(1)
        known: dict[str, str] = {}
        spec = self.desk.spec(self.number, inputs, known)
        fork = ask(own, spec)
        while not spec["whole"]:  # some fields wait for the text of another
            known = {**known, **{field["name"]: fork[field["name"]] for field in spec["fields"]}}
            spec = self.desk.spec(self.number, inputs, known)
            fork = ask(own, spec)
        values = self.desk.values(self.number, inputs, known, [fork[field["name"]] for field in spec["fields"]])
        found = Prediction()
        for name in self.names:
            setattr(found, name, values[name])
        return found


class ReAct:
    """Stand-in for a `dspy.ReAct`: its turns as far as answers and tools are known. Tools declared pure are called ahead;
    what the others give is unknown, and so are the turns after them."""

    desk: Any
    number: int
    react: Any
    extract: Any
    tools: dict[str, Any]
    max_iters: int

    def __call__(self, **inputs: Any) -> Any:
        trajectory: dict[str, Any] = {}
        most = inputs.pop("max_iters", self.max_iters)
        turn, name = 0, ""
        while turn < most and name != "finish":
            found = self.react(**inputs, trajectory=self.desk.trajectory(self.number, trajectory))
            name = found.next_tool_name
            trajectory[f"thought_{turn}"] = found.next_thought
            trajectory[f"tool_name_{turn}"] = name
            trajectory[f"tool_args_{turn}"] = found.next_tool_args
            trajectory[f"observation_{turn}"] = self.tools[name](found.next_tool_args)
            turn += 1
        given = self.extract(**inputs, trajectory=self.desk.trajectory(self.number, trajectory))
        given.trajectory = trajectory
        return given


class FollowedTool:
    """Stand-in for a `dspy.Tool`. `func` is its own function: what a pure one gave ahead is what DSPy's call of it gets."""

    func: Any
    parsed: Any

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return self.func(**self.parsed(arguments))


class Prediction:
    """Stand-in for a `dspy.Prediction`."""

    __module__ = "dspy.lowered"  # a class of lmc's would be none of the program's: what a predictor gave would be unknown


class SharedRun:
    """Shared by the predictors of a run: its state, and DSPy's part of a request (`spec`, `values`, `trajectory`)."""


def ask(own: Any, spec: Any) -> Any:
    """Make a request on a fork, and return that: its messages, then its fields one after another."""
    (fork,) = own.fork(1)
    for role, content in spec["turns"]:
        if role == "system":
            fork += lmc.system(content)
        elif role == "user":
            fork += lmc.user(content)
        else:
            fork += lmc.assistant(content)
    fork += lmc.assistant_begin()
    fork += spec["begun"]
    for field in spec["fields"]:
        fork += field["header"] + lmc.gen(field["name"], **field["given"])
    return fork
