"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


def unset(*names: str, metavar: str, help: str, **more: Any) -> Any:
    """Describe an option without a default."""
    return typer.Option(*names, metavar=metavar, show_default=False, help=help, **more)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in words:
            raise typer.BadParameter(f"{value!r} must be {' or '.join(words)}")
        return value

    return read


def _drafts(value: str) -> int | str:
    if value not in ("auto", "off") and not (value.isdecimal() and 1 <= int(value) <= 64):
        raise typer.BadParameter(f"{value!r} must be auto, off or a number of tokens from 1 to 64")
    return int(value) if value.isdecimal() else value


Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:FUNCTION", show_default=False, help="The program; :FUNCTION may be left out if the file has only one. Or FILE.lmcp, a saved program."
    ),
]
Arguments = Annotated[
    list[str] | None,
    unset("--arg", "-a", metavar="NAME=VALUE", help="An argument of the program; repeatable. Text, or JSON if the parameter is annotated as int, list, …"),
]
BACKENDS = (
    "smollm2 (the small model), mock (no model: made-up answers), the path of a model folder or GGUF file, a hub id, "
    "openai:MODEL[@URL], anthropic:MODEL[@URL], litellm:MODEL[@URL], vertexai:MODEL, vllm:URL or sglang:URL."
)
_BEGINNINGS = ("smollm2", "mock", "openai:", "anthropic:", "litellm:", "vertexai:", "vllm:", "sglang:")


def _backends(incomplete: str) -> list[str]:
    """Complete a backend's name in a shell; without any, it completes files."""
    return [name for name in _BEGINNINGS if name.startswith(incomplete)]


BackendName = Annotated[str, typer.Option("--backend", "-b", metavar="NAME", help=BACKENDS, autocompletion=_backends)]
ModelName = Annotated[
    str | None, typer.Option("--backend", "-b", metavar="NAME", show_default="LMC_MODEL, else smollm2", help=BACKENDS, autocompletion=_backends)
]
TensorParallel = Annotated[
    int | None, typer.Option("--tp", min=1, max=64, metavar="N", show_default="1", help="Spread the model over N GPUs (docs/several-gpus.md).")
]
Replicas = Annotated[int | None, typer.Option("--dp", min=1, max=64, metavar="N", show_default="1", help="Run N copies of the model, each on --tp GPUs.")]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        metavar="fp8|int4",
        parser=_one_of("fp8", "int4"),
        show_default="as they are",
        help="Keep the model's matrices in FP8 on a GPU, or in 4 bits on a CPU (docs/performance.md).",
    ),
]
KvDtype = Annotated[
    str | None, typer.Option("--kv-dtype", metavar="fp8", parser=_one_of("fp8"), show_default="as activations", help="Keep KV in FP8 (docs/performance.md).")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Give the same bits whatever runs beside a request; slower (docs/determinism.md).",
    ),
]
Drafts = Annotated[
    str | None,
    typer.Option(
        "--drafts",
        metavar="auto|off|N",
        parser=_drafts,
        show_default="auto with a draft model, else off",
        help="Tokens that the model drafts (docs/drafts.md).",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option("--draft-model", metavar="NAME", show_default="none", help="Smaller model of the same vocabulary that guesses drafts."),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=PATH",
        show_default="none",
        help="LoRA adapter of the model, in PEFT's format; repeatable (docs/adapters.md).",
    ),
]
InputFile = Annotated[
    Path | None,
    unset(
        "--input",
        "-i",
        metavar="FILE",
        help="Items to run: JSONL with one object of arguments per line, or CSV (.csv, .tsv) with a header; - for standard input.",
    ),
]
NoLoc = Annotated[bool, typer.Option("--no-loc", help="Leave out places in the source.")]
Temperature = Annotated[float | None, unset(min=0, metavar="T", help="Temperature of every gen that sets none; 0 takes the likeliest token.")]
MaxTokens = Annotated[int | None, unset(min=1, metavar="N", help="Length limit, in tokens, of every gen that sets none.")]


def _file(name: str) -> Path | None:
    return None if name == "-" else Path(name)


OutputFile = Annotated[Path | None, unset("--output", "-o", metavar="FILE", parser=_file, help="File to write to; - for standard output, the default.")]


class Format(StrEnum):
    """Output format of a graph."""

    text = "text"
    dot = "dot"
    html = "html"
    json = "json"
