"""`lmc.interrupt`: a question to a person, which stops a journaled run until it is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmc.constraints import schema_of_type
from lmc.errors import ArgumentError, ProgramError
from lmc.extras import require
from lmc.frontend.expressions import caller_loc
from lmc.frontend.host import RECORDING

_JSON: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def interrupt(question: str, schema: Any = None) -> Any:
    """Return a person's answer to a question, in a journaled run.

    While there is none, the run ends with `lmc.Interrupted`: the question is in its journal, and its process may end. Once the question is answered
    (`lmc journal resolve`, `lmc.Journal.answer`, `lmc serve`), the same call with the same journal goes on from here with the answer.

    schema  what the answer must be: a JSON schema, or a type (bool, a Literal, a pydantic model, …), as which it is returned. None: a text

    Raises Interrupted; ProgramError outside of a journaled run, and in a tool, whose call would be in doubt.
    """
    if not isinstance(question, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"lmc.interrupt({question!r:.60}): the question must be text", loc=caller_loc())
    recorder = RECORDING.get()
    if recorder is None:
        raise ProgramError("lmc.interrupt() asks a person, which takes a journal to keep the question in: run the program with journal=path, or under "
                           "lmc serve --journals with an id (?run=ID). In a tool it cannot be: ask in the program, and pass the answer to the tool",
                           loc=caller_loc())  # fmt: skip
    return _as(schema, recorder.asked(question, schema_text(schema)))


def schema_text(schema: Any) -> str:
    """Return the JSON schema of an answer; "" for unconstrained text. Raises ArgumentError."""
    if schema is None or schema is str:
        return ""
    if isinstance(schema, Mapping):
        return json.dumps(schema)
    if isinstance(schema, type) and schema in _JSON:
        return json.dumps({"type": _JSON[schema]})
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return json.dumps(schema.model_json_schema())  # type: ignore[attr-defined]
    if isinstance(schema, str):
        raise ArgumentError("schema= of lmc.interrupt: must be a JSON schema as a dict, or a type", loc=caller_loc())
    return json.dumps(schema_of_type(schema))


def _as(schema: Any, answer: Any) -> Any:
    """Return an answer as a value of the requested type."""
    if schema is None or isinstance(schema, Mapping) or (isinstance(schema, type) and schema in _JSON):
        return float(answer) if schema is float else answer
    require(f"an answer of {schema!r}", "types")
    from pydantic import TypeAdapter

    return TypeAdapter(schema).validate_python(answer)
