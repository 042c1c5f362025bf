"""Settings from the environment and from code; log channels; the default backend."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmc.backend.mock import Mock
from lmc.config import (
    PASSES,
    Settings,
    cache_dir,
    cache_folder,
    config,
    default_backend,
    from_environment,
    has_default_backend,
    log,
    provide,
    reset,
    set_default_backend,
    settings,
)
from lmc.errors import ArgumentError, LmcError, ParameterError
from lmc.passes.base import registry


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    module = sys.modules["lmc.config"]
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setattr(module, "_provided", {})
    reset()
    yield
    reset()


def test_environment_gives_settings() -> None:
    found = from_environment(
        {"LMC_DEBUG": "2", "LMC_LOG": "ahead, prefix", "LMC_SEED": "7", "OTHER": "x"}
    )
    assert found == Settings(debug=2, log=frozenset({"ahead", "prefix"}), seed=7)


def test_settings_know_the_names_of_all_passes() -> None:
    assert tuple(sorted(registry())) == PASSES


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"LMC_DEBUG": "9"}, "LMC_DEBUG='9': must be 0 to 5"),
        ({"LMC_DEBUG": "x"}, "LMC_DEBUG='x': must be a whole number"),
        ({"LMC_LOG": "ahed"}, "LMC_LOG: there is no channel 'ahed'; there are ahead, backend"),
        ({"LMC_SKIP_PASSES": "cse,plan-prefixes"}, "LMC_SKIP_PASSES: there is no pass 'plan-prefixes'; there are aggressive, batch-forks"),
        ({"LMC_PRINT_IR": "after=trace"}, "LMC_PRINT_IR: there is no pass 'trace'; there are aggressive, batch-forks"),
        ({"LMC_PRINT_IR": "all"}, "LMC_PRINT_IR='all': must be after-all or after=PASS"),
    ],
)
def test_bad_environment_names_the_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        from_environment(environ)


def test_code_wins_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMC_DEBUG", "1")
    assert settings().debug == 1
    config(debug=3)
    assert settings().debug == 3
    reset()
    assert settings().debug == 1


def test_unknown_setting_says_what_there_is() -> None:
    with pytest.raises(ArgumentError, match="no setting 'colour'; there are debug, log"):
        config(colour=1)


@pytest.mark.parametrize(("name", "value"), [("debug", float("inf")), ("log", None), ("log", [1]), ("skip_passes", b"cse")])
def test_a_value_of_a_wrong_type_names_its_setting(name: Any, value: Any) -> None:
    with pytest.raises(LmcError, match=f"{name}="):
        config(**{name: value})


def test_a_bad_value_changes_nothing() -> None:
    with pytest.raises(ParameterError):
        config(debug=99)
    assert settings().debug == 0


@pytest.mark.parametrize("value", [5, None, b"x", "a\0b", "x" * 300])
def test_a_folder_of_the_cache_is_a_path(value: Any) -> None:
    with pytest.raises(LmcError, match="cache_dir="):
        config(cache_dir=value)


def test_logs_print_only_on_their_channel(capsys: pytest.CaptureFixture[str]) -> None:
    config(log="ahead")
    log("ahead", "seen")
    log("prefix", "not seen")
    assert capsys.readouterr().err == "lmc[ahead] seen\n"


def test_debug_levels_turn_channels_on(capsys: pytest.CaptureFixture[str]) -> None:
    config(debug=1)
    log("ahead", "what could not be followed")
    log("engine", "each batch is level 5")
    assert capsys.readouterr().err == "lmc[ahead] what could not be followed\n"


def test_cache_dir_is_made(tmp_path: Path) -> None:
    config(cache_dir=tmp_path / "a")
    assert cache_dir() == tmp_path / "a"
    assert cache_dir().is_dir()


def test_a_cache_dir_of_a_missing_folder_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    config(cache_dir=tmp_path / "misspelt" / "cache")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*misspelt"):
        cache_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_folders_of_the_default_cache_dir_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LMC_CACHE_DIR", raising=False)
    reset()
    assert cache_dir() == tmp_path / ".cache" / "lmc"
    assert cache_dir().is_dir()


def test_without_a_home_directory_nothing_is_kept_and_the_setting_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    for name in ("HOME", "LMC_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)  # as of a container's user who is in no table
    reset()
    assert cache_folder("things", "nothing is kept") is None
    assert "no cache directory (cache_dir='~/.cache/lmc': Could not determine home directory.): nothing is kept; set LMC_CACHE_DIR" in caplog.text


def test_the_factory_is_called_once_and_late() -> None:
    made: list[Mock] = []

    def make() -> Mock:
        made.append(Mock())
        return made[-1]

    provide(backend=make)
    assert not made
    assert not has_default_backend()
    assert default_backend() is default_backend() is made[0]
    assert len(made) == 1


def test_a_set_backend_wins_and_can_be_taken_back() -> None:
    mine, other = Mock(), Mock()
    provide(backend=lambda: other)
    set_default_backend(mine)
    assert default_backend() is mine
    set_default_backend(None)
    assert default_backend() is other


def test_only_backends_can_be_the_default() -> None:
    with pytest.raises(ArgumentError, match="backend=3: a backend such as"):
        set_default_backend(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="backend=Mock: that is the class"):
        set_default_backend(Mock)  # type: ignore[arg-type]


def test_what_killed_writers_left_in_the_cache_goes_and_a_writer_at_work_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lmc.config.cache_dir", lambda: tmp_path)
    folder, now = tmp_path / "things", time.time()
    folder.mkdir()
    for name, age in ((".part-old", 4000), (".tmpOld", 4000), (".part-new", 60), (".tmpNew", 60), ("other", 9999)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (now - age, now - age))
    assert cache_folder("things", "nothing is kept") == folder
    assert {p.name for p in folder.iterdir()} == {".part-new", ".tmpNew", "other"}
