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


def predictor(desk: Any, number: int, names: list[str]) -> Any:
    """Return the stand-in for a `dspy.Predict`, by its number on the desk: a function, so that skipped code that uses it changes nothing of it."""

    def predict(**inputs: Any) -> Any:
        (own,) = desk.state.fork(1)
        known: dict[str, str] = {}
        spec = desk.spec(number, inputs, known)
        fork = ask(own, spec)
        while not spec["whole"]:  # some fields wait for the text of another
            known = {**known, **{field["name"]: fork[field["name"]] for field in spec["fields"]}}
            spec = desk.spec(number, inputs, known)
            fork = ask(own, spec)
        values = desk.values(number, inputs, known, [fork[field["name"]] for field in spec["fields"]])
        found = Prediction()
        for name in names:
            setattr(found, name, values[name])
        return found

    return predict


def agent(desk: Any, number: int, react: Any, extract: Any, tools: tuple[Any, ...], most: int) -> Any:
    """Return the stand-in for a `dspy.ReAct`: its turns as far as answers and tools are known. Tools declared pure are called ahead; what the others
    give is unknown, and so are the turns after them."""

    def act(max_iters: int = most, **inputs: Any) -> Any:
        trajectory: dict[str, Any] = {}
        turn, name = 0, ""
        while turn < max_iters and name != "finish":
            found = react(**inputs, trajectory=desk.trajectory(number, trajectory))
            name = found.next_tool_name
            trajectory[f"thought_{turn}"] = found.next_thought
            trajectory[f"tool_name_{turn}"] = name
            trajectory[f"tool_args_{turn}"] = found.next_tool_args
            at, arguments = desk.tool(number, name, found.next_tool_args)
            trajectory[f"observation_{turn}"] = tools[at](**arguments)
            turn += 1
        given = extract(**inputs, trajectory=desk.trajectory(number, trajectory))
        given.trajectory = trajectory
        return given

    return act


class Prediction:
    """Stand-in for a `dspy.Prediction`."""

    __module__ = "dspy.lowered"  # a class of lmc's would be none of the program's: what a predictor gave would be unknown


class SharedRun:
    """Shared by the predictors of a run: its state, and DSPy's part of a request (`spec`, `values`, `trajectory`, `tool`)."""


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
