"""Experiments on memory under pressure: agents whose tools take time, in a pool that is too small for them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from benchmarks.agent_traces import traces
from benchmarks.bench_agents import POLICIES, begun, flat, in_flight, null_engine, replay, simulate
from experiments.core import Plot, Point, Row, Setup, experiment

POOL, PASS, ROW = 12_500, 8e-3, 25e-6
"""Tokens; seconds of a pass, and of each of its rows: an 8B shape on one H200."""
WARM_UP, WINDOW = 7.5, 30.0
"""Seconds of a point without a model."""


@experiment(
    "memory", "How many agents an hour, when they need more memory than there is?", Plot("Jobs an hour", "over-subscription", "jobs/h", "policy", kind="lines"),
    Plot("Prompt tokens that were new, over those computed", "over-subscription", "optimality", "policy", kind="lines"),
    reads="A closed loop of agents with recorded lengths and tool times (median 23 to 43 turns, tools 0.1 to 30 s). On a CPU no model runs: passes cost what "
          "they do on an H200, "
    "on a clock of its own. over-subscription: what all agents' contexts need at their ends, over the pool. own: runs have memory as wholes, and a host tier; "
    "device: without that; fit: only those begin that fit; lru: requests by themselves.",
    lacks={"percentiles to the first token": "agents have no end in the window, which counts shares of jobs",
        "percentiles to the last answer": "agents have no end in the window, which counts shares of jobs",
           "accuracy": "no model runs: answers have recorded lengths, and no text"},
)  # fmt: skip
def memory(setup: Setup) -> Generator[Point]:
    for policy in POLICIES:
        for over in (1, 2, 4, 8):
            yield Point(f"{policy} {over}", lambda policy=policy, over=over: _point(setup, policy, over))


def _point(setup: Setup, policy: str, over: float) -> Row:
    on_device = setup.device != "cpu"
    pool, scale = (100_000, 8.0) if on_device else (POOL, 64.0)
    agents, fit = in_flight(pool, scale, over), in_flight(pool, scale, 1.0)
    jobs = begun(traces(setup.seed, scale), min(agents, fit))
    options = POLICIES[policy]
    with closing(setup.engine(max_tokens=pool, **options) if on_device else null_engine(pool, flat(PASS, ROW), **options)) as engine:
        log = replay(engine, jobs, agents, 15.0, 60.0) if on_device else simulate(engine, jobs, agents, WARM_UP, WINDOW)
        engine.check()
        row = log.row(policy, over, agents)
    return {"policy": policy, "arrivals": "closed loop", "over-subscription": over, "agents": agents, "jobs/h": row.jobs_per_hour, "optimality": row.optimality,
        "computed": row.prefilled,
            "new": row.unique, "generated": row.generated, "leases broken": row.broken, "from host": row.host_in}  # fmt: skip
