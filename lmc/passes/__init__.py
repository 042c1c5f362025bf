"""Passes: pure functions from graph to graph, one file each; `manager` says which a target needs and runs them."""
