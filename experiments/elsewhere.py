"""Programs that others have published (examples/elsewhere), as they are and on lmc, against one stand-in of a server that counts, waits and has prices."""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import re
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.core import ONE_PROGRAM, Plot, Point, Row, Setup, experiment
from lmc.backend.usage import Prices, Usage
from tests.api.anthropic_server import AnthropicModel
from tests.api.http import Body, Planted, SeenRequest, Server
from tests.api.openai_server import OpenAIModel
from tests.api.sglang_server import SGLangModel
from tests.api.text_model import TextModel

FOLDER = Path(__file__).parent.parent / "examples" / "elsewhere"
LATENCY = 0.3
"""Seconds until an answer, of the stand-in."""
PRICES = Prices(0.15, 0.60)
"""Dollars for a million tokens, of the stand-in, whose tokens are bytes."""


@dataclass(frozen=True)
class Program:
    """A published program: `examples/elsewhere/original/NAME.py` with its own package, `ported/NAME.py` on lmc; both give the same from `main(url)`."""

    name: str
    source: str
    serve: Callable[..., Server]
    packages: tuple[str, ...]


# -- what the model says -------------------------------------------------------------------------------------------------

DSPY_VALUES = {
    "title": "The World Cup of 2002",
    "section_subheadings": json.dumps({h: [f"{h} first", f"{h} second"] for h in ("Hosts", "Groups", "Finals", "Legacy", "Records")}),
    "email_type": "other", "urgency": "medium", "key_entities": '["an order", "a customer"]', "important_dates": '["December 15"]', "action_required": "True",
    "action_items": '["answer it", "file it"]', "new_notes": '["a note"]', "titles": '["Aldery"]',
}  # fmt: skip
"""Fields whose type is not text."""
TASKS = "".join(f"<task>\n<type>{kind}</type>\n<description>Write a {kind} version</description>\n</task>\n" for kind in ("formal", "playful", "short"))
SECTIONS = {"sections": [{"name": name, "description": f"All about {name.lower()}."} for name in ("Origins", "Laws", "Data", "Limits")]}


def says(prompt: str) -> str | None:
    """Return the answer behind a prompt that wants a form; None: text that depends on the prompt alone."""
    if "Respond with the corresponding output fields" in prompt:
        asked = prompt.rpartition("Respond with the corresponding output fields")[2]
        names = [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", asked) if name != "completed"]
        text = "".join(f"[[ ## {name} ## ]]\n{DSPY_VALUES.get(name) or PLAIN.says(prompt + name)[:120].strip()}\n\n" for name in names)
        return text + "[[ ## completed ## ]]"
    if "Generate a plan for the report." in prompt:
        return json.dumps(SECTIONS)
    if "<tasks>" in prompt:
        return f"<tasks>\n{TASKS}</tasks>"
    if "customer support agent" in prompt:
        called = {
            "item_132612938": ("execute_refund", {"item_id": "item_132612938", "reason": "too small"}),
            "boots": ("look_up_item", {"search_query": "black boots"}),
        }
        name, arguments = next((call for said, call in called.items() if said in prompt), ("", {}))
        return "Your boots are refunded." if "refunded" in prompt else json.dumps({"name": name, "arguments": arguments})
    return None


PLAIN = TextModel()


class Model(TextModel):
    """A text model whose script holds for constrained answers, too."""

    def _constrained(self, prompt: str, ask: Any, seed: int) -> str:
        return self.script(prompt) or super()._constrained(prompt, ask, seed)


Plant = Callable[[int, str, Body], Planted | None]


def openai(plant: Plant) -> Server:
    return Server(OpenAIModel(Model(says)).handle, plant=plant)


def anthropic(plant: Plant) -> Server:
    return Server(AnthropicModel(Model(says)).handle, plant=plant)


def sglang(plant: Plant) -> Server:
    model = SGLangModel(Model(says))
    return Server(model.handle, plant=plant, get={**model.get, "/get_model_info": model.get["/model_info"]})


PROGRAMS = (
    Program("article", "DSPy, home page: Multi-stage pipelines", openai, ("dspy",)),
    Program("email", "DSPy, tutorial: Extracting information from emails", openai, ("dspy",)),
    Program("multihop", "DSPy, tutorial: Multi-hop search", openai, ("dspy",)),
    Program("tips", "SGLang, README: Parallelism", sglang, ("sglang",)),
    Program("judge", "SGLang, paper, Figure 2: Multi-dimensional essay judge", sglang, ("sglang",)),
    Program("report", "LangGraph, functional API: Orchestrator-worker", openai, ("langgraph", "langchain_openai")),
    Program("joke", "LangGraph, functional API: Prompt chaining", openai, ("langgraph", "langchain_openai")),
    Program("orchestrate", "Anthropic, cookbook: Orchestrator-workers", anthropic, ("anthropic",)),
    Program("summarize", "OpenAI, cookbook: Summarizing long documents", openai, ("openai",)),
    Program("routine", "OpenAI, cookbook: Orchestrating agents", openai, ("openai",)),
)


# -- running them ----------------------------------------------------------------------------------------------------------


class Load:
    """The requests to a server: delays every answer, and counts the prompts that are under way at once.

    together  answers wait until so many prompts are under way, but for the first `behind`: for tests, which measure no time
    """

    PATIENCE = 20.0

    def __init__(self, seconds: float, *, together: int = 0, behind: int = 0) -> None:
        self._seconds, self._together, self._behind = seconds, together, behind
        self.seen, self.most = list[SeenRequest](), 0

    def plant(self, number: int, path: str, body: Body) -> Planted | None:
        self.most = max(self.most, sum(len(prompts(one.body)) for one in self.seen if one.reported is None))
        if self._together and number >= self._behind:
            return Planted("delay", seconds=self.PATIENCE, until=lambda: self.most >= self._together)
        return Planted("delay", seconds=self._seconds) if self._seconds else None


@dataclass(frozen=True)
class Ran:
    """One run of a program: what it gave, what it asked of the server, and how long it took.

    usage    as the server reported it; `calls` counts prompts, those included that ask for no answer
    prompts  those that ask for an answer, in one form for all protocols, sorted
    at_once  how many were under way together, at most
    """

    answer: Any
    usage: Usage
    prompts: tuple[str, ...]
    at_once: int
    seconds: float


def ran(program: Program, way: str, load: Load) -> Ran:
    """Run a program once, in one of two ways ("original", "ported"). Raises ImportError where its package is not installed."""
    if "dspy" in program.packages:
        _keeps_no_answers()
    module = importlib.import_module(f"examples.elsewhere.{way}.{program.name}")
    with program.serve(load.plant) as server:
        load.seen = server.seen
        began = time.perf_counter()
        answer = module.main(server.url)
        seconds = time.perf_counter() - began
    tokens = lambda *names: sum((one.reported or {}).get(name, 0) for one in load.seen for name in names)
    calls = sum(len(prompts(one.body)) for one in load.seen)
    usage = Usage(tokens("prompt_tokens", "input_tokens"), tokens("completion_tokens", "output_tokens"), calls=calls)
    asked = sorted(prompt for one in load.seen if _answers(one.body) for prompt in prompts(one.body))
    return Ran(json.loads(json.dumps(answer)), usage, tuple(asked), load.most, seconds)


def prompts(body: Body) -> list[str]:
    """Return the prompts of a request; SGLang's may have several prompts."""
    if "messages" in body:
        return [json.dumps([body.get("system"), [[m["role"], _said(m)] for m in body["messages"]]])]
    return [body["text"]] if isinstance(body["text"], str) else body["text"]


def _answers(body: Body) -> bool:
    """Whether an answer is asked for, and not only that a prompt be read."""
    params = body.get("sampling_params") or {}
    return isinstance(params, list) or params.get("max_new_tokens") != 0


def _said(message: Body) -> Any:
    content = message.get("content") or ""
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content


def _keeps_no_answers() -> None:
    """DSPy keeps answers by itself, in files of the user's: none may come from there."""
    import dspy  # pyright: ignore[reportMissingImports]

    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


def lines(program: Program, way: str) -> list[str]:
    """A program's lines of code: no blank ones, no docstring at its head."""
    text = (FOLDER / way / f"{program.name}.py").read_text("utf-8")
    head = ast.parse(text).body[0].end_lineno or 0
    return [line for line in text.splitlines()[head:] if line.strip()]


def changed(program: Program) -> tuple[int, int]:
    """How many lines of the original go, and how many come."""
    found = [line[0] for line in difflib.ndiff(lines(program, "original"), lines(program, "ported"))]
    return found.count("-"), found.count("+")


@experiment(
    "elsewhere", "What do programs that others have published gain on lmc?", Plot("Seconds", "program", "seconds", "way"),
    Plot("Dollars", "program", "dollars", "way"),
    reads=f"Ten published programs, rebuilt from their descriptions (examples/elsewhere): with the package they were written for, and on lmc, against one "
          f"stand-in of a server that takes "
    f"{LATENCY} s for every answer and has the prices of a small model (${PRICES.prompt} and ${PRICES.completion} a million tokens; its tokens are bytes). "
    f"lines: of the original; "
    "gone, new: lines that differ; at once: requests under way together, at most; same: it gave what the original gave, and showed the model the same "
    "prompts. All but the seconds "
    "are counters.",
    on_device=False, lacks={**ONE_PROGRAM, "accuracy": "the stand-in's answers are neither right nor wrong; `same` compares them with the original's"},
)  # fmt: skip
def elsewhere(setup: Setup) -> Generator[Point]:
    for program in PROGRAMS:
        yield Point(program.name, lambda program=program: _beside(program, setup.reps))


def _beside(program: Program, reps: int) -> list[Row]:
    ways = ("original", "ported")
    for way in ways:
        ran(program, way, Load(0.0))  # what is imported and compiled the first time is not the program's
    runs: dict[str, list[Ran]] = {way: [] for way in ways}
    for _ in range(reps):
        for way in ways:
            runs[way].append(ran(program, way, Load(LATENCY)))
    (gone, new), first, rows = changed(program), runs["original"][0], list[Row]()
    for way, found in runs.items():
        times, run, own = sorted(one.seconds for one in found), found[0], way == "original"
        rows.append({
            "program": program.name, "source": program.source, "way": "original" if own else "lmc", "package": ", ".join(program.packages) if own else "lmc",
            "lines": len(lines(program, way)), "gone": None if own else gone,
            "new": None if own else new, "reps": reps, "seconds": median(times), "least": times[0], "most": times[-1], "requests": run.usage.calls,
            "at once": max(one.at_once for one in found), "prompt": run.usage.prompt_tokens, "generated": run.usage.completion_tokens,
            "dollars": PRICES.of(run.usage),
            "same": all((one.answer, one.prompts) == (first.answer, first.prompts) for one in found),
        })  # fmt: skip
    return rows
