"""Errors that users meet: what went wrong, where in their program, and what to do."""

from __future__ import annotations

import linecache
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, cast

__all__ = [
    "AnswerError", "ArgumentError", "BackendEnded", "BackendError", "BudgetExceeded", "CancelledError", "ConstraintError", "Filtered", "HostTimeout",
    "IRError", "InDoubtEffect", "IncompleteAnswer", "Interrupted", "JournalError", "JournalWarning", "Refused", "LmcError", "MissingPackageError",
    "ModelLoadError", "ParameterError", "ProgramError", "PromptTooLongError", "RunTimeout", "SchemaWarning", "ToolError", "UnsupportedOpError",
]  # fmt: skip
"""What `lmc` itself has of them."""


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's source: file, 1-based line, 0-based column."""

    file: str
    line: int
    col: int = 0

    def __str__(self) -> str:
        return f"{_cell(self.file) or self.file}:{self.line}"

    @property
    def short(self) -> str:
        """The place without the file's folder, for reports."""
        return f"{_cell(self.file) or PurePath(self.file).name}:{self.line}"

    def excerpt(self) -> str:
        """Return the source line with a caret under the column, or "" when the source is not there; of a long line the part around the column."""
        line = source_line(self.file, self.line).rstrip()
        return excerpt(line, self.col) if line.strip() else ""


def source_line(file: str, line: int) -> str:
    """Return a 1-based line of a file's or a cell's source, "" when it is not there. A graph from a file may name a device, which has no end."""
    there = file.startswith("<") or file in linecache.cache or os.path.isfile(file)
    return linecache.getline(file, line) if there else ""


def excerpt(line: str, col: int) -> str:
    """Return a line with a caret under a 0-based column; of a long line the part around it."""
    shown = line.lstrip()
    caret = max(0, col - (len(line) - len(shown)))
    cut = max(0, caret - _WIDE // 2) if len(shown) > _WIDE else 0
    before, after = "…" if cut else "", "…" if len(shown) > cut + _WIDE else ""
    return f"    {before}{shown[cut : cut + _WIDE]}{after}\n    {' ' * (len(before) + caret - cut)}^"


_WIDE = 160
"""Characters of a source line that an error shows."""


def _cell(file: str) -> str | None:
    """Return what IPython calls a cell of a notebook in its own tracebacks, such as "Cell In[3]"; None if `file` is not one."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return None if named is None else " ".join(named)


class LmcError(Exception):
    """Base of every error that lmc raises on its own account. `param`: the parameter at fault, where one is known."""

    def __init__(self, message: str, *, loc: Loc | None = None, param: str | None = None) -> None:
        self.message = message
        self.loc = loc
        self.param = param
        super().__init__(message)

    def __str__(self) -> str:
        if self.loc is None:
            return self.message
        excerpt = self.loc.excerpt()
        return f"{self.loc}: {self.message}" + (f"\n{excerpt}" if excerpt else "")

    def __reduce__(self) -> Any:
        """Pickle what it holds, not what it was made of: subclasses take other arguments than their message."""
        _, args, *state = cast("tuple[Any, ...]", super().__reduce__())
        return _unmade, (type(self), args), *state


def _unmade(cls: type[LmcError], args: tuple[Any, ...]) -> LmcError:
    error = cls.__new__(cls)
    error.args = args
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an exception of anybody's: its `__str__` may fail, too."""
    try:
        return str(error)
    except Exception:
        return f"<unprintable {type(error).__name__}>"


class JournalWarning(UserWarning):
    """A journaled run did something that its journal cannot hold: resuming past it would end with JournalError. The
    message says what and where."""


class SchemaWarning(UserWarning):
    """A JSON schema with parts that have no effect (unknown keywords and formats), or that can only be checked when an
    answer ends."""


class ConstraintError(LmcError, ValueError):
    """A regex, schema or grammar that is invalid or that this target cannot enforce."""


class UnmetConstraint(ConstraintError):
    """An answer came that breaks a constraint which the target could not enforce, or not all of it. Another may keep it."""


class PromptTooLongError(LmcError, ValueError):
    """A prompt that does not fit the model's context or the KV pool."""


class ModelLoadError(LmcError):
    """A model path, file or id that cannot be loaded."""


class BackendError(LmcError):
    """The backend failed while it worked on a request. `final`: it tried as often as it may, or in vain, and another attempt would be no other."""

    final = False


class BackendEnded(BackendError):
    """The backend can answer no more: its device failed, or the process that it was in is gone. Another one may."""


class CancelledError(BackendError):
    """The request was cancelled before its answer was complete."""


class AnswerError(BackendError):
    """An answer came that is not what was requested. `text`: what there is of it; `loc`: where it was requested."""

    text: str = ""


class Refused(AnswerError):
    """The model refused to answer; `text` is its refusal. With `on_refusal="return"` on the backend that is the
    answer."""


class Filtered(AnswerError):
    """A content filter of the server stopped the answer or the prompt; `text` is what came before. `on_refusal="return"` on the backend returns that."""


class IncompleteAnswer(AnswerError):
    """The token limit was used up, by reasoning or otherwise, before the answer was complete; `text` is what there is
    of it."""


class HostTimeout(LmcError, TimeoutError):
    """A function marked with `lmc.host(timeout=…)` took longer than that."""


class RunTimeout(LmcError, TimeoutError):
    """A run took longer than its `timeout`. Raised at the current wait, or at the next request or await; `spent` says
    what it spent."""

    spent: Any = None


class BudgetExceeded(LmcError):
    """A run's `budget` is spent. Raised at the request that it does not allow; `spent` says what the run spent."""

    spent: Any = None
    budget: Any = None


class JournalError(LmcError):
    """A journal that cannot be used: of another program or other arguments, damaged, in use, or holding something
    unsupported."""


class InDoubtEffect(LmcError):
    """A resumed run has reached a call that was begun before, and it is not known whether the call was made.

    Raised at that call, in the program. Mark the function `lmc.host(idempotent=True)` if it may be called again.
    """


class Interrupted(LmcError):
    """A journaled run has asked a person (`lmc.interrupt`) and stops until there is an answer; the same call with the
    same journal then resumes it.

    question  its text;  schema  the JSON schema of the answer, "" for a text
    item      the run's number in its batch, else 0;  number  of the question, among the run's effects
    """

    def __init__(self, question: str, schema: str = "", item: int = 0, number: int = 0, *, journal: str = "", loc: Loc | None = None) -> None:
        self.question, self.schema, self.item, self.number = question, schema, item, number
        where = f" {shlex.quote(journal)}" + (f" --item {item}" if item else "")
        super().__init__(
            f"the run waits for a person's answer to {question!r}: give it with lmc journal resolve{where} --answer …, then make the same call again", loc=loc
        )


class UnsupportedOpError(LmcError, NotImplementedError):
    """An op that the chosen target cannot execute; never emulated silently."""

    def __init__(self, op: str, target: str, hint: str = "", *, loc: Loc | None = None) -> None:
        self.op, self.target = op, target
        super().__init__(f"{target} does not support {op}" + (f": {hint}" if hint else ""), loc=loc)


class ToolError(LmcError, ValueError):
    """A model called an unknown tool, or one with arguments that it does not accept."""


class IRError(LmcError):
    """A graph that breaks a rule of the IR, or IR text that does not parse."""


class ProgramError(LmcError):
    """A program, file or argument named by the user that is not usable as given."""


class ArgumentError(ProgramError, TypeError):
    """An argument that a program, primitive or method does not accept, that is missing, or of the wrong type."""


class MissingPackageError(ProgramError, ModuleNotFoundError):
    """A package that part of lmc needs is not installed; the message has the command that installs it."""

    def __init__(self, message: str, *, name: str, loc: Loc | None = None) -> None:
        super().__init__(message, loc=loc)
        self.name = name


class AttributeMissing(ProgramError, AttributeError):
    """An attribute that an expression, a state or a program does not have, often one of another object."""


class ParameterError(ProgramError, ValueError):
    """A parameter of the right kind whose value is not usable."""


def shown(source: str) -> str:
    """Return a pattern, or another source, as messages quote it."""
    return repr(source if len(source) <= 80 else source[:77] + "…")
