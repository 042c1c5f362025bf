"""LangGraph, "Workflows and agents", functional API, "Prompt chaining": a joke, a gate, and two steps that better it."""

import lmc


@lmc.function
def llm(s, prompt: str):
    s += lmc.user(prompt) + lmc.assistant(lmc.gen("content", max_tokens=500))


def check_punchline(joke: str):
    if "?" in joke or "!" in joke:
        return "Fail"
    return "Pass"


@lmc.function
def prompt_chaining_workflow(s, topic: str):
    original_joke = llm(f"Write a short joke about {topic}")["content"]
    if check_punchline(original_joke) == "Fail":
        return original_joke
    improved_joke = llm(f"Make this joke funnier by adding wordplay: {original_joke}")["content"]
    return llm(f"Add a surprising twist to this joke: {improved_joke}")["content"]


def main(url):
    backend = lmc.OpenAI("m", base_url=f"{url}/v1", api_key="none")
    workflow = lmc.compile(prompt_chaining_workflow, backend=backend)
    return [state.ret_value for state in workflow.batch([{"topic": topic} for topic in ("cats", "trains", "a question")], temperature=0)]
