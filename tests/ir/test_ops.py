"""The op table's word on the attributes of asks: identity, plan, request."""

from __future__ import annotations

from lmc.ir import Op, Value
from lmc.ir.ops import ATTRS, GEN_PARAMS, IDENTITY, OPS, PLANNED, request

RESULTS = (Value("c1", "ctx"), Value("x", "str"), Value("m", "any"))


def test_identity_and_plan_are_attributes_of_asks_that_the_table_knows() -> None:
    known = {*OPS["gen"].attrs, *OPS["select"].attrs}
    assert known >= {*IDENTITY, *PLANNED} and ATTRS.keys() >= {*IDENTITY, *PLANNED}
    assert set(IDENTITY).isdisjoint(PLANNED) and {*IDENTITY, *PLANNED}.isdisjoint(GEN_PARAMS)


def test_every_attribute_of_an_ask_but_its_identity_name_and_plan_is_part_of_the_request() -> None:
    for kind in ("gen", "select"):
        asked = request(Op(kind, (Value("c", "ctx"),), RESULTS, dict.fromkeys(OPS[kind].attrs, 1)))
        assert {*OPS[kind].attrs} - asked.keys() == {"name", *IDENTITY, *PLANNED} & {*OPS[kind].attrs}


def test_a_pass_may_leave_more_out() -> None:
    op = Op("gen", (Value("c", "ctx"),), RESULTS, {"stream": "", "max_tokens": 3, "temperature": 0})
    assert request(op, but=("max_tokens",)) == {"temperature": 0}
