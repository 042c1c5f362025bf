"""Anthropic, cookbook, "Orchestrator-workers": a model splits a task, and a worker writes each part."""

import anthropic

ORCHESTRATOR_PROMPT = """Analyze this task and break it down into 2-3 distinct approaches:

Task: {task}

Return your response in this format:
<tasks>
<task>
<type>formal</type>
<description>Write a precise, technical version</description>
</task>
</tasks>"""
WORKER_PROMPT = """Generate content based on:
Task: {original_task}
Style: {task_type}
Guidelines: {task_description}

Return your response in <response> tags."""


def parse_tasks(tasks_xml):
    tasks, current = [], {}
    for line in tasks_xml.split("\n"):
        line = line.strip()
        if line.startswith("<task>"):
            current = {}
        elif line.startswith("<type>"):
            current["type"] = line[6:-7].strip()
        elif line.startswith("<description>"):
            current["description"] = line[13:-14].strip()
        elif line.startswith("</task>"):
            tasks.append(current)
    return tasks


class FlexibleOrchestrator:
    def __init__(self, url):
        self.client = anthropic.Anthropic(base_url=url, api_key="none")

    def llm_call(self, prompt):
        response = self.client.messages.create(model="m", max_tokens=1000, messages=[{"role": "user", "content": prompt}])
        return response.content[0].text

    def process(self, task):
        response = self.llm_call(ORCHESTRATOR_PROMPT.format(task=task))
        worker_results = []
        for task_info in parse_tasks(response):
            worker_input = WORKER_PROMPT.format(original_task=task, task_type=task_info["type"], task_description=task_info["description"])
            worker_results.append([task_info["type"], self.llm_call(worker_input)])
        return worker_results


def main(url):
    return FlexibleOrchestrator(url).process("Write a product description for a new eco-friendly water bottle")
