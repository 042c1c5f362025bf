"""`benchmarks/bench_real_schemas.py` in small: what a sample gives, and folders that hold none."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import bench_real_schemas
from tests.fsm.small_vocabulary import EOS, small


def run(monkeypatch, *args: str) -> None:
    monkeypatch.setattr(bench_real_schemas, "small_vocabulary", small)
    monkeypatch.setattr(bench_real_schemas, "EOS", EOS)
    monkeypatch.setattr(sys, "argv", ["bench_real_schemas", *args])
    bench_real_schemas.main()


@pytest.mark.parametrize(
    ("files", "said"),
    [({}, "has no *.json files"), ({"a.json": '{"type": "null"}'}, "a.json is not a schema with its tests"), ({"a.json": "[]"}, "a.json is not")],
)
def test_a_folder_without_schemas_is_said(files, said, tmp_path, monkeypatch, capsys):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, str(tmp_path))
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_valid_and_invalid_instances_are_counted(tmp_path, monkeypatch, capsys):
    tests = [{"data": "abc", "valid": True}, {"data": "abcd", "valid": False}, {"data": "ab", "valid": True}]
    (tmp_path / "a.json").write_text(json.dumps({"schema": {"type": "string", "maxLength": 3}, "tests": tests}))
    (tmp_path / "b.json").write_text(json.dumps({"schema": {"pattern": "("}, "tests": tests}))
    run(monkeypatch, str(tmp_path), "--only", "lmc")
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:2] == ["lmc", "1"] and line[-6:] == ["0", "of", "2", "0", "of", "1"]


def test_a_folder_of_refused_schemas_has_no_times(tmp_path, monkeypatch, capsys):
    (tmp_path / "b.json").write_text(json.dumps({"schema": {"pattern": "("}, "tests": []}))
    run(monkeypatch, str(tmp_path), "--only", "lmc")
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["lmc", "1", "nan"]
