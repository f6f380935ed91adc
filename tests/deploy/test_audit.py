"""The audit log: who did what, in files that have an end."""

import functools
import json

import numpy as np
import pytest

from fedjax_ht.deploy import audit as audit_module
from fedjax_ht.deploy.audit import FILE_NAME, FILES, lifetime, open_audit


def read(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


def untimed(lines) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in lines]


def test_lines_are_json_and_of_one_line_each(tmp_path):
    audit = open_audit(tmp_path / "run", print)
    audit("left_out", client=3, reason="a\nround 9 of 9: all is well\x1b[2J", far=[[2, 1e30]])
    audit("strangers", codes={"401": 7})
    lines = read(tmp_path / "run")
    reason = r"a round 9 of 9: all is well\x1b[2J"
    left_out = {"event": "left_out", "client": 3, "reason": reason, "far": [[2, 1e30]]}
    assert untimed(lines) == [left_out, {"event": "strangers", "codes": {"401": 7}}]
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_files_have_an_end_and_the_newest_lines_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_module, "FILE_BYTES", 1000)
    audit = open_audit(tmp_path, print)
    for i in range(500):
        audit("left_out", client=i, reason="x" * 10_000)
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES and sum(file.stat().st_size for file in files) <= 1000 * FILES
    assert read(tmp_path)[-1]["client"] == 499


def test_a_log_that_cannot_be_written_ends_nothing_and_says_so_once(tmp_path):
    lines = []
    audit = open_audit(tmp_path, lines.append)
    (tmp_path / FILE_NAME).mkdir()
    audit("round", round=1)
    audit("round", round=2)
    assert len(lines) == 1 and "audit.jsonl cannot be written: [Errno 21]" in lines[0]


def test_the_end_of_a_side_is_noted_with_its_reason(tmp_path):
    audit = open_audit(tmp_path, print)
    with lifetime(audit, client=1):
        pass
    with pytest.raises(KeyboardInterrupt), lifetime(audit, client=1):
        raise KeyboardInterrupt
    with pytest.raises(ValueError), lifetime(audit, client=1):
        raise ValueError("no client took part")
    ends = [line["reason"] for line in read(tmp_path) if line["event"] == "ended"]
    assert ends == ["done", "KeyboardInterrupt", "no client took part"]


class Noted(list):
    """Lines of an audit log that is kept in memory, as (event, fields)."""

    def __call__(self, event, **fields):
        self.append((event, fields))

    def of(self, event) -> list[dict]:
        return [fields for name, fields in self if name == event]


@pytest.mark.usefixtures("quick")
def test_both_sides_note_an_exchange_and_the_server_strangers(keys):
    from flwr.proto.fleet_pb2 import PullMessagesRequest

    from fedjax_ht.deploy.flower import flower_transport
    from fedjax_ht.deploy.messages import Envelope
    from tests.deploy.wire import HELLO, attending, client, fleet, listening, status_of, wait_until

    key, server, site = keys[3], Noted(), Noted()
    array = np.zeros(100, np.float32)
    with listening({3: key}, audit=server) as (link, port, lines):
        transport = flower_transport(link, 20.0, 5.0, lines.append, audit=server)
        with attending(port, key, client(3, {"a": array}), audit=site):
            assert sorted(transport.meet(HELLO, 1)) == [3]
            request = Envelope({"kind": "train", "round": 4}, {"b": array})
            assert sorted(transport.exchange({3: request}, {3: 9000})) == [3]
            with fleet(port) as stranger:
                for _ in range(5):
                    call = functools.partial(stranger.PullMessages, PullMessagesRequest())
                    assert status_of(call) == 401
            with fleet(port, key) as elsewhere:
                elsewhere._client.headers["X-Forwarded-For"] = "192.0.2.7"
                call = functools.partial(elsewhere.PullMessages, PullMessagesRequest())
                assert status_of(call) == 403  # another node's
        wait_until(lambda: not link.online_nodes())
        transport.meet(HELLO, 0)
    assert server.of("address") == [{"client": 3, "host": "127.0.0.1"}]
    assert [fields["client"] for fields in server.of("connected")] == [3]
    train = {"client": 3, "kind": "train", "round": 5}
    assert server.of("request")[1:] == [train | {"bytes": 400}]
    (reply,) = server.of("reply")[1:]
    assert reply | {"bytes": 0} == train | {"bytes": 0} and 400 < reply["bytes"] < 1000
    assert server.of("disconnected") == [{"client": 3}]
    assert server.of("strangers") == [{"codes": {"401": 5}}]
    del train["client"]
    assert site.of("request")[1] == train | {"bytes": 400}
    assert site.of("reply")[1].items() >= (train | {"bytes": 400}).items()
    assert site.of("connected") == [{"server": f"127.0.0.1:{port}"}]
