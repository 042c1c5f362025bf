"""JSON Schema's `format`s as languages of characters, by which answers are generated: every text of them is valid; for a wide format, a simple
subset. Hosts of URIs and e-mail addresses are of any length, as their grammars have them (RFC 3986; RFC 5321, 4.1.2). Beside them tests of texts
that others have written, in any form that is in use."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache

from lmc.fsm.json_text import lengths
from lmc.fsm.nodes import Node
from lmc.fsm.regex import parse

_DD28, _DD30 = r"(0[1-9]|1[0-9]|2[0-8])", r"(0[1-9]|[12][0-9]|30)"
_YEAR = r"(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTHS = r"(0[48]|[2468][048]|[13579][26])"
_LEAP = rf"([0-9]{{2}}{_FOURTHS}|{_FOURTHS}00)"
_DATE = rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-{_DD30}|02-{_DD28})|{_LEAP}-02-29)"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_H = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        rf"({_H}:){{7}}{_H}",
        rf"::({_H}(:{_H}){{0,6}})?",
        *(rf"{_H}(:{_H}){{{n}}}::({_H}(:{_H}){{0,{5 - n}}})?" for n in range(6)),
        rf"{_H}(:{_H}){{6}}::",
        rf"({_H}:){{6}}{_IPV4}",
        rf"::({_H}:){{0,5}}{_IPV4}",
        *(rf"{_H}(:{_H}){{{n}}}::({_H}:){{0,{4 - n}}}{_IPV4}" for n in range(5)),
    ]
)
_LABEL = r"[A-Za-z0-9](-?[A-Za-z0-9]){0,15}"  # at most 31 characters; two hyphens stand in encoded names only
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_NAME = r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*"  # of a host, where the grammar of the format counts no characters
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_PATH = r"([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
_NUMBER = r"(0|[1-9][0-9]{0,5})"  # longer ones exceed a datetime.timedelta
_DAY_TIME = rf"(T({_NUMBER}H({_NUMBER}M({_NUMBER}S)?)?|{_NUMBER}M({_NUMBER}S)?|{_NUMBER}S))"

_URI = rf"[A-Za-z][A-Za-z0-9+.-]*://{_NAME}(:[0-9]{{1,4}})?(/{_PATH})?(\?{_PATH})?(#{_PATH})?"
_VARIABLE = r"[A-Za-z0-9_]+(:[1-9][0-9]{0,3}|\*)?"
_SEGMENTS = r"([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*/?)?"
_REGEX_ATOM = r"([A-Za-z0-9 _/:,@%&=~!;'\"<>-]|\\[dDwWsS.\\/*+?()\[\]{}|^$]|\.|\[\^?([A-Za-z0-9_ ]|a-z|A-Z|0-9|\\[dws])+\])"

_PATTERNS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P({_NUMBER}W|({_NUMBER}Y({_NUMBER}M({_NUMBER}D)?)?|{_NUMBER}M({_NUMBER}D)?|{_NUMBER}D){_DAY_TIME}?|{_DAY_TIME})",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_NAME}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "byte": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?",
    "json-pointer": r"(/([^/~]|~[01])*)*",
    "relative-json-pointer": r"(0|[1-9][0-9]{0,5})(#|(/([^/~]|~[01])*)*)",
    "uri-reference": rf"({_URI}|/?{_SEGMENTS}(\?{_PATH})?(#{_PATH})?)",
    "uri-template": rf"({_PATH}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "iri": _URI,
    "iri-reference": rf"({_URI}|/?{_SEGMENTS}(\?{_PATH})?(#{_PATH})?)",
    "idn-email": rf"{_ATOM}(\.{_ATOM})*@{_NAME}",
    "idn-hostname": _HOST,
    "regex": rf"\^?({_REGEX_ATOM}[*+?]?)*\$?",
}
FORMATS = tuple(_PATTERNS)
ANY_STRING = ("binary", "password", "path", "file-path", "directory-path")  # OpenAPI's, and pydantic's for bytes and paths: they do not constrain the text
NUMBERS: Mapping[str, tuple[Decimal, Decimal] | None] = {  # OpenAPI's: the least and the greatest; None: any number
    "int32": (Decimal(-(1 << 31)), Decimal((1 << 31) - 1)),
    "int64": (Decimal(-(1 << 63)), Decimal((1 << 63) - 1)),
    "float": None,
    "double": None,
}


def _uri(n: int) -> str:
    path = _PATH[:-1] + f"{{0,{n}}}"
    return rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}://{_HOST}(:[0-9]{{1,4}})?(/{path})?(\?{path})?(#{path})?"


_SHORTER: Mapping[str, tuple[str, ...]] = {  # simple subsets that fit a `maxLength`, the widest first
    "uri": tuple(_uri(n) for n in (80, 20, 5)),
    "email": (rf"{_ATOM[:-1]}{{1,20}}(\.{_ATOM[:-1]}{{1,20}}){{0,2}}@{_HOST}",),
}


@lru_cache
def language(name: str, longest: int | None = None) -> Node:
    """Return the texts of a format; KeyError for one that is not in FORMATS. For a wide format, a subset within
    `longest` characters, if there is one: counting them in addition to the format would take an automaton a thousand
    times the size."""
    trees = map(parse, _SHORTER.get(name, ()) if longest is not None else ())
    fitting = (tree for tree in trees if (lengths(tree)[1] or 0) <= (longest or 0))
    return next(fitting, None) or parse(_PATTERNS[name])


# -- texts that others have written ------------------------------------------------------------------------------------

_WRITTEN_TIME = r"([01]\d|2[0-3]):[0-5]\d(:([0-5]\d|60)([.,]\d+)?)?\s?(z|[+-]([01]\d|2[0-3]):?[0-5]\d)?"
_IN_URI = r"[^\s<>\"{}|\\^`]*"
_PARTS_OF_NAME = r"[^\s/:@.]+(\.[^\s/:@.]+)*\.?"
_ADDRESS = r"(?s:.+)@(\[[^\s\]@]+\]|[^\s@]+)"
_WRITTEN: Mapping[str, str] = {
    "date": r"\d{4}-\d\d-\d\d",
    "time": _WRITTEN_TIME,
    "date-time": rf"\d{{4}}-\d\d-\d\d[t ]{_WRITTEN_TIME}",
    "duration": r"[+-]?p(?=[\dt])(\d+([.,]\d+)?[ymwd])*(t(\d+([.,]\d+)?[hms])+)?",
    "email": _ADDRESS,
    "idn-email": _ADDRESS,
    "hostname": _PARTS_OF_NAME,
    "idn-hostname": _PARTS_OF_NAME,
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "uri": rf"[a-z][a-z0-9+.-]*:{_IN_URI}",
    "iri": rf"[a-z][a-z0-9+.-]*:{_IN_URI}",
    "uri-reference": _IN_URI,
    "iri-reference": _IN_URI,
    "json-pointer": r"(/([^/~]|~[01])*)*",
    "relative-json-pointer": r"(0|[1-9]\d*)(#|(/([^/~]|~[01])*)*)",
}
_READ: Mapping[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": lambda text: date.fromisoformat(text[:10]),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
}


def may_be(name: str, text: str) -> bool:
    """Return whether a text is of a format, in any form that is in use, such as a time without an offset. True for formats without such a test."""
    if name in _WRITTEN and re.fullmatch(_WRITTEN[name], text, re.ASCII | re.IGNORECASE) is None:
        return False
    try:
        if name in _READ:
            _READ[name](text)
    except ValueError:
        return False
    return True
