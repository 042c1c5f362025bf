"""Nobody observes, as a rule: a backend gets what it got without (tests/test_import.py: nothing of OpenTelemetry is imported)."""

import subprocess
import sys

import pytest

import lmc


def test_off_calls_nothing(monkeypatch):
    def made():
        raise AssertionError("an observer was made")

    seen = []

    class Backend(type(lmc.Mock())):
        def submit(self, parent, segments, hints=None):
            seen.append(hints)
            return super().submit(parent, segments, hints)

    @lmc.function
    def program(s):
        s += lmc.gen("a", max_tokens=3)

    monkeypatch.setitem(sys.modules["lmc.config"]._provided, "observer", made)
    program.run(backend=Backend()).sync()
    assert [hints is None or hints.trace == () for hints in seen] == [True]


@pytest.mark.parametrize(("said", "on"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_variable(said, on):
    from lmc.config import from_environment

    assert from_environment({"LMC_OTEL": said}).otel is on
    with pytest.raises(lmc.ParameterError, match="LMC_OTEL='yes please': must be 1 or 0"):
        from_environment({"LMC_OTEL": "yes please"})


def test_the_package_is_named_where_it_lacks():
    code = ('import sys; sys.modules["opentelemetry"] = None; import lmc; lmc.config(otel=True)\n@lmc.function\ndef f(s): s += '
            'lmc.gen("a")\nf.run(backend=lmc.Mock())')
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 1 and "needs opentelemetry.sdk, which is not installed: pip install " in out.stderr
    assert out.stderr.rstrip().endswith('otel]"')
