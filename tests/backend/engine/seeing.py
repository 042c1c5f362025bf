"""Tiny random models that see, saved by transformers, and what transformers itself makes of their prompts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image as pillow

from lmc.backend.engine.models.vision import Vision

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
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}{{ content['text'] + ' ' }}{% endgeneration %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
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


def save(model: Any, folder: Path, processor: Any, template: str) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    free = (i for i in range(120) if i not in SPECIALS.values() and i != 0)
    vocabulary = {"ÿ": 0, **{c: next(free) for c in letters}, **SPECIALS}
    vocabulary |= {chr(0x4E00 + i): i for i in free}  # all that the model may say
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    (folder / "chat_template.jinja").write_text(template)


def reference(model: Any, vision: Vision, ids: list[int], pictures: list[bytes], tokens: int) -> list[int]:
    """Greedy tokens by transformers' `generate`, whose inputs its own processor made."""
    given: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    if pictures:
        opened = [pillow.open(io.BytesIO(data)).convert("RGB") for data in pictures]
        given |= vision.processor(images=opened, return_tensors="pt")
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=tokens, do_sample=False)
    return out[0, len(ids) :].tolist()
