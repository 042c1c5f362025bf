"""An async agent: it looks several things up at once, then answers; many such agents share one event loop.

What to see here: the tools are ordinary coroutines, awaited where the program awaits them. Compiled, the program runs on
the loop of `await program.acall(…)`, which stays free while the model works; `program.stream(…)` shows the text as it grows.

    lmc run examples/async_tools.py:guide --arg place=Lisbon --temperature 0
"""

import asyncio

import lmc

FACTS = {
    "Lisbon": {"country": "Portugal", "river": "the Tagus"},
    "Vienna": {"country": "Austria", "river": "the Danube"},
    "Cairo": {"country": "Egypt", "river": "the Nile"},
}


async def look_up(place: str, topic: str) -> str:
    """Stands for a request to some service."""
    await asyncio.sleep(0.01)
    return FACTS.get(place, {}).get(topic, "unknown")


@lmc.function
async def guide(s: lmc.State, place: str) -> dict[str, str | int]:
    country, river = await asyncio.gather(look_up(place, "country"), look_up(place, "river"))  # both at once
    s += lmc.system("You are a travel guide. Answer in one short sentence.")
    s += lmc.user(f"{place} is in {country}, on {river}. Is it worth a visit?")
    s += lmc.assistant(lmc.gen("advice", max_tokens=32, stop="\n"))
    s += lmc.user("For how many days?")
    s += lmc.assistant(lmc.gen("days", regex="[1-9]"))
    return {"place": place, "advice": s["advice"].strip(), "days": int(s["days"])}


async def main() -> None:
    program = lmc.compile(guide)
    states = await program.abatch([{"place": place} for place in FACTS], temperature=0)
    for state in states:
        print(state.ret_value)
    async for piece in program.stream(place="Lisbon", temperature=0).text_async_iter("advice"):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    asyncio.run(main())
