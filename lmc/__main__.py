"""`python -m lmc` is the command line."""

from lmc.cli import main

main()
