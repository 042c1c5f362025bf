"""Backends of APIs and fork(): connections are the parent's; a backend that has opened none works in the child."""

from __future__ import annotations

import re

import pytest

import lmc
from tests.api.text_model import TextModel
from tests.test_forking import FORKED, in_child

pytestmark = pytest.mark.api


@lmc.function
def one(s):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=12))
    return s["a"]


def test_connections_are_the_parents(openai):
    backend, _ = openai(TextModel())
    assert in_child(lambda: one.run(backend=backend, temperature=0).ret_value) == one.run(backend=backend, temperature=0).ret_value, "none was open"
    assert re.search(
        r"BackendError: .*OpenAI\(m\): its connections were opened by " + FORKED, in_child(lambda: one.run(backend=backend, temperature=0).ret_value)
    )
    assert in_child(backend.close) == "None"
    assert one.run(backend=backend, temperature=0).ret_value, "the parent's go on"
