"""Usage that backends report, and its sums."""

from dataclasses import astuple, fields

from lmc.backend.usage import Usage


def test_a_sum_of_usages_has_each_count():
    counts = range(1, len(fields(Usage)) + 1)
    assert astuple(Usage(*counts) + Usage(*[100 * n for n in counts])) == tuple(101 * n for n in counts)
