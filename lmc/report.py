"""A run for people, as parts of a page: its conversation, its source with what each line cost, and a timeline of its requests.

Built from the records that a run keeps of its requests; nothing here waits for one.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from lmc import pages
from lmc.backend.usage import Usage
from lmc.errors import Loc
from lmc.frontend import notebook
from lmc.pages import TimelineRow, count, money, seconds, several
from lmc.run_records import RequestRecord, RunRecord, of_state

if TYPE_CHECKING:
    from lmc.frontend.streaming import StateView

NOTHING = Usage()
MOST_ROWS = 100
"""Requests of a run, and runs of a program, that a timeline shows."""


def page_of(state: StateView) -> str:
    """Render the page of one run."""
    ran, title = of_state(state), state.name or "run"
    body = f"<h1>{escape(title)}</h1>{pages.facts(sums([ran]))}"
    return pages.page(title, body + parts([ran], state), script=pages.KEYS)


def text_of(state: StateView) -> str:
    """Return the requests of a run, a line each, and their sum."""
    ran = of_state(state)
    lines = [state.name or "run", *(f"  {line}" for line in sums([ran]))]
    for r in ran.requests:
        line = f"{_where(r.loc)} {r.kind}" + (f" {r.name}" if r.name != r.kind else "") + (f" (branch {r.branch})" if r.branch else "")
        lines.append(f"    {line.strip()}: {_note(r)}")
    return "\n".join(lines)


def parts(runs: Sequence[RunRecord], state: StateView | None, more: Iterable[tuple[str, str]] = (), shown: RunRecord | None = None) -> str:
    """Return sections about runs and about one of them, `shown` (default: the last), and links to them and to `more`.
    `state`: of that run, if it still exists."""
    if not runs or not any(run.requests for run in runs):
        return pages.contents(*more) if more else ""
    shown = shown or runs[-1]
    sections = [
        ("conversation", "Conversation", conversation(shown, state)),
        ("source", "Source", source(runs)),
        ("timeline", "Timeline", timelines(runs, shown)),
    ]
    found = [(id, name, text) for id, name, text in sections if text]
    links = pages.contents(*((id, name) for id, name, _ in found), *more)
    return links + "".join(f"<section id={id}><h2>{name}</h2>{text}</section>" for id, name, text in found)


def sums(runs: Sequence[RunRecord]) -> list[str]:
    """Return the total cost of runs, in sentences."""
    asked = [r for run in runs for r in run.requests]
    usage = sum((r.usage for r in asked), Usage())
    ahead, vain = sum(r.ahead == "used" for r in asked), sum(r.ahead == "wasted" for r in asked)
    lines = [
        f"{several(len(asked), 'request')}{f' in {len(runs)} runs' if len(runs) > 1 else ''}: {several(usage.prompt_tokens, 'prompt token')}, "
        f"{count(usage.cached_tokens)} of them shared (from the cache); "
        f"{several(usage.completion_tokens, 'token')} of answers, {count(usage.forced_tokens)} of them forced."
    ]
    if usage.drafted_tokens:
        lines.append(f"{count(usage.drafted_tokens)} tokens were drafted, and {count(usage.accepted_tokens)} of them drawn.")
    if ahead or vain:
        lines.append(f"{ahead} asked ahead and used, {vain} asked ahead and not used.")
    lines += [f"{line}." for line in by_backend(asked)]
    if (cost := _cost(asked)) is not None:
        lines.append(f"It cost {money(cost)}.")
    failed = [r for r in asked if r.result.error is not None and r.ahead != "wasted"]
    if failed:
        lines.append(f"{several(len(failed), 'request')} failed.")
    return lines


def by_backend(asked: Sequence[RequestRecord]) -> list[str]:
    """Return what requests were of each backend, if there are several."""
    found: dict[int, list[RequestRecord]] = {}
    for r in asked:
        found.setdefault(id(r.backend), []).append(r)
    lines = list[str]()
    for mine in found.values() if len(found) > 1 else ():
        usage, cost, names = Usage.sum(r.usage for r in mine), _cost(mine), [*dict.fromkeys(r.name for r in mine)]
        shown = ", ".join([*names[:MOST_NAMES], *["…"][: len(names) > MOST_NAMES]])
        lines.append(
            f"{mine[0].backend.capabilities.name} ({shown}): {several(len(mine), 'request')}, {several(usage.prompt_tokens, 'prompt token')} "
            f"({count(usage.cached_tokens)} shared), {several(usage.completion_tokens, 'token')} of answers" + (f", {money(cost)}" if cost is not None else "")
        )
    return lines


MOST_NAMES = 4
"""Gens and selects of a backend that are named."""


def _cost(asked: Iterable[RequestRecord]) -> float | None:
    """Return the cost of requests, None if no backend of theirs has prices."""
    costs = [r.cost for r in asked if r.cost is not None]
    return sum(costs) if costs else None


def _where(loc: Loc | None) -> str:
    return "" if loc is None else loc.short


# -- the conversation ----------------------------------------------------------------------------------------------


def conversation(ran: RunRecord, state: StateView | None) -> str:
    """Render the messages of the run's state, and below them the answers of its branches; without the state, all
    answers."""
    told = {id(r.result): _told(r) for r in ran.requests}
    shown = set[int]()
    rows = "" if state is None else notebook.conversation(state, told, shown)
    rest = [r for r in ran.requests if id(r.result) not in shown and r.ahead != "wasted"]
    for r in rest:
        place = f"branch {r.branch}" if r.branch else "the program"
        rows += (
            f'<div class="m"><div class="r">{escape(place)}</div>'
            f'<div class="t">{notebook.answer_html(r.result, r.name, told.get(id(r.result), ""))}</div></div>'
        )
    if state is not None:
        rows += notebook.value(state)
    legend = pages.legend(
        ("k", "prompt that was shared (from the cache)"), ("text", "prompt that was computed"), ("a", "answer"), ("f", "answer that its constraint forced")
    )
    missing = "" if state is not None else "<p class=quiet>The prompts are shown while the program still has the run's state.</p>"
    return f"{legend}{missing}<div class=talk>{rows}</div>"


def _told(r: RequestRecord) -> str:
    """Return the parts of an answer's cost line besides tokens."""
    ahead = ["asked ahead"] if r.ahead == "used" else []
    took = [seconds(r.seconds)] if r.ended else []
    return " · ".join([*ahead, *took, *filter(None, [_where(r.loc)])])


# -- the source ----------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """Summed cost of the requests of one source line."""

    count: int = 0
    time: float = 0.0
    usage: Usage = NOTHING
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens


def source(runs: Sequence[RunRecord]) -> str:
    """Render the functions that made requests, with bars of time, tokens and money beside each line that did."""
    lines: dict[tuple[str, int], _Line] = {}
    for r in (r for run in runs for r in run.requests if r.loc is not None):
        assert r.loc is not None
        line = lines.setdefault((r.loc.file, r.loc.line), _Line())
        line.count, line.usage = line.count + 1, line.usage + r.usage
        line.time, line.cost = line.time + r.seconds, line.cost + (r.cost or 0.0)
    if not lines:
        return ""
    most = _Line(time=max(x.time for x in lines.values()) or 1.0)
    tokens = max(x.tokens for x in lines.values()) or 1
    cost = None if _cost(r for run in runs for r in run.requests) is None else max(x.cost for x in lines.values())
    measures = ["time", "tokens", *(["money"] if cost is not None else [])]
    found: list[str] = []
    for file, begin, end in _functions(lines):
        found.append(
            f"<h3 class=code>{escape(Loc(file, begin).short)}</h3><table class=source style='--on:{len(measures)}'>"
            f"<colgroup><col class=no><col>{'<col class=on>' * len(measures)}</colgroup>"
        )
        found.append(f"<tr class=head><th></th><th></th>{''.join(f'<th scope=col>{m}</th>' for m in measures)}</tr>")
        for number in range(begin, end + 1):
            text = escape(linecache.getline(file, number).rstrip("\n")) or " "
            line = lines.get((file, number))
            cells = "" if line is None else _bars(line, most.time, tokens, cost)
            found.append(f"<tr{' class=hot' if line else ''}><td>{number}</td><td class=line>{text}</td>{cells or '<td class=on></td>' * len(measures)}</tr>")
        found.append("</table>")
    colours = [("decode", "time, answers"), ("shared", "shared"), ("computed", "computed"), *([("tool", "money")] if cost is not None else [])]
    return pages.legend(*colours) + "".join(found)


def _bars(line: _Line, time: float, tokens: int, cost: float | None) -> str:
    u = line.usage
    times = f"{line.count} × {seconds(line.time / line.count)}" if line.count > 1 else seconds(line.time)
    cells = [
        pages.bar(("time", line.time / time)) + times,
        pages.bar(("shared", u.cached_tokens / tokens), ("computed", (u.prompt_tokens - u.cached_tokens) / tokens), ("decode", u.completion_tokens / tokens))
        + f"{count(u.prompt_tokens)} in, {count(u.completion_tokens)} out",
    ]
    if cost is not None:
        cells.append(pages.bar(("money", line.cost / cost if cost else 0.0)) + money(line.cost))
    return "".join(f"<td class=on>{cell}</td>" for cell in cells)


def _functions(lines: Mapping[tuple[str, int], Any]) -> Iterator[tuple[str, int, int]]:
    """Return the functions around lines, as file, first and last line; single lines of missing files or files without
    functions."""
    found: dict[tuple[str, int, int], None] = {}
    for file in dict.fromkeys(file for file, _ in lines):
        spans = _spans("".join(linecache.getlines(file)))
        for number in sorted(n for f, n in lines if f == file):
            around = [span for span in spans if span[0] <= number <= span[1]]
            begin, end = min(around, key=lambda span: span[1] - span[0], default=(number, number))
            found[file, begin, end] = None
    yield from found


def _spans(text: str) -> list[tuple[int, int]]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a notebook's magic, or a file that was edited: its lines are shown alone
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno or f.lineno) for f in functions]


# -- the timeline --------------------------------------------------------------------------------------------------


def timelines(runs: Sequence[RunRecord], latest: RunRecord) -> str:
    """Render the timeline of a run's requests and answers, and with several runs, of the runs."""
    rows = [_program_row(latest), *(_tool_row(name, b - latest.began, e - latest.began) for name, b, e in latest.tools[:MOST_ROWS])]
    rows += [*(_request_row(r, latest) for r in sorted(latest.requests, key=lambda r: r.result.began)[:MOST_ROWS])]
    rows = [rows[0], *sorted(rows[1:], key=lambda row: row.spans[0][0] if row.spans else 0.0)]
    kinds = {kind for row in rows for _, _, kind in row.spans}
    found = [pages.legend(*((kind, words) for kind, words in pages.WORDS.items() if kind in kinds)), pages.timeline(rows, latest.end - latest.began)]
    if len(latest.requests) > MOST_ROWS:
        found.append(f"<p class=quiet>{len(latest.requests) - MOST_ROWS} more requests are not shown.</p>")
    if len(runs) > 1:
        last = sorted(runs[-MOST_ROWS:], key=lambda run: run.began)
        begin = last[0].began
        rows = [_program_row(run, begin, f"run {i}") for i, run in enumerate(last, len(runs) - len(last))]
        found.append(f"<h3>The last {len(last)} runs</h3>{pages.timeline(rows, max(run.end for run in last) - begin)}")
    return "".join(found)


def _program_row(run: RunRecord, zero: float | None = None, label: str = "program") -> TimelineRow:
    """Return the row of the program: when the run waited for answers, and when it did not."""
    zero = run.began if zero is None else zero
    busy = sorted((r.result.began, r.ended or run.end) for r in run.requests if r.ahead != "wasted")
    spans: list[tuple[float, float, str]] = []
    at = run.began
    for begin, end in busy:
        if begin > at:
            spans.append((at - zero, begin - zero, "tool"))
        if end > at:
            spans.append((max(at, begin) - zero, end - zero, "decode"))
        at = max(at, end)
    if run.end > at:
        spans.append((at - zero, run.end - zero, "tool"))
    own = sum(e - b for b, e, kind in spans if kind == "tool")
    return TimelineRow(label, f"{seconds(run.end - run.began)}, {seconds(own)} without a request", _joined(spans))


def _joined(spans: Iterable[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Merge neighbouring spans of one kind."""
    found: list[tuple[float, float, str]] = []
    for begin, end, kind in spans:
        if found and found[-1][2] == kind and begin - found[-1][1] < 1e-9:
            found[-1] = found[-1][0], end, kind
        else:
            found.append((begin, end, kind))
    return found


def _request_row(r: RequestRecord, run: RunRecord) -> TimelineRow:
    where = " ".join(filter(None, [f"branch {r.branch}" if r.branch else "", _where(r.loc)]))
    return TimelineRow(r.name, _note(r), [(b - run.began, e - run.began, kind) for b, e, kind in _phases(r, run.end)], where)


def _tool_row(name: str, begin: float, end: float) -> TimelineRow:
    return TimelineRow(name, f"{seconds(end - begin)}, a call of the program", [(begin, end, "tool")])


def _phases(r: RequestRecord, end: float) -> list[tuple[float, float, str]]:
    """Return begin, end and kind of each phase of a request."""
    result, begin = r.result, r.result.began
    end = r.ended or max(end, begin)
    if r.ahead == "wasted":
        return [(begin, end, "vain")]
    admitted, first = (result.answer.phases if result.answer is not None else None) or (result.first, result.first)
    early = [(begin, "early")] if r.known > begin else []
    cuts = (
        [*early, (r.known, "wait"), (max(admitted, r.known), "prefill"), (max(first or end, r.known), "decode")] if admitted else [*early, (r.known, "decode")]
    )
    found: list[tuple[float, float, str]] = []
    for (at, kind), after in zip(cuts, [*(at for at, _ in cuts[1:]), end]):
        if after > at:
            found.append((max(at, begin), min(after, end), kind))
    return [*found, (begin, min(r.asked, end), "ahead")] if r.ahead == "used" and r.asked > begin else found


def _note(r: RequestRecord) -> str:
    if r.result.error is not None:
        return f"{'cancelled' if r.ahead == 'wasted' else 'failed'}: {type(r.result.error).__name__}"
    if r.ended is None:
        return "not answered yet"
    u = r.usage
    told = [seconds(r.seconds), f"{count(u.prompt_tokens)} in ({count(u.cached_tokens)} shared)", f"{count(u.completion_tokens)} out"]
    told += [f"{count(u.forced_tokens)} forced"] if u.forced_tokens else []
    told += [f"{count(u.accepted_tokens)} of {count(u.drafted_tokens)} drafted"] if u.drafted_tokens else []
    told += [money(r.cost)] if r.cost is not None else []
    return ", ".join(told)
