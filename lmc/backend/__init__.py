"""Backends, which answer requests, and their protocol."""
