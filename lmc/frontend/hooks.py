"""The object that instrumented code calls: hands each hook call to the active mode, or does it as plain Python."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmc.frontend.mode import HOOKS, Mode
from lmc.frontend.values import active

_NATIVE = Mode()


class Hooks:
    """The object instrumented code calls: dispatches to the active mode."""

    __slots__ = ()

    def and_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return rest() if self.truth(value) else value  # type: ignore[attr-defined]

    def or_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return value if self.truth(value) else rest()  # type: ignore[attr-defined]

    def chain(self, signs: tuple[str, ...], left: Any, *rest: Callable[[], Any]) -> Any:
        """`a < b() < c()`: each side once, and no further than the first comparison that fails."""
        result: Any = True
        for sign, thunk in zip(signs, rest, strict=True):
            right = thunk()
            result = self.compare(sign, left, right)  # type: ignore[attr-defined]
            if thunk is not rest[-1] and not self.truth(result):  # type: ignore[attr-defined]
                break
            left = right
        return result

    def store_item(self, value: Any, owner: Any, key: Any) -> None:
        self.setitem(owner, key, value)  # type: ignore[attr-defined]

    def store_attr(self, value: Any, owner: Any, name: str) -> None:
        self.setattr(owner, name, value)  # type: ignore[attr-defined]


def _dispatcher(name: str) -> Callable[..., Any]:
    def hook(self: Hooks, /, *args: Any, **kwargs: Any) -> Any:
        mode = active.get()
        return getattr(_NATIVE, name)(*args, **kwargs) if mode is None else mode.dispatch(name, args, kwargs)

    hook.__name__ = name
    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _dispatcher(_name))

hooks = Hooks()
