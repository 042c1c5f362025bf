"""OpenAI, cookbook, "Orchestrating agents: routines and handoffs": a customer's routine, with functions that the model calls."""

import inspect
import json

from openai import OpenAI

SYSTEM = "You are a customer support agent for ACME Inc. Follow the routine: look the item up, then refund it if the customer wants that, and say so."


def look_up_item(search_query: str) -> str:
    """Use to find item ID. Search query can be a description or keywords."""
    return "item_132612938"


def execute_refund(item_id: str, reason: str) -> str:
    """Refund an item."""
    return f"success: {item_id} refunded"


def function_to_schema(func) -> dict:
    parameters = {name: {"type": "string"} for name in inspect.signature(func).parameters}
    schema = {"type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": func.__name__, "description": func.__doc__, "parameters": schema}}


def execute_tool_call(tool_call, tools_map):
    return tools_map[tool_call.function.name](**json.loads(tool_call.function.arguments))


def run_full_turn(client, system_message, tools, messages):
    tool_schemas = [function_to_schema(tool) for tool in tools]
    tools_map = {tool.__name__: tool for tool in tools}
    while True:
        response = client.chat.completions.create(
            model="m", messages=[{"role": "system", "content": system_message}, *messages], tools=tool_schemas, temperature=0, max_tokens=500,
        )
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for tool_call in message.tool_calls:
            result = execute_tool_call(tool_call, tools_map)
            messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": result})


def main(url):
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    messages = [{"role": "user", "content": "I want my money back for the black boots. They are too small."}]
    return run_full_turn(client, SYSTEM, [execute_refund, look_up_item], messages)
