"""`lmc serve`: a model, and programs, under OpenAI's API."""

from __future__ import annotations

import gc
import math
import os
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmc import named, userfiles
from lmc.cli.console import say, text_of
from lmc.cli.errors import as_usage
from lmc.cli.models import engine_options, open_backend
from lmc.cli.options import Adapters, Deterministic, DraftModel, Drafts, KvDtype, ModelName, Quantization, Replicas, TensorParallel, unset
from lmc.config import config
from lmc.extras import require
from lmc.userfiles import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lmc.serve.keys import Key
    from lmc.serve.main import Tls
    from lmc.serve.workers import WorkerOptions


def serve(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False, help="Programs to publish, each under its name; also FILE.lmcp.")
    ] = None,
    backend: ModelName = None,
    tp: TensorParallel = None,
    dp: Replicas = None,
    adapter: Adapters = None,
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    deterministic: Deterministic = False,
    drafts: Drafts = None,
    draft_model: DraftModel = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on. All but loopback are open to the network: use --api-keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 takes a free one.")] = 8000,
    api_keys: Annotated[
        Path | None, unset("--api-keys", metavar="FILE", help="File with the keys that requests must have, one per line, as `lmc new-key` writes them.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", show_default="those of loopback, if it listens there", help="Value that the Host header may have; repeatable."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            show_default="none",
            help="Origin of pages that may make requests from a browser, such as https://app.example.org; repeatable.",
        ),
    ] = None,
    allow_remote_media: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-remote-media",
            metavar="HOST",
            show_default="none: data URLs only",
            help="Host (HOST or HOST:PORT) from which pictures in requests may be fetched; repeatable.",
        ),
    ] = None,
    audit_log: Annotated[Path | None, unset("--audit-log", metavar="FILE", help="Append a line for each request to this file.")] = None,
    tls_cert: Annotated[Path | None, unset("--tls-cert", metavar="PEM", help="Certificate; makes the server speak HTTPS.")] = None,
    tls_key: Annotated[Path | None, unset("--tls-key", metavar="PEM", help="Private key of the certificate.")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="MODEL", show_default="the backend's", help="Name of the model in requests; repeatable.")
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, metavar="N", help="Requests at a time; more are refused with 429.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Size of the largest request.")] = 8 << 20,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Length limit, in tokens, of chat answers whose request sets none.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time from a request to the end of its answer.")] = 600.0,
    ping_interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Silence after which a stream gets a sign of life.")] = 15.0,
    drain: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time that running requests get to finish when the server stops; then they end with a 503.")
    ] = 60.0,
    workers: Annotated[int, typer.Option(min=0, metavar="N", help="Processes that run programs, one request each; 0 runs them in the server's own.")] = 0,
    worker_memory: Annotated[int, typer.Option(min=1, metavar="MIB", help="Memory that a worker may use for its request.")] = 2048,
    worker_cpu: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", show_default="no limit", help="Processor time that a worker's request may take.")
    ] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Ignore unknown fields in requests, instead of refusing them.")] = False,
    journals: Annotated[
        Path | None,
        unset(
            "--journals",
            metavar="FOLDER",
            help="Keep runs that have an id (?run=ID) here: they may wait for a person (lmc.interrupt) and continue later; /runs shows them.",
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a new process when the engine fails or the process is killed.")] = False,
) -> None:
    """Serve a model under OpenAI's and Anthropic's APIs, and programs as endpoints. Ctrl-C and SIGTERM let running requests finish.

    POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, /programs/NAME, /programs/NAME/stream, /programs/NAME/batch;
    GET /v1/models, /health (/health/live, /health/ready), /metrics, /openapi.json.

    \b
    Examples:
      lmc serve
      lmc serve --backend path/to/model --port 8001 --api-keys keys.txt
      lmc serve --backend path/to/model --tp 2 --dp 2      (four GPUs)
      lmc serve --backend path/to/model --adapter sql=path/to/adapter      (requests say "model": "sql")
      lmc serve examples/judge.py:judge examples/classify.py:classify
      lmc serve examples/judge.py:judge --workers 8 --worker-memory 512
    """
    require("lmc serve", "serve")
    from lmc.serve import main, supervisor
    from lmc.serve.front import is_starting
    from lmc.serve.settings import ServerSettings

    programs = [userfiles.load_program(target) for target in targets or ()]
    if len(twice := {p.name for p in programs}) < len(programs):
        raise UsageError(f"two programs have one name (there are {', '.join(sorted(twice))}); publish them from two servers")
    for each in allow_remote_media or ():
        if set(each) & set("/@?#\\ ") or not each.strip("[]:"):
            raise UsageError(f"--allow-remote-media {each!r}: give a host, as in images.example.org or 10.0.0.7:8080; https and http are both allowed")
    for each in cors or ():
        if each != "*" and not re.fullmatch(r"[a-zA-Z][\w+.-]*://[^/?#\s]+", each):
            raise UsageError(f"--cors {each!r}: browsers send an origin as scheme://host or scheme://host:port, without a path, as in https://app.example.org")
    crew = _workers(targets or (), workers, worker_memory, worker_cpu)
    keys = _api_keys(api_keys)
    tls = _tls(tls_cert, tls_key, main.Tls)
    host = host.removeprefix("[").removesuffix("]")  # an IPv6 address as URLs have it
    hosts = main.loopback_names(host) if main.is_loopback(host) else frozenset[str]()
    names_of_host = hosts | {each.lower() for each in allow_host or ()}
    if not main.is_loopback(host) and not keys:
        say(f"warning: {host} can be reached from the network, and requests need no key; use --api-keys FILE")
    userfiles.check_folder(journals, "--journals")
    for option, seconds in (("--timeout", timeout), ("--ping-interval", ping_interval), ("--drain", drain)):
        if math.isnan(seconds):
            raise UsageError(f"{option} {seconds}: give a number of seconds")
    if not all(name or (".",)):
        raise UsageError("--name '': a model's name is a text that requests give as model")
    if journals is not None and journals.exists() and not journals.is_dir():
        raise UsageError(f"--journals {journals}: this is a file; name a folder")
    if journals is not None and not journals.exists():
        say(f"note: there is no folder {journals} yet; the first run with an id makes it")
    model = backend or config().model or "smollm2"
    engine = engine_options(
        model, tp=tp, dp=dp, adapter=adapter, drafts=drafts, draft_model=draft_model, quantization=quantization, kv_dtype=kv_dtype, deterministic=deterministic
    )
    names = tuple(name) if name else (named.public(model),)
    if both := sorted(set(names).intersection(engine.get("adapters", ()))):
        raise UsageError(f"the model and an adapter are both called {both[0]}; give the model another name by --name")
    where = supervisor.inherited()
    if where is None:
        with as_usage():
            where = main.listen(host, port)
        if restart:
            with closing(where):
                raise typer.Exit(supervisor.supervise(["-m", "lmc", *sys.argv[1:]], where, say))
    settings = ServerSettings(
        names,
        keys,
        names_of_host or None,
        tuple(cors or ()),
        audit_log,
        max_requests=max_requests,
        max_body=max_body,
        max_tokens=max_tokens,
        timeout=timeout,
        ping_interval=ping_interval,
        lenient=lenient,
        journals=journals,
        media_hosts=frozenset(map(str.lower, allow_remote_media or ())),
    )
    with closing(where), as_usage():
        broken = main.serve(
            lambda: open_backend(model, engine=engine), settings, programs, where, drain=drain, until_broken=restart, tls=tls, workers=crew,
            ready=lambda url: say(f"serving {names[0]} at {url}\npages for a browser: {url}/ (what it does), {url}/docs (its API)"),
        )  # fmt: skip
    if broken is not None:
        say(f"the engine has failed and will not answer again: {broken.reason}")
        os._exit(supervisor.BROKEN)  # at once: it may be in native code that does not end
    if is_starting():  # Python would end its thread where it returns from native code: what loads models in C++ then aborts the process
        os._exit(0)
    gc.freeze()  # Python looks at every object once more when it ends, which took ten seconds behind batches of thousands


def _api_keys(path: Path | None) -> Collection[Key]:
    if path is None:
        return ()
    from lmc.serve.keys import parse

    text = text_of(path)
    with as_usage():
        keys = parse(text, str(path))
    if not keys:
        raise UsageError(f"{path} holds no key: one per line is expected")
    if any(key.name.startswith("line ") for key in keys):
        say(f"warning: {path} has keys in plain text; lmc new-key NAME makes keys of which the file holds only the digest")
    return keys


def _workers(targets: Sequence[str], count: int, memory: int, cpu: int | None) -> WorkerOptions | None:
    from lmc.serve.workers import WorkerOptions

    if not count:
        return None
    if not targets:
        raise UsageError("--workers is for programs, and none is named; write lmc serve FILE.py:FUNCTION --workers N")
    made = WorkerOptions(tuple(targets), count, memory << 20, cpu)
    if not made.possible:
        raise UsageError("--workers needs a system with process groups (Linux, macOS); leave it out, and programs run in the server's process")
    return made


def _tls(certificate: Path | None, key: Path | None, kind: type[Tls]) -> Tls | None:
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    if certificate is None or key is None:
        return None
    made = kind(certificate, key)
    with as_usage():
        made.check()
    return made


def new_key(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Name of the key's owner, one word.")],
    requests: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests per minute.", show_default="no limit")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens per minute.", show_default="no limit")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests at a time.", show_default="no limit")] = None,
    program: Annotated[
        list[str] | None, typer.Option("--program", metavar="NAME", help="Program that the key may run; repeatable.", show_default="all")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Share of the model where keys compete for it: 2 gets twice what 1 gets.", show_default="1")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="File to append the line to.", show_default="standard output")] = None,
) -> None:
    """Make a key for `lmc serve --api-keys`. The key is shown once, on standard error; the file gets its digest.

    \b
    Example:
      lmc new-key alice --requests 60 --file keys.txt
    """
    require("lmc new-key", "serve")
    from lmc.serve.keys import Key, KeyLimits, line_of
    from lmc.serve.keys import new_key as made

    if not name or len(name.split()) != 1 or name.startswith("#"):
        raise UsageError(f"the name {name!r} is not one word")
    userfiles.check_folder(file, "--file")
    key = made()
    line = line_of(Key.of(key, name, KeyLimits(requests, tokens, concurrency, None if program is None else frozenset(program), priority))) + "\n"
    if file is None:
        sys.stdout.write(line)
    else:
        try:
            unended = file.is_file() and file.read_bytes()[-1:] not in (b"", b"\n")
            with file.open("a", encoding="utf-8") as opened:
                opened.write("\n" + line if unended else line)
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from None
    say(f"the key of {name}, shown only this once: {key}")
