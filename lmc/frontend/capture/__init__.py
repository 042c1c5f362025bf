"""The abstract evaluator: follows a program on what is known of its values, and never runs user code."""
