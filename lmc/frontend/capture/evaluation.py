"""One evaluation of a program on known values, by the rules of the language."""

from __future__ import annotations

from lmc.frontend.capture import calls, havoc, objects
from lmc.frontend.capture.domain import Domain
from lmc.frontend.capture.evaluator import Evaluator, Outcome
from lmc.frontend.capture.unknown import Abandoned, Raised, Stop, Undecided
from lmc.frontend.expressions import place
from lmc.frontend.state import State


class Evaluation(Evaluator):
    """Follows a program from its first line."""

    domain = Domain()

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

    call, call_method, call_with_unknown = calls.call, calls.call_method, calls.call_with_unknown
    language, run_frame, state_method = calls.language, calls.run_frame, calls.state_method
    unknown_code, hand_over, left_off = calls.unknown_code, calls.hand_over, calls.left_off
    attribute, set_attribute, special = objects.attribute, objects.set_attribute, objects.special
    class_of, is_instance, catches = objects.class_of, objects.is_instance, objects.catches
    may_ask, may_ask_in, may_skip, left_out, havoc = havoc.may_ask, havoc.may_ask_in, havoc.may_skip, havoc.left_out, havoc.havoc
