"""Towers of the LLaVA family: rows of patches of one picture, of tiles and the whole, or of the frames of a video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.models import frames
from lmc.backend.engine.models.towers import Vision
from lmc.backend.engine.prompt_pictures import Shown
from lmc.errors import ModelLoadError
from lmc.segments import Frames, Part
from lmc.videos import Film

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow


class Llava(Vision):
    """LLaVA 1.5 and its kin."""

    towers: ClassVar = {"clip_vision_model": 1, "siglip_vision_model": 0}  # rows before those of patches

    @classmethod
    def check(cls, config: Any, where: Path) -> None:
        if (kind := config.vision_config.model_type) not in cls.towers:
            raise ModelLoadError(f"{where}: a vision tower of the kind {kind!r} is not supported; supported: {', '.join(cls.towers)}")

    @property
    def beside(self) -> int:
        """Return the number of a picture's rows that are not patches."""
        return self.towers[self.config.vision_config.model_type] - (self.config.vision_feature_select_strategy == "default")

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        pixels = self._pixels(self.processor(images=picture, return_tensors="np"))
        patch = self.config.vision_config.patch_size
        return (Shown((pixels.shape[-2] // patch) * (pixels.shape[-1] // patch) + self.beside, {"pixel_values": pixels}),)


class LlavaNext(Llava):
    """LLaVA-NeXT: tiles as the image's shape requires. Their number of rows is found by packing empty ones."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        found = self.processor(images=[[picture]], return_tensors="np")
        pixels, size = self._pixels(found), np.asarray(found["image_sizes"], np.int64)
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


class Filming(LlavaNext):
    """Tiles an image; of a video each frame is the whole of it, with fewer rows.

    usual  default number of frames
    size   their default size
    """

    usual: ClassVar[int]
    size: ClassVar[Mapping[str, Any]]

    def _set_up(self) -> None:
        super()._set_up()
        self._takes_videos()
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        self._frame = CLIPImageProcessorPil(**{**self.size, **{name: self.filming[name] for name in _OF_FRAMES if self.filming.get(name) is not None}})
        self._side = int(self.config.vision_config.image_size) // int(self.config.vision_config.patch_size)

    def sample(self, film: Film, wanted: Frames) -> list[int]:
        return frames.evenly(film, wanted, self.usual)

    def tokens(self, film: Film, number: int) -> int:
        return self._rows(number)

    def watch(self, film: Film, indices: Sequence[int]) -> tuple[Part | Shown, ...]:
        pixels = np.stack([np.asarray(self._frame(images=picture, return_tensors="np")["pixel_values"][0], np.float32) for picture in film.at(indices)])
        if pixels.shape[-2:] != (side := (self.config.vision_config.image_size,) * 2):
            raise ValueError(f"its video processor makes frames of {pixels.shape[-1]} × {pixels.shape[-2]} pixels, and its tower takes {side[0]} × {side[0]}")
        return (Shown(self._rows(len(indices)), {"pixel_values_videos": pixels}, moving=True),)

    def _rows(self, number: int) -> int:
        raise NotImplementedError

    def _packed(self, shown: Shown) -> Tensor:
        if not shown.moving:
            return super()._packed(shown)
        pixels = self._on_device([shown.inputs["pixel_values_videos"]], dtype=self.model.dtype)
        found = self.model.get_video_features(pixels[None], return_dict=True).pooler_output
        return (found if isinstance(found, Tensor) else torch.cat(found)).flatten(0, -2)  # older transformers: by video


_OF_FRAMES = (
    "size", "crop_size", "resample", "do_resize", "do_center_crop", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
)  # fmt: skip


class LlavaNextVideo(Filming):
    """LLaVA-NeXT-Video."""

    usual = 8
    size = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}

    def _rows(self, number: int) -> int:
        return number * (self._side // self.config.spatial_pool_stride) ** 2


class OneVision(Filming):
    """LLaVA-OneVision. An image is always tiled as a single one; `detail="low"` is the whole only, as transformers does
    for each of several images."""

    usual = 32
    size = {"size": {"height": 384, "width": 384}, "do_center_crop": False}

    def _rows(self, number: int) -> int:
        return number * (-(-self._side // 2)) ** 2 + 1

    def _packed(self, shown: Shown) -> Tensor:
        found = super()._packed(shown)
        if shown.moving and len(found) < shown.count:  # older transformers leave the newline behind a video to their caller
            found = torch.cat((found, self.model.image_newline[None].to(found)))
        return found

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
