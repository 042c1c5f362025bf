"""The table of conformance programs: each file is a feature, and each program has the tags of what it uses.

`@case(…)` enters one, with what it is run on; test_table.py runs all of them in every execution, and tests of backends run those of the features that
they carry (`tagged`).
"""

from __future__ import annotations

import importlib
import pkgutil
from types import CodeType

from tests.conformance.harness import Case, cases

WORDS = {"fork": "forks", "each": "forks", "select": "choices", "var_scope": "scopes", "copy": "scopes", "system": "messages", "user": "messages"}
"""Tags, by the name that a program writes."""
NAMED = {"regex": "constraints", "json_schema": "constraints", "dtype": "constraints", "choices": "choices", "n": "samples"}
"""Tags, by the argument that a program gives."""


def _collected() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for module in pkgutil.iter_modules(__path__):
        for name, case in cases(vars(importlib.import_module(f"{__name__}.{module.name}"))).items():
            assert name not in found, f"two programs are called {name}"
            case.tags = frozenset({module.name, *_used(case.program.func.__code__), *(("async",) if case.program.is_async else ())})
            found[name] = case
    return found


def _used(code: CodeType) -> set[str]:
    """The tags of what a program's code names, its inner functions included."""
    named = {word for const in code.co_consts if isinstance(const, tuple) for word in const}
    inner = [_used(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {WORDS[word] for word in code.co_names if word in WORDS}.union({NAMED[word] for word in named if word in NAMED}, *inner)


TABLE = _collected()


def tagged(*tags: str) -> dict[str, Case]:
    """The programs that have one of the tags."""
    return {name: case for name, case in TABLE.items() if not case.tags.isdisjoint(tags)}


_ASKING = ("forks", "samples", "constraints", "choices", "scopes", "sub_programs")
CARRIED = {name: case for name, case in tagged(*_ASKING).items() if "async" not in case.tags}
"""Those that ask a backend in every way there is: what carries requests elsewhere runs them. Which of several tasks is first depends on when answers come."""


def carried(first: int) -> list[tuple[str, bool]]:
    """Those, and whether they are run compiled: in turn, also if each tenth is taken."""
    return [(name, (i + i // 10) % 2 == first) for i, name in enumerate(CARRIED)]
