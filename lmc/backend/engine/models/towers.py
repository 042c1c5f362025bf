"""Vision towers: transformers' image processors and towers behind decoders that take pictures and videos as rows. One class a family.

    LLaVA 1.5      a picture is rows of patches of a fixed number, from a CLIP or SigLIP tower
    Qwen-VL        as many rows as its size requires, with positions in time, height and width
    LLaVA-NeXT     patches of tiles and of the whole, unpadded, with a newline after each row: one picture; OneVision
                   too
    Gemma 3        rows that see each other
    Idefics3       tiles, and the whole small, each a picture by itself; the processor writes tokens between them

A video is frames (frames.py): one run of rows to OneVision, LLaVA-NeXT-Video and Qwen2-VL; to Qwen3-VL and SmolVLM
pictures, each after its timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.device_timer import DeviceTimer
from lmc.backend.engine.models import frames
from lmc.backend.engine.prompt_pictures import Shown, Surroundings
from lmc.errors import ModelLoadError
from lmc.extras import require
from lmc.segments import Frames, Part, Special
from lmc.videos import Film

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow

    from lmc.backend.engine.tokenizer import Tokenizer


_AT_ONCE = 16 << 10  # patches, about, that go through a tower together


class Vision:
    """The processor and vision tower of one family. What is around a picture is known once the template is cut.

    width    of the decoder's hidden states
    token    placeholder for a picture's tokens where ids of the vocabulary are needed;  video_token: that of videos; None: it takes none
    around   what is around an image;  around_video: around a video
    marker   the token that a chat template writes for a picture
    decoder  its type, if our own code for text has another name for it
    filming  the directory's settings of its video processor
    """

    decoder: ClassVar[Mapping[str, str]] = {}
    around = around_video = Surroundings()
    video_token: int | None = None
    video_marker: str | None = None
    model: Any

    def __init__(self, name: str, config: Any, model: Any, processor: Any, words: Tokenizer, filming: Mapping[str, Any]) -> None:
        self.name, self.config, self.model, self.processor, self.filming = name, config, model, processor, filming
        self.width = int(config.get_text_config(decoder=True).hidden_size)
        self.token = int(config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index)
        self._words, self._timer = words, DeviceTimer(model.device)
        self.marker = self._spelled(self.token, "image")
        self._set_up()

    def _set_up(self) -> None:
        """Read what the family needs besides."""

    @classmethod
    def check(cls, config: Any, where: Path) -> None:
        """Refuse a configuration that the family may have but that is not supported."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        """Return an image as parts of a prompt: the tower's inputs, with the texts that the model's processor writes
        between. From any thread."""
        raise NotImplementedError

    def sample(self, film: Film, wanted: Frames) -> list[int]:
        """Return the indices of a video's frames to show, in order."""
        raise NotImplementedError

    def tokens(self, film: Film, number: int) -> int:
        """Return how many tokens so many frames of a video are, before they are decoded."""
        raise NotImplementedError

    def watch(self, film: Film, indices: Sequence[int]) -> tuple[Part | Shown, ...]:
        """Return a video as parts of a prompt. From any thread."""
        raise NotImplementedError

    def _takes_videos(self) -> None:
        config = self.config
        self.video_token = int(config.video_token_id if hasattr(config, "video_token_id") else config.video_token_index)
        self.video_marker = self._spelled(self.video_token, "video")

    def _spelled(self, token: int, kind: str) -> str:
        """Return the token of a picture or a video as templates write it."""
        if spelling := self._words.spelling(token):
            return spelling
        raise ModelLoadError(f"{self.name}: config.json has {token} as the {kind} token's id, which the tokenizer does not have; download both again")

    def drop_model(self) -> None:
        """Drop the tower; nothing is looked at any longer."""
        self.model = None

    @torch.inference_mode()
    def look(self, shown: Sequence[Shown]) -> list[Tensor]:
        """Return features of each, [count, (1 + deeper) · hidden_size]: in place of embeddings, then those added after
        the first, second, … layer."""
        with self._timer.timed():
            return [features for together in _together(shown) for features in self._features(together)]

    @property
    def seconds(self) -> float:
        """Return the seconds that the tower has computed so far."""
        return self._timer.seconds

    def _pixels(self, found: Mapping[str, Any]) -> np.ndarray:
        """Return what a processor made, of the size that the tower takes: from it a pass would fail, with the requests that are in it."""
        pixels, side = np.asarray(found["pixel_values"], np.float32), self.config.vision_config.image_size
        if pixels.shape[-2:] != (side, side):
            raise ValueError(f"its processor makes pictures of {pixels.shape[-1]} × {pixels.shape[-2]} pixels, and its tower takes {side} × {side}")
        return pixels

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels = self._on_device([one.inputs["pixel_values"] for one in shown], dtype=self.model.dtype)
        return list(self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output)

    def _on_device(self, arrays: Sequence[np.ndarray], *, dtype: torch.dtype | None = None) -> Tensor:
        """Return tensors on the device, joined along the first axis."""
        joined = torch.from_numpy(np.concatenate(arrays))
        if self.model.device.type == "cuda":  # a copy from pageable memory would wait for the pass before this one
            joined = joined.pin_memory().to(self.model.device, non_blocking=True)
        return joined.to(dtype)


def _together(shown: Sequence[Shown]) -> Iterator[list[Shown]]:
    """Return groups that go through a tower together."""
    group: list[Shown] = []
    for one in shown:
        if group and sum(other.count for other in group) + one.count > _AT_ONCE:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


class QwenVL(Vision):
    """Qwen2-VL and Qwen2.5-VL. Frames of a video are looked at in pairs."""

    decoder = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}

    def _set_up(self) -> None:
        super()._set_up()
        self._takes_videos()
        self._merge = int(self.config.vision_config.spatial_merge_size)
        self._pair = int(self.config.vision_config.temporal_patch_size)
        self._patch = int(self.config.vision_config.patch_size)

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        found = self.processor(images=picture, return_tensors="np")
        return (self._shown(np.asarray(found["pixel_values"], np.float32), np.asarray(found["image_grid_thw"], np.int64)),)

    def _shown(self, pixels: np.ndarray, grid: np.ndarray, *, interval: float = 1.0, moving: bool = False) -> Shown:
        """Build from grid [1, 3]: patches in time, height and width. `interval`: from a pair of frames to the next, in
        positions. The following text is after all of them, as in training (transformers 5 continues inside of a video
        that is longer than wide)."""
        pairs, tall, wide = grid[0] // (1, self._merge, self._merge)
        axes = np.stack(np.meshgrid((np.arange(pairs) * interval).astype(np.int64), np.arange(tall), np.arange(wide), indexing="ij")).reshape(3, -1)
        return Shown(axes.shape[1], {"pixel_values": pixels, "grid": grid}, axes, int(axes.max()) + 1, moving=moving)

    def sample(self, film: Film, wanted: Frames) -> list[int]:
        return frames.paired(film, wanted, self.filming)

    def tokens(self, film: Film, number: int) -> int:
        tall, wide = self._size(number, film.height, film.width)
        return -(-number // self._pair) * (tall * wide // (self._patch * self._merge) ** 2)

    def watch(self, film: Film, indices: Sequence[int]) -> tuple[Part | Shown, ...]:
        pixels, grid = self._pairs(film, indices)
        a_second = getattr(self.config.vision_config, "tokens_per_second", None)  # positions; None: one a pair, however long it is
        interval = 1.0 if a_second is None else a_second * self._pair / (len(indices) / film.count * film.rate)
        return (self._shown(pixels.reshape(-1, pixels.shape[-1]), grid, interval=interval, moving=True),)

    def _pairs(self, film: Film, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return patches, [pairs, of a pair, values of a patch], and their grid, [1, 3]; an odd last frame is paired
        with itself."""
        number, shape, pairs = -(-len(indices) // self._pair), (0, 0), np.empty(0)
        for at, picture in enumerate(film.at(indices)):
            tall, wide = self._size(len(indices), picture.height, picture.width)
            if not at:
                shape = tall // self._patch, wide // self._patch
                pairs = np.empty((number, shape[0] * shape[1], 3, self._pair, self._patch**2), np.float32)
            same = picture.resize((wide, tall), self.processor.resample)
            patches = np.asarray(self.processor(images=same, do_resize=False, return_tensors="np")["pixel_values"], np.float32)
            pairs[at // self._pair, :, :, at % self._pair :] = patches.reshape(*pairs.shape[1:])[:, :, :1]  # a picture has each patch twice
        return pairs.reshape(*pairs.shape[:2], -1), np.array([[number, *shape]])

    def _size(self, number: int, height: int, width: int) -> tuple[int, int]:
        return frames.size_of_each(number, height, width, self._patch * self._merge, self._pair, self.filming)

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels, grid = (self._on_device([one.inputs[name] for one in shown]) for name in ("pixel_values", "grid"))
        found = self.model.get_image_features(pixels.to(self.model.dtype), grid, return_dict=True)
        sizes = [len(features) for features in found.pooler_output]
        deeper = getattr(found, "deepstack_features", None) or ()  # each of all pictures, which later versions of transformers split
        deeper = [every.split(sizes) if isinstance(every, Tensor) else every for every in deeper]
        return [torch.cat(parts, -1) for parts in zip(found.pooler_output, *deeper, strict=True)]


class Qwen3VL(QwenVL):
    """Qwen3-VL; its tower's features are added after the first layers, too. A pair of frames is a picture after its
    timestamp, within the tokens that the template writes once around a whole video."""

    def _set_up(self) -> None:
        super()._set_up()
        self.video_marker = None
        self._begin, self._end = (Special(self._spelled(token, "video's")) for token in (self.config.vision_start_token_id, self.config.vision_end_token_id))

    def sample(self, film: Film, wanted: Frames) -> list[int]:
        return frames.spread(film, wanted, self.filming)

    def watch(self, film: Film, indices: Sequence[int]) -> tuple[Part | Shown, ...]:
        pixels, grid = self._pairs(film, indices)
        times = [at / film.rate for at in [*indices, *[indices[-1]] * (-len(indices) % self._pair)]]
        seen: list[Part | Shown] = []
        for i, pair in enumerate(pixels):
            first, last = times[i * self._pair], times[(i + 1) * self._pair - 1]
            shown = self._shown(pair, np.array([[1, *grid[0, 1:]]]), moving=True)
            seen += [f"<{(first + last) / 2:.1f} seconds>", self._begin, shown, self._end]
        return tuple(seen)

    def _size(self, number: int, height: int, width: int) -> tuple[int, int]:
        return frames.size_of_all(number, height, width, self._patch * self._merge, self._pair, self.filming)


class Idefics3(Vision):
    """Idefics3 and SmolVLM. `detail="low"` is only the whole, without tiles."""

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        how = {"do_image_splitting": False} if detail == "low" else {}
        found = self.processor(images=picture, return_tensors="np", return_row_col_info=True, **how)
        rows, columns = (int(np.asarray(found[name]).flat[0]) for name in ("rows", "cols"))
        marks, lines = "<fake_token_around_image>", list[str]()
        for row in range(rows):
            lines.append("".join(f"{marks}<row_{row + 1}_col_{column + 1}>{self.marker}" for column in range(columns)) + "\n")
        lines.append("\n" * bool(rows) + f"{marks}<global-img>{self.marker}{marks}")
        tiles = iter(self._pixels(found)[0])
        seen: list[Part | Shown] = []
        for i, text in enumerate("".join(lines).split(self.marker)):
            seen += [self._shown(next(tiles))] if i else []
            seen += self._words.split_specials(text)
        assert next(tiles, None) is None, "more tiles than places for them"
        return tuple(seen)

    def _set_up(self) -> None:
        vision = self.config.vision_config
        self._rows = (vision.image_size // vision.patch_size) ** 2 // self.config.scale_factor**2

    def _shown(self, pixels: np.ndarray) -> Shown:
        return Shown(self._rows, {"pixel_values": pixels[None]})

    def _features(self, shown: Sequence[Shown]) -> Sequence[Tensor]:
        pixels = self._on_device([one.inputs["pixel_values"] for one in shown], dtype=self.model.dtype)
        return self.model.get_image_features(pixels[:, None], return_dict=True).pooler_output


class SmolVLM(Idefics3):
    """SmolVLM. A frame of a video is a picture without tiles, after its timestamp."""

    def _set_up(self) -> None:
        super()._set_up()
        self.video_token = self.token
        size = (self.filming.get("video_sampling") or {}).get("video_size") or self.filming.get("size")
        self._whole = {"do_image_splitting": False, **({"size": size} if size else {})}

    def sample(self, film: Film, wanted: Frames) -> list[int]:
        return frames.within(film, wanted, self.filming)

    def tokens(self, film: Film, number: int) -> int:
        return number * self._rows

    def watch(self, film: Film, indices: Sequence[int]) -> tuple[Part | Shown, ...]:
        require("videos for SmolVLM", "video")
        from num2words import num2words

        split, marks = self._words.split_specials, "<fake_token_around_image>"
        begins = f"You are provided the following series of {num2words(len(indices))} frames from a {timedelta(seconds=int(film.seconds))} [H:MM:SS] video.\n"
        seen: list[Part | Shown] = [begins]
        for index, picture in zip(indices, film.at(indices), strict=True):
            minutes, seconds = divmod(int(index / film.rate), 60)
            pixels = self._pixels(self.processor(images=picture, return_tensors="np", **self._whole))[0]
            seen += [f"\nFrame from {minutes:02d}:{seconds:02d}:", *split(f"{marks}<global-img>"), self._shown(pixels[0]), *split(marks)]
        return (*seen, "\n\n")


class Gemma3(Vision):
    """Gemma 3: an image's tokens see each other. Its decoder runs through the attention interface."""

    def _set_up(self) -> None:
        super()._set_up()
        self.marker = self._words.spelling(self.config.boi_token_index)
        end = self._words.spelling(self.config.eoi_token_index)
        self._before, self._after = self._words.split_specials(f"\n\n{self.marker}"), self._words.split_specials(f"{end}\n\n")

    def prepare(self, picture: Pillow, detail: str) -> tuple[Part | Shown, ...]:
        pixels = self._pixels(self.processor(images=picture, return_tensors="np"))
        whole, *crops = ((*self._before, Shown(int(self.config.mm_tokens_per_image), {"pixel_values": one[None]}, mutual=True), *self._after) for one in pixels)
        if not crops:
            return whole
        first, *others = crops
        pieces = (part for crop in others for part in (" ", *crop))
        return ("Here is the original image ", *whole, " and here are some crops to help you see better ", *first, *pieces)
