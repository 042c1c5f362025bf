"""A conversation of several turns: what was said stays in the state, and nothing is computed twice.

What to see here: each turn adds to the same prompt, so the model's memory of the conversation (its KV cache) grows by
the new turn only. `state.messages()` is the conversation as the chat APIs write it.

    lmc run examples/chat.py:chat --arg 'questions=["What is the capital of France?", "And of Italy?"]' --max-tokens 32
"""

import lmc


@lmc.function
def chat(s: lmc.State, questions: list[str]) -> list[str]:
    s += lmc.system("You are a helpful assistant. You answer in one short sentence.")
    answers: list[str] = []
    for question in questions:
        s += lmc.user(question)
        s += lmc.assistant(lmc.gen("answer", max_tokens=48, stop="\n"))
        answers.append(s["answer"])
    return answers


def main() -> None:
    state = chat.run(questions=["What is the capital of France?", "Which river runs through it?"], temperature=0)
    for message in state.messages():
        print(f"{message['role']:>9}: {message['content']}")


if __name__ == "__main__":
    main()
