"""LangGraph, "Workflows and agents", functional API, "Orchestrator-worker": a plan, its sections side by side, one report."""

from pydantic import BaseModel, Field

import lmc


class Section(BaseModel):
    name: str = Field(description="Name for this section of the report.")
    description: str = Field(description="Brief overview of the main topics and concepts to be covered in this section.")


class Sections(BaseModel):
    sections: list[Section] = Field(description="Sections of the report.")


@lmc.function
def orchestrator(s, topic: str):
    s += lmc.system("Generate a plan for the report.") + lmc.user(f"Here is the report topic: {topic}")
    s += lmc.assistant(lmc.gen("plan", dtype=Sections, max_tokens=1000))


@lmc.function
def orchestrator_worker(s, topic: str):
    sections = orchestrator(topic).parsed("plan").sections
    forks = s.fork(len(sections))
    for f, section in zip(forks, sections):
        f += lmc.system("Write a report section.")
        f += lmc.user(f"Here is the section name: {section.name} and description: {section.description}")
        f += lmc.assistant(lmc.gen("text", max_tokens=1000))
    return "\n\n---\n\n".join(f["text"] for f in forks)


def main(url):
    backend = lmc.OpenAI("m", base_url=f"{url}/v1", api_key="none")
    return lmc.compile(orchestrator_worker)("Create a report on LLM scaling laws", backend=backend, temperature=0).ret_value
