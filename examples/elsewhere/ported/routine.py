"""OpenAI, cookbook, "Orchestrating agents: routines and handoffs": a customer's routine, with functions that the model calls."""

import lmc

SYSTEM = "You are a customer support agent for ACME Inc. Follow the routine: look the item up, then refund it if the customer wants that, and say so."


def look_up_item(search_query: str) -> str:
    """Use to find item ID. Search query can be a description or keywords."""
    return "item_132612938"


def execute_refund(item_id: str, reason: str) -> str:
    """Refund an item."""
    return f"success: {item_id} refunded"


@lmc.function
def run_full_turn(s, system_message, tools, user):
    s += lmc.system(system_message) + lmc.user(user)
    while True:
        s += lmc.assistant(lmc.gen("answer", tools=tools, max_tokens=500))
        tool_calls = s.get_meta_info("answer")["tool_calls"]
        if not tool_calls:
            return s["answer"]
        for tool_call in tool_calls:
            s += lmc.tool_result(tool_call, lmc.call_tool(tool_call, tools))


def main(url):
    backend = lmc.OpenAI("m", base_url=f"{url}/v1", api_key="none")
    user = "I want my money back for the black boots. They are too small."
    return lmc.compile(run_full_turn)(SYSTEM, [execute_refund, look_up_item], user, backend=backend, temperature=0).ret_value
