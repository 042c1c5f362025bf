"""A model that calls functions: `gen(tools=…)` on the small model.

What to see here: one shown call teaches even a small model when to call; names and arguments are forced to the functions' own
(a call of another function, or with a misspelt argument, cannot be written); the loop and the calls are plain Python.

    lmc run examples/tools.py:helper --arg question="How warm is it in Rome?" --temperature 0
"""

import lmc

CITIES = {"oslo": -3, "rome": 21, "lima": 19}


def temperature(city: str) -> str:
    """The temperature in a city, in degrees Celsius."""
    return f"{CITIES[city.lower()]} degrees Celsius" if city.lower() in CITIES else f"nothing is known of {city}"


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


TOOLS = [temperature, add]
SHOWN = {"id": "call_0", "name": "temperature", "arguments": {"city": "Oslo"}}


@lmc.function
def helper(s: lmc.State, question: str, most_calls: int = 3) -> str:
    s += lmc.system("You answer questions with the help of functions.")
    s += lmc.user("How warm is it in Oslo?") + lmc.assistant("")
    s += lmc.tool_result(SHOWN, temperature("Oslo")) + lmc.assistant("It is -3 degrees Celsius in Oslo.")
    s += lmc.user(question)
    for _ in range(most_calls):
        s += lmc.assistant(lmc.gen("answer", tools=TOOLS, max_tokens=64))
        calls = s.get_meta_info("answer")["tool_calls"]
        if not calls:
            return s["answer"]
        for call in calls:
            print("call:", call["name"], call["arguments"])
            s += lmc.tool_result(call, lmc.call_tool(call, TOOLS))
    s += lmc.assistant(lmc.gen("answer", max_tokens=64))
    return s["answer"]


def main() -> None:
    for question in ("How warm is it in Rome?", "How warm is it in Lima?"):
        print(helper.run(question=question, temperature=0).ret_value)


if __name__ == "__main__":
    main()
