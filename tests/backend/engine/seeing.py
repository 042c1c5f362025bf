"""Tiny random models that see, saved by transformers, and what transformers itself makes of their prompts."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image as pillow

from lmc.backend.engine.models.loader import load
from lmc.backend.engine.models.vision import Vision
from lmc.backend.local import LocalBackend
from lmc.backend.local_model import Engine
from lmc.segments import Gen, Image, SamplingParams, Text
from tests.backend.engine_fakes import reserving_little

TOKENS = 10
TEXT = {
    "vocab_size": 120,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IMAGE_TOKEN = 100
SPECIALS = {"<image>": IMAGE_TOKEN, "<s>": 1, "</s>": 2}
QWEN_SPECIALS = {"<|image_pad|>": IMAGE_TOKEN, "<|vision_start|>": 101, "<|vision_end|>": 102, "<|video_pad|>": 103, "<s>": 1, "</s>": 2}
QWEN_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% "
    "endfor %}"
    "{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}{{ content['text'] + ' ' }}{% endgeneration "
    "%}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
FILMING_TEMPLATE = LLAVA_TEMPLATE.replace(
    "{% if message['role'] != 'assistant' %}",
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>\n' }}{% endfor %}{% if message['role'] != 'assistant' %}",
    1,
)


def picture(seed: int, width: int = 70, height: int = 50) -> bytes:
    """A PNG of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return png(pillow.fromarray(pixels))


def png(image: pillow.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def stirred(model: Any) -> Any:
    """Weights away from their neutral start."""
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name and "bias" not in name else 0.0, std=0.2)
    return model.eval()


def llava(folder: Path, text: str = "llama", tower: str = "clip", strategy: str = "default") -> Any:
    """LLaVA-1.5's shape: 16 patches of 14 × 14 pixels."""
    configs = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig, "qwen2": transformers.Qwen2Config}
    sides = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    vision = transformers.CLIPVisionConfig(**sides) if tower == "clip" else transformers.SiglipVisionConfig(**sides)
    tokens = 16 + (tower == "clip") - (strategy == "default")
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=configs[text](**TEXT), image_token_id=IMAGE_TOKEN, image_seq_length=tokens,
        vision_feature_select_strategy=strategy, vision_feature_layer=-2, eos_token_id=2, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = stirred(transformers.LlavaForConditionalGeneration(config))
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    save(model, folder, CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}), LLAVA_TEMPLATE)
    return model


def tiling(folder: Path, kind: str) -> Any:
    """LLaVA-NeXT, LLaVA-NeXT-Video and OneVision: tiles of 56 × 56 pixels, 16 patches each; OneVision's are at most three before they are
    shrunk."""
    sides = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    grid = [[56, 112], [112, 56], [112, 112], [168, 56]]
    usual = {"image_token_id": IMAGE_TOKEN, "image_grid_pinpoints": grid, "eos_token_id": 2, "bos_token_id": 1, "tie_word_embeddings": False}
    size = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}, "image_grid_pinpoints": grid}
    filming = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    if kind != "llava_onevision":
        from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

        both = {"vision_config": transformers.CLIPVisionConfig(**sides), "text_config": transformers.MistralConfig(**TEXT), **usual}
        if kind == "llava_next":
            model = transformers.LlavaNextForConditionalGeneration(transformers.LlavaNextConfig(**both))
        else:
            model = transformers.LlavaNextVideoForConditionalGeneration(transformers.LlavaNextVideoConfig(**both, video_token_id=103))
        model, processor = stirred(model), LlavaNextImageProcessorPil(**size)
    else:
        from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
            LlavaOnevisionImageProcessorPil,
        )

        config = transformers.LlavaOnevisionConfig(
            vision_config=transformers.SiglipVisionConfig(**sides, vision_use_head=False), text_config=transformers.Qwen2Config(**TEXT),
            vision_aspect_ratio="anyres_max_2", video_token_id=103, **usual,
        )  # fmt: skip
        filming = size = {"size": {"height": 56, "width": 56}, "image_grid_pinpoints": grid}
        model, processor = stirred(transformers.LlavaOnevisionForConditionalGeneration(config)), LlavaOnevisionImageProcessorPil(**size)
    save(model, folder, processor, FILMING_TEMPLATE, {**SPECIALS, "<video>": 103}, filming)
    return model


def qwen(folder: Path, kind: str) -> Any:
    """28 × 28 pixels a token, a third of the frequencies for each axis, about."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tower = {"depth": 2, "num_heads": 2, "out_hidden_size": 64, "hidden_size": 32, "intermediate_size": 48}
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}}
    if kind == "qwen3_vl":
        tower |= {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1], "patch_size": 14}
        text["head_dim"] = 16
        make, configure = transformers.Qwen3VLForConditionalGeneration, transformers.Qwen3VLConfig
    elif kind == "qwen2_vl":
        tower = {"depth": 2, "num_heads": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
        make, configure = transformers.Qwen2VLForConditionalGeneration, transformers.Qwen2VLConfig
    else:
        tower |= {"window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 3}
        make, configure = transformers.Qwen2_5_VLForConditionalGeneration, transformers.Qwen2_5_VLConfig
    ids = {"image_token_id": 100, "vision_start_token_id": 101, "vision_end_token_id": 102, "video_token_id": 103}
    model = stirred(make(configure(text_config=text, vision_config=tower, **ids, eos_token_id=2, bos_token_id=1)))
    filming = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * (24 if kind == "qwen3_vl" else 6)}}
    save(model, folder, Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 20), QWEN_TEMPLATE, QWEN_SPECIALS, filming)
    return model


IDEFICS_SPECIALS = {
    "<image>": IMAGE_TOKEN, "<fake_token_around_image>": 101, "<global-img>": 102, "<end_of_utterance>": 103, "<s>": 1, "</s>": 2,
    **{f"<row_{row}_col_{column}>": 101 + 3 * row + column for row in (1, 2, 3) for column in (1, 2, 3)},
}  # fmt: skip
IDEFICS_TEMPLATE = (
    "<s>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def idefics(folder: Path, kind: str = "smolvlm") -> Any:
    """SmolVLM and Idefics3: four tokens for each tile of 32 × 32 pixels, six tiles at most and the whole."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    configure, make, process = {
        "smolvlm": (transformers.SmolVLMConfig, transformers.SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil),
        "idefics3": (transformers.Idefics3Config, transformers.Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil),
    }[kind]
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    config = configure(
        vision_config=vision, text_config={"model_type": "llama", **TEXT}, image_token_id=IMAGE_TOKEN, scale_factor=2, pad_token_id=0,
        eos_token_id=2, bos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    model = stirred(make(config))
    processor = process(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    save(model, folder, processor, IDEFICS_TEMPLATE, IDEFICS_SPECIALS, {"video_sampling": {"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 32}}})
    return model


GEMMA_SPECIALS = {"<image>": IMAGE_TOKEN, "<start_of_image>": 101, "<end_of_image>": 102, "<start_of_turn>": 110, "<end_of_turn>": 111, "<s>": 1, "</s>": 2}
GEMMA_TEMPLATE = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = (messages[0]['content'] if messages[0]['content'] is string"
    " else messages[0]['content'][0]['text']) + '\n\n' -%}{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = '' -%}"
    "{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + (first_user_prefix if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)


def gemma(folder: Path) -> Any:
    """Gemma 3: nine tokens an image, a window of seven in every layer but one."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 48, "patch_size": 8}
    text = {**TEXT, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 7, "num_hidden_layers": 3}
    text["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**vision, vision_use_head=False), text_config=transformers.Gemma3TextConfig(**text),
        mm_tokens_per_image=9, image_token_index=IMAGE_TOKEN, boi_token_index=101, eoi_token_index=102, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    model = stirred(transformers.Gemma3ForConditionalGeneration(config))
    save(model, folder, Gemma3ImageProcessorPil(size={"height": 48, "width": 48}), GEMMA_TEMPLATE, GEMMA_SPECIALS)
    return model


def save(
    model: Any, folder: Path, processor: Any, template: str, specials: Mapping[str, int] = SPECIALS, filming: Mapping[str, Any] | None = None
) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    free = (i for i in range(240) if i not in specials.values() and i != 0)
    vocabulary = {"ÿ": 0, **{c: next(free) for c in letters}, **specials}
    vocabulary |= {chr(0x4E00 + i): i for i in free if i < model.config.get_text_config().vocab_size}  # all that the model may say
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if filming is not None:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(filming))
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>"}))
    (folder / "chat_template.jinja").write_text(template)


def reference(model: Any, vision: Vision, ids: list[int], pictures: list[bytes], tokens: int) -> list[int]:
    """Greedy tokens by transformers' `generate`, whose inputs its own processor made."""
    if not pictures:
        return generated(model, ids, {}, tokens)
    seen = [opened(data) for data in pictures]
    together = model.config.model_type in ("smolvlm", "idefics3")  # others would make less of several
    return generated(model, ids, vision.processor(images=[seen] if together else [[one] for one in seen], return_tensors="pt"), tokens)


def generated(model: Any, ids: list[int], seen: Mapping[str, Any], tokens: int) -> list[int]:
    given: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64), **seen}
    if given.pop("num_crops", None) is not None:
        given["token_type_ids"] = (given["input_ids"] == IMAGE_TOKEN).int()
    if "image_grid_thw" in given or "video_grid_thw" in given:
        given["mm_token_type_ids"] = (given["input_ids"] == IMAGE_TOKEN).int() + 2 * (given["input_ids"] == 103).int()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=tokens, do_sample=False)
    return out[0, len(ids) :].tolist()


def opened(data: bytes) -> pillow.Image:
    return pillow.open(io.BytesIO(data)).convert("RGB")


class Pair:
    """A directory of a tiny model, and the model itself."""

    def __init__(self, folder: Path, make: Callable[..., Any] = llava, **options: Any) -> None:
        self.model, self.folder = make(folder, **options), str(folder)
        vision = load(self.folder, dtype="float32").vision
        assert vision is not None
        self.vision = vision
        self._said = dict[Any, list[int]]()

    def engine(self, **options: Any) -> Engine:
        return Engine(self.folder, dtype="float32", **{"max_tokens": 2000, **options})

    def check(self, engine: Engine, prompts: Sequence[Any], handles: Sequence[Any], tokens: int = TOKENS) -> None:
        """That each handle's answer is the reference's own; that each picture has as many tokens as features is checked there."""
        for prompt, handle in zip(prompts, handles, strict=True):
            ids = engine.prompt_ids(handle)
            pictures = [s.source for s in prompt if isinstance(s, Image)]
            begun = handle.results[0].output().usage.prompt_tokens
            assert ids[begun:] == self.expected(ids[:begun], pictures, tokens)
        engine.check()

    def expected(self, ids: list[int], pictures: list[bytes], tokens: int) -> list[int]:
        """The reference's answer, which is computed once."""
        key = (*ids, *pictures, tokens)
        if key not in self._said:
            self._said[key] = reference(self.model, self.vision, ids, pictures, tokens)
        return self._said[key]

    def check_preempted(self, prompts: Sequence[Any]) -> None:
        """That answers are the same in a pool that has not room for all of them, and are preempted there."""
        long = Gen(SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True, stop=("never said",)))
        with self.engine() as engine:
            expected = [engine.prompt_ids(handle) for handle in [engine.submit(None, [*one, long]) for one in prompts]]
        with reserving_little(), self.engine(max_tokens=int(1.7 * max(map(len, expected))), chunk=24) as engine:
            assert together(engine, prompts, long) == expected
            assert engine.counters().preemptions > 0
            engine.check()


def together(engine: LocalBackend, prompts: Sequence[Sequence[Any]], ask: Gen) -> list[list[int]]:
    """Tokens of prompts and answers that are all asked before the engine's loop goes on, so that they wait for room together."""
    held, all_asked = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert all_asked.wait(60)

    holder = threading.Thread(target=engine._core.call, args=(hold,))
    holder.start()
    assert held.wait(60)
    handles, moment = [engine.submit(None, [*one, ask]) for one in prompts], threading.Event()
    while engine._core._inbox.qsize() < len(prompts):  # a request comes when its pictures are prepared
        moment.wait(1e-3)
    all_asked.set()
    holder.join()
    return [engine.prompt_ids(handle) for handle in handles]


def prompt(*pieces: str | bytes) -> list[Text | Image]:
    return [Text((piece,)) if isinstance(piece, str) else Image(piece) for piece in pieces]


ASK = Gen(SamplingParams(max_new_tokens=TOKENS, temperature=0.0, ignore_eos=True))
A, B, C = (picture(seed, *size) for seed, size in enumerate(((140, 90), (56, 56), (40, 90))))
PROMPTS = [
    prompt("Nothing to see."),
    prompt("Look: ", A, "What is it?"),
    prompt("Look: ", A, "Which colour?"),
    prompt("Look: ", B, "What is it?"),
    prompt(A, B, "Which is larger?"),
    prompt(A, A, "Are they one?"),
    prompt(C),
    prompt("Look: ", A, A, A, " and ", C, "Which differs?"),
]
