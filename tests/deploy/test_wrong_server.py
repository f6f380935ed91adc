"""A client before something that is no server of this library, or a hostile one."""

import functools
import http.server
import resource
import threading
import time
import zlib

import httpx
import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PullObjectResponse

from fedjax_ht.deploy import node
from fedjax_ht.deploy.audit import no_audit
from fedjax_ht.deploy.messages import message_bytes
from fedjax_ht.deploy.node import RESPONSE_BYTES

MEGABYTE = 1 << 20
MAX_BYTES = 1000


def packed(megabytes: int) -> bytes:
    """Returns zeros that gzip makes a thousandth as long."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(megabytes)) + packer.flush()


class Wrong(http.server.BaseHTTPRequestHandler):
    """Answers every call as its server says in `responses`, by the last word of the path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        call = self.path.rpartition("/")[2]
        self.server.calls.append(call)
        code, headers, body = self.server.responses.get(call, (404, {}, b""))
        self.send_response(code)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def start():
    """Returns a function that starts a server with these responses."""
    servers = []

    def listen(responses):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wrong)
        server.responses, server.calls = responses, []
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield listen
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve(start, quick):
    """Returns a function that lets a client meet a server with these responses, for so many calls or
    seconds. It returns the client's lines, the calls, and the megabytes that this process has grown
    by."""

    def meet(responses, seconds=5.0, answer=None, enough=4):
        server = start(responses)
        lines, end = [], time.monotonic() + seconds
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        address = f"127.0.0.1:{server.server_port}"

        def is_over():
            return time.monotonic() > end or len(server.calls) >= enough

        run = functools.partial(node.run_node, address, None, None, answer, is_over)
        run(lines.append, 60.0, max_bytes=MAX_BYTES)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return lines, server.calls, grown // 1024

    return meet


PROTOBUF = {"content-type": "application/protobuf"}
METADATA = Metadata(run_id=1, message_id="a" * 64, src_node_id=1, dst_node_id=5)
PULLED = PullMessagesResponse(messages_list=[Message(metadata=METADATA)])


def object_of(content: bytes) -> dict:
    """Returns the responses of a server that has one message, with this content."""
    response = PullObjectResponse(object_found=True, object_available=True, object_content=content)
    return {
        "activate-node": (200, PROTOBUF, ActivateNodeResponse(node_id=5).SerializeToString()),
        "pull-messages": (200, PROTOBUF, PULLED.SerializeToString()),
        "pull-object": (200, PROTOBUF, response.SerializeToString()),
        "confirm-message-received": (200, PROTOBUF, b""),
        "push-messages": (200, PROTOBUF, b""),
        "push-object": (200, PROTOBUF, b""),
    }


@pytest.mark.parametrize(
    ("response", "line"),
    [
        ((200, {"content-type": "text/html"}, b"<html>It works!</html>"), "Invalid protobuf"),
        ((200, PROTOBUF, b"\xff" * 100), "Invalid protobuf"),
        ((200, PROTOBUF, bytes(RESPONSE_BYTES + 1)), f"more than {RESPONSE_BYTES} bytes"),
        ((200, {"content-encoding": "gzip"}, packed(1)), "compresses its responses"),
        ((200, {"content-encoding": "br"}, b"x"), "compresses its responses"),
        ((503, {}, b""), "refuses this client (HTTP 503)"),
    ],
    ids=["html", "garbage", "long", "gzip", "brotli", "busy"],
)
def test_something_that_is_no_server_is_named_and_tried_again(serve, response, line):
    lines, calls, _ = serve({"activate-node": response})
    assert line in lines[0] and len(lines) == 1  # each change is told once
    assert set(calls) == {"activate-node"} and len(calls) > 1


def test_what_is_packed_is_never_unpacked_and_nothing_is_read_without_end(serve):
    """A megabyte of gzip would be a gigabyte, in a response of each kind."""
    bomb = (200, {"content-encoding": "gzip", **PROTOBUF}, packed(100))
    for call in ("activate-node", "pull-messages", "pull-object", "push-messages"):
        lines, _, grown = serve(object_of(b"") | {call: bomb}, enough=8)
        assert "compresses its responses" in lines[0] and grown < 40, (call, lines)
    long = object_of(bytes(50 * MEGABYTE))
    limit = message_bytes(MAX_BYTES) + RESPONSE_BYTES
    lines, _, grown = serve(long, enough=8)
    assert f"more than {limit} bytes in a response" in lines[0] and grown < 200


def test_a_server_without_an_end_or_a_word_is_left(serve, monkeypatch):
    """One sends headers for ever, the other takes a request and then sends nothing."""
    monkeypatch.setattr(node, "RESPONSE_SECONDS", 0.3)
    headers = {f"X{i}": "a" * 1000 for i in range(1000)}
    for response, line in (
        ((200, headers, b""), "Receive buffer too long"),
        ((200, {"content-length": "1"}, b""), "timed out"),
    ):
        lines, calls, grown = serve({"activate-node": response}, enough=2)
        assert len(lines) == 1 and line in lines[0] and len(calls) > 1 and grown < 40, lines


def test_a_refusal_after_an_absence_is_retried_anew():
    lines, response = [], httpx.Response(401, request=httpx.Request("POST", "http://x"))
    connection = node._Connection("x:1", 60.0, lines.append, no_audit)
    for _ in range(2):
        connection.on_refused(
            httpx.HTTPStatusError("", request=response.request, response=response)
        )
        connection.refused_since -= 100.0
        connection.on_unreachable(ValueError("gone"))
    assert [line.split()[0] for line in lines] == ["x:1", "no", "x:1", "no"]


@pytest.mark.parametrize("code", [302, 308])
def test_no_redirect_is_followed(start, serve, monkeypatch, code):
    """The signature in a request is good for any server that has the key, for a minute."""
    elsewhere = start({})
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{elsewhere.server_port}")
    location = f"http://127.0.0.1:{elsewhere.server_port}/v1/fleet/send-node-heartbeat"
    lines, calls, _ = serve({"activate-node": (code, {"location": location}, b"")})
    assert elsewhere.calls == [] and len(calls) > 1
    assert "it redirects this client, which does not follow" in lines[0]


@pytest.mark.parametrize("content", [b"", b"x" * 200, b"\0\0\0\2[]"], ids=["none", "bytes", "list"])
def test_a_message_that_cannot_be_read_is_answered_in_one_line(serve, content):
    lines, calls, _ = serve(object_of(content), enough=14, answer=lambda request, context: 1 / 0)
    assert lines == [] and calls.count("push-object") > 1
