"""Notebook display of a state: its conversation, and the cost of its answers. Waits for nothing and never raises.

role      text of the program
          an answer, coloured    ▮▮▮▯▯ 320 of 340 prompt tokens cached · 24 tokens, 9 forced
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmc import pages
from lmc.errors import LmcError
from lmc.prompt import Excerpt, Prompt
from lmc.segments import Given, Image, Mark, Special, plain
from lmc.thumbnails import thumbnail

if TYPE_CHECKING:
    from lmc.backend.results import Output, Result
    from lmc.frontend.streaming import StateView

_OFTEN = 0.1  # seconds between two renderings of a growing text


def never_raising(what: object, show: Callable[[], str]) -> str:
    """Return what `show` renders; if it raises, the error beside the plain text."""
    try:
        return show()
    except Exception as error:  # a notebook would show a traceback of lmc in place of the value
        return f"<pre>{escape(object.__repr__(what))}: cannot be shown, {escape(type(error).__name__)}: {escape(str(error))}</pre>"


def state_html(state: StateView) -> str:
    """Render the conversation so far."""
    return never_raising(state, lambda: pages.fragment(f'<div class="talk">{conversation(state, {}, set())}{value(state)}</div>', "lmc-state"))


def conversation(state: StateView, told: Mapping[int, str], shown: set[int]) -> str:
    """Render a row for each message and for text outside of any, except the chat template's own.

    told   further notes on an answer, by the id of its result
    shown  gets the ids of the results that are shown
    """
    names = {id(held): name for name, held in state.variables.items() if name is not None}
    rows = [_Message("")]
    unseen: list[tuple[_Message, int, str | Special]] = []  # text that no answer was asked behind yet: its message, its place there, and itself
    length = new = seen = 0  # characters of the prompt, those behind the last answer, and tokens up to there
    ctx = state.ctx
    for node in ctx.nodes() if isinstance(ctx, Prompt) else ():
        for part in node.parts:
            if isinstance(part, Mark):
                rows.append(_Message(part.role if part.edge == "begin" else ""))
                continue
            if isinstance(part, str | Special):
                unseen.append((rows[-1], len(rows[-1].shown), part))
            new += 1 if isinstance(part, Special) else 0 if isinstance(part, Image | Given) else len(_text(part))
            rows[-1].plain += part if isinstance(part, str) else "" if isinstance(part, Special) else "?"
            rows[-1].shown.append(_part(part))
        if (result := node.result) is not None:
            rows[-1].plain += "?"
            rows[-1].shown.append(answer_html(result, names.get(id(result)), told.get(id(result), "")))
            shown.add(id(result))
            length += new
            if (output := result.answer) is not None:
                usage = output.usage
                if usage.prompt_tokens > seen:
                    _mark_shared(unseen, round(new * (usage.cached_tokens - seen) / (usage.prompt_tokens - seen)))
                seen = usage.prompt_tokens + (usage.completion_tokens or round(len(output.text) * usage.prompt_tokens / max(length, 1)))  # of a choice
                length += len(output.text)
            unseen, new = [], 0
    ends = {row.role for row in rows}
    return "".join(_row(escape(row.role), "".join(row.shown)) for row in rows if row.role or row.plain.strip() not in ends)


@dataclass
class _Message:
    """A message, or the text between two: `plain` is its literal text, with a "?" for each other part."""

    role: str
    plain: str = ""
    shown: list[str] = field(default_factory=list[str])


def _row(role: str, text: str) -> str:
    return f'<div class="m"><div class="r">{role}</div><div class="t">{text}</div></div>'


def _mark_shared(unseen: Sequence[tuple[_Message, int, str | Special]], cached: int) -> None:
    """Mark what is in the first `cached` characters of texts, a special token being one. Where that ends is exact as far as tokens are equally long."""
    for row, place, text in unseen:
        if isinstance(text, Special):
            cached -= 1
            continue
        known = text[: max(0, cached)]
        cached -= len(text)
        if known.strip():
            row.shown[place] = f'<span class="k">{escape(known)}</span>{escape(text[len(known) :])}'


def _text(part: Any) -> str:
    """Return the text of a part as the model reads it, as far as it is known."""
    if isinstance(part, Excerpt):
        return part.text() if part.result.done and part.result.error is None else ""
    return plain((part,))


def _part(part: Any) -> str:
    if isinstance(part, Image):
        return _image(part)
    if isinstance(part, Excerpt):
        return f'<span class="a">{escape(_text(part)) or "…"}</span>'
    if isinstance(part, Given):
        return ""
    return f'<span class="s">{escape(plain((part,)))}</span>' if isinstance(part, Special) else escape(str(part))


def answer_html(result: Result, name: str | None, told: str = "") -> str:
    """Render an answer, coloured, with its forced text marked, and its cost; `…` after an unfinished one."""
    if result.error is not None:
        return _error(result.error)
    output = result.answer
    if output is None:
        return f'<span class="a">{escape("".join(result.deltas))}…</span>'
    usage = output.usage
    prompt, answer = max(usage.prompt_tokens, 1), max(usage.completion_tokens, 1)
    bar = pages.bar(
        ("shared", usage.cached_tokens / prompt / 2), ("computed", (usage.prompt_tokens - usage.cached_tokens) / prompt / 2),
        ("forced", usage.forced_tokens / answer / 2), ("decode", (usage.completion_tokens - usage.forced_tokens) / answer / 2),
    )  # fmt: skip
    forced = f", {usage.forced_tokens} forced" if usage.forced_tokens else ""
    cost = (
        f"{usage.cached_tokens} of {pages.several(usage.prompt_tokens, 'prompt token')} cached · {pages.several(usage.completion_tokens, 'token')}{forced}"
        + (f" · {escape(told)}" if told else "")
    )
    called = f'<span class="n">{escape(name)}</span> ' if name else ""
    return f'<span class="a">{_with_forced(output)}</span><span class="c">{called}{bar}{cost}</span>'


def _with_forced(output: Output) -> str:
    """Render the text of an answer, with the parts marked that its constraint forced."""
    parts: list[str] = []
    at = 0
    for begin, end in output.forced:
        parts += [escape(output.text[at:begin]), f'<span class="f">{escape(output.text[begin:end])}</span>']
        at = end
    return "".join([*parts, escape(output.text[at:])])


def value(state: StateView) -> str:
    """Render a row for the program's return value or exception; "" for neither."""
    if state.failure is not None:
        return _row("raised", _error(state.failure))
    found = state._value  # pyright: ignore[reportPrivateUsage]  # without waiting for it
    if found is None or found is state:
        return ""
    return _row("returned", f"<code>{escape(repr(found)[:2000])}</code>")


def _error(error: BaseException) -> str:
    """Render an error, without the source line and caret that an lmc error has below its message."""
    text = f"{f'{error.loc}: ' if error.loc else ''}{error.message}" if isinstance(error, LmcError) else str(error)
    return f'<span class="e">{escape(type(error).__name__)}: {escape(text)}</span>'


def _image(image: Image) -> str:
    url = thumbnail(image)
    return f'<span class="s">[{image.kind}]</span>' if url is None else f'<img alt="{image.kind}" src="{url}">'


def display(state: StateView) -> None:
    """Show a state in the cell of a notebook; for a running one, its text as it grows."""
    ipython: Any = import_module("IPython.display")  # only a notebook calls this
    shown = ipython.display(_bundle(state), raw=True, display_id=True)
    if state.progress is None or shown is None:
        return
    last = time.monotonic()
    try:
        for _ in state.text_iter():
            if time.monotonic() - last >= _OFTEN:
                shown.update(_bundle(state), raw=True)
                last = time.monotonic()
    except Exception as error:  # the program's error: raised where the state is read, and shown here
        state.failure = state.failure or error
    shown.update(_bundle(state), raw=True)


def _bundle(state: StateView) -> Mapping[str, str]:
    return {"text/plain": repr(state), "text/html": state_html(state)}
