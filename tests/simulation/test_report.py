import jax
import numpy as np
import pytest

from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.wire import WireCost
from fedjax_ht.lab.report.results import run_results
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.report import evaluation, round_report
from fedjax_ht.simulation.serving import Answers, ServerResult
from tests.standard import simulation_of


def result(arrived, finite, loss, up, down) -> ClientResult:
    def cost(column):
        return WireCost(*(np.array(column, np.uint32) * k for k in (1, 4, 2, 8)))

    metrics = {"loss": np.array(loss, np.float32)}
    flags = np.array(arrived, bool), np.array(finite, bool)
    return ClientResult((), *flags, metrics, cost(up), cost(down))


def scores(correct, count) -> dict[str, Scores]:
    return {"test": Scores({"head": np.array(correct)}, np.array(count))}


def answers(ids, result, scores, idle=(0.0, 4.0)) -> Answers:
    rows = np.arange(len(ids))
    return Answers(np.array(ids, int), rows, True, None, result, scores, rows, np.array(idle))


FIRST = [True, False, False]
RESULTS = [
    answers(  # client 0 was dropped
        [6, 0],
        result([True, False], [True, True], [1.0, 2.0], [10, 20], [1, 1]),
        scores([3, 1], [4, 2]),
    ),
    answers([], result([], [], [], [], []), scores([], [])),
    answers(
        [5, 1, 3],
        result(FIRST, FIRST, [6.0, np.nan, np.inf], [30, 40, 50], [2, 3, 4]),
        scores([0, 2, 5], [0, 8, 5]),  # client 5 has no test sample
        idle=(3.0, 4.0),
    ),
]


def server(far=(), finite=True, **metrics) -> ServerResult:
    far = np.array([dict(far).get(i, 0) for i in range(8)], np.float32)
    return ServerResult(metrics, np.bool_(finite), far, far > 1000, far < 0)


def test_round():
    result = server({5: 1e30, 6: 18.0, 0: 31.5}, finite=False, margin=np.float32(1.5))
    report = round_report(dict(enumerate(RESULTS)), result)
    assert report.far_off == ((0, 31.5), (5, pytest.approx(1e30))) and not report.server_finite
    assert report.refused == (5,)
    np.testing.assert_array_equal(report.participants, [0, 1, 3, 5, 6])
    assert report.arrived == 2 and report.not_finite == (1, 3)
    assert report.metrics == {"loss": pytest.approx((1 + 2 + 6) / 3)}
    assert report.server_metrics == {"margin": 1.5} and report.wasted_lane_steps == 0.25
    np.testing.assert_array_equal(report.accuracy["head"], [0.5, 0.25, 1.0, np.nan, 0.75])
    assert report.uplink == WireCost(40, 160, 80, 320)
    assert report.downlink == WireCost(11, 44, 22, 88)
    numbers = *report.uplink, *report.downlink, report.arrived, *report.not_finite
    assert all(isinstance(x, int) for x in numbers)


def test_sums_beyond_32_bits():
    heavy = result([True] * 3, [True] * 3, [0.0] * 3, [2**27] * 3, [2**27] * 3)
    report = round_report({"a": answers(range(3), heavy, {})}, server())
    assert report.accuracy == {}
    assert report.uplink.metadata_bytes == report.downlink.metadata_bytes == 3 * 2**30


def test_nobody_is_finite():
    answer = result([False], [False], [np.nan], [5], [7])
    report = round_report({"a": answers([4], answer, {})}, server())
    assert not report.metrics and report.not_finite == (4,) and report.arrived == 0
    assert report.uplink == WireCost(0, 0, 0, 0) and report.downlink == WireCost(7, 28, 14, 56)


def test_evaluation_joins_blocks_and_buckets():
    blocks = [
        (np.array([0, 3]), scores([3, 0], [4, 0])),
        (np.array([4]), scores([5], [5])),
        (np.array([2, 1]), scores([0, 1], [2, 2])),
    ]
    scored = evaluation(np.arange(5), blocks, None)
    np.testing.assert_array_equal(scored.accuracy["test"]["head"], [0.75, 0.5, 0.0, np.nan, 1.0])
    np.testing.assert_array_equal(scored.counts["test"], [4, 2, 2, 0, 5])
    np.testing.assert_array_equal(scored.counts["train"], np.arange(5))
    assert scored.counts["test"].dtype == np.int64 and scored.global_accuracy == {}


def test_scores_of_training_samples_change_no_count_that_others_use():
    train_counts = np.array([10, 20])
    of_train = {"train": Scores({"head": np.array([1])}, np.array([2]))}
    assert evaluation(train_counts, [(np.array([0]), of_train)], None).counts["train"][0] == 2
    np.testing.assert_array_equal(train_counts, [10, 20])


def test_evaluation_of_the_server():
    scored = np.array([0]), scores([1], [1])
    pooled = Scores({"a": np.int32(3), "b": np.int32(0)}, np.int32(12))
    assert evaluation(np.array([7]), [scored], pooled).global_accuracy == {"a": 0.25, "b": 0.0}
    nothing = Scores({"a": np.int32(0)}, np.int32(0))
    assert evaluation(np.array([7]), [scored], nothing).global_accuracy == {"a": 0.0}


def test_stages_and_rounds_that_are_not_scored_change_no_number():
    name = "fedproto"
    plain, changed = simulation_of(name), simulation_of(name, time_stages=True)
    (state, history), (other, rows) = run(plain, 3), run(changed, 3, score_every=2)
    states = (state.server, state.clients), (other.server, other.clients)
    jax.tree.map(np.testing.assert_array_equal, *states)
    named = [name for row in rows for name in row if name.startswith("seconds_")]
    assert {"seconds_train", "seconds_score", "seconds_serve", "seconds_host"} < set(named)
    for row in rows[1:]:  # the host's seconds are what no stage has: together they are the round
        parts = [row[f"seconds_{stage}"] for stage in ("train", "score", "serve", "host")]
        assert min(parts) >= 0 and sum(parts) <= row["seconds_round"]
    assert sum(parts) > 0.5 * row["seconds_round"]
    # the last always
    assert ["accuracy_participants" in row for row in rows] == [False, False, True, True]
    for row, expected in zip(history, rows):
        for key in row.keys() & expected.keys():
            assert key.startswith("seconds") or row[key] == expected[key], key
    assert "| train s | score s | serve s | host s |" in run_results({name: [rows]}).markdown()
    assert "train s" not in run_results({name: [history]}).markdown()
