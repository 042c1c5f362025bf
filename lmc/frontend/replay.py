"""Interpreter replay: a compiled run that left its graph goes on as plain Python, answered from what it already did."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from lmc.backend.base import Result
from lmc.frontend.hooks import hooks
from lmc.frontend.instrument import instrument
from lmc.frontend.interpreter import ACTIVE, Function, LiveEmitter, Run
from lmc.frontend.keys import Ahead, Key, Record
from lmc.frontend.primitives import GenExpr, SelectExpr
from lmc.frontend.replay_mode import ReplayMode
from lmc.frontend.state import State
from lmc.frontend.tree import Tree
from lmc.frontend.values import active
from lmc.limits import decided
from lmc.prompt import Excerpt, Gen, Origin, Prompt, Select, make_gen, make_select

Answers = Mapping[tuple[str, int], tuple[Prompt, Any, Prompt]]
"""What was asked, by stream and ordinal: (prompt before, request, prompt after)."""


class ReplayEmitter(LiveEmitter):
    """As in a live run, except that what was already asked, of the same prompt, is not asked again."""

    __slots__ = ("_answers", "used")

    def __init__(self, run: Run, answers: Answers) -> None:
        super().__init__(run)
        self._answers = answers
        self.used: set[tuple[str, int]] = set()

    def sampling_as(self, given: Mapping[str, Any]) -> ReplayEmitter:
        other = ReplayEmitter(self._run_as(given), self._answers)
        other.used = self.used
        return other

    def gen(self, ctx: Prompt, expr: GenExpr, stream: str, ordinal: int) -> tuple[Prompt, Result]:
        run = self.run
        ask = make_gen(run.defaults, expr.given, Origin(run.seed, run.item, stream, ordinal), expr.name, expr.loc)
        return self._reused(ctx, ask, (stream, ordinal)) or self._submit(ctx, ask, (stream, ordinal))

    def select(self, ctx: Prompt, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Prompt, Result]:
        run = self.run
        origin = Origin(run.seed, run.item, stream, ordinal)
        ask = make_select(expr.choices, expr.temperature, expr.choices_method, origin, expr.name, expr.loc)
        return self._reused(ctx, ask, (stream, ordinal)) or self._submit(ctx, ask, (stream, ordinal))

    def _ahead(self, place: tuple[str, int]) -> bool:
        return place in self._answers

    def _reused(self, ctx: Prompt, ask: Gen | Select, key: tuple[str, int]) -> tuple[Prompt, Result] | None:
        if key not in self._answers:
            return None
        before, asked, after = self._answers[key]
        if not _same_request(ask, asked) or _content(ctx) != _content(before):
            return None
        assert after.result is not None
        prompt = Prompt(ctx, (), after.result, after.handle, after.tail)  # what a journal answered is in the tail
        limits, counted = self.run.limits, any(self._answers[k][2].result is after.result for k in self.used)
        if limits is not None and not counted:  # one answer of equal asks counts once
            decided(lambda: limits.count(ask, ctx, lambda: prompt))
        self.used.add(key)
        return prompt, after.result

    # lists that the program may have changed since the run made them

    def read(self, answer: Result) -> str | list[str]:
        return _owned(super().read(answer))

    def read_part(self, answer: Result, take: Callable[[str], str]) -> str | list[str]:
        return _owned(super().read_part(answer, take))

    def meta(self, answer: Result) -> Any:
        return _owned(super().meta(answer))

    def messages(self, ctx: Prompt) -> list[dict[str, str]]:
        return _owned(super().messages(ctx))

    def forget(self) -> None:
        """Cancels what was asked ahead and is not wanted after all."""
        for key, (_, _, prompt) in self._answers.items():
            if key not in self.used and prompt.handle is not None and prompt.result is not None and not prompt.result.done:
                prompt.handle.cancel()


def _owned(made: Any) -> Any:
    mode = active.get()
    return mode.owned_list(made) if type(made) is list and isinstance(mode, ReplayMode) else made


def _same_request(a: Gen | Select, b: Gen | Select) -> bool:
    """Whether `b`, which was asked, is what the program asks with `a`."""
    if isinstance(a, Gen) and isinstance(b, Gen):
        return (a.params, a.constraint, a.seed, a.name) == (b.params, b.constraint, b.seed, b.name)
    if isinstance(a, Select) and isinstance(b, Select):
        return (a.choices, a.method, a.temperature, a.seed) == (b.choices, b.method, b.temperature, b.seed)
    return False


def _content(prompt: Prompt) -> list[Any]:
    """A prompt as its literal parts, merged, and its answers by identity."""
    found: list[Any] = []
    for node in prompt.nodes():
        for part in node.parts:
            last = found[-1] if found else None
            part = part.text() if isinstance(part, Excerpt) else part
            if isinstance(part, str) and isinstance(last, str):
                found[-1] = last + part
            elif part != "":
                found.append(part)
        if node.result is not None:
            found.append(id(node.result))
    return found


def replay(
    program: Function, state: State, arguments: inspect.BoundArguments, record: Record, tree: Tree | None = None, ahead: Mapping[Key, Ahead] | None = None,
    changed: int | None = None,
) -> None:
    """Runs the program on real values with `state`, whose emitter knows what was asked; raises what the program raises.

    `tree` is the one the run was on: it knows what the outside was when the run began. `ahead`: unordered calls that were
    made, which answer where the program makes the same call. `changed`: the hook call where the run found the outside changed.
    """
    with _replaying(program, state, ReplayMode(record, tree, ahead or {}, changed)) as twin:
        state.ret_value = twin(state, *arguments.args[1:], **arguments.kwargs)


async def areplay(
    program: Function, state: State, arguments: inspect.BoundArguments, record: Record, tree: Tree | None = None, ahead: Mapping[Key, Ahead] | None = None,
    changed: int | None = None,
) -> None:
    """As `replay`, for an async program, on the running loop."""
    with _replaying(program, state, ReplayMode(record, tree, ahead or {}, changed)) as twin:
        state.ret_value = await twin(state, *arguments.args[1:], **arguments.kwargs)


@contextmanager
def _replaying(program: Function, state: State, mode: ReplayMode) -> Generator[Callable[..., Any]]:
    if isinstance(state.emitter, LiveEmitter):
        run = state.emitter.run
        mode.limits = run.limits if run.limits is not None and run.limits.timed else None
    token, state_token = active.set(mode), ACTIVE.set(state)
    try:
        yield instrument(program.func, hooks)  # type: ignore[arg-type]  # a program that was traced is a plain function
    finally:
        ACTIVE.reset(state_token)
        active.reset(token)
        if isinstance(state.emitter, ReplayEmitter):
            state.emitter.forget()
