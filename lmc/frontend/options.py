"""Options of a call of a program, besides its own arguments, checked once."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmc.backend.base import Backend
from lmc.config import as_backend
from lmc.errors import ArgumentError, LmcError, ParameterError
from lmc.frontend.expressions import caller_loc
from lmc.limits import Budget, Limits, check_timeout
from lmc.parameters import RUN_SAMPLING, sampling, suggestion
from lmc.segments import SamplingParams

if TYPE_CHECKING:
    from lmc.backend.api.batches import BatchQueue
    from lmc.durable.journal import JournalFile

RUN_OPTIONS = frozenset((*RUN_SAMPLING, "backend", "seed", "stream", "use_thread", "budget", "timeout", "journal", "ahead", "priority", "account", "deadline"))
"""Options of `fn.run`."""
BATCH_OPTIONS = (RUN_OPTIONS - {"stream"}) | {"num_threads", "progress_bar", "errors"}
"""Options of `fn.run_batch`."""
PROGRAM_OPTIONS = RUN_OPTIONS | {"speculate"}
"""Options of calls of a compiled program."""
_OF_RUN_BATCH: Mapping[str, str] = {
    "num_threads": "; a compiled batch keeps as many items going as the backend can use, leave it out",
    "progress_bar": "; here it is progress=True",
    "generator_style": "; here it is program.as_completed(items)",
}
"""Replacements elsewhere for options that only `run_batch` has."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run or batch. None: not given.

    sampling  defaults for every gen, by the names of `fn.run`
    backend   where it runs; a sub-program's caller's, or the default backend
    seed      of the run; a sub-program's caller's, or a new one
    stream    return at once; the state is watched while it grows
    budget    what one run may spend; of a batch, each item
    timeout   seconds that one run may take
    journal   path of its journal, while it is open the journal;  key, keep, with_media  of that (lmc.Journal)
    ahead     which requests are made ahead: "off", "certain", "likely"; None: as the program was compiled, "off" for
              `fn.run`
    begin     called with state and arguments when the run begins (lmc/runahead/program.py)
    priority  its share of the backend where others compete for it: 2 gets twice what 1 gets
    account   owner of that share: runs of one account share it
    batch     identity shared by runs that are started together
    desk      where its requests go if it has a `deadline`: to the batch API of its server
    """

    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    backend: Backend | None = None
    seed: int | None = None
    stream: bool = False
    budget: Budget | None = None
    timeout: float | None = None
    journal: str | JournalFile | None = None
    ahead: str | None = None
    begin: Callable[..., None] | None = None
    key: str | bytes | None = field(default=None, repr=False)
    keep: float | None = None
    with_media: bool = False
    priority: float = 1.0
    account: str = ""
    batch: object = None
    desk: BatchQueue | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], known: Iterable[str] = RUN_OPTIONS, what: str = "a run") -> Options:
        """Check names and values; `what` takes them, for messages. Raises ArgumentError, ParameterError."""
        if not given:
            return NO_OPTIONS
        for name in given:
            if name not in known:
                meant = _OF_RUN_BATCH.get(name) or suggestion(name, sorted(known))
                raise ArgumentError(f"{what} has no option {name!r}{meant}", loc=caller_loc())
        backend = backend_of(given.get("backend"))
        seed = given.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ArgumentError(f"seed={seed!r}: must be a whole number", loc=caller_loc())
        budget = given.get("budget")
        if budget is not None and not isinstance(budget, Budget):
            raise ArgumentError(f"budget={budget!r}: write lmc.Budget(tokens=…, calls=…, cost=…)", loc=caller_loc())
        timeout = check_timeout(given.get("timeout"), caller_loc())
        journal: Any = given.get("journal")
        if journal is not None and not (isinstance(journal, str | os.PathLike) and journal):
            raise ArgumentError(f"journal={journal!r}: must be the path of a file (for a batch, of a directory) or an lmc.Journal", loc=caller_loc())
        speculate = given.get("speculate")
        if speculate not in (None, "branches"):
            raise ParameterError(f"speculate={speculate!r}: must be 'branches' or None", loc=caller_loc())
        ahead = given.get("ahead", "likely" if speculate else None)
        if ahead not in (None, "off", "certain", "likely"):
            raise ParameterError(f"ahead={ahead!r}: must be 'off', 'certain' or 'likely'", loc=caller_loc())
        priority = checked_priority(given.get("priority", 1.0))
        path = None if journal is None else os.fsdecode(given["journal"])
        desk = _desk(given)
        sampled = {k: given[k] for k in RUN_SAMPLING if k in given}
        options = cls(
            sampled, backend, seed, bool(given.get("stream")), budget, timeout, path, ahead, priority=priority, account=_account(given.get("account")),
            desk=desk, **getattr(given.get("journal"), "options", {}),
        )  # fmt: skip
        options.defaults(SamplingParams())  # a wrong value raises now, before a default backend loads its model
        return options

    def limits(self, backend: Backend, outer: Limits | None) -> Limits | None:
        """Return the limits of a run on `backend`; `outer` are its caller's. Raises ParameterError for a cost that
        cannot be known."""
        if self.budget is None and self.timeout is None:
            return outer
        prices = backend.capabilities.prices
        if prices is None and self.budget is not None and self.budget.cost is not None:
            raise ParameterError(f"budget={self.budget}: {backend.capabilities.name} has no prices; give tokens= or calls=", loc=caller_loc())
        return Limits(self.budget, self.timeout, prices, outer)

    def defaults(self, inherited: SamplingParams) -> SamplingParams:
        """Return `inherited` with the given values. Raises for an unusable value."""
        try:
            return sampling(inherited, self.sampling)
        except LmcError as error:
            error.loc = error.loc or caller_loc()
            raise


NO_OPTIONS = Options()


def checked(given: Mapping[str, Any], known: Iterable[str], what: str) -> dict[str, Any]:
    """Return the options that are kept for later calls, with the backend of a name. Raises what `Options.of` does."""
    found = Options.of(given, known, what)
    return {**given, "backend": found.backend} if "backend" in given else dict(given)


def _desk(given: Mapping[str, Any]) -> BatchQueue | None:
    """Return the queue of requests with a deadline; None without one. Raises ParameterError for a deadline that no
    batch API has, and for options that no batch supports."""
    deadline = given.get("deadline")
    if deadline is None:
        return None
    if deadline != "24h":
        raise ParameterError(f"deadline={deadline!r}: '24h', which is what batch APIs have, or None", loc=caller_loc())
    if given.get("stream"):
        raise ParameterError("deadline= of a stream: a batch answers all at once; leave one of the two out", loc=caller_loc())
    if given.get("timeout") is not None:
        raise ParameterError("deadline= with timeout=: a batch takes as long as it takes, up to a day; leave one of the two out", loc=caller_loc())
    from lmc.backend.api.batches import BatchQueue  # when the first run has one

    return BatchQueue()


def checked_priority(given: Any) -> float:
    """Return a share of a backend. Raises ParameterError for an invalid one."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        raise ParameterError(f"priority={given!r}: must be a share above 0; 2 gets twice as much as 1", loc=caller_loc())
    return float(given)


def backend_of(given: Any) -> Backend | None:
    """Return a backend that was given, or that of a name. Raises ParameterError for an unknown name, ArgumentError for
    any other type."""
    try:
        return None if given is None else as_backend(given)
    except LmcError as error:
        error.loc = error.loc or caller_loc()
        raise


_DEFAULTS: Mapping[str, Any] = {
    **{name: getattr(SamplingParams(), name) for name in RUN_SAMPLING},
    **dict.fromkeys((
        "stop", "stop_token_ids", "stop_regex", "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs",
        "logit_bias")),
    "stream": False, "backend": None, "priority": 1.0, "use_thread": True, "seed": None, "num_threads": "auto", "progress_bar": False,
    "generator_style": False, "errors": "raise",
}  # fmt: skip
"""Defaults as they are written; an option that is not here has None."""


def signature(first: str, options: Iterable[str]) -> inspect.Signature:
    """Return the signature of a method with `**options` for `help` and editors; `first` is its own argument, "*args"
    that of a program, "" none.

    It takes `**options`, because a parameter of the program may have the name of an option which then takes precedence.
    """
    parameter = inspect.Parameter
    found = [parameter("self", parameter.POSITIONAL_ONLY)]
    if first:
        found.append(parameter(first.lstrip("*"), parameter.VAR_POSITIONAL if first.startswith("*") else parameter.POSITIONAL_OR_KEYWORD))
    names = sorted(options, key=lambda name: [*_DEFAULTS, name].index(name))
    found += [parameter(name, parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name)) for name in names]
    if first.startswith("*"):
        found.append(parameter("kwargs", parameter.VAR_KEYWORD))
    return inspect.Signature(found)


def _account(given: Any) -> str:
    """Return text as it is: a server's accounts are text that counts what is used."""
    return given if isinstance(given, str) else str(given or "")
