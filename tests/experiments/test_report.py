"""The page of a run: what stands in it, and that it needs nothing else."""

import re

import pytest

from experiments.build import build
from experiments.configs.base import base_config
from experiments.report import from_markdown, setting, warnings, write_report


def history(*accuracies, **columns):
    zeros = dict.fromkeys(("uplink_payload_bytes", "downlink_payload_bytes"), 0)
    return [
        {"round": i, "trial": 0, "accuracy": a, "clients": [a] * 4, "seconds_round": 1.0, "flops": 1e9}
        | zeros
        | columns
        for i, a in enumerate(accuracies)
    ]


@pytest.fixture(scope="module")
def run():
    config = base_config()
    config.entries, config.partition.num_clients, config.dataset.subset = ("local", "fedproto:weight=2.0"), 4, 800
    config.participation, config.training.epochs = 0.5, 3
    return config, build(config)


def test_the_page_stands_by_itself(run, tmp_path):
    config, experiment = run
    histories = {"local": history(0.1, 0.6), "fedproto:weight=2.0": history(0.1, 0.7, not_finite=[2])}
    (tmp_path / "fedproto:weight=2.0" / "images").mkdir(parents=True)
    (tmp_path / "fedproto:weight=2.0" / "images" / "00001.png").write_bytes(b"made")
    path = write_report(config, experiment, histories, {"Results": "| a | b |\n|---|---|\n| x | 1 < 2 |"}, tmp_path)
    page = path.read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        *("The setting", "Results", "Beside the first", "Who had what", "Accuracy", "What it took", "Clients"),
        *("The split", "What the servers made", "To watch", "To repeat it"),
    ]
    assert not re.search(r"(src|href)=\"(?!data:)", page) and "<script" not in page
    assert page.count("data:image/svg+xml;base64,") == 5 and page.count("data:image/png;base64,bWFkZQ==") == 1
    assert (
        "<td>1 &lt; 2</td>" in page
        and "+10.00" in page
        and "weight=2.0; on what that was chosen is not recorded" in page
    )
    assert "results that were not finite were left out in 2 rounds, first of clients 2 in round 0" in page


def test_the_setting_in_words(run):
    text = setting(*run)
    assert text.startswith("4 clients on fashion_mnist_10k, of whom 50 % take part in a round: 599 training images, ")
    assert "split practical, alpha 0.1, " in text and "batches of 10, 3 local epochs a round" in text
    assert text.endswith("100 rounds, seed 0.")


def test_a_fall_and_idle_lanes_are_pointed_at():
    assert warnings({"a": history(0.1, 0.6, 0.59)}) == []
    (fell,) = warnings({"a": history(0.1, 0.6, 0.5)})
    assert fell == "a: the last round is 10.0 points below the best"
    (idle,) = warnings({"a": history(0.1, 0.6, wasted_lane_steps=0.5)})
    assert idle == "a: 50 % of the steps of lanes waited for a longer client"


def test_what_the_tables_are_made_of():
    text = "Words & more.\n\n| a | b |\n|---|---|\n| c | |\n\n* one\n* two,\n  of two lines\n"
    assert from_markdown(text) == (
        "<p>Words &amp; more.</p><table><tr><th>a</th><th>b</th></tr><tr><td>c</td><td></td></tr></table>"
        "<ul><li>one</li><li>two,\n  of two lines</li></ul>"
    )
