"""The gate of a server: which requests reach Flower, and with which keys.

Flower serves three APIs on one port, and node authentication protects only one of them: anyone who
reaches the Control API can start runs and remove clients. The gate, ASGI middleware, is in front of
all of them. It passes the eight Fleet API calls that clients need, for known keys, and refuses a
stranger's request before its body is read. The mailbox decides what a known key may fetch and
deliver. Needs the extra `flower`.
"""

import asyncio
import base64
import binascii
import datetime
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_key
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)

from fedjax_ht.deploy.mailbox import CALLS, PASSES, UPLOAD
from fedjax_ht.deploy.messages import printable

PREFIX = "/v1/fleet/"
REQUEST_BYTES = 1 << 12
"""Most bytes of a request that carries no reply."""
TOO_LONG = 413
SILENT_SECONDS = 60.0
"""How long a client may be silent within a request."""
CLOCK_SECONDS = 60.0
"""How far a request's signed time may differ from this machine's."""

App = Callable[[dict[str, Any], Callable[[], Awaitable], Callable[[Any], Awaitable]], Awaitable]
Identify = Callable[[Mapping[bytes, bytes]], int | None]
"""A request's headers -> id of the node whose key signed them; None for a stranger."""


class Allowance:
    """Counts the bytes that each node may still upload, for its last reply and the one before."""

    def __init__(self, remaining: Mapping[int, int] | None = None):
        self.remaining = dict(remaining or {})
        self.last: dict[int, int] = {}
        self._lock = threading.Lock()  # the server's thread grants, the loop of its requests takes

    def grant(self, node: int, size: int) -> None:
        """Allows a reply of `size` bytes, plus the rest of a previous one that may be late."""
        with self._lock:
            late = min(self.remaining.get(node, 0), self.last.get(node, 0))
            self.remaining[node], self.last[node] = size + late, size

    def take(self, node: int, size: int) -> bool:
        """Deducts bytes as they arrive; returns whether that many remained."""
        with self._lock:
            remaining = self.remaining.get(node, 0) - size
            if remaining >= 0:
                self.remaining[node] = remaining
        return remaining >= 0


class Watch(NamedTuple):
    """Functions that a gate calls for signed and for refused requests.

    Attributes:
      on_known: called with the address of a signed request, and its node.
      on_refused: called with a refused request's node, None for a stranger's, and HTTP code.
    """

    on_known: Callable[[tuple[str, int], int], Any]
    on_refused: Callable[[int | None, int], Any]


def gate(
    app: App,
    identify: Identify,
    status_of: Callable[[str, int, bytes], int],
    *,
    allowance: Allowance,
    watch: Watch,
) -> App:
    """Returns an ASGI app that passes some requests to `app` and refuses all others itself.

    Args:
      app: handles the requests that pass.
      identify: returns the node that signed a request.
      status_of: (call, node, body) -> `mailbox.PASSES`, or the code of a refusal.
      allowance: bytes of replies that nodes may upload.
      watch: functions to call for requests.
    """

    async def decide(scope, receive) -> tuple[int | None, int, bytes]:
        """Returns the node that signed a request, the HTTP code for it, and its body."""
        call = scope["path"].removeprefix(PREFIX)
        is_call = scope["path"].startswith(PREFIX) and call in CALLS
        if scope["method"] != "POST" or not is_call:
            return None, 404, b""
        headers = dict(scope["headers"])
        node = identify(headers)
        if node is None:
            return None, 401, b""
        watch.on_known(tuple(scope["client"]), node)
        if b"content-encoding" in headers:  # it may unpack to more than it declares
            return node, 415, b""
        budget = allowance if call == UPLOAD else Allowance({node: REQUEST_BYTES})
        try:
            body = await _read_body(receive, headers, budget, node)
        except TimeoutError:
            return node, 408, b""
        if body is None:
            return node, TOO_LONG, b""
        return node, status_of(call, node, body), body

    async def guarded(scope, receive, send):
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        node, status, body = await decide(scope, receive)
        if status == PASSES:
            return await app(scope, _replay(body, receive), send)
        watch.on_refused(node, status)
        return await _refuse(send, status)

    return guarded


async def _read_body(
    receive: Callable[[], Awaitable], headers: Mapping[bytes, bytes], budget: Allowance, node: int
) -> bytes | None:
    """Reads a request's body; None if it is longer than the node's budget.

    Raises:
      TimeoutError: the rest of it does not arrive.
    """
    length = headers.get(b"content-length", b"0")
    # the header is checked first, so that nothing of a long body is read
    if not length.isdigit() or len(length) > 18 or int(length) > budget.remaining.get(node, 0):
        return None
    parts, has_more = [], True
    while has_more:
        async with asyncio.timeout(SILENT_SECONDS):
            message = await receive()
        if message["type"] != "http.request":  # the client has left
            raise TimeoutError
        part = message.get("body", b"")
        if not budget.take(node, len(part)):
            return None
        parts.append(part)
        has_more = message.get("more_body", False)
    return b"".join(parts)


def _replay(body: bytes, receive: Callable[[], Awaitable]) -> Callable[[], Awaitable]:
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again():
        return unread.pop() if unread else await receive()

    return receive_again


async def _refuse(send: Callable[[Any], Awaitable], status: int) -> None:
    # a refused request is not read to its end, so its connection cannot be reused
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def read_public_keys(folder: Path) -> dict[int, bytes]:
    """Reads the clients' public keys from `folder`/*.pub.

    Returns:
      {client id: key}. The id is the number at the end of a file name: client3.pub is client 3's.

    Raises:
      ValueError, OSError: a file is no such key or has no number, or a client or key occurs twice.
    """
    keys: dict[int, bytes] = {}
    for path in sorted(folder.glob("*.pub")):
        number = re.search(r"(\d{1,9})$", path.stem)
        if number is None:
            raise ValueError(f"{path}: its name must end with the client's id, such as client3.pub")
        client = int(number[1])
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            problem = printable(str(error))
            raise ValueError(f"{path} is not a public key of ssh-keygen: {problem}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"{path} is not an ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
        public = public_key_to_bytes(key)
        if client in keys or public in keys.values():
            raise ValueError(f"{path}: client {client} has two keys, or two clients have this one")
        keys[client] = public
    if not keys:
        raise ValueError(
            f"{folder} has no keys; put the clients' public keys there, client0.pub and so on"
        )
    return keys


def register_node(state: LinkState, key: bytes) -> int:
    """Registers a public key with the SuperLink; returns the id of its node."""
    return state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)


def signing_node(state: LinkState, is_keyed: bool, headers: Mapping[bytes, bytes]) -> int | None:
    """Returns the node whose key signed a request's time; None for a stranger.

    Args:
      state: state of the SuperLink.
      is_keyed: True admits only registered keys; False registers an unknown one.
      headers: headers of the request.
    """
    try:
        public, signature = (
            base64.b64decode(headers[name.encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        node = state.get_node_id_by_public_key(public)
        if is_keyed and node is None:
            return None
        stamp = headers[TIMESTAMP_HEADER.encode()]
        signed_at = datetime.datetime.fromisoformat(stamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
        if abs(age) > CLOCK_SECONDS:
            return None
        if not verify_signature(bytes_to_public_key(public), stamp, signature):
            return None
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm, binascii.Error):
        return None
    return register_node(state, public) if node is None else node
