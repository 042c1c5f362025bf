"""The abstract evaluator: follows a program on the known part of its values, and never runs user code."""
