"""Compares the asks of CPython running a program with those of an evaluation that knows all answers: they have to be the same."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc.frontend import beginning
from lmc.frontend.capture.code import Outcome
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.capture.outside import OutsideSnapshot
from lmc.frontend.interpreter import Function
from lmc.frontend.live import LiveEmitter
from tests.frontend.capture.recording import Asked, Recording


@dataclass
class Run:
    """Requests by order: (address, name, prompt), answers by address, how it ended."""

    asked: list[tuple[Any, Any, Any]] = field(default_factory=list[tuple[Any, Any, Any]])
    answers: dict[Any, Any] = field(default_factory=dict[Any, Any])
    error: BaseException | None = None
    value: Any = None


def run_python(program: Function, arguments: Mapping[str, Any], answers: Any = None, **options: Any) -> Run:
    """Runs a program in the interpreter on the mock, and writes down what it asks. Addresses of other seeds are left out."""
    found = Run()

    class Writing(LiveEmitter):
        __slots__ = ()

        def _submit(self, ctx: Any, ask: Any, place: tuple[str, int]) -> Any:
            address = (place[0] if self.run.seed == 7 else f"{self.run.seed}:{place[0]}", place[1])
            text = ctx.text()
            after, result = super()._submit(ctx, ask, place)
            found.asked.append((address, ask.name, text))
            found.answers[address] = None if result.error is not None else result.output().value
            return after, result

    before, beginning.LiveEmitter = beginning.LiveEmitter, Writing  # type: ignore[misc]
    try:
        options = {"backend": lmc.Mock(answers) if answers is not None else lmc.Mock(), "seed": 7, **options}
        state = program.run(**arguments, **options)
        found.value = state.ret_value
    except (Exception, asyncio.CancelledError) as error:
        found.error = error
    finally:
        beginning.LiveEmitter = before  # type: ignore[misc]
    return found


def evaluation(program: Function, arguments: Mapping[str, Any], answers: Mapping[Any, Any], **options: Any) -> tuple[list[Asked], Outcome]:
    """Return the asks of an evaluation that knows these answers by address."""
    bound = program.arguments((), copy.deepcopy(dict(arguments)))
    emitter = Recording(lambda address, _prompt, _expr: answers.get(address), template=lmc.Mock().chat_template)
    made = emitter.evaluation = Evaluation(program, OutsideSnapshot(bound.args[1:], bound.kwargs), emitter, **options)
    return emitter.asked, made.run()


def run_evaluation(program: Function, arguments: Mapping[str, Any], answers: Mapping[Any, Any], **options: Any) -> tuple[list[tuple[Any, Any, Any]], Outcome]:
    """The same as tuples, for comparison with what Python asks."""
    asked, outcome = evaluation(program, arguments, answers, **options)
    return [(a.address, a.name, a.prompt) for a in asked], outcome
