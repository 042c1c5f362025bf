"""Values made once a key: nobody makes one twice, nobody waits for another key, and no more is kept than fits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmc.backend.engine.single_flight import SingleFlightCache


def test_a_key_is_made_once_and_others_do_not_wait():
    began, go_on, made = threading.Event(), threading.Event(), []

    def make(key: str) -> str:
        made.append(key)
        if key == "slow":
            began.set()
            assert go_on.wait(60)
        return key.upper()

    once = SingleFlightCache(make, len, 100)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(once.get, "slow") for _ in range(3)]
        assert began.wait(60)
        assert once.get("quick") == "QUICK" and not any(w.done() for w in waiting)
        go_on.set()
        assert [w.result() for w in waiting] == ["SLOW"] * 3
    assert sorted(made) == ["quick", "slow"]


def test_the_least_recently_used_go_and_are_told_of():
    gone: list[str] = []
    once = SingleFlightCache(str.upper, len, 6, lambda key, value: gone.append(key + value))
    for key in ("aa", "bb", "cc", "aa", "dd"):
        once.get(key)
    assert gone == ["bbBB"] and [key for key, _ in once.items()] == ["cc", "aa", "dd"]
    once.get("too long to fit")
    assert [key for key, _ in once.items()] == ["too long to fit"]


def test_what_fails_is_tried_again():
    tries: list[str] = []

    def make(key: str) -> str:
        tries.append(key)
        if len(tries) == 1:
            raise ValueError("not yet")
        return key

    once = SingleFlightCache(make, len, 10)
    with pytest.raises(ValueError, match="not yet"):
        once.get("x")
    assert once.get("x") == "x" and once.items() == [("x", "x")]
