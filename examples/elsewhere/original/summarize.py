"""OpenAI, cookbook, "Summarizing long documents": a document in chunks, each summarized by itself."""

from openai import OpenAI

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


class Summarizer:
    def __init__(self, url):
        self.client = OpenAI(base_url=f"{url}/v1", api_key="none")

    def get_chat_completion(self, messages):
        response = self.client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=500)
        return response.choices[0].message.content

    def summarize(self, text):
        accumulated_summaries = []
        for chunk in chunk_on_delimiter(text, 500):
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": chunk}]
            accumulated_summaries.append(self.get_chat_completion(messages))
        return "\n\n".join(accumulated_summaries)


def main(url):
    return Summarizer(url).summarize(DOCUMENT)
