"""Durable runs of agents: what `call_tool`, functions with a time-out and threads call is in the journal under its own name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from tests.durable.resuming import CALLS, resumes_anywhere


def temperature(city: str) -> str:
    CALLS.append(("temperature", city))
    return f"21 in {city}"


async def humidity(city: str) -> dict[str, Any]:
    CALLS.append(("humidity", city))
    await asyncio.sleep(0)
    return {"percent": len(city)}


safe = lmc.host(temperature, idempotent=True)
later = lmc.host(humidity, idempotent=True)


@lmc.function
def agent(s: Any, q: str, tools: Any) -> Any:
    s += lmc.user(q)
    while True:
        s += lmc.assistant(lmc.gen("answer", tools=tools))
        calls = s.get_meta_info("answer")["tool_calls"]
        if not calls:
            return s["answer"]
        for call in calls:
            try:
                s += lmc.tool_result(call, lmc.call_tool(call, tools))
            except lmc.ToolError as error:
                s += lmc.tool_result(call, str(error))


@lmc.function
async def waiting_agent(s: Any, q: str, tools: Any) -> Any:
    s += lmc.user(q) + lmc.assistant(lmc.gen("answer", tools=tools))
    for call in s.get_meta_info("answer")["tool_calls"]:
        s += lmc.tool_result(call, await lmc.call_tool(call, tools))
    s += lmc.assistant(lmc.gen("end", tools=tools))
    return s["end"]


def wants(*names: str) -> Any:
    """A mock that asks for tools once."""
    calls = json.dumps([{"name": name, "arguments": {"city": city}} for name in names for city in ("Rome", "Oslo")])
    return lambda: lmc.Mock(lambda prompt, ask: "It is warm." if "Oslo" in prompt else calls)


@lmc.function
def plain(s: Any) -> Any:
    agent_state = agent(q="Warm?", tools=[temperature])
    s += agent_state.text()
    return agent_state.ret_value


@lmc.function
def careful(s: Any) -> Any:
    agent_state = agent(q="Warm?", tools=[safe])
    s += agent_state.text()
    return agent_state.ret_value


@pytest.mark.parametrize("program, doubtful", [(plain, True), (careful, False)], ids=["plain", "idempotent"])
@pytest.mark.search
def test_what_call_tool_calls_is_called_once(program: Any, doubtful: bool, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path, wants("temperature", "sing"), doubtful=doubtful)


@lmc.function
async def awaits_plain(s: Any) -> Any:
    return (await waiting_agent.arun(q="Humid?", tools=[humidity])).text()


@lmc.function
async def awaits_careful(s: Any) -> Any:
    return (await waiting_agent.arun(q="Humid?", tools=[later])).text()


@pytest.mark.parametrize("program, doubtful", [(awaits_plain, True), (awaits_careful, False)], ids=["plain", "idempotent"])
@pytest.mark.search
def test_async_tools_that_call_tool_calls_are_called_once(program: Any, doubtful: bool, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path, wants("humidity"), doubtful=doubtful)


def test_a_tool_is_in_the_journal_by_its_name(tmp_path: Path) -> None:
    for n, way in enumerate((plain.run, lmc.compile(plain))):
        way(backend=wants("temperature")(), journal=tmp_path / str(n))
        effects = records.read(tmp_path / str(n)).runs[0].effects.values()
        assert [(e.name, e.shown) for e in effects] == [("temperature", "city='Rome'"), ("temperature", "city='Oslo'")]


@lmc.host(idempotent=True, timeout=60)
async def timed(q: str) -> str:
    CALLS.append(("timed", q))
    await asyncio.sleep(0)
    return q + "!"


@lmc.host(idempotent=True, timeout=0.02)
async def late(q: str) -> str:
    CALLS.append(("late", q))
    await asyncio.sleep(60)
    return q


class Client:
    @lmc.host(idempotent=True)
    async def get(self, q: str) -> str:
        CALLS.append(("Client.get", q))
        await asyncio.sleep(0)
        return q + "."


CLIENT = Client()


@lmc.function
async def waits_in_time(s: Any) -> Any:
    s += await timed("q") + lmc.gen("a", max_tokens=3)
    try:
        await late(s["a"])
    except lmc.HostTimeout:
        s += "late" + lmc.gen("b", max_tokens=3)
    client = CLIENT
    s += await client.get(s["b"])
    return s["b"], await asyncio.to_thread(safe, "Rome")


@pytest.mark.search
def test_functions_that_are_awaited_are_called_once(tmp_path: Path) -> None:
    """Those with a time-out, marked methods, and functions on a thread."""
    resumes_anywhere(waits_in_time, {}, tmp_path)
