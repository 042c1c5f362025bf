"""`python -m tests.changed TIER ...`: test files of these tiers that the branch changed, and those that are named after a module of lmc that it changed.
Compared with where the branch left main; what is not committed counts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()


def changed_paths() -> list[str]:
    (base,) = git("merge-base", "HEAD", "main")
    return sorted({*git("diff", "--name-only", "--diff-filter=d", base), *git("ls-files", "--others", "--exclude-standard")})


def concerned(changed: Iterable[str], tests: Mapping[str, str], tiers: Iterable[str]) -> list[str]:
    """Of test files (path -> text), those with tests of the tiers that the changed paths concern."""
    marked = re.compile(rf"^(?:@|pytestmark = .*)pytest\.mark\.(?:{'|'.join(tiers)})\b", re.MULTILINE)
    found = {test for path in map(PurePosixPath, changed) for test in tests if _concerns(path, PurePosixPath(test))}
    return sorted(test for test in found if marked.search(tests[test]))


def _concerns(changed: PurePosixPath, test: PurePosixPath) -> bool:
    """Files mirror each other: lmc/serve/runs.py and tests/serve/test_runs.py, test_runs_again.py."""
    mirrored = changed.parts[0] == "lmc" and test.parent.parts[1:] == changed.parent.parts[1:]
    return changed == test or (mirrored and f"{test.stem}_".startswith(f"test_{changed.stem}_"))


if __name__ == "__main__":
    files = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    print(*concerned(changed_paths(), files, sys.argv[1:]))
