"""What the executor asks of a run's owner: where the run begins, the path behind a decision that is new, the state at its end."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any

from lmc import measured
from lmc.backend import recording
from lmc.backend.base import TakeOver
from lmc.backend.instructions import Exit, Instruction, Run, Scheduler, case_key
from lmc.config import log
from lmc.errors import LmcError, Loc, ParameterError
from lmc.frontend import reach
from lmc.frontend.interpreter import ACTIVE
from lmc.frontend.state import State
from lmc.frontend.tree import Decision, Node, Switch, decision_of
from lmc.jit.growth import AT_ONCE, Start
from lmc.jit.planning import Planner
from lmc.jit.states import Root, returned, show
from lmc.jit.takeover import TakeOvers
from lmc.jit.traced import Plan, Traced
from lmc.jit.trees import Trees
from lmc.prompt import suggestion


class Owner:
    """Owns the runs of one program (backend/instructions.py `Owner`). `made_at`: where it was compiled."""

    def __init__(self, trees: Trees, planner: Planner, made_at: Loc | None) -> None:
        self.trees, self.planner, self.function, self.stats = trees, planner, trees.function, trees.stats
        self._made_at = made_at
        self._takeovers = TakeOvers(trees)

    # -- the beginning

    def begin(self, root: Root) -> Run:
        """A run that the executor can drive: on the graph, or in the interpreter where that is to run all of it."""
        live = root.live.run
        values = self.trees.parameters.values(root.arguments)
        run = Run(self, live.backend, live.defaults, live.seed, live.item, values, root.state.stream, live.limits)
        if live.limits is not None:
            live.limits.begin()
        run.root = root
        run.spare, run.watched = live.spare, live.watched or root.watched is not None
        run.branches = live.branches and live.limits is None and live.journal is None
        plan = self._plan(root, values)
        if plan is None:
            run.pending = [_LEAVE]
        else:
            run.enter(plan.code)
        return run

    def _plan(self, root: Root, values: Sequence[Any]) -> Plan | None:
        """What a run starts on, which its root is told."""
        traced = self.trees.find(root.arguments, values, watched=root.watched is not None)
        if traced is None:
            return None
        self.check_outputs(traced)
        root.start = traced.growth.begin()
        if root.start is Start.INTERPRETER:
            return None
        live = root.live.run
        try:
            plan = self.planner.plan(traced, live.backend, live.defaults.temperature == 0)
        except LmcError as error:  # such as a role that the template lacks: raised where the program gets there, if it does
            self.trees.notices.say(f"{self.function.name} runs in the interpreter: {error}")
            return None
        root.traced, root.target = traced, plan.target
        return plan

    def check_outputs(self, traced: Traced) -> None:
        """Refuses `outputs` with a name that nothing in the program can make: no path of a complete tree, no text in the code.

        While a tree has paths that no run took, any of them may make it; then reading it from the state says what there is.
        """
        outputs = self.planner.outputs
        if not outputs or traced.checked == traced.tree.size:
            return
        traced.checked = traced.tree.size
        made, complete = traced.tree.variables()
        unknown = [name for name in outputs if name not in made]
        if unknown and complete and not reach.texts(self.function.func).intersection(unknown):
            near = suggestion(unknown[0], sorted(name for name in made if isinstance(name, str)))
            raise ParameterError(f"outputs={list(outputs)}: {self.function.described} makes no variable {unknown[0]!r}{near}", loc=self._made_at)

    def context(self, run: Run) -> contextvars.Context:
        """What the program's own code runs in."""
        context = contextvars.copy_context()
        context.run(ACTIVE.set, run.root.state)
        return context

    # -- a decision with an answer that no run has given

    def extend(self, run: Run, exit: Exit) -> Sequence[Instruction] | None:
        """The continuation for the last decision of the run: traced if it is new, planned, and linked to the switch."""
        root: Root = run.root
        assert root.traced is not None and exit.switch is not None
        path = tuple(decision_of(x) for x in run.path)
        if None in path:
            root.why = f"a decision on a {type(run.path[-1]).__name__}"
            self.trees.notices.say(f"{self.function.name}: {root.why}; this path runs in the interpreter")
            return None
        with self.trees.lock:
            known = exit.switch.arms.get(case_key(run.path[-1]))
            return known if known is not None else self._link(run, exit, root.traced, path)  # type: ignore[arg-type]

    def _link(self, run: Run, exit: Exit, traced: Traced, path: tuple[Decision, ...]) -> Sequence[Instruction] | None:
        """The code of a path, linked where it begins; None: the interpreter goes on, and the root says why."""
        root: Root = run.root
        node = self._node(run, traced, path)
        if node is None:
            return None
        before = _decision(traced, path)
        assert before is not None and root.target is not None and exit.switch is not None
        if len(before.live) != len(exit.operands):
            root.why = f"was traced again since, and not as before ({exit.loc})"
            log("exits", f"{self.function.name} {root.why}; the interpreter goes on")
            return None
        graph = traced.tree.graph(node, before.live)
        try:
            code, _ = self.planner.compile(graph, root.target, exit.operands, exit.code.slots)
        except LmcError as error:
            root.why = str(error)
            self.trees.notices.say(f"{self.function.name} goes on in the interpreter: {error}")
            return None
        exit.switch.arms[case_key(run.path[-1])] = code.entry
        traced.ledger.extended[str(exit.loc)] += 1
        log("exits", f"{self.function.name}: {_shown(run.path[-1])} at {exit.loc}: a new path of {len(list(graph.ops()))} ops")
        return code.entry

    def _node(self, run: Run, traced: Traced, path: tuple[Decision, ...]) -> Node | None:
        """Where a path leads, traced now if no run took it before and it may be; None: the interpreter goes on."""
        root: Root = run.root
        node = traced.tree.node(path)
        if node is not None:
            return node
        if traced.saved:
            root.why = "a path that is not in the file"
            return None
        if not traced.growth.affordable and root.start is not Start.TRIAL:
            traced.growth.left()
            root.why = "runs seldom take a path again"
            log("exits", f"{self.function.name}: runs seldom take a path again; one more goes on in the interpreter")
            return None
        if root.grew >= AT_ONCE:
            root.why = f"{AT_ONCE} new decisions in one run; the next one traces further"
            log("exits", f"{self.function.name}: {root.why}")
            return None
        root.grew += 1
        traced.took(run.path[:-1])
        before = _decision(traced, path)
        dropped = traced.make_room(before) if before is not None else None
        if dropped is not None:
            log("exits", f"{self.function.name}: {dropped}; the paths that were not used for longest are dropped")
        root.why = self.trees.grow(traced, path) or ""
        return None if root.why else traced.tree.node(path)

    # -- on its way and over

    def show(self, run: Run, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        show(run.root, prompt, held, attrs)

    def finish(self, run: Run, value: Any, prompt: Any, held: Sequence[Any], attrs: Mapping[str, Any]) -> State:
        """The run came to its end on the graph."""
        root: Root = run.root
        traced = root.traced
        if traced is not None and not root.grew:
            traced.growth.carried()
        if traced is not None and traced.crowded:
            traced.took(run.path)
        return returned(run, self.function.name, value, prompt, held, attrs, self.planner.outputs)

    def replay(self, run: Run) -> State:
        return self._takeovers.replay(run)

    async def areplay(self, run: Run) -> State:
        return await self._takeovers.areplay(run)

    def cancel(self, run: Run) -> None:
        run.root.live.cancel()

    def ended(self, run: Run) -> None:
        """A run is over: what it cost goes to the ledger of its tree."""
        self.stats.wasted += run.wasted
        root: Root = run.root
        if root.traced is not None:
            root.traced.ledger.note(run)
        if recording.recorder is not None:
            graph = root.traced.tree.graph() if root.traced else None
            recording.recorder.runs.append(measured.recorded(run, self.function.name, root.index, graph))


class _Leave(Instruction):
    """For runs without a tree: the interpreter runs all of it."""

    def execute(self, run: Run, x: Scheduler) -> bool:
        raise TakeOver("")


_LEAVE = _Leave((), 0, 0, None)


def _decision(traced: Traced, path: tuple[Decision, ...]) -> Switch | None:
    """The decision whose answer is the last one of a path."""
    node = traced.tree.node(path[:-1])
    return node.end if node is not None and isinstance(node.end, Switch) else None


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 40 else text[:37] + "…"
