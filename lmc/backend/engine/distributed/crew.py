"""The ranks of an engine as managed by rank 0: started, fed with passes, watched, and always ended.

    loop's thread      tell ─► memory, "n is there" ─► ranks         every look finds what is wrong within a moment: a rank that
    watching thread    their messages, their deaths, their silence   has ended, failed or hangs ends all ranks, and the
                       engine

Collectives that wait for a lost rank end with it: on CPUs since its connections close, on GPUs since the group is
aborted.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

from lmc.backend.engine.attention.sharing import SharedPrefix as Sharing
from lmc.backend.engine.device_errors import RanksLost
from lmc.backend.engine.distributed.group import HANDSHAKE, NO_MULTICAST, RankGroup, meeting_place, met_at
from lmc.backend.engine.distributed.passes import MOST_RANKS, Memory, parts_of, processor_clock, put, wait_until
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.request import Request
from lmc.errors import ModelLoadError, ParameterError
from lmc.forking import belongs_here

log = logging.getLogger("lmc.engine")

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lmc.backend.engine.distributed.rank import main; main()"
DOORBELL = struct.Struct("<qq")  # number of a pass, int32 of it
END, SETTLE = -1, -2  # in place of a number

_LOOK = 0.05  # seconds between checks of silent ranks
_SILENT = 6.0  # seconds without a heartbeat (four a second) after which a rank that should compute counts as hung
_STILL = 7.0  # seconds of a pass in which no rank computes anything: all wait for one that hangs, though it lives
_SILENT_LOADING = 120.0  # while it loads, native code may hold the interpreter for long
_GRACE = 2.0  # seconds for ranks to end by themselves, and for the watch to find which rank others miss
LIMIT_CPU, LIMIT_GPU = 60.0, 8.0
"""Seconds after which a pass that all ranks have begun counts as hung."""


class Crew:
    """Ranks 1 to `ranks` - 1, processes of this one.

    devices  of all ranks, by their names
    limit    seconds that a pass may take
    lost     why the engine cannot continue; None while it can
    on_loss  called once, with that, from any thread
    """

    def __init__(self, devices: Sequence[str], limit: float, threads: int = 1) -> None:
        self.ranks, self.devices, self._limit = len(devices), list(devices), limit
        if self.ranks > MOST_RANKS:
            raise ParameterError(f"Engine: tp is {self.ranks}; it may be {MOST_RANKS} at most")
        self.lost: RanksLost | None = None
        self.on_loss: Callable[[RanksLost], None] = lambda _: None
        self._process = os.getpid()
        self._memory = Memory()
        self.group = RankGroup(0, self.ranks, limit, self._memory.waiting)
        self._number = 0
        self._began = 0.0  # since when rank 0 waits for a pass, by time.monotonic(); 0: it does not
        self._worked: Callable[[], int] = time.monotonic_ns  # the processor time of the thread that waits for it
        self._still = _Still()
        self._peer_lost: tuple[float, str] | None = None  # the first rank that missed another: when, and what it says
        self._serving = self._closing = False
        self._heard = threading.Condition()
        self._said: dict[int, list[dict[str, Any]]] = {}
        self._ranks: dict[int, _Rank] = {}
        try:
            for rank in range(1, self.ranks):
                told = {"rank": rank, "ranks": self.ranks, "leader": os.getpid(), "memory": self._memory.handle, "threads": threads, "limit": limit}
                self._ranks[rank] = _Rank(told)
                self._said[rank] = []
        except BaseException:
            self._end()
            raise
        threading.Thread(target=_watch, args=(weakref.ref(self), list(self._ranks.values())), name="lmc-ranks", daemon=True).start()
        belongs_here(self)

    def forked(self, parent: int) -> None:
        """Release the ranks in a child of fork(): they are its parent's."""
        self._heard, self._ranks, self._closing = threading.Condition(), {}, True

    def watched_by(self, told: Callable[[RanksLost], None]) -> None:
        """Call `told` if the engine cannot continue, from any thread; at once if that is so already."""
        self.on_loss = told
        if self.lost is not None:
            told(self.lost)

    @property
    def processes(self) -> list[int]:
        """Return their ids, by rank."""
        return [rank.process.pid for rank in self._ranks.values()]

    # -- before the first pass ---------------------------------------------------------------------------------------------

    def load(self, options: Mapping[str, Any]) -> None:
        """Let them load their parts of a model (loader.load's options), each on its device."""
        self._say({"load": {**options, "device": None}})

    def loaded(self) -> dict[int, dict[str, Any]]:
        """Return each rank's report after loading: `slots` that it has room for, `weights` bytes, `token` bytes. Raises
        ModelLoadError."""
        return self._each("loaded", ModelLoadError)

    def begin(self, slots: int, device: Any) -> None:
        """Make the group. Every rank then has a pool of so many slots. Raises RanksLost."""
        engine = secrets.token_hex(8)
        self._say({"begin": slots, "engine": engine})
        self._each("met", RanksLost)
        met = Future[None]()

        def connect() -> None:
            try:
                met.set_result(self.group.connect(met_at(meeting_place(), engine), device))
            except BaseException as error:  # raised below
                met.set_exception(error)

        # native code that waits for all ranks, and that neither a loss nor Ctrl-C ends
        threading.Thread(target=connect, name="lmc-ranks-meet", daemon=True).start()
        limit = HANDSHAKE if device.type == "cpu" else 4 * HANDSHAKE  # NCCL makes its communicators
        until = time.monotonic() + limit
        while not wait_future([met], _LOOK).done:
            self.check()
            if time.monotonic() > until:
                self.lose(f"the ranks have not found each other within {limit:.0f} s")
        try:
            met.result()
        except RuntimeError as error:
            raise self.failed(error) from error

    def ready(self) -> None:
        """Return when all can compute."""
        self._each("ready", RanksLost)
        self._serving = True

    def _say(self, message: Mapping[str, Any]) -> None:
        for number, rank in self._ranks.items():
            if "load" in message:
                message = {"load": {**message["load"], "device": self.devices[number]}}
            self._send(number, rank, json.dumps(message).encode())

    def _send(self, number: int, rank: _Rank, message: bytes) -> None:
        try:
            rank.connection.send_bytes(message)
        except OSError as error:
            raise self.failed(error, f"rank {number} has ended") from error

    def _each(self, what: str, kind: type[ModelLoadError] | type[RanksLost]) -> dict[int, dict[str, Any]]:
        found = dict[int, dict[str, Any]]()
        with self._heard:
            while len(found) < len(self._ranks):
                for number, said in self._said.items():
                    if number not in found and said:
                        found[number] = said.pop(0)[what]
                if self.lost is not None:
                    raise kind(self.lost.message)
                self._heard.wait(_LOOK)
        return found

    # -- passes ------------------------------------------------------------------------------------------------------------

    def tell(self, work: ModelPass, wanted: Sequence[int], groups: Sequence[Sharing], places: Mapping[Request, int], samples: int) -> None:
        """Let all ranks compute this pass now; rank 0 has to, too. Raises RanksLost."""
        self.check()
        parts, memory, number = parts_of(work, wanted, groups, places, samples), self._memory, self._number + 1
        size = sum(map(len, parts))
        self._until_taken(number - 2)
        if not memory.fits(size):
            self._until_taken(number - 1)
            memory.grow(size)
        put(parts, memory.room(number, size))
        self._number = number
        for rank, each in self._ranks.items():
            self._send(rank, each, DOORBELL.pack(number, size))

    @property
    def compiled(self) -> bool:
        """Return whether all ranks can `settle`."""
        return bool(self._memory.compiled[1 : self.ranks].all())

    def wait_compiled(self) -> None:
        """Wait until all ranks can `settle`. From any thread. Raises RanksLost."""
        with self._heard:
            while not (self.compiled or self._closing):
                self.check()
                self._heard.wait(_LOOK)

    def settle(self) -> None:
        """Let all ranks use, from the next pass on, the kernels that they have compiled meanwhile. Raises RanksLost."""
        for rank, each in self._ranks.items():
            self._send(rank, each, DOORBELL.pack(SETTLE, 0))

    def waits(self) -> None:
        """Time rank 0's wait for a pass, until `over`: from now on it has so many seconds."""
        self._worked = processor_clock(threading.get_ident())
        self._began = time.monotonic()

    def over(self) -> None:
        self._began = 0.0

    def check(self) -> None:
        """Raise RanksLost if ranks are lost."""
        if self.lost is not None:
            raise self.lost

    def _until_taken(self, number: int) -> None:
        taken = self._memory.taken
        wait_until(lambda: int(taken[1 : self.ranks].min(initial=number)) >= number, self.check)

    def failed(self, error: BaseException, why: str = "") -> RanksLost:
        """Handle that rank 0 cannot continue a pass: return the reason, which is another rank's if one has ended. Ends
        all of them."""
        until = time.monotonic() + _GRACE
        while self.lost is None and isinstance(error, OSError | RuntimeError) and time.monotonic() < until:
            time.sleep(_LOOK / 5)  # the failure here may be the first sign of a loss that the watch finds in a moment
        self.lose(why or f"rank 0 failed in a pass, and the others cannot continue: {type(error).__name__}: {error}")
        assert self.lost is not None
        return self.lost

    # -- the end -----------------------------------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """End all ranks, and the engine with that reason."""
        with self._heard:
            if self.lost is not None or self._closing:
                return
            self.lost = RanksLost(f"the engine has ended: {why}; start a new one (lmc serve --restart does)")
            self._heard.notify_all()
        log.error("%s", self.lost.message)
        self._kill()
        self.on_loss(self.lost)
        self.group.abort()  # the last: it may take a while

    def close(self) -> None:
        """End the ranks; return when their processes have gone. Idempotent."""
        if self._process != os.getpid():
            return
        with self._heard:
            first, self._closing = not self._closing, True
        if first:
            self._end()

    def _end(self) -> None:
        for rank in self._ranks.values():
            with suppress(OSError):
                rank.connection.send_bytes(DOORBELL.pack(END, 0))
        until = time.monotonic() + (_GRACE if self._serving and self.lost is None else 0.0)
        for rank in self._ranks.values():
            with suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, until - time.monotonic()))
        self._kill()
        for rank in self._ranks.values():
            rank.process.wait()
            rank.connection.close()
        self.group.close()
        self._memory.close()

    def _kill(self) -> None:
        for rank in self._ranks.values():
            with suppress(ProcessLookupError):
                rank.process.kill()

    # -- the watch ---------------------------------------------------------------------------------------------------------

    def look(self, number: int, rank: _Rank) -> bool:
        """Read a rank's messages and check its state. Return False when there is nothing more to watch."""
        if self._closing or self.lost is not None:
            return False
        try:
            while rank.connection.poll():
                message = json.loads(rank.connection.recv_bytes())
                if "failed" in message:
                    self.lose(f"rank {number} on {self.devices[number]} failed: {message['failed']}")
                    return False
                if "peer lost" in message:
                    self._peer_lost = self._peer_lost or (time.monotonic(), f"rank {number} on {self.devices[number]} failed: {message['peer lost']}")
                    continue
                with self._heard:
                    self._said[number].append(message)
                    self._heard.notify_all()
        except (OSError, EOFError):
            if not self._closing:
                self.lose(f"rank {number} on {self.devices[number]} {_end_of(rank.process)}")
            return False
        if rank.process.poll() is not None:
            self.lose(f"rank {number} on {self.devices[number]} {_end_of(rank.process)}")
            return False
        now, beats = time.monotonic(), int(self._memory.beats[number])
        if self._peer_lost is not None and now - self._peer_lost[0] > _GRACE:  # no rank has ended meanwhile
            self.lose(self._peer_lost[1])
            return False
        if beats != rank.beats:
            rank.beats, rank.beaten = beats, now
        elif now - rank.beaten > (_SILENT if self._serving else _SILENT_LOADING):
            self.lose(f"rank {number} on {self.devices[number]} (process {rank.process.pid}) has not been running for {now - rank.beaten:.0f} s")
            return False
        return True

    def look_at_pass(self) -> bool:
        """Check the pass that rank 0 waits for. Return False when there is nothing more to watch."""
        now, began = time.monotonic(), self._began
        if not began or self._closing or self.lost is not None:
            return True
        if now - began > self._limit:
            behind = [r for r in range(1, self.ranks) if int(self._memory.taken[r]) < self._number]
            self.lose(f"a pass has taken {now - began:.0f} s and does not end" + (f": rank {behind[0]} has not begun it" if behind else ""))
            return False
        with suppress(OSError):  # the thread has ended meanwhile, and its pass
            still = self._still.since(now, (began, self._worked(), *self._memory.worked[1 : self.ranks].tolist()))
            if still > _STILL:
                hung = [f"rank {r} on {self.devices[r]} computes nothing" for r in range(self.ranks) if not self._memory.waiting[r]]
                self.lose(f"a pass has not moved for {still:.0f} s: {hung[0] if hung else 'all ranks wait for each other'}")
                return False
        return True


class _Still:
    """How long something has not changed while this process was running: one that was stopped itself has not seen what
    changed."""

    def __init__(self) -> None:
        self._what: object = None
        self._seconds = self._looked = 0.0

    def since(self, now: float, what: object) -> float:
        self._seconds = self._seconds + min(now - self._looked, 5 * _LOOK) if what == self._what else 0.0
        self._what, self._looked = what, now
        return self._seconds


class _Rank:
    """A process, and the connection to it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.connection, other = Pipe()
        self.beats, self.beaten = 0, time.monotonic()
        with other:
            told = {**told, "control": other.fileno(), "meeting": meeting_place()}
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", CODE, json.dumps(sys.path), json.dumps(told)],
                    stdin=subprocess.DEVNULL, stdout=_errors(), pass_fds=(told["control"], told["memory"], told["meeting"]), start_new_session=True,
                    env={**os.environ, **NO_MULTICAST},
                )  # fmt: skip
            except BaseException:
                self.connection.close()
                raise


def _errors() -> int | None:
    """Return where ranks' stderr goes: not among the program's own output."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return "has closed its line"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"


def _watch(crew: weakref.ref[Crew], ranks: list[_Rank]) -> None:
    """Watch until the crew is garbage, or there is nothing to watch."""
    lines: dict[Connection, tuple[int, _Rank]] = {rank.connection: (number, rank) for number, rank in enumerate(ranks, 1)}
    while True:
        try:
            wait_for(list(lines), _LOOK)
        except (OSError, ValueError):
            return  # closed meanwhile
        here = crew()
        if here is None:
            return
        looked = [here.look(*each) for each in lines.values()]  # at each, whatever the first says
        if not all(looked) or not here.look_at_pass():
            return
        del here
