"""A browser's world: pages of other origins ask nothing, other names are refused; keys, their limits, the log of who asked."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from io import StringIO
from pathlib import Path

import httpx
import pytest

import lmc
from lmc.errors import ParameterError
from lmc.serve.audit import AuditEntry, AuditLog
from lmc.serve.errors import ApiError
from lmc.serve.keys import Account, Key, KeyLimits, Keyring, digest_of, line_of, new_key, parse
from lmc.serve.main import Tls, loopback_names
from tests.serve.serving import HELLO, ByHand, metric, post, running, talk, talking, until
from tests.serve.test_process import served
from tests.serve.test_programs import PROGRAMS

pytestmark = pytest.mark.api
CHAT = "/v1/chat/completions"
BODY = json.dumps(HELLO).encode()


# -- pages ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json", "application/jsonp"))
@pytest.mark.parametrize("path", (CHAT, "/v1/completions", "/programs/greet"))
def test_a_body_that_is_not_said_to_be_json_is_a_415(kind, path):
    """A page of another origin may send these kinds without asking first."""
    mock = lmc.Mock()
    answer = post(path, BODY, mock, PROGRAMS, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["type"]) == (415, "invalid_request_error")
    assert "Content-Type: application/json" in answer.json()["error"]["message"]
    assert not mock.call_log


@pytest.mark.parametrize("kind", ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"))
def test_json_by_any_name(kind):
    assert post(CHAT, BODY, headers={"content-type": kind}).status_code == 200


def test_a_body_that_is_said_to_be_compressed_is_a_415():
    assert post(CHAT, BODY, headers={"content-encoding": "identity"}).status_code == 200
    answer = post(CHAT, BODY, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415 and "Content-Encoding" in answer.json()["error"]["message"]


async def test_only_names_of_this_machine_are_answered():
    names = loopback_names("127.0.0.1") | {"lmc.example.org"}
    async with talking(hosts=names) as client:
        for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "LOCALHOST", "lmc.example.org:443"):
            assert (await client.post(CHAT, json=HELLO, headers={"host": host})).status_code == 200, host
        for host in ("evil.example.org", "evil.example.org:8000", "localhost.evil.org", "127.0.0.1.evil.org", "", "[::1].evil.org", "0.0.0.0"):
            for ask in (
                lambda h: client.post(CHAT, json=HELLO, headers=h),
                lambda h: client.get("/v1/models", headers=h),
                lambda h: client.get("/health", headers=h),
            ):
                answer = await ask({"host": host})
                assert (answer.status_code, answer.json()["error"]["code"]) == (421, "invalid_host"), host


def test_a_server_on_loopback_checks_the_name():
    with served() as (url, _):
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/health", headers={"host": "evil.example.org"}).status_code == 421
    with served("--allow-host", "good.example.org") as (url, _):
        assert httpx.get(f"{url}/health", headers={"host": "good.example.org"}).status_code == 200


async def test_pages_of_other_origins_ask_nothing_unless_they_may():
    asked_headers = "authorization,content-type,x-stainless-lang,anthropic-dangerous-direct-browser-access"  # SDKs in a page send the others, too
    preflight = {"origin": "https://a.org", "access-control-request-method": "POST", "access-control-request-headers": asked_headers}
    async with talking() as client:
        assert (await client.options(CHAT, headers=preflight)).status_code == 405
        answer = await client.post(CHAT, json=HELLO, headers={"origin": "https://a.org"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
    async with talking(origins=("https://a.org",)) as client:
        asked = await client.options(CHAT, headers=preflight)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://a.org")
        assert set(asked_headers.split(",")) <= {name.strip() for name in asked.headers["access-control-allow-headers"].split(",")}
        assert (await client.post(CHAT, json=HELLO, headers={"origin": "https://a.org"})).headers["access-control-allow-origin"] == "https://a.org"
        assert (await client.options(CHAT, headers={**preflight, "origin": "https://b.org"})).status_code == 400
        assert "access-control-allow-origin" not in (await client.post(CHAT, json=HELLO, headers={"origin": "https://b.org"})).headers


# -- keys ----------------------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def inside(account, program=None):
    with account.admitted(program):
        return True


def test_requests_a_minute():
    clock = Clock()
    account = Account(Key.of("k", "alice", KeyLimits(requests=2)), clock)
    assert inside(account) and inside(account)
    with pytest.raises(ApiError, match="2 requests a minute") as refused:
        inside(account)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "30"})
    clock.now += 30
    assert inside(account)
    with pytest.raises(ApiError):
        inside(account)
    clock.now += 3600
    assert inside(account) and inside(account), "and no more than that gathers"
    with pytest.raises(ApiError):
        inside(account)


def test_tokens_a_minute_are_known_afterwards():
    clock = Clock()
    account = Account(Key.of("k", "alice", KeyLimits(tokens=100)), clock)
    assert inside(account)
    account.spend(250)
    with pytest.raises(ApiError, match="100 tokens a minute") as refused:
        inside(account)
    assert refused.value.headers == {"Retry-After": "90"}
    clock.now += 90
    assert inside(account)


def test_requests_at_once_and_programs():
    account = Account(Key.of("k", "alice", KeyLimits(concurrency=1, programs=frozenset({"judge"}))), Clock())
    with account.admitted("judge"), pytest.raises(ApiError, match="has 1 requests at once"):
        inside(account)
    assert inside(account), "room is given back"
    with pytest.raises(ApiError, match="may not run other") as refused:
        inside(account, "other")
    assert (refused.value.status, refused.value.code) == (403, "program_not_allowed")


async def test_limits_of_a_key_are_those_of_its_requests():
    keys = [
        Key.of("a", "alice", KeyLimits(tokens=1)),
        Key.of("b", "bob", KeyLimits(programs=frozenset({"other"}))),
        Key.of("c", "carol", KeyLimits(concurrency=1)),
    ]
    mock = lmc.Mock()
    async with running(mock, PROGRAMS, api_keys=keys) as app:
        ask = lambda key, path=CHAT, body=BODY: ByHand(app, path, body, {"authorization": f"Bearer {key}"})
        program = json.dumps({"name": "Ann"}).encode()
        for path, body, over in ((CHAT, BODY, True), ("/programs/greet", program, False)):
            first = ask("a" if over else "c", path, body)
            await first.task
            assert first.status == 200, first.text
        second = ask("a")
        await second.task
        assert second.status == 429 and json.loads(second.text)["error"]["code"] == "rate_limit_exceeded"
        for path in ("/programs/greet", "/programs/greet/stream", "/programs/greet/batch"):
            refused = ask("b", path, program)
            await refused.task
            assert refused.status == 403
        mock._latency, mock._instant = lambda _: 60, False
        held = ask("c")
        await until(lambda: mock._pending)
        more = ask("c")
        await more.task
        assert more.status == 429
        held.leave()
        await held.task


@pytest.mark.parametrize("path", (CHAT, "/programs/greet", "/programs/greet/stream", "/programs/greet/batch", "/v1/completions"))
@pytest.mark.parametrize("stream", (False, True))
async def test_every_answer_is_counted(path, stream):
    body = {CHAT: {**HELLO, "stream": stream}, "/v1/completions": {"prompt": "x", "stream": stream}, "/programs/greet/batch": {"items": [{"name": "Ann"}]}}
    async with talking(None, PROGRAMS, api_keys=[Key.of("a", "alice", KeyLimits(tokens=1))]) as client:
        headers = {"authorization": "Bearer a"}
        assert (await client.post(path, json=body.get(path, {"name": "Ann"}), headers=headers)).status_code == 200
        assert (await client.post(path, json=body.get(path, {"name": "Ann"}), headers=headers)).status_code == 429


LEFT = {
    CHAT: HELLO, f"{CHAT}#stream": {**HELLO, "stream": True}, "/v1/completions": {"prompt": "Hello", "n": 2},
    "/v1/messages": {**HELLO, "model": "mock", "max_tokens": 9},
    "/programs/greet": {"name": "Ann"}, "/programs/greet/stream": {"name": "Ann"}, "/programs/greet/batch": {"items": [{"name": "Ann"}]},
}  # fmt: skip


@pytest.mark.parametrize("path", LEFT)
async def test_tokens_of_an_answer_whose_client_left_are_counted(path, tmp_path):
    """Tokens that the model had read by then count in the limits of the key, the metrics and the audit log."""
    mock = lmc.Mock(latency=60)
    async with running(mock, PROGRAMS, api_keys=[Key.of("a", "alice", KeyLimits(tokens=1))], audit_log=tmp_path / "log") as app:
        call = ByHand(app, path.partition("#")[0], json.dumps(LEFT[path]).encode(), {"authorization": "Bearer a"})
        await until(lambda: mock._pending)
        call.leave()
        await call.task
        await until(lambda: not mock._pending)
        await until(lambda: metric(app, "lmc_prompt_tokens_total") > 0)  # the backend's threads have told it
        again = ByHand(app, CHAT, BODY, {"authorization": "Bearer a"})
        await again.task
        assert again.status == 429 and "1 tokens a minute" in again.text
        told = app.state.metrics.text().decode()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines if "status" in line] == [499, 429]
    tokens = sum(line.get("tokens", 0) + line.get("late_tokens", 0) for line in lines)
    assert tokens > 0 and f"lmc_prompt_tokens_total {tokens}.0" in told
    assert tokens == len("Hello") or path != "/v1/completions", "of two answers the prompt once"


@pytest.mark.parametrize("path", ("/programs/fails", "/programs/fails/stream", "/programs/fails/batch"))
async def test_tokens_of_a_program_that_fails_are_counted(path):
    @lmc.function
    def fails(s):
        s += "x" + lmc.gen("a", max_tokens=3)
        raise ValueError(s["a"])

    async with talking(None, [fails], api_keys=[Key.of("a", "alice", KeyLimits(tokens=1))]) as client:
        body = {"items": [{}]} if path.endswith("batch") else {}
        await client.post(path, json=body, headers={"authorization": "Bearer a"})
        assert (await client.post(path, json=body, headers={"authorization": "Bearer a"})).status_code == 429


def test_tokens_that_come_behind_a_line_of_the_audit_log_are_in_it_too(tmp_path):
    log = AuditLog(tmp_path / "log")
    entries = [AuditEntry(name, "alice", "", "POST", "/") for name in "ab"]
    for entry in entries:
        log.write(entry)
        log.spend(entry, 5)
        log.spend(entry, 2)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["id"], line.get("tokens"), line.get("late_tokens")) for line in lines] == [("a", 0, None), ("a", None, 7), ("b", 0, None), ("b", None, 7)]


@pytest.mark.parametrize("path", ("/programs/bank", "/programs/bank/stream", "/programs/bank/batch"))
async def test_arguments_may_be_called_like_options(path):
    """And the key is charged all the same."""

    @lmc.function
    def bank(s, account: str, priority: int = 0, seed: int = 0):
        s += f"{account} {priority} {seed}" + lmc.gen("a", max_tokens=3)
        return account

    async with talking(None, [bank], api_keys=[Key.of("a", "alice", KeyLimits(tokens=1))]) as client:
        item = {"account": "savings", "priority": 7, "seed": 3}
        ask = lambda: client.post(f"{path}?seed=5", json={"items": [item]} if path.endswith("batch") else item, headers={"authorization": "Bearer a"})
        first = await ask()
        assert first.status_code == 200 and "savings" in first.text, first.text
        assert (await ask()).status_code == 429


def test_a_file_of_keys_has_their_digests():
    key = Key.of(new_key(), "alice", KeyLimits(60, 1000, 4, frozenset({"b", "a"}), 4))
    line = line_of(key)
    assert line == f"alice sha256:{key.digest} requests=60 tokens=1000 concurrency=4 programs=a,b priority=4"
    assert (Account(key, Clock()).priority, Account(None, Clock()).priority) == (4.0, 1.0)
    assert parse(f"# who may ask\n\n{line}\nplain-key\n", "keys") == [key, Key.of("plain-key", "line 4")]
    ring = Keyring([key, "other"])
    assert ring.account("other") is not None and ring.account("nobody") is None and not ring.open
    assert "other" not in repr(vars(ring)) and digest_of("other") in repr(vars(ring)), "keys are nowhere in memory"


@pytest.mark.parametrize(
    "line",
    (
        "alice sha256:12",
        "alice md5:aa",
        "alice key",
        f"alice sha256:{'0' * 64} request=5",
        f"alice sha256:{'0' * 64} requests=x",
        f"alice sha256:{'0' * 64} requests=0",
        f"alice sha256:{'z' * 64}",
    ),
)
def test_a_line_that_is_no_key_is_named(line):
    with pytest.raises(ParameterError, match=r"keys\.txt:2: .*expected NAME sha256:HEX"):
        parse(f"# keys\n{line}", "keys.txt")


def test_a_new_key_is_shown_once(tmp_path, capsys):
    from lmc.cli.serve import new_key as command

    file = tmp_path / "keys.txt"
    file.write_text("# mine")  # without a line's end, as some editors leave it
    command("alice", requests=60, file=file)
    key = capsys.readouterr().err.strip().rpartition(" ")[2]
    assert key not in file.read_text() and digest_of(key) in file.read_text()
    with served("--api-keys", str(file)) as (url, _):
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200


# -- the log -------------------------------------------------------------------------------------------------------------


async def test_the_audit_log_says_who_asked_what(tmp_path):
    file = tmp_path / "audit.jsonl"
    async with talking(None, PROGRAMS, api_keys=[Key.of("secret-key", "alice")], audit_log=file) as client:
        headers = {"authorization": "Bearer secret-key", "x-request-id": "mine-1"}
        assert (await client.post(CHAT, json=HELLO, headers=headers)).headers["x-request-id"] == "mine-1"
        assert (await client.post(CHAT, json=HELLO)).status_code == 401
        await client.post("/programs/greet?seed=1", content=b"{", headers={**headers, "content-type": "application/json"})
        await client.get("/health")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(e["key"], e["method"], e["path"], e["status"], e["tokens"] > 0) for e in entries] == [
        ("alice", "POST", CHAT, 200, True), ("", "POST", CHAT, 401, False), ("alice", "POST", "/programs/greet", 400, False),
    ]  # fmt: skip
    assert entries[0]["id"] == "mine-1" and entries[1]["id"].startswith("req_")
    assert "secret-key" not in file.read_text() and "Hello" not in file.read_text()


@pytest.mark.parametrize("given", ("a\r\nb", "x" * 65, "{}", ""))
async def test_an_id_that_no_log_can_have_is_replaced(given):
    async with running() as app:
        call = ByHand(app, CHAT, BODY, {"x-request-id": given})
        await call.task
        assert dict(call.sent[0]["headers"])[b"x-request-id"].startswith(b"req_")


def test_a_failure_of_ours_names_its_request(caplog, monkeypatch):
    mock = lmc.Mock()
    monkeypatch.setattr(mock, "submit", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR, "lmc.serve"):
        answer = post(CHAT, BODY, mock, headers={"x-request-id": "mine-2"})
    assert answer.status_code == 500 and answer.json()["error"]["message"].endswith("has it as mine-2")
    assert "the request mine-2 failed" in caplog.text


def test_an_audit_log_that_cannot_be_written_is_said(tmp_path, caplog):
    with pytest.raises(ParameterError, match=r"audit log .* cannot be written"):
        talk(lambda client: client.get("/health"), audit_log=tmp_path / "no" / "file")


    class Full(StringIO):
        def close(self):
            raise OSError(28, "No space left on device")

    log = AuditLog(None)
    log._file = Full()
    log.close()
    assert "the audit log cannot be written" in caplog.text, "and the server ends as it would"


# -- TLS -----------------------------------------------------------------------------------------------------------------


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", key, "-out", cert], capture_output=True
    )
    if made.returncode:
        pytest.skip("needs openssl")
    with served("--tls-cert", str(cert), "--tls-key", str(key), scheme="https") as (url, _):
        assert httpx.get(f"{url}/health", verify=False).status_code == 200
    with pytest.raises(ParameterError, match="not a certificate and its key"):
        Tls(key, cert).check()


def test_a_tls_key_needs_a_certificate():
    found = subprocess.run(
        [sys.executable, "-m", "lmc", "serve", "--backend", "mock", "--tls-key", "x"], capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent
    )
    assert found.returncode == 2 and "belong together" in found.stderr
