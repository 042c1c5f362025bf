"""A model's own chat template as a whole: for conversations with tools, and for what it writes around pictures.

A template is a program of the model's publisher, so it runs in a process of its own (template_sandbox.py).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmc.backend.engine.prompt_pictures import Surroundings
from lmc.backend.engine.template_sandbox import OverLimit, Sandbox, TemplateRefusal
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.errors import ProgramError
from lmc.segments import Part, Special

log = logging.getLogger("lmc.chat")

Render = Callable[..., str]  # (messages, add_generation_prompt, tools=… if there are any) → text
MARK = "\ue000{}\ue001"  # private-use characters: no template writes or trims them
MARKED = re.compile("\ue000([0-9]+)\ue001")
Atoms = tuple[Part, ...]  # special tokens, and single characters


@dataclass(frozen=True)
class WholeTemplate:
    """The template itself, for conversations that constants cannot write: tools and their calls, and other values of the template's variables."""

    name: str
    source: str
    _render: Render
    _tokenizer: Tokenizer

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], variables: Mapping[str, Any] | None = None) -> tuple[Part, ...]:
        """Render the prompt, up to where the assistant begins. Contents stay plain text, whatever they spell. `variables`: further ones of the template.

        Raises ProgramError for conversations that the template refuses, and for special tokens in what is not a content.
        """
        calls = [message.get("tool_calls") for message in messages]
        names = [(message.get("name"), message.get("tool_call_id")) for message in messages]
        for what, own in (("a tool, or a call of one,", [list(tools), calls, names]), ("a variable of the template", dict(variables or {}))):
            if MARKED.search(text := _to_json(own)) or any(isinstance(p, Special) for p in self._tokenizer.split_specials(text)):
                raise ProgramError(f"{what} spells a special token of {self.name}; leave it out")
        contents = [message["content"] for message in messages]
        marked = [{**m, "content": MARK.format(i) if m["content"] else ""} for i, m in enumerate(messages)]
        try:
            text = self._render(marked, True, tools=list(tools) or None, **(variables or {}))
        except TemplateRefusal as why:
            raise ProgramError(f"the chat template of {self.name} refuses this conversation: {why}") from None
        except OverLimit as why:
            raise ProgramError(f"the chat template of {self.name} cannot be run: {why}") from None
        parts: list[Part] = []
        for i, piece in enumerate(MARKED.split(text)):
            parts += (contents[int(piece)],) if i % 2 else self._tokenizer.split_specials(piece)
        return tuple(parts)


def whole(source: str | None, tokenizer: Tokenizer, *, name: str, in_parts: bool = False) -> WholeTemplate | None:
    """Return the template for conversations with tools; None where a model has none."""
    if not source:
        return None
    render = sandbox_of(source, tokenizer).render
    return WholeTemplate(name, source, in_parts_of(render) if in_parts else render, tokenizer)


def in_parts_of(render: Render) -> Render:
    """Adapt for a template that wants contents as lists of parts."""

    def rendered(messages: Sequence[Mapping[str, Any]], ask: bool, **more: Any) -> str:
        return render([{**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m for m in messages], ask, **more)

    return rendered


def around(source: str | None, tokenizer: Tokenizer, token: str, kind: Literal["image", "video"]) -> Surroundings:
    """Return what the template writes around an image or a video, beside its `token`: nothing without a template that
    supports them. One that moves them to the beginning of the message writes the same around those that are left where they
    are."""
    if not source:
        return Surroundings()
    seen, (first, last) = {"type": kind}, ({"type": "text", "text": MARK.format(i)} for i in (0, 1))
    sandbox = sandbox_of(source, tokenizer)
    try:
        contents = ([first, last], [first, seen, last], [seen, first], [seen, seen, first], [seen])
        plain, inner, one, two, alone = (sandbox.render([{"role": "user", "content": content}], False) for content in contents)
    except (TemplateRefusal, OverLimit) as why:
        log.warning("the chat template does not write %ss: %s", kind, why)
        return Surroundings()
    finally:
        sandbox.close()
    (prefix, _, _), (_, _, suffix) = plain.partition(MARK.format(0)), plain.partition(MARK.format(1))
    begin, leads, close = one.partition(MARK.format(0))[0].partition(token)
    before, follows, after = inner.partition(MARK.format(0))[2].partition(MARK.format(1))[0].partition(token)
    if not leads:
        begin, close = prefix + before, after
    usual, found = (atoms_of(tokenizer, text) for text in (prefix, begin))
    same = len(common((usual, found)))
    lead, closed = joined(found[same:]), tokenizer.split_specials(close)
    joints, ends = two.partition(MARK.format(0))[0].split(token)[1:-1], alone.partition(token)[2]
    return Surroundings(
        before=tokenizer.split_specials(before) if follows else lead,
        after=tokenizer.split_specials(after) if follows else closed,
        replaces=usual[same:],
        lead=lead,
        joint=tokenizer.split_specials(joints[0]) if joints else (*closed, *lead),
        close=closed,
        last=tokenizer.split_specials(ends.removesuffix(suffix)) if token in alone and ends.endswith(suffix) else closed,
    )


def sandbox_of(source: str, tokenizer: Tokenizer) -> Sandbox:
    spell = tokenizer.spelling
    fixed = {
        "bos_token": "" if tokenizer.bos_token_id is None else spell(tokenizer.bos_token_id),
        "eos_token": spell(tokenizer.eos_token_ids[0]) if tokenizer.eos_token_ids else "",
    }
    return Sandbox(source, fixed)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- texts as special tokens and characters --------------------------------------------------------------------------


def atoms_of(tokenizer: Tokenizer, text: str) -> Atoms:
    return tuple(a for part in tokenizer.split_specials(text) for a in (part if isinstance(part, str) else [part]))


def common(pieces: Sequence[Atoms]) -> Atoms:
    """Return the longest common beginning."""
    shortest = min(pieces, key=len, default=())
    for i, atom in enumerate(shortest):
        if any(piece[i] != atom for piece in pieces):
            return shortest[:i]
    return shortest


def joined(atoms: Atoms) -> tuple[Part, ...]:
    """Join characters to strings."""
    parts: list[Part] = []
    for atom in atoms:
        if isinstance(atom, str) and parts and isinstance(parts[-1], str):
            parts[-1] += atom
        else:
            parts.append(atom)
    return tuple(parts)
