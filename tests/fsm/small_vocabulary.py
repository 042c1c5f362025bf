"""A byte-level BPE vocabulary of some hundred tokens, trained on a few lines, and the small model's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lmc.backend.engine.gguf_tokenizer import from_gguf
from lmc.backend.engine.tokenizer import Tokenizer as Words
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary

TEXT = [
    '{"name": "Harry", "orderId": 12, "orderName": "order", "order": "orders"}',
    '{"grade": "A+", "why": "clear and clean"} yes":  no": "yes": "no"',
    '    "house": "Gryffindor",\n        "length": 10.5\n    },\n  世界和平 世界大战 é 😀 the  and   then\n\n',
]
EOS, SPECIAL = 0, 1


@lru_cache
def trained() -> Tokenizer:
    """The tokenizer. Id 0 is EOS, 1 is special."""
    raw = Tokenizer(models.BPE())
    raw.decoder = decoders.ByteLevel()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        TEXT * 3,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["</s>", "<|sys|>"],
            initial_alphabet=alphabet,
            show_progress=False,
            min_frequency=2,
        ),
    )
    raw.encode_special_tokens = True
    return raw


@lru_cache
def small() -> tuple[Vocabulary, Callable[[str], list[int]]]:
    """The vocabulary and its encoder; the last id has the bytes of another token."""
    raw = trained()
    byte_of = {char: byte for byte, char in byte_alphabet().items()}
    spelled = [raw.id_to_token(i) for i in range(raw.get_vocab_size())]
    tokens = [bytes(byte_of[c] for c in s) if i > 1 else s.encode() for i, s in enumerate(spelled)]
    vocabulary = Vocabulary([*tokens, b"order"], [EOS], [SPECIAL], size=len(tokens) + 40)
    return vocabulary, lambda text: raw.encode(text, add_special_tokens=False).ids


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


@lru_cache
def smollm2() -> tuple[Vocabulary, Callable[[str], list[int]]]:
    """The small model's vocabulary and encoder; for tests marked `model`."""
    tokens = smollm2_words()
    vocabulary = Vocabulary(tokens.byte_table, tokens.eos_token_ids, tokens.special_ids)
    return vocabulary, lambda text: tokens.encode([text], at_start=False)


@lru_cache
def smollm2_words() -> Words:
    """The small model's tokenizer without the model."""
    from lmc.backend.engine.models import gguf

    return from_gguf(gguf.read(gguf.embedded_path()).metadata, "smollm2", eos_token_ids=(2,))


@lru_cache
def small_words() -> Words:
    """The small vocabulary as a backend wants it."""
    return Words(trained(), eos_token_ids=(EOS,))


def set_bits(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def legal(automaton: TokenAutomaton, state: int) -> list[int]:
    """The tokens of a state's mask."""
    return set_bits(automaton.mask(state))


def stepped(automaton: TokenAutomaton, state: int) -> list[int]:
    """The same by definition: the tokens, one by one, that lead somewhere."""
    return [token for token in range(len(automaton.vocabulary.tokens)) if automaton.next(state, token) >= 0]
