"""Flower's real SecAgg+ in one process: sums are right, whoever is lost when, and nothing else
comes through."""

import functools

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation import secaggplus_utils
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow.secure_aggregation import secaggplus_workflow

from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.flower import from_records, grid_nodes, to_records
from fedjax_ht.deploy.masks import MODULUS, STEPS, stream, threshold, with_stream
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.secagg import sum_of
from fedjax_ht.deploy.secagg_client import check_asked
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import Transport
from fedjax_ht.deploy.site import answer
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy.grid import LocalGrid
from tests.deploy.sites import CLOCK, simulation_of, sites_of, small_config

LIMIT, SIZE, TRAIN = 8.0, 50, Envelope({"kind": "train"}, {"a": np.arange(3.0)})
STEP = 2 * LIMIT / STEPS
NODES = [2**63 + 7 * i for i in range(4)]
STAGES = [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK]


def vectors(clients=4) -> np.ndarray:
    """Values and counts, float32 [clients, SIZE]."""
    rng = np.random.default_rng(0)
    return np.where(
        np.arange(SIZE) % 2, rng.normal(size=(clients, SIZE)), rng.integers(0, 2, (clients, SIZE))
    ).astype(np.float32)


def local_grid(monkeypatch, found, heads=None) -> tuple[LocalGrid, list]:
    """Clients that answer vectors, and what they were asked."""
    asked = []

    def client(i):
        def answer(envelope):
            asked.append((i, envelope))
            head = {"client": i, "finite": True} | (heads or {}).get(i, {})
            return Envelope(head, {"vector": found[i]} if envelope.head["kind"] == "train" else {})

        return answer

    return LocalGrid(
        monkeypatch, {node: client(i) for i, node in enumerate(NODES[: len(found)])}
    ), asked


def summed(grid, limit=LIMIT):
    return sum_of(grid, {node: to_records(TRAIN) for node in grid.clients}, limit, 1.0)


def test_a_sum_without_one_that_is_not_finite_and_nothing_else_comes_through(monkeypatch):
    own = vectors()
    grid, asked = local_grid(monkeypatch, own, {2: {"finite": False}})
    found = summed(grid)
    np.testing.assert_allclose(found.total, own[[0, 1, 3]].sum(0), atol=3 * STEP)
    # it went through the protocol's rounding
    assert np.abs(found.total - own[[0, 1, 3]].sum(0)).max() > STEP / 100
    assert found.lost == {NODES[2]: "its result is not finite"}
    assert {node: head["client"] for node, head in found.heads.items()} == {
        NODES[i]: i for i in (0, 1, 3)
    }
    assert all(
        e.head == {"kind": "train", "masked": True} and e.arrays["a"].tolist() == [0, 1, 2]
        for _, e in asked
    )
    sent = [
        (node, content)
        for node, stage, content in grid.seen
        if stage == Stage.COLLECT_MASKED_VECTORS
    ]
    assert sorted(node for node, _ in sent) == [NODES[0], NODES[1], NODES[3]]
    for node, content in sent:
        assert not any(len(arrays) for arrays in content.array_records.values())
        factor, hidden = map(
            bytes_to_ndarray, content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
        )
        plain = quantize([own[NODES.index(node)].astype(float)], LIMIT, STEPS)[0]
        assert hidden.shape == (SIZE,) and factor[0] != STEPS
        # of masks as wide as the modulus
        assert np.abs(hidden - plain).min() > 2 and np.ptp(hidden) > MODULUS / 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_may_be_lost_at_any_stage(monkeypatch, stage):
    own = vectors()
    grid, _ = local_grid(monkeypatch, own)
    grid.lost = lambda node, now: node == NODES[1] and now == stage
    found, there = summed(grid), [0, 1, 2, 3] if stage == Stage.UNMASK else [0, 2, 3]
    np.testing.assert_allclose(found.total, own[there].sum(0), atol=4 * STEP)
    assert sorted(head["client"] for head in found.heads.values()) == there
    assert found.lost == ({} if stage == Stage.UNMASK else {NODES[1]: "no answer"})


@pytest.mark.parametrize("stage", STAGES)
def test_with_too_few_left_there_is_no_sum(monkeypatch, stage):
    grid, _ = local_grid(monkeypatch, vectors())
    grid.lost = lambda node, now: node in NODES[1:3] and now == stage
    found = summed(grid)
    assert found.total == "2 of 4 clients are left, and it takes 3" and not found.heads
    assert set(found.lost.values()) == {"no answer"} and set(found.lost) == set(NODES[1:3])


def test_two_clients_have_no_sum(monkeypatch):
    grid, asked = local_grid(monkeypatch, vectors(2))
    assert summed(grid).total == "2 clients are there, and it takes 3" and not asked
    assert [threshold(n) for n in (3, 4, 5, 6, 7, 100)] == [3, 3, 3, 4, 4, 51]


def test_what_is_beyond_the_range_is_cut_and_said(monkeypatch):
    own = vectors()
    own[1, :3] = [9.5, -20.0, 8.0]
    grid, _ = local_grid(monkeypatch, own)
    found = summed(grid)
    np.testing.assert_allclose(found.total, np.clip(own, -8, 8).sum(0), atol=4 * STEP)
    assert found.heads[NODES[1]]["warning"] == "2 entries are beyond --sum_range=8 and were cut"
    assert "warning" not in found.heads[NODES[0]]


def test_a_header_that_cannot_be_read_is_none_and_the_sum_is_whole(monkeypatch):
    own = vectors()
    grid, _ = local_grid(monkeypatch, own, {1: {"metrics": {"loss": 10**400}}})
    found = summed(grid)
    np.testing.assert_allclose(found.total, own.sum(0), atol=4 * STEP)
    assert found.heads[NODES[1]] == {} and found.heads[NODES[0]]["client"] == 0


@pytest.mark.parametrize("how", ["longer", "empty"])
def test_a_bad_vector_costs_the_sum_and_not_the_run(monkeypatch, how):
    grid, _ = local_grid(monkeypatch, [*vectors(3), np.zeros(SIZE + 1, np.float32)])

    def changed(node, stage, content):
        if how == "empty" and node == NODES[1] and stage == Stage.COLLECT_MASKED_VECTORS:
            content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord({})
        return content

    grid.changed = changed
    found = summed(grid)
    assert (
        isinstance(found.total, str)
        and "Error: " in found.total
        and "\n" not in found.total
        and not found.heads
    )


def test_the_transport_sums_by_group_and_says_who_is_lost(monkeypatch):
    own = vectors()
    grid, _ = local_grid(monkeypatch, own)
    meet, _, add = grid_nodes(grid, 0.0, 1.0, print)
    meet(Envelope({"kind": "hello"}, {}), 4)
    grid.lost = lambda node, stage: node == NODES[3]
    answers, totals = add(
        dict.fromkeys(range(4), TRAIN), {"all": [0, 1, 2, 3]}, dict.fromkeys(range(4), 8 * SIZE)
    )
    np.testing.assert_allclose(totals["all"], own[:3].sum(0), atol=4 * STEP)
    assert answers[3].head == {"error": "no answer"} and answers[1].head == {
        "client": 1,
        "finite": True,
    }
    assert totals.keys() == {"all"} and add(
        dict.fromkeys(range(2), TRAIN), {"two": [0, 1]}, dict.fromkeys(range(2), 8 * SIZE)
    )[1] == {"two": "2 clients are there, and it takes 3"}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_plain_message_is_never_called_masked(monkeypatch, kind):
    """Whatever the server writes into the head, and by whichever of Flower's types it comes."""
    grid, asked = local_grid(monkeypatch, vectors())
    message = Message(to_records(Envelope({"kind": "train", "masked": True}, {})), NODES[0], kind)
    (reply,) = grid.send_and_receive([message])
    assert (
        asked[0][1].head == {"kind": "train", "masked": False}
        and from_records(reply.content).head["client"] == 0
    )


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
COLLECT = {
    Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
    Key.CIPHERTEXT_LIST: [b"c"] * 2,
    Key.SOURCE_LIST: [1, 2],
}
UNMASK = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [0, 1, 2], Key.DEAD_NODE_ID_LIST: [3]}


@pytest.mark.parametrize(
    ("asked", "change", "words"),
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
def test_a_client_refuses_what_would_not_hide_it(asked, change, words):
    check_asked(ConfigRecord(asked), 0)
    with pytest.raises(ValueError, match=f"would not hide a client: {words}"):
        check_asked(ConfigRecord({k: v for k, v in (asked | change).items() if v is not None}), 0)


def test_masks_depend_on_all_of_a_key():
    """Flower's own generator takes the exclusive or of a key's words, which these two share."""
    shapes = [(), (3, 5), (1000,)]
    one, other, again = (
        stream(key, MODULUS, shapes) for key in (b"abcdefgh" * 4, b"efghabcd" * 4, b"abcdefgh" * 4)
    )
    assert [x.shape for x in one] == shapes and all((a == b).all() for a, b in zip(one, again))
    assert (one[2] != other[2]).all() and (np.unique(one[2]).size, one[2].dtype) == (1000, np.int64)
    assert (
        one[2].min() >= 0 and one[2].max() < MODULUS and abs(one[2].mean() / MODULUS - 0.5) < 0.05
    )
    with pytest.raises(ValueError, match="masks below 7"):
        stream(b"a", 7, shapes)


def test_flowers_functions_stay_as_they_are_and_one_without_masks_is_refused():
    theirs = secaggplus_utils.pseudo_rand_gen
    copy = with_stream(secaggplus_workflow.SecAggPlusWorkflow.unmask_stage)
    assert copy.__globals__["pseudo_rand_gen"] is stream
    assert secaggplus_workflow.pseudo_rand_gen is theirs is not stream
    with pytest.raises(RuntimeError, match="setup_stage does not call pseudo_rand_gen"):
        with_stream(secaggplus_workflow.SecAggPlusWorkflow.setup_stage)


@pytest.mark.slow
def test_a_deployment_by_secure_sums_is_the_simulation_but_for_rounding(monkeypatch, tmp_path):
    """FedProto's, by Flower's own protocol; in its second round a client is lost once its shares
    are dealt."""
    config, said = small_config("fedproto"), []
    spans = [(i, k, k) for i in range(4) for k in range(2) if (i, k) != (2, 1)]
    experiment, simulation = simulation_of(config, profile=Profile(available=by_trace(4, spans)))
    sites = sites_of(config, experiment, tmp_path, secure_sums=True)
    grid = LocalGrid(
        monkeypatch, {node: functools.partial(answer, sites[i]) for i, node in enumerate(NODES)}
    )
    masked = [0]

    def lost(node, stage):
        masked[0] += node == NODES[2] and stage == Stage.COLLECT_MASKED_VECTORS
        return node == NODES[2] and stage == Stage.COLLECT_MASKED_VECTORS and masked[0] == 2

    grid.lost = lost
    transport = Transport(*grid_nodes(grid, 0.0, 1.0, said.append))
    rows = serve(make_plan(config, secure_sums=True), tmp_path / "server", transport, said.append)
    assert "client 2, round 2: no answer" in said
    simulated = run(simulation, 2)[1]
    assert len(rows) == len(simulated) == 3
    for own, other in zip(simulated, rows):
        left = {*CLOCK, "absent"}
        assert own.keys() - left == other.keys() - left
        for name in own.keys() - left:
            np.testing.assert_allclose(
                np.array(other[name], float), np.array(own[name], float), rtol=1e-5, err_msg=name
            )
