"""Facts from text as JSON: a regex is the record's shape, so every answer parses.

What to see here: no retry loop and no repair of broken JSON. The constraint leaves the model only the choices that
matter; the quotes, keys and commas between them are forced.

    lmc run examples/extraction.py:extract --arg text="Ada Lovelace, 36, was a mathematician in London."
"""

import json
from typing import Any

import lmc

RECORD = r'\{"name": "[A-Z][A-Za-z ]{1,30}", "age": (0|[1-9][0-9]{0,2}), "city": "[A-Z][A-Za-z ]{1,20}"\}'


@lmc.function
def extract(s: lmc.State, text: str) -> dict[str, Any]:
    s += lmc.user("Write the person's name, age and city as JSON.\nText: Bob Stone is 52 years old. He is a cook in Paris.")
    s += lmc.assistant('{"name": "Bob Stone", "age": 52, "city": "Paris"}')
    s += lmc.user("Text: " + text)
    s += lmc.assistant(lmc.gen("record", regex=RECORD, max_tokens=64))
    return json.loads(s["record"])


TEXTS = [
    "Maria Lopez, who is 34, teaches music at a school in Madrid.",
    "At 71, John Carter still repairs boats. He has lived in Boston all his life.",
]


def main() -> None:
    for text in TEXTS:
        print(extract.run(text=text, temperature=0).ret_value)


if __name__ == "__main__":
    main()
