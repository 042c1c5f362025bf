"""`lmc.compile`: programs traced, planned and executed, with the interpreter behind them. Composes frontend, passes and executor."""

from lmc.jit.program import Program, compile, load

__all__ = ["Program", "compile", "load"]
