"""Times the recorded programs of bench_drafts on vLLM or SGLang, with their drafts by n-grams and as many tokens accepted as lmc's.

    python -m benchmarks.bench_drafts --model DIR --load-format dummy --device cuda --items 2 --json lmc.json
    python -m benchmarks.bench_draft_peers vllm --model DIR                                    # without drafts
    python -m benchmarks.bench_draft_peers vllm --model DIR --drafts 39 --targets lmc.json     # edits need long ones
    python -m benchmarks.bench_draft_peers vllm --model DIR --drafts 5 --targets lmc.json --shapes chat,react,tree,json
    python -m benchmarks.bench_draft_peers sglang --model DIR --drafts 40 --targets lmc.json   # counts the token before the drafts, too

Prompts, and the lengths of answers, are those of recorded.py; a prompt goes on with the tokens that the engine itself sampled. Weights are random, so
acceptance is simulated, by the engines' own means (vLLM's synthetic rejection sampling, SGLang's simulated length): for each shape the length is looked
for with which it takes as many passes as lmc did (`--targets`). Where vLLM's search finds no n-gram, the draft is filled with tokens of the prompt.
Needs vllm 0.26.0 or sglang 0.5.15 beside lmc on a GPU, and of the model's folder config.json and tokenizer.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import mmap
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bench_programs import where
from benchmarks.recorded import SHAPES, Recorded, recorded

# -- the programs' requests ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A gen of a recorded program. Its prompt is that of request `onto`, and its answer, then `text`; it is made after the requests `after`, whose answers
    the prompt contains."""

    name: str
    prompt: str
    answer: str
    text: str
    onto: int | None
    after: tuple[int, ...]


def requests(shape: Recorded, item: Mapping[str, Any]) -> list[Request]:
    """Return what a run asks; the last one's answer ends it."""
    said = shape.said(item)
    assert (said[-1][0], said[-1][2]) == tuple(item["answers"][-1])
    found: list[Request] = []
    for name, prompt, answer in said:
        before = [i for i, r in enumerate(found) if prompt.startswith(r.prompt + r.answer)]
        onto = max(before, key=lambda i: len(found[i].prompt), default=None)
        text = prompt if onto is None else prompt[len(found[onto].prompt + found[onto].answer) :]
        after = {*before, *(i for i, r in enumerate(found) if r.answer in text)}
        found.append(Request(name, prompt, answer, text, onto, tuple(sorted(after))))
    return found


class Peer(Protocol):
    """An engine that is measured."""

    def tokens(self, text: str) -> list[int]: ...
    async def generate(self, ids: list[int], count: int) -> list[int]:
        """Return `count` tokens; if it is cancelled, so is the request."""
        ...

    async def flush(self) -> None: ...
    async def passes(self) -> int: ...

    async def accept(self, length: float) -> None:
        """Simulate so many tokens a pass, the sampled one included."""
        ...


async def run_item(peer: Peer, asked: Sequence[Request]) -> None:
    """Make the requests, each when those before it are answered, until the last is; what nobody reads is then cancelled, as lmc does."""
    done: list[asyncio.Task[list[int]]] = []

    async def one(request: Request) -> list[int]:
        for i in request.after:
            await asyncio.shield(done[i])
        ids = ([] if request.onto is None else await asyncio.shield(done[request.onto])) + peer.tokens(request.text)
        count = len(peer.tokens(request.answer))
        return ids + (await peer.generate(ids, count + 1))[:count]  # the end is sampled, too

    for request in asked:
        done.append(asyncio.create_task(one(request)))
    await done[-1]
    for task in done:
        task.cancel()
    await asyncio.gather(*done, return_exceptions=True)


@dataclass(frozen=True)
class Target:
    """What lmc did: tokens and passes of a shape's items."""

    tokens: int
    passes: int


@dataclass(frozen=True)
class Row:
    shape: str
    items: int
    passes: int
    seconds: tuple[float, ...]
    length: float | None
    target: Target | None


async def timed(peer: Peer, items: Sequence[Sequence[Request]]) -> tuple[float, int]:
    """Return seconds and passes of the items, one after another, on an empty cache."""
    await peer.flush()
    before, began = await peer.passes(), time.perf_counter()
    for asked in items:
        await run_item(peer, asked)
    return time.perf_counter() - began, await peer.passes() - before


_CLOSE = 0.02  # of the passes that are wanted


async def calibrated(peer: Peer, items: Sequence[Sequence[Request]], target: Target, most: int, tries: int) -> float:
    """Return the accepted length with which the items take as many passes as the target's; the one that came closest."""
    low, high, length = 1.0, float(most), min(max(target.tokens / target.passes, 1.0), float(most))
    found: list[tuple[float, float]] = []
    for _ in range(tries):
        await peer.accept(length)
        _, passes = await timed(peer, items)
        found.append((abs(passes - target.passes) / target.passes, length))
        if found[-1][0] <= _CLOSE or high - low < _CLOSE:
            break
        low, high = (length, high) if passes > target.passes else (low, length)
        guess = length * passes / target.passes
        length = guess if low < guess < high else (low + high) / 2
    return min(found)[1]


async def bench(peer: Peer, shape: Recorded, drafts: int, target: Target | None, reps: int, tries: int) -> Row:
    items = [requests(shape, item) for item in shape.items]
    if drafts:
        await peer.accept(1.0)
    await timed(peer, items)  # warm
    length = None
    if drafts and target is not None:
        length = await calibrated(peer, items, target, drafts + 1, tries)
        await peer.accept(length)
    runs = [await timed(peer, items) for _ in range(reps)]
    return Row(shape.name, len(items), runs[-1][1], tuple(seconds for seconds, _ in runs), length, target)


def line(row: Row) -> str:
    length, wanted = "" if row.length is None else f"{row.length:.2f}", "" if row.target is None else row.target.passes
    runs = ", ".join(f"{seconds:.3f}" for seconds in row.seconds)
    return f"| {row.shape} | {row.items} | {wanted} | {row.passes} | {length} | {statistics.median(row.seconds):.3f} | {runs} |"


# -- vLLM ------------------------------------------------------------------------------------------------------------


class VllmWorker:
    """What is counted and set in vLLM's worker (its `worker_extension_cls`)."""

    model_runner: Any

    def peer_install(self, fill: bool) -> None:
        runner, self.peer_counted = self.model_runner, 0
        execute = runner.execute_model

        def counting(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self.peer_counted += scheduled.total_num_scheduled_tokens > 0
            return execute(scheduled, *args, **kwargs)

        runner.execute_model = counting
        if fill:
            propose = runner.drafter.propose

            def filled(wanted: int, sampled: Any, lengths: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
                found = propose(wanted, sampled, lengths, ids, *args, **kwargs)
                return [own + ids[i, : wanted - len(own)].tolist() if len(sampled[i]) else own for i, own in enumerate(found)]

            runner.drafter.propose = filled

    def peer_passes(self) -> int:
        return self.peer_counted

    def peer_rates(self, rates: Sequence[float]) -> None:
        import torch
        from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates  # pyright: ignore[reportMissingImports]

        held = self.model_runner.rejection_sampler.synthetic_conditional_rates
        held.copy_(torch.tensor(unconditional_to_conditional_rates(rates), dtype=held.dtype))


def rates(length: float, drafts: int) -> list[float]:
    """Return how likely each token of a draft is accepted, so that a pass gives `length` tokens with the least variance."""
    more = min(max(length - 1, 0.0), float(drafts))
    return ([1.0] * int(more) + [more - int(more)] + [0.0] * drafts)[:drafts]


class Vllm:
    def __init__(self, options: argparse.Namespace) -> None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

        self.drafts, self.tokens, self._ids = options.drafts, tokenizer(options.model), itertools.count()
        self._params = lambda count: SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
        given: dict[str, Any] = {
            "model": options.model, "load_format": "dummy", "dtype": "bfloat16", "max_model_len": 8192, "seed": 0, "max_num_batched_tokens": 16384,
            "max_num_seqs": 256 if options.drafts else 1024, "enable_prefix_caching": True, "disable_log_stats": True,
            "worker_extension_cls": "benchmarks.bench_draft_peers.VllmWorker",
        }  # fmt: skip
        if options.fp8:
            given |= {"quantization": "fp8", "kv_cache_dtype": "fp8"}
        if options.drafts:
            given["speculative_config"] = {
                "method": "ngram", "num_speculative_tokens": options.drafts, "prompt_lookup_min": 1, "prompt_lookup_max": 4,
                "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0,
            }  # fmt: skip
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**given))

    async def start(self) -> None:
        await self._engine.collective_rpc("peer_install", args=(self.drafts > 0,))

    async def generate(self, ids: list[int], count: int) -> list[int]:
        outputs = [output async for output in self._engine.generate({"prompt_token_ids": ids}, self._params(count), str(next(self._ids)))]
        return list(outputs[-1].outputs[0].token_ids)

    async def flush(self) -> None:
        while not await self._engine.reset_prefix_cache():  # cancelled requests are held a little longer
            await asyncio.sleep(0.01)

    async def passes(self) -> int:
        return (await self._engine.collective_rpc("peer_passes"))[0]

    async def accept(self, length: float) -> None:
        await self._engine.collective_rpc("peer_rates", args=(rates(length, self.drafts),))

    def run(self, main: Any) -> None:
        asyncio.run(main)

    def close(self) -> None:
        self._engine.shutdown()


# -- SGLang ----------------------------------------------------------------------------------------------------------

_BOARD = "LMC_BENCH_DRAFT_PEERS_BOARD"
_FORM = "<dq"  # accepted length, which the scheduler's process reads; passes, which it counts


def _board() -> mmap.mmap:
    with open(os.environ[_BOARD], "r+b") as file:
        return mmap.mmap(file.fileno(), struct.calcsize(_FORM))


def sglang_scheduler(*args: Any, **kwargs: Any) -> Any:
    """The main function of the scheduler's process."""
    from sglang.srt.managers import scheduler, tp_worker  # pyright: ignore[reportMissingImports]
    from sglang.srt.speculative import spec_utils  # pyright: ignore[reportMissingImports]

    board, forward = _board(), tp_worker.TpModelWorker.forward_batch_generation

    def counting(self: Any, *given: Any, **named: Any) -> Any:
        length, passes = struct.unpack_from(_FORM, board)
        struct.pack_into(_FORM, board, 0, length, passes + 1)
        spec_utils.SIMULATE_ACC_LEN = length if length > 0 else -1  # SGLANG_SIMULATE_ACC_LEN, while it runs
        return forward(self, *given, **named)

    tp_worker.TpModelWorker.forward_batch_generation = counting
    return scheduler.run_scheduler_process(*args, **kwargs)


class Sglang:
    def __init__(self, options: argparse.Namespace) -> None:
        handle, os.environ[_BOARD] = tempfile.mkstemp()
        os.write(handle, struct.pack(_FORM, 1.0 if options.drafts else 0.0, 0))
        os.close(handle)
        self._shared, self.tokens, self._ids = _board(), tokenizer(options.model), itertools.count()
        from sglang.srt.entrypoints.engine import Engine  # pyright: ignore[reportMissingImports]

        class Counting(Engine):
            run_scheduler_process_func = staticmethod(sglang_scheduler)

        given: dict[str, Any] = {
            "model_path": options.model, "load_format": "dummy", "dtype": "bfloat16", "context_length": 8192, "random_seed": 0, "log_level": "warning",
            "attention_backend": "flashinfer", "sampling_backend": "flashinfer", "mem_fraction_static": 0.85,
        }  # fmt: skip
        if options.fp8:
            given |= {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}
        if options.drafts:
            given |= {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": options.drafts, "max_running_requests": 48}
        self._engine = Counting(**given)

    async def start(self) -> None:
        pass

    async def generate(self, ids: list[int], count: int) -> list[int]:
        rid = f"peer-{next(self._ids):08d}"
        try:
            params = {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True}
            return list((await self._engine.async_generate(input_ids=ids, sampling_params=params, rid=rid))["output_ids"])
        except asyncio.CancelledError:
            self._engine.tokenizer_manager.abort_request(rid)
            raise

    async def flush(self) -> None:
        while not getattr(await self._engine.tokenizer_manager.flush_cache(), "success", True):
            await asyncio.sleep(0.02)

    async def passes(self) -> int:
        return struct.unpack_from(_FORM, self._shared)[1]

    async def accept(self, length: float) -> None:
        struct.pack_into("<d", self._shared, 0, length)

    def run(self, main: Any) -> None:
        self._engine.loop.run_until_complete(main)

    def close(self) -> None:
        self._engine.shutdown()
        os.unlink(os.environ.pop(_BOARD))


# -- the command -----------------------------------------------------------------------------------------------------


def tokenizer(model: str) -> Any:
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    return lambda text: words.encode(text, add_special_tokens=False).ids


def targets(file: Path | None) -> dict[str, Target]:
    """Return what bench_drafts wrote by `--json`, by shape."""
    return {} if file is None else {row["shape"]: Target(row["tokens"], row["passes"]) for row in json.loads(file.read_text())["rows"]}


PEERS = {"vllm": Vllm, "sglang": Sglang}


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=tuple(PEERS))
    parser.add_argument("--model", required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--fp8", action="store_true", help="weights and KV")
    parser.add_argument("--drafts", type=int, default=0, help="tokens of a draft (default: none)")
    parser.add_argument("--targets", type=Path, help="what bench_drafts wrote with --json, for the same items")
    parser.add_argument("--tries", type=int, default=6, help="runs to find the length, at most")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--items", type=int, default=2, help="of each shape")
    parser.add_argument("--reps", type=int, default=2)
    options = parser.parse_args(argv)
    if options.drafts and options.targets is None:
        parser.error("--drafts needs --targets: on random weights no draft is right by itself")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    wanted = targets(options.targets)

    async def every(peer: Any) -> None:
        await peer.start()
        print("| shape | items | passes of lmc | passes | length | s | each |\n" + "|---" * 7 + "|", flush=True)
        for shape in recorded(options.shapes.split(",")):
            some = Recorded(shape.name, shape.program, shape.items[: options.items])
            print(line(await bench(peer, some, options.drafts, wanted.get(shape.name), options.reps, options.tries)), flush=True)

    shown = {name: str(getattr(options, name)) for name in ("peer", "model", "fp8", "drafts", "items", "reps")}
    print("  ".join(f"{k}: {v}" for k, v in {**where(), **shown}.items()), flush=True)
    with contextlib.closing(PEERS[options.peer](options)) as peer:
        peer.run(every(peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
