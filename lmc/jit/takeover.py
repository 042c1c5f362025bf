"""The way out: where a run leaves the graph, the interpreter takes over and goes on from the record of what was done."""

from __future__ import annotations

from typing import Any

from lmc.backend.base import TakeOver
from lmc.backend.instructions import Run
from lmc.config import log
from lmc.errors import Loc, ProgramError
from lmc.frontend import aio
from lmc.frontend.replay import ReplayEmitter, areplay, replay
from lmc.frontend.state import State
from lmc.frontend.streaming import Mirror
from lmc.frontend.trace_outside import GuardFailed
from lmc.jit.states import Root
from lmc.jit.trees import Trees


class TakeOvers:
    """Takes runs of a program over, and says why: once each what capture lacks, in the log what the program does."""

    def __init__(self, trees: Trees) -> None:
        self._trees, self._function, self._stats, self._notices = trees, trees.function, trees.stats, trees.notices

    def replay(self, run: Run) -> State:
        """The rest of a run, in the interpreter."""
        root: Root = run.root
        self._leave(run)
        if _untouched(run):
            self._function._call(root.state, root.arguments)
        else:
            replay(self._function, *_record(run))
        self._went_on(run)
        if root.batch:  # its answers are awaited here, on the replay's own thread
            root.state.sync()
        return root.state

    async def areplay(self, run: Run) -> State:
        """The same on an event loop."""
        root: Root = run.root
        self._leave(run)
        if _untouched(run):
            await self._function._acall(root.state, root.arguments)
        else:
            await areplay(self._function, *_record(run))
        self._went_on(run)
        await aio.after(aio.unanswered_in(root.state.ctx), lambda: None)
        return root.state

    def _leave(self, run: Run) -> None:
        """Says that a run leaves the graph, and why. Raises what it failed with if the interpreter would need a source that is not to be had."""
        self._need_source(run)
        name, traced, reason = self._function.name, run.root.traced, _reason(run)
        if _raised(run):  # what the program does, not what capture lacks, unless the program goes on
            log("exits", f"{name} {reason}; the interpreter goes on")
        elif traced is not None and traced.outgrown:  # the next run gets a better tree
            log("exits", f"{name} goes on in the interpreter once: {reason}")
        elif str(run.failure):
            self._notices.say(f"{name} goes on in the interpreter: {reason}")
        self._stats.replays += 1
        if traced is not None:
            traced.ledger.replayed[reason] += 1

    def _need_source(self, run: Run) -> None:
        """A run of a program of a file goes on in the interpreter. Raises what it failed with, or why its source is not to be had."""
        saved = self._trees.saved
        if saved is None:
            return
        reason = f"the run came to {_reason(run) or 'a path that is not in the file'}"
        try:
            saved.source(reason)
            if run.record or run.ahead:
                saved.check_counted_alike(reason)
        except ProgramError as missing:
            if run.failure is None or isinstance(run.failure, TakeOver):
                raise
            run.failure.add_note(f"(whether the program handles it, only its source says: {missing.message})")
            raise run.failure from None
        if run.root.traced is not None and run.root.traced.saved and isinstance(run.failure, TakeOver):
            run.root.traced.retired = True

    def _went_on(self, run: Run) -> None:
        """The interpreter finished what left the graph because of an exception: the program handles it, and that was not captured."""
        if _raised(run):
            self._notices.say(f"{self._function.name} goes on in the interpreter: {_reason(run)}")


# -- what is done already


def _untouched(run: Run) -> bool:
    """Whether nothing at all has been done yet."""
    return not (run.record or run.ahead or run.answers or run.root.shown)


def _record(run: Run) -> tuple[Any, ...]:
    """What a replay goes by: a state that answers what was asked, the arguments, and the record of what was done."""
    root: Root = run.root
    if run.limits is not None:
        run.limits.restart([prompt.result for _, _, prompt in run.answers.values() if prompt.result is not None])
    emitter = ReplayEmitter(root.live.run, run.answers)
    root.state = State(emitter, stream=run.stream, name=root.state.name, asked=[root.state.asked])
    if root.watched is not None:
        root.state.progress = Mirror(root.state, root.watched, root.shown)
    return root.state, root.arguments, run.record, root.traced.tree if root.traced else None, run.ahead, _changed(run)


def _changed(run: Run) -> int | None:
    """The hook call where a run found the outside changed, if that is why it left the graph."""
    return run.failure.tick if isinstance(run.failure, GuardFailed) else None


# -- why


def _raised(run: Run) -> bool:
    """Whether a run left the graph because of an exception that is the program's."""
    return not isinstance(run.failure, TakeOver) or str(run.failure).startswith("raises ")


def _reason(run: Run) -> str:
    """Why a run left the graph, and where."""
    failure = run.failure
    loc: Loc | None = getattr(failure, "loc", None)
    if not isinstance(failure, TakeOver):
        what = f"raises {type(failure).__name__}"
    else:
        what = str(failure) or run.root.why
    return f"{what} ({loc})" if isinstance(loc, Loc) and what and str(loc) not in what else what
