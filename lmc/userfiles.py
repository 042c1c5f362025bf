"""Files that the command line is given: program files (`FILE.py:fn`), arguments (`k=v`) and JSONL of items; items are in items.py, results in
result_files.py.

Every fault in them is a `UsageError` that names the file, the line and the remedy, raised before a model is asked.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from lmc import arguments, json_data, named
from lmc.declared import WRITTEN, Build, builders, problem
from lmc.errors import LmcError, Loc
from lmc.signatures import signature_of

Item = dict[str, Any]


class UsageError(LmcError):
    """Invalid command-line input: something the user typed or named cannot be used as given."""


# -- programs ------------------------------------------------------------------------------------------------------


def load_program(target: str) -> Any:
    """Load the lmc function that `FILE.py:fn` names (`:fn` is optional if the file has one program), or that of a saved
    program, `FILE.lmcp`."""
    if target.endswith(".lmcp"):
        return _saved(Path(target))
    path, _, name = target.partition(":") if not target.endswith(".py") else (target, "", "")
    programs = programs_of(import_file(Path(path)))
    if not programs:
        raise UsageError(f"{path} has no program: decorate a function with @lmc.function")
    if not name and len(programs) == 1:
        return next(iter(programs.values()))
    if not name:
        raise UsageError(f"{path} has several programs; say which one, for example {path}:{next(iter(programs))} (there: {', '.join(programs)})")
    if name not in programs:
        near = difflib.get_close_matches(name, programs, n=1)
        hint = f"did you mean {path}:{near[0]}?" if near else f"there: {', '.join(programs)}"
        raise UsageError(f"{path} has no program {name!r}; {hint}")
    return programs[name]


def _saved(path: Path) -> Any:
    from lmc.saved_programs import SavedFile  # imports programs, which only some commands need

    function = SavedFile.read(path).function
    _look_beside(path)
    return function


def _look_beside(path: Path) -> None:
    """Let a file import the modules beside it, as under `python FILE.py`, and those of the current directory, as under `python -m`."""
    sys.path.insert(0, str(path.resolve().parent))
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def _is_saved(program: Any) -> bool:
    from lmc.saved_programs import SavedFunction

    return isinstance(program, SavedFunction)


def _of_model(path: Path) -> str:
    """Say how a model is named, where one was given for a program, as other servers take it."""
    return f", and a model is given by --backend {path}" if named.is_backend(str(path)) else ""


def import_file(path: Path) -> ModuleType:
    """Import a user's file, but not as `__main__`."""
    if not path.exists():
        form = "" if path.suffix == ".py" else f"; the form is FILE.py:FUNCTION{_of_model(path)}"
        raise UsageError(f"no such file: {path} (looked in {Path.cwd()}){form}")
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file; the form is FILE.py:FUNCTION{_of_model(path)}")
    name = path.stem if path.stem not in sys.modules else f"lmc_user_{path.stem}"
    where = str(path.resolve())  # a link's file may be called anything
    spec = importlib.util.spec_from_file_location(name, where, loader=SourceFileLoader(name, where))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _look_beside(path)
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        main = 'what runs the program belongs under `if __name__ == "__main__":`'
        raise UsageError(f"{path} ends the process while it is imported (exit code {stop.code or 0}); {main}") from stop
    except SyntaxError as error:
        if error.filename is None:  # of a file that is no text
            raise UsageError(f"{path} is not a Python file: {error.msg}") from error
        raise
    except ImportError as error:
        if "no known parent package" in str(error):
            error.add_note(f"({path.name} is imported by itself, as `python {path.name}` runs it: leave out the dot, or name a package of the current folder)")
        raise
    return module


def programs_of(module: ModuleType) -> dict[str, Any]:
    """Return the programs of a module by name."""
    from lmc.frontend.interpreter import Function

    return {name: value for name, value in vars(module).items() if isinstance(value, Function)}


# -- arguments -----------------------------------------------------------------------------------------------------


def parameters(program: Any) -> dict[str, inspect.Parameter]:
    """Return the program's parameters after the state, by name."""
    try:
        signature = program.signature if _is_saved(program) else inspect.signature(program.func, eval_str=True)
    except Exception:  # annotations that only a type checker can resolve, or any text
        signature = signature_of(program.func)
    return {p.name: p for p in list(signature.parameters.values())[1:]}


def parse_arguments(program: Any, pairs: Iterable[str]) -> Item:
    """Parse `k=v` pairs as keyword arguments; a value is text unless its parameter's annotation or default says
    JSON."""
    known = parameters(program)
    found: Item = {}
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--arg {pair!r} is not of the form NAME=VALUE")
        if name in found:
            raise UsageError(f"--arg {name} is given twice")
        if name not in known and not takes_any(known):
            raise UsageError(_unknown_argument(program, name, known))
        texts[name] = f"--arg {pair}"
        found[name] = value_of(program, known.get(name), value, texts[name])
    return built(builders(known), found, texts.__getitem__)


def built(build: Mapping[str, Build], given: Item, where: Callable[[str], str]) -> Item:
    """Return arguments as the objects that the program declares; `where` says what gave one of a name, for errors."""
    found = dict(given)
    for name in build.keys() & given.keys():
        try:
            found[name] = build[name](given[name])
        except ValueError as error:
            raise UsageError(f"{where(name)}: {problem(error)}") from error
    return found


def check_arguments(program: Any, given: Item, where: str = "", fields: Iterable[str] = ()) -> None:
    """Refuse an item that lacks a required argument of the program; `fields` are all that it has."""
    missing = [name for name, p in parameters(program).items() if _required(p) and name not in given]
    if missing:
        raise UsageError(
            f"{where + ': ' if where else ''}{program.name} needs the argument "
            f"{' and '.join(repr(m) for m in missing)}; its parameters are {describe(program)} "
            f"({_place(program)})" + (f"; the item has {', '.join(map(repr, fields))}" if fields else "")
        )


def describe(program: Any) -> str:
    """Return the program's parameters as text, e.g. `question: str, max_steps=4`."""
    return ", ".join(str(p) for p in parameters(program).values()) or "none"


def _required(p: inspect.Parameter) -> bool:
    return p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)


def takes_any(known: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in known.values())


def _unknown_argument(program: Any, name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its parameters are {describe(program)}" if known else "it has none but its state"
    return f"{program.name} has no parameter {name!r}; {hint} ({_place(program)})"


def _place(program: Any) -> str:
    return f"{os.path.relpath(program.loc.file)}:{program.loc.line}"


def value_of(program: Any, parameter: inspect.Parameter | None, text: str, given: str) -> Any:
    """Parse a text as a parameter's value: itself, or JSON; `given` names its source in errors."""
    if parameter is None or not is_json(parameter):
        return text
    try:
        return json_data.loads(text)
    except ValueError as error:
        what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise UsageError(
            f"{given:.200}: {program.name} declares {str(parameter)!r}, so the value is JSON, "
            f"for example '{parameter.name}={_example(_type_of(parameter))}' ({what})"
        ) from error


def is_json(parameter: inspect.Parameter) -> bool:
    return _type_of(parameter) is not None and not _is_text(_type_of(parameter))


def is_optional(parameter: inspect.Parameter) -> bool:
    """Return whether its annotation allows None."""
    return NoneType in get_args(parameter.annotation) or parameter.annotation in _OPTIONAL_TEXT


def _type_of(parameter: inspect.Parameter) -> Any:
    """Return the annotation, else the type of the default, else None."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default) if parameter.default not in (parameter.empty, None) else None


_OPTIONAL_TEXT = ("str | None", "Optional[str]")


def _is_text(annotation: Any) -> bool:
    """Return whether an annotation stands for text: `str`, a Literal or an Enum of texts, a date, …, and any of them or None, bytes or a Path."""
    if get_origin(annotation) is Literal:
        return all(isinstance(value, str) for value in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind not in (bytes, Path, NoneType)]
        return bool(kinds) and all(map(_is_text, kinds))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return all(isinstance(member.value, str) for member in annotation)
    return annotation in (str, "str", *_OPTIONAL_TEXT) or (isinstance(annotation, type) and issubclass(annotation, WRITTEN))


def _example(annotation: Any) -> str:
    """Return JSON of a value that an annotation may allow."""
    args = [arg for arg in get_args(annotation) if arg is not NoneType]
    if get_origin(annotation) in (Union, UnionType):
        return _example(args[0])
    if get_origin(annotation) is Literal:
        return json.dumps(args[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return json.dumps(next(iter(annotation)).value, default=str)
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and (hasattr(kind, "model_json_schema") or is_dataclass(kind) or is_typeddict(kind)):
        kind = dict
    return _EXAMPLES.get(kind, '["a", "b"]' if str in args else "[1, 2]" if args else '"text"')


_EXAMPLES = {int: "3", float: "0.5", bool: "true", list: '["a", "b"]', dict: '{"a": 1}'}


def announce(path: Path) -> None:
    """Say on standard error that what is read is a pipe, a terminal or a device: its end may never come."""
    if path.is_fifo() or path.is_char_device():
        print(f"reading {path} until its end", file=sys.stderr, flush=True)


# -- JSON lines ----------------------------------------------------------------------------------------------------


def objects(text: str, name: str) -> Iterator[tuple[int, Item]]:
    """Yield line number and JSON object of each line of a file's text that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, object_of(line, Loc(name, number))


def object_of(line: str, loc: Loc) -> Item:
    try:
        row = json_data.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error.msg} at column {error.colno}; each line is one JSON object", loc=Loc(loc.file, loc.line, error.colno - 1)) from None
    except ValueError as error:
        raise UsageError(f"this JSON cannot be read: {error}", loc=loc) from None
    if not isinstance(row, dict):
        lines = f"; write each object of a list on a line of its own{FROM_PANDAS}" if isinstance(row, list) else ""
        raise UsageError(f"a JSON object with the program's arguments is expected, not {type(row).__name__}{lines}", loc=loc)
    return row


FROM_PANDAS = ' (pandas: df.to_json(path, orient="records", lines=True))'
"""How rows of another format become items."""


# -- results out ---------------------------------------------------------------------------------------------------


def check_output(output: Path | None, input_file: Path | None) -> None:
    """Refuse an output that is the input, a folder, or a table by its name."""
    if output is None:
        return
    if input_file is not None and (os.path.realpath(output) == os.path.realpath(input_file) or _same_file(output, input_file)):
        raise UsageError(f"--output {output} is the --input file; choose another file for the results")
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder; name a file in it, such as {output / 'results.jsonl'}")
    if output.suffix.lower() in (".csv", ".tsv", ".xlsx", ".parquet"):
        jsonl = output.with_suffix(".jsonl")
        raise UsageError(f'--output {output}: results are lines of JSON; choose another name, such as {jsonl} (pandas: pd.read_json("{jsonl}", lines=True))')
    check_folder(output)


def check_folder(output: Path | None, option: str = "--output") -> None:
    """Refuse to write where the user may not, and into a folder that is not there: one that nobody made is mostly a misspelt one."""
    if output is None:
        return
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{option} {output}: there is no folder {output.parent}; make it (mkdir -p {output.parent}), or choose another")
    if not arguments.may_write(output):
        raise UsageError(f"{option} {output}: you may not write there; choose another")


def _same_file(one: Path, two: Path) -> bool:
    return one.exists() and two.exists() and one.samefile(two)
