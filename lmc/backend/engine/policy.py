"""What an engine goes by: its own way, and others to compare with (the paper's ablations, Figure 8c)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from lmc.errors import ParameterError

Schedule = Literal["program", "lpm", "fcfs", "random"]
Cache = Literal["tree", "table", "off"]
Eviction = Literal["next-use", "lru"]


@dataclass(frozen=True, slots=True)
class Policy:
    """schedule  who is admitted next: "program" (runs as wholes, the longest cached prefix first among those that fit), "lpm" (requests, the
                 longest cached prefix first), "fcfs" (in order of arrival), "random"
    cache        "tree" (all that prompts have in common), "table" (what whole earlier requests left), "off"
    eviction     "next-use" (what is known to be used again stays), "lru" (the least recently used goes)
    """

    schedule: Schedule = "program"
    cache: Cache = "tree"
    eviction: Eviction = "next-use"

    def __post_init__(self) -> None:
        allowed = {"schedule": get_args(Schedule), "cache": get_args(Cache), "eviction": get_args(Eviction)}
        for f in fields(self):
            if (value := getattr(self, f.name)) not in allowed[f.name]:
                raise ParameterError(f"Engine: {f.name} is {value!r}; it can be {', '.join(map(repr, allowed[f.name]))}")

    @property
    def leases(self) -> bool:
        """Runs keep what they will use again."""
        return self.schedule == "program" and self.eviction == "next-use" and self.cache != "off"


OWN = Policy()
