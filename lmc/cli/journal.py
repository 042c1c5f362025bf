"""`lmc journal`: the contents of journals, their open points, and their files."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmc import json_data
from lmc.cli.console import say, write
from lmc.cli.errors import as_usage
from lmc.cli.options import OutputFile, unset
from lmc.errors import ArgumentError, JournalError
from lmc.pages import several
from lmc.userfiles import UsageError

if TYPE_CHECKING:
    from lmc.journals import Journal, PendingQuestion, RunStatus, Wave

journal = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, show, resolve, export and compact the journals of durable runs.

    \b
    Examples:
      lmc journal list runs/                                   (all journals in a folder, and what they wait for)
      lmc journal show runs/mail
      lmc journal resolve runs/mail --answer yes               (to lmc.interrupt; JSON if it has a schema)
      lmc journal resolve runs/mail --result '"id 17"'         (a call in doubt was made, and returned this)
      lmc journal retry runs/mail                              (it was not made: the resumed run makes it)
      lmc journal compact runs/mail --older-than 30d

    Encrypted journals need --key-file. docs/durability.md describes journals.
    """,
)  # fmt: skip

Path_ = Annotated[Path, typer.Argument(metavar="JOURNAL", show_default=False, help="Journal of a run or of a batch.")]
KeyFile = Annotated[Path | None, unset("--key-file", metavar="FILE", help="File with the key of an encrypted journal: 32 bytes, or a passphrase.")]
Item = Annotated[int | None, unset("--item", metavar="N", help="Number of one run of a batch.")]
Effect = Annotated[int | None, unset("--effect", metavar="N", help="Number of the call or question, if several wait.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")]


@journal.command("list")
def list_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", show_default=False, help="Journals, or folders with journals.")],
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List runs, their status, and what they wait for."""
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: there is no such journal or folder")
    found = [(each, *_runs(each, key_file)) for path in paths for each in _journals(path)]
    if as_json:
        for path, runs, wrong in found:
            for run in runs:
                typer.echo(json.dumps({"journal": str(path), **_as_json(run)}, ensure_ascii=False))
            if wrong:
                typer.echo(json.dumps({"journal": str(path), "error": wrong}, ensure_ascii=False))
        return
    if not found:
        raise UsageError(f"no journals in {', '.join(map(str, paths))}")
    for path, runs, wrong in found:
        if wrong:
            typer.echo(f"{path}: {wrong}")
        listed = runs if len(runs) <= _LISTED else [run for run in runs if run.waiting]
        if len(listed) < len(runs):
            counts = ", ".join(f"{n} {status}" for status, n in Counter(run.status for run in runs).most_common())
            typer.echo(f"{path}: {runs[0].program}: {len(runs)} runs: {counts} (--json lists each)")
        for run in listed:
            typer.echo(f"{path}{f' item {run.item}' if len(runs) > 1 else ''}: {_line(run)}")
            for waiting in run.waiting:
                typer.echo(f"    {_what(waiting)}")


_LISTED = 20
"""The most runs of a batch that are listed one by one; of a larger one those that wait for something are."""


@journal.command()
def show(path: Path_, item: Item = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Show a journal: its file, and each run step by step. `lmc replay` with the program shows prompts as well."""
    from lmc.durable import records, steps
    from lmc.durable.files import Sidecar

    with as_usage():
        opened = _open(path, key_file)
        contents, runs = opened.read(), [run for run in opened.runs() if item in (None, run.item)]
        stories, waves = steps.listed_in(contents, item, path), opened.waves()
    if as_json:
        return typer.echo(steps.to_json(stories))
    header = contents.header
    typer.echo(
        f"{path}: a {header.get('kind')} of {header.get('program')} on {header.get('backend')}, seed {header['seed']}; "
        f"{contents.size} bytes in {contents.groups + 1} lines{', encrypted' if contents.cipher is not None else ''}"
    )
    if contents.dropped:
        typer.echo(f"  its last {contents.dropped} bytes were not written whole; they are dropped when the run is resumed")
    try:
        Sidecar.check(records.find(path), contents)
    except JournalError as error:
        typer.echo(f"  {error.message}")
    for number, wave in enumerate(waves, 1):
        typer.echo(f"  wave {number}: {_wave(wave)}")
    for story, run in zip(stories, runs, strict=True):
        typer.echo(steps.to_text([story]))
        typer.echo(f"  {_line(run)}")
        for waiting in run.waiting:
            typer.echo(f"    {_what(waiting)}")


@journal.command()
def resolve(
    path: Path_,
    answer: Annotated[str | None, unset("--answer", metavar="TEXT", help="Answer to a question: text, or JSON if it has a schema.")] = None,
    result: Annotated[str | None, unset("--result", metavar="JSON", help="What a call in doubt, which was made, returned.")] = None,
    error: Annotated[str | None, unset("--error", metavar="TEXT", help="Message of the RuntimeError that a call in doubt raised.")] = None,
    item: Item = None,
    effect: Effect = None,
    key_file: KeyFile = None,
) -> None:
    """Answer a question, or give the outcome of a call in doubt. The run continues when it is called again with its journal."""
    if sum(x is not None for x in (answer, result, error)) != 1:
        raise UsageError("give one of --answer (to a question), --result and --error (of a call in doubt); lmc journal retry, if it did not happen")
    with as_usage(ArgumentError):
        opened = _open(path, key_file)
        if answer is not None:
            waiting = opened.answer(_parsed(opened, answer, item, effect), item, effect)
        else:
            waiting = opened.resolve(None if result is None else _json("--result", result), item, effect, error=None if error is None else RuntimeError(error))
    say(f"item {waiting.item}, {waiting.call}: recorded; repeat the same call with this journal to continue")


@journal.command()
def retry(path: Path_, item: Item = None, effect: Effect = None, key_file: KeyFile = None) -> None:
    """Mark a call to be made again.

    It is one in doubt that was not made, or one whose exception ended the run.
    """
    with as_usage():
        waiting = _open(path, key_file).retry(item, effect)
    say(f"item {waiting.item}, {waiting.call}: it will be called when the run is resumed")


@journal.command()
def export(path: Path_, output: OutputFile = None, item: Item = None, key_file: KeyFile = None) -> None:
    """Export runs as JSON lines: arguments, answers, effects, end."""
    with as_usage():
        lines = [json.dumps(run, ensure_ascii=False) for run in _open(path, key_file).export(item)]
    write("\n".join(lines).encode("utf-8", "backslashreplace").decode(), output)


@journal.command()
def compact(
    path: Path_,
    older_than: Annotated[
        str | None, unset("--older-than", metavar="AGE", help="Also delete runs that ended well at least this long ago: 90s, 12h, 30d.")
    ] = None,
    key_file: KeyFile = None,
    new_key_file: Annotated[Path | None, unset("--new-key-file", metavar="FILE", help="File with a new key to encrypt the journal with.")] = None,
) -> None:
    """Rewrite the file without what no run needs any more. Deleted runs cannot be resumed, and are refused if they are called again."""
    with as_usage():
        before, now, deleted = _open(path, key_file).compact(_seconds(older_than), new_key=None if new_key_file is None else _key(new_key_file))
    say(f"{path}: {before} bytes before, {now} now" + (f"; {deleted} run{'s'[: deleted != 1]} deleted" if older_than else ""))


# -- input and output ----------------------------------------------------------------------------------


def _open(path: Path, key_file: Path | None) -> Journal:
    from lmc.journals import Journal

    return Journal(path, key=key_of(key_file))


def key_of(key_file: Path | None) -> str | bytes | None:
    """Return the key in a file."""
    return None if key_file is None else _key(key_file)


def _key(file: Path) -> str | bytes:
    try:
        with file.open("rb") as stream:  # once: it may be a pipe, or a device without an end
            data = stream.read(_LONGEST_KEY + 1)
        if len(data) > _LONGEST_KEY:
            raise UsageError(f"{file} is no key: it has more than {_LONGEST_KEY} bytes")
        return data if len(data) == 32 else data.decode().replace("\r\n", "\n").replace("\r", "\n").strip()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no key: it has neither 32 bytes nor is it a text in UTF-8") from None


_LONGEST_KEY = 4096


def _journals(path: Path) -> list[Path]:
    """Return the journals at a path: itself, or those in a folder and its subfolders, not following links to others."""
    if not path.is_dir() or (path / "journal").is_file():
        return [path]
    from lmc.durable.groups import MAGIC

    found: list[Path] = []
    for each in _listed(path):
        if each.is_dir():
            if not each.is_symlink() or (each / "journal").is_file():  # links may lead in circles
                found += _journals(each)
        elif _begins_with(each, MAGIC.encode()):
            found.append(each)
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}") from None


def _begins_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _runs(path: Path, key_file: Path | None) -> tuple[list[RunStatus], str]:
    """Return its runs, or why there are none."""
    try:
        return _open(path, key_file).runs(), ""
    except JournalError as error:
        return [], error.message.removeprefix(f"{path}: ")


def _line(run: RunStatus) -> str:
    ended = f", {time.strftime('%Y-%m-%d %H:%M', time.localtime(run.ended))}" if run.ended and run.status in ("finished", "failed", "deleted") else ""
    error = f" ({run.error.splitlines()[0]:.100})" if run.error else ""
    return f"{run.program}: {run.status}{ended}{error}; {several(run.answers, 'answer')}, {several(run.effects, 'effect')}"


def _what(waiting: PendingQuestion) -> str:
    at = f"  ({waiting.line})" if waiting.line else ""
    if waiting.question:
        schema = f"  [{waiting.schema}]" if waiting.schema else ""
        return f"effect {waiting.number} asks: {waiting.question}{schema}{at}"
    return f"effect {waiting.number} is in doubt: {waiting.call}{at}"


def _wave(wave: Wave) -> str:
    how = "in doubt: the next call looks for it on the server" if wave.batch is None else f"{wave.batch}, "
    if wave.batch is not None:
        how += "not over when it was last looked at" if wave.failed is None else f"over, {wave.failed} failed" if wave.failed else "over"
    return f"{several(wave.requests, 'request')} to {wave.backend}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(wave.since))}, {how}"


def _as_json(run: RunStatus) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(run)


def _parsed(opened: Journal, answer: str, item: int | None, effect: int | None) -> Any:
    """Return the value of an answer on the command line: text, or JSON if the question has a schema."""
    asked = [w for w in opened.waiting() if w.question and item in (None, w.item) and effect in (None, w.number)]
    return _json("--answer", answer, f"; the question takes JSON that matches {asked[0].schema}") if len(asked) == 1 and asked[0].schema else answer


def _json(option: str, text: str, wanted: str = "") -> Any:
    try:
        return json_data.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r:.60} is not JSON: {error}{wanted}") from None


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(age: str | None) -> float | None:
    if age is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", age)
    if found is None:
        raise UsageError(f"--older-than {age!r}: a number with a unit, such as 90s, 12h or 30d")
    return float(found[1]) * _UNITS[found[2]]
