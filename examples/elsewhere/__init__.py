"""Ten programs that others have published, rebuilt from their descriptions: `original/` with the packages they were written for, `ported/` on lmc.

    diff -ru examples/elsewhere/original examples/elsewhere/ported      # what changes
    python -m experiments elsewhere                                     # what it gives, against a stand-in of a server (make clients has the packages)

A file names the page it is rebuilt from. `main(url)` runs it against a server and gives its answers, the same in both folders.
"""
