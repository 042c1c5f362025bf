"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False,
                                       help="The program; :FUNCTION may be left out when the file has one. Or FILE.lmcp, a saved program.")]
Arguments = Annotated[list[str] | None, typer.Option(
    "--arg", "-a", metavar="NAME=VALUE", show_default=False,
    help="An argument of the program; repeatable. Text, or JSON where the parameter is declared as int, list, …")]
BACKENDS = ("smollm2 (the small model), mock (no model: made-up answers), the path of a model folder or GGUF file, a hub id, "
            "openai:MODEL[@URL], anthropic:MODEL[@URL], litellm:MODEL[@URL], vllm:URL or sglang:URL.")
BackendName = Annotated[str, typer.Option("--backend", "-b", metavar="NAME", help=BACKENDS)]
ModelName = Annotated[str | None, typer.Option("--backend", "-b", metavar="NAME", show_default="LMC_MODEL, else smollm2", help=BACKENDS)]
TensorParallel = Annotated[int | None, typer.Option("--tp", min=1, max=64, metavar="N", show_default="LMC_TP, else 1",
                                                    help="Spread a model of --backend over N GPUs (docs/several-gpus.md).")]
Replicas = Annotated[int | None, typer.Option("--dp", min=1, max=64, metavar="N", show_default="LMC_DP, else 1",
                                              help="N engines of that model, each on --tp GPUs, behind one.")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits whatever runs beside a request; slower, on a CPU (docs/determinism.md). Or LMC_DETERMINISTIC=1.")]
Drafts = Annotated[str | None, typer.Option("--drafts", metavar="auto|off|N", show_default="LMC_DRAFTS, else auto with a draft model, else off",
                                            help="Tokens that a model of --backend drafts (docs/drafts.md).")]
DraftModel = Annotated[str | None, typer.Option("--draft-model", metavar="NAME", show_default="LMC_DRAFT_MODEL, else none",
                                                help="A smaller model of the same vocabulary that guesses drafts.")]
Adapters = Annotated[list[str] | None, typer.Option("--adapter", metavar="NAME=PATH", show_default="LMC_ADAPTERS, else none",
                                                    help="A LoRA adapter of a model of --backend, in PEFT's format; repeatable (docs/adapters.md).")]
InputFile = Annotated[Path | None, typer.Option("--input", "-i", metavar="FILE", show_default=False,
                                                help="Items: JSONL, one object of arguments per line, or CSV (.csv, .tsv) with a header; - for standard input.")]
NoLoc = Annotated[bool, typer.Option("--no-loc", help="Leave the places in the source out.")]
Temperature = Annotated[float | None, typer.Option(min=0, show_default=False, help="Default of every gen; 0 takes the likeliest token.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, show_default=False, help="Default length limit of every gen, in tokens.")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False,
                                                 help="Where to write; standard output if not given.")]


class Format(StrEnum):
    """How a graph is shown."""

    text = "text"
    dot = "dot"
    html = "html"
    json = "json"
