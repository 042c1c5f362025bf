"""Recorded programs on other engines: the prompts of bench_drafts, in order, and the accepted length with which an engine takes as many passes."""

import asyncio
import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from benchmarks.bench_draft_peers import Request, Target, VllmWorker, bench, line, parsed, rates, requests, run_item, targets
from benchmarks.bench_drafts import Row
from benchmarks.recorded import SHAPES, Recorded, recorded


@pytest.mark.parametrize("name", SHAPES)
def test_prompts_are_those_of_bench_drafts(name):
    (shape,) = recorded([name])
    asked = [requests(shape, item) for item in shape.items]
    assert {r.prompt: r.answer for item in asked for r in item} == shape.answers()
    for item in asked:
        for request in item:
            before = "" if request.onto is None else item[request.onto].prompt + item[request.onto].answer
            assert before + request.text == request.prompt


def test_the_best_plan_waits_for_all_plans_and_no_step():
    (shape,) = recorded(["tree"])
    asked = requests(shape, shape.items[0])
    names = [r.name for r in asked]
    after = {r.name: [names[i] for i in r.after] for r in asked}
    assert names[-1] == "best" and after["best"] == ["plan0", "plan1", "plan2"]
    assert after["plan0"] == [] and after["step10"] == after["step11"] == ["plan1"]


class Lockstep:
    """An engine in which each pass gives each request its tokens; the first pass of a request gives one. A token is a character."""

    def __init__(self):
        self.length, self.count, self.live, self.prompts = 1.0, 0, [], []

    def tokens(self, text):
        return list(text)

    async def generate(self, ids, count):
        self.prompts.append("".join(ids))
        self.live.append(request := [0.0, object()])
        try:
            while request[0] < count:
                await asyncio.sleep(0)
                if request is self.live[0]:
                    self.count += 1
                    for one in self.live:
                        one[0] += self.length if one[0] else 1.0
            return ["x"] * count
        finally:
            self.live.remove(request)

    async def flush(self):
        assert not self.live

    async def passes(self):
        return self.count

    async def accept(self, length):
        self.length = length


def test_a_prompt_goes_on_with_the_engines_own_tokens():
    asked = [Request("a", "Q", "yes", "Q", None, ()), Request("b", "Qyes A", "no", " A", 0, (0,))]
    asyncio.run(run_item(peer := Lockstep(), asked))
    assert peer.prompts == ["Q", "Qxxx A"] and peer.count == 4 + 3


def test_what_nobody_reads_is_cancelled_at_the_end():
    asked = [Request("long", "L", "y" * 99, "L", None, ()), Request("end", "E", "no", "E", None, ())]
    asyncio.run(run_item(peer := Lockstep(), asked))
    assert 3 <= peer.count < 9 and not peer.live


@pytest.mark.parametrize("name", ["json", "react", "tree"])
def test_the_length_is_found_with_which_it_takes_as_many_passes(name):
    (shape,) = recorded([name])
    some = Recorded(name, shape.program, shape.items[:2])
    plain = asyncio.run(bench(Lockstep(), some, 0, None, 1, 6))
    target = Target(plain.passes, plain.passes // 3)
    found = asyncio.run(bench(Lockstep(), some, 9, target, 2, 8))
    assert plain.length is None and abs(found.passes - target.passes) <= 0.02 * target.passes
    assert line(found).startswith(f"| {name} | 2 | {target.passes} | {found.passes} | {found.length:.2f} | ")


def test_rates_have_the_least_variance():
    assert rates(1.0, 3) == [0, 0, 0] and rates(3.25, 4) == [1, 1, 0.25, 0] and rates(9, 2) == [1, 1]


class Columns(list):
    """A row of token ids, as an array has them."""

    def tolist(self):
        return list(self)


class Ids(list):
    def __getitem__(self, at):
        row, columns = at
        return Columns(super().__getitem__(row)[columns])


def test_vllms_worker_counts_passes_and_fills_drafts():
    drafts = [[1, 2], [], []]
    runner = SimpleNamespace(execute_model=lambda scheduled: "done", drafter=SimpleNamespace(propose=lambda *given, **named: drafts))
    worker = VllmWorker()
    worker.model_runner = runner
    worker.peer_install(True)
    for rows in (7, 0, 1):
        assert runner.execute_model(SimpleNamespace(total_num_scheduled_tokens=rows)) == "done"
    assert worker.peer_passes() == 2
    ids = Ids([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])
    assert runner.drafter.propose(3, [[9], [8], []], None, ids, slot_mappings=None) == [[1, 2, 10], [20, 21, 22], []]


def test_targets_are_read_from_what_bench_drafts_writes(tmp_path):
    row = Row("edit", 2, 628, 630, 21, 699, 607, 2, 0.1, 2.8, 0.1, 0.1, [(21, 0.1)], True)
    file = tmp_path / "lmc.json"
    file.write_text(json.dumps({"rows": [{**asdict(row), "predicted": row.predicted}]}))
    options = parsed(["vllm", "--model", "DIR", "--drafts", "39", "--targets", str(file)])
    assert targets(options.targets) == {"edit": Target(628, 21)} and options.shapes == "chat,react,tree,json,edit"


def test_drafts_without_targets_are_refused(capsys):
    with pytest.raises(SystemExit):
        parsed(["sglang", "--model", "DIR", "--drafts", "6"])
    assert "--drafts needs --targets" in capsys.readouterr().err
