"""LangGraph, "Workflows and agents", functional API, "Prompt chaining": a joke, a gate, and two steps that better it."""

from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task


def make(url):
    llm = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=500)

    @task
    def generate_joke(topic: str):
        msg = llm.invoke(f"Write a short joke about {topic}")
        return msg.content

    def check_punchline(joke: str):
        if "?" in joke or "!" in joke:
            return "Fail"
        return "Pass"

    @task
    def improve_joke(joke: str):
        msg = llm.invoke(f"Make this joke funnier by adding wordplay: {joke}")
        return msg.content

    @task
    def polish_joke(joke: str):
        msg = llm.invoke(f"Add a surprising twist to this joke: {joke}")
        return msg.content

    @entrypoint()
    def prompt_chaining_workflow(topic: str):
        original_joke = generate_joke(topic).result()
        if check_punchline(original_joke) == "Fail":
            return original_joke
        improved_joke = improve_joke(original_joke).result()
        return polish_joke(improved_joke).result()

    return prompt_chaining_workflow


def main(url):
    return make(url).batch(["cats", "trains", "a question"])
