"""`image(…)`: the values it takes, the pictures it makes of them, and those it refuses at the user's line."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import lmc
from lmc.errors import LmcError, Loc
from lmc.images import MOST_BYTES, _opened, bytes_of_file, data_url, decoded, digest, encoded, read
from lmc.segments import Image
from tests.pictures import png

PNG = png()


def as_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_files_bytes_and_data_urls_are_one_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    sources = [tmp_path / "a.png", str(tmp_path / "a.png"), PNG, bytearray(PNG), memoryview(PNG), as_url(PNG)]
    assert {encoded(Image(source)) for source in sources} == {("image/png", PNG)}
    assert {digest(Image(source)) for source in sources} == {digest(Image(PNG))}
    assert {data_url(Image(source)) for source in sources} == {as_url(PNG)}


def test_pictures_that_are_read_at_once_leave_the_filters_of_warnings_as_they_were() -> None:
    """Threads that prepare pictures end in any order."""
    filters, first, second = warnings.filters[:], _opened(PNG), _opened(PNG)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert warnings.filters == filters


def test_data_urls_are_decoded_as_browsers_do() -> None:
    head, _, digits = as_url(PNG).partition(",")
    lines = base64.encodebytes(PNG).decode()
    for body in (lines, "\r\n" + lines, digits.rstrip("="), quote(digits, safe=""), " ".join(digits)):
        assert encoded(Image(f"{head},{body}")) == ("image/png", PNG)
    assert encoded(Image(f"data:image/png;charset=utf-8;base64,{digits}"))[1] == PNG
    for body in (digits + "A", digits + "é", digits.replace("/", "_") + "_", digits + "%"):
        with pytest.raises(lmc.ParameterError, match="not a picture's data URL"):
            read(Image(f"{head},{body}"))


def test_a_web_address_stays_one() -> None:
    assert read(Image("https://host/a.png")).source == data_url(Image("HTTPS://host/a.png")).lower() == "https://host/a.png"
    assert digest(Image("https://host/a.png")) != digest(Image("https://host/b.png"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"", "the file is empty"),
        (b"no picture", "neither PNG, JPEG, GIF nor WebP"),
        ("nowhere.png", "No such file"),
        ("a\0b", "null"),
        (".", r"image\('.'\): a directory is not read, only a regular file"),
        (base64.b64encode(bytes(9000)).decode(), r"image\('A{39}…\): File name too long; base64 is given as a data URL"),
        ("data:text/plain;base64,AAAA", "not a picture's data URL"),
        ("data:image/png;base64,A!A", "not a picture's data URL"),
        (3, "not int"),
        (io.BytesIO(PNG), r"not BytesIO; give its read\(\)"),
        ("/dev/zero", r"image\('/dev/zero'\): a pipe or a device is not read, only a regular file; else give the bytes"),
        (None, "not NoneType"),
        ([PNG], "not list"),
        (PNG + bytes(MOST_BYTES), "the limit is 64"),
    ],
)
def test_what_is_no_picture_is_an_error_at_its_line(source: Any, why: str) -> None:
    mock = lmc.Mock()

    @lmc.function
    def look(s: lmc.State) -> None:
        s += lmc.user("Look: " + lmc.image(source))  # here
        s += lmc.assistant(lmc.gen("a"))

    line = Path(__file__).read_text().partition("# here")[0].count("\n") + 1
    for run in (look.run, lmc.compile(look)):
        with pytest.raises(LmcError, match=why) as caught:
            run(backend=mock).sync()
        assert caught.value.loc is not None and caught.value.loc.line == line
    assert not mock.call_log, "refused before the model was asked"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for kind in ("image", "video"):
        with pytest.raises(lmc.ProgramError, match=rf"{kind}\('.*/pipe'\): a pipe or a device is not read"):
            bytes_of_file(tmp_path / "pipe", kind, MOST_BYTES, None)


def test_a_wrong_detail_is_refused() -> None:
    with pytest.raises(lmc.ParameterError, match="one of auto, low, high"):
        lmc.image(PNG, detail="huge")


def test_a_file_is_read_once_where_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    mock = lmc.Mock()

    @lmc.function
    def look(s: lmc.State) -> str:
        s += lmc.user(lmc.image(path) + "What is it?")
        path.write_bytes(png(9))
        s += lmc.assistant(lmc.gen("a"))
        return s["a"]

    assert look.run(backend=mock).ret_value
    assert mock.call_log[0].images == [PNG]


def test_answers_of_a_mock_may_depend_on_pictures() -> None:
    def judge(prompt: str, ask: Any, images: list[bytes | str]) -> str:
        return ", ".join("dark" if image == PNG else "light" for image in images) or "nothing"

    @lmc.function
    def look(s: lmc.State, *pictures: Any) -> list[str]:
        message = lmc.user_begin() + "Look:"
        for picture in pictures:
            message = message + lmc.image(picture)
        s += message + lmc.user_end()
        forks = s.fork(2)
        for fork in forks:
            fork += lmc.assistant(lmc.gen("a", max_tokens=64))
        return [fork["a"] for fork in forks]

    for answers in (judge, {"a": judge}, [judge] * 2):
        assert look.run(PNG, png(7), backend=lmc.Mock(answers)).ret_value == ["dark, light"] * 2
    assert look.run(backend=lmc.Mock(judge)).ret_value == ["nothing"] * 2
    plain = lmc.Mock()
    assert look.run(PNG, backend=plain).ret_value != look.run(png(7), backend=plain).ret_value


def test_pictures_in_sub_programs_selects_and_constraints() -> None:
    def grade(prompt: str, ask: Any, images: list[bytes | str]) -> str:
        return "AB"[images[0] != PNG]

    @lmc.function
    def first(s: lmc.State, picture: Any) -> str:
        s += lmc.user(lmc.image(picture) + "Grade it.") + lmc.assistant(lmc.gen("a", max_tokens=4))
        return s["a"]

    @lmc.function
    def judge(s: lmc.State, picture: Any) -> tuple[str, str, str]:
        s += lmc.user(lmc.image(picture) + f"It was {first(picture).ret_value}. Again.")
        s += lmc.assistant(lmc.select("grade", ["A", "B"]) + lmc.gen("again", regex="[AB]"))
        return first(picture).ret_value, s["grade"], s["again"]

    for run in (judge.run, lmc.compile(judge)):
        assert [run(picture, backend=lmc.Mock(grade)).ret_value for picture in (PNG, png(7))] == [("A",) * 3, ("B",) * 3]
    assert [s.ret_value for s in judge.run_batch([{"picture": PNG}, {"picture": png(7)}], backend=lmc.Mock(grade))] == [("A",) * 3, ("B",) * 3]
    assert "image(" in lmc.compile(judge).dump_ir()


def test_the_core_needs_neither_numpy_nor_pillow() -> None:
    code = "import sys, lmc; lmc.image(b''); assert not {'numpy', 'PIL'} & set(sys.modules), 'heavy'"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


# -- with Pillow -------------------------------------------------------------------------------------------------------

LOC = Loc("prog.py", 3, 1)


@pytest.fixture
def pillow() -> Any:
    return pytest.importorskip("PIL.Image")


def file(image: Any, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bomb", "100 million, and the limit is 67"),
        ("truncated JPEG", "damaged"),
        ("truncated PNG", "damaged"),
        ("animated GIF", "animated; give one"),
        ("animated WebP", "animated; give one"),
        ("CMYK", "mode 'CMYK'"),
        ("16 bits", "mode 'I;16'"),
        ("16 bits, colours", "16 bits a colour"),
        ("no pixels", "damaged|no picture"),
        ("text after a PNG's first bytes", "damaged"),
    ],
)
def test_what_no_model_should_see_is_one_error(pillow: Any, name: str, why: str) -> None:
    noise = pillow.effect_noise((64, 64), 90)
    frames = [pillow.new("L", (8, 8), grey) for grey in (0, 90, 200)]
    sources = {
        "bomb": png(claimed=(10_000, 10_000)),
        "truncated JPEG": file(noise, "JPEG")[:-800],
        "truncated PNG": file(noise, "PNG")[:-900],
        "animated GIF": file(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated WebP": file(frames[0].convert("RGB"), "WEBP", save_all=True, append_images=[f.convert("RGB") for f in frames[1:]]),
        "CMYK": file(pillow.new("CMYK", (4, 4)), "JPEG"),
        "16 bits": png(bits=16),
        "16 bits, colours": png(bits=16, colours=3),
        "no pixels": png(claimed=(0, 0)),
        "text after a PNG's first bytes": PNG[:8] + b"and so on",
    }
    with pytest.raises(lmc.ParameterError, match=rf"prog.py:3: .*({why})") as caught:
        read(Image(sources[name], loc=LOC))
    assert " object at 0x" not in str(caught.value)


def test_frames_of_an_animation_are_not_counted(pillow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find that there are two is enough: a GIF of 64 MiB may have millions, which take a minute."""
    from PIL.GifImagePlugin import GifImageFile

    frames = [pillow.new("L", (8, 8), grey) for grey in (0, 90, 200)]
    data = file(frames[0], "GIF", save_all=True, append_images=frames[1:])
    monkeypatch.setattr(GifImageFile, "n_frames", property(lambda self: pytest.fail("counted")))
    with pytest.raises(lmc.ParameterError, match="animated"):
        read(Image(data, loc=LOC))
    assert read(Image(file(frames[0], "GIF")))


def test_pixels_are_upright_and_on_white(pillow: Any) -> None:
    wide = pillow.new("RGB", (4, 2), "red")
    exif = wide.getexif()
    exif[0x0112] = 6  # turned by a quarter
    assert decoded(Image(file(wide, "JPEG", exif=exif))).size == (2, 4)
    clear = pillow.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert decoded(Image(file(clear, "PNG"))).getpixel((0, 0)) == (255, 255, 255)
    palette = pillow.new("P", (2, 2), 3)
    palette.putpalette([0, 0, 0, 1, 1, 1, 2, 2, 2, 9, 8, 7])
    assert decoded(Image(file(palette, "GIF"))).getpixel((0, 0)) == (9, 8, 7)
    assert decoded(Image(PNG)).mode == "RGB"


def test_a_photograph_of_a_telephone_is_its_first_picture(pillow: Any) -> None:
    data = file(pillow.new("RGB", (8, 6), "red"), "MPO", save_all=True, append_images=[pillow.new("RGB", (4, 3))])
    assert encoded(Image(data)) == ("image/jpeg", data) and decoded(Image(data)).size == (8, 6)


def test_pillow_images_arrays_and_tensors(pillow: Any) -> None:
    np = pytest.importorskip("numpy")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    picture = pillow.fromarray(pixels)

    def shown(source: Any) -> Any:
        return np.asarray(decoded(Image(source)))

    channels_first = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    for source in (picture, pixels, channels_first, pixels.astype(np.float32) / 255, pixels.astype(np.float64) / 255):
        np.testing.assert_array_equal(shown(source), pixels)
    np.testing.assert_array_equal(shown(pixels[..., 0])[..., 1], pixels[..., 0])
    np.testing.assert_array_equal(shown(pixels[..., :1])[..., 2], pixels[..., 0])
    assert set(shown(pixels[..., 0] > 99).flat) == {0, 255}

    class Tensor:  # as torch has them
        dtype = "torch.uint8"

        def detach(self) -> Any:
            return self

        cpu = detach

        def numpy(self) -> Any:
            return channels_first

    class Half(Tensor):
        dtype = "torch.bfloat16"

        def float(self) -> Any:
            return Tensor()

        def numpy(self) -> Any:
            raise TypeError("Got unsupported ScalarType BFloat16")

    class Sparse(Tensor):
        def numpy(self) -> Any:
            raise TypeError("can't convert Sparse layout tensor to numpy")

    np.testing.assert_array_equal(shown(Tensor()), pixels)
    np.testing.assert_array_equal(shown(Half()), pixels)
    with pytest.raises(lmc.ParameterError, match=r"prog.py:3: image\(Sparse\): it cannot be read as an array: .* Sparse layout"):
        read(Image(Sparse(), loc=LOC))
    turned = picture.copy()
    turned.getexif()[0x0112] = 3
    assert shown(turned).shape == (5, 7, 3)
    for source, why in (
        (pixels.astype(np.int64), "array of int64"),
        (pixels.astype(np.float32), "beyond 0 to 1"),
        (np.full((2, 2), np.nan), "beyond 0 to 1"),
        (np.zeros((0, 4, 3), np.uint8), "none that is empty"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"array of \[2, 4, 4, 3\]"),
        (pillow.new("CMYK", (2, 2)), "CMYK"),
        (pillow.new("I;16", (2, 2)), "I;16"),
        (pillow.new("RGB", (0, 2)), "0 × 2 pixels"),
    ):
        with pytest.raises(lmc.ParameterError, match=why):
            read(Image(source, loc=LOC))
