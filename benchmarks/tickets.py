"""Tickets of a support desk, and what is asked of them: each answer is a word, number or address that the ticket states.

    ticket 17 ──► "Order NR-20418 is late. …" ──► few-shot prompt of a task ──► "NR-20418", which is right or is not

Tickets are made up from the sentences below, the same ones each time. Each has one order number, date, amount and address, in an order of its own;
six others are the worked examples of each prompt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lmc

NAMES = "Anna Ben Carla David Elena Frank Grace Henry Irene Jonas Karin Louis Maria Nadia Oscar Paula Robert Sofia Thomas Vera".split()
SURNAMES = "Adler Brandt Costa Diaz Evans Fischer Grant Hughes Ito Jensen Keller Lopez Meyer Novak Olsen Price Rossi Silva Turner Weber".split()
HOSTS = [a + b for a in "north river hill stone lake green wood silver".split() for b in "mail post side box bridge view field works".split()]
PRODUCTS = "kettle lamp printer camera radio blender".split()
LEVELS = "high low medium".split()

SENTENCES: Mapping[str, Sequence[str]] = {
    "order": ("The order number is {order}.", "I am writing about order {order}.", "My order {order} has a problem.", "It concerns order {order}."),
    "date": ("I bought it on {date}.", "It arrived on {date}.", "The parcel was delivered on {date}.", "This began on {date}."),
    "amount": ("I paid ${amount}.", "The bill says ${amount}.", "It cost me ${amount} in all.", "The price was ${amount}."),
    "mail": ("Please write to {mail}.", "You can reach me at {mail}.", "My address is {mail}.", "Send the answer to {mail}, please."),
    "product": (
        "The {product} does not switch on any more.",
        "My new {product} makes a strange noise.",
        "One part of the {product} is broken.",
        "The {product} came with a scratch.",
    ),
    "priority": (
        "The priority is {priority}.",
        "Please set its priority to {priority}.",
        "For us its priority is {priority}.",
        "I would call the priority {priority}.",
    ),
    "other": ("I have tried it twice.", "The manual did not help.", "My neighbour has the same one.", "I kept the box.", "Thank you for your help."),
}


@dataclass(frozen=True)
class Ticket:
    text: str
    facts: Mapping[str, str]


def tickets(n: int, seed: int = 0) -> list[Ticket]:
    rng = random.Random(seed)
    return [_ticket(rng, rng.choice(PRODUCTS), rng.choice(LEVELS)) for _ in range(n)]


def _ticket(rng: random.Random, product: str, priority: str) -> Ticket:
    name, surname = rng.choice(NAMES), rng.choice(SURNAMES)
    facts = {
        "order": f"{rng.choice('ABCDEFGHKLMNPRST')}{rng.choice('ABCDEFGHKLMNPRST')}-{rng.randrange(10000, 100000)}",
        "date": f"{rng.randrange(2021, 2026)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
        "amount": f"{rng.randrange(5, 400)}.{rng.randrange(100):02}",
        "mail": f"{name}.{surname}@{rng.choice(HOSTS)}.com".lower(),
        "product": product,
        "priority": priority,
    }
    body = [rng.choice(wordings).format(**facts) for wordings in SENTENCES.values()]
    rng.shuffle(body)
    return Ticket(f"{rng.choice(('Hello', 'Good morning', 'Dear team', 'Hi'))}, this is {name} {surname}. {' '.join(body)}", facts)


def _examples(seed: int) -> list[Ticket]:
    """Each product once and each priority twice: a small model repeats what examples have in common."""
    rng = random.Random(seed)
    return [_ticket(rng, product, priority) for product, priority in zip(PRODUCTS, LEVELS * 2, strict=True)]


EXAMPLES = _examples(3)


def _shown(label: str, answer: str) -> str:
    """The worked examples of a prompt; `answer` is a format of their facts."""
    return "".join(f"Ticket: {ticket.text}\n{label}: {answer.format(**ticket.facts)}\n\n" for ticket in EXAMPLES)


ORDER, AMOUNT = "[A-Z]{2}-[0-9]{5}", r"[1-9][0-9]{0,2}\.[0-9]{2}"
MAIL = r"[a-z]{1,12}\.[a-z]{1,12}@[a-z]{1,16}\.com"


@lmc.function
def order_number(s, text):
    s += _shown("Order number", "{order}") + f"Ticket: {text}\nOrder number:" + lmc.gen("order", max_tokens=12, regex=f" {ORDER}")
    return s["order"].strip()


@lmc.function
def date(s, text):
    s += _shown("Date", "{date}") + f"Ticket: {text}\nDate: " + lmc.gen("date", max_tokens=12, regex="20[0-9]{2}-[01][0-9]-[0-3][0-9]")
    return s["date"]


@lmc.function
def amount(s, text):
    s += _shown("Amount", "${amount}") + f"Ticket: {text}\nAmount: $" + lmc.gen("amount", max_tokens=8, regex=AMOUNT)
    return s["amount"]


@lmc.function
def mail(s, text):
    s += _shown("E-mail", "{mail}") + f"Ticket: {text}\nE-mail:" + lmc.gen("mail", max_tokens=24, regex=f" {MAIL}")
    return s["mail"].strip()


@lmc.function
def product(s, text):
    s += _shown("Product", "{product}") + f"Ticket: {text}\nProduct:" + lmc.select("product", choices=[f" {word}" for word in PRODUCTS])
    return s["product"].strip()


@lmc.function
def priority(s, text):
    s += _shown("Priority", "{priority}") + f"Ticket: {text}\nPriority:" + lmc.select("priority", choices=[f" {word}" for word in LEVELS])
    return s["priority"].strip()


RECORD = "order {order}, product {product}, paid ${amount}"


@lmc.function
def record(s, text):
    s += _shown("Record", RECORD) + f"Ticket: {text}\nRecord:"
    s += lmc.gen("record", max_tokens=32, regex=rf" order {ORDER}, product ({'|'.join(PRODUCTS)}), paid \${AMOUNT}")
    return s["record"].strip()


FIELDS = order_number, date, amount, mail, product, priority


@lmc.function
def form(s, text):
    """All fields, each by a request of its own."""
    asked = [field(text) for field in FIELDS]  # at the same time
    return ", ".join(each.ret_value for each in asked)


FORM = "{order}, {date}, {amount}, {mail}, {product}, {priority}"
RIGHT: Mapping[Any, str] = {
    order_number: "{order}", date: "{date}", amount: "{amount}", mail: "{mail}", product: "{product}", priority: "{priority}", record: RECORD,
    form: FORM,
}  # fmt: skip
