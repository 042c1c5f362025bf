"""Experiments: what is kept and resumed, what is said of what cannot be measured, pages and the report."""

import json
import re
from dataclasses import replace

import pytest

from experiments import __main__ as command
from experiments.apis import ANSWERS, card
from experiments.core import (
    ALL,
    EXPERIMENTS,
    NOT_REACHED,
    Experiment,
    Found,
    NotAResult,
    Opened,
    Plot,
    Point,
    Setup,
    Unmeasured,
    cell,
    missing,
    run,
    table,
)
from experiments.core import command as experiments_command
from experiments.page import page
from experiments.programs import VARIANTS
from experiments.quality import gsm8k, hellaswag, last_number, mmlu
from experiments.results import OWN, PAGE, PAPER, condensed, report, section, side_by_side
from experiments.stand_in import completions_server
from lmc.errors import BackendError
from tests.searching import apart

pytestmark = pytest.mark.usefixtures("no_full_collections")


@pytest.fixture
def fixed(monkeypatch):
    """A clean commit, as far as results say."""
    monkeypatch.setattr("experiments.core.where", lambda: {"date": "today", "machine": "m", "python": "3", "commit": "abc"})


def an_experiment(points):
    return Experiment(
        "own",
        "Does it?",
        lambda setup: (point for point in points),
        (Plot("A plot", "x", "y", "kind"), Plot("Lines", "x", "y", "kind", kind="lines")),
        "So it reads.",
    )


def test_what_was_measured_is_not_measured_again_unless_the_commit_differs(fixed, tmp_path, monkeypatch):
    calls = []

    def point(key):
        return Point(key, lambda: calls.append(key) or {"x": key, "y": 1.0})

    quiet = lambda line: None
    run(an_experiment([point("a")]), Setup(), tmp_path, say=quiet)
    found = run(an_experiment([point("a"), point("b")]), Setup(), tmp_path, say=quiet)
    assert calls == ["a", "b"] and [row["x"] for row in found.all()] == ["a", "b"]
    run(an_experiment([point("a")]), Setup(reps=9), tmp_path, say=quiet)
    assert calls == ["a", "b", "a"]
    monkeypatch.setattr("experiments.core.where", lambda: {"date": "today", "machine": "m", "python": "3", "commit": "def-dirty"})
    for _ in range(2):  # what a dirty tree has measured may be of another program
        run(an_experiment([point("a")]), Setup(reps=9), tmp_path, say=quiet)
    assert calls == ["a", "b", "a", "a", "a"]


@pytest.mark.parametrize(
    "error", [Unmeasured("no such thing"), BackendError("the server at http://x does not answer"), FileNotFoundError("no file"), ImportError("no package")]
)
def test_what_cannot_be_measured_is_said_and_the_rest_goes_on(fixed, tmp_path, error):
    def fails():
        raise error

    said = []
    found = run(an_experiment([Point("bad", fails), Point("good", lambda: {"x": 1, "y": 2})]), Setup(), tmp_path, say=said.append)
    assert found.unmeasured == {"bad": str(error)} and len(found.all()) == 1
    assert any(str(error) in line for line in said)
    again = Found.of(tmp_path / "own.json")
    assert again.unmeasured == found.unmeasured and again.all() == found.all()


def test_an_interrupted_experiment_keeps_what_it_has_says_what_is_missing_and_goes_on(fixed, tmp_path):
    calls = []

    def interrupted():
        raise KeyboardInterrupt

    points = lambda b: an_experiment(
        [Point("a", lambda: calls.append("a") or {"x": 1, "y": 1}), Point("b", b), Point("c", lambda: calls.append("c") or {"x": 3, "y": 1})]
    )
    with pytest.raises(KeyboardInterrupt):
        run(points(interrupted), Setup(), tmp_path, say=lambda line: None)
    found = Found.of(tmp_path / "own.json")
    assert list(found.rows) == ["a"] and found.unmeasured == dict.fromkeys(["b", "c"], NOT_REACHED)
    assert f"* b, c: {NOT_REACHED}" in section(points(interrupted), Found({"backend": "b", "scale": 1, "n": 0, "reps": 3}, {}, found.rows, found.unmeasured))
    found = run(points(lambda: calls.append("b") or {"x": 2, "y": 1}), Setup(), tmp_path, say=lambda line: None)
    assert calls == ["a", "b", "c"] and list(found.rows) == ["a", "b", "c"] and not found.unmeasured


def test_what_no_point_could_say_is_said_of_the_whole():
    wanted = replace(an_experiment([]), beside=True)
    assert [line.split(":")[0] for line in missing(wanted, Found({"device": "cpu"}, {}))] == ["other systems", "a GPU"]
    assert missing(wanted, Found({"device": "cuda", "peers": ["sglang:x"]}, {})) == []
    there, wanted = {"arrivals": "at once", "first p50": 1.0, "accuracy": None}, replace(wanted, lacks={"accuracy": "no answer is right"})
    assert missing(wanted, Found({"device": "cuda", "peers": ["sglang:x"]}, {}, {"p": [there]})) == [
        "percentiles to the last answer: not recorded when this was measured", "accuracy: no answer is right"]
    assert ALL in page(wanted, Found({"device": "cuda", "peers": ["sglang:x"]}, {})) and "--peer" in page(wanted, Found({}, {}))


def test_every_part_is_left_out_of_five_workloads(fixed, tmp_path):
    wanted = EXPERIMENTS["ablations"]
    keys = [point.key for point in wanted.points(Setup())]
    assert len(keys) == 5 * len(VARIANTS) and {
        f"{name} {part}"
        for name in ("few-shot", "react", "tree", "judge", "json")
        for part in (
            "cache",
            "tree (a table instead)",
            "order (first come first served)",
            "order (random)",
            "parallelism (one after another)",
            "pass plan-prefix",
            "run-ahead",
            "forced tokens",
            "drafts (off by themselves)",
        )
    } <= set(keys)
    some = replace(wanted, points=lambda setup: (point for point in wanted.points(setup) if point.key in ("react run-ahead", "react cache")))
    found = run(some, Setup(backend="mock", n=2, reps=2, scale=0.02), tmp_path, say=lambda line: None)
    (row,) = found.all()
    assert (row["n"], row["same"], row["requests"]) == (2, 1.0, 18) and "takes no options of an engine" in found.unmeasured["react cache"]


def test_an_error_of_the_experiment_itself_is_raised(fixed, tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(an_experiment([Point("a", lambda: {"y": 1 // 0})]), Setup(), tmp_path, say=lambda line: None)


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "own.json").write_text("[]")
    with pytest.raises(NotAResult, match=r"own\.json is not the result of an experiment"):
        run(an_experiment([]), Setup(), tmp_path)


def test_a_page_has_plots_figures_and_what_is_missing():
    rows = [{"x": 1, "y": 0.5, "kind": "<a>"}, {"x": 2, "y": 1.5, "kind": "<a>"}, {"x": 1, "y": 1.0, "kind": "b"}]
    found = Found({"backend": "mock"}, {"commit": "abc", "note": "beside other work"}, {"p": rows}, {"q": "because"})
    text = page(an_experiment([]), found)
    assert text.count("<svg") == 2 and text.count("<rect") == 3 and text.count("<polyline") == 2
    assert "q: because" in text and text.index("beside other work") < text.index("<svg") and "&lt;a&gt;" in text and "<a>" not in text


def test_the_command_of_a_setup_measures_it(monkeypatch, tmp_path):
    setup = Setup(backend="mock", n=8, scale=0.03, load_format="dummy", peers=("vllm:http://a", "sglang:http://b"), pool=900)
    said = experiments_command("order", vars(setup))
    assert said == "python -m experiments order --backend mock --load-format dummy --n 8 --scale 0.03 --peer vllm:http://a --peer sglang:http://b --pool 900"
    seen = []
    monkeypatch.setattr(command, "run", lambda wanted, setup, *_, **__: seen.append((wanted.name, setup)) or Found({}, {}))
    command.main([*said.split()[3:], "--out", str(tmp_path)])
    assert seen == [("order", setup)]
    assert experiments_command("quality", {**vars(Setup()), "data": "/home/me/data"}) == "python -m experiments quality --data FOLDER"
    assert "python -m experiments own --n 2" in page(an_experiment([]), Found({"n": 2}, {}))


@pytest.mark.parametrize("value, shown", [(None, ""), (1234.5, "1234"), (0.12345, "0.1235"), (3, "3"), ("a", "a"), (True, "True")])
def test_cells_have_as_many_digits_as_a_measurement(value, shown):
    assert cell(value) == shown


def test_columns_in_which_nothing_is_are_left_out():
    assert table([{"a": 1, "b": None}, {"a": 2, "c": "x"}]) == (["a", "c"], [["1", ""], ["2", "x"]])


def test_columns_on_which_all_rows_agree_are_said_once():
    names, lines = ["of", "system", "p50", "p95", "p99"], [["a", "lmc", str(i), str(i + 1), str(i + 1)] for i in range(4)]
    shown = ["of", "p50", "p95"], [["a", str(i), str(i + 1)] for i in range(4)]
    assert condensed(names, lines) == (*shown, ["system lmc", "p99 as p95"])
    assert condensed(names, lines[:3]) == (names, lines[:3], [])


def test_rows_stand_side_by_side():
    rows = [{"program": p, "mode": m, "seconds": s, "wasted": 0, "other": 9} for p, m, s in (("a", "off", 3), ("a", "on", 1), ("b", "off", 5))]
    assert side_by_side(rows, ["program"], "mode", ["seconds", "wasted"]) == [
        {"program": "a", "seconds: off": 3, "seconds: on": 1, "wasted: off": 0, "wasted: on": 0},
        {"program": "b", "seconds: off": 5, "wasted: off": 0},
    ]


def test_the_report_names_every_experiment_and_every_figure_of_the_paper(tmp_path):
    text = report(tmp_path)
    assert all(f"## {name}" in text for name in EXPERIMENTS) and all(f"| {figure.name} |" in text for figure in PAPER)
    assert {figure.experiment for figure in PAPER} <= set(EXPERIMENTS)
    assert {*OWN, *(figure.without for figure in PAPER if figure.without)} <= set(VARIANTS)
    assert text.count("not, because: ") == len(PAPER) + len(OWN) + 1  # nothing is in this folder


def test_the_page_of_results_is_what_its_command_writes():
    assert report() == PAGE.read_text("utf-8"), "python -m experiments --report"


def test_every_section_of_measured_points_says_where_when_of_what_and_what_is_missing():
    sections = report().split("\n## ")[2:]
    assert len(sections) == len(EXPERIMENTS)
    for text in sections:
        assert "Not measured:\n" in text or "Not measured yet." in text
        assert "Not measured yet." in text or all(
            re.search(rf"^date: .*{what}: \S", text, re.MULTILINE) for what in ("machine", "commit", "backend", "repetitions")
        ), text[:80]


def test_the_table_says_what_was_reproduced_and_why_not(tmp_path):
    row = lambda workload, **more: {"workload": workload, "without": "cache", "computed with": 10, "passes with": 4, "cpu times": 2.0, **more}
    rows = {"react cache": [row("react", computed=30, passes=4)], "tree cache": [row("tree", computed=20, passes=8)]}
    rows["react run-ahead"] = [row("react", computed=10, passes=5) | {"without": "run-ahead"}]
    Found(vars(Setup()) | {"peers": []}, {"commit": "c"}, rows, {"judge drafts (off by themselves)": "no time"}).save("ablations", tmp_path / "ablations.json")
    orders = {f"{name} {policy}": [{"workload": name, "policy": policy, "computed": n}] for name, policy, n in (
        ("react", "own", 100), ("react", "schedule=fcfs", 190), ("tree", "own", 100), ("tree", "schedule=fcfs", 110),
        ("tree", "schedule=random", 101))}  # fmt: skip
    Found(vars(Setup()) | {"peers": []}, {"commit": "c"}, orders, {"react schedule=random": "no time"}).save("order", tmp_path / "order.json")
    text = report(tmp_path)
    assert (
        "| Figure 8c: FCFS schedule | [order](#order) | reproduced. With it: 1.50 × prompt tokens computed (2 workloads in a pool for two "
        "programs) |"
        in text
    )
    assert (
        "| Figure 8c: random schedule | [order](#order) | partly, because: not measured: react schedule=random; at this size it makes no "
        "difference. With it: 1.01 ×"
        in text
    )
    assert (
        "| Figure 8c: no cache | [ablations](#ablations) | reproduced. Without it: 2.50 × prompt tokens computed, 1.50 × passes, 2.00 × CPU time (2 "
        "workloads) |"
        in text
    )
    assert "| ours: no drafts (off by themselves) | [ablations](#ablations) | not, because: not measured: judge drafts (off by themselves) |" in text
    assert "| ours: no run-ahead | [ablations](#ablations) | partly, because: at this size it makes no difference. Without it: 1.00 ×" in text
    assert (
        "| Figure 7: throughput with tensor parallelism, Mixtral-8x7B and Llama-70B | [scaling](#scaling) | not, because: needs several GPUs |"
        in text
    )


def test_a_section_says_what_was_not_measured():
    found = Found({"backend": "b", "scale": 1, "n": 0, "reps": 3}, {"commit": "c"}, {"p": [{"x": "a|b"}]}, {"q": "why", "r": "why"})
    text = section(an_experiment([]), found)
    assert "* q, r: why" in text and "| a\\|b |" in text


@pytest.mark.api
def test_the_command_lists_runs_and_refuses(capsys, tmp_path):
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    assert command.main(["look-ahead", "scaling", "--n", "2", "--out", str(tmp_path)]) == 1  # nothing was measured of scaling
    assert "scaling: nothing was measured" in capsys.readouterr().err
    assert command.main(["look-ahead", "--n", "2", "--out", str(tmp_path)]) == 0
    assert "needs GPUs" in json.loads((tmp_path / "scaling.json").read_text())["unmeasured"]["all"]
    (rows,) = json.loads((tmp_path / "look-ahead.json").read_text())["rows"].values()
    assert [(row["way"], row["requests"], row["accuracy"]) for row in rows] == [("interpreted", 12, 1.0), ("compiled", 2, 1.0)]
    assert (tmp_path / "look-ahead.html").read_text().startswith("<!doctype html>")
    for wrong in (["nonsense"], ["order", "--reps", "0"], ["order", "--scale", "0"], ["order", "--scale", "nan"], ["nonsense", "--report"]):
        with pytest.raises(SystemExit):
            command.main(wrong)


@pytest.mark.parametrize("arguments, why", [
    (["quality", "--backend", "mock"], "by --data"), (["quality", "--backend", "mock", "--data", "/nowhere"], "there is no /nowhere/mmlu.csv"),
    (["throughput", "--backend", "vllm:http://127.0.0.1:9"], "127.0.0.1:9"),
    pytest.param(["hit-rate", "--backend", "/nowhere"], "/nowhere", marks=pytest.mark.model), (["energy"], "needs GPUs"),
], ids=["no data", "no folder", "no server", "no model", "no GPU"])  # fmt: skip
def test_an_experiment_of_which_nothing_was_measured_fails(arguments, why, capsys, tmp_path):
    assert command.main([*arguments, "--n", "1", "--reps", "1", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert why in said and f"{arguments[0]}: nothing was measured" in said
    assert (tmp_path / f"{arguments[0]}.html").is_file()


def test_a_missing_package_is_said_with_what_installs_it(fixed, tmp_path):
    def fails():
        raise ModuleNotFoundError("No module named 'dspy'")

    found = run(an_experiment([Point("a", fails)]), Setup(), tmp_path, say=lambda line: None)
    assert found.unmeasured == {"a": "No module named 'dspy': `make clients` installs it, for `.venv-api/bin/python -m experiments`"}


def test_a_report_of_a_file_that_is_no_result_is_refused(capsys, tmp_path, monkeypatch):
    (tmp_path / "order.json").write_text("[]")
    monkeypatch.setattr(command, "report", lambda: report(tmp_path))
    monkeypatch.setattr(command, "PAGE", tmp_path / "results.md")
    with pytest.raises(SystemExit) as left:
        command.main(["--report"])
    assert left.value.code == 1 and "order.json is not the result of an experiment" in capsys.readouterr().err and not (tmp_path / "results.md").exists()


@apart
def test_a_killed_experiment_goes_on(tmp_path):
    import signal
    import subprocess
    import sys
    import time

    arguments = [sys.executable, "-m", "experiments", "throughput", "--backend", "mock", "--n", "1", "--reps", "1", "--scale", "0.02", "--out", str(tmp_path)]
    file = tmp_path / "throughput.json"
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (file.exists() and json.loads(file.read_text())["rows"]):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    kept = json.loads(file.read_text())
    assert kept["rows"] and (process.returncode == 0 or kept["unmeasured"])
    setup, lines = Setup(backend="mock", n=1, reps=1, scale=0.02), []
    dirty = kept["info"]["commit"].endswith("-dirty")  # is measured anew
    found = run(EXPERIMENTS["throughput"], setup, tmp_path, say=lines.append)
    assert len(found.rows) == 10 and not found.unmeasured
    assert dirty or len([line for line in lines if line.endswith("…")]) == 10 - len(kept["rows"])


def test_the_command_says_what_is_in_the_way_and_goes_on(capsys, tmp_path):
    (tmp_path / "scaling.json").write_text("[]")
    assert command.main(["scaling", "energy", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "scaling.json is not the result of an experiment" in said.err and "energy.html; 1 point not measured" in said.out
    assert command.main(["energy", "--out", str(tmp_path / "scaling.json" / "folder")]) == 1
    assert "scaling.json" in capsys.readouterr().err


@apart
def test_an_interrupted_command_says_how_it_goes_on(capsys, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.apis.interpreted", interrupted)
    assert command.main(["look-ahead", "scaling", "--n", "2", "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert json.loads((tmp_path / "look-ahead.json").read_text())["unmeasured"] == {"card": NOT_REACHED} and not (tmp_path / "scaling.json").exists()
    monkeypatch.undo()
    assert command.main(["look-ahead", "--n", "2", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "look-ahead.json").read_text())["unmeasured"] == {}


def test_a_backend_is_opened_once_for_its_points_and_again_behind_one_that_failed():
    made, closed = [], []

    class Backend:
        close = lambda self: closed.append(self)

    opened = Opened(lambda: made.append(1) or Backend())
    with opened.using() as first, opened.using() as second:
        assert first is second
    with pytest.raises(BackendError), opened.using():
        raise BackendError("it broke")
    assert (len(made), closed) == (1, [first])
    with opened.using() as third:
        assert third is not first
    opened.close()
    assert (len(made), closed) == (2, [first, third])


def test_a_peer_that_does_not_answer_is_waited_for_once(fixed, tmp_path, monkeypatch):
    tried = []

    def peer(self, name):
        tried.append(name)
        raise BackendError(f"{name} does not answer")

    monkeypatch.setattr(Setup, "peer", peer)
    found = run(EXPERIMENTS["latency"], Setup(backend="mock", n=1, reps=1, scale=0.02, peers=("vllm:http://127.0.0.1:9",)), tmp_path, say=lambda line: None)
    assert len(found.rows) == len(found.unmeasured) == 10 and len(tried) == 1


SETS = {
    "gsm8k.jsonl": (gsm8k, "\n".join(json.dumps({"question": f"q{i}", "answer": f"work\n#### {i},000"}) for i in range(7)), "5000"),
    "mmlu.csv": (mmlu, "\n".join(f"q{i},a,b,c,d,B" for i in range(7)), " B"),
    "hellaswag.jsonl": (hellaswag, "\n".join(json.dumps({"ctx": "He", "endings": ["a", "b", "c", f"d{i}"], "label": "3"}) for i in range(7)), "d5"),
}  # fmt: skip


@pytest.mark.parametrize(
    "text, number",
    [("so 3 and 1,200.", "1200"), ("#### 16.8", "16.8"), ("it is $72.00", "72"), ("-5", "-5"), ("10,000.50 in all", "10000.50"), ("none", ""), ("", "")],
)
def test_the_last_number_of_a_working_is_its_answer(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize("name", SETS)
def test_data_sets_are_read(name, tmp_path):
    read, text, right = SETS[name]
    (tmp_path / name).write_text(text)
    found = read(tmp_path / name)
    assert len(found) == 2 and found[0].right == right
    for broken in ("\n{", "\n[]", '\n{"question": 1, "answer": "", "ctx": "", "endings": [], "label": 9}', "\na,b,c,d,e,"):
        (tmp_path / name).write_text(text + broken)
        with pytest.raises(Unmeasured, match=rf"{name}(:|, row )8"):
            read(tmp_path / name)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe\x00", b"\x00", b'{"ctx": "unended'], ids=repr)
def test_a_data_set_that_cannot_be_read_is_said_and_the_others_are_measured(data, tmp_path, fixed):
    for name in ("gsm8k.jsonl", "mmlu.csv"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "hellaswag.jsonl").write_text(SETS["hellaswag.jsonl"][1])
    found = run(EXPERIMENTS["quality"], Setup(backend="mock", data=str(tmp_path)), tmp_path / "out", say=lambda line: None)
    assert all(str(tmp_path / name) in found.unmeasured[key] for key, name in (("lmc GSM8K", "gsm8k.jsonl"), ("lmc MMLU", "mmlu.csv")))
    one, other = found.rows["lmc HellaSwag"]
    assert (one["way"], other["way"]) == ("interpreted", "compiled") and one["accuracy"] == other["accuracy"] in (0.0, 0.5, 1.0)  # the mock's guess


@pytest.mark.api
def test_all_that_run_programs_say_how_items_arrive_percentiles_and_whether_answers_are_the_same(fixed, tmp_path):
    columns = {"arrivals", "seconds", "least", "most", "same", *(f"{what} {share}" for what in ("first", "total") for share in ("p50", "p95", "p99"))}
    (tmp_path / "hellaswag.jsonl").write_text(SETS["hellaswag.jsonl"][1])
    setup = Setup(backend="mock", n=2, reps=1, scale=0.02, data=str(tmp_path))
    for name, key in {
        "throughput": "lmc react",
        "latency": "lmc react",
        "ablations": "react run-ahead",
        "arrivals": "react",
        "quality": "lmc HellaSwag",
        "look-ahead": "card",
        "reordering": "essay",
    }.items():
        wanted = replace(EXPERIMENTS[name], points=lambda setup, own=EXPERIMENTS[name], key=key: (p for p in own.points(setup) if p.key == key))
        found = run(wanted, setup, tmp_path / name, say=lambda line: None)
        assert found.all() and all(columns <= row.keys() for row in found.all()), name
        assert all(row["same"] == 1.0 for row in found.all() if row.get("way") != "moved"), name


def test_the_stand_in_cuts_at_limits_and_stops():
    import http.client

    with completions_server(lambda prompt: "one two\nthree four") as url:
        host = url.removeprefix("http://").removesuffix("/v1")

        def ask(**body):
            connection = http.client.HTTPConnection(host)
            connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "p", **body}), {"Content-Type": "application/json"})
            choice = json.loads(connection.getresponse().read())["choices"][0]
            connection.close()
            return choice["text"], choice["finish_reason"]

        assert ask(max_tokens=2) == ("one two", "length")
        assert ask(max_tokens=9) == ("one two\nthree four", "stop")
        assert ask(max_tokens=9, stop="\n") == ("one two", "stop")


def test_a_card_has_its_fields():
    import lmc

    state = card.run(title="x", backend=lmc.Mock(lambda prompt, ask: ANSWERS[ask.name]))
    assert state.ret_value == {name: text.strip() for name, text in ANSWERS.items()}
