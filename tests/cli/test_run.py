"""`lmc run` as a user meets it: return values, records as they come, interruption, and what goes on with --resume."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmc.cli.run import Job
from lmc.result_files import Results
from lmc.userfiles import UsageError
from tests.cli.harness import PROGRAM, ROOT, items, jsonl
from tests.searching import some
from tests.waiting import until

SLOW = '''
import time

import lmc


@lmc.function
def slow(s, text):
    s += text + lmc.gen("x", max_tokens=4)
    if text == "slow":
        time.sleep(60)
    return text
'''


def test_run_with_arguments_prints_the_return_value(lmc_cli):
    code, out, err = lmc_cli("run", "prog.py:echo", "--arg", "text=a=b", "--arg", "times=3", "--backend", "mock")
    assert (code, json.loads(out)) == (0, {"text": "a=b", "times": 3}), err


@pytest.mark.parametrize("annotation", ["any text", "undefined", "lmc.undefined"])
def test_an_annotation_may_be_any_text(lmc_cli, folder, annotation):
    (folder / "noted.py").write_text(f'import lmc\n\n\n@lmc.function\ndef noted(s, text: "{annotation}"):\n    return text\n')
    code, out, err = lmc_cli("run", "noted.py:noted", "--arg", 'text="x"', "--backend", "mock")
    assert (code, out) == (0, "x\n"), err


def test_run_on_a_file_writes_a_record_per_item_in_order(lmc_cli, folder):
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(7)))
    code, out, err = lmc_cli("run", "prog.py:echo", "--input", "in.jsonl", "--output", "out.jsonl", "--backend", "mock")
    assert (code, out) == (0, ""), err
    rows = jsonl(folder / "out.jsonl")
    assert [row["index"] for row in rows] == list(range(7))
    assert rows[3]["return"] == {"text": "t3", "times": 1}
    assert rows[3]["text"] == "Say: t3" + rows[3]["variables"]["said"]
    assert rows[3]["usage"]["calls"] == 1
    assert "7 items" in err and "7 calls" in err


@pytest.mark.parametrize("options", [[], ["--temperature", "0"], ["--seed", "5", "--max-tokens", "3"]], ids=["plain", "greedy", "seeded"])
def test_interpret_gives_the_same_records(lmc_cli, folder, options):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    common = ["run", "prog.py:echo", "-i", "in.jsonl", "--backend", "mock", "--seed", "1", *options]
    assert lmc_cli(*common, "-o", "compiled.jsonl")[0] == 0
    assert lmc_cli(*common, "-o", "interpreted.jsonl", "--interpret")[0] == 0
    for one, two in zip(jsonl(folder / "compiled.jsonl"), jsonl(folder / "interpreted.jsonl"), strict=True):
        assert {**one, "usage": 0} == {**two, "usage": 0}


@pytest.mark.parametrize("mode", [[], ["--interpret"]], ids=["compiled", "interpreted"])
def test_a_resumed_run_samples_what_an_undisturbed_one_samples(lmc_cli, folder, mode):
    """Each item's seed comes from its number in the input, wherever the run goes on."""
    items(folder / "in.jsonl", *({"text": "the same"} for _ in range(5)))
    command = ["run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock", "--seed", "1", *mode]
    assert lmc_cli(*command, "-o", "whole.jsonl")[0] == 0
    rows = sorted(jsonl(folder / "whole.jsonl"), key=lambda row: row["index"])
    assert len({row["variables"]["said"] for row in rows}) > 1
    kept = [line for line in (folder / "whole.jsonl").read_text().splitlines() if json.loads(line)["index"] in (0, 3)]
    (folder / "part.jsonl").write_text("\n".join(kept) + "\n")
    for extra in folder.glob("whole.jsonl.*"):
        extra.rename(folder / extra.name.replace("whole", "part"))
    code, _, err = lmc_cli(*command, "-o", "part.jsonl", "--resume")
    assert code == 0, err
    resumed = sorted(jsonl(folder / "part.jsonl"), key=lambda row: row["index"])
    assert [{**row, "usage": 0} for row in resumed] == [{**row, "usage": 0} for row in rows]


@pytest.mark.parametrize("where", [[], ["-o", "-"]])
def test_without_output_records_go_to_standard_output(lmc_cli, folder, where):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    code, out, _ = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock", *where)
    assert code == 0 and sorted(json.loads(line)["index"] for line in out.splitlines()) == [0, 1]
    assert not (folder / "-").exists()


def test_fields_that_are_no_parameter_are_copied_and_said(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a", "label": "x"})
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    assert code == 0 and "label" in err
    assert jsonl(folder / "out.jsonl")[0]["input"] == {"label": "x"}


def test_one_bad_item_fails_alone_and_resume_runs_it_again(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "bad"}, {"text": "c"})
    run = ("run", "prog.py:picky", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    code, _, err = lmc_cli(*run)
    assert code == 1 and "1 of 3 items" in err and "--resume" in err and "Traceback" not in err
    rows = jsonl(folder / "out.jsonl")
    assert rows[1]["error"] == {"type": "ValueError", "message": "I do not like bad", "at": "prog.py:17"}
    assert [row.get("return") for row in rows] == ["a", None, "c"]

    items(folder / "in.jsonl", {"text": "a"}, {"text": "good"}, {"text": "c"})
    code, _, err = lmc_cli(*run, "--resume")
    assert code == 0 and "1 item " in err and "results in out.jsonl that stay: 2\n" in err
    assert [(row["index"], row["return"]) for row in jsonl(folder / "out.jsonl")] == [(0, "a"), (1, "good"), (2, "c")]


def test_an_answer_that_was_cut_and_is_not_needed_is_in_the_record_as_far_as_it_came(lmc_cli, folder):
    body = "\n\n@lmc.function\ndef cut(s, text):\n    s += text + lmc.gen('n', dtype=list[str], max_tokens=1)\n    return text\n"
    (folder / "cuts.py").write_text(PROGRAM + body)
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    code, _, err = lmc_cli("run", "cuts.py:cut", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    rows = jsonl(folder / "out.jsonl")
    assert code == 0, err
    assert [(row["return"], row["variables"]["n"], row["text"]) for row in rows] == [("a", "[", "a["), ("b", "[", "b[")]
    sys.modules.pop("cuts", None)


def test_text_used_as_a_number_is_explained(lmc_cli, folder):
    (folder / "sums.py").write_text(PROGRAM + "\n\n@lmc.function\ndef more(s, text):\n    s += text + lmc.gen('n', max_tokens=2)\n    return s['n'] + 1\n")
    code, _, err = lmc_cli("run", "sums.py:more", "--arg", "text=x", "-b", "mock")
    assert code == 1 and "s['n'] is text, like everything a model writes" in err and "sums.py:" in err
    lmc_cli("run", "sums.py:more", "-i", str(items(folder / "in.jsonl", {"text": "x"})), "-o", "out.jsonl", "-b", "mock")
    assert "is text, like everything a model writes" in jsonl(folder / "out.jsonl")[0]["error"]["message"]
    sys.modules.pop("sums", None)


def test_half_of_a_surrogate_pair_is_written_and_stops_nothing(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "\ud800"}, {"text": "b"})
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    assert code == 0, err
    assert [row["return"]["text"] for row in jsonl(folder / "out.jsonl")] == ["\ud800", "b"]
    (folder / "out.jsonl").write_text((folder / "out.jsonl").read_text().splitlines(keepends=True)[0])
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock", "--resume")
    assert code == 0, err
    assert [row["return"]["text"] for row in jsonl(folder / "out.jsonl")] == ["\ud800", "b"]


def test_a_result_that_cannot_go_on_keeps_what_is_done(lmc_cli, folder, monkeypatch):
    """An interruption half way: the records before it stay, and --resume does the rest."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(6)))
    run = ("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    states = Job.states

    def interrupted(*args):
        for i, state in enumerate(states(*args)):
            if i == 3:
                raise KeyboardInterrupt
            yield state

    with monkeypatch.context() as patch:
        patch.setattr(Job, "states", interrupted)
        code, _, err = lmc_cli(*run)
    assert code == 130 and "3 of 6 results are in out.jsonl" in err and "--resume" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == [0, 1, 2]
    code, _, err = lmc_cli(*run, "--resume")
    assert code == 0 and "3 items" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == list(range(6))


ECHO = ("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock", "--temperature", "0")


@pytest.fixture
def results(lmc_cli, folder) -> Path:
    """The results of `ECHO` for three items."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(3)))
    assert lmc_cli(*ECHO)[0] == 0
    return folder / "out.jsonl"


@some("order, options", [
    pytest.param(["slow", "a", "b", "c"], [], id="compiled"), pytest.param(["a", "b", "c", "slow"], ["--interpret"], id="interpreted"),
], 2)  # fmt: skip
def test_what_is_finished_is_written_at_once_and_interruption_is_prompt(folder, order, options):
    """An item that hangs in its own code, first in the file, holds up neither the others' results nor Ctrl-C."""
    (folder / "slow.py").write_text(SLOW)
    items(folder / "in.jsonl", *({"text": text} for text in order))
    command = [sys.executable, "-m", "lmc", "run", "slow.py:slow", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock", *options]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) == 3, seconds=120)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "3 of 4 results are in out.jsonl" in err and "--resume" in err and "still running" in err and "Traceback" not in err
    assert [row["return"] for row in jsonl(folder / "out.jsonl")] == ["a", "b", "c"]


def test_results_that_come_out_of_order_are_sorted_at_the_end(lmc_cli, folder, monkeypatch):
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(4)))
    states = Job.states
    monkeypatch.setattr(Job, "states", lambda *args: reversed(list(states(*args))))
    code, _, err = lmc_cli(*ECHO)
    assert code == 0, err
    assert [(row["index"], row["return"]["text"]) for row in jsonl(folder / "out.jsonl")] == [(i, f"t{i}") for i in range(4)]


def test_finished_results_are_flushed_on_interruption(lmc_cli, folder, monkeypatch):
    """Results that finish while another one is being shown are written, too."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(5)))

    def interrupted(states, total, backend):
        yield next(iter(states))
        until(lambda: states._events.qsize() >= total)  # the others, and the end
        raise KeyboardInterrupt

    monkeypatch.setattr("lmc.cli.run.progress", interrupted)
    code, _, err = lmc_cli(*ECHO)
    assert code == 130 and "5 of 5 results" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == list(range(5))


@pytest.mark.parametrize("how", [[], ["--interpret"]], ids=["compiled", "interpreted"])
def test_a_run_is_written_as_a_page(lmc_cli, folder, how):
    code, out, _ = lmc_cli("run", "prog.py:echo", "-a", "text=<b>x", "-b", "mock", "--html", "run.html", *how)
    page = (folder / "run.html").read_text()
    assert code == 0 and out and "<b>x" not in page and "&lt;b&gt;x" in page
    assert 'id=timeline' in page and ("graph @" in page) == (not how)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is a device of Linux")
def test_a_page_that_cannot_be_written_takes_no_result_along(lmc_cli):
    code, out, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--html", "/dev/full")
    assert code == 2 and out.strip() and "cannot write /dev/full: No space left on device" in err


@pytest.mark.parametrize("output", ["in.jsonl", "./sub/../in.jsonl", "link.jsonl"])
@pytest.mark.parametrize("flag", [[], ["--overwrite"], ["--resume"]], ids=["plain", "overwrite", "resume"])
def test_the_input_is_never_the_output(lmc_cli, folder, output, flag):
    source = items(folder / "in.jsonl", {"text": "a"})
    (folder / "sub").mkdir()
    (folder / "link.jsonl").symlink_to(source)
    before = source.read_text()
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", output, "-b", "mock", *flag)
    assert code == 2 and "is the --input file; choose another" in err
    assert source.read_text() == before


def test_links_that_lead_nowhere_are_named(lmc_cli, folder):
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    items(folder / "in.jsonl", {"text": "a"})
    for given, result in (("loop.jsonl", "out.jsonl"), ("in.jsonl", "loop.jsonl")):
        code, _, err = lmc_cli("run", "prog.py:echo", "-i", given, "-o", result, "-b", "mock")
        assert code == 2 and "loop.jsonl" in err and "symbolic links" in err


@pytest.mark.parametrize("what", [["-i", "in.jsonl"], ["-a", "text=x"]], ids=["file", "one"])
def test_existing_results_are_not_replaced_unasked(lmc_cli, folder, what):
    items(folder / "in.jsonl", {"text": "a"})
    (folder / "out.jsonl").write_text("precious\n")
    command = ("run", "prog.py:echo", *what, "-o", "out.jsonl", "-b", "mock")
    code, _, err = lmc_cli(*command)
    assert code == 2 and "not empty" in err and "--overwrite" in err and "--resume" in err
    assert (folder / "out.jsonl").read_text() == "precious\n"
    assert lmc_cli(*command, "--overwrite")[0] == 0
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == [0]


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_two_runs_do_not_write_one_file(lmc_cli, results, folder, flag):
    """The second replaced the file under the first one: their items ran twice, and results of the first were in no file."""
    before = results.read_text()
    with Results(results, overwrite=True) as first:
        code, _, err = lmc_cli(*ECHO, flag)
        assert code == 2 and "another process writes its results to out.jsonl; wait for it, or choose another --output" in err
        first.write({"index": 0})
        assert lmc_cli(*ECHO, flag)[0] == 2
    assert results.read_text() == '{"index": 0}\n'
    results.write_text(before)
    assert lmc_cli(*ECHO, flag)[0] == 0


def test_a_run_that_began_beside_another_does_not_replace_its_results(folder):
    first, second = Results(folder / "new.jsonl"), Results(folder / "new.jsonl")
    with first, pytest.raises(UsageError, match="another process"):
        second.__enter__()
    assert (folder / "new.jsonl").read_text() == ""


def test_a_file_system_without_locks_is_named_and_written_to(lmc_cli, results, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.warns(UserWarning, match=r"out.jsonl is on a file system without locks \(No locks available\)"):
        assert lmc_cli(*ECHO, "--overwrite")[0] == 0
    assert [row["index"] for row in jsonl(results)] == [0, 1, 2]


def test_an_output_that_is_a_folder_or_a_device(lmc_cli, folder):
    (folder / "out").mkdir()
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-o", "out", "-b", "mock")
    assert code == 2 and "is a folder" in err and "out/results.jsonl" in err
    assert lmc_cli("run", "prog.py:echo", "-a", "text=x", "-o", os.devnull, "-b", "mock")[0] == 0
    assert not Path(os.devnull).is_file()


def test_resume_refuses_results_of_other_items(lmc_cli, results, folder):
    before = results.read_text()
    items(folder / "in.jsonl", {"text": "new"}, *({"text": f"t{i}"} for i in range(3)))
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and "out.jsonl:1" in err and "another item than in.jsonl:1 is now" in err and "--overwrite" in err
    assert results.read_text() == before
    code, _, err = lmc_cli(*ECHO, "--resume", "--overwrite")
    assert code == 0 and "4 items" in err
    assert [row["return"]["text"] for row in jsonl(results)] == ["new", "t0", "t1", "t2"]


@pytest.mark.parametrize("command, words", [
    ([*ECHO[:-1], "0.5"], "--temperature"),
    ([*ECHO, "--seed", "3"], "--seed"),
    ([w.replace("echo", "picky") for w in ECHO], "another program"),
], ids=["temperature", "seed", "program"])
def test_resume_refuses_results_of_another_run(lmc_cli, results, command, words):
    before = results.read_text()
    code, _, err = lmc_cli(*command, "--resume")
    assert code == 2 and "out.jsonl:1" in err and words in err and "--overwrite" in err
    assert results.read_text() == before


@pytest.mark.parametrize("row, words", [({"index": 7}, "not a result"), ({"text": "a"}, "not a result"), (None, "has only 2 items")],
                         ids=["no digest", "no index", "too many"])
def test_resume_refuses_what_is_no_result_of_it(lmc_cli, results, folder, row, words):
    if row is None:
        items(folder / "in.jsonl", {"text": "t0"}, {"text": "t1"})
    else:
        results.write_text(json.dumps(row) + "\n")
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and words in err and "--overwrite" in err


def test_resume_says_which_results_are_of_an_older_source(lmc_cli, results, folder):
    before = results.read_text()
    (folder / "prog.py").write_text(PROGRAM.replace("Say: ", "Tell: "))
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "source has changed since 3 of the results in out.jsonl, which stay" in err and results.read_text() == before
    code, _, err = lmc_cli(*ECHO, "--resume", "--overwrite")
    assert code == 0 and "3 items" in err and "source has changed" not in err
    assert [row["text"].startswith("Tell: ") for row in jsonl(results)] == [True] * 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
def test_a_full_disk_is_named_with_the_file(lmc_cli, folder):
    (folder / "full").symlink_to("/dev/full")
    items(folder / "in.jsonl", {"text": "a"})
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "full", "-b", "mock")
    assert code == 2 and "cannot write the results to full: No space left on device; choose another --output" in err


def test_standard_output_on_a_full_disk_is_named(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=len, flush=full))
    with pytest.raises(UsageError, match="cannot write the results to standard output: No space left on device; choose another --output"):
        Results(None).write({"index": 0})


def test_resume_keeps_what_matches_and_asks_for_nothing(lmc_cli, results):
    before = results.read_text()
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "0 items" in err and "0 calls" in err
    assert results.read_text() == before


@pytest.mark.parametrize("cut", [1, 20], ids=["the last byte", "in the middle"])
def test_resume_after_a_line_that_was_torn_off(lmc_cli, results, cut):
    whole = results.read_bytes()
    results.write_bytes(whole[:-1 - cut])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "last line of out.jsonl is incomplete" in err and "1 item " in err
    assert results.read_bytes() == whole


def test_resume_takes_a_whole_last_line_without_its_newline(lmc_cli, results):
    whole = results.read_bytes()
    results.write_bytes(whole[:-1])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "0 items" in err and "incomplete" not in err
    assert results.read_bytes() == whole


def test_resume_after_a_line_torn_inside_a_character(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "é"})
    assert lmc_cli(*ECHO)[0] == 0
    whole = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").write_bytes(whole[: whole.index("é".encode()) + 1])
    assert lmc_cli(*ECHO, "--resume")[0] == 0
    assert (folder / "out.jsonl").read_bytes() == whole


def test_damage_inside_the_results_is_not_passed_over(lmc_cli, results):
    lines = results.read_text().splitlines(keepends=True)
    results.write_text(lines[0] + "{oops\n" + lines[2])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and "out.jsonl:2" in err and "not JSON" in err


def test_installed_command_is_plain_when_piped(folder):
    """As a process: no colour codes, output and messages on their own streams."""
    done = subprocess.run([sys.executable, "-m", "lmc", "run", "prog.py:echo", "-a", "text=x", "-b", "mock"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"text": "x", "times": 1}
    assert "\x1b" not in done.stdout + done.stderr


def test_piped_output_is_utf_8_in_every_locale(folder):
    Path("cafe.py").write_text('import lmc\n@lmc.function\ndef order(s):\n    s += "Un café…"\n', encoding="utf-8")
    plain = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "lmc", "dump-ir", "cafe.py"], capture_output=True, env=plain, check=False)
    assert "Un café…" in done.stdout.decode("utf-8"), done.stderr
    done = subprocess.run([sys.executable, "-m", "lmc", "run", "é.py:order"], capture_output=True, env=plain, check=False)
    assert done.stderr.decode("utf-8").startswith("error: no such file: \\udcc3\\udca9.py")


def test_pages_of_files_whose_names_are_no_text_are_written(lmc_cli, folder):
    (folder / "\udcff.py").write_text((folder / "prog.py").read_text())
    code, out, err = lmc_cli("dump-ir", "\udcff.py:echo", "--format", "html")
    assert code == 0 and "\\udcff.py:9" in out, err
    code, out, err = lmc_cli("run", "\udcff.py:echo", "-b", "mock", "-a", "text=\udcfe", "--html", "page.html")
    assert code == 0 and "Say: \\udcfe" in (folder / "page.html").read_text(encoding="utf-8"), err


def test_rows_of_standard_input_become_records(lmc_cli, folder, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"text,times,id\nhello,2,a7\nyou,,a8\n")))
    code, _, err = lmc_cli("run", "prog.py:echo", "--input", "-", "--output", "out.jsonl", "-b", "mock")
    assert code == 0 and "has no parameter id; copied to the results" in err
    rows = jsonl(folder / "out.jsonl")
    assert [row["return"] for row in rows] == [{"text": "hello", "times": 2}, {"text": "you", "times": 1}]
    assert [row["input"] for row in rows] == [{"id": "a7"}, {"id": "a8"}]


def test_no_folder_is_made_for_an_output(lmc_cli, folder):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", "otu/results.jsonl")
    assert code == 2 and "there is no folder otu; make it (mkdir -p otu)" in err and not (folder / "otu").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--html", "otu/page.html"),
        ("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--journal", "otu/run"),
        ("trace", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", "otu/trace.json"),
        ("bench", "prog.py:echo", "-a", "text=x", "-b", "mock", "--json", "otu/bench.json"),
        ("dump-ir", "prog.py:echo", "--output", "otu/echo.lmir"), ("dump-fsm", "a|b", "--output", "otu/fsm.txt"), ("new-key", "ann", "--file", "otu/keys"),
        ("replay", "run", "--html", "otu/page.html"), ("serve", "prog.py:echo", "-b", "mock", "--journals", "otu/runs"),
    ],
    ids=lambda command: " ".join((command[0], command[-2])),
)  # fmt: skip
def test_no_folder_is_made_for_what_a_run_leaves_and_nothing_runs_first(lmc_cli, folder, command):
    code, out, err = lmc_cli(*command)
    assert code == 2 and out == "" and f"{command[-2]} {command[-1]}: there is no folder otu; make it (mkdir -p otu)" in err and not (folder / "otu").exists()


@pytest.mark.parametrize("command", [("run", "--html"), ("run", "--output"), ("run", "--journal"), ("trace", "--output"), ("bench", "--json")])
def test_nothing_runs_first_for_what_may_not_be_written(lmc_cli, monkeypatch, command):
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)  # to a superuser nothing is forbidden
    code, out, err = lmc_cli(command[0], "prog.py:echo", "-a", "text=x", "-b", "mock", command[1], "kept")
    assert (code, out, err) == (2, "", f"error: {command[1]} kept: you may not write there; choose another\n")


@pytest.mark.parametrize("name", ["results.csv", "results.parquet"])
def test_results_are_no_table(lmc_cli, folder, name):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", name)
    assert code == 2 and 'another name, such as results.jsonl (pandas: pd.read_json("results.jsonl", lines=True))' in err and not (folder / name).exists()
