"""Methods of lists, dicts, sets and other containers of an evaluation, which may hold unknown values: native, as long as nothing unknown is touched."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.scan import MUTATING
from lmc.frontend.capture.table import callback
from lmc.frontend.capture.values import Items, Undecided, join

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation

METHODS: Mapping[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("_"))
    for kind in (list, dict, set, tuple, collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict)
}
"""What is understood, by type."""
_GIVES = frozenset({"pop", "popitem", "popleft", "setdefault"})
"""Of those that change the container, what gives something."""
_READS: Mapping[str, int] = {"append": 0, "appendleft": 0, "insert": 1, "get": 1, "pop": 1, "setdefault": 1}
"""How many of their arguments are looked at; what the others are does not matter."""
_VIEWS = frozenset({"keys", "values", "items"})


def call(ev: Evaluation, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`x.name(*args, **kwargs)` of a method in `METHODS`."""
    changes = name in MUTATING and name != "copy"
    if changes:
        ev.changes(x)
    ev.count(len(x) >> 3)
    deps = join(op.known(ev, x), *(op.known(ev, a) for a in args[: _READS.get(name)]))
    if deps == op.NOTHING:
        try:
            found = op.native(getattr(x, name), *args, **{k: callback(ev, v) for k, v in kwargs.items()})
            return list(found) if name in _VIEWS else Items(found) if name == "elements" else found
        except Undecided as undecided:
            deps = undecided.deps
    if changes:
        ev.lose(x, deps)
    return None if changes and name not in _GIVES else ev.operation("." + name, (x, *args), deps)
