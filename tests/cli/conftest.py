"""The command line in a folder of its own."""

import os
import sys

import pytest

from lmc import cli
from tests.cli.harness import COMMAND, PROGRAM


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "prog.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("LMC_") and n != "LMC_CACHE_DIR"]:
        monkeypatch.delenv(name)
    yield tmp_path
    sys.modules.pop("prog", None)


@pytest.fixture
def lmc_cli(folder, monkeypatch, capsys):
    """Runs the command in this process: (exit code, standard output, standard error)."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lmc", *args])
        monkeypatch.setattr("lmc.cli.command.app", COMMAND)
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        out, err = capsys.readouterr()
        return code, out, err

    return call
