"""What run-ahead follows in place of DSPy's own classes. The evaluator reads this source; of it Python runs `ask` alone.

A call of a predictor becomes a fork on which its request is asked. Whatever DSPy computes before (`desk.spec`) and behind it (`desk.values`) is
pure, and is called ahead on known arguments only.
"""

from __future__ import annotations

from typing import Any

import lmc


@lmc.function
def forward(s, module, desk, inputs):
    """Stands for a run of a module."""
    desk.state = s
    return module(**inputs)


class Module:
    """Stands for a `dspy.Module`: its own attributes, and the functions of its class."""

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        return self.forward(*args, **inputs)  # type: ignore[attr-defined]


class Predictor:
    """Stands for a `dspy.Predict`, by its number on the desk."""

    desk: Any
    number: int
    names: list[str]

    def __call__(self, **inputs: Any) -> Any:
        (own,) = self.desk.state.fork(1)
        (fork,) = own.fork(1)  # each time that it has to ask again
        spec = self.desk.spec(self.number, inputs)
        ask(fork, spec)
        values = self.desk.values(self.number, inputs, [fork[field["name"]] for field in spec["fields"]])
        found = Prediction()
        for name in self.names:
            setattr(found, name, values[name])
        return found


class Prediction:
    """Stands for a `dspy.Prediction`."""

    __module__ = "dspy.lowered"  # a class of lmc's would be none of the program's: what a predictor gave would be unknown


class Desk:
    """What the predictors of a run share: its state, and DSPy's part of a request (`spec`, `values`)."""


def ask(fork: Any, spec: Any) -> None:
    """Ask on a fork what a request asks: its messages, then its fields one after another."""
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
