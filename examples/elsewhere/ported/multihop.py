"""DSPy, tutorial "Multi-hop search": queries that depend on the notes of the hops before."""

import dspy

import lmc

CORPUS = [
    "Aldery | The harbour of Aldery was dug in 1874 by the engineer Ida Holm.",
    "Ida Holm | Ida Holm was born in Norhavn and wrote a book on tides.",
    "Norhavn | Norhavn has a university that was founded in 1640.",
    "Tides | The tides at Aldery reach four metres in spring.",
]


def search(query: str, k: int) -> list[str]:
    words = set(query.lower().split())
    return sorted(CORPUS, key=lambda passage: -len(words & set(passage.lower().split())))[:k]


class Hop(dspy.Module):
    def __init__(self, num_docs=2, num_hops=3):
        super().__init__()
        self.num_docs, self.num_hops = num_docs, num_hops
        self.generate_query = dspy.ChainOfThought("claim, notes -> query")
        self.append_notes = dspy.ChainOfThought("claim, notes, context -> new_notes: list[str], titles: list[str]")

    def forward(self, claim):
        notes, titles = [], []
        for _ in range(self.num_hops):
            query = self.generate_query(claim=claim, notes=notes).query
            context = search(query, k=self.num_docs)
            prediction = self.append_notes(claim=claim, notes=notes, context=context)
            notes.extend(prediction.new_notes)
            titles.extend(prediction.titles)
        return dspy.Prediction(notes=notes, titles=titles)


def main(url):
    backend = lmc.OpenAI("m", base_url=f"{url}/v1", api_key="none")
    lm = lmc.dspy.LM(backend, temperature=0, max_tokens=1000, cache=False)
    hop = lmc.compile(Hop())
    with dspy.context(lm=lm):
        found = hop(claim="The engineer of Aldery's harbour was born in a town with a university.")
    return [found.notes, found.titles]
