"""Durable runs: journals of answers and effects, resuming from them, and looking at them."""
