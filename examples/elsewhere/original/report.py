"""LangGraph, "Workflows and agents", functional API, "Orchestrator-worker": a plan, its sections side by side, one report."""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task
from pydantic import BaseModel, Field


class Section(BaseModel):
    name: str = Field(description="Name for this section of the report.")
    description: str = Field(description="Brief overview of the main topics and concepts to be covered in this section.")


class Sections(BaseModel):
    sections: list[Section] = Field(description="Sections of the report.")


def make(url):
    llm = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=1000)
    planner = llm.with_structured_output(Sections)

    @task
    def orchestrator(topic: str):
        report_sections = planner.invoke([
            SystemMessage(content="Generate a plan for the report."),
            HumanMessage(content=f"Here is the report topic: {topic}"),
        ])
        return report_sections.sections

    @task
    def llm_call(section: Section):
        result = llm.invoke([
            SystemMessage(content="Write a report section."),
            HumanMessage(content=f"Here is the section name: {section.name} and description: {section.description}"),
        ])
        return result.content

    @task
    def synthesizer(completed_sections: list[str]):
        return "\n\n---\n\n".join(completed_sections)

    @entrypoint()
    def orchestrator_worker(topic: str):
        sections = orchestrator(topic).result()
        section_futures = [llm_call(section) for section in sections]
        final_report = synthesizer([section_fut.result() for section_fut in section_futures]).result()
        return final_report

    return orchestrator_worker


def main(url):
    return make(url).invoke("Create a report on LLM scaling laws")
