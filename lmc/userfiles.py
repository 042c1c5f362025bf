"""Files of the command line: program files (`FILE.py:fn`), arguments (`k=v`) and JSONL of results; items are in
items.py.

Every fault in them is a `UsageError` that names the file, the line and the remedy, raised before a model is asked.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, TextIO, Union, get_args, get_origin

from lmc import named, tracebacks
from lmc.errors import IncompleteAnswer, LmcError, Loc

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
    sys.path.insert(0, str(path.resolve().parent))  # its modules may be beside it
    return function


def _is_saved(program: Any) -> bool:
    from lmc.saved_programs import SavedFunction

    return isinstance(program, SavedFunction)


def _of_model(path: Path) -> str:
    """Say how a model is named, where one was given for a program, as other servers take it."""
    return f", and a model is given by --backend {path}" if named.is_backend(str(path)) else ""


def import_file(path: Path) -> ModuleType:
    """Import a user's file as `python FILE.py` would find its neighbours, but not as `__main__`."""
    if not path.exists():
        raise UsageError(f"no such file: {path} (looked in {Path.cwd()}); the form is FILE.py:FUNCTION{_of_model(path)}")
    if path.is_dir() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file; the form is FILE.py:FUNCTION{_of_model(path)}")
    name = path.stem if path.stem not in sys.modules else f"lmc_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
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
    except NameError:  # annotation resolvable only by a type checker
        signature = inspect.signature(program.func)
    return {p.name: p for p in list(signature.parameters.values())[1:]}


def parse_arguments(program: Any, pairs: Iterable[str]) -> Item:
    """Parse `k=v` pairs as keyword arguments; a value is text unless its parameter's annotation or default says
    JSON."""
    known = parameters(program)
    found: Item = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--arg {pair!r} is not of the form NAME=VALUE")
        if name in found:
            raise UsageError(f"--arg {name} is given twice")
        if name not in known and not takes_any(known):
            raise UsageError(_unknown_argument(program, name, known))
        found[name] = value_of(program, known.get(name), value, f"--arg {name}={value}")
    return found


def check_arguments(program: Any, given: Item, where: str = "") -> None:
    """Refuse an item that lacks a required argument of the program."""
    missing = [name for name, p in parameters(program).items() if _required(p) and name not in given]
    if missing:
        raise UsageError(
            f"{where + ': ' if where else ''}{program.name} needs the argument "
            f"{' and '.join(repr(m) for m in missing)}; its parameters are {describe(program)} "
            f"({_place(program)})"
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
    hint = f"did you mean {near[0]!r}?" if near else f"its parameters are {describe(program)}"
    return f"{program.name} has no parameter {name!r}; {hint} ({_place(program)})"


def _place(program: Any) -> str:
    return f"{os.path.relpath(program.loc.file)}:{program.loc.line}"


def value_of(program: Any, parameter: inspect.Parameter | None, text: str, given: str) -> Any:
    """Parse a text as a parameter's value: itself, or JSON; `given` names its source in errors."""
    if parameter is None or not is_json(parameter):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        example = {int: "3", float: "0.5", bool: "true", list: '["a", "b"]', dict: '{"a": 1}'}.get(_kind(parameter), "[1, 2]")
        raise UsageError(
            f"{given}: {program.name} declares {str(parameter)!r}, so the value is JSON, "
            f"for example '{parameter.name}={example}' ({error.msg} at column {error.colno})"
        ) from error


def is_json(parameter: inspect.Parameter) -> bool:
    return _kind(parameter) not in (None, str, "str")


def _kind(parameter: inspect.Parameter) -> Any:
    """Return the annotation (`list` for `list[str]`, `str` for `str | bytes | Path`), else the type of the default, else None."""
    if parameter.annotation is not parameter.empty:
        if get_origin(parameter.annotation) in (Union, UnionType) and {*get_args(parameter.annotation)} - {bytes, Path} == {str}:
            return str
        return getattr(parameter.annotation, "__origin__", parameter.annotation)
    return type(parameter.default) if parameter.default not in (parameter.empty, None) else None


# -- JSON lines ----------------------------------------------------------------------------------------------------


def objects(text: str, name: str) -> Iterator[tuple[int, Item]]:
    """Yield line number and JSON object of each line of a file's text that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _object(line, Loc(name, number))


def _object(line: str, loc: Loc) -> Item:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error.msg} at column {error.colno}; each line is one JSON object", loc=Loc(loc.file, loc.line, error.colno - 1)) from None
    if not isinstance(row, dict):
        raise UsageError(f"a JSON object with the program's arguments is expected, not {type(row).__name__}", loc=loc)
    return row


# -- results out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digests:
    """Digests that a record must match to be the result of an item: the item, and what ran it."""

    items: tuple[str, ...]
    run: str
    places: tuple[str, ...]

    def of(self, index: int) -> Item:
        return {"item": self.items[index], "run": self.run}


def digests(program: Any, arguments: Iterable[Item], places: Iterable[str], options: Mapping[str, Any], backend: str) -> Digests:
    """Compute digests of every item's arguments, and of program (file name and function), backend and sampling
    options."""
    what = [Path(program.loc.file).name, program.name, backend, dict(options)]
    return Digests(tuple(map(_digest, arguments)), _digest(what), tuple(places))


def _digest(x: Any) -> str:
    text = json.dumps(x, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """A JSONL file of result records, each written when its run ends; sorted by item when the file is closed.

    resume     keeps the records of an earlier run that hold no error (`done` names their indices), if they belong to
               these items and this program; refuses the file otherwise
    overwrite  replaces what is there; with `resume` only the records that do not belong here

    The constructor only reads and checks; the file is opened by `with`.
    """

    def __init__(self, path: Path | None, expected: Digests | None = None, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self.note = ""
        self.kept: dict[int, Item] = {}
        self._expected = expected
        if path is not None and _is_file_with_text(path):
            if resume and expected is not None:
                self.kept = self._earlier(path, expected, overwrite)
            elif not overwrite:
                raise UsageError(
                    f"{path} exists and is not empty; choose another --output, --overwrite to replace it, "
                    f"or --resume to keep its results and run the other items of --input"
                )
        self.written = len(self.kept)
        self._indices = list(self.kept)
        self._stream: TextIO = sys.stdout

    def __enter__(self) -> Results:
        if self.path is not None:
            self._stream = _rewrite(self.path, self.kept.values())
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, its records in input order."""
        if self.path is None:
            return
        self._stream.close()
        if self._indices != sorted(self._indices) and self.path.is_file():
            rows = sorted((row for _, row in objects(self.path.read_text("utf-8"), str(self.path))), key=lambda row: row["index"])
            _rewrite(self.path, rows).close()

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self.kept)

    def write(self, record: Item) -> None:
        if self._expected is not None:
            record = {**record, "digest": self._expected.of(record["index"])}
        self._indices.append(record["index"])
        self._stream.write(_line(record))
        self._stream.flush()
        self.written += 1

    def _earlier(self, path: Path, expected: Digests, overwrite: bool) -> dict[int, Item]:
        """Return the records of an earlier run that are results of its items."""
        kept: dict[int, Item] = {}
        rows, torn = _records(path)
        if torn:
            self.note = f"note: the last line of {path} is incomplete (the run was stopped while writing it); its item runs again"
        for number, row in rows:
            if "error" in row:
                continue
            wrong = _mismatch(row, expected)
            if wrong and not overwrite:
                raise UsageError(
                    f"{path}:{number}: {wrong}; nothing was changed. Name the --input, program and options that "
                    f"made it, another --output, or --resume --overwrite to run what does not match again"
                )
            if not wrong:
                kept[row["index"]] = row
        return kept


def _mismatch(row: Item, expected: Digests) -> str:
    """Return why a record is not the result of the item with its index; "" if it is."""
    index, found = row.get("index"), row.get("digest")
    if not isinstance(index, int) or not isinstance(found, dict):
        return "this is not a result of `lmc run --input` (it has no index and digest)"
    if not 0 <= index < len(expected.items):
        return f"this is the result of item {index}, and the input has only {len(expected.items)} items"
    if found.get("item") != expected.items[index]:
        return f"this is the result of another item than {expected.places[index]} is now"
    if found.get("run") != expected.run:
        return "this result was made by another program, --backend, --temperature, --max-tokens or --seed"
    return ""


def _records(path: Path) -> tuple[list[tuple[int, Item]], bool]:
    """Return the records of a results file with their line numbers, and whether its last line was torn off (and is left
    out)."""
    try:
        whole, newline, last = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the results in {path}: {error.strerror}; choose another --output") from error
    rows: list[tuple[int, Item]] = []
    number = 0
    for number, line in enumerate(whole.split(b"\n") if newline else (), 1):
        if line.strip():
            rows.append((number, _object(line.decode("utf-8", errors="replace"), Loc(str(path), number))))
    if last.strip():
        try:
            rows.append((number + 1, _object(last.decode("utf-8"), Loc(str(path), number + 1))))
        except (UsageError, UnicodeDecodeError):
            return rows, True
    return rows, False


def check_output(output: Path | None, input_file: Path | None) -> None:
    """Refuse an output that is the input, a folder, or a table by its name."""
    if output is None:
        return
    if input_file is not None and (output.resolve() == input_file.resolve() or _same_file(output, input_file)):
        raise UsageError(f"--output {output} is the --input file; choose another file for the results")
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder; name a file in it, such as {output / 'results.jsonl'}")
    if output.suffix.lower() in (".csv", ".tsv", ".xlsx"):
        raise UsageError(f"--output {output}: results are lines of JSON; choose another name, such as {output.with_suffix('.jsonl')}")
    check_folder(output)


def check_folder(output: Path | None, option: str = "--output") -> None:
    """Refuses to write into a folder that is not there: one that nobody made is mostly a misspelt one."""
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageError(f"{option} {output}: there is no folder {output.parent}; make it (mkdir -p {output.parent}), or choose another")


def _same_file(one: Path, two: Path) -> bool:
    return one.exists() and two.exists() and one.samefile(two)


def _is_file_with_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _rewrite(path: Path, rows: Iterable[Item]) -> TextIO:
    """Replace a file by `rows` atomically (a crash leaves the old or the new one), and leave it open at its end."""
    try:
        path = path.resolve()  # a link stays a link
        if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/null
            return path.open("w", encoding="utf-8")
        fresh = path.with_name(path.name + ".new")
        with fresh.open("w", encoding="utf-8") as stream:
            for row in rows:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        fresh.replace(path)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the results to {path}: {error.strerror}; choose another --output") from error


def _line(record: Item) -> str:
    """Write a record as a line; one with half of a surrogate pair, which no file can hold, in ASCII."""
    text = json.dumps(record, ensure_ascii=False, default=repr)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(record, default=repr)
    return text + "\n"


def _value_of(state: Any, name: str) -> Any:
    """Return a variable's value, or the text so far of an answer that was cut off: the program has gone on without it."""
    try:
        return state.get_var(name)
    except IncompleteAnswer as cut:
        return cut.text


def record_of(index: int, state: Any, extra: Item) -> Item:
    """Return the record of one item: its results, or the error it ended with."""
    error = state.error()
    if error is not None:
        result: Item = {"error": {"type": type(error).__name__, "message": "\n".join((str(error), *tracebacks.notes(error)))}}
    else:
        variables = {name: _value_of(state, name) for name in state.variables if name is not None}
        result = {"return": state.ret_value, "variables": variables, "text": state.text(), "usage": asdict(state.usage)}
    return {"index": index, **result, **({"input": extra} if extra else {})}
