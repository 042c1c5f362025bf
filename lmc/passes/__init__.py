"""Passes: pure functions from graph to graph, one file each; `manager` chooses a target's passes and runs them."""
