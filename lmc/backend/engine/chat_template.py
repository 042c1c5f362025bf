"""Cutting a model's own Jinja chat template into constant pieces: what each role puts before and after its content.

Short conversations are rendered with a sentinel for each content. Between two sentinels lies the suffix of one role
and the prefix of the next; what a role always puts after its content is its suffix. The pieces are then checked
against renderings of whole conversations, because a template may be any program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any

from lmc.backend.engine.tokenizer import Tokenizer
from lmc.chat import ChatTemplate
from lmc.errors import ProgramError
from lmc.prompt import Part, plain

log = logging.getLogger("lmc.chat")

Message = Mapping[str, str]
Render = Callable[[Sequence[Message], bool], str]  # (messages, add_generation_prompt) → text

ROLES = ("system", "user", "assistant", "tool")

_PROBES = (
    "u", "s", "a", "t", "ua", "su", "us", "uu", "ss", "aa", "au", "sa", "as", "uau", "sua", "uaua", "suaua", "uauau", "suauau",
    "ut", "uat", "uata", "utu", "suat", "suata", "uta", "uts", "att",
)  # fmt: skip
_CHECKS = ("u", "uau", "uauau", "su", "suau", "suauau")  # an answer is asked for; what follows a last one is never seen
_LETTER = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


class _Refused(Exception):
    """The template itself refuses this conversation (raise_exception)."""


@dataclass(frozen=True)
class CutTemplate:
    """A template as constants. `notes` says what it does to content that constants cannot follow (trimming)."""

    name: str
    first: Mapping[str, tuple[Part, ...]]
    prefixes: Mapping[tuple[str, str], tuple[Part, ...]]  # (role, previous role)
    suffixes: Mapping[str, tuple[Part, ...]]
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # role → why this template cannot place it

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        """Before the content of `role`. A role or order that the model's template refuses raises ProgramError."""
        found = self.first.get(role) if previous is None else self.prefixes.get((role, previous))
        if found is not None:
            return found
        if role in self.suffixes and previous is not None:
            return self._usual(role, previous)
        why = self.refused.get(role, f"it knows {', '.join(self.suffixes)}")
        place = " first" if role in self.suffixes else ""
        raise ProgramError(f"the chat template of {self.name} cannot place a {role} message{place}: {why}")

    def _usual(self, role: str, previous: str) -> tuple[Part, ...]:
        """The prefix in an order that the template refuses, when all other orders agree on it."""
        options = {parts for (found, _), parts in self.prefixes.items() if found == role}
        if len(options) == 1:
            return options.pop()
        raise ProgramError(f"the chat template of {self.name} does not allow a {role} message after {previous}")

    def end(self, role: str) -> tuple[Part, ...]:
        return self.suffixes.get(role, ())


@dataclass(frozen=True)
class MissingTemplate:
    """Stands for a template that is not there or cannot be cut; plain prompts work, roles say why they do not."""

    name: str
    reason: str
    stop: tuple[str, ...] = ()

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        raise ProgramError(
            f"{role} messages need a chat template, and {self.name} {self.reason}; "
            "write the prompt without roles, or choose a template with lmc.get_chat_template"
        )

    def end(self, role: str) -> tuple[Part, ...]:
        return ()


def cut(source: str | None, tokenizer: Tokenizer, *, name: str) -> ChatTemplate:
    """The template as constant pieces, or a MissingTemplate that says why there are none. Logs what is lossy."""
    if not source:
        return MissingTemplate(name, "has none (it may be a base model)")
    try:
        found = _Cutter(_renderer(source, tokenizer), tokenizer, name).cut()
    except _NotCuttable as reason:
        log.warning("the chat template of %s cannot be cut: %s", name, reason)
        return MissingTemplate(name, f"has one that does not write messages one after the other: {reason}")
    for note in found.notes:
        log.info("the chat template of %s %s", name, note)
    return found


class _NotCuttable(Exception):
    """Why the template is not a chain of constants and contents."""


# -- rendering ---------------------------------------------------------------------------------------------------------


def _renderer(source: str, tokenizer: Tokenizer) -> Render:
    """Jinja set up as in transformers (utils/chat_template_utils.py), in a sandbox."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise _Refused(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = _to_json
    env.globals.update(raise_exception=refuse, strftime_now=_today)
    spell = tokenizer.spelling
    fixed = {
        "bos_token": "" if tokenizer.bos_token_id is None else spell(tokenizer.bos_token_id),
        "eos_token": spell(tokenizer.eos_token_ids[0]) if tokenizer.eos_token_ids else "",
    }
    try:
        template = env.from_string(source)
    except TemplateError as error:
        raise _NotCuttable(f"it does not parse as Jinja ({error})") from error

    def render(messages: Sequence[Message], ask: bool) -> str:
        try:
            return template.render(messages=list(messages), add_generation_prompt=ask, **fixed)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise _Refused(str(error)) from error

    return render


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)


def _today(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


# -- cutting -----------------------------------------------------------------------------------------------------------

_MARK = "\ue000{}\ue001"  # private-use characters: no template writes or trims them
Atoms = tuple[Part, ...]  # special tokens, and single characters


@dataclass(frozen=True)
class _Cutter:
    render: Render
    tokenizer: Tokenizer
    name: str

    def cut(self) -> CutTemplate:
        heads: dict[str, Atoms] = {}
        between: dict[tuple[str, str], list[Atoms]] = {}
        tails: dict[str, list[Atoms]] = {}
        refused: dict[str, str] = {}
        for probe in _PROBES:
            roles = [_LETTER[c] for c in probe]
            try:
                head, *middle, tail = self._pieces(roles)
            except _Refused as why:
                refused.setdefault(roles[-1] if len(roles) == 1 else "+".join(roles), str(why))
                continue
            heads.setdefault(roles[0], head)
            for pair, piece in zip(pairwise(roles), middle, strict=True):
                between.setdefault(pair, []).append(piece)
            tails.setdefault(roles[-1], []).append(tail)
        asked = {role: piece for role in ("user", "tool", "system") if (piece := self._asked(role))}
        if not heads:
            raise _NotCuttable("it refuses every conversation: " + "; ".join(dict.fromkeys(refused.values())))
        found = self._assemble(heads, between, tails, asked, refused)
        return self._checked(found)

    def _pieces(self, roles: Sequence[str], ask: bool = False) -> list[Atoms]:
        """What lies before, between and after the contents. Contents that move or vanish are a refusal."""
        marks = [_MARK.format(i) for i in range(len(roles))]
        text = self.render([{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)], ask)
        pieces: list[str] = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found or mark in text:
                raise _Refused("it drops, repeats or reorders contents")
            pieces.append(before)
        return [self._atoms(p) for p in (*pieces, text)]

    def _asked(self, previous: str) -> Atoms | None:
        """What follows the content of `previous` when an answer is asked for."""
        for before in ([], ["user", "assistant"] if previous == "user" else ["user"]):
            try:
                return self._pieces([*before, previous], ask=True)[-1]
            except _Refused:
                continue
        return None

    def _atoms(self, text: str) -> Atoms:
        return tuple(
            a for part in self.tokenizer.split_specials(text) for a in (part if isinstance(part, str) else [part])
        )

    def _assemble(
        self,
        heads: Mapping[str, Atoms],
        between: Mapping[tuple[str, str], list[Atoms]],
        tails: Mapping[str, list[Atoms]],
        asked: Mapping[str, Atoms],
        refused: Mapping[str, str],
    ) -> CutTemplate:
        suffixes: dict[str, Atoms] = {}
        for role in {*heads, *tails, *(r for pair in between for r in pair)}:
            after = [p for (left, _), ps in between.items() if left == role for p in ps]
            after += tails.get(role, []) + ([asked[role]] if role in asked else [])
            suffixes[role] = _common(after)
        prefixes: dict[tuple[str, str], Atoms] = {}
        notes: list[str] = []
        for (left, right), pieces in between.items():
            rests = [p[len(suffixes[left]) :] for p in pieces]
            if right == "assistant" and left in asked:
                rests.insert(0, asked[left][len(suffixes[left]) :])
            if len(set(rests)) > 1:
                notes.append(f"writes {right} after {left} in more than one way; the first is used")
            prefixes[right, left] = rests[0]
        for left, piece in asked.items():
            prefixes.setdefault(("assistant", left), piece[len(suffixes[left]) :])
        order = [r for r in ROLES if r in suffixes]
        return CutTemplate(
            self.name,
            first={r: _joined(a) for r, a in heads.items()},
            prefixes={pair: _joined(a) for pair, a in prefixes.items()},
            suffixes={r: _joined(suffixes[r]) for r in order},
            notes=tuple(dict.fromkeys(notes)),
            refused={r: why for r, why in refused.items() if r in ROLES},
        )

    # -- checking

    def _checked(self, found: CutTemplate) -> CutTemplate:
        """Renders whole conversations both ways. Without system messages they must agree; if only system messages
        go elsewhere, the role is refused. Differences of whitespace become notes."""
        notes = list(found.notes)
        for probe in _CHECKS:
            roles = [_LETTER[c] for c in probe]
            for pad in ("", " ", "\n"):
                expected, text = self._both(found, roles, pad)
                if expected == text:
                    continue
                if "".join(expected.split()) == "".join(text.split()):
                    notes.append("trims or pads contents; lmc leaves them as they are")
                elif "system" in roles:
                    return self._checked(_without_system(found, _difference(roles, expected, text)))
                else:
                    raise _NotCuttable(_difference(roles, expected, text))
        return replace(found, notes=tuple(dict.fromkeys(notes)))

    def _both(self, found: CutTemplate, roles: list[str], pad: str) -> tuple[str, str]:
        """The conversation as the template renders it and as the pieces write it; equal when one of them refuses."""
        messages = [{"role": r, "content": f"{pad}Text {i} of {r}.{pad}"} for i, r in enumerate(roles)]
        try:
            return self.render(messages, True), "".join(_written(found, messages))
        except (_Refused, ProgramError):
            return "", ""


def _without_system(found: CutTemplate, why: str) -> CutTemplate:
    return replace(
        found,
        first={r: parts for r, parts in found.first.items() if r != "system"},
        prefixes={pair: parts for pair, parts in found.prefixes.items() if "system" not in pair},
        suffixes={r: parts for r, parts in found.suffixes.items() if r != "system"},
        refused={**found.refused, "system": f"it does not write it where it stands ({why})"},
    )


def _difference(roles: list[str], expected: str, text: str) -> str:
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, text, strict=False)))
    return f"{'+'.join(roles)}: {expected[at : at + 40]!r} is not {text[at : at + 40]!r}"


def _written(template: CutTemplate, messages: Sequence[Message]) -> Iterator[str]:
    previous: str | None = None
    for message in messages:
        role = message["role"]
        yield plain(template.begin(role, previous)) + message["content"] + plain(template.end(role))
        previous = role
    yield plain(template.begin("assistant", previous))


def _common(pieces: Sequence[Atoms]) -> Atoms:
    """The longest common beginning."""
    shortest = min(pieces, key=len, default=())
    for i, atom in enumerate(shortest):
        if any(piece[i] != atom for piece in pieces):
            return shortest[:i]
    return shortest


def _joined(atoms: Atoms) -> tuple[Part, ...]:
    """Characters back to strings."""
    parts: list[Part] = []
    for atom in atoms:
        if isinstance(atom, str) and parts and isinstance(parts[-1], str):
            parts[-1] += atom
        else:
            parts.append(atom)
    return tuple(parts)
