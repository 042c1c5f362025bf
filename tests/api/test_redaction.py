"""URLs with secrets in them, whatever stands in them: nothing of a secret is in a message, a log, a warning, a journal or a page's data."""

from __future__ import annotations

import json
import logging
import traceback
import warnings
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import lmc
from lmc import named
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import Fault
from lmc.backend.api.redaction import addressed, authorization, check_url, redacted, secrets_of_url, shown
from lmc.backend.api.wire import parsed, refused
from lmc.errors import ParameterError
from tests.api.view import all_of

pytestmark = pytest.mark.api

HALVES = ("KVSQWXZT", "JGPLMNBR")  # of each secret, with whatever between them
BETWEEN = st.text(st.sampled_from("@/:?#%&=[]'\"\\ \n\t,;~é\u2028<>()aZ0-_.") | st.characters(exclude_categories=("Cs",)), max_size=6)
SECRETS = st.builds(lambda between: HALVES[0] + between + HALVES[1], BETWEEN)
USERS = st.sampled_from(("tom:", ":", "tom%40x:", "a@b:")) | st.just("")
"""Before a secret: none, and it is the user's name itself."""
HOSTS = st.sampled_from(("127.0.0.1:9", "127.0.0.1:9/v1", "127.0.0.1:9/", "[::1]:9", "127.0.0.1:99999", "127.0.0.1:x", "", "no such host"))
SCHEMES = st.sampled_from(("http://", "https://", "HTTP://", "ftp://", "://", "http:/", "", "http://http://", "//"))
NAMES = st.sampled_from(("key", "api-key", "X-Auth-Token", "q", ""))


@st.composite
def urls(draw: st.DrawFn) -> str:
    """A URL with a secret as its password, its user, in its query or behind it; percent-encoded or as it is."""
    secret = draw(SECRETS)
    told = quote(secret, safe="") if draw(st.booleans()) else secret
    host, scheme = draw(HOSTS), draw(SCHEMES)
    if draw(st.booleans()):
        return f"{scheme}{draw(USERS)}{told}@{host}"
    return f"{scheme}{host}{draw(st.sampled_from('?#'))}{draw(NAMES)}={told}"


def keeps(text: str) -> None:
    """Nothing of a secret is in a text."""
    assert not any(half in text for half in HALVES), text


@given(urls())
@example(f"http://tom:{HALVES[0]}@{HALVES[1]}@127.0.0.1:9")
@example(f"http://tom:12/{HALVES[0]}@127.0.0.1:9")
@example(f"http://tom:{HALVES[0]}//{HALVES[1]}@127.0.0.1:9")
@example(f"http://127.0.0.1:9\\@{HALVES[0]}")
@settings(max_examples=1_000, deadline=None)
def test_what_is_shown_of_a_url_has_no_secret(url):
    keeps(shown(url))
    try:
        check_url(url, "url=")
    except ParameterError as error:
        return keeps(str(error))
    keeps(addressed(url))
    sent = authorization(url)
    assert sent.keys() == {"authorization"}, "what a URL that may be used carries is sent, and not in the URL"
    for form in (url, json.dumps(url), repr(url), sent["authorization"]):
        keeps(redacted(f"at {form}!", secrets_of_url(url)))


@given(
    st.sampled_from(("http", "https")),
    st.sampled_from(("host", "127.0.0.1", "[::1]", "a.b.c")),
    st.sampled_from(("", ":80", ":65535")),
    st.sampled_from(("", "/", "/v1", "/a/b/")),
)
@settings(max_examples=100, deadline=None)
def test_a_url_without_secrets_is_shown_as_it_is(scheme, host, port, path):
    url = f"{scheme}://{host}{port}{path}"
    check_url(url, "")
    assert shown(url) == addressed(url) == url == shown(url.replace("://", "://tom:hunter2@"))


@lmc.function
def asks(s):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=4))


ONCE = Patience(0, 5.0, 0.0, 0.0)
OPENED = {
    "vllm": lambda url: lmc.VLLM(url, patience=ONCE),
    "vllm of two": lambda url: lmc.VLLM([url, "http://127.0.0.1:9"], patience=ONCE),
    "sglang": lambda url: lmc.SGLang(url, patience=ONCE),
    "openai": lambda url: lmc.OpenAI("m", base_url=url, patience=ONCE),
    "azure": lambda url: lmc.OpenAI("m", is_azure=True, azure_endpoint=url, api_key="k", api_version="1", patience=ONCE),
    "anthropic": lambda url: lmc.Anthropic("m", base_url=url, api_key="k", patience=ONCE),
    "openai by name": lambda url: named.open_backend(f"openai:m@{url}"),
    "vllm by name": lambda url: named.open_backend(f"vllm:{url}"),
    "a wrong name": lambda url: named.open_backend(f"vlm:{url}"),
    "its URL in place of a name": lambda url: named.open_backend(url),
}


class Heard(logging.Handler):
    """All that any library logs."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard(capfd):
    handler, root = Heard(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(1)
    lmc.config(log="backend,spec,prefix")
    yield handler
    lmc.config(log="")
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.mark.parametrize("kind", OPENED)
def test_no_backend_tells_a_secret_of_its_url(kind, heard, capfd, tmp_path):
    if kind == "anthropic":
        pytest.importorskip("anthropic")
    number = 0

    @given(urls())
    @example(f"http://tom:{HALVES[0]}%40{HALVES[1]}@127.0.0.1:9")
    @example(f"http://{HALVES[0]}{HALVES[1]}@127.0.0.1:9/v1")
    @example(f"http://127.0.0.1:9/?key={HALVES[0]}{HALVES[1]}")
    @settings(max_examples=40, deadline=None)
    def search(url):
        nonlocal number
        number += 1
        assume(kind not in ("a wrong name", "its URL in place of a name") or "://" in url)  # else it is a file's name, or a hub id
        journal = tmp_path / str(number)
        texts = list[str]()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                with OPENED[kind](url) as backend:
                    texts += [repr(backend), backend.name, json.dumps(backend.server_info(), default=str)]
                    if "name" not in kind:  # those are patient
                        asks.run(backend=backend, journal=journal).text()
            except lmc.LmcError as error:
                texts += ["".join(traceback.format_exception(error)), *all_of(error)]
        texts += [str(w.message) for w in warned] + heard.lines + list(capfd.readouterr())
        heard.lines.clear()
        if journal.exists():
            texts.append(journal.read_text("utf-8", "replace"))
        for text in texts:
            keeps(text)
        keeps(named.public(f"vllm:{url}"))
        if ":/" in url or "//" in url:  # else nobody can tell it from a model's name
            keeps(named.public(f"openai:m@{url}"))

    search()


KEY = "sk-KVSQWXZT/JGPLMNBR"


@pytest.mark.parametrize("spelled", [KEY, "".join(f"\\u{ord(c):04x}" for c in KEY), KEY.replace("/", "\\/"), "\\u0073" + KEY[1:]])
@pytest.mark.parametrize("body", ['{"choices": [{"message": {"content": "it is %s."}}]}', '{"%s": 1}', '[["%s"]]'])
def test_no_answer_has_the_key_however_json_spells_it(body, spelled):
    for text in (body % spelled, (body % spelled).encode()):
        assert KEY not in json.dumps(parsed(text, [KEY]), ensure_ascii=False)
        assert KEY in json.dumps(parsed(text), ensure_ascii=False), "the server did say it"


@pytest.mark.parametrize("before", range(470, 505, 3))
def test_no_cut_leaves_half_a_key(before):
    fault = refused(400, {}, json.dumps({"error": {"message": "x" * before + KEY + "y" * 2000}})).redacted([KEY])
    keeps(str(fault))
    assert len(fault.message) <= 500


@pytest.mark.parametrize("text", ['{"choices":' + "[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_an_answer_that_is_nested_too_deeply_is_a_fault(text):
    with pytest.raises(Fault, match="is not"):
        parsed(text, [KEY])
    assert refused(400, {}, text).status == 400


@pytest.mark.parametrize("url", ("http://127.0.0.1:9/?key=x", "http://127.0.0.1:9/v1#x", "http://127.0.0.1:9?x"))
def test_a_query_of_a_servers_url_is_refused(url):
    """Paths of requests were appended to it, so that none of them was asked for."""
    for make in (lmc.VLLM, lmc.SGLang, lambda url: lmc.OpenAI("m", base_url=url)):
        with pytest.raises(ParameterError, match=r"http://127\.0\.0\.1:9.* has a query or a fragment.*api_key="):
            make(url)


def test_a_password_that_is_not_encoded_says_so():
    for url in ("http://tom:pa/ss@127.0.0.1:9", "http://tom:pa@ss@127.0.0.1:9", "http://tom:12/34@127.0.0.1:9"):
        with pytest.raises(ParameterError, match="percent-encoded, such as %40"):
            lmc.VLLM(url)


@pytest.mark.parametrize("behind", ["\r", "\n", " ", "”"], ids=["cr", "lf", "space", "quote"])
@pytest.mark.parametrize(
    "make, variable",
    [(lmc.OpenAI, "OPENAI_API_KEY"), (lmc.Anthropic, "ANTHROPIC_API_KEY"), (lmc.SGLang, None), (lmc.VLLM, None)],
    ids=["openai", "anthropic", "sglang", "vllm"],
)
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(make, variable, behind, monkeypatch):
    """As a file with Windows line ends gives it. It was in the message of each failed request, escaped."""
    key = "".join(HALVES) + behind
    if variable is not None:
        monkeypatch.setenv(variable, key)
    what = "api_key" if variable is None else f"api_key=… or {variable}"
    for options in ({"api_key": key}, *([{}] if variable is not None else [])):
        with pytest.raises(ParameterError, match=f"{what} has characters that no HTTP header may have") as raised:
            make("http://127.0.0.1:9", **options)
        assert not any(half in str(raised.value) for half in HALVES)
    quoted = f"Illegal header value {('Bearer ' + key).encode()!r}"  # of a library that reads the environment itself
    assert behind == "”" or not any(half in redacted(quoted, [key]) for half in HALVES)


def test_the_environments_url_of_anthropic_is_asked_without_its_password(monkeypatch, heard):
    pytest.importorskip("anthropic")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://tom:{HALVES[0]}@127.0.0.1:9")
    with lmc.Anthropic("m", api_key="k", patience=ONCE) as backend, pytest.raises(lmc.BackendError, match=r"127\.0\.0\.1:9") as raised:
        asks.run(backend=backend).text()
    keeps(str(raised.value))
    for line in heard.lines:
        keeps(line)
