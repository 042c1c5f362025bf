"""Frames of a video by model family: selection and size. The rules of transformers' video processors, whose own code
needs torchvision.

    evenly   LLaVA-OneVision, LLaVA-NeXT-Video
    paired   Qwen2-VL, Qwen2.5-VL: frames are processed in pairs
    spread   Qwen3-VL: the first and the last among them
    within   SmolVLM: so many at most, without the first and the last second of a long video
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmc.backend.engine.models.files import json_or_none
from lmc.segments import Frames
from lmc.videos import Film

_FILES = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")


def settings(path: Path) -> dict[str, Any]:
    """Return a directory's settings of its video processor; missing ones from the image processor."""
    for name in _FILES:
        found = json_or_none(path / name)
        if found is not None and name == _FILES[0]:
            found = found.get("video_processor")
        if isinstance(found, dict):
            return found
    return {}


# -- selection
# -------------------------------------------------------------------------------------------------------------


def evenly(film: Film, wanted: Frames, usual: int) -> list[int]:
    """Return so many indices, evenly spaced; `usual` many by default."""
    number = wanted.num_frames or (min(usual, film.count) if wanted.fps is None else max(1, int(film.seconds * wanted.fps)))
    number = min(number, film.count)
    return [i * film.count // number for i in range(number)]


def paired(film: Film, wanted: Frames, given: Mapping[str, Any]) -> list[int]:
    """Return a number divisible by the tower's pairs, if the video has as many."""
    pair = int(given.get("temporal_patch_size") or 2)
    if wanted.num_frames is not None:
        number = max(1, round(wanted.num_frames / pair)) * pair
    else:
        least, most = _bounds(given)
        most = min(most, film.count) // pair * pair
        number = int(min(max(film.seconds * _rate(wanted, given), least), most)) // pair * pair
    number = min(number, film.count) or film.count
    return [int(at) for at in np.arange(number) * (film.count / number)]


def spread(film: Film, wanted: Frames, given: Mapping[str, Any]) -> list[int]:
    least, most = _bounds(given)
    number = wanted.num_frames or min(max(int(film.seconds * _rate(wanted, given)), least), most, film.count)
    return np.linspace(0, film.count - 1, number).round().astype(int).tolist()


def within(film: Film, wanted: Frames, given: Mapping[str, Any]) -> list[int]:
    sampling = given.get("video_sampling") or {}
    rate = wanted.fps or float(given.get("fps") or sampling.get("fps") or 1)
    most = wanted.num_frames or int(given.get("num_frames") or sampling.get("max_frames") or 64)
    number = wanted.num_frames or max(1, min(round(rate * film.seconds), most))
    first, last = 0, film.count - 1
    if film.seconds - 2 > most * rate:
        first, last = int(film.rate), min(int(film.count - film.rate), last)
    return np.unique(np.linspace(first, last, number, dtype=int)).tolist()


def _bounds(given: Mapping[str, Any]) -> tuple[int, int]:
    return int(given.get("min_frames") or 4), int(given.get("max_frames") or 768)


def _rate(wanted: Frames, given: Mapping[str, Any]) -> float:
    return wanted.fps or float(given.get("fps") or 2)


# -- size ---------------------------------------------------------------------------------------------------------


def size_of_each(frames: int, height: int, width: int, factor: int, pair: int, given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size by Qwen2-VL's rule: pixels of each frame are bounded. Raises ValueError for an unsupported
    shape."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    least, most = _pixels(given, 128 * 28 * 28, 28 * 28 * 768)
    if given.get("cap_pixels_per_frame"):
        share = int(int(given.get("max_video_tokens") or 128_000) * factor**2 * 0.9) * pair // frames
        most = max(min(most, share), int(least * 1.05))
    return smart_resize(height, width, factor, least, most)


def size_of_all(frames: int, height: int, width: int, factor: int, pair: int, given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size by Qwen3-VL's rule: pixels of all frames together are bounded. Raises ValueError for an
    unsupported shape."""
    least, most = _pixels(given, 128 * 32 * 32, 32 * 32 * 768)
    if given.get("cap_pixels_per_frame"):
        share = min(int(given.get("max_video_tokens") or 768) * factor**2, most // frames)
        most = max(share, int(least * 1.05)) * frames
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"the aspect ratio of its frames is {max(height, width) / min(height, width):.0f}, and must be smaller than 200")
    tall, wide, long = round(height / factor) * factor, round(width / factor) * factor, max(1, round(frames / pair)) * pair
    if long * tall * wide > most:
        shrink = math.sqrt(frames * height * width / most)
        tall, wide = (max(factor, math.floor(n / shrink / factor) * factor) for n in (height, width))
    elif long * tall * wide < least:
        grow = math.sqrt(least / (frames * height * width))
        tall, wide = (math.ceil(n * grow / factor) * factor for n in (height, width))
    return tall, wide


def _pixels(given: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    """Return the fewest and the most pixels, by whichever names a file has for them."""
    size = given.get("size") or {}
    return int(given.get("min_pixels") or size.get("shortest_edge") or least), int(given.get("max_pixels") or size.get("longest_edge") or most)
