"""Columns: what is written is what is read, type by type, and what is the same is written once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.codec import NotData
from lmc.durable.columns import FEW, packed, packed_rows, unpacked
from lmc.json_data import from_bytes, to_bytes
from tests.searching import search

ATOMS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0, 1e300]), st.text(max_size=2), st.just("\ud800"))
VALUES = st.recursive(ATOMS, lambda inside: st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.sampled_from("ab"), inside, max_size=2)), max_leaves=8)


def read(column: Any, count: int) -> list[Any]:
    """As it comes back from a file."""
    return unpacked(from_bytes(to_bytes(column)), count)


@search(18, 2000)
@given(st.lists(VALUES, max_size=8), st.lists(VALUES, min_size=1, max_size=2))
def test_what_is_written_is_read(different: list[Any], alike: list[Any]) -> None:
    for values in (different, alike * FEW, [*alike * FEW, *different]):
        assert repr(read(packed(values), len(values))) == repr(values)  # 1, True and 1.0 are three, and so are 0.0 and -0.0
        rows = [[x, *alike] for x in values]
        assert repr(read(packed_rows(rows), len(rows))) == repr(rows)
        assert repr(read(packed_rows(list(map(tuple, rows))), len(rows))) == repr(rows)


def test_what_is_the_same_is_written_once() -> None:
    metas = [
        {"id": f"x{i}", "tokens": 7, "logprobs": [[-0.5 * i, "a"]], "reason": {"type": "stop"} if i % 2 else {"type": "length", "length": 9}} for i in range(8)
    ]
    assert packed(metas) == {
        "keys": ("id", "tokens", "logprobs", "reason"),
        "columns": [
            [f"x{i}" for i in range(8)],
            {"=": 7},
            {"columns": [{"columns": [[-0.5 * i for i in range(8)], {"=": "a"}]}]},
            {"of": [0, 1] * 4, "kinds": [
                {"keys": ("type", "length"), "columns": [{"=": "length"}, {"=": 9}]},
                {"keys": ("type",), "columns": [{"=": "stop"}]}]},
        ],
    }  # fmt: skip


def test_values_that_are_read_share_nothing() -> None:
    for values in ([{} for _ in range(4)], [[] for _ in range(4)], [{"a": []} for _ in range(4)]):
        found = read(packed(values), 4)
        assert found == values
        assert len({id(x) for x in found}) == 4
        assert "a" not in found[0] or len({id(x["a"]) for x in found}) == 4


class Text(str):
    pass


@pytest.mark.parametrize("odd", [(1,), Text("a"), b"", {1: 2}, {Text("b"): 1}, [(1,)], {"a": {1}}, object(), float], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("others", [[], ["a"] * 8, [[1]] * 8, [{"a": 1}] * 8])
def test_what_json_lacks_is_refused(odd: Any, others: list[Any]) -> None:
    for values in ([odd], [odd] * 8, [*others, odd], [odd, *others], [{"k": x} for x in (*others, odd)]):
        with pytest.raises(NotData):
            packed(values)


@pytest.mark.parametrize("damaged", [
    [1], {}, {"columns": [[1]]}, {"columns": 3}, {"keys": ["a"], "columns": [[1, 2, 3], [1, 2, 3]]}, {"of": [0, 1, 0], "kinds": [[1, 2]]},
    {"of": [-1, 0, 0], "kinds": [[1, 2]]},
    {"of": [0, 0], "kinds": [[1, 2]]}, {"of": 3, "kinds": []}, {"of": [0, 0, 0], "kinds": [[1, 2, 3], [], [], [], []]}, 3, None], ids=repr)  # fmt: skip
def test_what_is_no_column_is_refused(damaged: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, AttributeError)):
        unpacked(damaged, 3)
