"""Snapshots of the run's objects passed to a host call: its changes to them, and the parts of them that it returned."""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import itertools
import pickle
import queue
import random
import sys
import threading
import types
import zlib
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, length_hint
from typing import Any, cast

from lmc import codec, json_data
from lmc.durable import mutations
from lmc.durable.changes import apply, change_of, steadily
from lmc.durable.iterators import ITERATORS, SharedIterator
from lmc.durable.nested import DEPTH, containers_in, item_at, items_of
from lmc.durable.reaches import attribute, contents, from_library, inside, walk
from lmc.frontend.state import State


@dataclass(slots=True)
class _Found:
    """Objects that a call has found: as data, their items if they are lists, the containers in them, the state of those of Python, and prompts of states."""

    data: list[Any]
    items: list[list[Any]]
    held: list[set[int]]
    looks: list[Any]
    prompts: list[Any]


class CallSnapshot:
    """The run's objects that a call can change: containers and objects among its arguments, the fields of instances
    that the program has made (`instances`, by id), and closure variables of functions among them.

    They are numbered; those behind the objects are variables, which a function may rebind. Buffers in memory have negative numbers.

    whole       whether what changes between its steps is its change, too: it runs on a thread, or the program stands still
    is_empty    whether it can change none
    overlapped  whether other calls were under way meanwhile
    asked       whether host code has asked for an answer in a state of the run meanwhile
    """

    whole = overlapped = asked = False

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], instances: Mapping[int, Callable[[], Any]] = {}) -> None:
        values = [*args, *kwargs.values()]
        self.hidden = next((f"the class {x.__qualname__}" for x in values if isinstance(x, type) and "<locals>" in x.__qualname__), None)
        owners = [x.__self__ for x in values if isinstance(x, types.BuiltinMethodType | types.MethodType)]
        self.values = list[Any]()
        self._places = dict[int, list[Any]]()
        self._of_states: dict[int, list[Any]] = {}
        self._add(x for x in (*values, *owners) if mutations.can_change(x))
        carried = [x for value in values if not json_data.is_plain(value) for x in _carried(value, instances)]
        self._add(x for x in carried if mutations.can_change(x))
        near = [x for value in values for x in (value, *[item for _, item in items_of(value)])]
        self.states = [x for x in near if isinstance(x, State)]
        files: tuple[Any, ...] = (sys.stdout, sys.stderr) if instances else ()  # what the program has made may stand for them
        self._watched = [(x, look) for x in (*near, *files) if (look := _look(x, instances))]
        self._of_states = {id(state): ["state", n] for n, state in enumerate(self.states)}
        objects = [x for x in self.values if mutations.is_object(x)]
        for x in [*objects, *(_instances((fn, *values), instances) if instances else ())]:
            fields = mutations.fields_in_place(x)
            if fields is None or (mutations.is_object(x) and not isinstance(_snapshot(x, self._of_states), _OpaqueValue)):
                self._add([x])
                continue
            self._add([fields])
            if isinstance(_snapshot(fields, self._of_states), _OpaqueValue):  # what data is among them is looked at by itself
                self._add(x for x in fields.values() if mutations.can_change(x))
        self.variables: list[types.CellType] = []
        functions = [x for x in (fn, *values) if isinstance(x, types.FunctionType)]
        functions = [*(x for x in carried if isinstance(x, types.FunctionType) and all(x is not other for other in functions)), *functions]
        self._add(x.__dict__ for x in functions if "<locals>" in x.__qualname__)  # attributes of the program's own
        self._add(x.__dict__ for x in values if isinstance(x, BaseException))  # notes and other attributes
        while functions:
            for cell in functions.pop().__closure__ or ():
                if any(cell is c for c in self.variables):
                    continue
                for content in contents(cell):
                    self.variables.append(cell)
                    self._add([content] if mutations.can_change(content) else ())
                    functions += [content] if isinstance(content, types.FunctionType) else []
        self.iterators = [x for x in values if isinstance(x, (SharedIterator, *ITERATORS))]
        self._left = [0 if isinstance(x, SharedIterator) else length_hint(x) for x in self.iterators]
        self._changes: list[tuple[bool, list[list[Any]] | codec.NotData]] = []
        self._found = _Found([], [], [], [], [])
        self.is_empty = not (self.values or self.variables or self._watched or self.states)

    def _add(self, values: Iterable[Any]) -> None:
        for x in values:
            if id(x) not in self._places:
                self._places[id(x)] = [len(self.values)]
                self.values.append(x)

    def _held(self, x: Any) -> dict[int, list[Any]]:
        """Return the places of states and of the other objects, which are looked at by themselves."""
        return {**self._of_states, **{key: place for key, place in self._places.items() if key != id(x)}}

    def _look(self) -> _Found:
        items = [list(x) if type(x) is list else [] for x in self.values]
        looks = [look(x) for x, look in self._watched]
        data = [_snapshot(x, self._held(x)) for x in self.values] + [_snapshot(_content(cell), self._held(None)) for cell in self.variables]
        return _Found(data, items, [containers_in(x) for x in self.values], looks, [state.ctx for state in self.states])

    def look(self) -> None:
        """Look at what the call finds."""
        if not self.is_empty:
            self._found = self._look()

    def look_like(self, other: CallSnapshot) -> None:
        """See objects as another call does, which has just looked."""
        for i, j in [(i, other._places[key][0]) for key, (i,) in self._places.items() if key in other._places]:
            alike = len(self.values) == len(other.values) == 1  # within no other
            self._found.data[i] = other._found.data[j] if alike else _snapshot(self.values[i], self._held(self.values[i]))
            self._found.items[i], self._found.held[i] = other._found.items[j], other._found.held[j]

    def shares(self, other: CallSnapshot) -> bool:
        return not self._places.keys().isdisjoint(other._places)

    def claim(self, *, own: bool = True) -> None:
        """Take what has changed since the last look for the call's, or for changes between its steps."""
        before, self._found = self._found, self._look()
        try:
            self._changes.append((own, self._changed(before)))
        except codec.NotData as error:
            self._changes.append((own, error))

    def has_changed(self) -> bool:
        """Return whether any of the objects has changed since the last look."""
        self.claim()
        return bool(self._changes[-1][1])

    @property
    def places(self) -> dict[int, list[Any]]:
        """Return the positions of states, and of the arguments' containers and objects, by id: the number of the argument, and the fewest keys."""
        found = dict(self._of_states)
        left = deque[tuple[Any, list[Any]]]((x, [i]) for i, x in enumerate(self.values))
        while left:
            x, place = left.popleft()
            if mutations.can_change(x) and found.setdefault(id(x), place) is not place:
                continue
            left += [(item, [*place, key]) for key, item in items_of(x)] if len(place) <= DEPTH else []
        return found

    def at(self, place: list[Any]) -> Any:
        """Return the object at a position."""
        return self.states[place[1]] if place[0] == "state" else functools.reduce(item_at, place[1:], self.values[place[0]])

    def taken(self) -> list[int]:
        """Return the number of items taken of each iterator. Raises NotData."""
        found = [x.taken if isinstance(x, SharedIterator) else left - length_hint(x) for x, left in zip(self.iterators, self._left, strict=True)]
        if None in found:
            raise codec.NotData("what it did to a generator")
        return cast("list[int]", found) if any(found) else []

    def take(self, counts: Sequence[int]) -> None:
        """Take as many items."""
        for items, count in zip(self.iterators, counts, strict=True):
            if isinstance(items, SharedIterator):
                items.take(count)
            else:
                deque(itertools.islice(items, count), maxlen=0)

    def changed(self, *, alone: bool) -> list[list[Any]]:
        """Return the changes of the call: [number of the object, change as data]. Raises NotData.

        alone  whether those between its steps are its own, too
        """
        if self.asked:
            raise codec.NotData("what it appended to a state")
        if self.hidden is not None:
            raise codec.NotData(f"what it may have done to {self.hidden}")
        found: list[list[Any]] = []
        for own, changes in self._changes:
            if isinstance(changes, codec.NotData) and (own or alone):
                raise changes
            found += changes if not isinstance(changes, codec.NotData) and (own or alone) else ()
        return found

    def has_changes(self) -> bool:
        return any(changes for _, changes in self._changes)

    def _changed(self, before: _Found) -> list[list[Any]]:
        if before.prompts != self._found.prompts:
            raise codec.NotData("what it appended to a state")
        written: list[list[Any]] = []
        for n, (x, _) in enumerate(self._watched):
            if self._found.looks[n] == before.looks[n]:
                continue
            if type(x) not in _BUFFERS or x.closed:
                raise codec.NotData(f"what it did to a {type(x).__name__}")
            written.append([-1 - n, ["=", codec.encode([x.getvalue(), x.tell()])]])
        found = [(i, after) for i, (was, after) in enumerate(zip(before.data, self._found.data, strict=True)) if was != after]
        for index, after in found:
            if isinstance(after, _OpaqueValue):
                where = self.values[index] if index < len(self.values) else _content(self.variables[index - len(self.values)])
                raise codec.NotData(f"what it did to a {type(where).__name__} with {after.reason} in it")
            if index < len(self.values) and codec.is_array(self.values[index]) and not _same_form(before.data[index], after):
                raise codec.NotData("that it gave an array another shape or type")
            new = self._found.held[index] - before.held[index] - self._places.keys() if index < len(self.values) else set[int]()
            if any(new & held for held in before.held) or '["=",' in json_data.dumps(after):  # would be read as a copy
                raise codec.NotData("that it put a container of the program into another one")
        moved = [self._rearranged(i, before) for i, _ in found]
        return written + [[i, change_of(before.data[i], after) if items is None else ["=", items]]
                          for (i, after), items in zip(found, moved, strict=True)]  # fmt: skip

    def _rearranged(self, index: int, found: _Found) -> list[Any] | None:
        """Return a list's items if containers in it changed position: these by their position. Raises NotData."""
        if index >= len(self.values) or type(self.values[index]) is not list:
            return None
        now: list[Any] = self.values[index]
        were, before = {id(x): k for k, x in enumerate(found.items[index]) if mutations.can_change(x)}, found.data[index]
        if all(were.get(id(x), k) == k for k, x in enumerate(now)):
            return None
        data: list[Any] = []
        for x in now:
            place = were.get(id(x))
            data.append(codec.encode(x, self._held(now)) if place is None else {codec.TAG: ["held", [index, place]]})
            if place is not None and codec.encode(x, self._held(now)) != before[place]:
                raise codec.NotData("that it moved a container of the program and changed it")
        return data

    def restore(self, changes: list[list[Any]], decode: Callable[[Any], Any], redone: dict[int, RedoneChanges] | None, ended: int) -> None:
        """Change the objects as a call did that ended at that place.

        redone  what was redone to objects by calls at the same time, by id: changes by those that ended later come behind. None: no others do
        """
        for index, change in changes:
            if index < 0:
                buffer, (text, at) = self._watched[-1 - index][0], decode(change[1])
                buffer.seek(0)
                buffer.truncate()
                buffer.write(text)
                buffer.seek(at)
                continue
            if index >= len(self.values):
                cell = self.variables[index - len(self.values)]
                cell.cell_contents = decode(change[1]) if change[0] == "=" else apply(cell.cell_contents, change, decode)
                continue
            target = self.values[index]
            if redone is None:
                if apply(target, change, decode) is not target:
                    raise ValueError(f"a {type(target).__name__} as {change[0]}")
                continue
            known = redone.pop(id(target), None) or RedoneChanges(target, self._held(target), self.at)
            redone[id(target)] = known  # the last one
            known.redo(change, decode, ended)
            if len(redone) > MOST_SHARED:
                del redone[next(iter(redone))]


MOST_SHARED = 256
"""Objects that are remembered as given to calls."""


class RedoneChanges:
    """The changes to an object that were redone in a resumed run, in the order in which calls have ended, whatever the one in which they are reached.

    They are put in order while nothing else has changed the object.
    """

    def __init__(self, target: Any, held: Mapping[int, list[Any]], at: Callable[[list[Any]], Any]) -> None:
        self._target, self._held, self._at = target, held, at
        self._changes = list[tuple[int, list[Any], Callable[[Any], Any]]]()
        self._first = self._now = _snapshot(target, held)

    def redo(self, change: list[Any], decode: Callable[[Any], Any], ended: int) -> None:
        if isinstance(self._now, _OpaqueValue) or _snapshot(self._target, self._held) != self._now:
            self.__init__(self._target, self._held, self._at)
        self._changes.append((ended, change, decode))
        left = self._changes[-1:]
        if len(self._changes) > 1 and self._changes[-2][0] > ended:
            self._changes.sort(key=lambda known: known[0])
            mutations.restored(self._target, codec.decode(self._first, self._at))
            left = self._changes
        for _, done, decoded in left:
            apply(self._target, done, decoded)
        self._now = _snapshot(self._target, self._held)


_BUFFERS = (io.StringIO, io.BytesIO)
_WATCHED: Mapping[type, Callable[[Any], Any]] = {
    random.Random: random.Random.getstate,
    **dict.fromkeys(_BUFFERS, lambda x: None if x.closed else (x.tell(), x.getvalue())),
    **dict.fromkeys((queue.Queue, queue.LifoQueue, queue.PriorityQueue), lambda x: [*map(id, x.queue)]),
    queue.SimpleQueue: queue.SimpleQueue.qsize,
    **dict.fromkeys((asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue), lambda x: [*map(id, x._queue)]),
    **dict.fromkeys((threading.Event, asyncio.Event), lambda x: x.is_set()),
    asyncio.Future: asyncio.Future.done,
}
"""State of objects that the program makes again, and whose changes by a call cannot be repeated."""


def _look(x: Any, instances: Mapping[int, Callable[[], Any]]) -> Callable[[Any], Any] | None:
    """Return what gives the state of such an object, or the items of one of a class that is derived from a container's."""
    if id(x) not in instances or instances[id(x)]() is not x:
        return None
    if isinstance(x, list | dict | set | deque):
        return lambda x: [*map(id, x), *map(id, x.values() if isinstance(x, dict) else ())]
    if any(base in _WATCHED for base in type(x).__mro__):
        return _as_of_base
    return _pickled if from_library(type(x)) else None


def _as_of_base(x: Any) -> Any:
    """Return the state that an object of a derived class has of its base, if the base's constructor has run."""
    look = next(_WATCHED[base] for base in type(x).__mro__ if base in _WATCHED)
    try:
        return look(x)
    except AttributeError:
        return None


def _pickled(x: Any) -> Any:
    """Return the state of an object of Python's library; something else each time for one that does not tell."""
    try:
        return pickle.dumps(x)
    except Exception:  # of whatever its parts raise
        return object()


def _instances(values: Sequence[Any], known: Mapping[int, Callable[[], Any]]) -> list[Any]:
    """Return those known instances that values are, or hold in containers and fields."""
    return [
        x for x in walk(reversed(values), depth=_FIELDS) if id(x) in known and known[id(x)]() is x and mutations.fields_in_place(x) is not None
    ]  # fmt: skip


_FIELDS = 4
"""Depth to which a call's arguments are searched for instances."""


_OF_ITERATORS = (enumerate, zip, itertools.chain, itertools.islice, itertools.pairwise, itertools.zip_longest)
_CARRIERS = (tuple, frozenset, types.MappingProxyType, *map(type, ({}.keys(), {}.values(), {}.items())), *ITERATORS, *_OF_ITERATORS)
"""Types whose objects hold what can change, and no functions: those of an iterator would change it again when a resumed run takes its items."""


def _carried(value: Any, instances: Mapping[int, Callable[[], Any]]) -> Iterator[Any]:
    """Yield functions that a value is or holds, and what can change in it and is in no other object that can: in tuples, views, iterators, methods and partial
    functions, and in lists and the like whose contents are not all data."""
    left, seen = deque[tuple[Any, bool, int]]([(value, False, 0)]), set[int]()
    while left:
        x, covered, depth = left.popleft()
        if id(x) in seen or depth > DEPTH or json_data.is_plain(x):
            continue
        seen.add(id(x))
        can_change = mutations.can_change(x)
        if (can_change and not covered) or isinstance(x, types.FunctionType):
            yield x
        if can_change:
            covered = _is_data(x)
            held = () if covered else inside(x)
        elif isinstance(x, types.FunctionType):
            held = () if from_library(x) else inside(x)
        elif isinstance(x, _CARRIERS):
            held = gc.get_referents(x)
        elif isinstance(x, SharedIterator):
            held = (x.items,)
        elif isinstance(x, types.BuiltinMethodType | types.MethodType):
            held = (x.__self__,)
        elif isinstance(x, (functools.partial, UserDict, UserList, ChainMap)) or (id(x) in instances and instances[id(x)]() is x):
            held = inside(x)
        else:
            continue
        left += [(item, covered, depth + 1) for item in held]


def _is_data(x: Any, depth: int = 0) -> bool:
    """Return whether a value can be encoded. Does so only where plain containers do not tell."""
    cls = type(x)
    if depth <= DEPTH and (cls in (list, tuple) or (cls is dict and json_data.are_texts(x))):
        items = x.values() if cls is dict else x
        return json_data.are_atoms(items) or all(json_data.is_plain(item) or _is_data(item, depth + 1) for item in items)
    return not isinstance(_snapshot(x, {}), _OpaqueValue)


def _content(cell: types.CellType) -> Any:
    return (*contents(cell), _DELETED)[0]


_DELETED = object()


class _OpaqueValue:
    """A value that is not data, with its contents and what in it is none: only whether it changed is known."""

    def __init__(self, x: Any, reason: codec.NotData) -> None:
        self.reason, self.digest = str(reason), zlib.crc32(x.tobytes()) if codec.is_array(x) else 0
        self.x, self.items = x, [*x, *(x.values() if isinstance(x, dict) else ())] if isinstance(x, list | dict | deque) else []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _OpaqueValue) or self.x is not other.x or self.digest != other.digest:
            return False
        return len(self.items) == len(other.items) and all(map(is_, self.items, other.items))


def _snapshot(x: Any, held: Mapping[int, list[Any]]) -> Any:
    x = dict(x.items()) if type(x) is mutations.Slots else x
    if type(x) is dict and "__builtins__" in x:  # added by `eval`
        x = {name: value for name, value in x.items() if name != "__builtins__"}
    data = x
    if mutations.is_object(x) and attribute(x, "__pydantic_private__"):
        data = {**vars(x), **{name: getattr(x, name) for name in _OF_MODELS}}
    try:
        return steadily(lambda: codec.encode(data, held))
    except codec.NotData as reason:
        return _OpaqueValue(x, reason)


_OF_MODELS = ("__pydantic_private__", "__pydantic_fields_set__", "__pydantic_extra__")
"""What a pydantic model holds beside its fields."""


def _same_form(before: Any, after: Any) -> bool:
    """Return whether two arrays as data have the same type and shape."""
    return not isinstance(before, _OpaqueValue) and before[codec.TAG][1:3] == after[codec.TAG][1:3]
