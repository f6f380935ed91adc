"""Fixtures of the tests of downloads."""

import threading

import pytest

from fedjax_ht.lab.readers import download
from tests.lab.readers.download_server import TEST, TRAIN, Server


@pytest.fixture
def server():
    """A server that runs until the test ends."""
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.server.shutdown()
    thread.join()
    server.server.server_close()


@pytest.fixture
def no_network(monkeypatch):
    """A test that names another host fails."""
    urlopen = download.urllib.request.urlopen

    def on_loopback(request, **options):
        assert request.host.startswith("127.0.0.1:"), request.full_url
        return urlopen(request, **options)

    monkeypatch.setattr(download.urllib.request, "urlopen", on_loopback)


@pytest.fixture
def pair(server):
    """Declarations by name, of one set whose home is the server."""
    content = {"train.bin": TRAIN, "test.bin": TEST}
    return {"pair": server.source("pair", content)}
