"""Programs whose requests have a prefix in common, for tests of servers' caches."""

import lmc

LONG = "All that they share. " * 300
"""6,300 characters, which are tokens of the text model (text_model.py)."""


@lmc.function
def siblings(s, text, size=6):
    s += lmc.system(text)
    forks = s.fork(size)
    for i, f in enumerate(forks):
        f += lmc.user(f"View {i}?") + lmc.assistant(lmc.gen("view", max_tokens=9))
    return [f["view"] for f in forks]


@lmc.function
def agent(s, turns=20):
    s += lmc.system("You look things up. " * 60) + lmc.user("Begin.")
    for i in range(turns):
        s += lmc.assistant(lmc.gen("step", max_tokens=30))
        s += lmc.user(f"Result {i} of {s['step']}: " + "a line of what was found. " * 20)
    return s["step"]
