"""DSPy's programs on lmc's runtime: `lmc.dspy.LM(backend)` and `lmc.dspy.Adapter()`; needs the extra `dspy`."""

from lmc.integrations.dspy.adapter import Adapter
from lmc.integrations.dspy.engine import AsyncRequestEngine, RequestEngine
from lmc.integrations.dspy.lm import LM

__all__ = ["LM", "Adapter", "AsyncRequestEngine", "RequestEngine"]
