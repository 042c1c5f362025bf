"""One evaluation of a program on known values: what it has lost, and the rules it goes by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from lmc.errors import Loc
from lmc.frontend.capture import calls, havoc, objects
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Evaluator, Outcome
from lmc.frontend.capture.domain import Asking, Domain
from lmc.frontend.capture.outside import Outside, OutsideSnapshot, any_of
from lmc.frontend.capture.unknown import NOTHING, Abandoned, Deps, GivenParts, Raised, Stop, Undecided, Unknown, join
from lmc.frontend.capture.values import LazyItems
from lmc.frontend.interpreter import Function
from lmc.frontend.state import State
from lmc.tracebacks import place


class Evaluation(Evaluator):
    """Follows `function` from its first line."""

    def __init__(
        self, function: Function, arguments: OutsideSnapshot, emitter: Asking, *, domain: Domain | None = None, stream: str = "", **options: Any
    ) -> None:  # fmt: skip
        """`options`: those of `Evaluator`."""
        super().__init__(function.loc or Loc("", 0), emitter, domain or Domain(), arguments, **options)
        self.function, self.stream = function, stream
        self.outside, self.locals = Outside(arguments, self), Outside(OutsideSnapshot(), self)
        self.adopt = self.outside.adopt

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
    unknown_code = calls.unknown_code
    attribute, set_attribute, special = objects.attribute, objects.set_attribute, objects.special
    class_of, is_instance, catches = objects.class_of, objects.is_instance, objects.catches
    may_ask, may_ask_in, may_skip = havoc.may_ask, havoc.may_ask_in, havoc.may_skip
    hand_over, left_off, havoc = havoc.hand_over, havoc.left_off, havoc.havoc

    # -- lost knowledge

    def changes(self, x: Any) -> None:
        """Prepare to change a container: an outside one is unknown from then on."""
        self.changed.append(x)
        origin = self.outside.origins.get(id(x))
        if origin is not None:
            self.snapshot.changed.add(id(origin))
            self.lose(x, None)

    def lose(self, x: Any, deps: Deps, given: Unknown | None = None, stores: Iterable[str] = ()) -> None:
        """Make the contents of a container, state or object unknown from now on: what they were, or what it may be given. Of a class, these attributes."""
        kind = type(x)
        if kind is Unknown and not x.of:
            return
        if kind is Unknown or stores:
            losses = havoc.Losses(self)
            losses.lose(x, given, stores)
            return losses.apply(deps)
        self.changed.append(x)  # which also keeps its id its own
        if isinstance(x, State):
            x.ctx = self.emitter.lost(deps)
            self.shifted = True
        elif kind is op.StateGroup or kind is tuple:
            for item in x.states if kind is op.StateGroup else x:
                if type(item) not in op.ATOMS:
                    self.lose(item, deps)
            return
        elif kind is LazyItems:
            return x.abandon(deps)
        elif type(x) is op.Object:
            x.attributes.update({name: any_of((held,), deps) for name, held in x.attributes.items()})
        elif kind not in op.CONTAINERS or kind is frozenset:
            return
        self.lost[id(x)] = join(self.lost.get(id(x), NOTHING), deps)
        self.give((x,), given)

    def give(self, xs: Collection[Any], given: Unknown | None) -> None:
        """Let objects of which nothing is known hold this, too. They share it, or it would grow with each of them."""
        if given is not None and given.of:
            before = {id(one): one for x in xs if (one := self.given.get(id(x))) is not None}
            known = next(iter(before.values())) if len(before) == 1 else None
            if known is None or not {*map(id, given.of)} <= {*map(id, known.of), *before}:
                known = GivenParts(None, of=(*given.of, *before.values()))
            for x in xs:
                if type(x) is op.Object and (old := self.given.get(id(x))) is not known:
                    for name, held in x.attributes.items():  # what `old` holds, `known` does
                        of = [one for one in held.of if one is not old] if type(held) is Unknown else [held]
                        x.attributes[name] = Unknown(op.known(self, held), of=(*of, known))
                self.given[id(x)] = known
