"""Beginning of runs: the state that a program is given, with what its run inherits from its caller, its options and, in a batch, its item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from lmc.backend.base import ProgramRun
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
    own = None if isinstance(options.journal, str) else options.journal
    if caller is None or options.seed is not None:
        if caller is not None and own is None and (journal := run_of(caller).journal) is not None:
            journal.refuse_batch()
        inherited = run_of(caller).defaults if caller else _NO_DEFAULTS
        backend = options.backend or (run_of(caller).backend if caller else default_backend())
        limits = options.limits(backend, run_of(caller).limits if caller else None)
        journal = own and _journal_of_run(own, item)
        ledger = None if caller is None or options.begin or options.batch else run_of(caller).ledger
        run = Run(
            backend,
            options.defaults(inherited),
            fresh_seed(backend, options.seed),
            item,
            limits,
            program.num_api_spec_tokens or 0,
            options.stream,
            journal,
            ledger,
            options.begin,
            _whole(program, options, caller),
        )
        return _counted(caller, State(LiveEmitter(run), name=program.name))
    outer = run_of(caller)
    backend = options.backend or outer.backend
    limits, watched = options.limits(backend, outer.limits), options.stream or outer.watched
    run = Run(
        backend,
        options.defaults(outer.defaults),
        outer.seed,
        outer.item,
        limits,
        program.num_api_spec_tokens or 0,
        watched,
        outer.journal,
        outer.ledger,
        None if outer.ledger else options.begin,
        outer.whole,
    )
    return _counted(caller, State(LiveEmitter(run), stream=next_call(caller), name=program.name))


def _whole(program: RunnableProgram, options: Options, caller: State | None) -> ProgramRun | None:
    """Return the run as backends identify it: a sub-program belongs to its caller's."""
    if caller is not None:
        return run_of(caller).whole
    if options.desk is not None and not getattr(backend := options.backend or default_backend(), "has_batches", False):
        raise ParameterError(f"deadline=: {backend.capabilities.name} has no batch API; leave it out, or use lmc.OpenAI or lmc.Anthropic", loc=caller_loc())
    return ProgramRun(_known_as(program), options.batch, options.priority, options.account, options.desk)


def _known_as(program: RunnableProgram) -> str:
    """Return its identity for backends, which learn from its runs."""
    own = vars(program)
    return f"{own.get('__module__')}:{own.get('__qualname__', program.name)}"


def _counted(caller: State | None, state: State) -> State:
    if caller is not None:
        caller.asked.append(state.asked)
    return state


def states_of_batch(program: RunnableProgram, numbers: Sequence[int], options: Options) -> Callable[[int], State]:
    """Return the function that makes the state of an item when it begins, by its index in `numbers`."""
    caller = ACTIVE.get()
    if options.seed is None and caller is not None:  # one sub-program call, each item a run of its own
        run = run_of(caller)
        seed = derive_seed(run.seed, run.item, next_call(caller), 0)
    else:
        seed = fresh_seed(options.backend or (run_of(caller).backend if caller else default_backend()), options.seed)
    options = replace(options, seed=seed, batch=object())
    first = [state_of_run(program, options, numbers[0])]  # now, so that wrong options raise before anything runs
    run = run_of(first[0])
    if caller is not None or run.limits is not None:
        return lambda place: first.pop() if place == 0 else state_of_run(program, options, numbers[place])
    if (journal := run.journal) is not None:  # the record of each run is read before any resumes
        journals = [journal, *[_journal_of_run(journal.journal, item) for item in numbers[1:]]]
        return lambda place: State(
            LiveEmitter(run._replace(item=numbers[place], journal=journals[place], whole=_whole(program, options, None))), name=program.name
        )
    return lambda place: State(LiveEmitter(run._replace(item=numbers[place], whole=_whole(program, options, None))), name=program.name)


def run_of(state: State) -> Run:
    """Return the run that a state belongs to."""
    assert isinstance(state.emitter, LiveEmitter), "states that run are live"
    return state.emitter.run


def _journal_of_run(journal: JournalFile, item: int) -> RunJournal:
    from lmc.durable.run import RunJournal

    return RunJournal(journal, item)
