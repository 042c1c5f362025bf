"""Stand-ins that run-ahead follows in place of DSPy's own classes. The evaluator reads this source; Python itself only
runs `ask`.

A call of a predictor becomes a fork on which its request is made. DSPy's computations before (`desk.spec`) and after it
(`desk.values`) are pure, and are called ahead on known arguments only.
"""

from __future__ import annotations

from typing import Any

import lmc


@lmc.function
def forward(s, module, desk, inputs):
    """Run a module: the stand-in for its run."""
    desk.state = s
    return module(**inputs)


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
        (fork,) = own.fork(1)  # for each retry
        spec = self.desk.spec(self.number, inputs)
        ask(fork, spec)
        values = self.desk.values(self.number, inputs, [fork[field["name"]] for field in spec["fields"]])
        found = Prediction()
        for name in self.names:
            setattr(found, name, values[name])
        return found


class Prediction:
    """Stand-in for a `dspy.Prediction`."""

    __module__ = "dspy.lowered"  # a class of lmc's would be none of the program's: what a predictor gave would be unknown


class SharedRun:
    """Shared by the predictors of a run: its state, and DSPy's part of a request (`spec`, `values`)."""


def ask(fork: Any, spec: Any) -> None:
    """Make a request on a fork: its messages, then its fields one after another."""
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
