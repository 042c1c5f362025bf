"""Vision towers: transformers' image processors and towers behind our own decoders, for models that take pictures as rows.

    LLaVA (1.5 and its kin): one picture is one row of patches of a fixed size, from a CLIP or SigLIP tower

A tower is loaded without the decoder beside it: with a configuration of no layers, whose embeddings are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.eyes import Picture
from lmc.errors import ModelLoadError
from lmc.extras import require
from lmc.prompt import Part

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow

log = logging.getLogger("lmc.models")

_TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}  # rows before those of patches
_AT_ONCE = 16  # pictures that go through a tower together


@dataclass(slots=True)
class Vision:
    """A `Sight` (eyes.py). `before` and `after` are known once the template is cut."""

    name: str
    token: int
    model: Any  # of transformers: `get_image_features`
    processor: Any
    patch: int
    beside: int  # rows of a picture that are no patches
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()

    def prepare(self, picture: Pillow) -> tuple[Mapping[str, np.ndarray], int]:
        pixels = np.asarray(self.processor(images=picture, return_tensors="np")["pixel_values"][0], np.float32)
        count = (pixels.shape[-2] // self.patch) * (pixels.shape[-1] // self.patch) + self.beside
        return {"pixel_values": pixels}, count

    @torch.inference_mode()
    def look(self, pictures: Sequence[Picture]) -> list[Tensor]:
        found: list[Tensor] = []
        for at in range(0, len(pictures), _AT_ONCE):
            pixels = np.stack([picture.inputs["pixel_values"] for picture in pictures[at : at + _AT_ONCE]])
            where = torch.from_numpy(pixels).to(self.model.device, self.model.dtype)
            found += list(self.model.get_image_features(pixel_values=where, return_dict=True).pooler_output)
        return found


def text_config(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's configuration, as its own config.json would have it; a family's file leaves out what is usual."""
    theirs = _config(path)
    kind = theirs.vision_config.model_type
    if kind not in _TOWERS:
        raise ModelLoadError(f"{path / 'config.json'}: a vision tower of the kind {kind!r} is not supported; supported: {', '.join(_TOWERS)}")
    text = theirs.get_text_config(decoder=True).to_dict()
    for name in ("eos_token_id", "bos_token_id", "tie_word_embeddings"):
        if raw.get(name) is not None:
            text[name] = raw[name]
    return text


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # what its many configurations raise on values that they do not expect
        raise ModelLoadError(f"{path / 'config.json'}: transformers cannot read it: {type(error).__name__}: {error}") from error


def text_name(name: str) -> str | None:
    """The name that a weight of the decoder has in a model of text; None for those of the tower."""
    for begin, instead in (("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."), ("lm_head.", "lm_head.")):
        if name.startswith(begin):
            return instead + name[len(begin) :]
    return None


def load(path: Path, dtype: torch.dtype, device: torch.device, *, random: bool) -> Vision:
    """The tower of a directory. Raises ModelLoadError, and MissingPackageError where Pillow is not installed."""
    require("a model that sees", "images")
    theirs = deepcopy(_config(path))
    token = theirs.image_token_id if hasattr(theirs, "image_token_id") else theirs.image_token_index
    theirs.text_config.num_hidden_layers = 0
    if getattr(theirs.text_config, "layer_types", None):
        theirs.text_config.layer_types = []
    model, processor = _model(path, theirs, dtype, random), _processor(path)
    model.language_model = torch.nn.Identity()
    kind, strategy = theirs.vision_config.model_type, theirs.vision_feature_select_strategy
    beside = _TOWERS[kind] - (strategy == "default")
    return Vision(path.name, int(token), model.eval().to(device), processor, int(theirs.vision_config.patch_size), beside)


def _model(path: Path, theirs: Any, dtype: torch.dtype, random: bool) -> Any:
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging as theirs_log

    if random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return AutoModelForImageTextToText.from_config(theirs, dtype=dtype).model
    level = theirs_log.get_verbosity()
    theirs_log.set_verbosity_error()  # it would list the decoder's weights, which nobody wants here
    try:
        read: Callable[..., Any] = AutoModelForImageTextToText.from_pretrained
        model, info = read(
            str(path), config=theirs, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # also of shapes, and of what its own code makes of the configuration
        raise ModelLoadError(f"{path}: the vision tower cannot be read: {type(error).__name__}: {error}") from error
    finally:
        theirs_log.set_verbosity(level)
    if missing := sorted(name for name in info["missing_keys"] if "language_model" not in name and "lm_head" not in name):
        raise ModelLoadError(f"{path}: the weights lack {missing[0]!r} ({len(missing)} in all); is the download complete?")
    return model.model


def _processor(path: Path) -> Any:
    """How pictures are resized, cut and scaled. By Pillow wherever it runs: features must not depend on what else is installed."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(path), backend="pil", local_files_only=True)
    except Exception as error:
        raise ModelLoadError(
            f"{path}: how pictures are preprocessed cannot be read (preprocessor_config.json, processor_config.json): {type(error).__name__}: {error}"
        ) from error
