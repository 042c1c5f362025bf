"""Times programs on pictures on an engine of a named shape with random weights, beside transformers' own `generate` and SGLang.

    python -m benchmarks.bench_pictures --shape llava-1.5-7b --device cuda --beside 16      # 64 pictures × 6 questions by fork
    python -m benchmarks.bench_pictures --shape smolvlm-256m                                # on a CPU: one picture, whole and in tiles
    python -m benchmarks.bench_pictures --shape tiny --n 8 --beside 2                       # seconds, to try it
    python -m benchmarks.bench_pictures --shape llava-1.5-7b --device cuda --video 8 --beside 16    # videos instead, 8 frames of each
    python -m benchmarks.bench_pictures --shape llava-1.5-7b --write DIR                    # what a server of SGLang's needs; prints its command
    python -m benchmarks.bench_pictures --shape llava-1.5-7b --sglang URL                   # the same programs on it, by lmc and by SGLang's frontend

The shape's configuration, tokenizer (letters, and words without a meaning) and processor are made here by transformers' classes, and no
weights are read: speeds of a model do not depend on what it has learned. Both sides get the same prompts, greedily, with answers of
fixed length; transformers in batches, each prompt with its picture, as it has neither forks nor a cache over prompts. Equal tokens are
a matter of the tests (tests/backend/engine/test_vision.py and test_watching.py), where weights are.

With `--video` the shape is that of LLaVA-NeXT-Video: the same tower and decoder, a quarter of the tokens for each frame. Both sides decode with PyAV.

Each run on an engine is broken down (breakdown.py): what its device ran and when it had nothing to do, what the engine's thread and its callers
did meanwhile; `--json` has every pass.

SGLang (0.5.15) serves LLaVA-1.5 with CLIP by its class for the format of LLaVA's authors only, and makes the tower where it reads weights:
what `--write` makes is that format's config.json, and a package with the same class that makes its tower beforehand, so that
`--load-format dummy` fills it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import lmc
from benchmarks.bench_programs import where
from benchmarks.breakdown import Breakdown, broken_down
from benchmarks.workloads import QUESTIONS, Item, Size, Workload, pictures, videos
from lmc import segments
from lmc.backend.engine.models.frames import evenly
from lmc.videos import Film

LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
SMOLVLM_TEMPLATE = (
    "<s>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SPECIALS = ["<unk>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)), "<video>"]  # fmt: skip
IMAGE, VIDEO = SPECIALS.index("<image>"), SPECIALS.index("<video>")
ENDS = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True)
class Measured:
    """`pictures` and `programs` per second, a program being one picture with all its questions."""

    who: str
    programs: int
    seconds: float
    programs_per_s: float
    answers_per_s: float
    images_per_s: float  # pictures that programs have, not that a tower looked at; of videos, frames
    tower_runs: int | None = None
    tower_s: float | None = None
    optimality: float | None = None  # image and text tokens that had to be computed, by those that were
    parts: Breakdown | None = None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(replace(self, parts=None)), "parts": self.parts and self.parts.as_json()}


# -- shapes ------------------------------------------------------------------------------------------------------------


def _clip(config: dict[str, Any], size: int) -> tuple[Any, Any]:
    from transformers import CLIPVisionConfig
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPVisionConfig(**config, image_size=size, patch_size=14), CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}
    )


def _llava(vision: dict[str, Any], size: int, text: dict[str, Any]) -> tuple[Any, Any, str]:
    from transformers import LlamaConfig, LlavaConfig

    tower, processor = _clip(vision, size)
    config = LlavaConfig(vision_config=tower, text_config=LlamaConfig(**text, **ENDS), image_token_id=IMAGE, image_seq_length=(size // 14) ** 2,
                         vision_feature_select_strategy="default", vision_feature_layer=-2, **ENDS)  # fmt: skip
    return config, processor, LLAVA_TEMPLATE


def llava_7b() -> tuple[Any, Any, str]:
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768}
    return _llava(vision, 336, {"vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                                "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096})  # fmt: skip


def tiny() -> tuple[Any, Any, str]:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    return _llava(vision, 56, {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3,
                               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048})  # fmt: skip


def smolvlm_256m() -> tuple[Any, Any, str]:
    from transformers import SmolVLMConfig
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    text = {"model_type": "llama", "vocab_size": 49280, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "max_position_embeddings": 8192, "rope_theta": 100_000.0, **ENDS}  # fmt: skip
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 512, "patch_size": 16}
    config = SmolVLMConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, scale_factor=4, tie_word_embeddings=False, **ENDS)
    return config, SmolVLMImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}), SMOLVLM_TEMPLATE


def filming(config: Any, processor: Any, template: str) -> tuple[Any, Any, str]:
    """A shape of LLaVA-1.5's as LLaVA-NeXT-Video's."""
    from transformers import LlavaNextVideoConfig
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    side = config.vision_config.image_size
    grid = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    of_video = LlavaNextVideoConfig(vision_config=config.vision_config, text_config=config.text_config, image_token_id=IMAGE, video_token_id=VIDEO,
        image_grid_pinpoints=grid,
                                    image_seq_length=config.image_seq_length, vision_feature_select_strategy="default", vision_feature_layer=-2,
                                    **ENDS)  # fmt: skip
    return of_video, LlavaNextImageProcessorPil(size={"shortest_edge": side}, crop_size=processor.crop_size, image_grid_pinpoints=grid), template


SHAPES = {"llava-1.5-7b": llava_7b, "smolvlm-256m": smolvlm_256m, "tiny": tiny}


def folder(shape: str, path: Path, *, video: bool = False) -> Path:
    """A directory with all that a model of this shape has, but its weights."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    config, processor, template = filming(*SHAPES[shape]()) if video else SHAPES[shape]()
    size = config.get_text_config().vocab_size
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIALS, *letters, *(chr(0x20000 + i) for i in range(max(0, size - len(SPECIALS) - len(letters))))]
    raw = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words[:size])}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    config.save_pretrained(path)
    processor.save_pretrained(path)
    if video:
        side = config.vision_config.image_size
        (path / "video_preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}))
    raw.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    (path / "chat_template.jinja").write_text(template)
    return path


WITH_TOWER = '''"""SGLang's class for LLaVA, whose tower it makes only while it reads weights, with one for random weights."""

from sglang.srt.models import llava
from transformers import CLIPVisionModel


class LlavaLlamaForCausalLM(llava.LlavaLlamaForCausalLM):
    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__(config, quant_config, prefix)
        self.vision_tower = CLIPVisionModel(config.vision_config).eval()
        self.load_weights(())  # reads the settings of mm_*


EntryClass = LlavaLlamaForCausalLM
'''


def for_sglang(shape: str, path: Path) -> str:
    """A directory with what SGLang's server needs for a LLaVA shape, and the command that starts it."""
    config = folder(shape, path / "llava").joinpath("config.json")
    hf = json.loads(config.read_text())
    text, vision = hf["text_config"], hf["vision_config"]
    own = {"architectures": ["LlavaLlamaForCausalLM"], "hidden_size": text["hidden_size"], "mm_hidden_size": vision["hidden_size"],
           "mm_vision_tower": "of vision_config", "mm_vision_select_layer": -2, "mm_vision_select_feature": "patch", "mm_patch_merge_type": "flat",
           "image_aspect_ratio": "pad", "torch_dtype": "float16"}  # fmt: skip
    config.write_text(json.dumps({**text, **hf, **own}, indent=1))
    package = path / "with_tower"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "llava.py").write_text(WITH_TOWER)
    return (f"REQUEST_TIMEOUT=120 PYTHONPATH={path.resolve()}:$PYTHONPATH SGLANG_EXTERNAL_MODEL_PACKAGE=with_tower python3 -m sglang.launch_server "
            f"--model-path {config.parent.resolve()} "
            "--load-format dummy --attention-backend flashinfer --sampling-backend flashinfer")  # fmt: skip


# -- the sides ---------------------------------------------------------------------------------------------------------


def on_engine(engine: lmc.Engine, workload: Workload, items: list[dict[str, Any]], frames: int, reps: int) -> list[Measured]:
    program = lmc.compile(workload.program, backend=engine)
    program.batch(workload.items(2, -1), temperature=0)  # compiles kernels, captures graphs
    rows = []
    for _ in range(reps):
        engine.flush_cache()
        before = engine.counters()
        with broken_down(engine) as found:
            for state in program.batch(items, temperature=0):
                state.sync()
            parts, spent = found(), engine.counters() - before
        rows.append(Measured("lmc.Engine", len(items), parts.seconds, len(items) / parts.seconds, len(items) * len(QUESTIONS) / parts.seconds,
            frames * len(items) / parts.seconds,
                             spent.images - spent.image_hits, spent.tower_seconds, spent.prefill_optimality, parts))  # fmt: skip
    return rows


def on_transformers(path: Path, device: str, items: list[dict[str, Any]], size: Size, frames: int, batch: int) -> Measured:
    """The same prompts by transformers' `generate`, in batches of `batch`."""
    from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = AutoConfig.from_pretrained(path)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype).eval()
    side = config.vision_config.image_size
    processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), padding_side="left", pad_token="<unk>", bos_token="<s>")
    seen = (
        "<video>" * (frames * config.image_seq_length // config.spatial_pool_stride**2)
        if hasattr(config, "video_token_id")
        else "<image>" * config.image_seq_length
    )
    prompts = [(item, f"<s>USER: {seen}\n{item['caption']}\n{question} ASSISTANT:") for item in items for question in QUESTIONS]
    length = size.tokens(64)

    def answer(some: Sequence[tuple[dict[str, Any], str]]) -> None:
        shown = [_shown(item, frames) for item, _ in some]
        pixels = processor(images=[frame for each in shown for frame in each], return_tensors="pt")["pixel_values"].to(device, dtype)
        media = {"pixel_values": pixels} if "picture" in some[0][0] else {"pixel_values_videos": pixels.unflatten(0, (len(some), frames))}
        given = tokenizer([prompt for _, prompt in some], padding=True, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False).to(device)
        with torch.inference_mode():
            out = model.generate(**given, **media, max_new_tokens=length, min_new_tokens=length, do_sample=False)
        assert out.shape[1] == given["input_ids"].shape[1] + length

    answer(prompts[:2])
    start = time.perf_counter()
    for at in range(0, len(prompts), batch):
        answer(prompts[at : at + batch])
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return Measured(
        f"transformers, batches of {batch}", len(items), seconds, len(items) / seconds, len(prompts) / seconds, frames * len(items) / seconds, len(prompts)
    )


def _shown(item: dict[str, Any], frames: int) -> list[Any]:
    """An item's picture, or the frames of its video that an engine shows."""
    from PIL import Image

    if "picture" in item:
        return [Image.open(io.BytesIO(item["picture"])).convert("RGB")]
    found = Film(segments.Image(item["film"], segments.Frames(frames)))
    return list(found.at(evenly(found, segments.Frames(frames), frames)))


def prompts_of(item: Item) -> tuple[str, list[str]]:
    """The requests of the programs on one picture: their common beginning, and what each appends."""
    return f"USER: <image>\n{item['caption']}", [f"\n{question} ASSISTANT:" for question in QUESTIONS]


def needed(items: Sequence[Item], image_tokens: int) -> int:
    """Prompt tokens that differ: a letter is a token, and each prompt begins with <s>."""
    begun = [prompts_of(item) for item in items]
    return sum(1 + len(start) - len("<image>") + image_tokens + sum(map(len, ends)) for start, ends in begun)


def on_sglang(url: str, items: list[Item], size: Size, reps: int, image_tokens: int) -> list[Measured]:
    """The programs compiled on a server of SGLang's."""
    rows = []
    with tempfile.TemporaryDirectory() as made, closing(lmc.SGLang(url, tokenizer=str(folder("tiny", Path(made))), image_token="<image>\n")) as backend:
        workload = pictures(size)
        program = lmc.compile(workload.program, backend=backend)
        program.batch(workload.items(2, -1), temperature=0)
        for _ in range(reps):
            _flush(backend.flush_cache)
            before, start = backend.counters(), time.perf_counter()
            for state in program.batch(items, temperature=0):
                state.sync()
            seconds, spent = time.perf_counter() - start, backend.counters() - before
            optimality = needed(items, image_tokens) / (spent.prompt_tokens - spent.cached_tokens)
            rows.append(_served("SGLang, lmc's frontend", items, seconds, optimality))
    return rows


def on_its_frontend(url: str, items: list[Item], size: Size, reps: int, image_tokens: int) -> list[Measured]:
    """The same program in SGLang's own frontend, where it is installed. What the request reads by which `fork` fills the
    server's cache is not reported: it counts as its whole prompt."""
    import sglang
    from sglang.lang.chat_template import ChatTemplate, register_chat_template

    roles = {"system": ("SYSTEM: ", " "), "user": ("USER: ", " "), "assistant": ("ASSISTANT:", " ")}
    register_chat_template(ChatTemplate(name="letters", default_system_prompt=None, role_prefix_and_suffix=roles, image_token="<image>\n"))
    backend, length = sglang.RuntimeEndpoint(url, chat_template_name="letters"), size.tokens(64)

    @sglang.function
    def ask(s, picture, caption):
        s += sglang.user_begin() + sglang.image(picture) + caption
        forks = s.fork(len(QUESTIONS))
        for f, question in zip(forks, QUESTIONS, strict=True):
            f += "\n" + question + sglang.user_end() + sglang.assistant_begin()
            f += sglang.gen("answer", max_tokens=length, ignore_eos=True)
        forks.join()
        s.set_var("read", [f.get_meta_info("answer")["prompt_tokens"] - f.get_meta_info("answer")["cached_tokens"] for f in forks])
        s.set_var("made", [f.get_meta_info("answer")["completion_tokens"] for f in forks])

    rows = []
    ask.run_batch(pictures(size).items(2, -1), backend=backend, temperature=0, num_threads=2)
    begun = sum(1 + len(prompts_of(item)[0]) - len("<image>") + image_tokens for item in items)
    for _ in range(reps):
        _flush(backend.flush_cache)
        start = time.perf_counter()
        states = ask.run_batch(items, backend=backend, temperature=0, num_threads=len(items))
        seconds = time.perf_counter() - start
        assert all(made == length for state in states for made in state["made"])
        rows.append(_served("SGLang, its frontend", items, seconds, needed(items, image_tokens) / (begun + sum(sum(state["read"]) for state in states))))
    return rows


def _served(who: str, items: Sequence[Item], seconds: float, optimality: float) -> Measured:
    each = len(items) / seconds
    print(f"{who}: {seconds:.2f} s", file=sys.stderr, flush=True)  # what follows may fail
    return Measured(who, len(items), seconds, each, each * len(QUESTIONS), each, optimality=optimality)


def _flush(flush: Callable[[], Any]) -> None:
    """A server may still end requests after their answers have come, and flushes nothing until then."""
    for left in range(20, -1, -1):
        try:
            flush()
            return
        except (lmc.BackendError, RuntimeError):
            if not left:
                raise
            time.sleep(0.25)


def on_a_cpu(engine: lmc.Engine) -> list[str]:
    """The cost of one picture, as one tile and as all that the processor makes of it."""
    from benchmarks.workloads import Random, picture

    @lmc.function
    def look(s, data, detail):
        s += lmc.user(lmc.image(data, detail=detail) + "What is it?") + lmc.assistant(lmc.gen("a", max_tokens=16, ignore_eos=True))

    look.run(picture(Random(0), 64, 64), "low", backend=engine, temperature=0).sync()
    lines = []
    for detail in ("low", "auto"):
        engine.flush_cache()
        before, start, used = engine.counters(), time.perf_counter(), time.process_time()
        state = look.run(picture(Random(1), 1024, 768), detail, backend=engine, temperature=0)
        state.sync()
        seconds, used, spent = time.perf_counter() - start, time.process_time() - used, engine.counters() - before
        lines.append(
            f"detail={detail!r}: {spent.images} tile{'s' * (spent.images > 1)}, {spent.prompt_tokens} tokens, answer of 16 tokens in {seconds:.2f} s, of "
            f"which the tower {spent.tower_seconds:.2f} s; {used:.2f} s of processor time"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--n", type=int, default=64, help="pictures, each with six questions")
    parser.add_argument("--video", type=int, default=0, metavar="FRAMES", help="videos in place of pictures, of which so many frames are shown")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of captions and answers")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="also by transformers' generate, N of the pictures")
    parser.add_argument("--batch", type=int, default=48, help="prompts that transformers gets together")
    parser.add_argument("--write", type=Path, metavar="DIR", help="only write a directory for SGLang's server, and print the command that starts it")
    parser.add_argument("--sglang", metavar="URL", help="only on this server, by lmc and, if it is installed, by SGLang's frontend")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    if options.write or options.sglang:
        parser.error("SGLang is for the shapes of LLaVA") if options.shape.startswith("smolvlm") else None
    if options.write:
        print(for_sglang(options.shape, options.write))
        return 0
    if options.video and (options.write or options.sglang or options.shape.startswith("smolvlm")):
        parser.error("--video is for an engine, and the shapes of LLaVA")
    size, rows, lines = Size(options.scale), list[Measured](), list[str]()
    workload, frames = (videos(size, options.video), options.video) if options.video else (pictures(size), 1)
    items = workload.items(options.n, 0)
    if options.sglang:
        image_tokens = SHAPES[options.shape]()[0].image_seq_length
        rows = on_sglang(options.sglang, items, size, options.reps, image_tokens)
        if importlib.util.find_spec("sglang"):
            rows += on_its_frontend(options.sglang, items, size, options.reps, image_tokens)
        return report(options, rows, lines)
    with tempfile.TemporaryDirectory() as made:
        path, sees_tiles = folder(options.shape, Path(made) / options.shape, video=options.video > 0), options.shape.startswith("smolvlm")
        if options.beside and not sees_tiles:  # first: an engine takes the memory that is left
            rows.append(on_transformers(path, options.device, items[: options.beside], size, frames, options.batch))
            gc.collect()
            torch.cuda.empty_cache()
        with closing(lmc.Engine(str(path), device=options.device, load_format="dummy")) as engine:
            if sees_tiles:
                lines = on_a_cpu(engine)
            else:
                rows += on_engine(engine, workload, items, frames, options.reps)
    return report(options, rows, lines)


def report(options: argparse.Namespace, rows: Sequence[Measured], lines: Sequence[str]) -> int:
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.sglang or "cpu"
    print("  ".join(f"{k}: {v}" for k, v in {**where(), "shape": options.shape, "device": device}.items()))
    for row in rows:
        what, unit = ("videos", "frames") if options.video else ("pictures", "images")
        more = "" if row.tower_runs is None else f"; {row.tower_runs} {what} through the tower"
        more += "" if row.tower_s is None else f" in {row.tower_s:.2f} s"
        more += "" if row.optimality is None else f"; optimality {row.optimality:.4f}"
        print(f"{row.who}: {row.programs} {what} × {len(QUESTIONS)} questions in {row.seconds:.2f} s: {row.images_per_s:.2f} {unit}/s, "
              f"{row.programs_per_s:.2f} programs/s, {row.answers_per_s:.1f} answers/s{more}")  # fmt: skip
        print("\n".join(row.parts.lines() if row.parts is not None else ()), end="\n" * (row.parts is not None))
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps({**where(), "rows": [row.as_json() for row in rows], "lines": lines}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
