"""The process that loads: seeds in, a line of what became of each out."""

from __future__ import annotations

import base64
import resource
import shutil
import sys
import warnings
from pathlib import Path

import lmc
from tests.fuzzing import mutations

PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC")  # 8 × 8 pixels
MEMORY = 12 << 30  # bytes of addresses: torch maps some by itself


@lmc.function
def plain(s):
    s += "ab" + lmc.gen("x", max_tokens=3, temperature=0)


@lmc.function
def chat(s):
    s += lmc.user("ab") + lmc.assistant(lmc.gen("x", max_tokens=3, temperature=0))


@lmc.function
def sees(s):
    s += lmc.user(lmc.image(PICTURE) + "ab") + lmc.assistant(lmc.gen("x", max_tokens=3, temperature=0))


def outcome(path: Path, what: str) -> str:
    """`answers`, `refused`, `cannot answer` (an error of lmc's, with its reason), or the exception that nobody should see."""
    try:
        engine = lmc.Engine(str(path), max_tokens=64, device="cpu")
    except lmc.ModelLoadError as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__} at load: {error}; {what}"
    with engine:
        for program in (plain, chat, *([sees] if engine.capabilities.images else [])):
            try:
                program.run(backend=engine).text()
            except lmc.LmcError as error:
                return f"cannot answer: {error}"
            except BaseException as error:
                return f"{type(error).__name__}: {error}; {what}"
    return "answers"


def spent() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    import torch
    from transformers import GPT2LMHeadModel  # and what all models import

    assert torch.get_num_threads() and GPT2LMHeadModel  # the time that these take is no file's
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place = Path(sys.argv[1]) / "files"
    print("ready", flush=True)
    for line in sys.stdin:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(place.parent / "cache", ignore_errors=True)
        place.mkdir()
        path, what = mutations.write(int(line), place)
        began = spent()
        found = outcome(path, what)
        print(f"{spent() - began:.3f} {found:.2000}".replace("\n", " ").encode("ascii", "backslashreplace").decode(), flush=True)


if __name__ == "__main__":
    main()
