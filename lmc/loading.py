"""Compiled programs from files: `lmc.load`."""

from __future__ import annotations

import os
from pathlib import Path

from lmc import arguments
from lmc.backend.base import Backend
from lmc.frontend.interpreter import Function
from lmc.frontend.options import backend_of
from lmc.runahead.program import Program
from lmc.saved_programs import SavedFile, SavedFunction
from lmc.tracebacks import users_frames


@users_frames
def load(path: str | os.PathLike[str], *, backend: Backend | str | None = None) -> Program:
    """Load the program that `program.save(path)` wrote. Reading the file executes nothing.

    Its first call imports the program's function (module:name) and raises ProgramError, naming it and its location, if
    it is missing or its source has changed. `backend`: where it runs when a call names none.
    Raises ProgramError for a file that is not a saved program, is damaged or has another format.
    """
    return _of_file(SavedFile.read(arguments.path("path", path)), backend_of(backend))


def program_of(fn: Function, backend: Backend | None = None) -> Program:
    """Return `compile(fn)`; for the function of a saved file, the program that was saved."""
    return _of_file(SavedFile.read(Path(fn.path)), backend) if isinstance(fn, SavedFunction) else Program(fn, backend=backend)


def _of_file(saved: SavedFile, backend: Backend | None) -> Program:
    program = Program(saved.function, backend=backend, outputs=saved.outputs, opt=saved.opt, aggressive=saved.aggressive, ahead=saved.ahead)
    program.profile.learn(saved.measured)
    program.planner.adopt(saved.graph)
    return program
