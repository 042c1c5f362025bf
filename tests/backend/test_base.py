"""Usage that backends report, and its sums."""

from dataclasses import astuple, fields

from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage


def test_a_sum_of_usages_has_each_count():
    counts = range(1, len(fields(Usage)) + 1)
    assert astuple(Usage(*counts) + Usage(*[100 * n for n in counts])) == tuple(101 * n for n in counts)


def test_what_an_answer_was_while_it_grew_is_kept_only_for_those_that_followed_it():
    alone, followed, polled = Result(), Result(), Result()
    followed.on_change(lambda _: None)
    for result in (alone, followed, polled):
        result.feed("a ")
        assert result is not polled or polled.deltas == ["a "]
        result.feed("tale")
        result.finish(Output(("a tale",), ({},)))
    assert [list(result.deltas) for result in (alone, followed, polled)] == [[], ["a ", "tale"], ["a ", "tale"]]
    assert list(alone.stream()) == ["a tale"] and list(followed.stream()) == ["a ", "tale"]
