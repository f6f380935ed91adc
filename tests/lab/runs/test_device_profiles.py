"""Profiles of devices: values of a field or a file, the largest model that fits, a whole run."""

import re

import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.report.bad_clients import why_silent
from fedjax_ht.lab.report.plots import accuracy_curves
from fedjax_ht.lab.report.results import run_results
from fedjax_ht.lab.runs.devices import client_values, fitting, make_profile
from fedjax_ht.lab.runs.federation import make_clients
from fedjax_ht.lab.runs.method import simulation_options
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.models import model_group
from tests.docs.test_examples import blocks, execute
from tests.federations import samples
from tests.lab.runs.folders import refused
from tests.runs import config_of, metrics
from tests.tiny import linear_federation


def fields(**values):
    config = base_config()
    config.devices_profile.update(values)
    return typed_config(config).devices_profile


def table(tmp_path, text: str) -> str:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    return str(path)


def test_by_default_nothing_is_simulated():
    assert make_profile(fields(), 3) is None
    assert simulation_options(typed_config(base_config())).devices_profile is None
    assert make_profile(fields(memory="1e9", seed=3), 3) is None  # of no round


def test_values_of_a_field():
    profile = make_profile(
        fields(flops="2e9", up="lognormal/100/0.5", deadline=3, available="0.7", seed=5), 2000
    )
    assert profile.down is None and profile.deadline == 3 and set(profile.flops) == {2e9}
    assert profile.late == "lost"
    assert make_profile(fields(up="9", deadline=3, late="arrives"), 3).late == "arrives"
    logs = np.log(profile.up / 100)
    assert abs(logs.mean()) < 5 * 0.5 / np.sqrt(2000) and abs(logs.std() - 0.5) < 0.05
    assert 0.65 < profile.available(4).mean() < 0.75
    fewer = make_profile(fields(up="lognormal/100/0.5", down="lognormal/100/0.5", seed=5), 10)
    np.testing.assert_array_equal(fewer.up, profile.up[:10])  # a client's own number
    assert not np.isclose(fewer.up, fewer.down).any()
    other = make_profile(fields(up="lognormal/100/0.5"), 10)
    assert not np.isclose(fewer.up, other.up).any()


def test_values_of_a_file(tmp_path):
    path = table(tmp_path, "up, client,memory\n1.5,2,10\n2e3,0,30\n\n7,1,20\n")
    by_field = client_values(fields(csv=path, flops="8"), 3)
    expected = {"up": [2e3, 7, 1.5], "memory": [30, 20, 10], "flops": [8, 8, 8]}
    assert {name: values.tolist() for name, values in by_field.items()} == expected
    trace = tmp_path / "trace.csv"
    trace.write_text("client,first_round,last_round\n0,0,1\n2,1,1\n0,3,9\n")
    available = make_profile(fields(available=f"csv:{trace}"), 3).available
    rounds = [np.flatnonzero(available(round)).tolist() for round in range(4)]
    assert rounds == [[0], [0, 2], [], [0]]


RATE = "; it must be empty, a number above 0 such as 1e9, or lognormal/MEDIAN/SIGMA with a SIGMA of at most 10, "
BAD = {
    f"devices_profile.flops is 'fast'{RATE}": {"flops": "fast"},
    f"devices_profile.up is '0'{RATE}": {"up": "0"},
    f"devices_profile.memory is 'inf'{RATE}": {"memory": "inf"},
    f"devices_profile.up is 'lognormal/1e6'{RATE}": {"up": "lognormal/1e6"},
    f"devices_profile.up is 'lognormal/1e6/-1'{RATE}": {"up": "lognormal/1e6/-1"},
    f"devices_profile.up is 'lognormal/1e6/11'{RATE}": {"up": "lognormal/1e6/11"},
    f"devices_profile.up is 'normal/1/1'{RATE}": {"up": "normal/1/1"},
    "devices_profile.deadline is 3.0, but nothing takes time; set flops, up": {"deadline": 3.0},
    "devices_profile.late is 'arrives', but nothing is late": {"up": "9", "late": "arrives"},
    "devices_profile.available is '0'; it must be empty, a number above 0": {"available": "0"},
    "devices_profile.available is 'csv'; it must be": {"available": "csv"},
    "devices_profile.available: no/such.csv cannot be read": {"available": "csv:no/such.csv"},
    "devices_profile.csv: no/such.csv cannot be read (No such file": {"csv": "no/such.csv"},
}
BAD_FILES = {
    "unknown column 'flop'; did you mean 'flops'?": "client,flop\n0,1\n",
    "its first line must have a column 'client'": "up\n1\n",
    "it has no rows": "",
    "line 3 has 1 cells for 2 columns": "client,up\n0,1\n1\n",
    "up of row 1 is '0'; it must be a number above 0": "client,up\n0,0\n",
    "up of row 1 is 'x'; it must be a number above 0": "client,up\n0, x \n",
    "client of row 2 is '0.5'; it must be an integer from 0": "client,up\n0,1\n0.5,1\n",
    "client of row 1 is '-1'; it must be an integer from 0": "client,up\n-1,1\n",
    "it has no row of client 1; it must have one for each client, 0 to 2": "client,up\n0,1\n2,1\n2,1\n",
    "it has 4 rows; it must have one for each client, 0 to 2": "client,up\n0,1\n2,1\n1,1\n3,1\n",
}
BAD_TRACES = {
    "must have a column 'last_round'": "client,first_round\n0,0\n",
    "unknown column 'up'": "client,first_round,last_round,up\n0,0,1,1\n",
    "client 3 is available from round 0 to 1; clients are 0 to 2, and": "client,first_round,last_round\n3,0,1\n",
    "client 0 is available from round 2 to 1; clients are": "client,first_round,last_round\n0,2,1\n",
    "last_round of row 1 is ''; it must be an integer from 0": "client,first_round,last_round\n0,2,\n",
}


@pytest.mark.parametrize("message", BAD)
def test_a_wrong_field_is_one_line(message):
    with refused(f"^{re.escape(message)}"):
        make_profile(fields(**BAD[message]), 3)


@pytest.mark.parametrize("message", [*BAD_FILES, *BAD_TRACES])
def test_a_wrong_file_is_one_line(message, tmp_path):
    trace = message in BAD_TRACES
    path = table(tmp_path, (BAD_TRACES if trace else BAD_FILES)[message])
    field = "available" if trace else "csv"
    start = f"devices_profile.{field}: {path}: "
    with refused(f"^{re.escape(start)}.*{re.escape(message)}"):
        make_profile(fields(available=f"csv:{path}") if trace else fields(csv=path), 3)


def test_binary_files_and_repeated_values_are_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"client,up\n\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary.csv: 'utf-8' codec can't decode"):
        make_profile(fields(csv=str(tmp_path / "binary.csv")), 3)
    path = table(tmp_path, "client,up\n0,1\n")
    with pytest.raises(ValueError, match=r"^devices_profile.up is '5', but .*devices.csv"):
        make_profile(fields(csv=path, up="5"), 1)


def test_the_largest_that_fits():
    needed = {"small": 10, "large": 30, "other": 30, "middle": 20.5}
    fit = fitting(needed, np.array([10, 29.9, 20, 1e9, 20.5]))
    assert fit == ["small", "middle", "small", "large", "middle"]
    message = (
        r"memory: client 1 has 9\.9 bytes, .* small, needs 10 to train; 2 of 3 have too little"
    )
    with pytest.raises(ValueError, match=message):
        fitting(needed, np.array([10, 9.9, 3]))


@pytest.mark.parametrize(
    ("optimizer", "moments", "counter"),
    [(optax.sgd(0.1), 0, 0), (optax.sgd(0.1, momentum=0.9), 1, 0), (optax.adam(0.1), 2, 4)],
    ids=["sgd", "momentum", "adam, which counts its steps"],
)
def test_memory_of_a_linear_model_by_hand(optimizer, moments, counter):
    """Batches of five; the backward pass keeps features, and of the loss two arrays of logits."""
    params = 4 * ((4 + 1) * 3 + (3 + 1) * 4)
    training = LocalTraining(optimizer, batch_size=5)
    needed = training_memory(linear_federation().buckets[0], training)
    assert needed == (2 + moments) * params + counter + 4 * 5 * (3 + 4 + 4)


def test_clients_get_the_largest_of_a_group_that_fits():
    dataset, _ = samples()
    config = base_config()
    config.update({"model.group": "mlp2", "partition.num_clients": 3, "training.batch_size": 4})

    def names(federation):
        return [federation.buckets[i].name for i in federation.assignment]

    in_turn = names(make_clients(typed_config(config), dataset))
    assert in_turn == ["mlp_narrow", "mlp_wide", "mlp_narrow"]
    modules = model_group("mlp2", dataset.num_classes, dataset.input_shape)
    buckets = make_federation(
        modules, dataset.input_shape, dataset.num_classes, num_clients=2
    ).buckets
    training = LocalTraining(optax.sgd(0.1), batch_size=4)
    narrow, wide = (training_memory(bucket, training) for bucket in buckets)
    dealt = make_clients(typed_config(config), dataset, np.array([wide, wide - 1, narrow]))
    assert names(dealt) == ["mlp_wide", "mlp_narrow", "mlp_narrow"]
    config.training.batch_size = 5
    dealt = make_clients(typed_config(config), dataset, np.full(3, wide))
    assert names(dealt) == ["mlp_narrow"] * 3
    config.update({"model.rates": "1", "model.group": "conv4", "model.norm": "static_batch"})
    with pytest.raises(ValueError, match=r"^model.rates is '1'; with devices_profile.memory"):
        make_clients(typed_config(config), dataset, np.full(3, wide))


def rows(seconds, accuracy=(0.1, 0.5, 0.4)) -> list[dict]:
    """Returns the rows of a run from each round's accuracy and duration."""
    clock = np.cumsum([0.0, *seconds])
    history = [{"round": i, "accuracy": a, "accuracy_std": 0.0} for i, a in enumerate(accuracy)]
    for row, now in zip(history, clock):
        row |= {"seconds_round": 1.0, "accuracy_weighted": 0.5, "accuracy_worst10": 0.1}
        row |= {"simulated_clock": now} if row["round"] else {}
    return history


def test_accuracy_is_drawn_against_rounds_and_simulated_seconds():
    histories = {"a": [rows([2.0, 3.0]), rows([4.0, 5.0])], "b": [rows([1.0, 1.0])]}
    left, right = accuracy_curves(histories).axes

    def curve(axes, i):
        return [line for line in axes.lines if not line.get_label().startswith("_")][i]

    assert curve(left, 0).get_xdata().tolist() == [0, 1, 2]
    assert right.get_xlabel() == "simulated seconds"
    assert curve(right, 0).get_xdata().tolist() == [0, 3, 7]
    assert curve(right, 1).get_xdata().tolist() == [0, 1, 2]
    (timed,) = histories["b"]
    plain = [[{k: v for k, v in row.items() if k != "simulated_clock"} for row in timed]]
    assert len(accuracy_curves({"b": plain}).axes) == 1
    text = run_results(histories).markdown().splitlines()
    assert text[0].endswith("| s/round | simulated s to best |")
    assert [line.rsplit("| ", 1)[1] for line in text[2:]] == ["3 |", "1 |"]
    assert "simulated" not in run_results({"b": plain}).markdown()


def test_a_run_from_which_all_is_late_says_so():
    history = [{"round": i, "trial": 0, "arrived": 0, "late": [1]} for i in (1, 2)]
    assert "that is finite and in time; raise give_up" in why_silent("fd", [history], 2)


def test_entries_have_what_fits_their_own_training(tiny_config):
    # fedrod's recipe trains a head beside the model
    entries = ("local", "local:training.batch_size=40", "local:training.epochs=2", "fedrod")
    config = only(config_of(tiny_config), entries)
    config.devices_profile.memory = "5e4"
    names = {label: run.federation.buckets[0].name for label, run in plan(config).runs.items()}
    assert list(names.values()) == ["mlp_wide", "mlp_narrow", "mlp_wide", "mlp_wide"]


@pytest.mark.slow
def test_a_run_on_devices_goes_on_and_shows_its_seconds(tiny_config, tmp_path):
    def devices(down):
        rows = "".join(f"{i},{100 + i},{down + i},1e6\n" for i in range(4))
        return table(tmp_path, "client,up,down,memory\n" + rows)

    config, path = config_of(tiny_config), devices(200)
    config.devices_profile.update(
        {"flops": "lognormal/1e5/1", "csv": path, "available": "0.8", "deadline": 40.0}
    )
    quiet = {"warn": lambda line: None}
    whole = train_and_evaluate(config, tmp_path / "whole", **quiet)
    config.rounds = 1
    train_and_evaluate(config, tmp_path / "short", **quiet)
    config.rounds = 3
    train_and_evaluate(config, tmp_path / "short", **quiet)
    for name, (history,) in whole.histories.items():
        assert metrics(tmp_path / "short", name) == metrics(tmp_path / "whole", name)
        seconds = sum(row["simulated_seconds"] for row in history[1:])
        assert history[-1]["simulated_clock"] == seconds > 0
    assert {b.name for b in whole.experiment.runs["local"].federation.buckets} == {"mlp_wide"}
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "simulated s to best" in page
    assert "devices.csv, available 0.8, deadline 40.0, seed 0." in page
    assert "| simulated s to best |" in whole.summary
    devices(300)
    with pytest.raises(ValueError, match=r"files\..*devices\.csv \w{12} instead of"):
        train_and_evaluate(config, tmp_path / "whole", **quiet)


def test_the_code_of_the_page_says_what_it_says():
    config_file, library, chosen = blocks("devices.md")
    names = execute(config_file)
    profile = simulation_options(typed_config(names["get_config"]())).devices_profile
    assert profile.deadline == 1.0 and set(profile.down) == {1e6}
    assert 0 < profile.available(0).sum() <= 20
    profile = execute(library)["options"].devices_profile
    reachable = [profile.reachable(3, round).tolist() for round in (1, 2)]
    assert reachable == [[True] * 3, [True, False, True]]
    assert execute(library, chosen)["options"].select.name == "largest_loss"
