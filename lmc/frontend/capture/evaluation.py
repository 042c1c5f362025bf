"""One evaluation of a program on known values: its flags, its budget, what it has lost, and the rules it goes by."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc.errors import Loc
from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture import calls, havoc, objects
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Outcome
from lmc.frontend.capture.domain import Asking, Domain
from lmc.frontend.capture.outside import Outside, OutsideSnapshot
from lmc.frontend.capture.unknown import MISSING, NOTHING, Abandoned, Deps, Raised, Stop, Undecided, Unknown, join
from lmc.frontend.interpreter import Function
from lmc.frontend.state import State
from lmc.tracebacks import place

MOST_MISSED = 128
"""Requests of one evaluation that it does not make: a loop may go on for ever, and what is open is bounded (`MAX_OPEN`)."""
UNCERTAIN_MISS = 16
"""As how many of them one behind something undecided counts, such as each turn of an agent's loop."""


class Evaluation:
    """Follows `function` from its first line. The emitter reads `certain` and `shifted` at each request.

    certain  only an exception could keep Python from making a request here
    shifted  the addresses of requests here depend on something undecided
    """

    def __init__(
        self, function: Function, arguments: OutsideSnapshot, emitter: Asking, *, domain: Domain | None = None, budget: int = 50_000,
        paused: Callable[[], bool] = lambda: False, passes: Callable[[Loc], int] = lambda _: 0, frames: Mapping[Any, Any] = {}, stream: str = "",
        explores: bool = False,
    ) -> None:  # fmt: skip
        """`explores`: it looks into arms of undecided branches, too. `frames`: locals of the frames of Python's that run functions of the program now,
        by their places."""
        self.function, self.snapshot, self.emitter = function, arguments, emitter
        self.domain = domain or Domain()
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
        self.forked: dict[int, Deps] = {}
        """By id, states that an unknown number of forks may be joined into."""
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

    def run(self) -> Outcome:
        """Evaluates. Raises nothing of the program's: what it raises is a fault of the evaluator."""
        outcome, token = self.outcome, place.set(lambda: self.loc)
        try:
            state = State(self.emitter, stream=self.stream, name=self.function.name)
            self.states.append(state)
            args = [self.adopt(a) for a in self.snapshot.args]
            kwargs = {k: self.adopt(v) for k, v in self.snapshot.kwargs.items()}
            outcome.value = calls.program(self, self.function, state, args, kwargs)
        except Stop as stop:
            outcome.reason, outcome.stopped_at = stop.reason, stop.loc or self.loc
        except Raised as raised:
            outcome.raised = raised.value
        except (Undecided, Abandoned) as unknown:
            self.blocked(unknown.deps)
            outcome.reason, outcome.stopped_at = "something unknown decides", self.loc
        except RecursionError:
            outcome.reason, outcome.stopped_at = "recursion", self.loc
        finally:
            for generator in self.generators:
                generator.kill()
            place.reset(token)
            self.outside.forget()
            self.forget_locals()
        outcome.steps = self.steps
        return outcome

    def forget_locals(self) -> None:
        """Keep nothing of the frames of Python's, which go on."""
        self.locals.forget()
        self.locals.snapshot.forget()

    # -- rules of the language, each from its module

    call, call_method, call_settled, call_with_unknown = calls.call, calls.call_method, calls.call_settled, calls.call_with_unknown
    language, run_frame, state_method = calls.language, calls.run_frame, calls.state_method
    unknown_code, hand_over, left_off = calls.unknown_code, calls.hand_over, calls.left_off
    attribute, set_attribute, special = objects.attribute, objects.set_attribute, objects.special
    class_of, is_instance, catches = objects.class_of, objects.is_instance, objects.catches
    may_ask, may_ask_in, may_skip, havoc = havoc.may_ask, havoc.may_ask_in, havoc.may_skip, havoc.havoc

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
        elif kind is op.StateGroup or kind is tuple:
            for item in x.states if kind is op.StateGroup else x:
                if type(item) not in op.ATOMS:
                    self.lose(item, deps)
            return
        elif type(x) is op.Object:
            x.attributes.update(dict.fromkeys(x.attributes, Unknown(deps)))
            return
        elif kind not in op.CONTAINERS or kind is frozenset:
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
