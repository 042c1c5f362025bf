"""A hash of a function's source, by which data kept about a program is matched to that program."""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
import types
from typing import Any


def source_digest(fn: Any) -> str:
    """Return a hash of a function's source as Python parses it: comments and blank lines do not count; of its code if
    there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(fn))
        kept = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in (tokenize.COMMENT, tokenize.NL)]
        text = "".join(kept)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        code = getattr(fn, "__code__", None)
        text = repr(None if code is None else (code.co_code, code.co_names, [c for c in code.co_consts if not isinstance(c, types.CodeType)]))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
