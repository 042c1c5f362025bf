"""The room for the OpenAI-compatible endpoint of `lmc serve`; empty so far."""
