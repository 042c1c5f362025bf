"""Families of models that see give transformers' greedy tokens, whatever is cached, cut or evicted."""

from __future__ import annotations

import logging

import pytest

pytestmark = pytest.mark.model
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import lmc  # noqa: E402
from lmc.backend.engine.models import directory, loader, vision  # noqa: E402
from lmc.backend.engine.prompt_pictures import Shown  # noqa: E402
from lmc.segments import ChoicesMethod, Image, Select, Text  # noqa: E402
from tests.backend.engine import seeing  # noqa: E402
from tests.backend.engine.seeing import ASK, PROMPTS, TOKENS, A, B, Pair, prompt  # noqa: E402

FAMILIES = {
    "llava": (seeing.llava, {"text": "mistral"}),
    "llava_siglip": (seeing.llava, {"text": "qwen2", "tower": "siglip", "strategy": "full"}),
    "qwen2_vl": (seeing.qwen, {"kind": "qwen2_vl"}),
    "qwen2_5_vl": (seeing.qwen, {"kind": "qwen2_5_vl"}),
    "smolvlm": (seeing.idefics, {}),
    "idefics3": (seeing.idefics, {"kind": "idefics3"}),
    "llava_next": (seeing.tiling, {"kind": "llava_next"}),
    "llava_onevision": (seeing.tiling, {"kind": "llava_onevision"}),
    "qwen3_vl": (seeing.qwen, {"kind": "qwen3_vl"}),
    "gemma3": (seeing.gemma, {}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    make, options = FAMILIES[request.param]
    return Pair(tmp_path_factory.mktemp(request.param), make, **options)


def test_greedy_tokens_are_those_of_transformers(pair):
    with pair.engine() as engine:
        for one in PROMPTS:  # alone, each behind what the earlier ones left
            pair.check(engine, [one], [engine.submit(None, [*one, ASK])])


def test_in_batches_whatever_a_chunk_cuts_through(pair):
    with pair.engine(chunk=7, max_batch=5) as engine:
        pair.check(engine, PROMPTS, [engine.submit(None, [*one, ASK]) for one in PROMPTS])


def test_preempted_and_evicted_in_the_middle(pair):
    pair.check_preempted(PROMPTS)


def test_an_answer_is_gone_on_from(pair):
    with pair.engine() as engine:
        first = engine.submit(None, [*PROMPTS[1], ASK])
        second = engine.submit(first, prompt(" And here? ", B, "?") + [ASK])
        ids, begun = engine.prompt_ids(second), second.results[0].output().usage.prompt_tokens
        assert ids[begun:] == pair.expected(ids[:begun], [A, B], TOKENS)
        assert second.results[0].output().usage.cached_tokens >= first.results[0].output().usage.prompt_tokens


def test_programs_show_pictures_in_messages(pair):
    """In several turns, forks and both modes; the whole prompt is what transformers continues in the same way."""

    @lmc.function
    def talk(s, first, second):
        s += lmc.user(lmc.image(first) + "What?") + lmc.assistant(lmc.gen("a", max_tokens=4, temperature=0))
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += lmc.user("And " + lmc.image(second) + str(i)) + lmc.assistant(lmc.gen("b", max_tokens=4, temperature=0))
        return s["a"], [f["b"] for f in forks]

    asked = []
    with pair.engine() as engine:
        gen = engine._builder.gen
        engine._builder.gen = lambda *args: asked.extend(made := gen(*args)) or made
        found = talk.run(A, B, backend=engine).ret_value
        requests, spelled = list(asked), engine._builder.results.spelled
        assert lmc.compile(talk, backend=engine)(A, B).ret_value == found
        assert len(requests) == 3
        for req, pictures in zip(requests, ([A], [A, B], [A, B]), strict=True):
            prompt, answer = (spelled(req.ids[begin:end]) for begin, end in ((0, req.prompt_len), (req.prompt_len, req.length)))
            if prompt.count(seeing.IMAGE_TOKEN) == sum(at.picture.count for at in req.pictures):  # else the model has said one, which transformers cannot take
                assert answer == seeing.reference(pair.model, pair.vision, prompt, pictures, 4)[: len(answer)]


def test_selects_see_the_picture_where_it_is(pair):
    ask = [*PROMPTS[1], Text(("Grade: ",)), Select(("A", "B+", "C-"), method=ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED)]
    with pair.engine() as engine, pair.engine(cache="off") as alone:
        engine.submit(None, [*PROMPTS[2], ASK]).results[0].output()
        found, expected = (each.submit(None, ask).results[0].output().metas[0] for each in (engine, alone))
        for name in ("input_token_logprobs", "unconditional_token_logprobs"):
            for one, other in zip(found[name], expected[name], strict=True):
                assert [lp for lp, *_ in one] == pytest.approx([lp for lp, *_ in other], abs=1e-4)


def test_the_template_says_what_stands_around_a_picture(pair):
    around = {"qwen": (("<|vision_start|>",), ("<|vision_end|>",)), "smolvlm": ((), ()), "idefics": ((), ()), "gemma": ((), ())}
    expected = next((found for kind, found in around.items() if pair.model.config.model_type.startswith(kind)), ((), ("\n",)))
    assert tuple(tuple(map(str, map(spelled, parts))) for parts in (pair.vision.around.before, pair.vision.around.after)) == expected


LESS = {"smolvlm": {"do_image_splitting": False}, "llava_onevision": {}}


def test_no_layer_of_a_tower_copies_its_rows(pair):
    told = []
    for name, module in pair.vision.model.named_modules():
        if name.endswith("layer_norm1"):
            module.register_forward_pre_hook(lambda _, given: told.append(given[0].is_contiguous()))
    pair.vision.look([part for part in pair.vision.prepare(seeing.opened(A), "auto") if isinstance(part, Shown)])
    assert all(told) and bool(told) == ("qwen" not in pair.model.config.model_type)


@pytest.mark.parametrize("kind", LESS)
def test_less_detail_is_a_picture_without_tiles(kind, tmp_path):
    make, options = FAMILIES[kind]
    pair = Pair(tmp_path, make, **options)
    with pair.engine() as engine:
        handle = engine.submit(None, [Text(("Two: ",)), *(Image(data, detail="low") for data in (A, B)), ASK])
        ids, begun = engine.prompt_ids(handle), handle.results[0].output().usage.prompt_tokens
    given = pair.vision.processor(images=[[seeing.opened(A), seeing.opened(B)]], return_tensors="pt", **LESS[kind])
    assert ids[begun:] == seeing.generated(pair.model, ids[:begun], given, TOKENS)


def test_a_shape_that_no_processor_takes_is_an_error_at_the_line(tmp_path):
    pair = Pair(tmp_path, seeing.qwen, kind="qwen2_vl")
    with pair.engine() as engine, pytest.raises(lmc.ParameterError, match=r"cannot take 400 × 1 pixels: one side is more than 200 times"):
        engine.submit(None, [Image(seeing.picture(0, 400, 1)), ASK]).results[0].output()


def spelled(part):
    return part if isinstance(part, str) else part.spelling


def test_a_family_that_is_not_known_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "paligemma"}')
    with pytest.raises(lmc.ModelLoadError, match=r"'paligemma' takes pictures .*llava, llava_next, .*smolvlm"):
        loader.load(str(tmp_path))


def test_loading_warns_of_nothing(tmp_path, monkeypatch):
    """As transformers does when a decoder's attention is set for a tower, too."""
    pair, told = Pair(tmp_path, seeing.gemma), []
    monkeypatch.setattr(logging.getLogger("transformers"), "handle", told.append)
    monkeypatch.setattr(logging.getLogger("transformers.modeling_utils"), "handle", told.append)
    with pair.engine():
        assert [record.getMessage() for record in told] == []


def test_all_that_is_known_to_see_is_loaded():
    assert set(directory.SEEING) == set(vision.FAMILIES)
