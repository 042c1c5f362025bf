"""The protocol of the pipe: JSON, reading which executes nothing. A frame is a list of messages, in order.

    to the backend    ["submit" | "prefill", handle, parent | null, segments, hints | null, wait]    ["cancel" | "release" | "needed" | "drop", handle]
                      ["call", number, method, …]
    from it           ["hello", VERSION, of the backend]    ["feed", handle, index, delta, scored]    ["done", handle, index, output]
                      ["fail", handle, index | null, error]    ["return" | "raise", number, value]

Handles are numbers assigned by the program's side, so that it continues without waiting. `wait` is the number of a call
whose return confirms that the submission was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from lmc import codec, json_data, videos
from lmc.backend.base import Beyond, Hints
from lmc.backend.results import Output, Scored
from lmc.backend.usage import Usage
from lmc.errors import BackendError, Loc
from lmc.images import data_url
from lmc.segments import ChoicesMethod, Constraint, Frames, Gen, Given, Image, Mark, Part, SamplingParams, Segment, Select, Special, Text

VERSION = 4
Message = list[Any]


def to_bytes(messages: Sequence[Message]) -> bytes:
    return json_data.to_bytes(messages)


def from_bytes(frame: bytes) -> list[Message]:
    """Decode messages. Raises ValueError for anything but a list of messages."""
    found = json_data.from_bytes(frame)
    if not isinstance(found, list) or not all(isinstance(each, list) and each for each in found):
        raise ValueError("not a list of messages")
    return found


# -- segments ----------------------------------------------------------------------------------------------------------


def write_segments(segments: Sequence[Segment]) -> list[Any]:
    """Encode segments. Raises errors of an image or a video, which is read here."""
    return [_WRITE[type(segment)](segment) for segment in segments]


def read_segments(data: Sequence[Any]) -> list[Segment]:
    return [_READ[kind](*rest) for kind, *rest in data]


def write_parts(parts: Sequence[Part]) -> list[Any]:
    """Encode text as it is, a special token as a list of one, a mark as a list of two."""
    return [p if isinstance(p, str) else [p.spelling] if isinstance(p, Special) else [p.role, p.edge] for p in parts]


def read_parts(data: Sequence[Any]) -> tuple[Part, ...]:
    return tuple([p if isinstance(p, str) else Special(p[0]) if len(p) == 1 else Mark(p[0], p[1]) for p in data])


def _write_image(image: Image) -> list[Any]:
    if image.frames is None:
        return ["image", data_url(image), image.detail, _write_loc(image.loc)]
    return ["video", videos.data_url(image), [image.frames.num_frames, image.frames.fps], _write_loc(image.loc)]


def _write_gen(ask: Gen) -> list[Any]:
    constraint = None if ask.constraint is None else [ask.constraint.kind, ask.constraint.source]
    return ["gen", _changed(ask.params, _PLAIN), constraint, ask.seed, ask.name, _write_loc(ask.loc), ask.tools]


def _read_gen(params: dict[str, Any], constraint: list[str] | None, seed: int, name: str | None, loc: Any, tools: str) -> Gen:
    given = {key: _frozen(value) for key, value in params.items()}
    return Gen(SamplingParams(**given), None if constraint is None else Constraint(*constraint), seed, name, _read_loc(loc), tools)  # type: ignore[arg-type]


def _write_select(ask: Select) -> list[Any]:
    return ["select", list(ask.choices), str(ask.method), ask.temperature, ask.seed, ask.name, _write_loc(ask.loc), ask.adapter]


def _read_select(choices: list[str], method: str, temperature: float, seed: int, name: str | None, loc: Any, adapter: str) -> Select:
    return Select(tuple(choices), ChoicesMethod(method), temperature, seed, name, _read_loc(loc), adapter)


_WRITE: Mapping[type, Callable[[Any], list[Any]]] = {
    Text: lambda text: ["text", write_parts(text.parts)],
    Given: lambda given: ["given", given.text, list(given.ids), given.blocks],
    Image: _write_image,
    Gen: _write_gen,
    Select: _write_select,
}
_READ: Mapping[str, Callable[..., Segment]] = {
    "text": lambda parts: Text(read_parts(parts)),
    "given": lambda text, ids, blocks: Given(text, tuple(ids), blocks),
    "image": lambda url, detail, loc: Image(url, None, detail, _read_loc(loc)),
    "video": lambda url, frames, loc: Image(url, Frames(*frames), loc=_read_loc(loc)),
    "gen": _read_gen,
    "select": _read_select,
}


def _write_loc(loc: Loc | None) -> list[Any] | None:
    return None if loc is None else [loc.file, loc.line, loc.col]


def _read_loc(data: Any) -> Loc | None:
    return None if data is None else Loc(*data)


_PLAIN = SamplingParams()
_UNHINTED = Hints()


def _changed(x: Any, plain: Any) -> dict[str, Any]:
    """Return the fields that are not the defaults."""
    names = Hints._fields if isinstance(x, Hints) else x.__slots__
    return {name: value for name in names if (value := getattr(x, name)) != getattr(plain, name)}


def _frozen(x: Any) -> Any:
    return tuple([_frozen(each) for each in x]) if isinstance(x, list) else x


def write_hints(hints: Hints | None) -> dict[str, Any] | None:
    if hints is None:
        return None
    if hints.run is not None:  # a run belongs to this process: only its share crosses
        hints = hints._replace(run=None, priority=hints.run.priority, account=hints.run.account)
    changed = _changed(hints, _UNHINTED)
    if hints.beyond is not None:
        changed["beyond"] = [hints.beyond.tokens, hints.beyond.gens, list(hints.beyond.stop)]
    return changed


def read_hints(data: dict[str, Any] | None) -> Hints | None:
    if data is None:
        return None
    found = {key: _frozen(value) for key, value in data.items()}
    if "beyond" in found:
        found["beyond"] = Beyond(*found["beyond"])
    return Hints(**found)


# -- answers -----------------------------------------------------------------------------------------------------------


def write_output(output: Output) -> list[Any]:
    usage = [getattr(output.usage, f.name) for f in fields(Usage)]
    return [list(output.texts), [codec.encode(dict(meta)) for meta in output.metas], usage, list(output.ids), list(output.forced), output.phases]


def read_output(data: Any) -> Output:
    texts, metas, usage, ids, forced, phases = data
    return Output(tuple(texts), tuple(codec.decode(meta) for meta in metas), Usage(*usage), tuple(ids), _frozen(forced), _frozen(phases))


def write_scored(scored: Scored) -> list[Any] | None:
    return codec.encode([list(scored.tokens), list(scored.tops)]) if scored.tokens else None


def read_scored(data: Any) -> Scored:
    return Scored() if data is None else Scored(*map(tuple, codec.decode(data)))


def write_error(error: BaseException) -> Any:
    """Encode an exception; one that is not data by its class's name and its message."""
    try:
        return codec.encode(error)
    except codec.NotData:
        return codec.encode(BackendError(f"{type(error).__name__}: {error}"))


def read_error(data: Any) -> BaseException:
    """Decode an exception; one of a missing class, by its name and message."""
    try:
        found = codec.decode(data)
    except codec.BadData as bad:
        return BackendError(f"the backend's process failed with an unknown error ({bad})")
    return found if isinstance(found, BaseException) else BackendError(f"the backend's process failed: {found!r:.200}")
