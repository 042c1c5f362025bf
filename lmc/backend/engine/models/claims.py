"""Validation of the claims in a model's files: each value is of its type and within its bounds, or an error names the
field, the file and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmc.errors import ModelLoadError

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 10_000, 1 << 14, 1 << 20, 1 << 24, 1 << 24
"""Largest plausible value in any file: at least ten times those of real models."""

_REMEDY = "the file is damaged, or made to do damage: download it again from its source"
_LACKING = object()


@dataclass(frozen=True, slots=True)
class Claims:
    """The fields of a file. `prefix`: of their names there; `where` names the file in errors."""

    fields: Mapping[str, Any]
    where: str
    prefix: str = ""

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self.fields.get(self.prefix + name) is not None

    def raw(self, name: str, default: Any = _LACKING) -> Any:
        value = self.fields.get(self.prefix + name)
        if value is not None:
            return value
        if default is _LACKING:
            raise ModelLoadError(f"{self.where}: {self.prefix + name!r} is missing; is this a causal language model?")
        return default

    def whole(self, name: str, most: int, default: Any = _LACKING, *, least: int = 1) -> int:
        """Return a whole number in [least, most]; JSON may write it as 8.0."""
        value = self.raw(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, default: Any = _LACKING) -> float:
        """Return a finite number in [least, most]."""
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:  # NaN is not
            raise self.wrong(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def text(self, name: str, default: Any = _LACKING) -> str:
        value = self.raw(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def part(self, name: str) -> Claims:
        """Return a field that has fields of its own; empty if missing."""
        value = self.raw(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Claims(value, f"{self.where}: {self.prefix + name}")

    def token(self, name: str, vocabulary: int) -> int | None:
        """Return the id of a token, None where there is none."""
        return self.whole(name, vocabulary - 1, least=0) if self.has(name) else None

    def tokens(self, name: str, vocabulary: int) -> tuple[int, ...]:
        """Return one id or several."""
        value = self.raw(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < vocabulary for i in ids):
            raise self.wrong(name, value, f"ids in the model's vocabulary of {vocabulary}")
        return tuple(ids)

    def wrong(self, name: str, value: Any, expected: str) -> ModelLoadError:
        return ModelLoadError(f"{self.where}: {self.prefix + name} is {value!r:.60}; expected {expected}; {_REMEDY}")


def check_finite(what: str, values: tuple[float, ...], least: float, most: float, where: str) -> None:
    """Refuse numbers from which no rotation can be computed."""
    for value in values:
        if not (math.isfinite(value) and least <= value <= most):
            raise ModelLoadError(f"{where}: {what} is {value!r}; expected a number from {least:g} to {most:g}; {_REMEDY}")
