"""Few-shot classification of a JSONL file: the examples are shared by all items, and `select` scores the labels.

What to see here: every item of the batch begins with the same few shots; compiled, they are computed once for the
whole file. `select` never answers anything but a label.

    lmc run examples/classify.py:classify --input examples/data/reviews.jsonl --output labels.jsonl
"""

import json
from pathlib import Path

import lmc

LABELS = ["positive", "negative"]
DATA = Path(__file__).parent / "data" / "reviews.jsonl"
SHOTS = [
    ("The food was delicious and the staff were kind.", "positive"),
    ("The room was dirty and nobody helped us.", "negative"),
    ("I love this book and read it twice.", "positive"),
    ("It broke after one day. A waste of money.", "negative"),
]


@lmc.function
def classify(s: lmc.State, text: str) -> str:
    s += "Is the review positive or negative?\n\n"
    for shot, label in SHOTS:
        s += f"Review: {shot}\nLabel: {label}\n\n"
    s += "Review: " + text + "\nLabel: " + lmc.select("label", choices=LABELS)
    return s["label"]


def main() -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    states = lmc.compile(classify).batch([{"text": row["text"]} for row in rows], progress=True)
    right = sum(state.ret_value == row["label"] for state, row in zip(states, rows))
    print(f"{right} of {len(rows)} labels are right")


if __name__ == "__main__":
    main()
