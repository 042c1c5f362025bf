"""Beginning of runs: the state that a program is given, with what its run inherits from its caller, its options and, in a batch, its item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from lmc.backend.base import Backend, ProgramRun
from lmc.config import default_backend
from lmc.errors import ParameterError
from lmc.frontend.active import ACTIVE, next_call
from lmc.frontend.expressions import caller_loc
from lmc.frontend.live import LiveEmitter, Run, fresh_seed
from lmc.frontend.options import Options
from lmc.frontend.state import State
from lmc.segments import SamplingParams, derive_seed

if TYPE_CHECKING:
    from lmc.durable.journal import JournalFile
    from lmc.durable.run import RunJournal

_NO_DEFAULTS = SamplingParams()


class RunnableProgram(Protocol):
    """A program, as its runs begin."""

    name: str
    num_api_spec_tokens: int | None


def state_of_run(program: RunnableProgram, options: Options, item: int = 0) -> State:
    """Make the state of a run with these options; a sub-program's when a program is running here."""
    caller = ACTIVE.get()
    if caller is not None and options.desk is not None:
        raise ParameterError("deadline= of a sub-program: give it to the program that calls it", loc=caller_loc())
    outer = None if caller is None else run_of(caller)
    own = None if isinstance(options.journal, str) else options.journal
    apart = outer is None or options.seed is not None
    if apart and outer is not None and own is None and outer.journal is not None:
        outer.journal.refuse_batch()
    backend = backend_of_run(options, outer)
    defaults, limits = options.defaults(outer.defaults if outer else _NO_DEFAULTS), options.limits(backend, outer.limits if outer else None)
    if caller is None or outer is None or apart:
        seed, stream, watched, begin = fresh_seed(backend, options.seed), "", options.stream, options.begin
        journal, ledger = own and _journal_of_run(own, item), None if outer is None or options.begin or options.batch else outer.ledger
    else:
        seed, item, stream, watched, begin = outer.seed, outer.item, next_call(caller), options.stream or outer.watched, None if outer.ledger else options.begin
        journal, ledger = outer.journal, outer.ledger
    run = Run(backend, defaults, seed, item, limits, program.num_api_spec_tokens or 0, watched, journal, ledger, begin, _whole(program, options, outer))
    state = State(LiveEmitter(run), stream=stream, name=program.name)
    if caller is not None:
        caller.asked.append(state.asked)
    return state


def backend_of_run(options: Options, outer: Run | None) -> Backend:
    """Return the backend of a run with these options: a sub-program's is its caller's, any other's the default."""
    return options.backend or (outer.backend if outer else default_backend())


def _whole(program: RunnableProgram, options: Options, outer: Run | None) -> ProgramRun | None:
    """Return the run as backends identify it: a sub-program belongs to its caller's."""
    if outer is not None:
        return outer.whole
    if options.desk is not None and not getattr(backend := backend_of_run(options, None), "has_batches", False):
        raise ParameterError(f"deadline=: {backend.capabilities.name} has no batch API; leave it out, or use lmc.OpenAI or lmc.Anthropic", loc=caller_loc())
    return ProgramRun(_known_as(program), options.batch, options.priority, options.account, options.desk)


def _known_as(program: RunnableProgram) -> str:
    """Return its identity for backends, which learn from its runs."""
    own = vars(program)
    return f"{own.get('__module__')}:{own.get('__qualname__', program.name)}"


def states_of_batch(program: RunnableProgram, numbers: Sequence[int], options: Options) -> Callable[[int], State]:
    """Return the function that makes the state of an item when it begins, by its index in `numbers`."""
    caller = ACTIVE.get()
    if options.seed is None and caller is not None:  # one sub-program call, each item a run of its own
        run = run_of(caller)
        seed = derive_seed(run.seed, run.item, next_call(caller), 0)
    else:
        seed = fresh_seed(backend_of_run(options, run_of(caller) if caller else None), options.seed)
    options = replace(options, seed=seed, batch=object())
    first = [state_of_run(program, options, numbers[0])]  # now, so that wrong options raise before anything runs
    run = run_of(first[0])
    if caller is not None or run.limits is not None:
        return lambda place: first.pop() if place == 0 else state_of_run(program, options, numbers[place])
    journal = run.journal
    journals = None if journal is None else [journal, *[_journal_of_run(journal.journal, item) for item in numbers[1:]]]  # each is read before any resumes

    def begun(place: int) -> State:
        of_item = run._replace(item=numbers[place], journal=journals and journals[place], whole=_whole(program, options, None))
        return State(LiveEmitter(of_item), name=program.name)

    return begun


def run_of(state: State) -> Run:
    """Return the run that a state belongs to."""
    assert isinstance(state.emitter, LiveEmitter), "states that run are live"
    return state.emitter.run


def _journal_of_run(journal: JournalFile, item: int) -> RunJournal:
    from lmc.durable.run import RunJournal

    return RunJournal(journal, item)
