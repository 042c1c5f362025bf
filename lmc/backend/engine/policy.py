"""Policies of an engine: its own, and others to compare with (the paper's ablations, Figure 8c)."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal, get_args

from lmc.errors import ParameterError

Schedule = Literal["program", "lpm", "fcfs", "random"]
Cache = Literal["tree", "table", "off"]
Eviction = Literal["next-use", "lru"]
Begin = Literal["cost", "fit"]


@dataclass(frozen=True, slots=True)
class Policy:
    """schedule  admission order: "program" (runs as wholes, the longest cached prefix first among those that fit),
                 "lpm" (requests, the longest cached prefix first), "fcfs" (in order of arrival), "random"
    cache        "tree" (all common prefixes), "table" (only whole earlier requests), "off"
    eviction     "next-use" (prefixes known to be used again stay), "lru" (the least recently used is evicted)
    admission    which runs begin: "fit" (those that fit beside the open ones), "cost" (also those in whose place others compute again what costs less than
                 another run in flight gains)
    """

    schedule: Schedule = "program"
    cache: Cache = "tree"
    eviction: Eviction = "next-use"
    admission: Begin = "cost"

    def __post_init__(self) -> None:
        allowed = {"schedule": get_args(Schedule), "cache": get_args(Cache), "eviction": get_args(Eviction), "admission": get_args(Begin)}
        for f in fields(self):
            if (value := getattr(self, f.name)) not in allowed[f.name]:
                raise ParameterError(f"Engine: {f.name} is {value!r}; it can be {', '.join(map(repr, allowed[f.name]))}")

    @property
    def priced(self) -> bool:
        """Runs may begin in the room of those that are away."""
        return self.leases and self.admission == "cost"

    @property
    def leases(self) -> bool:
        """Return whether runs keep the prefixes that they will use again."""
        return self.schedule == "program" and self.eviction == "next-use" and self.cache != "off"

    @property
    def hosts(self) -> bool:
        """Return whether there may be a host tier."""
        return self.leases and self.cache == "tree"


OWN = Policy()

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b)", re.IGNORECASE)


def host_size(said: int | str | None, policy: Policy) -> int | None:
    """Return bytes of the configured host tier: a number, or one with a unit; 0: none. None: by the device."""
    if said is None:
        return None if policy.hosts else 0
    found = _SIZE.fullmatch(said.strip()) if isinstance(said, str) else None
    if found is not None:
        unit = found[2].lower()
        number = int(float(found[1]) * (1024 if "i" in unit else 1000) ** (1 + "kmgt".index(unit[0])))
    elif isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        number = said
    else:
        raise ParameterError(f"Engine: host_memory is {said!r}; it must be a number of bytes, or one with a unit: '16GB', '8GiB'; 0 is none")
    if number and not policy.hosts:
        raise ParameterError('Engine: host_memory needs schedule="program", cache="tree" and eviction="next-use": it belongs to runs')
    return number
