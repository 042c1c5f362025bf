"""Breakpoints of prompt caches, on a stand-in that charges by the published rules: what is marked, what that costs, and how near that is to the least."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmc
from lmc.backend.api.caching import BlockedPrompt, CacheBook, CacheRules, Point, choose
from lmc.backend.usage import Usage
from tests.api.cache_billing import READ, WRITE, Blocks, Cache, CachingModel, least_cost, plain_cost
from tests.api.conftest import QUICK
from tests.api.http import Server
from tests.api.programs import LONG, agent, siblings
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api
pytest.importorskip("anthropic")


@pytest.fixture
def caching(opened):
    def make(*, stand_in=None, script=lambda prompt: "Done.", **options) -> tuple[lmc.Anthropic, CachingModel]:
        model = CachingModel(TextModel(script), **(stand_in or {}))
        server = opened(Server(model.handle, plant=model.arrives))
        options = {"patience": QUICK, "prices": lmc.Prices(3.0, 15.0), **options}
        return opened(lmc.Anthropic("claude-test", api_key="k", base_url=server.url, **options)), model

    return make


CALLS = pytest.mark.parametrize("call", (lambda f, **k: f.run(**k), lambda f, **k: lmc.compile(f)(**k)), ids=("interpreted", "compiled"))


@CALLS
def test_one_sibling_writes_and_the_others_read(caching, call):
    backend, model = caching(stand_in={"delay": 60})
    model.until = lambda: backend.server_info()["held"] == 5
    state = call(siblings, text=LONG, backend=backend, temperature=0)
    assert len(model.asked) == 6 and backend.server_info()["held"] == 5
    assert model.cost <= 1.02 * least_cost(model.asked) and plain_cost(model.asked) >= 3 * model.cost
    usage = state.usage
    assert (usage.written_tokens, usage.cached_tokens) == (6300, 5 * 6300)
    off, plain = caching(cache="off")
    assert call(siblings, text=LONG, backend=off, temperature=0).ret_value == state.ret_value
    assert plain.cost == plain_cost(plain.asked) and not any(b.marks for b in plain.asked)


@CALLS
def test_an_agents_turns_read_the_turns_before_them(caching, call):
    backend, model = caching()
    call(agent, backend=backend, temperature=0)
    assert len(model.asked) == 20 and plain_cost(model.asked) >= 3 * model.cost
    assert all(len(b.marks) <= 4 for b in model.asked)
    assert model.cost <= 1.05 * _conversation(model.asked), "each turn reads all before it and writes what is new"


def _conversation(asked):
    """Return the cost of a conversation in which each turn writes all but the last, of 1,024 tokens or more."""
    cost, read = 0.0, 0
    for i, blocks in enumerate(asked):
        whole = blocks.tokens[-1]
        written = whole - read if i < len(asked) - 1 and whole >= 1024 else 0
        cost += READ * read + WRITE * written + (whole - read - written)
        read += written
    return cost


def test_what_is_paid_is_what_was_billed(caching):
    backend, model = caching()
    state = agent.run(backend=backend, temperature=0)
    spent = backend.spent()
    assert spent.cost == pytest.approx((3.0 * model.cost + 15.0 * spent.usage.completion_tokens) / 1e6)
    assert backend.capabilities.prices is not None
    assert backend.capabilities.prices.of(state.usage) == pytest.approx(spent.cost)


def test_a_prompt_that_is_asked_once_is_not_written(caching):
    @lmc.function
    def once(s, text):
        s += lmc.user(text) + lmc.assistant(lmc.gen("a", max_tokens=9))
        return s["a"]

    backend, model = caching()
    lmc.compile(once).batch([{"text": f"{i} {LONG}"} for i in range(4)], backend=backend, temperature=0)
    assert model.cost == plain_cost(model.asked) and not any(b.marks for b in model.asked)


def test_items_of_a_batch_that_begin_alike_are_written_once(caching):
    @lmc.function
    def item(s, text):
        s += lmc.system(LONG) + lmc.user(text) + lmc.assistant(lmc.gen("a", max_tokens=9))
        return s["a"]

    backend, model = caching()
    lmc.compile(item).batch([{"text": f"{i}"} for i in range(12)], backend=backend, temperature=0)
    wrote = [b for b in model.asked if b.marks]
    assert model.cost < 6300 * (1 + WRITE + 10 * READ) * 1.02 and len(wrote) == 11, "the second one shows that the beginning is shared"


def test_short_prompts_and_models_of_longer_minima(caching):
    backend, model = caching()
    siblings.run(text="short", backend=backend, temperature=0)
    assert not any(b.marks for b in model.asked) and backend.server_info()["held"] == 0
    opus, other = caching(stand_in={"minimum": 4096})
    opus._cache.rules = CacheRules(8192)
    siblings.run(text=LONG, backend=opus, temperature=0)
    assert not any(b.marks for b in other.asked)


def test_asking_ahead_does_not_make_each_request_write(caching):
    @lmc.function
    def ahead(s, text):
        s += lmc.system(text)
        s += lmc.user("First?") + lmc.assistant(lmc.gen("first", max_tokens=9))
        views = []
        if len(s["first"]) > 0:
            for i in range(4):
                (f,) = s.fork(1)
                f += lmc.user(f"View {i}?") + lmc.assistant(lmc.gen("view", max_tokens=9))
                views.append(f["view"])
        return views

    backend, model = caching(stand_in={"delay": 0.02})
    lmc.compile(ahead, ahead="likely")(text=LONG, backend=backend, temperature=0)
    assert model.cost <= 1.05 * least_cost(model.asked)
    assert backend.spent().usage.written_tokens < 6300 * 1.05


def test_a_server_without_a_cache_is_asked_without_marks(anthropic):
    backend, server = anthropic(TextModel(lambda prompt: "Yes."))  # the plain stand-in knows no blocks in `system`
    refused = server.handle

    def handle(path, body):
        from tests.api.http import Answer

        if "cache_control" in str(body):
            return Answer(
                {"type": "error", "error": {"type": "invalid_request_error", "message": "system.0.cache_control: Extra inputs are not permitted"}}, 400
            )
        return refused(path, body)

    server.handle = handle
    assert siblings.run(text=LONG, backend=backend, temperature=0).ret_value == ["Yes."] * 6


def test_what_was_forgotten_is_written_again_and_for_an_hour_where_that_pays(caching):
    """An agent whose tool takes ten minutes: five are too short, and that is seen."""
    backend, model = caching()
    hour, other = caching(cache="1h")
    for one, stand_in in ((backend, model), (hour, other)):
        book = one._cache
        book.warmup.clock = lambda stand_in=stand_in: stand_in.cache.now

        @lmc.function
        def slow(s, stand_in=stand_in):
            s += lmc.system("You look things up. " * 300) + lmc.user("Begin.")
            for i in range(8):
                s += lmc.assistant(lmc.gen("step", max_tokens=30))
                stand_in.cache.now += 600.0 * (s["step"] != "")  # the tool
                s += lmc.user(f"Result {i}: " + "a line of what was found. " * 20)
            return s["step"]

        slow.run(backend=one, temperature=0)
        assert one.spent().cost == pytest.approx((3.0 * stand_in.cost + 15.0 * one.spent().usage.completion_tokens) / 1e6)
    lives = [b.life for b in model.asked]
    assert lives[1:] == [300.0] + [3600.0] * 6, "what came back late is kept for an hour from then on"
    assert other.cost < model.cost < 0.6 * plain_cost(model.asked)
    other.cache.now += 3601.0
    before = hour.spent().usage.cached_tokens
    siblings.run(text="You look things up. " * 300, backend=hour, temperature=0, size=1)
    assert hour.spent().usage.cached_tokens == before, "an hour later nothing is there"


# -- choosing --------------------------------------------------------------------------------------------------------


@st.composite
def trees(draw) -> list[Blocks]:
    """Requests of a small program, in its order: paths of a tree of blocks, which have a size each."""
    paths = draw(st.lists(st.lists(st.sampled_from((0, 0, 0, 1)), min_size=1, max_size=7), min_size=1, max_size=5))
    sizes: dict[tuple[int, ...], int] = {}
    asked: list[Blocks] = []
    for path in paths:
        keys, tokens, total = [], [], 0
        for n in range(1, len(path) + 1):
            prefix = tuple(path[:n])
            if prefix not in sizes:
                sizes[prefix] = draw(st.sampled_from((50, 300, 700, 1500, 4000)))
            total += sizes[prefix]
            keys.append(str(prefix))
            tokens.append(total)
        asked.append(Blocks(tuple(keys), tuple(tokens), ()))
    return asked


@given(trees())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_marked_costs_at_most_2_percent_more_than_the_least(asked):
    """Each request knows of those to come what a plan would; lengths are those that the server counts."""
    book, cache, cost = CacheBook(CacheRules(1024), "5m"), Cache(1024), 0.0

    async def run():
        nonlocal cost
        for i, blocks in enumerate(asked):
            shared = [(n, float(sum(later.keys[:n] == blocks.keys[:n] for later in asked[i + 1 :]))) for n in range(1, len(blocks.keys))]
            whole = float(sum(later.keys[: len(blocks.keys)] == blocks.keys for later in asked[i + 1 :]))
            prompt = BlockedPrompt(tuple(k.encode() for k in blocks.keys), tuple(map(float, blocks.tokens)), tuple(range(len(blocks.keys))))
            async with book.turn(prompt, ((-1, whole), *((n, c) for n, c in shared if c)), i, False, 1) as marked:
                sent = Blocks(blocks.keys, blocks.tokens, marked.blocks)
                read, wrote, fresh = cache.charge(sent, cache.hit(sent))
                cost += READ * read + WRITE * wrote + fresh
                marked.turn.begun()
                book.answered(prompt, marked, Usage(read + wrote + fresh, 1, read, written_tokens=wrote))

    asyncio.run(run())
    assert cost <= 1.02 * least_cost(asked)


@pytest.mark.parametrize("before, branches, after", ((0, (2, 2, 2), 1), (1, (3, 1), 0), (2, (1, 2, 3), 0), (1, (3, 1, 1, 3), 1)))
def test_a_compiled_program_costs_the_least_that_marks_can_cost(caching, before, branches, after):
    """Turns, a fork into branches of so many turns each, turns behind it: lengths around what is worth keeping."""
    lengths = iter((60, 1500, 3000, 600, 6000, 60, 1500, 600, 3000, 1500, 60, 6000))

    def said() -> str:
        return "word " * (next(lengths) // 5)

    system, turns = said(), [[said() for _ in range(n)] for n in (before, *branches, after)]

    @lmc.function
    def program(s):
        s += lmc.system(system)
        for i, text in enumerate(turns[0]):
            s += lmc.user(text) + lmc.assistant(lmc.gen(f"a{i}", max_tokens=9))
        forks = s.fork(len(branches))
        for f, texts in zip(forks, turns[1:-1]):
            for i, text in enumerate(texts):
                f += lmc.user(text) + lmc.assistant(lmc.gen(f"b{i}", max_tokens=9))
        found = "".join(f[f"b{i}"] for f, n in zip(forks, branches) for i in range(n))
        for i, text in enumerate(turns[-1]):
            s += lmc.user(text + found) + lmc.assistant(lmc.gen(f"c{i}", max_tokens=9))
        return [s[f"a{i}"] for i in range(before)], found, [s[f"c{i}"] for i in range(after)]

    backend, model = caching(stand_in={"delay": 0.01})
    siblings.run(text="how many tokens there are in a byte", size=1, backend=backend, temperature=0).text()
    first, paid = len(model.asked), model.cost
    lmc.compile(program)(backend=backend, temperature=0)
    asked = model.asked[first:]
    assert len(asked) == before + sum(branches) + after
    assert model.cost - paid <= 1.02 * least_cost(asked)


def test_four_marks_are_chosen_where_they_save_most():
    rules = CacheRules(1024)
    points = [Point(i, 2000.0 + 1000 * i, 6.0 - i) for i in range(6)]
    assert choose(points, -1, rules) == (1, 2, 3, 5) or len(choose(points, -1, rules)) == 4
    assert choose(points, -1, rules)[-1] == 5, "what all of it saves is more than what writing it costs"
    assert choose(points[:1], 0, rules) == (0,), "nothing new: what is there is read"
    assert choose([Point(0, 900.0, 9.0)], -1, rules) == ()
    assert choose([Point(30, 9000.0, 9.0)], 2, rules) == (2, 30), "too far behind to be found by looking back"
    assert choose([Point(0, 2000.0, 1.0)], -1, rules, hour=True) == (), "an hour costs more than one reading saves"


# -- dollars ---------------------------------------------------------------------------------------------------------


@lmc.function
def report(s):
    s += lmc.system(LONG)
    forks = s.fork(3)
    for view, f in zip(("short", "long", "odd"), forks):
        f += lmc.user(f"The {view} view?") + lmc.assistant(lmc.gen("view", max_tokens=40))
    s += lmc.user("All: " + "".join(f["view"] for f in forks)) + lmc.assistant(lmc.gen("sum", max_tokens=40))
    if s["sum"] == "More.":
        s += lmc.user("Go on.") + lmc.assistant(lmc.gen("rest", max_tokens=100))
    return s["sum"]


def _dollars(text: str) -> list[float]:
    line = next(line for line in text.splitlines() if "a run costs" in line)
    return [float(part.split()[0]) for part in line.split("$")[1:4]]


def test_dollars_before_a_run_are_near_what_it_pays(caching):
    backend, model = caching(script=lambda prompt: "Four words are it.")
    siblings.run(text="warm up the count of tokens " * 50, backend=backend, temperature=0)  # lengths are learned from what the server counts
    before, spent = lmc.compile(report, backend=backend), backend.spent()
    certain, expected, most = _dollars(before.explain())
    asked = model.cost
    before(temperature=0)
    paid = (model.cost - asked) * 3.0 / 1e6
    from lmc import dollars

    graph = before.planner.planned(before.graph(), before.target).graph
    assert backend.capabilities.prices is not None
    foreseen = dollars.before(graph, backend, {})
    arm = 0.5 * 0.1 * 6400 * 3.0 / 1e6  # the arm that was not taken: half of a request that would have read
    assert foreseen.prompts - arm == pytest.approx(paid, rel=0.1)
    total = backend.spent().cost - spent.cost
    assert certain <= total <= most and expected <= most
    explained = before.explain()
    assert f"the last run cost ${total:.6f}" in explained
    assert _dollars(explained)[1] == pytest.approx(total, rel=0.1), "answers of earlier runs say how long the next ones are"
