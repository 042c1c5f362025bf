"""Pictures of an engine's prompts are prepared beside programs and passes: requests with them wait, others do not, and errors are those of their answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from random import Random

import numpy as np
import pytest

from tests.searching import apart

pytest.importorskip("PIL")

import lmc
from benchmarks.workloads import film, picture
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.prompt_pictures import Shown, Surroundings
from lmc.errors import BackendError, Loc, MissingPackageError, ParameterError
from lmc.extras import MODULES
from lmc.segments import Frames, Image, Text
from tests.backend.engine_fakes import backend, endless
from tests.pictures import png

PATIENCE = 30.0
WIDE, TALL = picture(Random(0), 28, 14), picture(Random(1), 14, 28)


class Sight:
    """Sees four tokens in each picture, once its gate is open; refuses tall ones."""

    name, width, token, video_token = "fake", 8, 1, None
    around = around_video = Surroundings()
    seconds = 0.0

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.prepared = 0

    def prepare(self, picture, detail):
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        self.prepared += 1
        if picture.height > picture.width:
            raise ValueError("it is taller than wide")
        return (Shown(4, {"pixels": np.asarray(picture, np.float32)}),)


@pytest.fixture
def sight():
    sight = Sight()
    yield sight
    sight.gate.set()


@pytest.fixture
def engine(sight):
    engine, _ = backend(eyes=Eyes(sight, threads=1))
    with engine:
        yield engine
        sight.gate.set()
        engine.check()


def look(data: bytes) -> Image:
    return Image(data, None, "auto", None)


def tokens(handle) -> int:
    """How many tokens its answer has."""
    return len(handle.results[0].output().ids)


def test_requests_with_a_picture_wait_for_it_and_others_do_not(engine, sight):
    seen = engine.submit(None, [Text(("see ",)), look(WIDE), Text((" this",))])
    first, second = (engine.submit(seen, [Text((f"? {i}",)), endless()]) for i in range(2))
    assert tokens(engine.submit(None, [Text(("nothing to see",)), endless()])) == 4
    assert not first.results[0].done and not second.results[0].done
    sight.gate.set()
    assert tokens(first) == tokens(second) == 4
    assert sight.prepared == 1 and engine.counters().images == 2
    assert engine.prompt_ids(seen)[: len(start := engine.encode(("see ",))) + 4] == [*start, 1, 1, 1, 1]


def test_an_error_of_a_picture_is_that_of_the_answers_after_it(engine, sight):
    seen = engine.submit(None, [look(TALL)])
    first, second = (engine.submit(seen, [Text((str(i),)), endless(), Text(("more",)), endless()]) for i in range(2))
    good = engine.submit(None, [look(WIDE), endless()])
    sight.gate.set()
    for result in (*first.results, *second.results):
        with pytest.raises(ParameterError, match="cannot take 14 × 28 pixels: it is taller than wide"):
            result.output()
    assert tokens(good) == 4
    with pytest.raises(ParameterError, match="taller than wide"):
        engine.submit(seen, [endless()]).results[0].output()


def test_a_picture_of_which_a_processor_leaves_nothing_is_an_error_at_it(engine, sight, monkeypatch):
    monkeypatch.setattr(sight, "prepare", lambda *_: (Shown(0, {}),))
    seen = engine.submit(None, [look(WIDE), endless()])
    with pytest.raises(BackendError, match=r"image\(…\): the processor of fake leaves nothing of it; is its preprocessor_config\.json right\?"):
        seen.results[0].output()


def test_a_strip_is_refused_before_it_is_scaled(engine, sight):
    """To 336 pixels of height, one of a million would be a hundred gigabytes."""
    sight.gate.set()
    for width, height in ((1_000_000, 1), (1, 201), (2010, 10)):
        answer = engine.submit(None, [look(png(0, width, height)), endless()]).results[0]
        with pytest.raises(ParameterError, match=f"cannot take {width} × {height} pixels: one side is more than 200 times the other"):
            answer.output()
    assert tokens(engine.submit(None, [look(png(0, 200, 1)), endless()])) == 4 and sight.prepared == 1


def test_a_video_of_strips_is_refused_before_it_is_decoded(engine, sight, monkeypatch):
    pytest.importorskip("av")
    monkeypatch.setattr(sight, "video_token", 2, raising=False)
    with pytest.raises(ParameterError, match="cannot take 4020 × 16 pixels: one side is more than 200 times the other"):
        engine.submit(None, [Image(film(Random(0), 4020, 16, 2), Frames()), endless()]).results[0].output()


def test_a_package_that_videos_need_is_missed_at_their_line(engine, sight, monkeypatch):
    monkeypatch.setattr(sight, "video_token", 2, raising=False)
    monkeypatch.setattr("lmc.videos.find_spec", lambda name: None)
    monkeypatch.setitem(MODULES, "video", ("no_such_package",))
    clip = Image(b"\0\0\0\x18ftypisom", Frames(), "auto", Loc("here.py", 7))
    with pytest.raises(MissingPackageError, match=r"here.py:7: video\(…\) needs no_such_package"):
        engine.submit(None, [clip, endless()]).results[0].output()


def test_an_error_is_the_answers_however_soon_it_is_known(engine, sight, monkeypatch):
    sight.gate.set()
    done = engine._builder.eyes.prepare(look(TALL), 100)
    assert isinstance(done.placed.exception(timeout=PATIENCE), ParameterError)
    monkeypatch.setattr(engine._builder, "prepare", lambda image: done)
    with pytest.raises(ParameterError, match="taller than wide"):
        engine.submit(None, [look(TALL), endless()]).results[0].output()


def test_pictures_that_are_dropped_before_are_not_prepared(engine, sight):
    first = engine.submit(None, [look(WIDE), endless()])
    assert sight.begun.acquire(timeout=PATIENCE)
    for i in range(3):
        engine.submit(None, [look(picture(Random(i), 42, 14)), endless()])
    kept = engine.submit(None, [look(picture(Random(9), 42, 14)), endless()])
    sight.gate.set()
    assert tokens(first) == tokens(kept) == 4
    assert sight.prepared == 2


def test_a_pin_that_is_ended_before_its_picture_is_there_pins_nothing(engine, sight):
    ended, held = (engine.prefill(None, [Text((f"{i} ",)), look(WIDE), Text((" and so on",))]) for i in range(2))
    after = engine.submit(ended, [endless()])
    assert engine.holds(held)
    engine.release(ended)
    sight.gate.set()
    assert tokens(after) == tokens(engine.submit(held, [endless()])) == 4
    assert engine.stats()["pinned"] == 1 and engine.holds(held)
    engine.release(held)


def test_a_pin_that_failed_is_not_held(engine, sight):
    pin = engine.prefill(None, [look(TALL), Text((" and so on",))])
    after = engine.submit(pin, [endless()])
    sight.gate.set()
    with pytest.raises(ParameterError, match="taller"):
        after.results[0].output()
    assert not engine.holds(pin)


def test_what_waits_for_pictures_is_cancelled_with_its_run(engine, sight):
    first, *waiting = [engine.submit(None, [look(picture(Random(i), 42, 14)), endless()]) for i in range(4)]
    assert sight.begun.acquire(timeout=PATIENCE)
    for handle in (first, *waiting):
        handle.cancel()
    last = engine.submit(None, [look(WIDE), endless()])
    sight.gate.set()
    for handle in (first, *waiting):
        with pytest.raises(lmc.LmcError, match="cancelled"):
            handle.results[0].output()
    assert tokens(last) == 4 and sight.prepared == 2 and engine.counters().calls == 1


def test_what_is_cancelled_while_it_begins_is_not_computed(engine, sight, monkeypatch):
    """A request begins on the thread that prepares its picture, while others may cancel it."""
    waiting, send = engine.submit(None, [look(WIDE), endless()]), engine._send

    def cancelled_before(requests):
        waiting.cancel()
        send(requests)

    monkeypatch.setattr(engine, "_send", cancelled_before)
    sight.gate.set()
    waiting.prepared()
    engine.check()
    assert engine.counters().calls == 0 and engine.stats()["waiting"] == engine.stats()["running"] == 0
    with pytest.raises(lmc.LmcError, match="cancelled"):
        waiting.results[0].output()


@pytest.mark.parametrize("when", ["_builder.prefill", "_tag"])
def test_a_pin_that_is_ended_while_it_begins_pins_nothing(engine, sight, monkeypatch, when):
    pin, (owner, _, name) = engine.prefill(None, [look(WIDE), Text((" and so on",))]), when.rpartition(".")
    of = getattr(engine, owner) if owner else engine
    real = getattr(of, name)

    def ended_meanwhile(*args):
        engine.release(pin)
        return real(*args)

    monkeypatch.setattr(of, name, ended_meanwhile)
    sight.gate.set()
    pin.prepared()
    assert tokens(engine.submit(pin, [endless()])) == 4
    assert engine.stats()["pinned"] == 0


def test_closing_does_not_wait_for_pictures(sight):
    engine, _ = backend(eyes=Eyes(sight, threads=1))
    first, second = (engine.submit(None, [look(data), endless()]) for data in (WIDE, picture(Random(3), 42, 14)))
    engine.close()
    sight.gate.set()
    for handle in (first, second):
        with pytest.raises(BackendError, match="closed"):
            handle.results[0].output()
    assert sight.prepared <= 1


def test_a_closed_engine_has_no_threads_for_pictures(sight, monkeypatch):
    engine, _ = backend(eyes=Eyes(sight, threads=2))
    handles = [engine.submit(None, [look(picture(Random(i), 42, 14)), endless()]) for i in range(4)]
    engine.close()
    sight.gate.set()
    assert engine._builder.eyes.join(PATIENCE)
    assert all(handle.results[0].done for handle in handles)
    monkeypatch.setattr(engine, "_check", lambda segments: None)  # closed just after that
    with pytest.raises(BackendError, match="closed"):
        engine.submit(None, [look(WIDE), endless()])


@apart
def test_a_process_ends_without_pictures_that_are_not_read():
    code = """if True:
        import atexit, threading
        atexit.register(lambda: print(sight.prepared))  # after all others
        import lmc
        from random import Random
        from tests.backend.test_eyes import Eyes, Sight, backend, endless, look, picture

        class Closing(Eyes):
            def close(self):
                super().close()
                sight.gate.set()

        sight = Sight()
        engine, _ = backend(eyes=Closing(sight, threads=1))
        handles = [engine.submit(None, [look(picture(Random(i), 28, 14)), endless()]) for i in range(4)]
        assert sight.begun.acquire(timeout=30)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=4 * PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_threads_end_when_there_is_nothing_to_prepare(engine, sight, monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.eyes._LINGERS", 0.001)
    sight.gate.set()
    for seed in range(3):
        assert tokens(engine.submit(None, [look(picture(Random(seed), 28, 14)), endless()])) == 4
        assert engine._builder.eyes.join(PATIENCE)
    assert sight.prepared == 3


def test_pictures_that_recur_are_prepared_once(engine, sight):
    together = [engine.submit(None, [look(data), Text((str(i),)), endless()]) for i, data in enumerate((WIDE, bytes(WIDE), bytearray(WIDE)))]
    sight.gate.set()
    assert [tokens(handle) for handle in together] == [4, 4, 4] and sight.prepared == 1
    assert tokens(engine.submit(None, [look(WIDE), endless()])) == 4 and sight.prepared == 1
    assert tokens(engine.submit(None, [Image(WIDE, None, "low", None), endless()])) == 4 and sight.prepared == 2
    engine.flush_cache()
    assert tokens(engine.submit(None, [look(WIDE), endless()])) == 4 and sight.prepared == 3


def test_what_ends_a_thread_that_prepares_pictures_ends_no_other(engine, sight, monkeypatch):
    class Panic(BaseException):
        """As a library in Rust raises one."""

    def panics(picture, detail):
        assert sight.gate.wait(PATIENCE)
        raise Panic("out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(sight, "prepare", panics)
        failed = engine.submit(None, [look(WIDE), endless()])
        sight.gate.set()
        failed.prepared()
    assert failed.results[0].done
    with pytest.raises(BackendError, match="cannot be prepared: Panic: out of bounds"):
        failed.results[0].output()
    assert tokens(engine.submit(None, [look(WIDE), endless()])) == 4


def test_pictures_that_recur_hold_no_threads_while_they_wait(sight):
    """Of a video that all programs of a batch show, one thread decodes frames; the other prepares what others show."""
    first, other, real = picture(Random(5), 42, 14), WIDE, sight.prepare
    at_once = lambda shown: (Shown(4, {"pixels": np.asarray(shown, np.float32)}),)
    sight.prepare = lambda shown, detail: at_once(shown) if shown.width == 28 else real(shown, detail)
    engine, _ = backend(eyes=Eyes(sight, threads=2))
    with engine:
        together = [engine.submit(None, [look(first), Text((str(i),)), endless()]) for i in range(3)]
        assert sight.begun.acquire(timeout=PATIENCE)
        beside = engine.submit(None, [look(other), endless()])
        ready = beside.steps[0].parts[0].settled.wait(PATIENCE)
        sight.gate.set()
        assert ready and [tokens(handle) for handle in (beside, *together)] == [4] * 4


def test_each_line_has_its_own_error(engine, sight):
    """Equal pictures that are refused: the error of one line is not that of another, and is not kept."""
    sight.gate.set()
    for line in (3, 5, 5):
        with pytest.raises(ParameterError, match=f"here.py:{line}: .* taller than wide"):
            engine.submit(None, [Image(TALL, None, "auto", Loc("here.py", line)), endless()]).results[0].output()
    assert sight.prepared == 3


def test_no_more_is_kept_of_pictures_than_has_room(sight):
    sight.gate.set()
    engine, _ = backend(eyes=Eyes(sight, threads=1, prepared=2 * (len(WIDE) + 28 * 14 * 3 * 4)))
    with engine:
        for seed in (0, 1, 0, 2, 0, 1):
            assert tokens(engine.submit(None, [look(picture(Random(seed), 28, 14)), endless()])) == 4
    assert sight.prepared == 4  # the last had to go for the third


def test_a_video_is_decoded_no_further_when_the_engine_is_closed(sight, monkeypatch):
    pytest.importorskip("av")
    decoded = []

    def watch(film, indices):
        for frame in film.at(indices):
            sight.begun.release()
            assert sight.gate.wait(PATIENCE)
            decoded.append(frame)

    monkeypatch.setattr(sight, "video_token", 2, raising=False)
    monkeypatch.setattr(sight, "sample", lambda film, wanted: list(range(film.count)), raising=False)
    monkeypatch.setattr(sight, "tokens", lambda film, number: number, raising=False)
    monkeypatch.setattr(sight, "watch", watch, raising=False)
    engine, _ = backend(eyes=Eyes(sight, threads=1))
    handle = engine.submit(None, [Image(film(Random(0), 16, 16, 6), Frames()), endless()])
    assert sight.begun.acquire(timeout=PATIENCE)
    engine.close()
    sight.gate.set()
    with pytest.raises(BackendError, match="closed"):
        handle.results[0].output()
    assert len(decoded) == 1


def test_programs_of_a_batch_go_on_while_pictures_are_prepared(engine, sight):
    """All of them have asked for their picture before the first is prepared."""

    @lmc.function
    def ask(s, data):
        asked.release()
        s += lmc.image(data) + "what is it?" + lmc.gen("answer", max_tokens=4, ignore_eos=True)
        return s["answer"]

    asked = threading.Semaphore(0)
    sizes = [14 * i for i in range(1, 9)]

    def opens() -> None:
        for _ in sizes:
            assert asked.acquire(timeout=PATIENCE)
        sight.gate.set()

    opener = threading.Thread(target=opens)
    opener.start()
    states = ask.run_batch([{"data": picture(Random(0), size, 14)} for size in sizes], backend=engine, temperature=0, num_threads=len(sizes))
    opener.join()
    assert all(state.ret_value for state in states) and sight.prepared == len(sizes)
