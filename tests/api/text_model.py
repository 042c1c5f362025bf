"""A model of text without a model: what follows depends on the text so far alone, so that asking once or in pieces gives the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from lmc.backend.engine.choices import decide
from lmc.backend.mock import Mock
from lmc.backend.mock_answers import Ask
from lmc.backend.mock_samples import member_of
from lmc.chat import ChatTemplate
from lmc.segments import Gen, Select

_WORDS = "ab ba do go hi in no of so to we un ve mi la ru".split()
_ENDS = (" ", " ", " ", " ", " ", ", ", ".\n", "\n", '"', "; ")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _drawn(begun: Any, text: str) -> float:
    """A log-probability of a text behind what was hashed."""
    drawing = begun.copy()
    drawing.update(_bytes(f"\0{text}"))
    return -0.01 - int.from_bytes(drawing.digest(), "big") / 2**29


Script = Callable[[str], str | None]
"""From a prompt to all that the model would say after it, or None: nonsense."""


class TextModel:
    def __init__(self, script: Script = lambda prompt: None) -> None:
        self.script = script

    def says(self, prompt: str, seed: int = 0) -> str:
        """All that follows a prompt, until the model has nothing more to say."""
        scripted = self.script(prompt)
        if scripted is not None:
            return scripted
        text, begun = "", blake2b(_bytes(f"{seed}\0{prompt}"), digest_size=4)
        while len(text) < 400:
            draw = begun.digest()
            if draw[0] < 36 and text:
                break
            word = _WORDS[draw[1] % 16] + _ENDS[draw[2] % 10]
            begun.update(word.encode())
            text += word
        return text

    def logprob(self, before: str, char: str) -> float:
        return self.logprobs(before, (char,))[0]

    def logprobs(self, before: str, texts: Iterable[str]) -> list[float]:
        """Of each of the texts right behind `before`."""
        begun = blake2b(_bytes(before), digest_size=4)
        return [_drawn(begun, text) for text in texts]

    def row(self, before: str, texts: Iterable[str]) -> list[float]:
        """Log-probabilities of a text's characters, or of several texts, one behind the other."""
        begun, found = blake2b(_bytes(before), digest_size=4), list[float]()
        for text in texts:
            found.append(_drawn(begun, text))
            begun.update(_bytes(text))
        return found

    def answer(self, prompt: str, ask: Ask) -> Any:
        """As `Mock(answers=…)` wants it."""
        if isinstance(ask, Select):
            alone = [[0.0, *row[1:]] for row in self.rows("", ask.choices)]
            conditional = self.rows(prompt, ask.choices)
            alone = [(a + [0.0] * len(c))[: len(c)] for a, c in zip(alone, conditional)]
            return ask.choices[decide(ask.method, conditional, alone).index]
        seed = ask.seed if ask.params.temperature > 0 else 0
        if ask.constraint is None:
            return [self.says(prompt, seed + i if ask.params.temperature > 0 else 0) for i in range(ask.params.n)]
        return [self._constrained(prompt, ask, seed + i) for i in range(ask.params.n)]

    def _constrained(self, prompt: str, ask: Gen, seed: int) -> str:
        assert ask.constraint is not None
        seed = seed if ask.params.temperature > 0 else 0
        schema = json.loads(ask.constraint.source) if ask.constraint.kind == "json_schema" else None
        meant = ask.constraint.source if schema is None else json.dumps(schema, sort_keys=True)  # servers write it anew
        digest = blake2b(f"{seed}\0{prompt}\0{meant}".encode("utf-8", "surrogatepass"), digest_size=32).digest()
        choices = schema.get("properties", {}).get("choice", {}).get("enum") if isinstance(schema, dict) else None
        if re.fullmatch(r"\([a-z ]+(\|[a-z ]+)+\)", ask.constraint.source):  # a select in the words of a server that has regexes
            return self.answer(prompt, Select(tuple(ask.constraint.source[1:-1].split("|"))))
        if choices:  # a select in the words of a server that has only schemas
            return json.dumps({"choice": self.answer(prompt, Select(tuple(choices)))}, ensure_ascii=False)
        return member_of(ask.constraint.kind, ask.constraint.source, digest)

    def rows(self, prompt: str, choices: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the choices' tokens, which here are characters."""
        return [self.row(prompt, c) for c in choices]

    def mock(self, template: ChatTemplate) -> Mock:
        """The same model without a server."""
        return Mock(answers=self.answer, chat_template=template)
