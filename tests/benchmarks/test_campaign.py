"""Slices of measurements: what is done stays done, what fails is told, and a clock stops the rest."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import campaign_checks as checks
from benchmarks import slices
from benchmarks.campaign_slices import SLICES
from benchmarks.slices import Item, Slice
from fedjax_ht.configs.fashion_mnist_class_shares import get_config
from fedjax_ht.data.partition import partition_options
from fedjax_ht.runner import build
from fedjax_ht.runner.entries import changes, entries_of

MACHINE = {"device": "a device"}


def failing(error: str) -> dict:
    raise ValueError(error)


def items(ran: list, *processes: str) -> list[Item]:
    """Items a, b, ... of these processes; each notes that it ran."""

    def run(name: str) -> dict:
        ran.append(name)
        return {"value": float("nan")}

    return [Item(name, run, {"name": name}, process) for name, process in zip("abcdef", processes)]


def supervised(path, todo: list[Item], budget: float = 60.0, deaths: int = 0) -> tuple[str | None, int]:
    """What `supervise` says, and how many processes it took; each of the first few dies in the middle of an item."""
    started = []

    def start(deadline: float) -> int:
        started.append(deadline)
        if len(started) > deaths:
            slices.work(path, todo, MACHINE, deadline, lambda line: None)
            return 0
        log = slices.read(path)
        log["begun"] = {"item": slices.missing(log, todo)[0].name, "at": time.time()}
        slices.write(path, log)
        return -11

    return slices.supervise(path, todo, start, budget), len(started)


def test_what_is_done_is_not_done_again(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    todo = items(ran, "", "", "own")
    assert supervised(path, todo[:2]) == (None, 1) and ran == ["a", "b"]
    assert supervised(path, todo) == (None, 1) and ran == ["a", "b", "c"]
    assert supervised(path, todo) == (None, 0)
    log = json.loads(path.read_text())
    assert list(log["items"]) == ["a", "b", "c"] and log["machines"] == [MACHINE]
    assert log["items"]["a"]["result"] == {"value": None}  # NaN is no JSON
    assert [file.name for file in tmp_path.iterdir()] == ["slice_1.json"]


def test_a_name_of_a_process_starts_one(tmp_path):
    ran = []
    assert supervised(tmp_path / "slice_1.json", items(ran, "x", "x", "y", "", "x")) == (None, 4)
    assert ran == list("abcde")


def test_an_item_that_raises_is_told_and_the_next_runs(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    broken = [Item("broken", failing, {"error": "two\nlines"}), Item("strange", lambda: {"result": object()}, {})]
    wrong = Item("wrong", lambda: {"wrong": "off by one"}, {})
    assert supervised(path, [*broken, wrong, *items(ran, "")]) == (None, 1)
    told = slices.failures(slices.read(path))
    assert ran == ["a"] and list(told) == ["broken", "strange", "wrong"]
    assert told["broken"] == "ValueError: two lines" and told["wrong"] == "off by one"
    assert told["strange"].startswith("TypeError")


def test_a_process_that_dies_costs_the_item_it_died_in(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    assert supervised(path, items(ran, "", "", ""), deaths=2) == (None, 3)
    assert ran == ["c"]
    assert slices.failures(slices.read(path)) == dict.fromkeys("ab", "its process ended with code -11")


def test_a_process_that_does_nothing_ends_the_slice(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    todo = items(ran, "")
    assert slices.supervise(path, todo, lambda deadline: 3, 60) == "a process ended with code 3 before any item"


def test_after_the_budget_nothing_begins(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    slow = Item("slow", lambda: time.sleep(0.2) or {}, {})
    todo = [slow, *items(ran, "")]
    assert supervised(path, todo, budget=0.1) == (None, 1)
    assert not ran and [item.name for item in slices.missing(slices.read(path), todo)] == ["a"]
    assert supervised(path, todo, budget=60) == (None, 1) and ran == ["a"]


def test_what_the_clock_stopped_is_left_if_it_began_late():
    now, budget = time.time(), 500.0
    log = {"machines": [MACHINE], "items": {}}
    late = {"item": "late", "at": now - 100}  # began after 460 of 500 + 60 seconds
    slices.settle(log, late, 1, now - 100 - 460, budget)
    assert log["items"] == {}
    slices.settle(log, {"item": "endless", "at": now - 550}, 1, now - 560, budget)
    assert log["items"]["endless"]["error"] == "stopped after 550 s"


def test_a_report_of_what_there_is(tmp_path):
    todo = items([], "", "")
    page = lambda results: f"{len(results)} results"  # noqa: E731
    parts = {n: Slice(f"part {n}", "Text.", todo, todo[:1], page) for n in (1, 2, 3)}
    supervised(slices.file_of(tmp_path, 1), todo)
    supervised(slices.file_of(tmp_path, 3), [Item("a", failing, {"error": "broken"})])
    text = slices.report(tmp_path, parts, "Title")
    first, second, third = text.split("## ")[1:]
    assert "device a device." in first and "2 results" in first and "left" not in first
    assert second.endswith("Not run.\n\n")
    assert "a: **ValueError: broken**" in third and "left: b" in third and "results" not in third


def test_slices_are_numbered_and_their_items_named():
    assert list(SLICES) == list(range(1, len(SLICES) + 1))
    for part in SLICES.values():
        for todo in (part.items, part.rehearsal):
            assert todo and len({item.name for item in todo}) == len(todo)
            assert all(isinstance(item.run, str) and json.dumps(item.arguments) for item in todo)


@pytest.mark.parametrize("method", ["local", "fedssa", "fedral"])
def test_the_accuracies_are_of_the_committed_config(method, monkeypatch):
    """It is written without ml_collections."""
    config, calls = get_config(f"method={method}"), []
    for name in ("load_dataset", "normalised", "make_partition"):
        monkeypatch.setattr(checks, name, lambda *args, **options: calls.append((args, options)))
    checks.class_shares("fashion_mnist", 100)
    (data, _), ((_, kind), _), ((split, _, clients), options) = calls
    assert data == (config.dataset.name, config.dataset.data_dir) and kind == config.dataset.normalisation
    partition = config.partition
    assert (split, clients, options.pop("seed")) == (partition.kind, partition.num_clients, partition.seed)
    known = {name: parameter.default for name, parameter in partition_options(split).items()}
    assert known | options == partition.options.to_dict()
    assert checks.shares_options(100) == build.simulation_options(config)
    (entry,) = entries_of(config)
    assert changes(entry) == checks.OWN.get(method, {})


def test_the_recipe_is_of_the_committed_config():
    ours, theirs = checks.local_training(), build.local_training(get_config().training)
    other = {"optimizer", "augment"}
    assert all(vars(ours)[name] == value for name, value in vars(theirs).items() if name not in other)
    params, gradients = {"a": jnp.ones(3)}, {"a": jnp.arange(3.0)}
    steps = [t.optimizer.update(gradients, t.optimizer.init(params), params)[0]["a"] for t in (ours, theirs)]
    np.testing.assert_array_equal(*steps)
    key, x = jax.random.key(0), jax.random.uniform(jax.random.key(1), (4, 8, 8, 1))
    np.testing.assert_array_equal(*(t.augment(key, x, jnp.zeros(1)) for t in (ours, theirs)))
