"""Experiments that anyone can repeat: one command each, figures as JSON, a page with plots.

    python -m experiments                                                   # what there is
    python -m experiments throughput order                                  # on the small model, in minutes
    python -m experiments all --backend DIR --device cuda --load-format dummy --scale 1 --n 0
    python -m experiments throughput --peer sglang:http://127.0.0.1:30000   # beside a server that is running
    python -m experiments --report                                          # docs/results.md from docs/results/*.json

An experiment that was stopped goes on where it was. What could not be measured is said, with the reason, and the others go on.
"""

MODULES = ("programs", "agents", "constraints", "apis", "hardware", "reordering", "rag", "elsewhere", "quality")
"""Where the experiments are, in the order in which they are listed, whichever was imported first."""
