"""Pictures in prompts of LLaVA 1.5: computed once, equal only if their pixels are, counted, bounded, refused. That answers are right: test_families.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.model
pytest.importorskip("torch")
pytest.importorskip("transformers")
pillow = pytest.importorskip("PIL.Image")

import lmc  # noqa: E402
from benchmarks.workloads import Size, pictures  # noqa: E402
from lmc.backend.engine.eyes import Eyes  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.backend.engine.prompt_pictures import laid, within  # noqa: E402
from lmc.backend.local_model import Engine  # noqa: E402
from lmc.segments import Gen, Image, SamplingParams, Select, Special, Text  # noqa: E402
from tests.backend.engine import seeing  # noqa: E402
from tests.backend.engine.seeing import ASK, PROMPTS, A, B, C, Pair  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair(tmp_path_factory.mktemp("llava"))


def test_equal_pictures_hit_token_by_token_and_others_never(pair, tmp_path):
    jpeg = tmp_path / "a.png"
    jpeg.write_bytes(A)
    pixels = np.asarray(pillow.open(jpeg).convert("RGB"))
    changed = pixels.copy()
    changed[25, 35] ^= 1  # one pixel, by the least that there is
    with pair.engine() as engine:

        def cached(source) -> int:
            return engine.submit(None, [Text(("Look: ",)), Image(source), Text(("Why?",)), ASK]).results[0].output().usage.cached_tokens

        assert cached(A) == 0
        whole = 1 + len("Look: ") + 16 + len("\nWhy?") - 1  # all but the row that gives the answer
        assert cached(str(jpeg)) == cached(pixels) == cached(pillow.fromarray(pixels)) == whole
        assert cached(changed.astype(np.uint8)) == 1 + len("Look: ")
        assert engine.counters().images == 5
        assert engine.counters().image_hits == 3


def test_forks_share_a_picture(pair):
    @lmc.function
    def judge(s, data):
        s += lmc.user(lmc.image(data) + "Essay")
        forks = s.fork(4)
        for f, dimension in zip(forks, ("clarity", "form", "style", "wit")):
            f += lmc.user(dimension) + lmc.assistant(lmc.gen("a", max_tokens=3, temperature=0))
        s += lmc.user(" ".join(f["a"] for f in forks))
        s += lmc.assistant(lmc.select("grade", ["A", "B"]) + lmc.gen("why", regex="[a-c]{4}", temperature=0))
        return s["grade"], s["why"]

    with pair.engine() as engine:
        first = judge.run(A, backend=engine).ret_value
        counters = engine.counters()
        assert counters.prefill_optimality == 1.0
        assert counters.images - counters.image_hits == 1
        assert counters.tower_seconds > 0
        assert lmc.compile(judge, backend=engine)(A).ret_value == first
        assert judge.run_batch([{"data": A}, {"data": A}], backend=engine)[1].ret_value == first
        assert (engine.counters() - counters).images == (engine.counters() - counters).image_hits
        engine.check()


def test_log_probabilities_of_a_prompt_leave_pictures_out(pair):
    scored = Gen(SamplingParams(max_new_tokens=2, temperature=0.0, return_logprob=True, logprob_start_len=0, return_text_in_logprobs=True))
    with pair.engine() as engine:
        meta = engine.submit(None, [Text(("Hm ",)), Image(A), Text(("Hm",)), scored]).results[0].output().metas[0]
    tokens = meta["input_token_logprobs"]
    assert [token for _, token, _ in tokens].count(seeing.IMAGE_TOKEN) == 16
    assert all((logprob is None) == (token == seeing.IMAGE_TOKEN) for logprob, token, _ in tokens[1:])


def test_features_are_kept_within_bounds(pair):
    eyes = Eyes(pair.vision, pool=2 * 16 * 64 * 4)
    pictures = [picture for data in (A, B, C) for picture in eyes.placed(Image(data), 100).pictures]
    found = eyes.features(pictures)
    assert len(found) == 3, "a pass has all that it needs, whatever is kept"
    assert len(eyes._features) == 2 and eyes._held == 2 * 16 * 64 * 4
    again = eyes.features(pictures[:1])
    np.testing.assert_array_equal(again[pictures[0].number].numpy(), found[pictures[0].number].numpy())


def test_what_is_more_than_all_the_room_is_seen_once(pair):
    """As a video, whose prefill takes many passes."""
    eyes = Eyes(pair.vision, pool=1)
    (picture,) = eyes.placed(Image(A), 100).pictures
    for _ in range(3):
        eyes.features([picture])
    assert eyes._computed == 1


def test_a_flushed_cache_has_seen_nothing(pair):
    with pair.engine() as engine:
        for _ in range(2):
            engine.submit(None, [*PROMPTS[1], ASK]).results[0].output()
            engine.flush_cache()
        assert (engine.counters().images, engine.counters().image_hits, engine.counters().cached_tokens) == (2, 0, 0)


def test_sixty_four_pictures_with_six_questions_each(pair):
    """The benchmark's workload: each picture is looked at once, and no token of a prompt is computed twice, in either mode."""
    workload = pictures(Size(0.05))
    items = workload.items(64, 0)
    with pair.engine(max_tokens=12_000, chunk=100) as engine:
        answers = []
        for run in (workload.program.run_batch, lmc.compile(workload.program, backend=engine).batch):
            engine.flush_cache()
            before = engine.counters()
            answers.append([state.ret_value for state in run(items, temperature=0, **({"backend": engine} if not answers else {}))])
            spent = engine.counters() - before
            assert spent.images - spent.image_hits == 64
            assert spent.prefill_optimality == 1.0
            assert spent.calls == 64 * 6
        assert answers[0] == answers[1]
        engine.check()


def test_runs_of_one_picture_are_told_apart(pair):
    eyes = Eyes(pair.vision)
    (picture,) = eyes.placed(Image(A), 100).pictures
    ids = np.array([5, *[picture.number] * 32, 6])
    placed = laid(ids, (picture, picture))
    assert [at.start for at in placed] == [1, 17]
    assert list(within(placed, 10, 20)) == [(placed[0], 9, 16, 0), (placed[1], 0, 3, 7)]


@pytest.mark.parametrize("seam", ["token", "text"])
def test_the_spelling_of_an_image_token_is_text(pair, seam):
    with pair.engine(seam=seam) as engine:
        handle = engine.submit(None, [Text(("<image>",)), Image(A), ASK])
        assert engine.prompt_ids(handle)[: 1 + len("<image>")].count(seeing.IMAGE_TOKEN) == 0
        after = engine.submit(handle, [Select(("x", "y")), Text(("so",)), ASK])
        assert engine.prompt_ids(after).count(seeing.IMAGE_TOKEN) == 16
        engine.check()


def test_the_template_writes_images_as_transformers_does(pair):
    loaded = load(pair.folder)
    assert (loaded.vision.around.lead, loaded.vision.around.close) == ((), ("\n",))
    with pair.engine() as engine:

        @lmc.function
        def ask(s):
            s += lmc.user(lmc.image(A) + "What?") + lmc.assistant(lmc.gen("x", max_tokens=2, temperature=0))

        assert ask.run(backend=engine)["x"]
        parts = ("USER: ", Special("<image>"), "\nWhat? ASSISTANT:")
        assert engine.counters().prompt_tokens == len(engine.encode(parts)) + 15


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_too_many_pictures_are_refused_before_the_model_is_asked(pair):
    with pair.engine(max_tokens=100) as engine:

        @lmc.function
        def look(s):
            for _ in range(7):
                s += lmc.image(A)
            s += lmc.gen("x", max_tokens=2)
            return s["x"]

        with pytest.raises(lmc.PromptTooLongError, match=r"7 pictures of 112 tokens in it\) has 120 tokens"):
            look.run(backend=engine).sync()
        assert engine.counters().passes == 0
    with pair.engine(max_tokens=16) as engine, pytest.raises(lmc.ParameterError, match="a picture is 16 tokens"):
        engine.submit(None, [Image(A), ASK]).results[0].output()


def test_what_is_no_picture_breaks_nothing_else(pair):
    with pair.engine() as engine:
        running = engine.submit(None, [*PROMPTS[1], ASK])
        for source, why in ((A[:-200], "damaged"), (b"", "empty"), ("https://host/a.png", "web address")):
            with pytest.raises(lmc.LmcError, match=why):
                engine.submit(None, [Image(source), ASK])
        pair.check(engine, [PROMPTS[1]], [running])


def test_each_bad_picture_of_a_batch_is_its_own_items_error(pair):
    """A bomb, torn files, an animation, CMYK, 16 bits, no pixels, no file: at the user's line, and the others are answered."""
    from tests import pictures

    def encoded(image, format, **more):
        image.save(buffer := io.BytesIO(), format=format, **more)
        return buffer.getvalue()

    noise, frames = pillow.effect_noise((64, 64), 90), [pillow.new("L", (8, 8), grey) for grey in (0, 90, 200)]
    bad = {
        "limit is 67": pictures.png(claimed=(10_000, 10_000)),
        "damaged": encoded(noise, "JPEG")[:-800],
        "animated": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "CMYK": encoded(pillow.new("CMYK", (4, 4)), "JPEG"),
        "I;16": pictures.png(bits=16),
        "damaged|no picture": pictures.png(claimed=(0, 0)),
        "neither PNG": b"text",
        "No such file": "nowhere.png",
    }

    @lmc.function
    def look(s, source):
        s += lmc.user(lmc.image(source) + "What?")  # here
        s += lmc.assistant(lmc.gen("x", max_tokens=4, temperature=0))
        return s["x"]

    line = Path(__file__).read_text().partition("# here")[0].count("\n") + 1
    items = [{"source": source} for other in bad.values() for source in (A, other)]
    with pair.engine() as engine:
        alone = look.run(A, backend=engine).ret_value
        for run in (look.run_batch, lmc.compile(look, backend=engine).batch):
            states = run(items, errors="return", **({"backend": engine} if run == look.run_batch else {}))
            assert [state.ret_value for state in states[::2]] == [alone] * len(bad)
            for why, state in zip(bad, states[1::2], strict=True):
                error = state.error()
                assert isinstance(error, lmc.LmcError) and re.search(why, str(error)) and error.loc.line == line
        engine.check()


def test_a_model_without_eyes_says_so(tiny_smollm2):
    with Engine(tiny_smollm2, max_tokens=64) as engine, pytest.raises(lmc.UnsupportedOpError, match="image input"):
        engine.submit(None, [Image(A), ASK])


def test_dummy_weights_see_too(pair):
    with Engine(pair.folder, load_format="dummy", max_tokens=200) as engine:
        assert len(engine.submit(None, [*PROMPTS[1], ASK]).results[0].output().text) > 0
