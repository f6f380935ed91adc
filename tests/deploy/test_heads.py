"""What a server believes of a client's head."""

import pytest

from fedjax_ht.deploy.heads import unreadable
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.server import Transport, met
from tests.deploy.sites import small_config

RULES = ("head",)
TEST = {"test": {"correct": {"head": 2}, "count": 3}}
ALL = {split: {"correct": {"head": 0}, "count": 0} for split in ("train", "val")} | TEST
GOOD = {
    "hello": {"client": 0, "counts": {"train": 3, "val": 0, "test": 2}, "flops": 1e3, "task": {"shape": [2]}},
    "train": {"finite": True, "metrics": {"loss": float("nan")}, "scores": TEST, "seconds": 0.1},
    "evaluate": {"scores": ALL},
}
BAD = [
    ("hello", "client", [-1, "0", True, None]),
    ("hello", "counts", [{}, {"train": 1}, {"train": 1, "val": 0, "test": -2}, {"train": 1.5, "val": 0, "test": 2}]),
    ("hello", "flops", [-1, "much", float("nan")]),
    ("hello", "task", [None, "images"]),
    ("train", "finite", [1, None]),
    ("train", "metrics", [None, {"loss": "0"}, [1]]),
    ("train", "seconds", [-1, None]),
    ("train", "scores", [{}, ALL, {"test": {"correct": {"head": 4}, "count": 3}}]),
    ("train", "scores", [{"test": {"correct": {}, "count": 3}}, {"test": {"correct": {"head": 1.5}, "count": 3}}]),
    ("evaluate", "scores", [TEST, None, ALL | {"test": 3}]),
]


@pytest.mark.parametrize("kind", GOOD)
def test_what_a_client_says_is_believed(kind):
    assert unreadable(GOOD[kind] | {"more": 1}, kind, None, RULES) == ""


@pytest.mark.parametrize(("kind", "name", "values"), BAD, ids=map(str, range(len(BAD))))
def test_what_it_does_not_say_is_named(kind, name, values):
    assert unreadable({k: v for k, v in GOOD[kind].items() if k != name}, kind, None, RULES) == name
    for value in values:
        assert unreadable(GOOD[kind] | {name: value}, kind, None, RULES) == name


def test_with_noise_it_says_epsilon_and_less():
    said = GOOD["train"] | {"epsilon": 3.0}
    assert unreadable(said, "train", "sample", RULES) == ""
    assert unreadable(GOOD["train"], "train", "sample", RULES) == "epsilon"
    assert unreadable(said | {"epsilon": float("nan")}, "train", "sample", RULES) == "epsilon"
    hidden = {"finite": True, "metrics": {}, "scores": {}, "epsilon": 3.0}
    assert unreadable(hidden, "train", "upload", RULES) == "" == unreadable({"scores": {}}, "evaluate", "upload", RULES)
    assert unreadable(hidden | {"scores": TEST}, "train", "upload", RULES) == "scores"


def test_who_cannot_be_read_is_left_out():
    said, plan = [], make_plan(small_config())
    heads = {0: GOOD["hello"], 1: GOOD["hello"] | {"flops": None}, 7: GOOD["hello"]}
    transport = Transport(lambda letter, wanted: heads, None, None)
    assert met(plan, transport, 0, said.append) == {0: GOOD["hello"]}
    assert said == [
        "client 1 is left out: what it says of 'flops' cannot be read",
        "client 7 is left out: the config has clients 0 to 3",
    ]
