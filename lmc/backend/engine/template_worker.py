"""The process in which a chat template runs: Jinja in a sandbox, with limits on steps, output, memory and CPU time.

A template comes with a model's file, and is a program. Jinja's sandbox keeps it from reading anything, not from
computing forever (`'a' * 10**10`, `2 ** (2 ** 40)`, nested loops), and one call into C cannot be interrupted from
within. So it runs here, where the system can kill it. Run as a script, without importing lmc; requests and answers are
lines of JSON (see template_sandbox.py).
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

try:
    import resource
except ImportError:  # not on this system: the starter kills the process
    resource = None

STEPS = 200_000  # of one rendering: entered bodies of loops, macros and conditions
CUTTING_STEPS = 50_000  # of all renderings to cut a template: usually some 3,000
OUTPUT = 4 << 20  # characters of one rendering, besides 16 times its input
MEMORY = 1 << 30  # bytes that the process may take
PATIENCE = 120  # wall-clock seconds for one request
REPEATED = 1 << 20  # items of a repeated sequence
LARGEST = 1 << 16  # bits of a power


class Limit(Exception):
    """The template exceeds a limit; the message says which."""


class RaisedByTemplate(Exception):
    """The template refuses the conversation (raise_exception)."""


def environment() -> Any:
    """Return Jinja set up as in transformers (utils/chat_template_utils.py), in a sandbox, counting steps."""
    from jinja2.compiler import CodeGenerator
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Counting(CodeGenerator):
        def blockvisit(self, nodes: Any, frame: Any) -> None:
            self.writeline("environment.step()")
            super().blockvisit(nodes, frame)

    class GenerationTag(Extension):
        """{% generation %}: transformers marks an assistant's text with it, for training; here it renders its body."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class TemplateEnvironment(ImmutableSandboxedEnvironment):
        code_generator_class = Counting
        intercepted_binops = frozenset({"*", "**"})  # not folded when the template is compiled, either
        steps, most = 0, STEPS

        def step(self) -> None:
            self.steps += 1
            if self.steps > self.most:
                raise Limit(f"it takes more than {self.most} steps")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

    found = TemplateEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    found.filters["tojson"] = _to_json
    found.globals.update(raise_exception=_refuse, strftime_now=_today)
    return found


def _check_operands(operator: str, left: Any, right: Any) -> None:
    for times, repeated in ((left, right), (right, left)):
        if operator == "*" and isinstance(times, int) and isinstance(repeated, str | list | tuple) and times * len(repeated) > REPEATED:
            raise Limit(f"it repeats a sequence {times} times")
    if operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(0, right) > LARGEST:
        raise Limit("it raises a number to a large power")


def _refuse(message: str) -> None:
    raise RaisedByTemplate(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _today(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


def named(env: Any, source: str) -> tuple[list[str], int]:
    """Return the texts, and the largest whole number, in the template's code: values that it may compare with."""
    from jinja2 import nodes

    found = [c.value for c in env.parse(source).find_all(nodes.Const)]
    texts = {c for c in found if isinstance(c, str) and c.strip()}
    return sorted(texts, key=lambda c: (len(c), c)), max((c for c in found if type(c) is int), default=0)


def render(env: Any, template: Any, given: dict[str, Any], size: int) -> str:
    """Render the template. Raises its exceptions, and Limit."""
    pieces, length = list[str](), 0
    for piece in template.generate(**given):
        pieces.append(piece)
        length += len(piece)
        if length > OUTPUT + 16 * size:
            raise Limit(f"it writes more than {length} characters")
    return "".join(pieces)


def allow(seconds: float) -> None:
    """Allow so much CPU time from now on; then the system kills the process (SIGPROF), also within one call into C."""
    if resource is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory() -> None:
    if resource is not None:
        _limit(resource.RLIMIT_AS, MEMORY)
        _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, value: int) -> None:
    assert resource is not None
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def answered(state: dict[str, Any], request: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the answer to one request: the template itself first, then conversations."""
    try:
        if "source" in request:
            env = state["env"] = environment()
            env.most = request["steps"]
            state["template"] = env.from_string(request["source"])
            texts, number = named(env, request["source"])
            return {"texts": texts, "number": number}
        return {"text": render(state["env"], state["template"], request["given"], size)}
    except Limit as error:
        return {"limit": str(error)}
    except MemoryError:
        return {"limit": f"it takes more than {MEMORY >> 20} MiB of memory"}
    except Exception as error:  # any exception of a template is a refusal
        return {"refused": f"{error}" if isinstance(error, RaisedByTemplate) else f"{type(error).__name__}: {error}"}


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401 (what it takes is no template's)

    limit_memory()
    state: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "seconds" in request:
            allow(request["seconds"])
            if "env" in state:
                state["env"].steps = 0
        if resource is not None:
            signal.alarm(PATIENCE)
        try:
            answer = json.dumps(answered(state, request, len(line)))
        except MemoryError:
            answer = '{"limit": "its output does not fit the memory"}'
        if resource is not None:
            signal.alarm(0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
