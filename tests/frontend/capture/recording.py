"""Records the asks of an evaluation for a test: an emitter over a dict of answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.frontend.capture.code import Outcome
from lmc.frontend.capture.domain import Asking
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.capture.outside import OutsideSnapshot
from lmc.frontend.capture.unknown import NOTHING, Deps, Raised, Unknown, join
from lmc.frontend.expressions import GenExpr, SelectExpr
from lmc.frontend.interpreter import Function
from lmc.frontend.options import Options
from lmc.frontend.values import Symbolic
from lmc.segments import Special, plain

Address = tuple[str, int]


@dataclass(frozen=True)
class Text:
    """A prompt: its text, None where it has a hole that `deps` would fill."""

    parts: tuple[Any, ...] = ()
    deps: Deps = NOTHING

    @property
    def known(self) -> bool:
        return self.deps is NOTHING

    def plus(self, part: Any) -> Text:
        return Text((*self.parts, part), self.deps)

    def __str__(self) -> str:
        return "".join(p if isinstance(p, str) else f"{{{p[1]}}}" if isinstance(p, tuple) else str(p) for p in self.parts)


@dataclass
class Asked:
    """One request. `prompt` is None if it has a hole."""

    address: Address
    prompt: str | None
    name: str | None
    certain: bool
    shifted: bool
    line: int
    given: Any = None


class Recording(Asking):
    """Answers from a table by address, name or function; keeps what was asked."""

    def __init__(self, answers: Any = None, seed: str = "", asked: list[Asked] | None = None, template: Any = None) -> None:
        self.template = template  # of a model, else roles are in brackets
        self.answers = answers if answers is not None else {}
        self.asked: list[Asked] = [] if asked is None else asked
        self.seed = seed
        self.evaluation: Evaluation | None = None
        self.pure_calls: list[Any] = []
        self.pythons: frozenset[str] = frozenset()  # streams of which all requests are Python's

    def nested(self, options: Options) -> Recording:
        child = Recording(self.answers, self.seed if options.seed is None else f"{options.seed}:", self.asked, self.template)
        child.evaluation = self.evaluation
        child.pure_calls = self.pure_calls
        return child

    def is_asked(self, stream: str, ctx: Text, answers: Sequence[Any]) -> bool:
        return stream in self.pythons

    def lost(self, deps: Deps) -> Text:
        return Text((), deps)

    def pure(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.pure_calls.append((fn.name, args))
        try:
            return fn.fn(*args, **kwargs)
        except Exception as error:
            raise Raised(error) from None

    def root(self) -> Text:
        return Text()

    def append(self, ctx: Text, text: str | Symbolic | Special) -> Text:
        if isinstance(text, Unknown):
            return Text(ctx.parts, join(ctx.deps, text.deps))
        return ctx.plus(text if isinstance(text, str) else text.spelling)

    def image(self, ctx: Text, source: Any, detail: str = "auto", loc: Any = None) -> Text:
        return ctx.plus(f"<image {source}>")

    def video(self, ctx: Text, source: Any, num_frames: Any = None, fps: Any = None, loc: Any = None) -> Text:
        return ctx.plus(f"<video {source}>")

    def role_begin(self, ctx: Text, role: str, previous: str | None) -> Text:
        return ctx.plus(f"[{role}:" if self.template is None else plain(self.template.begin(role, previous)))

    def role_end(self, ctx: Text, role: str) -> Text:
        return ctx.plus("]" if self.template is None else plain(self.template.end(role)))

    def _ask(self, ctx: Text, expr: Any, given: Any, stream: str, ordinal: int) -> tuple[Text, Any]:
        address, ev = (self.seed + stream, ordinal), self.evaluation
        known = self._known(address, ctx, expr)
        hole = [x.deps for x in given if isinstance(x, Unknown)]
        prompt = str(ctx) if ctx.known and not hole else None
        self.asked.append(Asked(address, prompt, expr.name, ev is None or ev.certain, ev is not None and ev.shifted, expr.loc.line if expr.loc else 0, given))
        if prompt is None and ev is not None:
            ev.blocked(join(ctx.deps, *hole))
        return ctx.plus(known if isinstance(known, str) else known[0] if isinstance(known, list) else ("answer", address)), (address, known)

    def _known(self, address: Address, ctx: Text, expr: Any) -> Any:
        answers = self.answers
        if callable(answers):
            return answers(address, str(ctx) if ctx.known else None, expr)
        return answers.get(address, answers.get(expr.name))

    def gen(self, ctx: Text, expr: GenExpr, stream: str, ordinal: int) -> tuple[Text, Any]:
        return self._ask(ctx, expr, tuple(expr.given.values()), stream, ordinal)

    def select(self, ctx: Text, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Text, Any]:
        return self._ask(ctx, expr, expr.choices, stream, ordinal)

    def splice(self, ctx: Text, other: Text, since: Text) -> Text:
        return Text((*ctx.parts, *other.parts[len(since.parts) :]), join(ctx.deps, other.deps))

    def separate_reasoning(self, before: Text, after: Text, take: Callable[[str], str]) -> Text:
        last = after.parts[-1]
        return before.plus(take(last) if isinstance(last, str) else last)

    def read(self, answer: Any) -> Any:
        address, known = answer
        return Unknown(frozenset([address])) if known is None else copy.copy(known)

    def read_part(self, answer: Any, take: Callable[[str], str]) -> Any:
        value = self.read(answer)
        return value if isinstance(value, Unknown) else take(value)

    def meta(self, answer: Any) -> Any:
        value = self.read(answer)
        return value if isinstance(value, Unknown) else {"completion_tokens": len(value)}

    def text(self, ctx: Text, since: Text | None = None) -> Any:
        parts = ctx.parts[len(since.parts) if since is not None else 0 :]
        missing = [p[1] for p in parts if isinstance(p, tuple)]
        return Unknown(join(ctx.deps, frozenset(missing))) if missing or not ctx.known else "".join(parts)

    def messages(self, ctx: Text) -> Any:
        text = self.text(ctx)
        return text if isinstance(text, Unknown) else [{"role": "all", "content": text}]

    def wait(self, ctx: Text) -> None: ...

    def error(self, ctx: Text) -> None:
        return None

    def usage(self, answers: Iterable[Any]) -> Any:
        return Unknown(None)


def evaluate(program: Function, answers: Any = None, /, *, options: Mapping[str, Any] | None = None, **arguments: Any) -> tuple[list[Asked], Outcome]:
    """Return the asks of an evaluation of a program where these answers are known."""
    bound = program.arguments((), arguments)
    emitter = Recording(answers)
    evaluation = emitter.evaluation = Evaluation(program, OutsideSnapshot(bound.args[1:], bound.kwargs), emitter, **dict(options or {}))
    return emitter.asked, evaluation.run()
