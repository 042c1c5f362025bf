"""One thing made wrong in a model's files: a number, a type, a shape, a text, a byte. What is wrong is chosen by what it is."""

from __future__ import annotations

import json
import math
import random
import string
from pathlib import Path
from typing import Any

from tests.fuzzing.bases import CHATML, Folder, Gguf, Tensor, folder, gguf

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 7, 31, 33, 255, 2**15, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, -1, -2, -(2**31), 0.0, -0.0, 0.5, 1e-300, 1e300, math.nan,
    math.inf,
    -math.inf, 8.0,
)  # fmt: skip
OTHERS: tuple[Any, ...] = ("", "x", "8", "a" * 100_000, "\ud800", "\x00", True, False, [], [0], [-1], [2**31] * 3, ["x"], ["x" * 100_000])
JSON_OTHERS: tuple[Any, ...] = (*OTHERS, None, {}, {"x": 1}, [[]], [None], [{}])
TEMPLATES = (
    "{{ 'a' * 10**10 }}", "{{ 2 ** (2 ** 40) }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{% for", "{{ x.y.z }}",
    "{{ messages[99] }}", "{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ raise_exception(5) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ [1] | tojson(indent=10**9) }}",
    "{{ strftime_now('%' * 999) }}", "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "{{ messages }}", "",
    "{{ '\ud800' }}", "{{ cycler.__init__ }}",
    "{% include 'x' %}", "{{ '%s' % () }}", "{{ messages[0].content | int ** 99999999 }}", "{{ 'x'.format(*range(99999)) }}",
)  # fmt: skip


def write(seed: int, place: Path) -> tuple[Path, str]:
    """A model's files that are wrong in one place, and what is wrong."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        model = gguf(rng)
        what = _gguf(model, rng)
    else:
        model = folder(rng)
        what = _folder(model, rng)
    path = model.write(place)
    if rng.random() < 0.1:
        file = path if path.is_file() else rng.choice(sorted(path.iterdir()))
        what += "; " + _bytes(file, rng)
    return path, what


def _gguf(model: Gguf, rng: random.Random) -> str:
    kind = rng.choice(("number", "number", "number", "type", "missing", "tensor", "list", "template"))
    keys = sorted(model.metadata)
    if kind == "number":
        key = rng.choice([k for k in keys if isinstance(model.metadata[k], int | float)])
        model.metadata[key] = rng.choice(NUMBERS)
        return f"{key} = {model.metadata[key]!r}"
    if kind in ("type", "missing"):
        key = rng.choice(keys)
        if kind == "missing":
            del model.metadata[key]
            return f"{key} missing"
        model.metadata[key] = rng.choice((*OTHERS, *NUMBERS))
        return f"{key} = {model.metadata[key]!r:.60}"
    if kind == "list":
        key = rng.choice([k for k in keys if isinstance(model.metadata[k], list)])
        return f"{key} {_list(model.metadata[key], rng)}"
    if kind == "template":
        return f"template {_template(model.metadata, 'tokenizer.chat_template', rng)}"
    return _tensors(model.tensors, rng, gguf=True)


def _folder(model: Folder, rng: random.Random) -> str:
    kind = rng.choice(("value", "value", "value", "missing", "tensor", "tokenizer", "template", "family", "text"))
    if kind == "tensor":
        return _tensors(model.tensors, rng, gguf=False)
    if kind == "template":
        said: dict[str, Any] = {}
        what = _template(said, "chat_template", rng)
        if "chat_template.jinja" in model.texts:
            model.texts["chat_template.jinja"] = said["chat_template"].encode("utf-8", "surrogatepass")
        else:
            model.files["tokenizer_config.json"] |= said
        return f"template {what}"
    if kind == "family":  # of transformers', on values that are another's
        model.files["config.json"]["model_type"] = rng.choice(
            ("bert", "gpt2", "gemma", "phi", "gpt_neox", "t5", "mamba", "falcon", "roberta", "olmo2", "qwen2_moe", "", "x")
        )
        return f"model_type = {model.files['config.json']['model_type']}"
    if kind == "text":
        name = rng.choice(
            ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "model.safetensors.index.json")
        )
        model.texts[name] = rng.choice(
            (
                b"",
                b"\xff\xfe",
                b"[" * 100_000,
                b"{}",
                b"null",
                b"[]",
                b'{"weight_map": {"x": "../../x"}}',
                b'{"weight_map": {"x": 5}}',
                b'{"weight_map": [1]}',
                b"NaN",
            )
        )
        return f"{name} is {model.texts[name][:40]!r}"
    name = (
        "tokenizer.json"
        if kind == "tokenizer"
        else rng.choice(("config.json", "config.json", "config.json", *(name for name in sorted(model.files) if name not in ("config.json", "tokenizer.json"))))
    )
    parent, key = _place(model.files[name], rng)
    if kind == "missing" or rng.random() < 0.1:
        del parent[key]
        return f"{name}: {key} missing"
    parent[key] = rng.choice((*NUMBERS, *JSON_OTHERS))
    return f"{name}: {key} = {parent[key]!r:.60}"


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """Somewhere in a JSON value."""
    while True:  # down from something that has parts
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not isinstance(value[key], dict | list) or not value[key] or rng.random() < 0.3:
            return value, key
        value = value[key]


def _list(found: list[Any], rng: random.Random) -> str:
    kind = rng.choice(("short", "long", "item", "same"))
    if kind == "short":
        del found[rng.randrange(len(found)) :]
    elif kind == "long":
        found += [found[0]] * rng.choice((1, 1000))
    elif kind == "same":
        found[:] = [found[0]] * len(found)
    else:
        at, old = rng.randrange(len(found)), found[0]
        found[at] = (
            rng.choice(("", " ", "a" * 5000, "\u2581" * 300, "\ud800", "x y z")) if isinstance(old, str) else type(old)(rng.choice((0, 7, -1, 2**31 - 1)))
        )
        if isinstance(old, float):
            found[at] = rng.choice((math.nan, math.inf, -1e38))
    return kind


def _template(files: dict[str, Any], key: str, rng: random.Random) -> str:
    if rng.random() < 0.7:
        files[key] = rng.choice(TEMPLATES)
    else:
        at = rng.randrange(len(CHATML))
        files[key] = CHATML[:at] + "".join(rng.choices(string.printable, k=rng.randrange(6))) + CHATML[at + rng.randrange(6) :]
    return repr(files[key])[:60]


def _tensors(tensors: dict[str, Tensor], rng: random.Random, *, gguf: bool) -> str:
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    kind = rng.choice(("shape", "type", "missing", "name", "offset", "values", "flat"))
    if kind == "shape":
        at = rng.randrange(len(tensor.shape))
        size = rng.choice((0, 1, tensor.shape[at] + 1, tensor.shape[at] * 2, 2**31, 2**40, 2**63))
        tensor.shape = (*tensor.shape[:at], size, *tensor.shape[at + 1 :])
        if size < 1000 and rng.random() < 0.5:
            tensor.data = b"\0" * 4 * math.prod(tensor.shape)
    elif kind == "flat":
        tensor.shape = rng.choice(((len(tensor.data) // 4,), (1, *tensor.shape), tensor.shape[::-1], (*tensor.shape, 1)))
    elif kind == "type":
        tensor.kind = (
            rng.choice((1, 2, 8, 12, 24, 30, 99, 2**32 - 1))
            if gguf
            else rng.choice(("F16", "BF16", "I64", "I8", "BOOL", "F8_E4M3", "F8_E5M2", "F64", "C64", "F32", "X"))
        )
    elif kind == "missing":
        del tensors[name]
    elif kind == "name":
        tensors[
            rng.choice(("blk.7.attn_q.weight", "x", "", "blk.x.y", "model.layers.9.mlp.up_proj.weight", "output.weight", "lm_head.weight", name + ".x"))
        ] = tensors.pop(name)
    elif kind == "offset":
        tensor.shift = rng.choice((-32, 32, 4, 2**40, 2**63))
    else:
        value = rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0"))  # NaN, infinity, the largest, 0
        tensor.data = value * (len(tensor.data) // 4)
    return f"tensor {name} {kind} {tensor.shape} {tensor.kind}"


def _bytes(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    if not data or rng.random() < 0.3:
        end = rng.randrange(len(data) + 1)
        file.write_bytes(data[:end])
        return f"{file.name} ends at byte {end}"
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(min(len(data), 4096))] = rng.randrange(256)
    file.write_bytes(data)
    return f"bytes of {file.name} changed"


def described(seed: int, place: Path) -> str:
    """Describe in words what a seed makes."""
    return json.dumps(write(seed, place)[1])
