"""A folder with programs, and the command line in this process, for tests of commands."""

import json
from pathlib import Path

import typer

from lmc.cli.command import app

COMMAND = typer.main.get_command(app)  # a process makes it once
ROOT = Path(__file__).parent.parent.parent

PROGRAM = '''
import json

import lmc


@lmc.function
def echo(s, text, times: int = 1):
    s += "Say: " + text + lmc.gen("said", max_tokens=8)
    return {"text": text, "times": times}


@lmc.function
def picky(s, text):
    s += text + lmc.gen("x", max_tokens=4)
    if text == "bad":
        raise ValueError("I do not like bad")
    return text


@lmc.function
def broken_regex(s):
    s += lmc.gen("x", regex="[a-")
'''


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def items(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
