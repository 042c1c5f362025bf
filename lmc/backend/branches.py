"""Branches asked ahead: while a decision waits, what the known arms would ask is asked already. Never effects; only where a run allows it.

An arm is followed up to its first call of the host that is not pure, its next decision, or its end. An ask of it goes out only if all
of its prompt is known: otherwise it would begin no sooner, and cost something all the same. When the decision is made, the asks of the
arm that is taken are its own if they are what it asks; all others are wasted: cancelled, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmc.backend.instructions import (
    PENDING,
    Ask,
    Enter,
    Given,
    Instruction,
    Prefill,
    Read,
    Release,
    Run,
    Show,
    Simple,
    Switch,
)
from lmc.prompt import Image, Prompt

MAX_ARMS = 2
MAX_ASKS = 4
"""A decision between more arms is not asked ahead; of one arm, no more than these are."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What was asked for an arm before it was known to be taken: the prompt before, the request, the prompt after."""

    before: Prompt
    ask: Any
    after: Prompt

    def answers(self, before: Prompt, ask: Any) -> bool:
        """Whether it is this request."""
        return ask == self.ask and list(before.pieces()) == list(self.before.pieces())


def ask_ahead(run: Run, switch: Switch) -> None:
    """Asks what the arms of a decision that waits would ask."""
    arms = [*switch.arms.values(), *([switch.default] if switch.default else [])]
    arms = [arm for arm in arms if any(isinstance(instruction, Ask) for instruction in arm)]
    if len(arms) > MAX_ARMS:
        return
    for arm in arms:
        _follow(run, arm)


def settle(run: Run, taken: Sequence[Instruction]) -> None:
    """The decision is made: what the other arms asked is wasted."""
    for instruction in [i for i in run.guesses if i not in taken]:
        waste(run, instruction)


def waste(run: Run, instruction: Ask) -> None:
    """Cancels what was asked ahead in vain."""
    handle = run.guesses.pop(instruction).after.handle
    run.wasted += 1
    if handle is not None:
        handle.cancel()


def _follow(run: Run, arm: Sequence[Instruction]) -> None:
    ahead = run.ahead_of()
    asked = 0
    for instruction in arm:
        if isinstance(instruction, Enter):
            instruction.execute(ahead, _NOBODY)
        elif isinstance(instruction, Ask):
            if instruction in run.guesses:
                asked += 1
                instruction.know(ahead.env, run.guesses[instruction].after)
            elif asked < MAX_ASKS and instruction.has_operands(ahead.env) and _complete(ahead.env[instruction.ctx]):
                asked += 1
                _guess(run, ahead, instruction)
        elif isinstance(instruction, Simple | Given):
            if instruction.has_operands(ahead.env):
                try:
                    instruction.execute(ahead, _NOBODY)
                except Exception:
                    return  # the program raises this if it gets here
        elif isinstance(instruction, Read):
            answer = ahead.env[instruction.source] if instruction.has_operands(ahead.env) else PENDING
            result = getattr(answer, "result", answer)  # a Meta has one
            if answer is not PENDING and getattr(result, "done", True) and getattr(result, "error", None) is None:
                instruction.execute(ahead, _NOBODY)
        elif not isinstance(instruction, Prefill | Release | Show):
            return  # a call of the host, or the end of the arm


def _guess(run: Run, ahead: Run, instruction: Ask) -> None:
    before: Prompt = ahead.env[instruction.ctx]
    try:
        ask = instruction.make(ahead)
        after = before.submit(run.backend, ask, instruction.visit.hints(run)._replace(group=None, members=1, way=(0, 1), guess=True))
    except Exception:
        return  # raised where the program asks it, if it does
    run.guesses[instruction] = Guess(before, ask, after)
    instruction.know(ahead.env, after)


def _complete(prompt: Prompt) -> bool:
    """Whether a prompt is known to its end, without what may be another one when it is looked at again."""
    nodes = prompt.nodes()
    return all(node.result is None or (node.result.done and node.result.error is None) for node in nodes) and not any(
        isinstance(part, Image) for node in nodes for part in node.parts
    )


class _Nobody:
    """Drives what neither waits nor starts anything."""

    parallel = False

    def wait(self, *_: Any) -> bool:
        return False

    def start(self, *_: Any) -> bool:
        return False


_NOBODY: Any = _Nobody()
