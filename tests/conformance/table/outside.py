"""The outside as programs copy, slice and remember it, while loops, tools and the program change it."""

from __future__ import annotations

import os
import types
from collections import ChainMap, Counter
from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect

CONFIG: dict[str, Any] = {}


KW: dict[str, Any] = {}


NAMES: list[str] = []


TAGS: set[str] = set()


VIEW = types.MappingProxyType(CONFIG)


runs = 0


def reset() -> None:
    """Puts the outside back, another way for each run: what an earlier run saw must not be what a later one does."""
    global runs
    runs += 1
    CONFIG.clear()
    CONFIG.update(style="short", n=2)
    KW.clear()
    KW.update(max_tokens=3, stop="\n")
    NAMES[:] = ["ann", "bob"]
    TAGS.clear()
    TAGS.update({"x"})
    os.environ["LMC_TEST_STYLE"] = "plain"


def look() -> Any:
    return dict(CONFIG), dict(KW), list(NAMES), sorted(TAGS), os.environ.get("LMC_TEST_STYLE")


def change(**more: Any) -> None:
    """A tool that changes the outside while a program runs."""
    effect("change", more)
    CONFIG.update(more)
    KW["max_tokens"] = 5
    NAMES.append("carol")
    TAGS.add("y")
    os.environ["LMC_TEST_STYLE"] = "bold"


OUTSIDE = {"reset": reset, "outside": look, "batch": False, "journal": False}


def found(s: Any, q: str, name: str = "x") -> list[str]:
    """Names in an answer, of which some come again."""
    s += q + gen(name, max_tokens=3)
    return [w[:1] for w in s[name].split()] + list("ab")


def collects(make: Any, is_new: Any, add: Any) -> Any:
    """A loop that skips what it has seen: `make` makes what it has seen, `add` adds to it."""

    def program(s: Any, q: str) -> Any:
        seen, order = make(), []
        for i in range(3):
            new = [x for x in found(s, f"{q}{i}") if is_new(x, seen)]
            for x in new:
                add(seen, x, i)
                order.append(x)
            s += f" new {','.join(new)}"
        return order, sorted(map(str, seen)), s.text()

    return program


def store(seen: Any, x: str, i: int) -> None:
    seen[x] = i


def not_in(x: str, seen: Any) -> bool:
    return x not in seen


SEEN: dict[str, Any] = {
    "set.add": (set, not_in, lambda seen, x, i: seen.add(x)),
    "dict[]": (dict, not_in, store),
}


@case()
def seen_kept_in_a_closure(s, q):
    kb = {}

    def learn(hop):
        fresh = {x: hop for x in found(s, f"{q}{hop}") if x not in kb}
        kb.update(fresh)
        return len(fresh)

    return [learn(hop) for hop in range(3)], kb


@case(**OUTSIDE)
def seen_outside(s, q):
    for i in range(3):
        for x in [x for x in found(s, f"{q}{i}") if x not in TAGS]:
            TAGS.add(x)
            s += x
    return len(TAGS)


@case(**OUTSIDE)
def dict_of_a_global(s, q):
    own = dict(CONFIG)
    s += f"{own['style']} {q}" + gen("x", max_tokens=3)
    own["n"] += len(s["x"])
    change(style="long")
    return own, dict(CONFIG), {**CONFIG}, CONFIG | {"z": 1}


@case(**OUTSIDE)
def parameters_of_a_global(s, q):
    s += q + gen("x", **dict(KW))
    change()
    s += s["x"] + gen("y", **dict(KW))
    s += s["y"] + gen("z", **{**KW, "stop": "b"})
    return s["z"]


@case(**OUTSIDE)
def dict_of_a_mapping_proxy(s, q):
    before = dict(VIEW)
    s += f"{before}{q}" + gen("x", max_tokens=3)
    change(n=len(s["x"]))
    s += f"{dict(VIEW)}{VIEW['n']}" + gen("y", max_tokens=3)
    return before, dict(VIEW), dict(types.MappingProxyType({"k": s["y"]}))


@case(**OUTSIDE)
def dict_of_the_environment(s, q):
    before = dict(os.environ)["LMC_TEST_STYLE"]
    s += before + q + gen("x", max_tokens=3)
    change()
    s += os.environ["LMC_TEST_STYLE"] + os.getenv("LMC_TEST_STYLE", "") + gen("y", max_tokens=3)
    return before, dict(os.environ)["LMC_TEST_STYLE"]


@case(**OUTSIDE)
def slice_replaced_by_a_global(s, q):
    names = ["zoe", "yan", "xi"]
    names[1:2] = NAMES
    s += " ".join(names) + q + gen("x", max_tokens=3)
    change()
    names[:1] = NAMES
    names[len(names) :] = s["x"]
    s += " ".join(names) + gen("y", max_tokens=3)
    return names, NAMES


@case(**OUTSIDE)
def the_same_kind_as_a_global(s, q):
    copies = type(NAMES)(NAMES), type(CONFIG)(CONFIG), Counter(NAMES), sorted(TAGS), NAMES[:], [*NAMES], ChainMap({}, CONFIG)
    s += f"{copies[:5]}{q}" + gen("x", max_tokens=3)
    change(n=1)
    s += f"{copies[:5]}{copies[6]['n']}" + gen("y", max_tokens=3)
    return copies[:6], copies[6]["n"]


@case(**OUTSIDE)
def a_global_that_the_program_changes(s, q):
    for name in list(NAMES):
        s += name + q + gen("x", max_tokens=2)
        NAMES.append(s["x"])
        NAMES.remove(name)
        CONFIG["n"] += 1
    KW.pop("stop")
    s += f"{NAMES}{CONFIG}" + gen("y", **KW)
    return NAMES


SEEN_IN_LOOPS = {f"seen_by_{name}": case()(collects(*how)) for name, how in SEEN.items()}
