"""Values that a library function makes of constants: new in each run, to any depth."""

from __future__ import annotations

import collections
import json
import re

from lmc import gen
from tests.conformance.harness import case, effect

SHARED = [[1], [2]]


@case()
def json_of_a_constant(s, q):
    s += q + gen("x", max_tokens=1)
    found = json.loads('{"rows": [[1], [2]], "names": {"a": []}}')
    for row in found["rows"]:
        row.append(s["x"])
    found["names"]["a"].append(q)
    found["names"]["b"] = q
    return found


@case()
def a_counter(s, q):
    s += q + gen("x", max_tokens=1)
    counts = collections.Counter()
    for c in q + s["x"]:
        counts[c] += 1
    effect("counted", dict(counts))
    return counts.most_common(1)


@case()
def a_deque_and_an_ordered_dict(s, q):
    queue = collections.deque([1, 2])
    queue.append(q)
    table = collections.OrderedDict(a=[])
    table["a"].append(q)
    table["b"] = len(queue)
    s += gen("x", max_tokens=1)
    while queue:
        s += str(queue.popleft())
    return list(table.items())


@case()
def a_copy_of_a_list_outside(s, q):
    rows = list(SHARED)
    rows.append([q])
    s += str(len(rows)) + gen("x", max_tokens=1)
    return len(rows), rows[0]


LETTER = re.compile("[a-z]")


@case()
def an_iterator_of_matches(s, q):
    found = LETTER.finditer("abc")
    s += next(found).group() + gen("x", max_tokens=1)
    return next(found).group()


@case()
def parsed_twice(s, q):
    a, b = json.loads("[[]]"), json.loads("[[]]")
    a[0].append(q)
    s += gen("x", max_tokens=1)
    return a, b, a[0] is b[0], a == b
