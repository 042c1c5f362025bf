"""Programs of the kinds that SGLang documents, each with what it is run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lmc
from tests.conformance.harness import conform


@dataclass(frozen=True)
class Kind:
    """One program, with its items, its backend and the options of its runs."""

    program: Any
    items: list[dict[str, Any]]
    backend: Callable[[], lmc.Mock] = lmc.Mock
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """It means the same interpreted, compiled and in a batch, and all of it is captured."""
        conform(self.program, self.items, backend=self.backend, **self.options)


class Kinds(dict[str, Kind]):
    """A table of programs by name; called, it is the decorator that enters one."""

    def __call__(self, *items: dict[str, Any], backend: Callable[[], lmc.Mock] = lmc.Mock, **options: Any) -> Callable[[Any], Any]:
        def register(program: Any) -> Any:
            self[program.name] = Kind(program, list(items) or [{}], backend, options)
            return program

        return register
