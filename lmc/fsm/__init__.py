"""Constraints as automata: the room for regex to compressed token automata; empty so far."""
