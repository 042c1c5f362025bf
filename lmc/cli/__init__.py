"""The command line: run programs on files of items, look at their graphs, and say what is installed. Composes, decides nothing.

Exit codes: 0 done, 1 a run failed (at least one item ended with an error), 2 the command cannot be used as given,
130 interrupted.
`LMC_DEBUG` (1 to 5) shows tracebacks.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command: the console script. Ctrl-C while it is imported, which takes a moment, has no traceback either."""
    try:
        from lmc.cli import command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command.main()
