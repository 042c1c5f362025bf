"""DSPy's modules over one engine in three ways: over HTTP, in this process, and in this process with templates that cannot fail to parse.

    python -m benchmarks.bench_dspy --n 8 --json out.json        # needs the extras serve and dspy (make clients)

http      dspy.LM("openai/…", api_base=…) with DSPy's default adapter, against `lmc serve` over the same engine
engine    lmc.dspy.LM(engine) with DSPy's default adapter
template  lmc.dspy.LM(engine) with lmc.dspy.Adapter()

Each way runs the same examples on eight threads with dspy.Parallel at temperature 0, after a flush of the engine's cache and without DSPy's
own cache. *requests* are DSPy's, those it sends again because an answer did not parse included; *unparsed* are answers
that did not parse, *failed* examples without any answer that did; *computed* are prompt tokens that were not cached.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import dspy

import lmc

TEXTS = (
    "The parcel came two days late and the lid was cracked, but support sent a new one at once.",
    "I asked for a refund three weeks ago. Nobody has answered any of my four mails.",
    "Works as described. The battery holds for eleven hours, the manual is only in German.",
    "My daughter loves it! We bought a second one for my sister in Porto.",
    "The app crashes whenever I open the settings on my phone.",
    "Delivery on Monday, returned on Tuesday: the colour is not the one on the picture.",
    "Could you tell me whether the 40 cm version fits a bicycle basket?",
    "Five stars for Anna from the shop in Leeds, who repaired the zip for free.",
)


class Route(dspy.Signature):
    """Says which desk answers a customer's message."""

    message: str = dspy.InputField()
    desk: Literal["delivery", "refunds", "technical", "praise"] = dspy.OutputField()
    urgent: bool = dspy.OutputField()


class Facts(dspy.Signature):
    """Extracts facts from a customer's message."""

    message: str = dspy.InputField()
    things: list[str] = dspy.OutputField(desc="things that are mentioned")
    numbers: int = dspy.OutputField(desc="how many numbers are mentioned")


class Rating(dspy.Signature):
    """Rates a customer's mood from 1 to 5."""

    message: str = dspy.InputField()
    stars: int = dspy.OutputField()


MODULES: dict[str, Callable[[], Any]] = {
    "Predict (choice, bool)": lambda: dspy.Predict(Route),
    "Predict (list, int)": lambda: dspy.Predict(Facts),
    "ChainOfThought (int)": lambda: dspy.ChainOfThought(Rating),
}


@dataclass(frozen=True)
class Row:
    """The cost of one module in one way, for all examples together."""

    module: str
    way: str
    examples: int
    requests: int
    unparsed: int
    failed: int
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    passes: int
    wall_seconds: float
    cpu_seconds: float


@contextmanager
def served(engine: Any) -> Iterator[str]:
    """The engine behind `lmc serve` on a thread; its URL."""
    from lmc.serve.app import create_app
    from lmc.serve.gate import Entrance
    from lmc.serve.main import DrainingServer, listen
    from lmc.serve.settings import ServerSettings

    where, settings = listen("127.0.0.1", 0), ServerSettings(("model",))
    entrance = Entrance(settings.max_requests)
    server = DrainingServer(create_app(engine, settings, entrance=entrance), entrance)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [where]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{where.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        where.close()


class Unparsed(dspy.utils.BaseCallback):
    """Answers that an adapter could not parse."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []  # by many threads

    def on_adapter_parse_end(self, call_id: str, outputs: dict[str, Any] | None, exception: BaseException | None = None) -> None:
        if exception is not None:
            self.found.append(exception)


def measure(engine: Any, name: str, way: str, lm: Any, adapter: Any, n: int) -> Row:
    engine.flush_cache()
    unparsed = Unparsed()
    dspy.configure(lm=lm, adapter=adapter, callbacks=[unparsed])
    module = MODULES[name]()
    messages = [f"{TEXTS[i % len(TEXTS)]} (Ticket {i})" for i in range(n)]
    before, lm.history = engine.counters(), []
    wall, cpu = time.perf_counter(), time.process_time()
    parallel = dspy.Parallel(num_threads=8, max_errors=n + 1, disable_progress_bar=True, return_failed_examples=True)
    _, failed, _ = parallel([(module, {"message": message}) for message in messages])
    spent = engine.counters() - before
    return Row(
        name, way, n, len(lm.history), len(unparsed.found), len(failed), spent.prompt_tokens, spent.prefilled_tokens, spent.generated_tokens, spent.passes,
        time.perf_counter() - wall, time.process_time() - cpu,
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    head = "| module | way | examples | requests | unparsed | failed | prompt tokens | computed | generated | passes | wall s | cpu s |"
    lines = [head, "|---" * 12 + "|"]
    for r in rows:
        cells = (r.module, r.way, r.examples, r.requests, r.unparsed, r.failed, r.prompt_tokens, r.computed_tokens, r.generated_tokens, r.passes)
        lines.append("| " + " | ".join(map(str, cells)) + f" | {r.wall_seconds:.1f} | {r.cpu_seconds:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--n", type=int, default=8, help="examples")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer; with templates, of a field")
    parser.add_argument("--ways", default="http,engine,template")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    logging.getLogger("dspy").setLevel(logging.CRITICAL)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    rows: list[Row] = []
    engine = lmc.Engine(given.model)
    common: dict[str, Any] = {"temperature": 0, "max_tokens": given.max_tokens, "cache": False}
    try:
        with served(engine) as url:
            ways: dict[str, tuple[Any, Any]] = {
                "http": (dspy.LM("openai/model", api_base=url, api_key="none", **common), dspy.ChatAdapter()),
                "engine": (lmc.dspy.LM(engine, **common), dspy.ChatAdapter()),
                "template": (lmc.dspy.LM(engine, **common), lmc.dspy.Adapter()),
            }
            for name in MODULES:
                for way in given.ways.split(","):
                    rows.append(measure(engine, name, way, *ways[way], given.n))
    finally:
        engine.close()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, {given.model}, commit {commit}\n")
    print(table(rows))
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
