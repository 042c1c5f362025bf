"""Symbolic values: what the model or the host will produce, while the program is being traced.

A `Value` is never a fake string. The hooks that instrumentation puts into the program record what is done to it;
any other use (a hash, a truth test in C code, …) raises `TraceEscape`, and the run goes on in the interpreter.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from lmc.ir.core import Value as IRValue

if TYPE_CHECKING:
    from lmc.frontend.counting import CountingMode

active: ContextVar[CountingMode | None] = ContextVar("lmc_active", default=None)
"""The mode under which instrumented code runs in this context: tracing, replaying, or (None) plain Python."""


class TraceEscape(BaseException):  # not an Exception: a program's `except Exception` must not catch it
    """The program did something that cannot be captured; the reason is said once and the interpreter takes over."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        mode = active.get()
        if mode is not None:
            mode.escape(self)


def _escape(what: str) -> Any:
    def method(self: Value, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TraceEscape(f"needs the {what} of a traced value in code that is not its own")

    return method


class Symbolic:
    """What stands for text, a number or a list that is not known here: expressions and states pass it on untouched."""

    __slots__ = ()


class Value(Symbolic):
    """A value that is known only at run time. `ir` names it in the graph.

    immutable  whether its run-time object cannot change (always so for str, bool, int, float)
    items      type of its items where that is known ("str" for the list that `split` gives)
    domain     the few values it can have, where they are known
    made       the class that was called to make it, where that is known
    kind       list, dict or set, where it is known to be exactly that
    """

    __slots__ = ("__weakref__", "domain", "immutable", "ir", "items", "kind", "made")

    def __init__(self, ir: IRValue, immutable: bool = False, items: str | None = None, domain: tuple[Any, ...] | None = None) -> None:
        self.ir = ir
        self.immutable = immutable or ir.type in ("str", "bool", "int", "float")
        self.items = items
        self.made: type | None = None
        self.kind: type | None = None
        self.domain = (True, False) if ir.type == "bool" else domain

    @property
    def type(self) -> str:
        return self.ir.type

    def __deepcopy__(self, _: Any) -> Value:
        return self if self.immutable else _escape("copy")(self)

    def __repr__(self) -> str:  # for debuggers; instrumented code never gets here
        return f"<traced %{self.ir.name}: {self.ir.type}>"


for _name in (
    "__str__ __format__ __bool__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __len__ __iter__ __contains__ __getitem__ "
    "__setitem__ __delitem__ __call__ __int__ __float__ __index__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ "
    "__truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __xor__ "
    "__rxor__ __lshift__ __rshift__ __neg__ __pos__ __abs__ __invert__ __enter__ __exit__ __await__ __next__ __getattr__ "
    "__reduce_ex__ __copy__ __iadd__ __matmul__ __rmatmul__ __divmod__ __rdivmod__ __round__ __reversed__ __bytes__"
).split():
    setattr(Value, _name, _escape(_name.strip("_")))
