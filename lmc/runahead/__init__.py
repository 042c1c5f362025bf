"""Run-ahead: Python runs the program; while it waits for an answer, its next requests are made already."""
