"""The gate by itself: which requests pass, and how much of the refused ones is read."""

import asyncio

import pytest

from fedjax_ht.deploy import gate as gate_module
from fedjax_ht.deploy.gate import REQUEST_BYTES, Allowance, Watch, gate
from fedjax_ht.deploy.mailbox import CALLS

NODE, ADDRESS = 7, ("192.0.2.1", 40000)
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


def pass_all(call, node, body):
    return 200


class Trial:
    """Gate to which requests name their node in a header. It notes (path, body) of those that passed,
    (node, code) of those that did not, and (address, node) of those with a known key."""

    def __init__(self, remaining=0, status_of=pass_all):
        self.allowance = Allowance({NODE: remaining})
        self.seen, self.refused, self.known, self.chunks_read = [], [], [], 0

        def identify(headers):
            return int(headers[b"node"]) if b"node" in headers else None

        watch = Watch(
            on_known=lambda *pair: self.known.append(pair),
            on_refused=lambda *pair: self.refused.append(pair),
        )
        self.app = gate(self.inner, identify, status_of, allowance=self.allowance, watch=watch)

    async def inner(self, scope, receive, send):
        if scope["type"] == "lifespan":
            self.seen.append("lifespan")
            return
        message = await receive()
        self.seen.append((scope["path"], message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def status(self, path, *chunks, method="POST", node=NODE, length=None, encoding=None, end=None):
        headers = [] if node is None else [(b"node", b"%d" % node)]
        headers += [] if encoding is None else [(b"content-encoding", encoding)]
        headers += [] if length is None else [(b"content-length", length)]
        unread, sent = list(chunks), []

        async def receive():
            self.chunks_read += 1
            if end and not unread:
                await asyncio.sleep(end == "silence" and 10)
                return {"type": "http.disconnect"}
            body = unread.pop(0) if unread else b""
            return {"type": "http.request", "body": body, "more_body": bool(unread or end)}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        scope["client"] = ADDRESS
        asyncio.run(self.app(scope, receive, send))
        return sent[0]["status"]


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_client_with_a_key_calls_what_it_needs(call):
    trial = Trial(remaining=3)
    assert trial.status(f"/v1/fleet/{call}", b"a", b"bc") == 200
    assert trial.seen == [(f"/v1/fleet/{call}", b"abc")] and trial.known == [(ADDRESS, NODE)]


OTHER_PATHS = (
    *("/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node"),
    *("/v1/control/unregister-node", "/v1/runtime/acquire-task", "/v1/fleet/register-node"),
    *("/v1/fleet/unregister-node", "/v1/fleet/get-fab", "/v1/fleet/get-run"),
    *("/v1/fleet/../control/start-run", "//v1/fleet/pull-messages", "/v1/fleet/", "/docs"),
)


@pytest.mark.parametrize("path", [*OTHER_PATHS, ""])
def test_nothing_else_is_there_even_for_a_client(path):
    trial = Trial(remaining=10**9)
    assert trial.status(path, b"a") == 404
    assert trial.status(PULL, b"a", method="GET") == 404
    assert trial.seen == [] and trial.chunks_read == 0


def test_of_a_stranger_no_byte_is_read():
    trial = Trial(remaining=10**9)
    for path in (PULL, PUSH):
        assert trial.status(path, b"a" * 100, node=None) == 401
    assert trial.seen == [] and trial.chunks_read == 0 and trial.known == []
    assert trial.refused == [(None, 401)] * 2


def test_a_request_is_no_longer_than_it_may_be():
    trial = Trial(remaining=10)
    assert trial.status(PULL, b"", length=b"%d" % (REQUEST_BYTES + 1)) == 413
    assert trial.chunks_read == 0
    assert trial.status(PULL, *[b"a" * 1000] * 1000) == 413
    assert trial.chunks_read == REQUEST_BYTES // 1000 + 1
    assert trial.status(PUSH, b"", length=b"11") == 413
    for length in (b"-1", b"1e9", b"9" * 30, b""):
        assert trial.status(PUSH, b"", length=length) == 413
    assert trial.refused == [(NODE, 413)] * 7 and trial.seen == []
    assert trial.status(PUSH, b"a" * 6, length=b"6") == 200
    assert trial.status(PUSH, b"a" * 3, b"a" * 3) == 413  # 4 are left; the first 3 are counted
    assert trial.status(PUSH, b"a") == 200 and trial.status(PUSH, b"a") == 413


def test_a_late_answer_does_not_take_the_next_ones_place():
    allowance = Allowance()
    assert not allowance.take(NODE, 1)
    allowance.grant(NODE, 10)
    allowance.grant(NODE, 10)
    assert allowance.take(NODE, 20) and not allowance.take(NODE, 1)
    for _ in range(100):
        allowance.grant(NODE, 10)
    assert allowance.take(NODE, 20) and not allowance.take(NODE, 1) and not allowance.take(8, 1)


@pytest.mark.parametrize("end", ["silence", "disconnect"])
def test_a_request_that_stops_in_its_middle_is_not_waited_for(monkeypatch, end):
    monkeypatch.setattr(gate_module, "SILENT_SECONDS", 0.05)
    trial = Trial(remaining=10)
    assert trial.status(PUSH, b"abc", end=end) == 408 and trial.seen == []
    assert trial.status(PUSH, b"abc") == 200


def test_nothing_is_unpacked():
    trial = Trial(remaining=10**9)
    for path, encoding in ((PUSH, b"gzip"), (PULL, b"deflate"), (PULL, b"identity, br")):
        assert trial.status(path, b"packed", encoding=encoding) == 415
    assert trial.seen == [] and trial.chunks_read == 0


def test_forbidden_messages_of_a_node_do_not_pass():
    def status_of(call, node, body):
        return 403 if (call, node, body) == ("pull-messages", NODE, b"forged") else 200

    trial = Trial(status_of=status_of)
    assert trial.status(PULL, b"for", b"ged") == 403 and trial.seen == []
    assert trial.status(PULL, b"other") == 200


def test_events_that_are_no_requests_are_closed_or_passed_on():
    trial, sent = Trial(), []

    async def send(message):
        sent.append(message)

    asyncio.run(trial.app({"type": "lifespan"}, None, send))
    assert trial.seen == ["lifespan"] and sent == []
    asyncio.run(trial.app({"type": "websocket", "path": PULL, "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
