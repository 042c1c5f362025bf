"""SGLang, README, "Parallelism": two tips expanded side by side, and a summary."""

import sglang as sgl


@sgl.function
def tip_suggestion(s):
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary, " + sgl.gen("summary", max_tokens=128)


def main(url):
    backend = sgl.RuntimeEndpoint(url)
    state = tip_suggestion.run(temperature=0, backend=backend)
    return [state.text(), state["summary"]]
