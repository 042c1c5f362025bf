"""`lmc run`: a program on one set of arguments, or on every line of a file."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc import result_files, userfiles
from lmc.cli.console import progress, say, shown, write
from lmc.cli.errors import RunFailed, as_usage
from lmc.cli.journal import KeyFile, key_of
from lmc.cli.models import engine_options, open_backend
from lmc.cli.options import (
    Adapters,
    Arguments,
    Deterministic,
    DraftModel,
    Drafts,
    InputFile,
    KvDtype,
    MaxTokens,
    ModelName,
    OutputFile,
    Quantization,
    Replicas,
    Target,
    Temperature,
    TensorParallel,
    unset,
)
from lmc.config import config
from lmc.items import InputItems, read_items
from lmc.pages import count, several
from lmc.userfiles import UsageError


def run(
    target: Target,
    arg: Arguments = None,
    input_file: InputFile = None,
    output: OutputFile = None,
    backend: ModelName = None,
    tp: TensorParallel = None,
    dp: Replicas = None,
    adapter: Adapters = None,
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    deterministic: Deterministic = False,
    drafts: Drafts = None,
    draft_model: DraftModel = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int | None, unset(metavar="N", help="Seed of the run, which makes sampling repeatable.")] = None,
    journal: Annotated[
        Path | None,
        unset("--journal", metavar="FOLDER", help="Record the run here: after a crash, or when a person has answered, the same command continues it."),
    ] = None,
    key_file: KeyFile = None,
    with_media: Annotated[bool, typer.Option("--with-media", help="Copy files of pictures and videos into the journal.")] = False,
    deadline: Annotated[
        str | None,
        unset("--deadline", metavar="24h", help="Use the batch API of OpenAI or Anthropic: answers within a day, at half the price. Needs --journal."),
    ] = None,
    html: Annotated[
        Path | None,
        unset("--html", metavar="FILE", help="Write a page for a browser: the conversation, the source with what each line cost, a timeline, the graph."),
    ] = None,
    interpret: Annotated[bool, typer.Option("--interpret", help="Run without compiling.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the results in --output, and run the items that are missing.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace results in --output; with --resume, only those of another input, options or source of the program.")
    ] = False,
) -> None:
    """Run a program on one set of arguments, or on every item of a JSONL or CSV file.

    With --input, each item becomes a line of --output as soon as it is finished: its index, return value, variables,
    text and usage, or its error. At the end the lines are sorted into the order of the input. If a run stops halfway, its
    results are kept, and the same command with --resume does the rest; a --journal keeps answers of items that had not ended, too.
    Each result has a "digest" of its item, program and options, by which --resume knows it.
    Fields and columns that are not parameters of the program are copied to the result as "input".

    \b
    Examples:
      lmc run examples/react.py:react --arg question="What is 12 * 7?" --temperature 0
      lmc run examples/classify.py:classify --input examples/data/reviews.jsonl --output labels.jsonl
      lmc run examples/classify.py:classify --input examples/data/reviews.jsonl --output labels.jsonl --resume
      lmc run examples/judge.py:judge --backend mock --arg essay=hello --html judge.html
      lmc run my.py:program --backend path/to/model.gguf --arg text=hello
      lmc run my.py:program --backend openai:gpt-4.1-mini --input rows.csv
      lmc run agent.py:mail --arg to=ann --journal runs/ann      (see lmc journal --help)
      lmc run my.py:program --backend openai:gpt-4.1-mini --input rows.csv --deadline 24h --journal runs/rows
      head rows.jsonl | lmc run my.py:program --input - --backend vllm:http://127.0.0.1:8000
      lmc run judge.lmcp --arg essay=hello              (saved by program.save)
      lmc run examples/judge.py:judge --backend mock --arg essay=hello      (no model: made-up answers)
    """
    one_source(arg, input_file)
    if resume and (output is None or input_file is None):
        raise UsageError("--resume continues a run from its --input and --output; give both")
    if interpret and target.endswith(".lmcp"):
        raise UsageError(f"{target} is a saved program, which has no source to interpret; leave --interpret out, or give FILE.py:FUNCTION")
    if with_media and journal is None:
        raise UsageError("--with-media needs --journal FOLDER, which the files go into")
    if key_file is not None and journal is None:
        raise UsageError("--key-file needs --journal FOLDER, which it encrypts")
    if deadline is not None and journal is None:
        raise UsageError("--deadline needs --journal FOLDER: batches take up to a day, and with a journal the same command continues where it was stopped")
    program = userfiles.load_program(target)
    options = sampling(temperature, max_tokens, seed)
    waited = {} if deadline is None else {"deadline": deadline}
    if waited:
        logging.getLogger("lmc.batches").addHandler(_Saying())
        logging.getLogger("lmc.batches").setLevel(logging.INFO)
    userfiles.check_output(output, input_file)
    userfiles.check_folder(html, "--html")
    userfiles.check_folder(journal, "--journal")
    name = backend or config().model or "smollm2"
    engine = engine_options(
        name, tp=tp, dp=dp, adapter=adapter, drafts=drafts, draft_model=draft_model, quantization=quantization, kv_dtype=kv_dtype, deterministic=deterministic
    )
    if input_file is None:
        arguments = arguments_of(program, arg)
        results = result_files.Results(output, overwrite=overwrite)
        _run_one(Job(program, name, options | waited | _journaled(journal, key_file, with_media), interpret, html, engine), arguments, results)
        return
    items = read_items(program, input_file)
    if items.extra_names:
        parameters = "parameter" if len(items.extra_names) == 1 else "parameters"
        say(f'note: {program.name} has no {parameters} {", ".join(name or "without a name" for name in items.extra_names)}; copied to the results as "input"')
    expected = result_files.digests(program, items.given, items.places, options, name)
    results = result_files.Results(output, expected, resume=resume, overwrite=overwrite)
    for note in results.notes:
        say(note)
    _run_file(Job(program, name, options | waited | _journaled(journal, key_file, with_media), interpret, html, engine), items, results)


@dataclass(frozen=True)
class Job:
    """A program to run, compiled or interpreted, its backend by name, and options of the runs. `html`: where to write a page of the runs when all are done;
    `engine`: options of a model in this process."""

    program: Any
    backend: str
    options: Mapping[str, Any]
    interpret: bool = False
    html: Path | None = None
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def states(self, items: Mapping[int, dict[str, Any]], backend: Any) -> Iterator[tuple[int, Any]]:
        """Yield the final state of each item with its index, as soon as it is done; a failed one has its `error()`.

        Items keep their numbers in the input, so that with a seed a resumed run gives the same results as an uninterrupted
        one. Compiled runs are yielded as they end, interpreted ones in order.
        """
        from lmc.loading import program_of

        if self.interpret:
            return self._with_page(enumerate(self.program.run_some(items, backend=backend, **self.options)), None)
        compiled = program_of(self.program, backend)
        return self._with_page(compiled.as_completed(list(items.values()), numbers=tuple(items), **self.options), compiled)

    def _with_page(self, states: Iterator[tuple[int, Any]], compiled: Any) -> Iterator[tuple[int, Any]]:
        """Yield the states, and after the last one write the page: of the compiled program, else of that last run."""
        latest: Any = None
        for place, state in states:
            latest = state
            yield place, state
        if self.html is not None and latest is not None:
            write((latest if compiled is None else compiled).explain(format="html"), self.html)


class _Saying(logging.Handler):
    """Shows the progress of batches."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def _journaled(journal: Path | None, key_file: Path | None, with_media: bool) -> dict[str, Any]:
    """Return the option of a run with a journal."""
    if journal is None:
        return {}
    from lmc.journals import Journal

    with as_usage():
        return {"journal": Journal(journal, key=key_of(key_file), with_media=with_media)}


def one_source(arg: list[str] | None, input_file: Path | None) -> None:
    if input_file is not None and arg:
        raise UsageError("--arg and --input exclude each other: put the argument into each line of the input file")


def sampling(temperature: float | None, max_tokens: int | None, seed: int | None) -> dict[str, Any]:
    """Return the options of a run that were given."""
    given = {"temperature": temperature, "max_new_tokens": max_tokens, "seed": seed}
    return {name: value for name, value in given.items() if value is not None}


def arguments_of(program: Any, arg: list[str] | None) -> dict[str, Any]:
    """Return the arguments in --arg, checked against the program's parameters."""
    arguments = userfiles.parse_arguments(program, arg or ())
    userfiles.check_arguments(program, arguments)
    return arguments


def _run_one(job: Job, arguments: dict[str, Any], results: result_files.Results) -> None:
    with closing(open_backend(job.backend, engine=job.engine)) as target:
        failure: BaseException | None = None
        for _, state in job.states({0: arguments}, target):  # one; the result is out before the page is written, which may fail
            if (failure := state.error()) is not None:
                continue
            if results.path is None:
                _print_result(state)
                continue
            with results:
                results.write(result_files.record_of(0, state, {}))
    if failure is not None:
        raise failure


def _print_result(state: Any) -> None:
    """Print the result of one run: its return value, else the text."""
    import json

    value = state.ret_value
    text = state.text() if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    print(shown(text, sys.stdout))


def _run_file(job: Job, items: InputItems, results: result_files.Results) -> None:
    with closing(open_backend(job.backend, engine=job.engine)) as target:
        failed, done = _write_all(job, items, target, results)
    if failed:
        first = ", ".join(str(i) for i in failed[:5]) + (", …" if len(failed) > 5 else "")
        again = "; the same command with --resume runs them again" if results.path else ""
        raise RunFailed(f'{len(failed)} of {done} items ended with an error (index {first}), written as "error"{again}')


def _write_all(job: Job, items: InputItems, target: Any, results: result_files.Results) -> tuple[list[int], int]:
    """Run the remaining items and write each result; return the indices of items that failed, and how many ran."""
    todo = [i for i in range(len(items.arguments)) if i not in results.done]
    failed: list[int] = []

    def write(place: int, state: Any) -> None:
        index = todo[place]
        if state.error() is not None:
            failed.append(index)
        results.write(result_files.record_of(index, state, items.extra[index]))

    started, before = time.perf_counter(), target.counters()
    with results:
        states = _Background(job.states({i: items.arguments[i] for i in todo}, target))
        try:
            for place, state in progress(states, len(todo), target):
                write(place, state)
        except BaseException as error:
            for place, state in states.finished() if isinstance(error, KeyboardInterrupt) else ():
                write(place, state)
            say(_kept(results, len(items.arguments)))
            if "deadline" in job.options and "journal" in job.options:
                say("submitted batches continue on the server; run the same command again to collect their answers, without paying twice")
            raise
    say(_summary(len(todo), time.perf_counter() - started, target.counters() - before))
    return sorted(failed), len(todo)


class _Background:
    """Iterates in a thread of its own, so that an interruption neither waits nor loses finished results."""

    def __init__(self, states: Iterator[tuple[int, Any]]) -> None:
        self._events: queue.SimpleQueue[tuple[int, Any] | BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(states,), name="lmc-run", daemon=True).start()

    def _work(self, states: Iterator[tuple[int, Any]]) -> None:
        try:
            for event in states:
                self._events.put(event)
            self._events.put(None)
        except BaseException as error:  # a program's SystemExit, too: raised where the results are read
            self._events.put(error)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def finished(self) -> Iterator[tuple[int, Any]]:
        """Yield finished results that were not yielded yet."""
        while not self._events.empty():
            if isinstance(event := self._events.get(), tuple):
                yield event


def _kept(results: result_files.Results, total: int) -> str:
    if results.path is None:
        return f"stopped: {results.written} of {total} results were written"
    return f"stopped: {results.written} of {total} results are in {results.path}; the same command with --resume does the rest"


def _summary(items: int, seconds: float, spent: Any) -> str:
    return (
        f"{several(items, 'item')} in {seconds:.1f} s: {several(spent.calls, 'call')}, {several(spent.prompt_tokens, 'prompt token')} "
        f"({count(spent.prefilled_tokens)} computed, {count(spent.cached_tokens)} cached, prefill optimality "
        f"{spent.prefill_optimality:.3f}), {count(spent.generated_tokens)} generated"
    )
