"""What a notebook shows of a state: its conversation, and what its answers cost. Waits for nothing and never raises.

    role      text of the program
              an answer, coloured    ▮▮▮▯▯ 320 of 340 prompt tokens cached · 24 tokens, 9 forced
"""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Callable, Mapping
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from lmc.prompt import Excerpt, Given, Image, Mark, Prompt, Special, plain

if TYPE_CHECKING:
    from lmc.backend.base import Result
    from lmc.frontend.state import State

_STYLE = """<style>
.lmc-state{font:14px/1.5 system-ui,sans-serif;max-width:60em;overflow-wrap:anywhere}
.lmc-state .m{display:grid;grid-template-columns:minmax(4.5em,max-content) 1fr;gap:0 .8em;padding:.3em 0;border-top:1px solid rgba(128,128,128,.25)}
.lmc-state .r{font-weight:600;opacity:.65}.lmc-state .t{white-space:pre-wrap}.lmc-state .s{opacity:.45;font-family:monospace;font-size:12px}
.lmc-state .a{background:rgba(46,160,67,.18);border-radius:3px;padding:0 2px}.lmc-state .e{background:rgba(218,54,51,.2);border-radius:3px;padding:0 2px}
.lmc-state .c{display:block;font-size:11px;opacity:.7;white-space:normal}.lmc-state .n{font-family:monospace}
.lmc-state .b{display:inline-flex;width:6em;height:6px;vertical-align:middle;border-radius:3px;overflow:hidden;background:rgba(128,128,128,.3);margin-right:.5em}
.lmc-state .b i{display:block;height:100%}.lmc-state .k{background:#5b8def}.lmc-state .p{background:#b9c3d6}.lmc-state .f{background:#e3a008}.lmc-state .g{background:#2ea043}
.lmc-state img{max-width:16em;max-height:12em;display:block;border-radius:4px;margin:.2em 0}
</style>"""
_MOST_BYTES = 4 << 20  # of an image that is shown
_OFTEN = 0.1  # seconds between two pictures of a growing text
_MIME = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}


def never_raising(what: object, show: Callable[[], str]) -> str:
    """What `show` makes; of what goes wrong in it, the error beside the plain text."""
    try:
        return show()
    except Exception as error:  # a notebook would show a traceback of lmc in place of the value
        return f"<pre>{escape(object.__repr__(what))}: cannot be shown, {escape(type(error).__name__)}: {escape(str(error))}</pre>"


def state_html(state: State[Any]) -> str:
    """The conversation so far."""
    return never_raising(state, lambda: _STYLE + f'<div class="lmc-state">{"".join(_messages(state))}{_value(state)}</div>')


def _messages(state: State[Any]) -> list[str]:
    """A row for each message, and for what stands outside of any."""
    names = {id(held): name for name, held in state.variables.items() if name is not None}
    rows: list[tuple[str, list[str]]] = [("", [])]
    ctx = state.ctx
    for node in ctx.nodes() if isinstance(ctx, Prompt) else ():
        for part in node.parts:
            if isinstance(part, Mark):
                rows.append((part.role if part.edge == "begin" else "", []))
            else:
                rows[-1][1].append(_part(part))
        if node.result is not None:
            rows[-1][1].append(_answer(node.result, names.get(id(node.result))))
    return [f'<div class="m"><div class="r">{escape(role)}</div><div class="t">{"".join(shown)}</div></div>' for role, shown in rows if "".join(shown).strip()]


def _part(part: Any) -> str:
    if isinstance(part, Image):
        return _image(part)
    if isinstance(part, Excerpt):
        done = part.result.done and part.result.error is None
        return f'<span class="a">{escape(part.text()) if done else "…"}</span>'
    if isinstance(part, Given):
        return ""
    return f'<span class="s">{escape(plain((part,)))}</span>' if isinstance(part, Special) else escape(str(part))


def _answer(result: Result, name: str | None) -> str:
    """The text, coloured, and what it cost; `…` behind what is not there yet."""
    if result.error is not None:
        return f'<span class="e">{escape(type(result.error).__name__)}: {escape(str(result.error))}</span>'
    output = result.answer
    if output is None:
        return f'<span class="a">{escape("".join(result.deltas))}…</span>'
    usage = output.usage
    prompt, answer = max(usage.prompt_tokens, 1), max(usage.completion_tokens, 1)
    bar = "".join(
        f'<i class="{kind}" style="width:{50 * share:.0f}%"></i>'
        for kind, share in (("k", usage.cached_tokens / prompt), ("p", 1 - usage.cached_tokens / prompt), ("f", usage.forced_tokens / answer), ("g", 1 - usage.forced_tokens / answer))
    )
    forced = f", {usage.forced_tokens} forced" if usage.forced_tokens else ""
    cost = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached · {usage.completion_tokens} tokens{forced}"
    called = f'<span class="n">{escape(name)}</span> ' if name else ""
    return f'<span class="a">{escape(output.text)}</span><span class="c">{called}<span class="b" title="prompt: cached, computed; answer: forced, sampled">{bar}</span>{cost}</span>'


def _value(state: State[Any]) -> str:
    if state.failure is not None:
        return f'<div class="m"><div class="r">raised</div><div class="t"><span class="e">{escape(type(state.failure).__name__)}: {escape(str(state.failure))}</span></div></div>'
    value = state._value  # pyright: ignore[reportPrivateUsage]  # without waiting for it
    if value is None or value is state:
        return ""
    return f'<div class="m"><div class="r">returned</div><div class="t n">{escape(repr(value)[:2000])}</div></div>'


def _image(image: Image) -> str:
    data = _bytes_of(image.source) if image.num_frames is None else None
    mime = next((kind for begin, kind in _MIME.items() if data is not None and data.startswith(begin)), None)
    if data is None or mime is None or len(data) > _MOST_BYTES:
        return f'<span class="s">[{"image" if image.num_frames is None else "video"}]</span>'
    return f'<img alt="image" src="data:image/{mime};base64,{base64.b64encode(data).decode()}">'


def _bytes_of(source: Any) -> bytes | None:
    """An image's file; None for what is none, such as a tensor."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, str | os.PathLike):
        path = cast("str | os.PathLike[str]", source)
        if not os.path.isfile(path) or os.path.getsize(path) > _MOST_BYTES:
            return None
        with open(path, "rb") as file:
            return file.read()
    if hasattr(source, "save"):  # of PIL
        file = io.BytesIO()
        source.save(file, "PNG")
        return file.getvalue()
    return None


def display(state: State[Any]) -> None:
    """Show a state in the cell of a notebook; of one that is running, its text as it grows."""
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
    except Exception as error:  # the program's: raised where the state is read, and shown here
        state.failure = state.failure or error
    shown.update(_bundle(state), raw=True)


def _bundle(state: State[Any]) -> Mapping[str, str]:
    return {"text/plain": repr(state), "text/html": state_html(state)}
