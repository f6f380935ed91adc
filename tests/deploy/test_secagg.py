"""Flower's SecAgg+ in one process: sums are right, whoever is lost, and nothing else leaves."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common.secure_aggregation import secaggplus_utils
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from flwr.server.workflow.secure_aggregation import secaggplus_workflow
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.flower import flower_transport, secure_sum
from fedjax_ht.deploy.masking import STAGE, check_stage, with_stage, without_stage
from fedjax_ht.deploy.messages import Envelope, from_bytes, to_bytes
from fedjax_ht.deploy.node import responder
from fedjax_ht.deploy.secure_sums import MODULUS, STEPS, mask_stream, threshold, with_mask_stream
from tests.deploy.sites import called, never

LIMIT, SIZE, TRAIN = 8.0, 50, Envelope({"kind": "train"}, {"a": np.arange(3.0)})
STEP = 2 * LIMIT / STEPS
NODES = [2**63 + 7 * i for i in range(5)]
STAGES = [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK]


class LocalLink:
    """Nodes whose clients answer envelopes, in one process: messages go through their bytes.

    `seen` has (node, stage, reply) of all replies as they left; `lost` and `changed` may be set, of
    (node, stage) and (node, stage, reply).
    """

    def __init__(self, monkeypatch, clients):
        # Flower's `Message` takes its sender from these
        for name in ("run_id", "node_id", "task_id"):
            monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
        self.clients, self.owners = clients, {}
        self.responders = {node: responder(answer) for node, answer in clients.items()}
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in clients}
        self.seen, self.lost, self.changed = [], never, lambda node, stage, reply: reply

    def online_nodes(self):
        return dict.fromkeys(self.clients, "")

    def exchange(self, requests, max_bytes, timeout):
        replies = {}
        for node, request in requests.items():
            stage = request.header.get(STAGE, {}).get("values", {}).get(Key.STAGE)
            if self.lost(node, stage):
                continue
            reply = self.responders[node](called(request), self.contexts[node])
            reply = self.changed(node, stage, reply)
            self.seen.append((node, stage, reply))
            replies[node] = called(reply)
        return replies


def vectors(clients=4) -> np.ndarray:
    """Draws values and counts in turns, float32 [clients, SIZE]."""
    rng = np.random.default_rng(0)
    return np.where(
        np.arange(SIZE) % 2, rng.normal(size=(clients, SIZE)), rng.integers(0, 2, (clients, SIZE))
    ).astype(np.float32)


def local_link(monkeypatch, sent, headers=None) -> tuple[LocalLink, list]:
    """Returns a link of clients that answer vectors, and the list of (client id, request)."""
    requests = []

    def client(i):
        def answer(envelope):
            requests.append((i, envelope))
            header = {"client": i, "finite": True} | (headers or {}).get(i, {})
            arrays = {"vector": sent[i]} if envelope.header["kind"] == "train" else {}
            return Envelope(header, arrays)

        return answer

    clients = {node: client(i) for i, node in enumerate(NODES[: len(sent)])}
    return LocalLink(monkeypatch, clients), requests


def summed(link, limit=LIMIT, problem_of=lambda node, header: ""):
    requests = dict.fromkeys(link.clients, TRAIN)
    return secure_sum(link, requests, SIZE, limit=limit, timeout=1.0, problem_of=problem_of)


def test_a_sum_without_one_that_is_not_finite_and_nothing_else_leaves(monkeypatch):
    sent = vectors()
    link, requests = local_link(monkeypatch, sent, {2: {"finite": False}})
    result = summed(link)
    np.testing.assert_allclose(result.total, sent[[0, 1, 3]].sum(0), atol=3 * STEP)
    # it went through the protocol's rounding
    assert np.abs(result.total - sent[[0, 1, 3]].sum(0)).max() > STEP / 100
    assert result.lost == {NODES[2]: "its result is not finite"}
    owners = {node: header["client"] for node, header in result.headers.items()}
    assert owners == {NODES[i]: i for i in (0, 1, 3)}
    for _, request in requests:
        assert request.header == {"kind": "train", "masked": True}
        assert request.arrays["a"].tolist() == [0, 1, 2]
    collected = [x for x in link.seen if x[1] == Stage.COLLECT_MASKED_VECTORS]
    masked = [(node, x.arrays) for node, _, x in collected if "error" not in x.header]
    assert sorted(node for node, _ in masked) == [NODES[0], NODES[1], NODES[3]]
    for node, arrays in masked:
        factor, hidden = (arrays[f"{STAGE}/{Key.MASKED_PARAMETERS}/{i}"] for i in range(2))
        assert len(arrays) == 2
        plain = quantize([sent[NODES.index(node)].astype(float)], LIMIT, STEPS)[0]
        assert hidden.shape == (SIZE,) and factor[0] != STEPS
        # of masks as wide as the modulus
        assert np.abs(hidden - plain).min() > 2 and np.ptp(hidden) > MODULUS / 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_may_be_lost_at_any_stage(monkeypatch, stage):
    sent = vectors()
    link, _ = local_link(monkeypatch, sent)
    link.lost = lambda node, now: node == NODES[1] and now == stage
    result, in_sum = summed(link), [0, 1, 2, 3] if stage == Stage.UNMASK else [0, 2, 3]
    np.testing.assert_allclose(result.total, sent[in_sum].sum(0), atol=4 * STEP)
    assert sorted(header["client"] for header in result.headers.values()) == in_sum
    assert result.lost == ({} if stage == Stage.UNMASK else {NODES[1]: "no answer"})


@pytest.mark.parametrize("stage", STAGES)
def test_with_too_few_left_there_is_no_sum(monkeypatch, stage):
    link, _ = local_link(monkeypatch, vectors())
    link.lost = lambda node, now: node in NODES[1:3] and now == stage
    result = summed(link)
    assert result.total == "2 of 4 clients are left, but it needs 3" and not result.headers
    assert set(result.lost.values()) == {"no answer"} and set(result.lost) == set(NODES[1:3])


def test_two_clients_have_no_sum(monkeypatch):
    link, requests = local_link(monkeypatch, vectors(2))
    assert summed(link).total == "2 clients take part, but a sum needs 3" and not requests
    assert [threshold(n) for n in (3, 4, 5, 6, 7, 100)] == [3, 3, 3, 4, 4, 51]


def test_entries_beyond_the_range_are_clipped_with_a_line(monkeypatch):
    sent = vectors()
    sent[1, :3] = [9.5, -20.0, 8.0]
    link, _ = local_link(monkeypatch, sent)
    result = summed(link)
    np.testing.assert_allclose(result.total, np.clip(sent, -8, 8).sum(0), atol=4 * STEP)
    warning = "2 entries are beyond --sum_range=8 and were clipped"
    assert result.headers[NODES[1]]["warning"] == warning
    assert "warning" not in result.headers[NODES[0]]


def test_a_stage_comes_back_from_its_bytes():
    configs = {
        Key.STAGE: Stage.SHARE_KEYS,
        Key.CLIPPING_RANGE: 8.0,
        Key.ACTIVE_NODE_ID_LIST: [2**63, 2**64 - 1],
        Key.SOURCE_LIST: [],
        Key.PUBLIC_KEY_1: b"",
        "17": [b"a\0", b"bc"],
    }
    whole = with_stage(TRAIN, configs)
    plain, back = without_stage(from_bytes(to_bytes(whole)))
    assert dict(back) == configs and plain.header == TRAIN.header
    assert plain.arrays["a"].tolist() == [0, 1, 2] and list(plain.arrays) == ["a"]


@pytest.mark.parametrize(
    "stage",
    [
        None,
        [],
        {"values": {}},
        {"values": {"a": {}}, "strings": {}},
        {"values": {"a": [1, "b"]}, "strings": {}},
        {"values": {}, "strings": {"a": None}},
        {"values": {}, "strings": {"a": 10**18}},
        {"values": {}, "strings": {"a": "b"}},
        {"values": [1], "strings": {}},
    ],
    ids=range(9),
)
def test_a_stage_that_is_none_is_one_line(stage):
    with pytest.raises(ValueError, match="not a stage of a sum: ") as error:
        without_stage(Envelope({STAGE: stage}, {}))
    assert str(error.value).isprintable()


def _reshaped(reply: Envelope, shape: tuple) -> Envelope:
    vector = f"{STAGE}/{Key.MASKED_PARAMETERS}/1"
    return reply._replace(arrays=reply.arrays | {vector: np.resize(reply.arrays[vector], shape)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda reply: with_stage(Envelope(reply.header, {}), {}),
            "in its reply is missing or inv",
        ),
        (
            lambda reply: with_stage(Envelope(reply.header, {}), {Key.MASKED_PARAMETERS: ["a"]}),
            "in its reply is missing or invalid",
        ),
        (lambda reply: _reshaped(reply, (SIZE + 1,)), f"has the shapes .* not .*{SIZE},"),
        (lambda reply: _reshaped(reply, (1,)), f"has the shapes .* not .*{SIZE},"),
        (lambda reply: _reshaped(reply, (SIZE, 1)), r"int64 \[.*, 1\] in place of a vector"),
        (lambda reply: reply._replace(header=reply.header | {"finite": "yes"}), "not a bool"),
    ],
    ids=["none", "strings", "longer", "shorter", "column", "header"],
)
def test_the_sum_skips_a_client_with_a_bad_vector_or_header(monkeypatch, change, message):
    """NumPy would add a column to a vector by broadcasting, to a matrix that fills the memory."""
    sent = vectors()
    link, _ = local_link(monkeypatch, sent)

    def changed(node, stage, reply):
        is_bad = node == NODES[1] and stage == Stage.COLLECT_MASKED_VECTORS
        return change(reply) if is_bad else reply

    link.changed = changed
    result = summed(
        link, problem_of=lambda _, header: "" if header["finite"] is True else "not a bool"
    )
    np.testing.assert_allclose(result.total, sent[[0, 2, 3]].sum(0), atol=4 * STEP)
    assert set(result.headers) == {NODES[0], NODES[2], NODES[3]}
    assert re.search(message, result.lost[NODES[1]]) and len(result.lost) == 1


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.UNMASK])
def test_a_reply_without_the_values_of_its_stage_is_lost(monkeypatch, stage):
    sent = vectors()
    link, _ = local_link(monkeypatch, sent)

    def changed(node, now, reply):
        return with_stage(Envelope({}, {}), {}) if (node, now) == (NODES[1], stage) else reply

    link.changed = changed
    result = summed(link)
    in_sum = [0, 1, 2, 3] if stage == Stage.UNMASK else [0, 2, 3]
    np.testing.assert_allclose(result.total, sent[in_sum].sum(0), atol=4 * STEP)


def test_bad_shares_cost_the_sum_and_not_the_run(monkeypatch):
    link, _ = local_link(monkeypatch, vectors())
    link.lost = lambda node, stage: node == NODES[0] and stage == Stage.COLLECT_MASKED_VECTORS
    wrong = {Key.NODE_ID_LIST: NODES[:4], Key.SHARE_LIST: [b"a"] * 4}
    link.changed = lambda node, stage, reply: (
        with_stage(Envelope({}, {}), wrong) if stage == Stage.UNMASK else reply
    )
    result = summed(link)
    assert isinstance(result.total, str) and "Error: " in result.total and "\n" not in result.total
    assert not result.headers


def test_the_transport_sums_by_group_and_says_which_clients_are_lost(monkeypatch):
    sent = vectors(5)
    link, _ = local_link(monkeypatch, sent)
    meet, _, add, *_ = flower_transport(link, 0.0, 1.0, print)
    meet(Envelope({"kind": "hello"}, {}), 5)
    link.lost = lambda node, stage: node == NODES[3]
    requests, groups = dict.fromkeys(range(5), TRAIN), {"all": [0, 1, 2, 3, 4]}
    answers, totals = add(requests, groups, {"all": SIZE}, lambda i, _: "bad" if i == 4 else "")
    np.testing.assert_allclose(totals["all"], sent[:3].sum(0), atol=4 * STEP)
    assert answers[3].header == {"error": "no answer"} and answers[4].header == {"error": "bad"}
    assert answers[1].header == {"client": 1, "finite": True}
    assert totals.keys() == {"all"}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_plain_message_is_never_called_masked(monkeypatch, kind):
    """The server may write anything into the header."""
    link, requests = local_link(monkeypatch, vectors())
    message = Envelope({"kind": kind, "masked": True}, {})
    reply = link.exchange({NODES[0]: message}, {}, 1.0)[NODES[0]]
    assert requests[0][1].header == {"kind": kind, "masked": False}
    assert reply.header["client"] == 0


SETUP = {
    Key.STAGE: Stage.SETUP,
    Key.SAMPLE_NUMBER: 5,
    Key.SHARE_NUMBER: 5,
    Key.THRESHOLD: 3,
    Key.CLIPPING_RANGE: 8.0,
    Key.TARGET_RANGE: STEPS,
    Key.MOD_RANGE: MODULUS,
    Key.MAX_WEIGHT: 1.0,
}
KEYS = {Key.STAGE: Stage.SHARE_KEYS} | {str(i): [b"a", b"b"] for i in range(3)}
COLLECT = {Key.STAGE: Stage.COLLECT_MASKED_VECTORS, Key.CIPHERTEXT_LIST: [b"c"] * 2}
COLLECT[Key.SOURCE_LIST] = [1, 2]
UNMASK = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [0, 1, 2], Key.DEAD_NODE_ID_LIST: [3]}


@pytest.mark.parametrize(
    ("stage", "change", "message"),
    [
        (SETUP, {Key.MOD_RANGE: 1 << 23}, f"mod_range is {1 << 23}, not {MODULUS}"),
        (SETUP, {Key.MAX_WEIGHT: 1e9}, "max_weight is"),
        (SETUP, {Key.CLIPPING_RANGE: 1e-9}, "clipping_range is 1e-09, not from 1 to 500"),
        (SETUP, {Key.CLIPPING_RANGE: 1e9}, "clipping_range is 1"),
        (SETUP, {Key.CLIPPING_RANGE: float("nan")}, "clipping_range is nan"),
        (SETUP, {Key.THRESHOLD: 2}, "2 of 5 shares of 5 clients"),
        (SETUP, {Key.SAMPLE_NUMBER: 9}, "3 of 5 shares of 9 clients"),
        (KEYS, {"2": None}, "a sum of 2"),
        (COLLECT, {Key.SOURCE_LIST: [1, 1]}, "a sum of 2"),
        (COLLECT, {Key.SOURCE_LIST: [0, 1]}, "a sum of 2"),
        (UNMASK, {Key.ACTIVE_NODE_ID_LIST: [0, 1]}, "a sum of 2"),
        (UNMASK, {Key.DEAD_NODE_ID_LIST: [2]}, "both secrets of one client"),
    ],
    ids=range(12),
)
def test_a_client_refuses_what_would_not_hide_it(stage, change, message):
    check_stage(ConfigRecord(stage), 0)
    changed = {name: value for name, value in (stage | change).items() if value is not None}
    with pytest.raises(ValueError, match=f"would not hide a client: {message}"):
        check_stage(ConfigRecord(changed), 0)


def test_masks_depend_on_all_of_a_key():
    """Flower's own generator takes the exclusive or of a key's words, which these two share."""
    shapes = [(), (3, 5), (1000,)]
    masks = mask_stream(b"abcdefgh" * 4, MODULUS, shapes)
    assert [mask.shape for mask in masks] == shapes
    for mask, repeated in zip(masks, mask_stream(b"abcdefgh" * 4, MODULUS, shapes)):
        np.testing.assert_array_equal(mask, repeated)
    long = masks[2]
    assert (long != mask_stream(b"efghabcd" * 4, MODULUS, shapes)[2]).all()
    assert np.unique(long).size == 1000 and long.dtype == np.int64
    assert long.min() >= 0 and long.max() < MODULUS and abs(long.mean() / MODULUS - 0.5) < 0.05
    with pytest.raises(ValueError, match="masks below 7"):
        mask_stream(b"a", 7, shapes)


def test_flowers_functions_stay_as_they_are_and_one_without_masks_is_refused():
    theirs = secaggplus_utils.pseudo_rand_gen
    copy = with_mask_stream(secaggplus_workflow.SecAggPlusWorkflow.unmask_stage)
    assert copy.__globals__["pseudo_rand_gen"] is mask_stream
    assert secaggplus_workflow.pseudo_rand_gen is theirs is not mask_stream
    with pytest.raises(RuntimeError, match="setup_stage does not call pseudo_rand_gen"):
        with_mask_stream(secaggplus_workflow.SecAggPlusWorkflow.setup_stage)
