"""Values of answers: numbers, JSON, enums, models, templates of strings."""

from __future__ import annotations

import enum
import json
import re
import string
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

import lmc
from lmc import gen
from tests.conformance.harness import case, effect, scripted
from tests.conformance.shared import ask, by_name


@case([{"q": "a"}, {"q": "beta"}])
def strings(s: Any, q: str) -> Any:
    s += f"{q!r:>12}|{q:<6}|" + lmc.gen("x", max_tokens=20)
    x = s["x"]
    words = x.strip().split()
    s += words[0].upper() + "/" + x[1:4] + "/" + x[-1] + ("%s-%d" % (x, len(x))) + "{} {k}".format(x, k=q)
    m = re.search(r"([aeiou])(\w)", x)
    s += m.group(1) if m else "none"
    s += "".join(sorted(x)) + str(x.count("a")) + x.replace("a", "A") + " ".join(w[::-1] for w in words)
    data = json.loads('{"k": ["' + x.replace('"', "") + '"]}')
    s += data["k"][0] + json.dumps(data) + repr(x)
    return int(len(x)), x.partition(" ")[0], x.isdigit(), not x, -len(x), x * 2


@case(backend=scripted(x=["a: 12", "b: 7", "c: 3"]))
def text_taken_apart(s: Any, q: str) -> Any:
    s += f"{q!r} {[q]}" + lmc.gen("x", max_tokens=9)
    name, number = s["x"].split(":")[0], int(s["x"].split(":")[1])
    s += repr(s["x"]) + f"{name!r:>5}|{number:03d}" + "{!r}".format(s["x"]) + str([s["x"]])
    return eval(f"{number} + 1"), eval("number * 2"), json.loads(f"[{number}]")


@case(backend=scripted(x="$name is $$5"))
def keyword_arguments_of_any_name(s, q):
    s += q + gen("x")
    s += string.Template(s["x"]).safe_substitute(name=q, fn="f", owner="o")
    s += "{name} {fn} {owner} {error}".format(name=s["x"], fn=q, owner=1, error=2)
    s += str(dict(name=s["x"], fn=q, owner=len(s["x"])))


class Kind(enum.Enum):
    PERSON = "positive"
    PLACE = "negative"
    OTHER = "mixed"

    @property
    def short(self) -> str:
        return self.name[:2].lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@case(backend=by_name)
def enums(s, q):
    kind = Kind(ask(s, q, "label"))
    level = Level.HIGH if kind is Kind.PERSON else Level.LOW
    counts = {k: 0 for k in Kind}
    counts[kind] += level
    s += f"{kind.short}{kind.value}{level + 1}{level:d}" + gen("y", max_tokens=2)
    return [k.name for k in Kind if counts[k]], kind in (Kind.PLACE, Kind.OTHER), level is Level.LOW


@case(backend=by_name)
def fields_with_checks(s, q):
    out, bad = {}, []
    for name in ("n", "label", "bad"):
        value = ask(s.fork(1)[0], f"{q}: what is {name}?", name).strip()
        if name == "bad" and not value.isdigit():
            value = ask(s.fork(1)[0], f"{q}: {name} as a number", "n")
            bad.append(name)
        out[name] = value
    s += json.dumps(out) + gen("check", max_tokens=3)
    return out, bad


@case(backend=by_name)
def json_with_repair(s, q):
    text = ask(s, q, "maybe_json")
    for attempt in range(3):
        try:
            return json.loads(text)["v"], attempt
        except (json.JSONDecodeError, KeyError) as e:
            effect("repair", type(e).__name__)
            text = ask(s, f"not JSON: {e.__class__.__name__} ({attempt})", "maybe_json")
    raise ValueError(f"no JSON in {text!r}")


@case([{"q": q} for q in "abcdefgh"], backend=by_name)
def nested_json(s, q):
    data = json.loads(ask(s, q, "json", most=60))
    match data:
        case {"nested": {"ok": True}, "name": name, **rest}:
            s += f"ok {name} {sorted(rest)}"
        case {"items": [first, *more], "nested": {"ok": False}} if first > 0:
            s += f"first {first} {more}"
        case {"items": list(items)}:
            s += f"items {items}"
        case _:
            s += "?"
    data["items"].append(len(data))
    del data["name"]
    s += json.dumps(data, sort_keys=True) + gen("w", max_tokens=3)
    return data


@case(backend=scripted(labels=['["x"]', '["y"]'] * 9, one=["p", "q"] * 9))
def types_written_inside(s: Any, q: str) -> Any:
    options = ["p", "q"]
    s += q + lmc.gen("labels", dtype=list[Literal["x", "y"]])
    s += lmc.gen("one", dtype=Literal["p", "q"]) + lmc.gen("two", choices=options)
    return json.loads(s["labels"]), s["one"]


def noted(text: str) -> str:
    effect("noted", text)
    return text


MODELS = scripted(x=lambda text, ask: ('{"label": "a", "score": 3}', '{"label": "b"}', '{"label": 1}', '{"label": "c", "score": 30}')[len(text) % 4])


@case([{"q": q} for q in ("a", "bee gee", "four", "dd")], backend=MODELS)
def models(s, q):
    class Verdict(BaseModel):
        """A judge's verdict."""

        label: str
        score: int = Field(default=1, le=10)
        tags: list[str] = Field(default_factory=list)

        def is_good(self):
            return self.score > 2

    s += q + gen("x", json_schema=Verdict)
    try:
        verdict = Verdict.model_validate_json(s["x"])
    except ValidationError as error:
        s += str(error.error_count())
        return None
    verdict.tags.append(noted(q))
    if verdict.is_good():
        s += gen("y", max_tokens=2)
    return verdict.model_dump(), isinstance(verdict, Verdict), verdict == Verdict(**verdict.model_dump()), type(verdict).__name__
