"""A research agent with a slow tool, killed halfway and resumed: nothing that is known is requested or looked up twice.

    python examples/durable_research.py

It starts itself as another process, kills that one with SIGKILL while it reads its fourth page, and finishes the run from its journal.
Only that page is read again, because nobody knows whether it was read; a tool that may not be called again would raise `lmc.InDoubtEffect`.
`python examples/durable_research.py sleep.journal` keeps the journal (interrupt it and start it again), and
`lmc replay sleep.journal examples/durable_research.py:research` shows the run step by step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lmc

QUESTION = "Which animals sleep the longest?"
LOOKED_UP = "LMC_EXAMPLE_LOOKED_UP"  # names the file in which the slow tool counts its calls
READING = 0.2  # seconds that it takes to read a page


def read_page(topic: str) -> str:
    """A slow tool that nobody wants to call twice."""
    if path := os.environ.get(LOOKED_UP):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{topic!r}\n")
    time.sleep(READING)
    return f"A page about {topic.strip()}: it says that cats sleep long."


look_up = lmc.host(read_page, idempotent=True)  # reading a page again does no harm


@lmc.function
def research(s: lmc.State, question: str) -> str:
    s += lmc.user(question)
    for step in range(6):
        s += lmc.user(f"Step {step + 1}: what should be looked up?")
        s += lmc.assistant(lmc.gen("topic", max_tokens=8, stop="\n"))
        s += lmc.user("Found: " + look_up(s["topic"]))
    s += lmc.user("Answer in one sentence.") + lmc.assistant(lmc.gen("answer", max_tokens=32))
    return s["answer"]


def run(journal: Path) -> tuple[str, int]:
    """The answer, and how often the model was asked for it."""
    backend = lmc.Mock(latency=0.05)
    return lmc.compile(research)(QUESTION, backend=backend, seed=1, journal=journal).ret_value, len(backend.call_log)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def killed_in_the_middle(journal: Path, calls: Path) -> None:
    """Runs the program in another process and kills it within its fourth look-up."""
    process = subprocess.Popen([sys.executable, __file__, str(journal)], env={**os.environ, LOOKED_UP: str(calls)})
    while lines(calls) < 4 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        journal, calls = Path(directory) / "journal", Path(directory) / "calls"
        killed_in_the_middle(journal, calls)
        begun = lines(calls)
        print(f"killed in look-up {begun}; the journal has {journal.stat().st_size} bytes")
        os.environ[LOOKED_UP] = str(calls)
        answer, asked = run(journal)
        print(f"resumed: the model was asked {asked} times instead of 7, and there were {lines(calls) - begun} look-ups instead of 6")
        print(f"answer: {answer}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(f"answer: {run(Path(sys.argv[1]))[0]}")
    else:
        main()
