"""`lmc chat`: a conversation with a model in the terminal."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc import userfiles
from lmc.cli.console import say, shown
from lmc.cli.models import open_backend
from lmc.cli.options import MaxTokens, ModelName, Temperature, unset
from lmc.config import config
from lmc.errors import LmcError
from lmc.userfiles import UsageError

_HELP = """  /help             this list
  /history          the conversation so far
  /reset            start over, keeping the system prompt
  /system TEXT      change the system prompt, from the next message on
  /retry            ask for the last answer again
  /quit             end (or Ctrl-D); Ctrl-C stops an answer
End a line with \\ to continue it on the next, or put a message between two lines of \"\"\"."""
_MOST_CALLS = 8  # of tools, before the next user message


def chat(
    backend: ModelName = None,
    system: Annotated[str, unset("--system", "-s", metavar="TEXT", help="System prompt.")] = "",
    tools: Annotated[
        Path | None, unset("--tools", metavar="FILE.py", help="File with functions that the model may call; those whose names begin with _ are left out.")
    ] = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 1024,
    seed: Annotated[int | None, unset(metavar="N", help="Seed, which makes sampling repeatable.")] = None,
) -> None:
    """Chat with a model in the terminal.

    Answers are streamed, messages may have several lines, and the model may call tools; /help lists commands. With messages from a pipe or a file, the
    exit code is 1 if a request failed.

    \b
    Examples:
      lmc chat
      lmc chat -b openai:gpt-4.1-mini --system "Answer in one sentence."
      lmc chat -b path/to/model --tools my_tools.py
      echo "What is the capital of France?" | lmc chat --temperature 0
    """
    given = {"temperature": temperature, "max_new_tokens": max_tokens, "seed": seed}
    functions = _functions(tools) if tools is not None else []
    with closing(open_backend(backend or config().model or "smollm2")) as model:
        talk = ChatSession(model, system, functions, {name: value for name, value in given.items() if value is not None})
        talk.talk(_messages())
    if talk.failed and not sys.stdin.isatty():
        raise typer.Exit(1)


def _functions(path: Path) -> list[Callable[..., Any]]:
    module = userfiles.import_file(path)
    found = [f for name, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")]
    if not found:
        raise UsageError(f"--tools {path}: it defines no function whose name does not begin with _")
    return found


def _messages() -> Iterator[str]:
    """Yield the user's input, a message at a time; ends with the input."""
    asks = sys.stdin.isatty()
    if asks:
        with suppress(ImportError):
            import readline  # noqa: F401  # the input's own history and editing, where Python has it
        say("type a message, or /help for a list of commands")
    while True:
        try:
            line = input("> " if asks else "")
            while line.endswith("\\"):
                line = line[:-1] + "\n" + input(". " if asks else "")
            if line.strip() == '"""':
                line = "\n".join(iter(lambda: input(". " if asks else ""), '"""'))
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            yield line


class ChatSession:
    """A conversation. `turns` are (role, text, call): the call of a tool's result, else None. `failed`: whether a
    request ended with an error."""

    def __init__(self, model: Any, system: str, tools: list[Callable[..., Any]], options: dict[str, Any]) -> None:
        self.model, self.system, self.tools, self.options = model, system, tools, options
        self.turns: list[tuple[str, str, Any]] = []
        self.failed = False

    def talk(self, messages: Iterator[str]) -> None:
        for message in messages:
            if message.startswith("/"):
                if not self._command(*message[1:].partition(" ")[::2]):
                    return
                continue
            self.turns.append(("user", message, None))
            self._answer()

    def _command(self, name: str, rest: str) -> bool:
        """Run a command that begins with /; return False to end."""
        match name:
            case "quit" | "exit":
                return False
            case "history":
                for message in self._state().messages():
                    print(shown(f"{message['role']}: {message['content']}", sys.stdout))
            case "reset":
                self.turns.clear()
            case "system":
                self.system = rest.strip()
            case "retry" if any(role == "user" for role, _, _ in self.turns):
                while self.turns[-1][0] != "user":
                    self.turns.pop()
                self._answer()
            case "help":
                print(_HELP)
            case _:
                say(f"/{name}: no such command, or an argument is missing; /help lists the commands")
        return True

    def _state(self) -> Any:
        """Return the conversation as a state, without a request."""
        said, _ = _programs()
        return said.run(self.system, self.turns, backend=self.model)

    def _answer(self) -> None:
        """Answer the last message; with tools, after the calls that the model wants."""
        for _ in range(_MOST_CALLS):
            try:
                text, calls = self._asked()
            except KeyboardInterrupt:
                say("\nstopped")
                return
            except LmcError as error:
                say(f"error: {error}")
                self.failed = True
                self.turns.pop()
                return
            self.turns.append(("assistant", text, None))
            for call in calls:
                self.turns.append(("tool", self._called(call), call))
            if not calls:
                return
        say(f"the model called tools {_MOST_CALLS} times in a row; type how to continue")

    def _asked(self) -> tuple[str, list[Any]]:
        """Return one answer, printed as it grows, and the calls that it wants."""
        _, turn = _programs()
        state = turn.run(self.system, self.turns, self.tools or None, stream=True, backend=self.model, **self.options)
        for piece in state.text_iter("answer"):
            print(shown(piece, sys.stdout), end="", flush=True)
        if state["answer"]:
            print()
        return state["answer"], list(state.get_meta_info("answer").get("tool_calls", ())) if self.tools else []

    def _called(self, call: Any) -> str:
        from lmc import call_tool

        given = call["arguments"]
        say(f"[{call['name']}({', '.join(f'{k}={v!r}' for k, v in given.items()) if isinstance(given, dict) else given})]")
        try:
            return call_tool(call, self.tools)
        except Exception as error:  # the tool's own error: sent to the model
            return f"error: {type(error).__name__}: {error}"


def _say(s: Any, system: str, turns: list[tuple[str, str, Any]]) -> None:
    import lmc

    if system:
        s += lmc.system(system)
    for role, text, call in turns:
        s += lmc.tool_result(call, text) if role == "tool" else lmc.user(text) if role == "user" else lmc.assistant(text)


@cache
def _programs() -> tuple[Any, Any]:
    import lmc

    @lmc.function
    def said(s: Any, system: str, turns: list[Any]) -> None:
        _say(s, system, turns)

    @lmc.function
    def turn(s: Any, system: str, turns: list[Any], tools: Any) -> None:
        _say(s, system, turns)
        s += lmc.assistant(lmc.gen("answer", tools=tools))

    return said, turn
