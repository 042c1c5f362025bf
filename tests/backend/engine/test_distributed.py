"""Ranks compute together what one process computes alone: gloo on CPUs; what ends when one of them does, in every phase."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

import lmc  # noqa: E402
from lmc.backend.engine import memory  # noqa: E402
from lmc.backend.engine.distributed import crew as crews  # noqa: E402
from lmc.backend.engine.distributed.group import RankGroup, meeting_place  # noqa: E402
from lmc.backend.engine.distributed.peer_memory import most_rows  # noqa: E402
from lmc.backend.engine.models import llama_weights  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.backend.local_model import Engine  # noqa: E402
from lmc.errors import BackendError, ModelLoadError, ParameterError  # noqa: E402
from lmc.segments import ChoicesMethod, Constraint, Gen, SamplingParams, Select, Text  # noqa: E402
from tests.backend.engine.model_fixtures import PlainKV, batch  # noqa: E402
from tests.backend.engine.test_models import FAMILIES, KINDS, saved  # noqa: E402, F401
from tests.searching import APART, apart  # noqa: E402

UNEVEN = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "hidden_size": 144, "vocab_size": 101, "intermediate_size": 96}
DISTRIBUTED = "lmc.backend.engine.distributed"
SOON = 40.0  # seconds in which an engine ends when one of its ranks does, on a busy machine; what connects the ranks waits for a minute


def together(ranks, work):
    """Return the results of `work(group)` on each of so many ranks, which are threads here."""
    found, errors = [None] * ranks, []

    def run(rank):
        try:
            found[rank] = work(RankGroup(rank, ranks, 20.0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def logits_of(loaded):
    """Of a mixed pass: a prompt's chunk behind cached tokens, two decoding rows of one prefix, all rows' logits."""
    kv, ids = PlainKV(loaded, 80), torch.randint(3, 90, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    loaded.model.forward(batch((ids, range(40))), kv)
    chunk, other = ids[::-1][:9], [*range(10), 49]
    work = batch((chunk, [*range(10), *range(40, 49)]), ([5], other), ([6], [*range(10), 50]), logits=range(11))
    return loaded.model.forward(work, kv)


def spread(folder, ranks, tmp_path, logits_of=logits_of, **options):
    def compute(group):
        loaded = load(str(folder), group=group, **options)
        group.connect(torch.distributed.FileStore(str(tmp_path / "store"), group.ranks), torch.device("cpu"))
        logits = logits_of(loaded)
        group.sum(torch.zeros(1))  # nobody leaves before all are done
        return loaded, logits

    return together(ranks, compute)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", KINDS)
def test_each_family_spread_gives_the_logits_of_one(saved, family, ranks, tmp_path):  # noqa: F811
    folder, _ = saved(family)
    whole = load(str(folder), dtype="float32")
    alone, parts = logits_of(whole), spread(folder, ranks, tmp_path, dtype="float32")
    torch.testing.assert_close(parts[0][1], alone, atol=1e-4 * float(alone.std()), rtol=1e-4)
    assert all(loaded.weight_bytes < whole.weight_bytes for loaded, _ in parts)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_heads_that_do_not_divide(saved, ranks, tmp_path, monkeypatch):  # noqa: F811
    for name in ("llama", "qwen3"):
        kind, extra = FAMILIES[name]
        monkeypatch.setitem(FAMILIES, name, (kind, extra | UNEVEN))
        folder, _ = saved(name)
        alone = logits_of(load(str(folder), dtype="float32"))
        (tmp_path / name).mkdir()
        (_, logits), *_ = spread(folder, ranks, tmp_path / name, dtype="float32")
        assert logits.shape == alone.shape
        torch.testing.assert_close(logits, alone, atol=1e-4 * float(alone.std()), rtol=1e-4)


def test_packed_and_half_weights_stay_close(saved, tmp_path):  # noqa: F811
    folder, _ = saved("qwen2")
    for dtype, tolerance in ((None, 2e-2), ("bfloat16", 0.25)):
        alone = logits_of(load(str(folder), dtype=dtype))
        (tmp_path / str(dtype)).mkdir()
        (_, logits), _ = spread(folder, 2, tmp_path / str(dtype), dtype=dtype)
        torch.testing.assert_close(logits, alone, atol=tolerance * float(alone.std()), rtol=1e-3)


def test_ranks_read_their_slices_alone(saved, tmp_path, monkeypatch):  # noqa: F811
    """Of what is mapped from the files, no rank makes a whole matrix of a layer."""
    folder, _ = saved("llama")
    largest = dict[str, int]()
    real = llama_weights.fuse_layer

    def watched(state, config, index):
        fused = real(state, config, index)
        for name, tensor in fused.items():
            largest[name] = max(largest.get(name, 0), tensor.numel())
        return fused

    monkeypatch.setattr(llama_weights, "fuse_layer", watched)
    spread(folder, 2, tmp_path, dtype="float32")
    assert largest["layers.0.down.weight"] == 64 * 64 and largest["layers.0.o.weight"] == 64 * 32


def test_dummy_weights_are_made_by_share(saved, tmp_path):  # noqa: F811
    folder, _ = saved("qwen2")
    (folder / "model.safetensors").unlink()
    (_, logits), _ = spread(folder, 2, tmp_path, dtype="float32", load_format="dummy")
    assert logits.isfinite().all()


def test_weights_of_another_model_name_the_tensor(saved, tmp_path):  # noqa: F811
    from safetensors.torch import load_file, save_file

    folder, _ = saved("qwen2")
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"] = torch.zeros(7, 64)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj.*\[7, 64\].*\[112, 64\]"):
        load(str(folder), group=RankGroup(1, 2, 1.0))


def test_what_cannot_be_spread_is_refused_before_anything_is_read(saved, tmp_path):  # noqa: F811
    folder, _ = saved("qwen2")
    with pytest.raises(ModelLoadError, match="tp=5: the model has 4 attention heads"):
        load(str(folder), group=RankGroup(0, 5, 1.0))
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"qwen2"', '"gemma"'))
    with pytest.raises(ModelLoadError, match=r"tp=2.*dp="):
        load(str(folder), group=RankGroup(0, 2, 1.0))
    for wrong in (0, True, 1.5):
        with pytest.raises(ParameterError, match="tp"):
            Engine(str(folder), tp=wrong)
    with pytest.raises(ParameterError, match="host_memory"):
        Engine(str(folder), tp=2, host_memory="1GB")


@pytest.mark.parametrize(("need", "free", "there", "says"), [(100, 80, 4, "tp=2 spreads them over 2 such GPUs of this machine"), (500, 80, 4, "tp=8 .* has 4")])
def test_what_does_not_fit_says_what_tp_would(monkeypatch, need, free, there, says):
    monkeypatch.setattr(memory, "free_memory", lambda _: free << 30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(ModelLoadError, match=says):
        memory.check_fits(Path("m"), need << 30, "bfloat16", torch.device("cuda"))


# -- engines of several processes ---------------------------------------------------------------------------------------------


def gen(most=8, constraint=None, *, seed=0, **options):
    return Gen(SamplingParams(**{"max_new_tokens": most, "temperature": 0.0, "return_logprob": True} | options), constraint, seed=seed)


@pytest.fixture(scope="module")
def alone(tiny_smollm2):
    with Engine(tiny_smollm2, dtype="float32", device="cpu", max_tokens=600, chunk=64) as engine:
        yield engine
        engine.check()


@pytest.fixture(scope="module")
def pair(tiny_smollm2):
    with Engine(tiny_smollm2, dtype="float32", device="cpu", max_tokens=600, chunk=64, tp=2) as engine:
        processes = processes_of(engine)
        yield engine
        engine.check()
    assert gone(processes)


def processes_of(engine):
    return engine._core._runner._crew.processes


def gone(processes, within=0.0):
    """Whether they have ended, within so many seconds."""
    deadline = time.monotonic() + within
    while (left := any(Path(f"/proc/{p}").exists() for p in processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def test_a_program_gives_what_one_process_gives(alone, pair):
    def asked(engine):
        prompts = [f"The capital of {c} is" for c in ("France", "Italy", "Japan", "Peru")]
        prompts += ["Once upon a time, " * 12 + end for end in ("a king", "a queen")]
        handles = [engine.submit(None, [Text((p,)), gen(10, ignore_eos=True)]) for p in prompts]
        handles += [engine.submit(None, [Text((p,)), gen(6, temperature=0.9, top_p=0.9)]) for p in prompts[:2]]
        handles += [engine.submit(None, [Text(("Grade: ",)), gen(30, Constraint("regex", r"[ABC]\+? because (\w+ ){1,3}\."))])]
        root = engine.submit(None, [Text(("Answer yes or no. Is the sky blue? ",))])
        handles += [engine.submit(root, [Select(("yes", "no"), ChoicesMethod.TOKEN_LENGTH_NORMALIZED)])]
        forks = [engine.submit(root, [Text((f"Reason {i}: ",)), gen(5), Text((" so ",)), gen(3)]) for i in range(3)]
        return [result.output() for handle in (*handles, *forks) for result in handle.results]

    first, second = asked(alone), asked(pair)
    for ours, theirs in zip(second, first, strict=True):
        assert ours.texts == theirs.texts
        for a, b in zip(ours.metas, theirs.metas, strict=True):
            for mine, its in zip(a.get("output_token_logprobs", ()), b.get("output_token_logprobs", ()), strict=True):
                assert mine[1:2] == its[1:2] and mine[:1] == pytest.approx(its[:1], abs=2e-3)


@apart
def test_four_processes_give_what_one_gives(tiny_smollm2, alone):
    """One more than there are heads of k and v."""
    asks = [[Text((f"The capital of {c} is",)), gen(8, ignore_eos=True, temperature=t)] for c in ("France", "Peru") for t in (0.0, 0.9)]

    def texts(engine):
        return [handle.results[0].output().text for handle in [engine.submit(None, each) for each in asks]]

    with Engine(tiny_smollm2, dtype="float32", device="cpu", max_tokens=600, chunk=64, tp=4) as four:
        assert texts(four) == texts(alone) and len(processes_of(four)) == 3
        four.check()


@apart
@pytest.mark.parametrize("family", ["mixtral", "qwen3-experts"])
def test_experts_of_two_processes_give_what_one_gives(saved, family):  # noqa: F811
    options = {"dtype": "float32", "device": "cpu", "max_tokens": 400, "chunk": 64}

    def texts(engine):
        return [handle.results[0].output().text for handle in [long(engine, text, 20) for text in ("abc", "xyz" * 30)]]

    folder = str(saved(family)[0])
    with Engine(folder, **options) as one, Engine(folder, tp=2, **options) as two:
        assert texts(two) == texts(one)
        two.check()


def test_the_radix_tree_serves_all_ranks(pair):
    """Sequences are cached, forked, evicted and computed again in every rank's pool alike: texts do not depend on the pool's size."""
    question = "Question {}: why is the sky {}? " * 3
    texts = []
    for _ in range(2):
        handles = [pair.submit(None, [Text((question.format(i, i, i, i, i, i),)), gen(6)]) for i in range(12)]
        texts.append([h.results[0].output().text for h in handles])
        pair.check()
    before = pair.counters().cached_tokens
    handles = [pair.submit(None, [Text((question.format(0, 0, 0, 0, 0, 0),)), gen(6, seed=i)]) for i in range(3)]
    assert [h.results[0].output().text for h in handles] == [texts[0][0]] * 3 and texts[0] == texts[1]
    assert pair.counters().cached_tokens > before


def test_drafts_change_nothing(pair):
    prompts = ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4,", "a b c a b c a b c a"]
    few = tuple((token, 60.0) for token in pair.tokenizer.encode((" a, b, 1",)))  # an answer of few words says the same again

    def texts():
        return [handle.results[0].output().text for handle in [pair.submit(None, [Text((p,)), gen(16, logit_bias=few)]) for p in prompts]]

    expected, pair.drafts = texts(), 4
    try:
        assert texts() == expected and pair.counters().accepted_tokens > 0
    finally:
        pair.drafts = "off"


def test_a_batch_of_programs(pair):
    @lmc.function
    def judge(s, essay):
        s += "Essay: " + essay + "\nIs it good? "
        s += lmc.select("good", choices=["yes", "no"])
        for f in s.fork(2):
            f += lmc.gen("why", max_tokens=4, temperature=0)
        s += lmc.gen("out", max_tokens=4, regex=r"[a-z ]{3,8}")

    lmc.set_default_backend(pair)
    try:
        states = lmc.compile(judge).batch([{"essay": f"I like {i} cats."} for i in range(4)])
    finally:
        lmc.set_default_backend(None)
    assert all(state["good"] in ("yes", "no") and 3 <= len(state["out"]) <= 8 for state in states)


def test_it_says_what_is_where(pair):
    lines = pair.server_info()["topology"]
    assert "tp=2" in lines[0] and "600 tokens" in lines[0]
    assert "heads 0–5 of q, 0–1 of k and v" in lines[1] and "heads 6–8 of q, 2 of k and v" in lines[2] and "GiB of KV" in lines[2]
    assert pair.topology == tuple(lines)


@pytest.mark.parametrize(
    ("ranks", "columns", "rows"), [(2, 4096, 4096), (2, 8192, 2048), (2, 16384, 1024), (4, 8192, 128), (8, 8192, 64), (8, 576, 1024), (1, 4096, 1024)]
)
def test_memory_for_sums_is_bounded(ranks, columns, rows):
    assert most_rows(ranks, columns) == rows
    assert 3 * ranks * rows * columns * 2 <= (192 if ranks == 2 else 48) << 20  # kernels/peer_sum.py has three places for each


# -- faults -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(saved):  # noqa: F811
    return str(saved("llama")[0])


def engine_of(folder, **options):
    engine = Engine(folder, dtype="float32", device="cpu", max_tokens=400, chunk=64, max_batch=4, **{"tp": 2} | options)
    engine.were = processes_of(engine)
    return engine


def long(engine, text="abc", most=200):
    return engine.submit(None, [Text((text,)), gen(most, ignore_eos=True, return_logprob=False)])


def ended(engine, began, says):
    """The engine has ended in time, says why, and nothing is left of it."""
    assert time.monotonic() - began < SOON
    deadline = time.monotonic() + SOON
    while engine.health().state != "ended" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.health().state == "ended" and says in engine.health().reason
    with pytest.raises(BackendError, match=says):
        long(engine)
    engine.close()
    assert gone(engine.were)


@pytest.mark.parametrize(
    ("ranks", "victim", "phase"), [(2, 1, "idle"), (2, 1, "prefill"), (3, 2, "decode"), pytest.param(3, 1, "decode", marks=APART)]
)
def test_a_killed_rank_ends_the_engine_with_the_reason(tiny, phase, ranks, victim):
    engine = engine_of(tiny, tp=ranks)
    handles = []
    if phase == "prefill":
        handles = [long(engine, "abcdefgh" * 24, 50) for _ in range(3)]
    elif phase == "decode":
        handles = [long(engine) for _ in range(3)]
        next(iter(handles[0].results[0].stream()))
    began = time.monotonic()
    os.kill(engine.were[victim - 1], signal.SIGKILL)
    for handle in handles:
        with suppress(BackendError):  # some may have been complete
            handle.results[0].output()
    ended(engine, began, f"rank {victim} on cpu was ended by SIGKILL")


def test_a_killed_rank_while_loading_is_an_error_of_loading(tiny, monkeypatch):
    killed = crews.Crew.loaded

    def loaded(self):
        os.kill(self.processes[0], signal.SIGKILL)
        return killed(self)

    monkeypatch.setattr(crews.Crew, "loaded", loaded)
    began, processes = time.monotonic(), []
    monkeypatch.setattr(crews.Crew, "_end", lambda self, end=crews.Crew._end: (processes.extend(self.processes), end(self)))
    with pytest.raises(ModelLoadError, match="rank 1 on cpu was ended by SIGKILL"):
        engine_of(tiny)
    assert time.monotonic() - began < SOON + 10  # with the start of the processes
    assert gone(processes)


def test_a_killed_rank_before_the_ranks_meet_ends_the_engine_with_the_reason(tiny, monkeypatch):
    """It has loaded its part, and does not hear what it should begin with."""
    processes, begin = [], crews.Crew.begin

    def killed(self, *what):
        processes.extend(self.processes)
        os.kill(self.processes[0], signal.SIGKILL)
        begin(self, *what)

    monkeypatch.setattr(crews.Crew, "begin", killed)
    with pytest.raises(BackendError, match="rank 1 on cpu was ended by SIGKILL"):
        engine_of(tiny)
    assert processes and gone(processes)


def test_a_rank_that_stops_is_found(tiny, monkeypatch):
    monkeypatch.setattr(crews, "_SILENT", 3.0)
    engine = engine_of(tiny)
    began = time.monotonic()
    os.kill(engine.were[0], signal.SIGSTOP)
    with pytest.raises(BackendError, match="has not been running"):
        long(engine).results[0].output()
    ended(engine, began, "rank 1 on cpu")


FAULTY = """
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from lmc.backend.engine.model_runner import ModelRunner
real, passes = ModelRunner.logits, []
def faulty(self, work, wanted):
    passes.append(work.rows)
    if len(passes) == 3:
        %s
    return real(self, work, wanted)
ModelRunner.logits = faulty
from lmc.backend.engine.distributed.rank import main; main()
"""


COMPILES = """
import json, os, sys; sys.path[:] = json.loads(sys.argv[1])
from lmc.backend.engine.distributed.runner import FollowerRunner
class Compiling(FollowerRunner):
    compiled = property(lambda self: os.path.exists({there!r}))
    def settle(self):
        assert self.compiled
        open({settled!r}, "w").close()
from lmc.backend.engine.distributed import rank, runner
runner.FollowerRunner = Compiling
rank.main()
"""


def test_ranks_adopt_kernels_before_the_same_pass(tiny, monkeypatch, tmp_path):
    """However long a rank is idle before they are compiled: it looked once when an idle time began, and then never."""
    there, settled = tmp_path / "there", tmp_path / "settled"
    monkeypatch.setattr(crews, "CODE", COMPILES.format(there=str(there), settled=str(settled)))
    with engine_of(tiny) as engine:
        crew = engine._core._runner._crew
        time.sleep(0.7)  # more than a rank is idle before it looks
        assert not crew.compiled
        there.touch()
        crew.wait_compiled()
        assert not settled.exists()
        engine._core.call(crew.settle)
        long(engine, most=2).results[0].output()
        assert settled.exists()


def test_the_first_rank_adopts_kernels_with_the_last():
    """A rank without them would be waited for in every pass with a long prompt."""
    from lmc.backend.engine.distributed.cuda import LeadingCuda

    done = []
    runner = object.__new__(LeadingCuda)
    runner._flash = SimpleNamespace(wait=lambda _: True, load=lambda: done.append("rank 0"))
    runner._crew, runner._settled = SimpleNamespace(compiled=False, settle=lambda: done.append("others")), False
    runner.settle()
    assert not done
    runner._crew.compiled = True
    runner.settle()
    runner.settle()
    assert done == ["others", "rank 0"]


def test_the_first_rank_begins_no_pass_that_the_others_do_not_know():
    """They would not compute their part of its sums."""
    from lmc.backend.engine.distributed.cuda import LeadingCuda

    assert LeadingCuda.prepare is None, "so the engine foresees none for it (test_drafts.py)"


@pytest.mark.parametrize(("ranks", "columns", "most"), [(2, 4096, 2816), (2, 8192, 1024), (4, 8192, 1408), (8, 8192, 2816), (2, 576, 3072)])
def test_passes_that_take_longer_to_launch_than_to_compute_are_captured(ranks, columns, most):
    """Of 8B's and 70B's shape, and of a small model."""
    from lmc.backend.engine.distributed.cuda import buckets

    found = buckets(ranks, columns)
    assert found[-1] == most and list(found) == sorted(set(found))
    assert all(after - before <= 128 for before, after in itertools.pairwise(found))


def test_a_pass_that_ranks_share_says_when_its_device_ran():
    """What breaks down a run reads that from any pass in flight."""
    from lmc.backend.engine.distributed.cuda import WatchedPass

    done, asked = iter([False, False, True]), []
    ended = SimpleNamespace(query=lambda: next(done), synchronize=lambda: None)
    crew = SimpleNamespace(waits=lambda: asked.append("waits"), check=lambda: asked.append("check"), over=lambda: asked.append("over"))
    flight = WatchedPass(None, None, "begun", ended, crew)
    assert (flight.begun, flight.ended) == ("begun", ended)
    assert flight.result().tokens == [] and asked == ["waits", "check", "check", "over"]


NO_POOL = """
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from lmc.backend.engine import kv_pool
def none(*of):
    raise MemoryError("no room for a pool")
kv_pool.KVPool.of = none
from lmc.backend.engine.distributed.rank import main; main()
"""


def test_nobody_waits_for_a_rank_that_is_lost_before_it_meets_the_others(tiny, monkeypatch):
    """Rank 0 waited for it a minute: what connects the ranks does not know of losses."""
    met = []
    monkeypatch.setattr(crews, "CODE", NO_POOL)
    monkeypatch.setattr(RankGroup, "connect", lambda *_: met.append(1))
    with pytest.raises(BackendError, match="rank 1 on cpu failed: MemoryError: no room for a pool"):
        engine_of(tiny)
    assert not met


GONE = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from lmc.backend.engine.distributed import group, rank
group.RankGroup.connect = lambda *_: os.kill(os.getpid(), 9)
rank.main()
"""


@pytest.mark.parametrize("code", [GONE, GONE.replace("os.kill(os.getpid(), 9)", "__import__('time').sleep(1000)")], ids=["killed", "hangs"])
def test_nobody_waits_for_a_rank_that_is_lost_while_they_connect(tiny, monkeypatch, code):
    """What connects them waits in native code for a minute, and on GPUs for an hour."""
    met, over = [], threading.Event()
    monkeypatch.setattr(crews, "CODE", code)
    monkeypatch.setattr(crews, "HANDSHAKE", 0.5 if "sleep" in code else 60.0)
    monkeypatch.setattr(RankGroup, "connect", lambda *_: met.append(over.wait(60)))
    with pytest.raises(BackendError, match=r"within 0 s|rank 1 on cpu was ended by SIGKILL"):
        engine_of(tiny)
    assert not met
    over.set()


def test_ranks_meet_where_no_other_user_can_and_one_that_is_killed_while_it_closes_ends(tiny, monkeypatch):
    """A store that listens on the loopback interface answers every user of the machine."""
    monkeypatch.setattr(torch.distributed, "TCPStore", None)
    engine = engine_of(tiny)
    long(engine, most=2).results[0].output()
    assert os.fstat(meeting_place()).st_nlink == 0  # no path leads to it
    long(engine)
    os.kill(engine.were[0], signal.SIGKILL)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < SOON
    assert gone(engine.were)


MISSES = """
rank = json.loads(sys.argv[2])["rank"]
        if rank == 1:
            from lmc.backend.engine.distributed.group import PeerLost
            raise PeerLost("a collective did not end: Connection reset by peer")
        import os, time
        time.sleep(%d)
        os._exit(7)
""".strip()


@pytest.mark.parametrize(
    ("act", "ranks", "patched", "says"),
    [
        ("raise MemoryError('no room for a pass')", 2, {}, "rank 1 on cpu failed: MemoryError: no room for a pass"),
        # rank 2's process ends a while after its connections, as it may on a busy machine: the others fail first
        (MISSES % 1, 3, {f"{DISTRIBUTED}.crew._GRACE": 60.0}, "rank 2 on cpu has ended with status 7"),
        (MISSES % 1000, 3, {}, "rank 1 on cpu failed: a collective did not end"),
        # the rank lives, and its beats say so; the pass hangs
        ("import time; time.sleep(1000)", 2, {f"{DISTRIBUTED}.start.LIMIT_CPU": 5.0}, "the engine has ended"),
        # that it computes nothing while the other waits tells it from a slow one
        ("import threading; threading.Event().wait()", 2, {f"{DISTRIBUTED}.crew._STILL": 2.0}, "s: rank 1 on cpu computes nothing"),
    ],
    ids=["raises", "exits late", "is missed", "hangs", "hangs and is named"],
)
def test_what_a_rank_fails_with_is_the_reason(tiny, monkeypatch, act, ranks, patched, says):
    monkeypatch.setattr(crews, "CODE", FAULTY % act)
    for name, value in patched.items():
        monkeypatch.setattr(name, value)
    engine = engine_of(tiny, tp=ranks)
    began = time.monotonic()
    with pytest.raises(BackendError, match=says):
        long(engine).results[0].output()
    ended(engine, began, says)


SLOW = """
import time
        end = time.thread_time() + 4.0
        while time.thread_time() < end:
            pass
""".strip()


def test_a_slow_pass_is_no_hung_one(tiny, monkeypatch):
    with Engine(tiny, dtype="float32", device="cpu", max_tokens=400) as one:
        expected = one.prompt_ids(long(one, most=4))
    monkeypatch.setattr(crews, "CODE", FAULTY % SLOW)
    monkeypatch.setattr(crews, "_STILL", 2.0)
    with engine_of(tiny) as engine:
        assert engine.prompt_ids(long(engine, most=4)) == expected


def test_what_a_stopped_watch_has_not_seen_does_not_count():
    still = crews._Still()
    assert [still.since(now, 1) for now in (0.0, 0.05, 60.0)] == pytest.approx([0.0, 0.05, 0.3])
    assert still.since(60.05, 2) == 0.0


def test_rank_0_that_fails_in_a_pass_ends_all(tiny, monkeypatch):
    engine = engine_of(tiny)
    model = engine._core._runner._model

    def forward(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(model, "forward", forward)
    began = time.monotonic()
    with pytest.raises(BackendError, match=r"rank 0 failed in a pass.*no room"):
        long(engine).results[0].output()
    ended(engine, began, "rank 0 failed")


LEADER = """
import sys, time
from lmc.backend.engine.distributed.crew import Crew
from lmc.backend.local_model import Engine
from lmc.segments import Gen, SamplingParams, Text
if sys.argv[2] == "start":
    Crew.loaded = lambda self: (print(*self.processes, flush=True), time.sleep(100))
engine = Engine(sys.argv[1], dtype="float32", device="cpu", max_tokens=400, tp=2)
print(*engine._core._runner._crew.processes, flush=True)
if sys.argv[2] == "decode":
    engine.submit(None, [Text(("abc",)), Gen(SamplingParams(max_new_tokens=100000, ignore_eos=True))])
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("phase", "how"),
    [
        ("idle", signal.SIGKILL),
        ("decode", signal.SIGKILL),
        ("idle", signal.SIGINT),
        ("start", signal.SIGINT),
        pytest.param("decode", signal.SIGINT, marks=APART),
    ],
)
def test_no_rank_and_no_file_outlives_the_process_that_started_it(tiny, phase, how, tmp_path):
    command, where = [sys.executable, "-c", LEADER, tiny, phase], {**os.environ, "TMPDIR": str(tmp_path)}
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=where)
    assert leader.stdout is not None
    processes = [int(word) for word in leader.stdout.readline().split()]
    assert processes
    os.killpg(leader.pid, how) if how == signal.SIGINT else os.kill(leader.pid, how)
    leader.wait(SOON)
    assert gone(processes, SOON)
    assert not [*tmp_path.glob("lmc*")]


def test_an_engine_that_nobody_has_any_more_ends_its_ranks(tiny):
    engine = engine_of(tiny)
    processes = engine.were
    del engine
    gc.collect()
    assert gone(processes, SOON)
