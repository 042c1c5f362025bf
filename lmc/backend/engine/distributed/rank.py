"""A rank's process: loads its part of the model, and computes every pass that rank 0 sends, until rank 0 tells it to
end or is gone.

It ends by itself when rank 0's process ends, however that happens: a thread watches the connection and the parent.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lmc.backend.engine.distributed.crew import DOORBELL, END, SETTLE
from lmc.backend.engine.distributed.group import PeerLost, RankGroup, met_at, without_multicast
from lmc.backend.engine.distributed.passes import Memory, processor_clock, read

if TYPE_CHECKING:
    from lmc.backend.engine.distributed.cuda import FollowingCuda
    from lmc.backend.engine.distributed.runner import FollowerRunner

_BEAT = 0.25  # seconds
_IDLE = 0.5  # idle seconds between looks at whether kernels have been compiled


def main() -> None:
    """Run a rank according to `sys.argv`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by rank 0, which ends the ranks
    told = json.loads(sys.argv[2])
    without_multicast()
    line, memory = Connection(told["control"]), Memory(told["memory"])
    threading.Thread(target=_beat, args=(told, memory), name="lmc-beat", daemon=True).start()
    status = 0
    try:
        _run(told, line, memory)
    except EOFError:
        pass  # rank 0 is gone
    except PeerLost as error:
        _tell(line, {"peer lost": str(error)})
        threading.Event().wait()  # until rank 0 ends this process, or `_beat` does: the peer's end is to be found first
    except BaseException as error:
        _tell(line, {"failed": _described(error)})
        status = 1
    os._exit(status)  # at once: collectives that wait for others would not let threads end


def _beat(told: Mapping[str, Any], memory: Memory) -> None:
    """Send heartbeats, and end this process when rank 0's ends."""
    line = select.poll()
    line.register(told["control"], 0)  # its end alone
    rank, worked = told["rank"], processor_clock(threading.main_thread().ident or 0)
    while os.getppid() == told["leader"] and not line.poll(1000 * _BEAT):
        memory.worked[rank] = worked()
        memory.beats[rank] += 1
    os._exit(0)


def _tell(line: Connection, message: Mapping[str, Any]) -> None:
    try:
        line.send_bytes(json.dumps(message).encode())
    except OSError:
        pass  # rank 0 has gone, and needs no reply


def _described(error: BaseException) -> str:
    from lmc.errors import LmcError

    return error.message if isinstance(error, LmcError) else f"{type(error).__name__}: {error}"


def _run(told: Mapping[str, Any], line: Connection, memory: Memory) -> None:
    import torch

    from lmc.backend.engine.distributed.runner import follower
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.memory import default_pool
    from lmc.backend.engine.models.loader import load

    torch.set_num_threads(told["threads"])
    group = RankGroup(told["rank"], told["ranks"], told["limit"], memory.waiting)
    options = json.loads(line.recv_bytes())["load"]
    if options["device"] != "cpu":
        torch.cuda.set_device(options["device"])  # no memory on another GPU
    loaded = load(**options, group=group)
    _tell(line, {"loaded": {"slots": default_pool(loaded.device, loaded.kv_bytes, told["ranks"]), "weights": loaded.weight_bytes, "token": loaded.kv_bytes}})
    begin = json.loads(line.recv_bytes())
    pool = KVPool.of(loaded.layers, begin["begin"], loaded.kv_dtype, str(loaded.device))
    store = met_at(told["meeting"], begin["engine"])
    _tell(line, {"met": {}})
    group.connect(store, loaded.device)
    runner = follower(loaded, pool, group)
    memory.compiled[told["rank"]] = runner.compiled
    gc.collect()
    gc.freeze()  # collections, which all ranks wait for, look at what passes make and not at all modules
    _tell(line, {"ready": {}})
    _follow(told["rank"], line, memory, runner)


def _follow(rank: int, line: Connection, memory: Memory, runner: FollowerRunner | FollowingCuda) -> None:
    while True:
        there = line.poll(_IDLE)
        memory.compiled[rank] = runner.compiled
        if not there:
            continue
        number, size = DOORBELL.unpack(line.recv_bytes())
        if number == END:
            return
        if number == SETTLE:
            runner.settle()
            continue
        memory.refresh()
        written = read(memory.room(number, size))
        memory.taken[rank] = number
        runner.follow(written)
