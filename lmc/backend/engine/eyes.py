"""Pictures in prompts of an engine: token ids of their own, and features that a model's vision tower computes once.

    Image ──prepare (threads of its own)──► Shown: inputs of the tower, how many tokens ──► PromptPicture: that and a number
    PromptPicture ──► ids [number] · count, in prompts ──rows of a pass──► features by the tower, or the pool, in the place of embeddings

A picture's *number* is an id above every vocabulary. It represents the 128-bit hash of the tower's input (pixels after
preprocessing; an engine has one model and one processor): equal pictures have one number, different ones never, so that
the radix tree, which compares ids, shares KV of equal pictures token by token without knowing of pictures.
Where they stand in a prompt: prompt_pictures.py.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lmc.backend.engine.prompt_pictures import Placed, PromptPicture, Shown, Surroundings
from lmc.backend.engine.single_flight import SingleFlightCache
from lmc.backend.engine.token_ids import PICTURE
from lmc.backend.usage import Counters
from lmc.errors import BackendError, LmcError, Loc, ParameterError, UnsupportedOpError
from lmc.images import decoded, is_remote, read
from lmc.segments import Frames, Image, Part
from lmc.videos import Film

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow
    from torch import Tensor

    from lmc.backend.engine.models.towers import Vision

_REMEMBERED = 1 << 17  # numbered hashes of unreferenced pictures, whose KV may still be cached
_THREADS = 8  # most threads that prepare pictures; half of the processors, where these are fewer
_PREPARED = 1 << 28  # bytes of files and of the tower's inputs that are kept for pictures that recur
_LINGERS = 1.0  # seconds that a thread waits for more
_SLIMMEST = 200  # times its short side is the long side of a picture at most; also Qwen-VL's limit
_POOL = 1 << 29  # bytes of features that are kept for pictures whose KV is gone or was never complete


class PreparingThreads:
    """Up to `most` threads that prepare pictures, in order of request. Thread-safe. They end when there is nothing to do, and do not keep a process alive: at
    its end, what has not begun is dropped, as requests of texts are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` done, which raises nothing."""
        with self._changed:
            self._work.append(work)
            if len(self._work) > self._idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name="lmc-eyes", daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Let the threads end as soon as they have done what was submitted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait until no thread is left; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # an idle thread keeps nothing alive

    def _next(self) -> Callable[[], None] | None:
        """Return the next work; None when it is time to end."""
        with self._changed:
            self._idle += 1
            there = self._changed.wait_for(lambda: self._work or self._closed, _LINGERS)
            self._idle -= 1
            if there and self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()
            return None


class Preparing:
    """An image or a video on its way into a prompt: decoded and preprocessed on another thread, unless it is dropped before.

    placed   it, or the error that it raises
    settled  set when those that `placed` calls back have gone on with it
    """

    __slots__ = ("__weakref__", "placed", "settled")

    def __init__(self, workers: PreparingThreads, prepare: Callable[[], Placed]) -> None:
        self.placed, self.settled = Future[Placed](), threading.Event()
        workers.submit(partial(_prepare, weakref.ref(self), prepare, self.placed, self.settled))


def _prepare(wanted: weakref.ref[Preparing], prepare: Callable[[], Placed], placed: Future[Placed], settled: threading.Event) -> None:
    try:
        placed.set_result(prepare() if wanted() is not None else _DROPPED)
    except Exception as error:  # raised to those that read it
        placed.set_exception(error)
    except BaseException as error:  # such as a panic of a library in Rust
        placed.set_exception(BackendError(f"a picture cannot be prepared: {type(error).__name__}: {error}"))
    finally:
        settled.set()


_DROPPED = Placed((), Surroundings())


_Key = tuple[Image, Loc | None, int]
"""A picture or a video, its line, where its errors are, and the tokens that it must have fewer of."""


class Eyes:
    """A model's vision, with its cached pictures. `prepare` from any thread, `features` on the engine's."""

    def __init__(self, sight: Vision, pool: int = _POOL, prepared: int = _PREPARED, threads: int | None = None) -> None:
        self.sight, self._room = sight, pool
        self._workers = PreparingThreads(threads or max(1, min(_THREADS, (os.cpu_count() or 1) // 2)))
        self._prepared = SingleFlightCache[_Key, Placed](lambda key: self.placed(key[0], key[2]), attrgetter("nbytes"), prepared)
        self._preparing: weakref.WeakValueDictionary[_Key, Preparing] = weakref.WeakValueDictionary()
        self._closed = False
        self._lock = threading.Lock()
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._fresh = itertools.count(PICTURE)
        self._alive: weakref.WeakValueDictionary[int, PromptPicture] = weakref.WeakValueDictionary()
        self._features: OrderedDict[int, Tensor] = OrderedDict()
        self._held = 0  # bytes of them
        self._asked = self._computed = 0
        _OPEN.add(self)

    # -- into a prompt -----------------------------------------------------------------------------------------

    def prepare(self, image: Image, most: int) -> Preparing:
        """Begin to prepare a picture or a video, which must have fewer than `most` tokens: several at once, while programs and passes go on."""
        if is_remote(image.source):
            raise UnsupportedOpError("image(web address)", self.sight.name, "fetch it, and give its bytes", loc=image.loc)
        key = read(image), image.loc, most
        with self._lock:
            self._check_open()
            found = self._preparing.get(key)
            if found is None or found.placed.done():
                found = self._preparing[key] = Preparing(self._workers, partial(self._prepared.get, key))
            return found

    def close(self) -> None:
        """Prepare nothing more: what still waits for it fails, and a video at its next frame."""
        self._closed = True
        self._workers.close()

    def join(self, timeout: float) -> bool:
        """Wait, after `close`, until its threads have ended; return whether they have."""
        return self._workers.join(timeout)

    def forked(self, error: LmcError) -> None:
        """Fail what waits for pictures in a child of fork(), which has no threads that prepare them."""
        _OPEN.discard(self)
        self._lock, self._workers = threading.Lock(), PreparingThreads(1)  # a thread of the parent may have had their locks
        for each in list(self._preparing.values()):
            if not each.placed.done():
                each.placed.set_exception(error)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("the engine was closed")

    def placed(self, image: Image, most: int) -> Placed:
        """Return a picture or a video as its part of a prompt. Raises its errors; it has fewer than `most` tokens."""
        self._check_open()
        parts = self._viewed(image) if image.frames is None else self._watched(image, image.frames, most)
        if any(part.count == 0 for part in parts if isinstance(part, Shown)):
            raise BackendError(
                f"{image.kind}(…): the processor of {self.sight.name} leaves nothing of it; is its preprocessor_config.json right?", loc=image.loc
            )
        if (count := sum(part.count for part in parts if isinstance(part, Shown))) >= most:
            what = "a picture" if image.frames is None else "a video"
            raise ParameterError(f"{image.kind}(…): {what} is {count} tokens to {self.sight.name}, whose prompts have room for {most}", loc=image.loc)
        around = self.sight.around if image.frames is None else self.sight.around_video
        nbytes = len(image.source) + sum(array.nbytes for part in parts if isinstance(part, Shown) for array in part.inputs.values())
        return Placed(tuple(self._known(part) if isinstance(part, Shown) else part for part in parts), around, nbytes)

    def _viewed(self, image: Image) -> tuple[Part | Shown, ...]:
        picture = decoded(image)
        with self._taking(image, f"{picture.width} × {picture.height} pixels"):
            _check_shape(picture.width, picture.height)
            return self.sight.prepare(picture, image.detail)

    def _watched(self, video: Image, wanted: Frames, most: int) -> tuple[Part | Shown, ...]:
        with self._taking(video, "it"):
            film = _Film(video, self._check_open)
        with self._taking(video, f"{film.width} × {film.height} pixels"):
            _check_shape(film.width, film.height)
        indices = self.sight.sample(film, wanted)
        with self._taking(video, "it"):
            count = self.sight.tokens(film, len(indices))
        if count >= most:  # before they are decoded
            raise ParameterError(
                f"video(…): {len(indices)} frames of it are {count} tokens to {self.sight.name}, whose prompts have room for {most}; give fewer, "
                "with num_frames= or fps=", loc=video.loc,
            )  # fmt: skip
        with self._taking(video, "it"):
            return self.sight.watch(film, indices)

    @contextmanager
    def _taking(self, image: Image, what: str) -> Iterator[None]:
        """While transformers' processor works on a picture or a video: what it raises is of the picture, or of a configuration that loaded."""
        try:
            yield
        except LmcError as error:
            error.loc = error.loc or image.loc
            raise
        except ValueError as error:
            raise ParameterError(f"{image.kind}(…): {self.sight.name} cannot take {what}: {error}", loc=image.loc) from None
        except Exception as error:  # on values that its code does not expect
            self._check_open()  # or it fails since the tower is gone
            raise BackendError(
                f"{image.kind}(…): the processor of {self.sight.name} fails on {what}: {type(error).__name__}: {error}; is its preprocessor_config.json right?",
                loc=image.loc,
            ) from error

    def spelled(self, ids: np.ndarray) -> list[int]:
        """Return ids of the vocabulary: pictures as their placeholder token."""
        found = ids.copy()
        for number in np.unique(ids[ids >= PICTURE]).tolist():
            picture = self._alive.get(number)
            moving = picture is not None and picture.shown.moving
            found[ids == number] = self.sight.video_token if moving else self.sight.token
        return found.tolist()

    def _known(self, shown: Shown) -> PromptPicture:
        key = _hash(shown)
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = next(self._fresh)
                assert number < 2**31, "ids of pictures are used up"
                if len(self._numbers) > _REMEMBERED:
                    self._forget_one()
            self._numbers.move_to_end(key)
            found = self._alive.get(number)
            if found is None:
                found = self._alive[number] = PromptPicture(number, shown)
            return found

    def _forget_one(self) -> None:
        """Forget the least recently seen hash of a picture that is in no prompt; if it recurs, it gets a new number."""
        for key, number in self._numbers.items():
            if number not in self._alive:
                del self._numbers[key]
                return

    # -- in passes ---------------------------------------------------------------------------------------------

    def features(self, pictures: Iterable[PromptPicture]) -> dict[int, Tensor]:
        """Return the features of each picture, by its number; those not in the pool go through the tower together."""
        wanted = {picture.number: picture for picture in pictures}
        found: dict[int, Tensor] = {}
        missing: list[PromptPicture] = []
        for number, picture in wanted.items():
            if number in self._features:
                self._features.move_to_end(number)
                found[number] = self._features[number]
            else:
                missing.append(picture)
        if missing:
            for picture, seen in zip(missing, self.sight.look([picture.shown for picture in missing]), strict=True):
                assert len(seen) == picture.count, f"{len(seen)} features of a picture of {picture.count} tokens"
                found[picture.number] = seen
                self._keep(picture.number, seen)
            with self._lock:
                self._computed += len(missing)
        return found

    def _keep(self, number: int, seen: Tensor) -> None:
        self._features[number] = seen
        self._held += seen.nbytes
        while self._held > self._room and len(self._features) > 1:  # a video may exceed the whole room, and is read chunk by chunk
            _, gone = self._features.popitem(last=False)
            self._held -= gone.nbytes

    def drop_tower(self) -> None:
        """Drop what passes need, on the engine's thread; nothing is looked at any longer, and the counts stay."""
        self.flush()
        self.sight.drop_model()

    def flush(self) -> None:
        """Forget all features and what was prepared, on the engine's thread."""
        self._prepared.clear()
        self._features.clear()
        self._held = 0

    # -- counts ------------------------------------------------------------------------------------------------

    def count(self, pictures: int) -> None:
        """Count the pictures of an answer's prompt."""
        with self._lock:
            self._asked += pictures

    def counters(self, others: Counters) -> Counters:
        """Return the counters with those of pictures."""
        from dataclasses import replace

        with self._lock:
            return replace(others, images=self._asked, image_hits=max(0, self._asked - self._computed), tower_seconds=self.sight.seconds)


_OPEN: weakref.WeakSet[Eyes] = weakref.WeakSet()
_AT_EXIT = 5.0  # seconds that a picture may take which is being prepared when the process ends


@atexit.register
def _close_all() -> None:
    for eyes in list(_OPEN):
        eyes.close()
        eyes.join(_AT_EXIT)


class _Film(Film):
    """A video that is decoded as long as `check` does not raise."""

    def __init__(self, video: Image, check: Callable[[], None]) -> None:
        super().__init__(video)
        self._check = check

    def at(self, indices: Sequence[int]) -> Iterator[Pillow]:
        for frame in super().at(indices):
            self._check()
            yield frame


def _check_shape(width: int, height: int) -> None:
    """Refuse a strip: processors scale the short side up to what the tower takes, and the long one with it."""
    if max(width, height) > _SLIMMEST * min(width, height):
        raise ValueError(f"one side is more than {_SLIMMEST} times the other; crop it")


def _hash(shown: Shown) -> bytes:
    """Return a 128-bit hash of a tower's input, and of its position in time."""
    found = hashlib.blake2b(digest_size=16)
    found.update(b"video" if shown.moving else b"")
    for name, array in sorted((shown.inputs if shown.axes is None else {**shown.inputs, "": shown.axes}).items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()
