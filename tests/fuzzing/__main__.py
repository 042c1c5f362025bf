"""`python -m tests.fuzzing --files 2000`: each file loads and answers, or is a ModelLoadError; no other exception, nothing that hangs.

Files are loaded in processes that are ended when one takes too long. A failure names its seed: `--files 1 --seed N` makes it again.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzzing import mutations

PATIENCE = 60.0  # seconds of any kind for one file: a busy machine is slow, a hang is for ever


@dataclass
class Found:
    """Counts of what became of the files. `slowest` of each kind: seconds of processor time, and the seed."""

    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[str] = field(default_factory=list[str])
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def add(self, seed: int, outcome: str, seconds: float) -> None:
        kind = outcome.partition(":")[0]
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        self.slowest[kind] = max(self.slowest.get(kind, (0.0, 0)), (seconds, seed))
        if kind not in ("answers", "refused", "cannot answer"):
            self.failures.append(f"seed {seed}: {outcome}")


def search(first: int, count: int, *, workers: int = 1, patience: float = PATIENCE) -> Found:
    """Loads `count` files, those of the seeds from `first` on."""
    found, waiting, lock = Found(), queue.SimpleQueue[int](), threading.Lock()
    for seed in range(first, first + count):
        waiting.put(seed)

    def work() -> None:
        while not waiting.empty():
            _process(waiting, lambda *what: _locked(lock, found, *what), patience)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _locked(lock: threading.Lock, found: Found, seed: int, outcome: str, seconds: float) -> None:
    with lock:
        found.add(seed, outcome, seconds)


def _process(waiting: queue.SimpleQueue[int], tell, patience: float) -> None:
    """One process, until nothing waits or a file ends it."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "LMC_CACHE_DIR": f"{place}/cache", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzzing.load", place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", "the process that loads does not start"
            while True:
                try:
                    seed = waiting.get_nowait()
                except queue.Empty:
                    return
                late = threading.Timer(patience, process.kill)
                late.start()
                began = time.monotonic()
                process.stdin.write(f"{seed}\n")
                process.stdin.flush()
                line = process.stdout.readline()
                late.cancel()
                if not line:
                    hung = time.monotonic() - began >= patience
                    what = mutations.write(seed, Path(tempfile.mkdtemp(dir=place)))[1]
                    tell(seed, f"hangs: {what}" if hung else f"crashes ({process.wait()}): {what}", patience)
                    return
                seconds, _, outcome = line.rstrip("\n").partition(" ")
                tell(seed, outcome, float(seconds))
        finally:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    found = search(given.seed, given.files, workers=given.workers)
    for failure in found.failures:
        print(failure)
    print(f"{given.files} files, {len(found.failures)} failures")
    for kind, count in sorted(found.outcomes.items()):
        seconds, seed = found.slowest[kind]
        print(f"  {kind}: {count}, the slowest in {seconds:.2f} s of processor time (seed {seed})")
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()
