"""`lmc.dspy.LM`: a dspy.LM whose engine is a backend in this process."""

from __future__ import annotations

from typing import Any

import dspy

from lmc.backend.base import Backend
from lmc.frontend.options import backend_of
from lmc.integrations.dspy.engine import AsyncRequestEngine, RequestEngine, several


class LM(dspy.LM):
    """A language model for DSPy over any backend of lmc, or one that is named, such as "openai:gpt-4.1-mini"; without one, over lmc's default backend.

    Takes what `dspy.LM` takes (`temperature`, `max_tokens`, `cache`, `callbacks`, `num_retries`, …). `n` answers are
    one group in the backend. Saved programs do not hold the backend: a loaded one runs on lmc's default.
    """

    def __init__(self, backend: Backend | str | None = None, *, model: str | None = None, **options: Any) -> None:
        if "engine" not in options:
            found = backend_of(backend)
            options |= {"engine": RequestEngine(found), "async_engine": AsyncRequestEngine(found)}
        super().__init__(model or _name(options["engine"]), **options)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        with several(self._answers(kwargs)):
            return super().__call__(prompt, **kwargs)

    async def acall(self, prompt: Any = None, **kwargs: Any) -> Any:
        with several(self._answers(kwargs)):
            return await super().acall(prompt, **kwargs)

    def _answers(self, kwargs: dict[str, Any]) -> int:
        n = kwargs.get("n") or self.kwargs.get("n") or 1
        return n if isinstance(n, int) else 1  # DSPy refuses anything else


def _name(engine: RequestEngine) -> str:
    return f"lmc/{engine.backend.capabilities.name}"
