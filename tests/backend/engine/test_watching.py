"""Families that take videos give transformers' greedy tokens, whatever is cached, cut or evicted; frames are those that they are used to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("av")
pytest.importorskip("num2words")

import lmc  # noqa: E402
from lmc.backend.engine.models import frames as rules  # noqa: E402
from lmc.backend.engine.prompt_pictures import Shown  # noqa: E402
from lmc.segments import Frames, Image, Text  # noqa: E402
from lmc.videos import Film  # noqa: E402
from tests.backend.engine import seeing  # noqa: E402
from tests.backend.engine.seeing import ASK, TOKENS, A, Pair  # noqa: E402
from tests.backend.engine.test_families import FAMILIES as SEEING  # noqa: E402
from tests.videos import noise, video  # noqa: E402

FAMILIES = {name: SEEING[name] for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "llava_onevision")}
FAMILIES["llava_next_video"] = (seeing.tiling, {"kind": "llava_next_video"})
RATE = 10
FOUR, NINE = (video(noise(seed, frames, *size), RATE) for seed, frames, size in ((1, 4, (96, 64)), (2, 9, (64, 64))))


def shown(data: bytes, num_frames: int | None = None, fps: float | None = None) -> Image:
    return Image(data, Frames(num_frames, fps))


def prompt(*pieces: str | bytes | Image) -> list[Text | Image]:
    return [Text((piece,)) if isinstance(piece, str) else piece if isinstance(piece, Image) else Image(piece) for piece in pieces]


PROMPTS = [
    prompt("Nothing to see."),
    prompt("Look: ", shown(FOUR, 4), "What happens?"),
    prompt("Look: ", shown(FOUR, 4), "Who is it?"),
    prompt("Look: ", shown(FOUR, 2), "Who is it?"),
    prompt(shown(NINE, 3)),
    prompt(shown(FOUR, 4), A, "Which?", shown(NINE, fps=5), "Now?"),
    prompt(A, "then", shown(NINE, 3)),
]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    make, options = FAMILIES[request.param]
    return Pair(tmp_path_factory.mktemp(request.param), make, **options)


def given(pair: Pair, media: list[Image]) -> dict[str, Any]:
    """Return what transformers' processors would hand to the model. Theirs for videos are not asked: they need torchvision."""
    found: dict[str, list[Any]] = {}
    kind = pair.model.config.model_type
    for medium in media:
        if medium.frames is None:
            seen = seeing.opened(medium.source)
            for name, tensor in pair.vision.processor(images=[[seen]], return_tensors="pt").items():
                found.setdefault(name, []).append(tensor)
            continue
        film = Film(medium)
        indices = pair.vision.sample(film, medium.frames)
        parts = [part for part in pair.vision.watch(film, indices) if isinstance(part, Shown)]
        pixels = [torch.from_numpy(next(iter(part.inputs.values()))) for part in parts]
        if kind == "smolvlm":
            found.setdefault("pixel_values", []).append(torch.stack(pixels, 1))
        elif kind.startswith("qwen"):
            found.setdefault("pixel_values_videos", []).extend(pixels)
            t, h, w = np.sum([part.inputs["grid"][0, 0] for part in parts]), *parts[0].inputs["grid"][0, 1:]
            found.setdefault("video_grid_thw", []).append(torch.tensor([[t, h, w]]))
            if kind == "qwen2_5_vl":
                found.setdefault("second_per_grid_ts", []).append(2 / (len(indices) / film.count * RATE))
        else:
            found.setdefault("pixel_values_videos", []).append(pixels[0][None])
    batched = {"pixel_values_videos": 1 if not kind.startswith("qwen") else 0, "pixel_values": 1 if kind == "smolvlm" else 0}
    joined = {
        name: values if name == "second_per_grid_ts" else torch.cat(values, batched.get(name, 0))
        for name, values in found.items()
        if name not in ("rows", "cols")
    }
    if kind == "smolvlm":
        joined.pop("pixel_attention_mask", None)
    return joined


def check(pair: Pair, engine: lmc.Engine, prompts: list[Any], handles: list[Any]) -> None:
    for one, handle in zip(prompts, handles, strict=True):
        ids = engine.prompt_ids(handle)
        begun = handle.results[0].output().usage.prompt_tokens
        media = [s for s in one if isinstance(s, Image)]
        videos = [m for m in media if m.frames is not None]
        if len(videos) > 1 and pair.model.config.model_type.startswith("llava"):
            continue  # transformers takes several of one length only
        assert ids[begun:] == seeing.generated(pair.model, ids[:begun], given(pair, media), TOKENS)
    engine.check()


def test_greedy_tokens_are_those_of_transformers(pair):
    with pair.engine() as engine:
        for one in PROMPTS:  # alone, each behind what the earlier ones left
            check(pair, engine, [one], [engine.submit(None, [*one, ASK])])


def test_programs_give_transformers_tokens(pair, monkeypatch):
    """In roles, with forks behind a video and a second turn, interpreted and compiled."""

    @lmc.function
    def watch(s, clip):
        s += lmc.user(lmc.video(clip, num_frames=4) + "What happens?")
        forks = s.fork(2)
        for f, more in zip(forks, ("Say it.", "And why?"), strict=True):
            f += lmc.user(more) + lmc.assistant(lmc.gen("a", max_tokens=TOKENS, temperature=0, ignore_eos=True))
        s += lmc.assistant(lmc.gen("b", max_tokens=TOKENS, temperature=0, ignore_eos=True))
        return [*(f["a"] for f in forks), s["b"]]

    with pair.engine() as engine:
        handles, submit = [], engine.submit
        monkeypatch.setattr(engine, "submit", lambda *given: handles.append(submit(*given)) or handles[-1])
        first = watch.run(FOUR, backend=engine).ret_value
        assert lmc.compile(watch, backend=engine)(FOUR).ret_value == first
        asked = [handle for handle in handles if handle.results]
        assert len(asked) == 6
        check(pair, engine, [[shown(FOUR, 4)]] * 6, asked)
        spent = engine.counters()
        seen = len([part for part in pair.vision.watch(Film(shown(FOUR, 4)), [0, 1, 2, 3]) if isinstance(part, Shown)])
        assert spent.images - spent.image_hits == seen, "each is looked at once"


def test_in_batches_whatever_a_chunk_cuts_through(pair):
    with pair.engine() as engine:
        expected = [engine.prompt_ids(engine.submit(None, [*one, ASK])) for one in PROMPTS]
    with pair.engine(chunk=7, max_batch=5) as engine:
        assert [engine.prompt_ids(handle) for handle in [engine.submit(None, [*one, ASK]) for one in PROMPTS]] == expected
        engine.check()


def test_preempted_and_evicted_in_the_middle(pair):
    pair.check_preempted(PROMPTS)


def test_equal_videos_hit_token_by_token(pair):
    with pair.engine() as engine:

        def cached(video: Image) -> tuple[int, int]:
            usage = engine.submit(None, [Text(("Look: ",)), video, Text((" Why?",)), ASK]).results[0].output().usage
            return usage.cached_tokens, usage.prompt_tokens

        assert cached(shown(FOUR, 4))[0] == 0
        again, whole = cached(shown(bytes(FOUR), 4))
        assert again == whole - 1
        assert cached(shown(NINE, 4))[0] < whole - 1
        found = engine.counters()
        assert 3 * (found.images - found.image_hits) == 2 * found.images, "each is looked at once"


@pytest.mark.parametrize("kind", ["llava_next_video", "llava_onevision"])
def test_features_are_those_of_older_transformers_too(kind, tmp_path, monkeypatch):
    """5.17 returns them by video, and OneVision's without the newline behind it."""
    make, options = FAMILIES[kind]
    vision = Pair(tmp_path, make, **options).vision
    film = Film(clip := shown(FOUR, 4))
    parts = [part for part in vision.watch(film, vision.sample(film, clip.frames)) if isinstance(part, Shown)]
    features_now = vision.model.get_video_features

    def features_then(*args: Any, **given: Any) -> Any:
        found = features_now(*args, **given)
        found.pooler_output = tuple(found.pooler_output) if kind == "llava_next_video" else found.pooler_output[:, :-1]
        return found

    expected = vision.look(parts)
    monkeypatch.setattr(vision.model, "get_video_features", features_then)
    torch.testing.assert_close(vision.look(parts), expected)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_what_follows_a_long_video_is_behind_all_of_it(kind, tmp_path):
    make, options = FAMILIES[kind]
    pair = Pair(tmp_path, make, **options)
    clip = shown(NINE, 8)
    one = prompt("Look: ", clip, "What?")
    with pair.engine() as engine:
        handle = engine.submit(None, [*one, ASK])
        ids, begun = engine.prompt_ids(handle), handle.results[0].output().usage.prompt_tokens
        (axes,) = [part.axes for part in pair.vision.watch(Film(clip), pair.vision.sample(Film(clip), Frames(8))) if isinstance(part, Shown)]
    assert axes is not None and axes[0].max() > axes[1:].max(), "longer than wide"
    where = ids.index(103)
    before, behind = np.arange(where)[None].repeat(3, 0), np.arange(begun + TOKENS)[None].repeat(3, 0)
    axes = np.concatenate([before, where + axes], 1)
    positions = torch.from_numpy(np.concatenate([axes, axes.max() + 1 + behind], 1)[:, None])
    media, seen = given(pair, [clip]), list(ids[:begun])
    media.pop("second_per_grid_ts", None)
    with torch.inference_mode():
        for _ in range(TOKENS):
            kinds = 2 * (torch.tensor([seen]) == 103).int()
            out = pair.model(input_ids=torch.tensor([seen]), position_ids=positions[..., : len(seen)], mm_token_type_ids=kinds, use_cache=False, **media)
            seen.append(int(out.logits[0, -1].argmax()))
    assert ids == seen


def test_patches_hold_frames_in_pairs(tmp_path):
    pair = Pair(tmp_path, seeing.qwen, kind="qwen2_vl")
    film = Film(shown(video(noise(5, 3, 112, 56), codec="ffv1", kind="matroska")))
    (part,) = [part for part in pair.vision.watch(film, [0, 1, 2]) if isinstance(part, Shown)]
    t, h, w = (int(n) for n in part.inputs["grid"][0])
    pictures = [
        pair.vision.processor(images=p.resize((w * 14, h * 14), 3), do_resize=False, do_normalize=True, return_tensors="np") for p in film.at([0, 1, 2])
    ]
    each = [p["pixel_values"].reshape(h * w, 3, 2, 14 * 14) for p in pictures]
    found = part.inputs["pixel_values"].reshape(t, h * w, 3, 2, 14 * 14)
    assert t == 2
    for i, frame in enumerate((0, 1, 2, 2)):  # the last is its own pair
        np.testing.assert_array_equal(found[i // 2, :, :, i % 2], each[frame][:, :, 0])


# frames of a video of 25 at 10 a second, and of 300 at 30: what transformers 5.23 samples
SAMPLED = [
    (rules.paired, (25, 10), Frames(), [0, 6, 12, 18]),
    (rules.paired, (25, 10), Frames(5), [0, 6, 12, 18]),
    (rules.paired, (25, 10), Frames(None, 4.0), [0, 2, 5, 7, 10, 12, 15, 17, 20, 22]),
    (rules.paired, (300, 30), Frames(), list(range(0, 300, 15))),
    (rules.spread, (25, 10), Frames(), [0, 6, 12, 18, 24]),
    (rules.spread, (25, 10), Frames(3), [0, 12, 24]),
    (rules.spread, (300, 30), Frames(None, 0.5), [0, 75, 150, 224, 299]),
    (rules.within, (25, 10), Frames(), [0, 24]),
    (rules.within, (25, 10), Frames(3), [0, 12, 24]),
    (rules.within, (3000, 30), Frames(), np.linspace(30, 2970, 64, dtype=int).tolist()),
]


@pytest.mark.parametrize(("rule", "length", "wanted", "expected"), SAMPLED)
def test_frames_are_those_that_the_family_is_used_to(rule, length, wanted, expected):
    film = Film.__new__(Film)
    film.count, film.rate = length
    assert rule(film, wanted, {}) == expected


def test_llava_takes_eight_or_thirty_two_evenly():
    film = Film.__new__(Film)
    film.count, film.rate = 100, 25.0
    assert rules.evenly(film, Frames(), 8) == [0, 12, 25, 37, 50, 62, 75, 87]
    assert len(rules.evenly(film, Frames(), 32)) == 32
    assert rules.evenly(film, Frames(None, 1.0), 32) == [0, 25, 50, 75]
    film.count = 5
    assert rules.evenly(film, Frames(), 8) == [0, 1, 2, 3, 4]


def test_what_has_no_room_is_refused_before_frames_are_decoded(pair, monkeypatch):
    with pair.engine(max_tokens=16) as engine:
        monkeypatch.setattr(Film, "at", lambda film, indices: pytest.fail("decoded"))
        many = video(noise(0, 40, 16, 16), codec="ffv1", kind="matroska")
        with pytest.raises(lmc.ParameterError, match=r"video\(…\): 40 frames of it are \d+ tokens to .*, whose prompts have room for \d+"):
            engine.submit(None, [shown(many, 40), ASK]).results[0].output()


def test_tokens_are_known_before_frames_are_decoded(pair):
    with pair.engine() as engine:
        sight = engine._builder.eyes.sight
        for number in (1, 2, 3, 5):
            seen = sight.watch(Film(shown(NINE)), range(number))
            assert sight.tokens(Film(shown(NINE)), number) == sum(part.count for part in seen if isinstance(part, Shown))


def test_models_that_take_images_alone_say_so(tmp_path):
    pair = Pair(tmp_path, seeing.llava)
    with pair.engine() as engine:
        assert not engine.capabilities.videos

        @lmc.function
        def look(s):
            s += lmc.user(lmc.video(FOUR, 4)) + lmc.assistant(lmc.gen("x"))

        with pytest.raises(lmc.UnsupportedOpError, match=r"test_watching.py:\d+: .*does not support video input: append some of its frames"):
            look.run(backend=engine).sync()
