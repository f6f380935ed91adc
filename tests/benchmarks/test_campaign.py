"""Slices of measurements: what is done stays done, what fails is told, and a clock stops the
rest."""

import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.campaign import checks, pages, peer_pages, protocols, rounds, slices
from benchmarks.campaign.peers import PEER_SLICES
from benchmarks.campaign.plan import SLICES
from benchmarks.campaign.slices import Item, Slice
from experiments.configs.fashion_mnist_class_shares import get_config
from fedjax_ht.data.partition import partition_options
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import changes, entries_of
from fedjax_ht.lab.runs import options as experiment_options
from fedjax_ht.lab.runs.training import local_training
from fedjax_ht.simulation import engine

MACHINE = {"device": "a device"}


def failing(error: str) -> dict:
    raise ValueError(error)


def items(ran: list, *processes: str) -> list[Item]:
    """Items a, b, ... of these processes; each notes that it ran."""

    def run(name: str) -> dict:
        ran.append(name)
        return {"value": float("nan")}

    return [Item(name, run, {"name": name}, process) for name, process in zip("abcdef", processes)]


def supervised(
    path, todo: list[Item], budget: float = 60.0, deaths: int = 0
) -> tuple[str | None, int]:
    """Returns the message of `supervise` and the number of its processes; each of the first
    `deaths` dies in the middle of an item."""
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


def test_finished_items_are_not_run_again(tmp_path):
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
    broken = [
        Item("broken", failing, {"error": "two\nlines"}),
        Item("strange", lambda: {"result": object()}, {}),
    ]
    wrong = Item("wrong", lambda: {"wrong": "off by one"}, {})
    assert supervised(path, [*broken, wrong, *items(ran, "")]) == (None, 1)
    failures = slices.failures(slices.read(path))
    assert ran == ["a"] and list(failures) == ["broken", "strange", "wrong"]
    assert failures["broken"] == "ValueError: two lines" and failures["wrong"] == "off by one"
    assert failures["strange"].startswith("TypeError")


def test_a_process_that_dies_costs_the_item_it_died_in(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    assert supervised(path, items(ran, "", "", ""), deaths=2) == (None, 3)
    assert ran == ["c"]
    assert slices.failures(slices.read(path)) == dict.fromkeys(
        "ab", "its process ended with code -11"
    )


def test_a_process_that_does_nothing_ends_the_slice(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    todo = items(ran, "")
    assert (
        slices.supervise(path, todo, lambda deadline: 3, 60)
        == "a process ended with code 3 before any item"
    )


def test_after_the_budget_nothing_begins(tmp_path):
    path, ran = tmp_path / "slice_1.json", []
    slow = Item("slow", lambda: time.sleep(0.2) or {}, {})
    todo = [slow, *items(ran, "")]
    assert supervised(path, todo, budget=0.1) == (None, 1)
    assert not ran and [item.name for item in slices.missing(slices.read(path), todo)] == ["a"]
    assert supervised(path, todo, budget=60) == (None, 1) and ran == ["a"]


def test_an_item_that_began_late_is_left_to_the_next_slice():
    now, budget = time.time(), 500.0
    log = {"machines": [MACHINE], "items": {}}
    late = {"item": "late", "at": now - 100}  # began after 460 of 500 + 60 seconds
    slices.settle(log, late, 1, now - 100 - 460, budget)
    assert log["items"] == {}
    slices.settle(log, {"item": "endless", "at": now - 550}, 1, now - 560, budget)
    assert log["items"]["endless"]["error"] == "stopped after 550 s"


def test_a_report_of_what_there_is(tmp_path):
    todo = items([], "", "")

    def page(results):
        return f"{len(results)} results"

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
    """The protocol is written without ml_collections."""
    config, calls = get_config(f"method={method},recipe=small_batches"), []
    for name in ("load_dataset", "normalised", "make_partition"):
        monkeypatch.setattr(checks, name, lambda *args, **options: calls.append((args, options)))
    checks.class_shares("fashion_mnist", 100)
    (data, _), ((_, kind), _), ((split, _, clients), options) = calls
    assert (
        data == (config.dataset.name, config.dataset.data_dir)
        and kind == config.dataset.normalisation
    )
    partition = config.partition
    assert (split, clients, options.pop("seed")) == (
        partition.kind,
        partition.num_clients,
        partition.seed,
    )
    known = {name: parameter.default for name, parameter in partition_options(split).items()}
    assert known | options == partition.options.to_dict()
    assert checks.shares_options(100) == experiment_options.simulation_options(typed_config(config))
    (entry,) = entries_of(typed_config(config))
    assert changes(entry) == checks.FIXED_OPTIONS.get(method, {})


def test_the_recipe_is_of_the_committed_config():
    ours, theirs = (
        checks.local_training(),
        local_training(typed_config(get_config("recipe=small_batches")).training),
    )
    other = {"optimizer", "augmentation"}
    assert all(
        vars(ours)[name] == value for name, value in vars(theirs).items() if name not in other
    )
    params, gradients = {"a": jnp.ones(3)}, {"a": jnp.arange(3.0)}
    steps = [
        t.optimizer.update(gradients, t.optimizer.init(params), params)[0]["a"]
        for t in (ours, theirs)
    ]
    np.testing.assert_array_equal(*steps)
    key, x = jax.random.key(0), jax.random.uniform(jax.random.key(1), (4, 8, 8, 1))
    np.testing.assert_array_equal(*(t.augmentation(key, x, jnp.zeros(1)) for t in (ours, theirs)))


# What a machine with a GPU may lack of the package's dependencies, and what only tests have.
LACKING = (
    "ml_collections",
    "matplotlib",
    "PIL",
    "tqdm",
    "tensorflow_datasets",
    "pytest",
    "torch",
)
BARE = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({LACKING}))  # an import of one raises ImportError
from benchmarks.campaign import plan, slices
for part in plan.SLICES.values():
    slices.resolve(part.page)
    for item in (*part.items, *part.rehearsal):
        slices.resolve(item.run)
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    "module", ["tests.methods.recording", "benchmarks.fedktl_server", "benchmarks.dfrd_server"]
)
def test_a_campaign_needs_few_packages(module):
    """The modules are those that items import when they run, two of which define the same flag."""
    done = subprocess.run([sys.executable, "-c", BARE, module], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_clients_of_a_protocol_hold_as_many_images_as_it_says():
    dataset, partition = protocols.federated_images(
        [8, 8, 3], 5, clients=4, samples=12, tested=3, alpha=None
    )
    assert dataset.inputs.shape == (60, 8, 8, 3) and dataset.num_classes == 5
    assert [(len(client.train), len(client.test)) for client in partition] == [(12, 3)] * 4
    rows = np.concatenate([np.concatenate([client.train, client.test]) for client in partition])
    np.testing.assert_array_equal(np.sort(rows), np.arange(60))
    dataset, partition = protocols.federated_images(
        [8, 8, 3], 5, clients=4, samples=30, tested=10, alpha=0.1
    )
    assert len(dataset.labels) == 160
    for client in partition:
        assert abs(len(client.train) - 3 * len(client.test)) <= 3
    assert len({len(client.train) for client in partition}) > 1


PUBLISHED = {  # item -> seconds of a round, or bytes, as their authors name them
    "PFLlib, MNIST, cnn4, fedavg": [17.2],
    "PFLlib, Tiny-ImageNet, resnet18, fedavg": [95.4],
    "PFLlib, Tiny-ImageNet, resnet18, fd": [166.8],
    "PFLlib, Tiny-ImageNet, resnet18, fedproto": [331.2],
    "PFLlib, CIFAR-100, cnn4, local, states on the host": [5.08e9],
    "BlazeFL, CIFAR-10, blazefl, fedavg": [16.2, 22.0],
    "BlazeFL, CIFAR-10, resnet18, fedavg": [36.8, 98.0],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_stand_beside_ours(name):
    (item,) = [item for part in PEER_SLICES.values() for item in part.items if item.name == name]
    published, peaks = (item.arguments.get(key, {}) for key in ("published", "published_peak"))
    assert [*published.values(), *peaks.values()] == pytest.approx(PUBLISHED[name])
    timing = {
        "round": 2.0,
        "evaluation": 0.5,
        "compile": 3.0,
        "peak": 1e9,
        "steps": 1200,
        "longest": 70,
    }
    timing |= {"protocol": "P", "group": "g", "method": "m", "clients": 20, "lanes": {"g": 4}}
    row = peer_pages.protocol_cells(
        timing | {"client_store": "device", "published": published, "published_peak": peaks}
    )
    assert row[3:6] == ["2.000", "0.500", "2.500"] and row[8] == "1.00"
    if published:
        assert [
            float(part.split(", ")[-1].removesuffix(" x")) for part in row[6].split(";")
        ] == pytest.approx([seconds / 2.5 for seconds in published.values()], rel=0.01)
    else:
        assert row[6] == "-" and row[9].endswith("5.08")


def test_htfllibs_round_holds_its_evaluation():
    ours = {"method": "fd", "round": 1.5, "evaluation": 0.5, "compile": 9.0, "peak": 2e9}
    theirs = {
        "side": "HtFLlib",
        "method": "fd",
        "round": 30.0,
        "evaluation": 4.0,
        "version": "2.11",
    }
    head, _, row = peer_pages.beside_htfllib(
        {"fd, HtFLlib": theirs, "fd, ours": ours}
    ).splitlines()[2:]
    assert len(head.split("|")) == len(row.split("|"))
    assert [cell.strip() for cell in row.split("|")[1:7]] == [
        "fd",
        "30.00",
        "4.00",
        "1.500",
        "0.500",
        "15.0",
    ]
    missing = peer_pages.beside_htfllib(
        {"fd, HtFLlib": {"side": "HtFLlib", "method": "fd", "note": "no checkout"}}
    )
    assert "| fd | no checkout | - | - | - | - | - | - | - |" in missing


def test_a_round_of_a_protocol_is_timed_with_its_evaluation():
    setting = {
        "shape": [4, 4, 1],
        "classes": 3,
        "clients": 2,
        "samples": 6,
        "tested": 2,
        "rounds": 2,
    }
    timing = protocols.protocol_round(
        "P", "mlp2", "fedproto", **setting, variant="released", client_store="host"
    )
    assert (
        json.dumps(slices.plain(timing))
        and timing["steps"] == 2
        and timing["client_store"] == "host"
    )
    assert len(timing["rounds"]) == 2 and min(timing["round"], timing["evaluation"]) > 0
    assert "evaluation" not in protocols.protocol_round(
        "P", "mlp2", "local", **setting, evaluate=False
    )


def test_pfls_run_is_told_where_it_stopped(monkeypatch):
    pfl = protocols.PROTOCOLS["pfl"]
    network = pfl.network._replace(convs=((2, 3, 0, True),), widths=(4,))
    tiny = pfl._replace(samples=10, network=network)
    monkeypatch.setitem(protocols.PROTOCOLS, "pfl", tiny)
    result = protocols.pfl_run(rounds=2, users=4, cohort=2, every=1, images="random")
    assert (
        result["rounds"] == 2
        and "wrong" not in result
        and [r for r, _ in result["curve"]] == [0, 1, 2]
    )
    stopped = protocols.pfl_run(rounds=3, users=4, cohort=2, every=1, images="random", limit=0.0)
    assert stopped["wrong"] == "1 of 3 rounds in 0 s"
    assert "2 rounds with evaluations in" in peer_pages.run_line(result)


def test_estimates_are_read_from_the_page():
    known = pages.estimates()
    assert (
        float(known["resnet18", "3"]["launch ms"]) > 0
        and known["cnn5", "3"]["kernels a step"].count("+") == 4
    )
    # 2.5 us a kernel is what the page's estimate goes by.
    assert pages.launch_cost("cnn4", float(known["cnn4", "3"]["launch ms"])) == pytest.approx(
        2.5, rel=0.05
    )
    assert pages.launch_cost("mlp2", 1.0) is None


def test_a_group_that_was_not_compiled_has_no_cost_of_a_kernel(monkeypatch):
    monkeypatch.setattr(pages, "estimates", lambda: {("cnn4", "3"): {"kernels a step": "-"}})
    assert pages.launch_cost("cnn4", 1.0) is None


def test_simulations_compiled_another_way_find_no_programs_of_the_usual_one():
    usual = engine.buckets_on_mesh
    with rounds.compiled(graphs=False, together=False):
        assert engine.buckets_on_mesh is rounds.apart
        assert engine._engine.cache_info().currsize == 0
    assert engine.buckets_on_mesh is usual
