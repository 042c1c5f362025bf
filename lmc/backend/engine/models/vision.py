"""Vision towers: transformers' image processors and towers behind decoders that take pictures as rows. One class a family.

    LLaVA 1.5      a picture is rows of patches of a fixed number, from a CLIP or SigLIP tower
    Qwen-VL        as many rows as its size asks for, with positions in time, height and width
    LLaVA-NeXT     patches of tiles and of the whole, unpadded, with a newline behind each row: one picture; OneVision too
    Gemma 3        rows that see each other
    Idefics3       tiles, and the whole small, each a picture by itself; the processor writes tokens between them

A tower is loaded without the decoder beside it: with a configuration of no layers, whose embeddings are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.eyes import Shown
from lmc.errors import ModelLoadError
from lmc.extras import require
from lmc.prompt import Part

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow

    from lmc.backend.engine.tokenizer import Tokenizer

log = logging.getLogger("lmc.models")

_AT_ONCE = 16 << 10  # patches, about, that go through a tower together


class Vision:
    """A `Sight` (eyes.py) of one family. `before` and `after` are known once the template is cut.

    marker   the token that a chat template writes for a picture
    decoder  its type, where our own code for text has another name for it
    """

    decoder: ClassVar[Mapping[str, str]] = {}
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()

    def __init__(self, name: str, config: Any, model: Any, processor: Any, words: Tokenizer) -> None:
        self.name, self.config, self.model, self.processor = name, config, model, processor
        self.width = int(config.get_text_config(decoder=True).hidden_size)
        self.token = int(config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index)
        self.marker = words.spelling(self.token)
        self._words = words

    @classmethod
    def check(cls, config: Any, where: Path) -> None:
        """Refuses a configuration that the family may have, and that is not supported."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        """See `Sight`."""
        raise NotImplementedError

    @torch.inference_mode()
    def look(self, shown: Sequence[Shown]) -> list[Tensor]:
        """See `Sight`."""
        return [features for together in _together(shown) for features in self._features(together)]

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        raise NotImplementedError

    def _on_device(self, arrays: Sequence[np.ndarray], *, dtype: torch.dtype | None = None) -> Tensor:
        """Joined along the first axis."""
        return torch.from_numpy(np.concatenate(arrays)).to(self.model.device, dtype)


def _together(shown: Sequence[Shown]) -> Iterator[list[Shown]]:
    """In groups that go through a tower at once."""
    group: list[Shown] = []
    for one in shown:
        if group and sum(other.count for other in group) + one.count > _AT_ONCE:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


class Llava(Vision):
    """LLaVA 1.5 and its kin."""

    towers: ClassVar = {"clip_vision_model": 1, "siglip_vision_model": 0}  # rows before those of patches

    @classmethod
    def check(cls, config: Any, where: Path) -> None:
        if (kind := config.vision_config.model_type) not in cls.towers:
            raise ModelLoadError(f"{where}: a vision tower of the kind {kind!r} is not supported; supported: {', '.join(cls.towers)}")

    @property
    def beside(self) -> int:
        """Rows of a picture that are no patches."""
        return self.towers[self.config.vision_config.model_type] - (self.config.vision_feature_select_strategy == "default")

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        pixels = np.asarray(self.processor(images=picture, return_tensors="np")["pixel_values"], np.float32)
        patch = self.config.vision_config.patch_size
        return (Shown((pixels.shape[-2] // patch) * (pixels.shape[-1] // patch) + self.beside, {"pixel_values": pixels}),)

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels = self._on_device([one.inputs["pixel_values"] for one in shown], dtype=self.model.dtype)
        return self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output


class LlavaNext(Llava):
    """LLaVA-NeXT: tiles as the image's shape asks for. How many rows they come to is what packing nothing comes to."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        found = self.processor(images=[[picture]], return_tensors="np")
        pixels, size = np.asarray(found["pixel_values"], np.float32), np.asarray(found["image_sizes"], np.int64)
        patches = (pixels.shape[-2] // self.config.vision_config.patch_size) * (pixels.shape[-1] // self.config.vision_config.patch_size)
        nothing = torch.empty(pixels.shape[1], patches + self.beside, 1, device="meta")
        packed, _ = self.model.pack_image_features([nothing], torch.from_numpy(size), image_newline=nothing[0, 0], **self._packing)
        return (Shown(len(packed[0]), {"pixel_values": pixels, "image_sizes": size}),)

    @property
    def _packing(self) -> dict[str, Any]:
        return {"vision_feature_select_strategy": self.config.vision_feature_select_strategy}

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        return [self._packed(one) for one in shown]

    def _packed(self, shown: Shown) -> Tensor:
        pixels = self._on_device([shown.inputs["pixel_values"]], dtype=self.model.dtype)
        return self.model.get_image_features(pixels, torch.from_numpy(shown.inputs["image_sizes"]), return_dict=True, **self._given(pixels)).pooler_output[0]

    def _given(self, pixels: Tensor) -> dict[str, Any]:
        return {}


class OneVision(LlavaNext):
    """LLaVA-OneVision. An image is tiled as one that stands alone, whatever stands beside it; `detail="low"` is the whole alone, as
    transformers has each of several images."""

    @property
    def _packing(self) -> dict[str, Any]:
        return {"vision_aspect_ratio": self.config.vision_aspect_ratio}

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        if detail != "low":
            return super().prepare(picture, detail)
        found = self.processor(images=[[picture, picture]], return_tensors="np")
        first = {name: np.asarray(found[name])[:1] for name in ("pixel_values", "image_sizes")}
        rows = (self.config.vision_config.image_size // self.config.vision_config.patch_size) ** 2 + self.beside
        return (Shown(rows + 1, {**first, "pixel_values": first["pixel_values"].astype(np.float32)}),)

    def _given(self, pixels: Tensor) -> dict[str, Any]:
        return {"batch_num_images": torch.tensor([2])} if pixels.shape[1] == 1 else {}


class QwenVL(Vision):
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL; the last adds features behind its first layers."""

    decoder = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        found = self.processor(images=picture, return_tensors="np")
        return (self._shown(np.asarray(found["pixel_values"], np.float32), np.asarray(found["image_grid_thw"], np.int64)),)

    def _shown(self, pixels: np.ndarray, grid: np.ndarray) -> Shown:
        """grid [1, 3]: patches in time, height and width."""
        merge = int(self.config.vision_config.spatial_merge_size)
        axes = self.model.get_vision_position_ids(0, torch.from_numpy(grid[0]), 1, merge).numpy()
        return Shown(axes.shape[1], {"pixel_values": pixels, "grid": grid}, axes, int(grid[0, 1:].max()) // merge)

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels, grid = (self._on_device([one.inputs[name] for one in shown]) for name in ("pixel_values", "grid"))
        found = self.model.get_image_features(pixels.to(self.model.dtype), grid, return_dict=True)
        deeper = getattr(found, "deepstack_features", None) or ()
        return [torch.cat(parts, -1) for parts in zip(found.pooler_output, *deeper, strict=True)]


class Idefics3(Vision):
    """Idefics3 and SmolVLM. `detail="low"` is the whole alone, without tiles."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        how = {"do_image_splitting": False} if detail == "low" else {}
        found = self.processor(images=picture, return_tensors="np", return_row_col_info=True, **how)
        rows, columns = (int(np.asarray(found[name]).flat[0]) for name in ("rows", "cols"))
        marks, lines = "<fake_token_around_image>", list[str]()
        for row in range(rows):
            lines.append("".join(f"{marks}<row_{row + 1}_col_{column + 1}>{self.marker}" for column in range(columns)) + "\n")
        lines.append("\n" * bool(rows) + f"{marks}<global-img>{self.marker}{marks}")
        tiles = iter(np.asarray(found["pixel_values"], np.float32)[0])
        seen: list[Part | Shown] = []
        for i, text in enumerate("".join(lines).split(self.marker)):
            seen += [self._shown(next(tiles))] if i else []
            seen += self._words.split_specials(text)
        assert next(tiles, None) is None, "more tiles than places for them"
        return tuple(seen)

    def _shown(self, pixels: np.ndarray) -> Shown:
        vision = self.config.vision_config
        return Shown((vision.image_size // vision.patch_size) ** 2 // self.config.scale_factor**2, {"pixel_values": pixels[None]})

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels = self._on_device([one.inputs["pixel_values"] for one in shown], dtype=self.model.dtype)
        return self.model.get_image_features(pixels[:, None], return_dict=True).pooler_output


class Gemma3(Vision):
    """Gemma 3: an image's tokens see each other. Its decoder runs through the attention interface."""

    def __init__(self, name: str, config: Any, model: Any, processor: Any, words: Tokenizer) -> None:
        super().__init__(name, config, model, processor, words)
        self.marker = words.spelling(config.boi_token_index)
        self._before, self._after = words.split_specials(f"\n\n{self.marker}"), words.split_specials(f"{words.spelling(config.eoi_token_index)}\n\n")

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        pixels = np.asarray(self.processor(images=picture, return_tensors="np")["pixel_values"], np.float32)
        whole, *crops = (
            (*self._before, Shown(int(self.config.mm_tokens_per_image), {"pixel_values": one[None]}, mutual=True), *self._after) for one in pixels
        )
        if not crops:
            return whole
        first, *others = crops
        pieces = (part for crop in others for part in (" ", *crop))
        return ("Here is the original image ", *whole, " and here are some crops to help you see better ", *first, *pieces)

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels = self._on_device([one.inputs["pixel_values"] for one in shown], dtype=self.model.dtype)
        return list(self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output)


FAMILIES: Mapping[str, type[Vision]] = {
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_onevision": OneVision,
    "qwen2_vl": QwenVL,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": QwenVL,
    "gemma3": Gemma3,
    "idefics3": Idefics3,
    "smolvlm": Idefics3,
}
"""By the model type of config.json."""


def text_config(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's configuration, as its own config.json would have it; a family's file leaves out what is usual."""
    theirs, family = _config(path), FAMILIES[raw["model_type"]]
    family.check(theirs, path / "config.json")
    text = theirs.get_text_config(decoder=True).to_dict()
    for name in ("eos_token_id", "bos_token_id", "tie_word_embeddings"):
        if raw.get(name) is not None:
            text[name] = raw[name]
    if text["model_type"] in family.decoder:
        rope = text["rope_parameters"] = {**_SECTIONS[text["model_type"]], **text["rope_parameters"]}
        rope["mrope_interleaved"] = _SECTIONS[text["model_type"]]["mrope_interleaved"]  # transformers does not look at the file's
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
    except Exception as error:  # what its many configurations raise on values that they do not expect
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
    """The name that a weight of the decoder has in a model of text; None for those of the tower."""
    for begin, instead in _TEXT_NAMES.items():
        if name.startswith(begin):
            return instead + name[len(begin) :]
    return None


def load(path: Path, dtype: torch.dtype, device: torch.device, words: Tokenizer, *, random: bool) -> Vision:
    """The tower of a directory. Raises ModelLoadError, and MissingPackageError where Pillow is not installed."""
    require("a model that sees", "images")
    theirs = deepcopy(_config(path))
    family, layers = FAMILIES[theirs.model_type], theirs.get_text_config(decoder=True).num_hidden_layers
    blind = theirs.get_text_config(decoder=True)
    blind.num_hidden_layers = 0
    if getattr(blind, "layer_types", None):
        blind.layer_types = []
    model, processor = _model(path, theirs, dtype, random), _processor(path)
    drop(model, "language_model", "text_model")
    if len(getattr(theirs.vision_config, "deepstack_visual_indexes", None) or ()) >= layers:
        raise ModelLoadError(f"{path / 'config.json'}: deepstack_visual_indexes are as many as the decoder has layers, {layers}; are both of one model?")
    return family(path.name, theirs, model.eval().to(device), processor, words)


def drop(model: Any, *parts: str) -> None:
    """Frees parts of a model that nobody calls."""
    for name in parts:
        if hasattr(model, name):
            setattr(model, name, torch.nn.Identity())


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
    if missing := sorted(name for name in info["missing_keys"] if text_name(name) is None):
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
