"""The benchmark of pictures and videos runs on its tiny shape, beside transformers, and says where the time went."""

import json

import pytest

pytestmark = pytest.mark.model
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")


@pytest.mark.parametrize("video", [False, True])
def test_programs_on_an_engine_and_beside_it(video, tmp_path, capsys):
    from benchmarks import bench_pictures

    if video:
        pytest.importorskip("av")
    out = tmp_path / "rows.json"
    given = ["--n", "3", "--scale", "0.1", "--reps", "1", "--beside", "1", *(["--video", "2"] if video else []), "--json", str(out)]
    assert bench_pictures.main(given) == 0
    theirs, ours = json.loads(out.read_text())["rows"]
    assert (theirs["tower_runs"], ours["tower_runs"], ours["optimality"]) == (6, 3, 1.0)
    assert ours["images_per_s"] == pytest.approx(ours["programs_per_s"] * (2 if video else 1))
    device = ours["parts"]["device"]
    assert device["tower"]["rows"] == 3
    tokens = 3 * 2 * 4 if video else 3 * 16  # a tiny picture is 4 × 4 patches, which a video's frame pools
    assert device["pictures"]["of_pictures"] == tokens
    printed = capsys.readouterr().out
    assert ("frames/s" if video else "images/s") in printed and "gaps before" in printed
