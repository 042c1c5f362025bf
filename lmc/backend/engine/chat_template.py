"""Cutting a model's own Jinja chat template into constant pieces: the text before and after each role's content.

Short conversations are rendered with a sentinel for each content. Between two sentinels lies the suffix of one role and
the prefix of the next; the text always after a role's content is its suffix. The pieces are then checked against
renderings of whole conversations, because a template may be any program: one that numbers messages, drops old ones,
escapes contents or inspects them is no chain of constants. Test cases are derived from the template itself:
conversations are longer than its whole numbers, and contents include every text that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any

from lmc.backend.engine.template_sandbox import OverLimit, TemplateRefusal
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.engine.whole_template import MARK, Atoms, Render, atoms_of, common, in_parts_of, joined, sandbox_of
from lmc.chat import ChatTemplate
from lmc.errors import ProgramError
from lmc.segments import Part, plain

log = logging.getLogger("lmc.chat")

Message = Mapping[str, str]

ROLES = ("system", "user", "assistant", "tool")

_PROBES = (
    "u", "s", "a", "t", "ua", "su", "us", "uu", "ss", "aa", "au", "sa", "as", "uau", "sua", "uaua", "suaua", "uauau", "suauau",
    "ut", "uat", "uata", "utu", "suat", "suata", "uta", "uts", "att",
)  # fmt: skip
# an answer is requested: the text after a last one is never seen
_SHORT = ("u", "uau", "uauau", "su", "suau", "suauau", "ut", "uatu", "uatat", "suatau")
_LONG = 12  # messages, or three more than the largest whole number in the template
_LONGEST = 64
_MANY_TEXTS = 48  # the shortest texts of a template's code are tested one by one, all others together
_LETTER = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


@dataclass(frozen=True)
class CutTemplate:
    """A template as constants. `notes`: its effects on content that constants cannot reproduce (trimming)."""

    name: str
    first: Mapping[str, tuple[Part, ...]]
    prefixes: Mapping[tuple[str, str], tuple[Part, ...]]  # (role, previous role)
    suffixes: Mapping[str, tuple[Part, ...]]
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # role → why this template cannot place it

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        """Return the text before the content of `role`. A role or order that the model's template refuses raises
        ProgramError."""
        role, previous = self._known(role), self._known(previous)
        found = self.first.get(role) if previous is None else self.prefixes.get((role, previous))
        if found is not None:
            return found
        if role in self.suffixes and previous is not None:
            return self._usual(role, previous)
        why = self.refused.get(role, f"it knows {', '.join(self.suffixes)}")
        place = " first" if role in self.suffixes else ""
        raise ProgramError(f"the chat template of {self.name} cannot place a {role} message{place}: {why}")

    def _usual(self, role: str, previous: str) -> tuple[Part, ...]:
        """Return the prefix in an order that the template refuses, if all other orders agree on it."""
        options = {parts for (found, _), parts in self.prefixes.items() if found == role}
        if len(options) == 1:
            return options.pop()
        raise ProgramError(f"the chat template of {self.name} does not allow a {role} message after {previous}")

    def end(self, role: str) -> tuple[Part, ...]:
        return self.suffixes.get(self._known(role), ())

    def _known(self, role: Any) -> Any:
        """Map a role to one of the constants: a tool's result is a user's message; the whole template renders what a
        model sees of it."""
        return "user" if role == "tool" and role not in self.suffixes else role


@dataclass(frozen=True)
class MissingTemplate:
    """Replaces a template that is missing or cannot be cut; plain prompts work, roles raise the reason."""

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


def cut(source: str | None, tokenizer: Tokenizer, *, name: str, in_parts: bool = False) -> ChatTemplate:
    """Cut the template into constant pieces, or return a MissingTemplate with the reason. Logs lossy parts. `in_parts`:
    contents are lists of texts and images, as templates of vision models may require; they are tried, too, if texts are
    not written one after the other."""
    if not source:
        return MissingTemplate(name, "has none (it may be a base model)")
    sandbox = sandbox_of(source, tokenizer)
    renders = (in_parts_of(sandbox.render),) if in_parts else (sandbox.render, in_parts_of(sandbox.render))
    try:
        found = _first_cut(_Cutter(render, tokenizer, name, *sandbox.open()) for render in renders)
    except (_NotCuttable, OverLimit) as reason:
        log.warning("the chat template of %s cannot be cut: %s", name, reason)
        what = "that cannot be run" if isinstance(reason, OverLimit) else "that does not write messages one after the other"
        return MissingTemplate(name, f"has one {what}: {reason}")
    finally:
        sandbox.close()
    for note in found.notes:
        log.info("the chat template of %s %s", name, note)
    return found


def _first_cut(cutters: Iterable[_Cutter]) -> CutTemplate:
    """Return what the first of them finds that finds anything. Raises the first one's reason if none does."""
    reason: _NotCuttable | None = None
    for cutter in cutters:
        try:
            return cutter.cut()
        except _NotCuttable as why:
            reason = reason or why
    assert reason is not None
    raise reason


class _NotCuttable(Exception):
    """The reason why the template is not a chain of constants and contents."""


# -- cutting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cutter:
    render: Render
    tokenizer: Tokenizer
    name: str
    texts: tuple[str, ...] = ()  # texts in the template's code
    number: int = 0  # the largest number in its code

    def cut(self) -> CutTemplate:
        heads: dict[str, Atoms] = {}
        between: dict[tuple[str, str], list[Atoms]] = {}
        tails: dict[str, list[Atoms]] = {}
        refused: dict[str, str] = {}
        for probe in _PROBES:
            roles = [_LETTER[c] for c in probe]
            try:
                head, *middle, tail = self._pieces(roles)
            except TemplateRefusal as why:
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
        """Return the text before, between and after the contents. Contents that move or vanish are refused."""
        marks = [MARK.format(i) for i in range(len(roles))]
        text = self.render([{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)], ask)
        pieces: list[str] = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found or mark in text:
                raise TemplateRefusal("it drops, repeats or reorders contents")
            pieces.append(before)
        return [atoms_of(self.tokenizer, p) for p in (*pieces, text)]

    def _asked(self, previous: str) -> Atoms | None:
        """Return the text after the content of `previous` when an answer is requested."""
        for before in ([], ["user", "assistant"] if previous == "user" else ["user"]):
            try:
                return self._pieces([*before, previous], ask=True)[-1]
            except TemplateRefusal:
                continue
        return None

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
            suffixes[role] = common(after)
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
            first={r: joined(a) for r, a in heads.items()},
            prefixes={pair: joined(a) for pair, a in prefixes.items()},
            suffixes={r: joined(suffixes[r]) for r in order},
            notes=tuple(dict.fromkeys(notes)),
            refused={r: why for r, why in refused.items() if r in ROLES},
        )

    # -- checking

    def _checked(self, found: CutTemplate) -> CutTemplate:
        """Render whole conversations both ways. Those of users and assistants must agree; if only system or tool
        messages are placed differently, the role is refused. Differences of whitespace, of empty thoughts, and those
        that `_conversations` marks become notes."""
        notes = list(found.notes)
        for messages, lossy in self._conversations():
            expected, text = self._both(found, messages)
            if expected == text:
                continue
            roles = [m["role"] for m in messages]
            if (bare := "".join(expected.split())) == "".join(text.split()):
                notes.append("trims or pads contents; lmc leaves them as they are")
            elif bare.replace("".join(_THOUGHTS), "") == "".join(text.split()):
                notes.append("writes empty thoughts into answers; lmc leaves answers as they are")
            elif lossy:
                notes.append(lossy)
            elif role := next((r for r in ("tool", "system") if r in roles), None):
                return self._checked(_without(found, role, _difference(roles, expected, text)))
            else:
                raise _NotCuttable(_difference(roles, expected, text))
        return replace(found, notes=tuple(dict.fromkeys(notes)))

    def _conversations(self) -> Iterator[tuple[list[Message], str]]:
        """Yield the conversations to render both ways, and the note that a difference becomes; "" where none is
        allowed.

        Users and assistants come first, so that a difference in the others is theirs."""
        length = max(_LONG, min(self.number + 3, _LONGEST))
        turns = ("ua" * length)[: length - 1 + length % 2]  # a user's is the last
        for pad in ("", " ", "\n"):
            for roles in (*_SHORT, turns, "s" + turns, "u" + "at" * 4, "su" + "at" * 4):
                yield _messages(roles, [f"{pad}Text {i} of {_LETTER[r]}.{pad}" for i, r in enumerate(roles)]), ""
        texts = (*self.texts[:_MANY_TEXTS], *([" ".join(self.texts)] if self.texts else []), *_ODD)
        for roles in ("uau", "suau", "uatau"):
            yield _messages(roles, ["" for _ in roles]), "writes messages without content in another way; lmc writes them like others"
            for text in texts:
                for content in (text, f"{text} A {text} b\n{text}"):
                    if any(tag in content for tag in _THOUGHTS):
                        yield _messages(roles, ["Text" if r == "a" else content for r in roles]), ""
                        yield _messages(roles, [content if r == "a" else "Text" for r in roles]), _THOUGHTS_NOTE
                    else:
                        yield _messages(roles, [content] * len(roles)), ""

    def _both(self, found: CutTemplate, messages: Sequence[Message]) -> tuple[str, str]:
        """Render the conversation by the template and by the pieces; equal when one of them refuses."""
        if "tool" not in found.suffixes and any(m["role"] == "tool" for m in messages):  # it would be written as a user's
            return "", ""
        try:
            text = "".join(_written(found, messages))
            return self.render(messages, True), text
        except (TemplateRefusal, ProgramError):
            return "", ""


_ODD = (
    "<&?!\"'/>{{ x }}{% y %}{# z #} <b>B</b> http://a.b/c?d=e ab@c.de \\n \\ %s %d $1 `code` ```x``` [1](2) * - # | ~ ^ =;,@ \t 0123",
    "é ß 日本語 🙂 \u200d \u0301 ﬁ İ",
    "mIXED cASE " * 500,  # long
)
_THOUGHTS = ("<think>", "</think>")
_THOUGHTS_NOTE = "takes thoughts out of earlier answers; lmc leaves them as they are"


def _messages(roles: str, contents: Sequence[str]) -> list[Message]:
    return [{"role": _LETTER[r], "content": c} for r, c in zip(roles, contents, strict=True)]


def _without(found: CutTemplate, role: str, why: str) -> CutTemplate:
    return replace(
        found,
        first={r: parts for r, parts in found.first.items() if r != role},
        prefixes={pair: parts for pair, parts in found.prefixes.items() if role not in pair},
        suffixes={r: parts for r, parts in found.suffixes.items() if r != role},
        refused={**found.refused, role: f"it does not write it as it is where it stands ({why})"},
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
