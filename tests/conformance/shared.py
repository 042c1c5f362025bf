"""What programs of the table share: answers by name and prompt, backends that fail, helpers and sub-programs that ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import lmc
from lmc import assistant, gen, user
from lmc.backend.mock import Mock
from lmc.errors import BackendError
from tests.conformance.harness import effect

CHOICES = ["yes", "no", "maybe"]
WORDS = ["ann", "bob", "cy", "dee"]


def answers(prompt: Any, ask: Any) -> str | None:
    """Numbers, JSON, actions, lists, by name and prompt. A constraint that no name is for is left to the mock."""
    k = sum(map(ord, str(prompt)[-60:])) + 7 * len(str(prompt))
    if getattr(ask, "choices", None):
        return ask.choices[k % len(ask.choices)]
    match (ask.name or "").rstrip("0123456789"):
        case "n" | "score":
            return str(k % 10)
        case "bad":
            return str(k % 10) if k % 3 else "many"
        case "json":
            return json.dumps({"name": f"n{k % 5}", "items": [k % 5, k % 3], "nested": {"ok": k % 2 == 0}})
        case "maybe_json":
            return json.dumps({"v": k % 4}) if k % 3 else "{oops"
        case "tool":
            return json.dumps({"tool": ("search", "calc", "finish", "nope")[k % 4], "args": {"x": f"x{k % 7}"}})
        case "action":
            return ("Search[tea]", "Look[it]", "Finish[done]", "think", "Calc[2 + 3]")[k % 5]
        case "names":
            return ", ".join(f"x{(k >> i) % 6}" for i in range(3))
        case "plan":
            return "\n".join(f"{i + 1}. step {k % 7}{i}" for i in range(k % 4))
        case "label":
            return ("positive", "negative", "mixed")[k % 3]
        case "vote":
            return "AAB"[k % 3]
        case "yes":
            return ("yes", "no")[k % 2]
        case _:
            return None if getattr(ask, "constraint", None) is not None else f"{ask.name} {k % 100}"


def by_name(**more: Any) -> Mock:
    return Mock(answers, **more)


def faulty(*names: str, error: type[Exception] = BackendError) -> Callable[[], Mock]:
    """Mocks whose answers by these names fail."""
    return lambda: Mock(fault=lambda ask, _: error(f"down for {ask.name}") if getattr(ask, "name", "") in names else None)


def ask(s: Any, text: str, name: str = "a", most: int = 8) -> str:
    s += user(text) + assistant(gen(name, max_tokens=most))
    return s[name]


@lmc.function
def child(s, text, name="a"):
    s += user(text) + assistant(gen(name, max_tokens=8))
    return s[name]


@lmc.function
async def achild(s, text):
    s += text + gen("a", max_tokens=3)
    return s["a"]


def number_of(text: str) -> int:
    return int(child(text, "n").ret_value)


def number(x: Any) -> int:
    effect("number", x)
    return len(str(x))
