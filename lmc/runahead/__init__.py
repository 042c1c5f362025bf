"""Run-ahead: Python runs the program; while it waits for an answer, what it will ask next is asked already."""
