"""A client's HTTP, bounded: it follows no redirect, unpacks nothing, reads no endless response.

Needs the extra `flower`.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

RESPONSE_BYTES = 1 << 14
"""Most bytes of a response that carries no message of the server, and around one that does."""

RESPONSE_SECONDS = 30.0
"""How long a server may be silent within a response."""


class Bounded:
    """Sends Flower's requests, and reads no more of a response than it may have.

    No redirect is followed, since a signed request is for one server, and nothing is unpacked.

    Attributes:
      client: the connections.
      max_bytes: most bytes of a response that carries a message.
    """

    def __init__(self, client: httpx.Client, max_bytes: int):
        self.client, self.max_bytes = client, max_bytes

    def intercept(self, context: Any, call_next: Callable) -> httpx.Response:
        """Sends a request in place of Flower's own client, as its last interceptor."""
        limit = self.max_bytes if context.rpc_method.endswith("/PullObject") else RESPONSE_BYTES
        request = context.request
        request.headers["accept-encoding"] = "identity"
        request.extensions["timeout"] = httpx.Timeout(RESPONSE_SECONDS).as_dict()
        response = self.client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx.DecodingError("the server packs what it sends; this client does not")
            parts, size = [], 0
            for part in response.iter_raw():
                size += len(part)
                if size > limit:
                    raise httpx.RemoteProtocolError(f"more than {limit} bytes in a response")
                parts.append(part)
        finally:
            response.close()
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            content=b"".join(parts),
            request=request,
        )


def http_client(root: str | None, identity: tuple[Path, Path] | None = None) -> httpx.Client:
    """Returns the connections to a server.

    Args:
      root: certificate of the authority that signed the server's, None without TLS.
      identity: files of the client's own certificate and its key, for a server that asks for one.

    Raises:
      OSError: a certificate is none, or the key is another's. One line.
    """
    verify: ssl.SSLContext | bool = False
    if root is not None:
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verify.load_verify_locations(cadata=root)
        if identity is not None:
            verify.load_cert_chain(*identity)
    return httpx.Client(verify=verify, follow_redirects=False)
