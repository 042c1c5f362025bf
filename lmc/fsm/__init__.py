"""Constraints as automata: regexes of Python's dialect to minimal automata over bytes."""
