"""OpenAI, cookbook, "Summarizing long documents": a document in chunks, each summarized by itself."""

import lmc

SYSTEM = "Rewrite this text in summarized form."
DOCUMENT = " ".join(
    f"Chapter {i} tells of the year {1870 + i} in Aldery, when the harbour had {3 * i + 1} ships and the market {i % 7 + 2} days." for i in range(24)
)


def chunk_on_delimiter(text, most, delimiter="."):
    chunks, current = [], ""
    for sentence in text.split(delimiter):
        if current and len(current) + len(sentence) > most:
            chunks.append(current)
            current = ""
        current += sentence + delimiter
    chunks.append(current)
    return chunks


@lmc.function
def get_chat_completion(s, system, user):
    s += lmc.system(system) + lmc.user(user) + lmc.assistant(lmc.gen("content", max_tokens=500))


@lmc.function
def summarize(s, text):
    accumulated_summaries = []
    for chunk in chunk_on_delimiter(text, 500):
        accumulated_summaries.append(get_chat_completion(SYSTEM, chunk)["content"])
    return "\n\n".join(accumulated_summaries)


def main(url):
    backend = lmc.OpenAI("m", base_url=f"{url}/v1", api_key="none")
    return lmc.compile(summarize)(DOCUMENT, backend=backend, temperature=0).ret_value
