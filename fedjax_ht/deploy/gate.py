"""The gate before a server's Flower APIs: it passes the calls that clients need, for known keys.

Flower serves three APIs on one port, and node authentication guards one of them: whoever reaches
the Control API starts runs and removes clients. The gate stands before all of them as ASGI
middleware. A stranger's request is refused before its body is read.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

PREFIX = "/v1/fleet/"
CALLS = frozenset(
    {
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    }
)
"""Fleet calls of a client with a registered key."""
UNKEYED = frozenset({"register-node", "unregister-node"})
"""Further Fleet calls of a client without a key, where the server has no list of keys."""
UPLOADS = frozenset({"push-messages", "push-object"})
SMALL = 1 << 16
"""Bytes of a request that is no upload, at most."""

App = Callable[[dict[str, Any], Callable[[], Awaitable], Callable[[Any], Awaitable]], Awaitable]
Identify = Callable[[Mapping[bytes, bytes]], int | None]
"""A request's headers -> the node whose key has signed them, 0 for a key that has no node yet; None
for one that may not come in."""


class Allowance:
    """Bytes that each node may upload: those of its last answer and of the one before."""

    def __init__(self, left: Mapping[int, int] = MappingProxyType({})):
        self.left = dict(left)
        self.last: dict[int, int] = {}

    def grant(self, node: int, size: int) -> None:
        """Allows an answer of `size` bytes, and what is left of one that may be late."""
        self.left[node] = size + min(self.left.get(node, 0), self.last.get(node, 0))
        self.last[node] = size

    def take(self, node: int, size: int) -> bool:
        """Takes bytes off as they arrive; whether there were so many."""
        left = self.left.get(node, 0) - size
        if left >= 0:
            self.left[node] = left
        return left >= 0


def gate(
    app: App,
    identify: Identify,
    allows: Callable[[str, int, bytes], bool],
    allowance: Allowance,
    calls: frozenset[str],
    refused: Callable[[int], Any],
) -> App:
    """ASGI app that passes some requests on to `app` and answers all others itself.

    Args:
      app: takes what passes.
      identify: says whose a request is.
      allows: (call, node, body) -> whether this node may say this.
      allowance: of uploads.
      calls: that pass, of the Fleet API.
      refused: takes the node of a request that was too long.
    """

    async def passed(scope, receive, send):
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        name = scope["path"].removeprefix(PREFIX) if scope["path"].startswith(PREFIX) else ""
        if scope["method"] != "POST" or name not in calls:
            return await _answer(send, 404)
        headers = dict(scope["headers"])
        node = identify(headers)
        if node is None:
            return await _answer(send, 401)
        budget = allowance if name in UPLOADS else Allowance({node: SMALL})
        body = await _body(
            receive, headers, functools.partial(budget.take, node), budget.left.get(node, 0)
        )
        if body is None:
            refused(node)
            return await _answer(send, 413)
        if not allows(name, node, body):
            return await _answer(send, 403)
        return await app(scope, _replayed(body, receive), send)

    return passed


async def _body(
    receive: Callable[[], Awaitable],
    headers: Mapping[bytes, bytes],
    take: Callable[[int], bool],
    limit: int,
) -> bytes | None:
    """A request's body; None where it is longer than `take` allows, or than `limit` by its
    header."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > limit:
        return None
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request" or not take(len(message.get("body", b""))):
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replayed(body: bytes, receive: Callable[[], Awaitable]) -> Callable[[], Awaitable]:
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def again():
        return unread.pop() if unread else await receive()

    return again


async def _answer(send: Callable[[Any], Awaitable], status: int) -> None:
    # Whoever is refused is not read to the end: the connection cannot be used again.
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
