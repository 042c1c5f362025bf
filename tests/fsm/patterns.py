"""Regexes for the tests of the automata, words to try on them, and a generator of more of both."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from lmc.fsm.nodes import Chars, Concat, Node, Repeat

NAMES = "|".join(
    a + b
    for a in ("Har", "Ron", "Her", "Dra", "Nev", "Lun", "Gin", "Alb", "Sev", "Rub")
    for b in ("ry", "ald", "mione", "co", "ville")
)
JUDGE = r'\{"summary": "[\w\d\s]+\.", "grade": "[ABCD][+-]?"\}'
CHARACTER = (
    r'\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n    "occupation": "(student|teacher|auror|minister)",\n'
    r'    "wand": \{\n        "wood": "[\w\d\s]{1,16}",\n        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n'
    r'    "alive": "(Alive|Deceased)",\n    "patronus": "[\w\d\s]{1,16}"\n\}'
)

ASCII = [
    JUDGE,
    CHARACTER,
    NAMES,
    r"[\w\s]{1,200}",
    r"[-+]?[0-9]+[ \n]*",
    r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?",
    r"(True|False)",
    r'"[\w\d\s]*"',
    r'"([^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
    r"(?P<name>a+)(?:b|c)*",
    r"(?i)yes|no",
    r"(?i:ab)c",
    r"(?i)a(?-i:b)c",
    r"(?i)[x-z]|[^kz]",
    r"(?s).{1,2}",
    r"(?s:.)x.",
    r".{1,3}",
    r".*",
    r".+\.",
    r"[^\s\d]{1,3}",
    r"[^\W_]+",
    r"a{,3}b",
    r"a{2}",
    r"a{2,}",
    r"a{0}",
    r"(ab{0}c){1,2}",
    r"(a?){4}",
    r"(a*)*",
    r"(a*b?)+c",
    r"(?:a|ab)(?:c|bcd)d*",
    r"[]a]+",
    r"[^]a]",
    r"[a\-z]",
    r"[-az]",
    r"[\]\[^]",
    r"\Aab\Z",
    r"^(a|^b)$",
    r"^ab$",
    r"(^a|b$)",
    r"(?:^|x)a",
    r"\u00e9\x41\t\\",
    r"[\u4e00-\u9fff]+",
    r"\s\S\d\D\w\W",
    r"a*?b+?c??",
    r"(a|b|)",
    r"a|",
    r"()",
    r"",
    r"\.\*\+\?\(\)\[\]\{\}\|\^\$",
    r"(?x) a b # comment",
    r"a(?#note)b",
    r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{1,60}"\}',
    r"世界(和平|大战)",
    r"[世界和]{2}",
    r"[^世]",
    r"[\U0001F600-\U0001F64F]",
    r"[é-\U0001F600]{1,2}",
    r"[\x00-\x7f]|[\x80-\u07ff]b|[\u0800-\uffff]c|[\U00010000-\U0010ffff]d",
    r"[\u07fe-\u0801]+",
    r"[\ud7fe-\ue001]",
    r"\n|\r\n",
    r"/#&~'\"",
    r"(a|b)*a(a|b){4}",
    r"(?:[a-z]{1,3},)*[a-z]{1,3}",
    r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)",
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,4}",
    r"(Thought: [^\n]*\n)?Action: (Search|Finish)\[[^\]]{1,20}\]",
    r"(?i)(?:mon|tues|wednes|thurs|fri|satur|sun)day",
    r"orderId|orderName|order",
    r'\{"order(Id|Name)": "\w+"\}',
    r'"(yes|no)"(: 1)?',
    r"x{3}y?z{2,4}",
]
UNICODE = [
    r"(?u)\w+",
    r"(?u)\d\s\w",
    r"(?u)[^\w]",
    r"(?iu)straße",
    r"(?iu)[k-m]é",
    r"(?u:\w)\w",
    r"(?iu)[^k]",
    r"(?u)\W\S\D",
]
HAND_WRITTEN = ASCII + UNICODE

LETTERS = "aAbBcCdxyYzZ019_-+. \n\t\r\x0b\x1c\\\"'/{}[]()|^$*?,:éÉßſ世界和平大战😀kK\u212a\u00a0٣\u07ff\u0800\ud7ff\ue000\U0010ffff𐐀𐐨İıσςΣǆǅsSiI"


def word_of(tree: Node, rng: random.Random) -> str:
    """A random text of the tree's language."""
    if isinstance(tree, Chars):
        low, high = rng.choice(tree.ranges)
        return chr(rng.choice((low, high, rng.randint(low, high))))
    if isinstance(tree, Concat):
        return "".join(word_of(part, rng) for part in tree.parts)
    if isinstance(tree, Repeat):
        most = tree.low + 3 if tree.high is None else min(tree.high, tree.low + 6)
        return "".join(word_of(tree.body, rng) for _ in range(rng.randint(tree.low, most)))
    return word_of(rng.choice(tree.arms), rng)


def mutated(word: str, rng: random.Random) -> str:
    """A text close to `word`: a character put in, left out or changed."""
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(0, len(word))
        word = word[:at] + rng.choice(["", rng.choice(LETTERS)]) + word[at + rng.randint(0, 1) :]
    return word


_ATOMS = st.sampled_from(
    ["a", "b", "c", "ab", "é", "世", "😀", ".", r"\d", r"\w", r"\s", r"\W", r"\.", "[ab]", "[^a]", "[a-c]", "[^b-z世]", "[é-世]",
     r"[\w-]", r"[^\s\d]", "0", "_", " ", r"\n", '"', "(?i:k)", "(?s:.)"]
)  # fmt: skip
_COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "{0,4}"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda arms: f"(?:{arms[0]}|{arms[1]})"),
        st.tuples(inner, _COUNTS).map(lambda p: f"({p[0]}){p[1]}"),
    )


regexes = st.recursive(_ATOMS, _larger, max_leaves=8)

_CASED = st.sampled_from(
    ["k", "S", "ß", "ſ", "İ", "ı", "σ", "Σ", "ǆ", "𐐀", "𐐨", "[𐐀i]", "[𐐨k]", "[k-𐐀]", "[^s𐐀-𐐨]", r"[^\Wé]", r"[\d𐐀]", r"[^\S😀]", "(?:𐐀|i)",
     "(?i:s)", r"(?a:\w)", r"(?u:\s)"]
)  # fmt: skip
flagged_regexes = st.tuples(
    st.sampled_from(["", "(?i)", "(?u)", "(?iu)", "(?u)(?s:.)?", "(?iu)"]), st.recursive(_CASED | _ATOMS, _larger, max_leaves=6)
).map("".join)
