"""Vision models: the configuration and the weights of the decoder within them, and the tower before it (towers.py).

A tower is loaded without the decoder beside it: with a configuration of no layers, whose embeddings are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmc.backend.engine.models import frames
from lmc.backend.engine.models.files import check_layers
from lmc.backend.engine.models.llava import Llava, LlavaNext, LlavaNextVideo, OneVision
from lmc.backend.engine.models.towers import Gemma3, Idefics3, Qwen3VL, QwenVL, SmolVLM, Vision
from lmc.errors import ModelLoadError
from lmc.extras import require

if TYPE_CHECKING:
    from lmc.backend.engine.tokenizer import Tokenizer

FAMILIES: Mapping[str, type[Vision]] = {
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_next_video": LlavaNextVideo,
    "llava_onevision": OneVision,
    "qwen2_vl": QwenVL,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": Qwen3VL,
    "gemma3": Gemma3,
    "idefics3": Idefics3,
    "smolvlm": SmolVLM,
}
"""Families by the model type of config.json."""


def text_config(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoder's configuration, as its own config.json would have it; a family's file leaves out its
    defaults."""
    theirs, family = _config(path), FAMILIES[raw["model_type"]]
    family.check(theirs, path / "config.json")
    text = theirs.get_text_config(decoder=True).to_dict()
    for name in ("eos_token_id", "bos_token_id", "tie_word_embeddings"):
        if raw.get(name) is not None:
            text[name] = raw[name]
    if text["model_type"] in family.decoder:
        rope = text["rope_parameters"] = {**_SECTIONS[text["model_type"]], **text["rope_parameters"]}
        rope["mrope_interleaved"] = _SECTIONS[text["model_type"]]["mrope_interleaved"]  # transformers ignores the file's
        text["model_type"] = family.decoder[text["model_type"]]
    return text


_SECTIONS: Mapping[str, dict[str, Any]] = {
    "qwen2_vl_text": {"mrope_section": [16, 24, 24], "mrope_interleaved": False},
    "qwen2_5_vl_text": {"mrope_section": [16, 24, 24], "mrope_interleaved": False},
    "qwen3_vl_text": {"mrope_section": [24, 20, 20], "mrope_interleaved": True},
}


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # configurations raise various errors on unexpected values
        raise ModelLoadError(f"{path / 'config.json'}: transformers cannot read it: {type(error).__name__}: {error}") from error


_TEXT_NAMES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "lm_head.": "lm_head.",
    "model.layers.": "model.layers.",
    "model.embed_tokens.": "model.embed_tokens.",
    "model.norm.": "model.norm.",
}


def text_name(name: str) -> str | None:
    """Return the name of a decoder's weight in a text model; None for those of the tower."""
    for begin, instead in _TEXT_NAMES.items():
        if name.startswith(begin):
            return instead + name[len(begin) :]
    return None


def load(path: Path, dtype: torch.dtype, device: torch.device, words: Tokenizer, *, random: bool) -> Vision:
    """Load the tower of a directory. Raises ModelLoadError, and MissingPackageError if Pillow is not installed."""
    require("a model that sees", "images")
    theirs = deepcopy(_config(path))
    family, layers = FAMILIES[theirs.model_type], theirs.get_text_config(decoder=True).num_hidden_layers
    for field in ("depth", "num_hidden_layers"):  # as Qwen-VL calls it, and as the others do
        if not random and isinstance(deep := getattr(theirs.vision_config, field, None), int):
            check_layers(path, f"vision_config: {field}", deep)
    blind = theirs.get_text_config(decoder=True)
    blind.num_hidden_layers = 0
    if getattr(blind, "layer_types", None):
        blind.layer_types = []
    model, processor = _model(path, theirs, dtype, random), _processor(path)
    drop(model, "language_model", "text_model")
    _in_rows(model)
    if len(getattr(theirs.vision_config, "deepstack_visual_indexes", None) or ()) >= layers:
        raise ModelLoadError(f"{path / 'config.json'}: deepstack_visual_indexes are as many as the decoder has layers, {layers}; are both of one model?")
    return family(path.name, theirs, model.eval().to(device), processor, words, frames.settings(path))


def drop(model: Any, *parts: str) -> None:
    """Free unused parts of a model."""
    for name in parts:
        if hasattr(model, name):
            setattr(model, name, torch.nn.Identity())


def _in_rows(model: Any) -> None:
    """Lay patches out as rows. SigLIP's are columns, as they come from a convolution, and stay so through all layers, each of which copies them."""
    for module in model.modules():
        if type(module).__name__.endswith("VisionEmbeddings"):
            module.register_forward_hook(lambda _, given, patches: patches.contiguous())


def _model(path: Path, theirs: Any, dtype: torch.dtype, random: bool) -> Any:
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging as theirs_log

    if random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return AutoModelForImageTextToText.from_config(theirs, dtype=dtype).model
    level = theirs_log.get_verbosity()
    theirs_log.set_verbosity_error()  # it would list the decoder's weights, which are not needed here
    try:
        read: Callable[..., Any] = AutoModelForImageTextToText.from_pretrained
        model, info = read(str(path), config=theirs, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True)
    except Exception as error:  # errors of shapes, and of its own code on the configuration
        raise ModelLoadError(f"{path}: the vision tower cannot be read: {type(error).__name__}: {error}") from error
    finally:
        theirs_log.set_verbosity(level)
    if missing := sorted(name for name in info["missing_keys"] if text_name(name) is None):
        raise ModelLoadError(f"{path}: the weights lack {missing[0]!r} ({len(missing)} in all); is the download complete?")
    return model.model


def _processor(path: Path) -> Any:
    """Return the processor that resizes, crops and scales pictures. Always by Pillow: features must not depend on what
    else is installed."""
    # from its own module: the package's face wants torchvision for it, in 5.17 at least
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(path), backend="pil", local_files_only=True)
    except Exception as error:
        raise ModelLoadError(
            f"{path}: how pictures are preprocessed cannot be read (preprocessor_config.json, processor_config.json): {type(error).__name__}: {error}"
        ) from error
