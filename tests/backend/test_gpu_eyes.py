"""Models that see on a GPU: choices are as likely as on the reference's CPU, in passes with pictures and in captured ones behind them."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.model]
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("num2words")

from lmc.backend.local_model import Engine  # noqa: E402
from lmc.segments import Frames, Image, Select, Text  # noqa: E402
from tests.backend.engine import seeing  # noqa: E402
from tests.backend.engine.test_families import FAMILIES as OTHERS  # noqa: E402

DEVICE = "cuda"
FAMILIES = {"llava": (seeing.llava, {}), "llava_next_video": (seeing.tiling, {"kind": "llava_next_video"}), **OTHERS}
NEAR = 0.5  # of a choice's mean log-probability: bfloat16 is off by 0.24, positions or features that are wrong by 2.2 and more
CHOICES = Select(("A", "B+", "C-", "no"))


def likely(engine, prompts):
    """Mean log-probabilities of the choices: behind each prompt, and behind a text after it."""
    found = []
    for first in [engine.submit(None, [*one, CHOICES]) for one in prompts]:
        second = engine.submit(first, [Text((" And now? ",)), CHOICES])
        found += [handle.results[0].output().metas[0]["normalized_prompt_logprobs"] for handle in (first, second)]
    engine.check()
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_choices_are_as_likely_as_on_a_cpu(name, tmp_path):
    make, options = FAMILIES[name]
    make(tmp_path, **options)
    prompts = seeing.PROMPTS[1:5] + [seeing.PROMPTS[7]]
    with Engine(str(tmp_path), device="cpu", dtype="float32", max_tokens=2000) as cpu:
        if cpu.capabilities.videos:
            pytest.importorskip("av")
            from tests.videos import noise, video

            prompts = [*prompts, [Text(("Look: ",)), Image(video(noise(2, 9, 64, 64), 10), Frames(3)), Text(("Who?",))]]
        expected = likely(cpu, prompts)
    for chunk in (2048, 32):
        with Engine(str(tmp_path), device=DEVICE, dtype="bfloat16", max_tokens=4000, chunk=chunk) as engine:
            for ours, theirs in zip(likely(engine, prompts), expected, strict=True):
                assert ours == pytest.approx(theirs, abs=NEAR)
