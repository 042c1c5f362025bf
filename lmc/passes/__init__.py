"""Graph to graph: one file a pass."""
