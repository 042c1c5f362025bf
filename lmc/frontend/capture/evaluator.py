"""The state of an evaluation that the rules of the language share: its flags, its budget, and what it has lost."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.errors import Loc
from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture.code import Frame
from lmc.frontend.capture.outside import ATOMS, CONTAINERS, Outside, OutsideSnapshot
from lmc.frontend.capture.scan import PossibleEffects
from lmc.frontend.capture.unknown import MISSING, NOTHING, Deps, Raised, Stop, Unknown, join
from lmc.frontend.capture.values import Object
from lmc.frontend.state import State, StateGroup

MOST_MISSED = 128
"""Requests of one evaluation that it does not make: a loop may go on for ever, and what is open is bounded (`MAX_OPEN`)."""
UNCERTAIN_MISS = 16
"""As how many of them one behind something undecided counts, such as each turn of an agent's loop."""


@dataclass
class Outcome:
    """The outcome of an evaluation.

    stopped_at  where it stopped, and why; None if it did not
    paused      it stopped on request
    waits       sets of answers, each of which would let it continue
    passed      how often a `raise` or `assert` under a condition was passed without raising, by its place
    """

    stopped_at: Loc | None = None
    reason: str = ""
    paused: bool = False
    waits: list[frozenset[Any]] = field(default_factory=list[frozenset[Any]])
    passed: Counter[Loc] = field(default_factory=Counter[Loc])
    raised: Any = None
    value: Any = None
    steps: int = 0


class Evaluator:
    """An evaluation of `function`, without the rules by which it goes (evaluation.py). The emitter reads `certain` and `shifted` at each request.

    certain  only an exception could keep Python from making a request here
    shifted  the addresses of requests here depend on something undecided
    """

    domain: Any

    def __init__(
        self, function: Any, arguments: OutsideSnapshot, emitter: Any, *, domain: Any = None, budget: int = 50_000,
        paused: Callable[[], bool] = lambda: False, passes: Callable[[Loc], int] = lambda _: 0, frames: Mapping[Any, Any] = {}, stream: str = "",
        explores: bool = False,
    ) -> None:  # fmt: skip
        """`explores`: it looks into arms of undecided branches, too. `frames`: locals of the frames of Python's that run functions of the program now,
        by their places."""
        self.function, self.snapshot, self.emitter = function, arguments, emitter
        if domain is not None:
            self.domain = domain
        self.paused, self.passes, self.frames, self.stream = paused, passes, frames, stream
        self.outside = Outside(arguments, self)
        self.adopt = self.outside.adopt
        self.locals = Outside(OutsideSnapshot(), self)
        """Contents of the Python frames: none of it is kept after the evaluation."""
        self.certain, self.shifted = True, False
        self.outcome = Outcome()
        self.loc = function.loc or Loc("", 0)
        self.lost: dict[int, Deps] = {}
        """By id, containers and states of which nothing is known any longer, with the answers that would tell."""
        self.risks: list[Deps] = []
        """Dependencies of unknown operations that may have raised."""
        self.handled: list[Any] = []
        self.tries = 0
        self.explores, self.exploring = explores, 0  # number of nested arms being explored
        self.depth = self.steps = self.misses = 0
        self.states: list[State] = []
        self.current: State | None = None
        self.tasks: list[Any] = []
        self.made_tasks: list[TaskOfRun] = []
        self.generators: list[Any] = []
        self._budget, self.check_at = budget, 64
        self._kept: list[Any] = []
        self.globals: dict[tuple[int, str], Any] = {}
        self._functions: dict[int, Any] = {}
        self._asks: dict[int, bool] = {}

    def forget_locals(self) -> None:
        """Keep nothing of the frames of Python's, which go on."""
        self.locals.forget()
        self.locals.snapshot.forget()

    # -- rules of the language

    def attribute(self, x: Any, name: str) -> Any: ...
    def call(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def call_method(self, x: Any, name: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def call_with_unknown(self, callee: Any, method: str | None, args: list[Any], deps: Deps) -> Any: ...
    def catches(self, kinds: Any, value: Any) -> bool: ...
    def class_of(self, x: Any) -> Any: ...
    def hand_over(self, values: Sequence[Any], depth: int = 0) -> None: ...
    def havoc(self, frame: Frame, effects: PossibleEffects, deps: Deps) -> None: ...
    def is_instance(self, x: Any, kinds: Any) -> Any: ...
    def language(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def left_off(self, values: Sequence[Any], deps: Deps) -> None: ...
    def left_out(self, frame: Frame, effects: PossibleEffects, undecided: Sequence[Deps]) -> Deps: ...
    def may_ask(self, frame: Frame, effects: PossibleEffects, depth: int = 0) -> bool: ...
    def may_ask_in(self, values: Iterable[Any]) -> bool: ...
    def may_skip(self, frame: Frame, target: Any) -> bool: ...
    def run_frame(self, frame: Frame) -> Any: ...
    def set_attribute(self, x: Any, name: str, value: Any) -> None: ...
    def special(self, x: Any, name: str) -> Any: ...
    def state_method(self, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def unknown_code(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...

    # -- budget and flags

    def count(self, n: int) -> None:
        """Spend steps of the budget."""
        self.steps += n
        if self.steps >= self.check_at:
            self.check()

    def check(self) -> None:
        """Stop if the budget is spent, or on request."""
        self.check_at = self.steps + 64
        if self.steps > self._budget:
            raise Stop(f"{self._budget} steps")
        if self.paused():
            self.outcome.paused = True
            raise Stop("paused")

    def blocked(self, deps: Deps) -> None:
        """Record that these answers would let the evaluation see more: certain requests, their addresses, or a whole prompt."""
        if deps and deps not in self.outcome.waits:
            self.outcome.waits.append(deps)

    def confirm(self) -> None:
        """Record that Python has made the current request: it has passed everything undecided."""
        self.certain, self.shifted = True, False

    def miss(self) -> None:
        """Record that a request is not made ahead. Ends the evaluation after many."""
        self.misses += 1 if self.certain else UNCERTAIN_MISS
        if self.misses > MOST_MISSED and not self.exploring:
            self._budget = self.steps - 1
            raise Stop("too many requests that are not made ahead")

    def operation(self, name: str, operands: Sequence[Any], deps: Deps) -> Any:
        """Return the result of a pure operation with some unknown operands."""
        if self.tries and name not in SAFE:
            self.risks.append(deps)
        return self.domain.operation(self, name, operands, deps)

    @property
    def stops(self) -> bool:
        """Return whether the whole evaluation has to end: on request, or with its budget spent."""
        return self.outcome.paused or self.steps > self._budget

    # -- lost knowledge

    def is_lost(self, x: Any) -> bool:
        return bool(self.lost) and id(x) in self.lost

    def changes(self, x: Any) -> None:
        """Prepare to change a container: an outside one is unknown from then on."""
        origin = self.outside.origins.get(id(x))
        if origin is not None:
            self.snapshot.changed.add(id(origin))
            self.lose(x, None)

    def lose(self, x: Any, deps: Deps) -> None:
        """Make the contents of a container, state or object unknown from now on."""
        kind = type(x)
        if isinstance(x, State):
            x.ctx = self.emitter.lost(deps)
            self.shifted = True
        elif kind is StateGroup or kind is tuple:
            for item in x.states if kind is StateGroup else x:
                if type(item) not in ATOMS:
                    self.lose(item, deps)
            return
        elif isinstance(x, Object):
            x.attributes.update(dict.fromkeys(x.attributes, Unknown(deps)))
            return
        elif kind not in CONTAINERS or kind is frozenset:
            return
        self.lost[id(x)] = join(self.lost.get(id(x), NOTHING), deps)
        self._kept.append(x)

    # -- globals

    def global_value(self, module: dict[str, Any], name: str) -> Any:
        key = (id(module), name)
        found = self.globals.get(key, MISSING)
        if found is not MISSING:
            return found
        if name in module:
            raw = self.snapshot.first(key, module[name])
            found = Unknown(None) if key in self.snapshot.changed else self.adopt(raw)
        elif hasattr(builtins, name):
            found = getattr(builtins, name)
        else:
            raise Raised(NameError(f"name '{name}' is not defined"))
        self.globals[key] = found
        return found

    def set_global(self, module: dict[str, Any], name: str, x: Any) -> None:
        self.snapshot.changed.add((id(module), name))
        self.globals[id(module), name] = x


SAFE = frozenset({
    "fstring", "eq", "ne", "is", "is not", "not", "all", "any", "format", "str", "repr", "in", "bool", "add", "join", "len", "list", "tuple", "set", "dict",
    "type", "isinstance", ".strip", ".lower", ".upper", ".split", ".splitlines", ".startswith", ".endswith", ".replace", ".lstrip", ".rstrip", ".title",
    ".count", ".find", ".join", ".get", ".items", ".keys", ".values", ".partition", ".rpartition", ".casefold", ".capitalize", "re.findall", "re.search",
    "re.match", "re.fullmatch", "re.sub", "re.split", "sorted", "round", "enumerate", "zip", ".search", ".match", ".findall", ".group", ".isdigit", ".append",
})  # fmt: skip
"""Operations on unknown values that almost never raise: a `try` around them is assumed not to be needed."""
