"""Durable agents side by side: the same agent killed at the same points, in lmc, DBOS and LangGraph (both embedded, on SQLite), and called again.

    python -m venv /tmp/durable && /tmp/durable/bin/pip install -e . dbos langgraph langgraph-checkpoint-sqlite
    /tmp/durable/bin/python -m benchmarks.bench_durable

The agent asks its model, pays somebody, three times, and asks once more. Its process is killed (SIGKILL) before and behind each ask and each payment; then it
is
called again until it ends. What happened is in two files that no framework knows of. A row each:

    doubled      payments made twice;  lost  payments that were never made, of agents that ended
    stuck        agents that wait for a person, who has to find out whether a payment was made
    asked twice  answers of the model that were asked for again

"looks first": the payment's own code looks whether it was made, before it pays (in lmc: `check=`, which is called only when it is in doubt).
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

ROUNDS = 3
POINTS = [f"{when} {what} {n}" for n in range(ROUNDS + 1) for what in ("ask", "pay") for when in ("before", "behind") if what == "ask" or n < ROUNDS]


class World:
    """The world outside of the agent: payments, and what the model was asked. Ends the process at one point."""

    def __init__(self, directory: Path, kill: str) -> None:
        self.paid, self.asked, self.kill = directory / "paid", directory / "asked", kill

    def happened(self, n: int) -> bool:
        return self.paid.exists() and f"pay {n}" in self.paid.read_text().splitlines()

    def note(self, what: str, file: Path) -> str:
        self._point(f"before {what}")
        with file.open("a") as lines:
            lines.write(f"{what}\n")
        self._point(f"behind {what}")
        return f"result of {what}"

    def pay(self, n: int) -> str:
        return self.note(f"pay {n}", self.paid)

    def pay_looking_first(self, n: int) -> str:
        return f"result of pay {n}" if self.happened(n) else self.pay(n)

    def ask(self, n: int) -> str:
        return self.note(f"ask {n}", self.asked)

    def _point(self, name: str) -> None:
        if name == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


# -- the agent, four times ----------------------------------------------------------------------------------------------


def with_lmc(world: World, directory: Path, looks_first: bool) -> Any:
    import lmc

    check = (lambda n: lmc.Done(f"result of pay {n}") if world.happened(n) else None) if looks_first else None
    pay = lmc.host(world.pay, check=check)

    @lmc.function
    def agent(s: Any) -> Any:
        for n in range(ROUNDS):
            s += f"Round {n}:" + lmc.gen(f"a{n}")
            s += pay(n)
        s += "End:" + lmc.gen("end")
        return s["end"]

    asked = lambda prompt, ask: world.ask(ROUNDS if ask.name == "end" else int(ask.name[1:]))
    try:
        return lmc.compile(agent)(backend=lmc.Mock(asked), journal=directory / "journal").ret_value
    except lmc.InDoubtEffect:
        return "stuck"


def with_dbos(world: World, directory: Path, looks_first: bool) -> Any:
    from dbos import DBOS, SetWorkflowID

    DBOS(
        config={
            "name": "agent",
            "system_database_url": f"sqlite:///{directory / 'dbos.sqlite'}",
            "log_level": "CRITICAL",
            "application_version": "1",
            "executor_id": "one",
        }
    )

    @DBOS.step()
    def ask(n: int) -> str:
        return world.ask(n)

    @DBOS.step()
    def pay(n: int) -> str:
        return world.pay_looking_first(n) if looks_first else world.pay(n)

    @DBOS.workflow()
    def agent() -> str:
        for n in range(ROUNDS):
            ask(n)
            pay(n)
        return ask(ROUNDS)

    DBOS.launch()  # resumes what was cut off
    with SetWorkflowID("agent"):
        return DBOS.start_workflow(agent).get_result()


def with_langgraph(world: World, directory: Path, looks_first: bool) -> Any:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        n: int
        end: str

    def ask(state: State) -> dict[str, Any]:
        return {"end": world.ask(state["n"])}

    def pay(state: State) -> dict[str, Any]:
        (world.pay_looking_first if looks_first else world.pay)(state["n"])
        return {"n": state["n"] + 1}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("pay", pay)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: "pay" if state["n"] < ROUNDS else END)
    graph.add_edge("pay", "ask")
    with SqliteSaver.from_conn_string(str(directory / "langgraph.sqlite")) as saver:
        agent: Any = graph.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "agent"}}
        known = agent.get_state(config)
        if known.values and not known.next:
            return known.values["end"]
        return agent.invoke(None if known.created_at else {"n": 0, "end": ""}, config, durability="sync")["end"]


AGENTS = {"lmc": with_lmc, "DBOS": with_dbos, "LangGraph": with_langgraph}


# -- killed, and called again -------------------------------------------------------------------------------------------


def called(agent: str, directory: Path, looks_first: bool, kill: str = "") -> tuple[int, str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_durable",
        "--work",
        agent,
        "--in",
        str(directory),
        "--kill",
        kill,
        *(["--looks-first"] if looks_first else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parent.parent)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(done.stderr)
    return done.returncode, done.stdout.strip().rpartition("\n")[2]


def lines(directory: Path, name: str) -> Counter[str]:
    return Counter((directory / name).read_text().splitlines() if (directory / name).exists() else ())


def row(agent: str, looks_first: bool) -> str:
    doubled = lost = stuck = again = kills = 0
    for point in POINTS:
        with tempfile.TemporaryDirectory() as where:
            directory = Path(where)
            code, _ = called(agent, directory, looks_first, point)
            kills += code == -signal.SIGKILL
            _, said = called(agent, directory, looks_first)
            paid, asked = lines(directory, "paid"), lines(directory, "asked")
            doubled += sum(times - 1 for times in paid.values())
            again += sum(times - 1 for times in asked.values())
            stuck += said == "stuck"
            lost += 0 if said == "stuck" else ROUNDS - len(paid)
            assert said in ("stuck", f"result of ask {ROUNDS}"), said
    return f"| {agent}{', looks first' if looks_first else ''} | {kills} | {doubled} | {lost} | {stuck} | {again} |"


def versions() -> str:
    from importlib.metadata import version

    import lmc

    return ", ".join([f"lmc {lmc.__version__}", *[f"{name} {version(name)}" for name in ("dbos", "langgraph", "langgraph-checkpoint-sqlite")]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=AGENTS)
    parser.add_argument("--in", dest="directory", type=Path)
    parser.add_argument("--kill", default="")
    parser.add_argument("--looks-first", action="store_true")
    given = parser.parse_args()
    if given.work is not None:
        print(AGENTS[given.work](World(given.directory, given.kill), given.directory, given.looks_first), flush=True)
        os._exit(0)  # frameworks have threads that go on
    print(f"{date.today()} · {platform.processor() or platform.machine()} · Python {platform.python_version()} · {versions()}")
    print("| | kills | doubled | lost | stuck | asked twice |\n|---|---|---|---|---|---|")
    for looks_first in (False, True):
        for agent in AGENTS:
            print(row(agent, looks_first), flush=True)


if __name__ == "__main__":
    main()
