"""A client whose clock is off, which the server takes for a stranger."""

import datetime
import email.utils
import re

import httpx
import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supernode import node_auth_http_interceptor

from fedjax_ht.deploy import node
from fedjax_ht.deploy.audit import no_audit
from tests.deploy.wire import RawNode, fleet, listening


@pytest.mark.parametrize("ahead", [-50, 50])
def test_a_clock_may_be_off_by_less(keys, monkeypatch, ahead):
    now, offset = node_auth_http_interceptor.now, datetime.timedelta(seconds=ahead)
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: now() + offset)
    with listening({0: keys[0]}) as (link, port, _):
        raw = RawNode(port, keys[0])
        assert list(link.online_nodes()) == [raw.node.node_id]


@pytest.mark.parametrize(
    ("ahead", "reason"),
    [
        (
            75,
            r"this machine's clock is 7\d s ahead of the server's, more than the 60 s allowed; set it",
        ),
        (
            -75,
            r"this machine's clock is 7\d s behind the server's, more than the 60 s allowed; set it",
        ),
        (30, "it does not know the key"),
    ],
)
def test_the_client_learns_it(ahead, reason):
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ahead)
    lines = []
    connection = node._Connection("a:1", 60.0, lines.append, no_audit)
    date = email.utils.format_datetime(time, usegmt=True)
    refusal = httpx.Response(401, headers={"date": date})
    connection.on_refused(httpx.HTTPStatusError("", request=None, response=refusal))
    assert re.fullmatch(rf"a:1 refuses this client \({reason}\); retrying for 60 s", *lines)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 99 Nov 2026 16:22:00 GMT"])
def test_a_server_without_a_time_tells_nothing(date):
    headers = {} if date is None else {"date": date}
    assert node._clock_problem(httpx.Response(401, headers=headers)) == ""


def test_a_server_tells_its_time_to_those_whom_it_refuses(keys):
    with listening({0: keys[0]}) as (_, port, _), fleet(port, keys[1]) as stranger:
        with pytest.raises(httpx.HTTPStatusError) as error:
            stranger.PullMessages(PullMessagesRequest())
        time = email.utils.parsedate_to_datetime(error.value.response.headers["date"])
    assert abs((datetime.datetime.now(datetime.UTC) - time).total_seconds()) < 5
