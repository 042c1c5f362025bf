"""Python's builtins on traced values: what of them the tracer does itself, step by step, and what is one host operation."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import functools
import heapq
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lmc.frontend import hostops, reach
from lmc.frontend.hooks import hooks
from lmc.frontend.hostops import Known, native
from lmc.frontend.keys import ORDERED
from lmc.frontend.own import NOT_OWN
from lmc.frontend.raising import class_of, content
from lmc.frontend.state import State
from lmc.frontend.trace_outside import is_lazy
from lmc.frontend.trace_record import NO_KEY
from lmc.frontend.values import TraceEscape, Value

if TYPE_CHECKING:
    from lmc.frontend.tracer import TraceMode

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def _isinstance(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    x, cls = args
    if reach.holds_value(cls):
        return t.host(t.constant(isinstance), [t.operand(x), t.operand(cls)], Known("bool"), "ordered")
    if not isinstance(x, Value):
        return native(isinstance, x, cls)
    if x.type != "any" and x.type != "bool":
        return issubclass({"str": str, "int": int, "float": float}[x.type], cls)
    return t.host(t.constant(isinstance), [x.ir, t.operand(cls)], Known("bool"), "pure" if x.immutable else "ordered")


def _issubclass(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if all(type(cls) is type for x in args for cls in (x if type(x) is tuple else (x,))):
        return native(issubclass, *args)
    return t.effect(issubclass, args, kwargs)


def _range(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return native(range, *map(t.concrete, args))


def _is_the_hosts(t: TraceMode, kwargs: _Kwargs) -> bool:
    """Whether Python's own sorting may call the key: it has nothing to do with the language."""
    key = kwargs.get("key")
    if isinstance(key, types.BuiltinMethodType) and id(key.__self__) in t.local:  # `max(set(names), key=names.count)`
        return False
    if any(map(reach.holds_language, kwargs.values())) or (isinstance(key, types.FunctionType) and reach.names_language(key)):
        return False
    return isinstance(key, types.FunctionType) or reach.traced_twin(key, (), {}, hooks) is None


def _key(t: TraceMode, kwargs: _Kwargs) -> Callable[[Any], Any]:
    key = kwargs.get("key")
    return (lambda x: x) if key is None else t.callback(key)


def _extreme(name: str, builtin: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        if len(args) == 1 and isinstance(args[0], Value) and not kwargs:
            t.main = True
            return t.known_call(builtin, Known(), args, kwargs)
        if len(args) == 1 and isinstance(args[0], Value) and _is_the_hosts(t, kwargs):
            t.main = True
            return t.effect(builtin, args, kwargs)
        if not args or (len(args) > 1 and "default" in kwargs) or not kwargs.keys() <= {"key", "default"}:
            return native(builtin, *args, **kwargs)  # Python says what is wrong
        key = _key(t, kwargs)
        items: list[Any] = []
        keys: list[Any] = []
        for x in t.items(args[0]) if len(args) == 1 else args:  # Python compares each key before it makes the next one
            effects = t.effects
            items.append(x)
            keys.append(key(x))
            if t.effects != effects and len(items) > 1 and not _comparable(t, keys):
                t.simple(name, tuple(keys))
        if not items:
            return native(builtin, [], **{k: v for k, v in kwargs.items() if k == "default"})
        if len(items) == 1:
            return items[0]
        if not reach.holds_value(keys) and t.is_constant(tuple(keys)):
            return items[native(builtin, range(len(keys)), key=keys.__getitem__)]
        best = t.simple(name, _without_states(t, keys), key=(t.tick, ORDERED, 0))
        best.domain = tuple(range(len(items)))
        if kwargs.get("key") is None and not any(map(reach.holds_language, items)):
            return t.simple("py.getitem", tuple(items), best, key=NO_KEY)  # a replay knows which one
        return items[t.decide(best)]

    return handler


def _without_states(t: TraceMode, keys: Iterable[Any]) -> tuple[Any, ...]:
    """Keys with stand-ins for the states in their tuples: `max((score, i, fork) for …)` has to come to them only where the rest is equal."""
    numbers: dict[int, Value] = {}

    def key_of(x: Any) -> Any:
        if isinstance(x, State):
            if id(x) not in numbers:
                numbers[id(x)] = t.simple("py.stand_in", len(numbers))
            return numbers[id(x)]
        return tuple([key_of(y) for y in x]) if type(x) is tuple else x

    return tuple([key_of(key) if reach.holds_language(key) else key for key in keys])


def _comparable(t: TraceMode, keys: Iterable[Any]) -> bool:
    """Whether comparing keys cannot raise: all of them are text, or all are numbers."""
    types_ = set(map(t.type_of, keys))
    return types_ == {"str"} or types_ <= {"int", "float", "bool"}


def _sorted(t: TraceMode, args: _Args, kwargs: _Kwargs, key_kind: int | None = ORDERED) -> list[Any]:
    """`key_kind`: where a replay finds the order; None: it compares again, so what is compared has to be immutable."""
    items = list(t.all_items(args[0]))
    key = _key(t, kwargs)
    keys = [key(x) for x in items]
    reverse = bool(t.truth(kwargs.get("reverse", False)))
    if len(items) < 2:
        order: Iterable[int] = range(len(items))
    elif not reach.holds_value(keys) and t.is_constant(tuple(keys)):
        order = native(sorted, range(len(keys)), key=keys.__getitem__, reverse=reverse)
    else:
        order = t.decide(t.simple("py.argsort", _without_states(t, keys), reverse, key=None if key_kind is None else (t.tick, key_kind, 0)))
    return t.fresh([items[i] for i in order])


def sort_in_place(t: TraceMode, owner: list[Any], kwargs: _Kwargs) -> None:
    found = t.own_order(sorted, (owner,), kwargs)
    owner[:] = _sorted(t, (owner,), kwargs) if found is NOT_OWN else found


def _heaped(name: str) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """A function of `heapq` on a list of the program's own that holds states."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        heap, *more = args
        keys = _without_states(t, (*heap, *more))
        items = [*heap, *more]
        if not heap and name in ("heappop", "heapreplace"):
            return native(getattr(heapq, name), *args)  # Python says that there is nothing
        found = t.simple("py.heaped", name, keys[: len(heap)], *keys[len(heap) :])
        given, kept = t.decide(found)
        heap[:] = [items[i] for i in kept]
        return None if given is None else items[given]

    return handler


def _ranked(largest: bool) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """nlargest, nsmallest: the first of what `sorted` gives."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        count, items, *key = args
        given = {"key": key[0]} if key else kwargs
        return _sorted(t, (items,), {**given, "reverse": largest}, None)[: max(0, t.concrete(count))]

    return handler


def holds_states(t: TraceMode, fn: Any, args: _Args) -> bool:
    """Whether a function of `heapq` is called with states, which host code cannot be handed."""
    return any(map(reach.holds_language, args)) and (fn in _RANKED or (type(args[0]) is list and id(args[0]) in t.local))


def _sorted_call(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if isinstance(args[0], Value) and kwargs.get("key") is None:
        t.main = True
        return t.known_call(sorted, Known(fresh=True, items=args[0].items), args, kwargs)
    if isinstance(args[0], Value) and _is_the_hosts(t, kwargs):
        t.main = True
        return t.effect(sorted, args, kwargs)
    return _sorted(t, args, kwargs)


def _any(t: TraceMode, args: _Args, kwargs: _Kwargs) -> bool:
    return any(t.truth(x) for x in t.items(args[0]))


def _all(t: TraceMode, args: _Args, kwargs: _Kwargs) -> bool:
    return all(t.truth(x) for x in t.items(args[0]))


def _sum(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    items, *start = args
    if isinstance(items, Value):
        t.main = True
        return t.known_call(sum, Known(), args, kwargs)
    total = start[0] if start else kwargs.get("start", 0)
    if t.type_of(total) == "str" or isinstance(total, bytes | bytearray):
        return native(sum, (), "" if isinstance(total, Value) else total)  # Python says what to write instead
    if type(items) in (list, tuple) and t.is_plain(items) and all(isinstance(x, Value | int | float) for x in (total, *items)):
        return t.known_call(sum, Known(), (tuple(items), total), {})
    for x in t.items(items):
        total = t.binop("+", total, x)
    return total


def _map(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, *iterables = args
    call = t.callback(fn)
    return (call(*xs) for xs in zip(*[t.items(x, n + 1) for n, x in enumerate(iterables)], strict=False))


def _filter(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, items = args
    call = t.callback(fn) if fn is not None else lambda x: x
    return (x for x in t.items(items, 1) if t.truth(call(x)))


def _enumerate(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    items, *more = args
    start = more[0] if more else kwargs.get("start", 0)
    if not isinstance(start, Value) or start.type != "int":
        return native(enumerate, t.items(items), t.concrete(start))
    return ((t.binop("+", start, i), x) for i, x in enumerate(t.items(items)))


def _zip(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return zip(*[t.items(x, n) for n, x in enumerate(args)], **{name: t.concrete(x) for name, x in kwargs.items()})


def _reversed(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    (x,) = args
    if isinstance(x, Value) and x.type == "str":
        return iter(list(t.items(x))[::-1])
    if isinstance(x, Value) or not t.is_plain(x):
        t.main = True
        return t.host(t.constant(reversed), [t.operand(x)], Known(), "ordered")
    return native(reversed, x)


def _collect(builtin: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """list, tuple: of the program's own items as they are, of a traced value as a host operation."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        if args and isinstance(args[0], Value):
            items = "str" if args[0].type == "str" else args[0].items
            t.main = True
            return t.known_call(builtin, Known(fresh=builtin is list, items=items), args, kwargs)
        return t.fresh(native(builtin, *[t.all_items(a) for a in args]))

    return handler


def _set(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if args and isinstance(args[0], Value):
        t.main = True
        return t.known_call(set, Known(fresh=True), args, kwargs)
    items = list(t.items(args[0])) if args else []
    _is_the_call(t, args)
    return t.build_set(items)


def _is_the_call(t: TraceMode, args: _Args) -> None:
    """The next host operation makes the container of the run that the call gives: a replay has that one, and goes through no other argument than a lazy one."""
    t.main = not any(t.is_own_instance(x) and not is_lazy(x) for x in args)


def _pair(t: TraceMode, item: Any, index: int) -> Any:
    """A key and its value: of a traced item, what it is taken apart to before the next one is made."""
    if t.is_plain(item) and not t.is_own_instance(item):
        return native(hostops.OPERATIONS["py.pair"], item, index)
    return t.simple("py.pair", item, index, key=NO_KEY)


def _dict(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if args and isinstance(args[0], Value):
        t.main = True
        return t.known_call(dict, Known(fresh=True), args, kwargs)
    source = args[0] if args else {}
    pairs = list(source.items()) if isinstance(source, dict) else [_pair(t, p, i) for i, p in enumerate(t.items(source))]
    if any(isinstance(pair, Value) for pair in pairs):
        if t.wants(pairs):
            raise TraceEscape("puts a container that it made under a traced key")
        _is_the_call(t, args)
        return t.known_call(dict, Known(fresh=True), (tuple(pairs),), kwargs)
    _is_the_call(t, args)
    return t.build_dict([*pairs, *kwargs.items()])


def _iter(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if len(args) == 2:
        return _until(t, t.callback(args[0]), args[1])
    return iter(t.items(args[0]))


def _until(t: TraceMode, call: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    """What `iter` gives of a function: its results up to one that equals `sentinel`."""
    while not t.truth(t.compare("==", sentinel, x := call())):
        yield x


def _next(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if id(args[0]) in t.local:
        return native(next, *args)
    t.main = True
    return t.effect(next, args, kwargs)


def _of_the_run(t: TraceMode, args: _Args) -> _Args:
    """Arguments of `getattr` and the like, with what stands for the first one where host code may have changed its attributes."""
    handed = t.handed_away(args[0])
    return args if handed is None else (handed, *args[1:])


def _getattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    args = _of_the_run(t, args)
    if len(args) == 3:
        owner, name, default = args
        if isinstance(owner, Value) or content(owner) is not None:
            return t.host(t.constant(getattr), [t.operand(owner), t.operand(name), t.operand(default)], Known(), "ordered")
        if t.is_own_definition(owner):
            name = t.concrete(name)
            return t.getattr(owner, name) if hasattr(owner, name) else default
        if not t.is_plain(owner):
            raise TraceEscape("getattr with a default on an object of the host")
        return native(getattr, owner, t.concrete(name), default)
    return t.getattr(args[0], t.concrete(args[1]))


def _setattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> None:
    t.setattr(args[0], t.concrete(args[1]), args[2])


def _delattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> None:
    t.delattr(args[0], t.concrete(args[1]))


def _wraps(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if any(map(reach.holds_value, (*args[1:], *kwargs.values()))) or isinstance(args[0], Value):
        raise TraceEscape("wraps a traced value")
    return native(functools.wraps, *args, **kwargs)


def _definer(fn: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """What a class body makes of functions and constants: a part of the class, which Python or a decorator looks for there."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        if any(isinstance(x, Value) for x in (*args, *[x for name, x in kwargs.items() if name != "default"])):
            raise TraceEscape(f"calls {fn.__name__} with a traced value")
        return native(fn, *args, **kwargs)

    return handler


def _id(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    raise TraceEscape("takes the identity of an object")


def _hasattr(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    args = _of_the_run(t, args)
    if isinstance(args[0], Value):
        return t.host(t.constant(hasattr), [args[0].ir, t.operand(args[1])], Known("bool"), "ordered")
    if t.is_own_definition(args[0]):
        t.still_own(args[0])
        return native(hasattr, args[0], t.concrete(args[1]))
    if not t.is_plain(args[0]):
        return t.host(t.constant(hasattr), [t.operand(args[0]), t.operand(args[1])], Known("bool"), "ordered")
    return native(hasattr, args[0], t.concrete(args[1]))


def _type(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if len(args) != 1:
        raise TraceEscape("makes a class")
    x = args[0]
    if not isinstance(x, Value):
        return class_of(x) if isinstance(x, BaseException) else type(x)
    if x.type != "any":
        return {"str": str, "int": int, "float": float, "bool": bool}[x.type]
    return t.decide(t.host(t.constant(type), [x.ir], Known(), "pure"))


def _super(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    if any(isinstance(arg, Value) for arg in args):
        raise TraceEscape("calls super() for an object that the host made")
    return native(super, *args)


def _print(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return t.effect(print, args, kwargs)


def _reduce(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, items, *start = args
    call = t.callback(fn)
    iterator = iter(t.items(items, 1))
    total = start[0] if start else next(iterator, _NONE)
    if total is _NONE:
        return native(functools.reduce, fn, ())  # Python says that there is nothing
    for x in iterator:
        total = call(total, x)
    return total


_NONE = object()


def _lazily(fn: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """An iterator over iterators: of the program's own items."""
    return lambda t, args, kwargs: native(fn, *[t.items(x, n) for n, x in enumerate(args)], **kwargs)


def _at_once(fn: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """An iterator that takes all of its items when it is made."""
    return lambda t, args, kwargs: native(fn, *[list(t.items(x, n)) for n, x in enumerate(args)], **{name: t.concrete(x) for name, x in kwargs.items()})


def _islice(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return native(itertools.islice, t.items(args[0]), *map(t.concrete, args[1:]))


def _flattened(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    return itertools.chain.from_iterable(steps(t, (t.star(x) for x in t.items(args[0]))))


def _by_test(fn: Any) -> Callable[[TraceMode, _Args, _Kwargs], Any]:
    """takewhile, dropwhile, filterfalse: the test is the program's own."""

    def handler(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
        test, items = args
        call = t.callback(test)

        def passes(x: Any) -> bool:
            with t.auxiliary():
                return t.truth(call(x))

        return native(fn, passes, t.items(items, 1))

    return handler


def _starmap(t: TraceMode, args: _Args, kwargs: _Kwargs) -> Any:
    fn, items = args
    call = t.callback(fn)
    return (call(*t.star(xs)) for xs in t.items(items, 1))


_HANDLERS: dict[Any, Callable[[TraceMode, _Args, _Kwargs], Any]] = {
    isinstance: _isinstance, issubclass: _issubclass, range: _range, max: _extreme("py.argmax", max), min: _extreme("py.argmin", min), sorted: _sorted_call, any: _any,
    all: _all, sum: _sum, map: _map, filter: _filter, enumerate: _enumerate, zip: _zip, reversed: _reversed, list: _collect(list),
    tuple: _collect(tuple), set: _set, dict: _dict, iter: _iter, next: _next, getattr: _getattr, setattr: _setattr, delattr: _delattr, hasattr: _hasattr,
    id: _id, type: _type, super: _super, print: _print, functools.reduce: _reduce, functools.wraps: _wraps,
    itertools.islice: _islice, itertools.chain: _lazily(itertools.chain), itertools.zip_longest: _lazily(itertools.zip_longest),
    itertools.pairwise: _lazily(itertools.pairwise), itertools.chain.from_iterable: _flattened, itertools.starmap: _starmap,
    **{f: _definer(f) for f in reach.DEFINERS}, itertools.product: _at_once(itertools.product),
    **{f: _by_test(f) for f in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse)},
}  # fmt: skip
_HEAPED = {getattr(heapq, name): _heaped(name) for name in ("heappush", "heappop", "heapify", "heapreplace", "heappushpop")}
_RANKED = {heapq.nlargest: _ranked(True), heapq.nsmallest: _ranked(False)}
_OF_STATES: dict[Any, Callable[[TraceMode, _Args, _Kwargs], Any]] = {**_HEAPED, **_RANKED}
"""Functions that are host code, unless they are handed states."""
MAIN = frozenset({isinstance, issubclass, hasattr, print, getattr, setattr, delattr})  # their one host operation is their result


def steps(t: TraceMode, made: Iterator[Any]) -> Iterator[Any]:
    """What a handler's generator gives. The hook call that goes through it, `join` maybe, has a result of its own."""
    while True:
        with t.auxiliary():
            item = next(made, _NONE)
        if item is _NONE:
            return
        yield item


def handler_of(fn: Any, t: TraceMode, args: _Args) -> Callable[[TraceMode, _Args, _Kwargs], Any] | None:
    if not hostops.is_definition(fn):
        return None
    if fn in _OF_STATES and holds_states(t, fn, args):
        return _OF_STATES[fn]
    return _HANDLERS.get(fn) or (_definer(fn) if reach.defines(fn) else None)
