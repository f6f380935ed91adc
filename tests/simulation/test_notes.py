"""Batch norms that see a single value per channel are told of before anything trains."""

import dataclasses
import math
import warnings

import flax.linen as nn
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import notes
from fedjax_ht.models.layers import Norm
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.simulation import attack_notes, batch_notes, smallest_batch
from fedjax_ht.trust.attacks import attackers
from fedjax_ht.trust.options import Attack
from tests.runs import config_of
from tests.simulation.test_history import scripted


class Normed(nn.Module):
    """A layer and a norm: behind a dense layer, or over the pixels of a convolution."""

    kind: str = "batch"
    convolves: bool = False

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.Conv(4, (1, 1))(x) if self.convolves else nn.Dense(4)(x.reshape(len(x), -1))
        if self.kind == "flax":
            real = None if mask is None else mask[:, None]
            x = nn.BatchNorm(use_running_average=not train)(x, mask=real)
        else:
            x = Norm(self.kind)(x, train, mask)
        return x.reshape(len(x), -1)


def federation(**fields) -> fl.Federation:
    model = fl.SplitModel(Normed(**fields), nn.Dense(2), stateful=True)
    return fl.make_federation({"m": model, "plain": fl.mlp(2, (4,))}, (2, 2, 1), 2, num_clients=4)


RECIPE = fl.LocalTraining(optax.sgd(0.1), batch_size=4)
COUNTS = np.array([[8, 1, 9, 1]])  # clients 0 and 2 have the model with a norm
ENDS = {
    "set batch_size to 2 or more, or use group or layer norm": {"batch_size": 1},
    "drop the last, partial batch (drop_remainder=True), or use": {"drop_remainder": False},
}


@pytest.mark.parametrize("batch_size", [1, 3, 4])
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_the_smallest_batch_is_that_of_the_training(batch_size, drop_remainder):
    recipe = dataclasses.replace(RECIPE, batch_size=batch_size, drop_remainder=drop_remainder)
    counts = np.arange(10)
    expected = []
    for count in counts.tolist():
        starts = range(0, int(num_steps(recipe, count)) * batch_size, batch_size)
        expected.append(min((min(batch_size, count - start) for start in starts), default=0))
    np.testing.assert_array_equal(smallest_batch(recipe, counts), expected)


@pytest.mark.parametrize("kind", ["batch", "flax"])
@pytest.mark.parametrize("end", ENDS)
def test_a_batch_of_one_is_told_of(kind, end):
    method = fl.local(dataclasses.replace(RECIPE, **ENDS[end]))
    (note,) = batch_notes(federation(kind=kind), method, COUNTS)
    named = "clients 0, 2" if "batch_size" in ENDS[end] else "client 2"
    norm = "base/BatchNorm_0" if kind == "flax" else "base/Norm_0"
    assert note.startswith(f"{named} of model 'm' with training batches of a single sample, which")
    assert f"({norm})" in note and end in note


def test_other_norms_batches_and_models_are_not():
    single = np.array([[1, 1, 1, 1]])
    assert "min_samples=3" in batch_notes(federation(), fl.local(RECIPE), single)[0]
    single_samples = fl.local(dataclasses.replace(RECIPE, batch_size=1))
    for fields in ({"kind": "group"}, {"kind": "layer"}, {"convolves": True}):
        assert not batch_notes(federation(**fields), single_samples, COUNTS)
    assert not batch_notes(federation(), fl.local(RECIPE), COUNTS)
    assert not batch_notes(federation(), fl.local(RECIPE), np.array([0, 1, 2, 1]))


def test_a_simulation_warns_at_its_caller():
    labels = np.arange(16) % 2
    dataset = fl.Dataset("d", np.zeros((16, 2, 2, 1), np.uint8), labels, ("a", "b"))
    partition = fl.make_partition("iid", dataset, 4)
    normed = federation()
    data = arranged(dataset, partition, normed)
    method = fl.local(dataclasses.replace(RECIPE, batch_size=1))
    with pytest.warns(UserWarning, match="set batch_size to 2 or more") as caught:
        fl.make_simulation(method, normed, data)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.make_simulation(fl.local(RECIPE), federation(kind="layer"), data)


def models(num_classes, input_shape, feature_dim):
    return {"m": fl.SplitModel(Normed(), nn.Dense(num_classes), stateful=True)}


def test_a_run_begins_with_its_notes(tiny_config):
    """Once, though both entries have the same."""
    config = config_of(tiny_config)
    assert not notes(plan(config))
    config.training.batch_size, config.model.group = 1, f"{__name__}:models"
    config.partition.options.alpha, config.partition.options.min_samples = 0.1, 2
    lines = notes(plan(config))
    (note,) = [line for line in lines if "batches of a single" in line]
    assert note.startswith("clients 0, 1, 2, 3 of model")
    assert any(line.startswith("split: client") for line in lines)


def test_a_run_tells_of_a_warm_up_that_has_no_end(tiny_config):
    config = config_of(tiny_config)
    config.entries, config.rounds = ("fedl2g", "fedl2g:warmup=2"), 10
    (line,) = notes(plan(config))
    assert line.startswith("fedl2g: clients do not change in its first 50 rounds")


GUESSING = math.log(4)


def rows(losses, accuracies=(), name="loss", untrained=0.25) -> list[dict]:
    """Rows of rounds with these losses, in units of guessing, and participants' accuracies."""
    history = [{"round": 0, "trial": 0, "accuracy": untrained}]
    for i, times in enumerate(losses):
        row = {"round": i + 1, "trial": 0, name: times * GUESSING}
        if i < len(accuracies) and accuracies[i] is not None:
            row["accuracy_participants"] = accuracies[i]
        history.append(row)
    return history


def told(history, num_classes=4) -> list[int]:
    divergence = Divergence(num_classes)
    return [row["round"] for row in history for _ in divergence.notes(row)]


@pytest.mark.parametrize(
    "history, rounds",
    [
        (rows([1.0, 0.5, 11.0, 1e9]), [3]),  # once
        (rows([1e5, 1.0, 1.0]), [1]),  # from the first round on
        (rows([1.0, 2.9, 9.9]), []),
        (rows([16, 14, 12], [0.5, 0.6, 0.7]), []),  # regularisers, and it learns
        (rows([16, 60, 12], [0.5, 0.6, 0.7]), [2]),
        (rows([3.0, 7.0, 1.0], [0.3, 0.3, 0.3]), [2]),  # stuck at chance
        (rows([3.0, 7.0, 1.0], [0.3, 0.6, 0.3]), []),
        (rows([7.0, 6.0, 5.0], [0.3, 0.3, 0.3]), []),  # a slow start
        (rows([3.0, 7.0, 1.0], [None, None]), []),
        (rows([20.0, 90.0, 15.0], name="generator_loss"), []),
        (rows([2.0, 21.0, 1e6], name="generator_loss"), [2]),
        (rows([1e5, 1e4], name="server_loss"), [1]),
        (rows([1e5, 1e4], name="margin"), []),
        (rows([math.nan, 1.0]), []),
    ],
)
def test_a_loss_that_diverges_is_told_of_once(history, rounds):
    assert told(history) == rounds
    assert told(history, num_classes=None) == []


def evaluations(*accuracies) -> list[dict]:
    return [{"round": i, "trial": 0, "accuracy": a} for i, a in enumerate(accuracies)]


@pytest.mark.parametrize(
    "accuracies, rounds",
    [
        ((0.2, 0.7, 0.26), [2]),  # chance is that of guessing
        ((0.0, 0.7, 0.26), [2]),  # no prototypes yet
        ((0.5, 0.8, 0.52), [2]),  # chance is that of the untrained federation
        ((0.2, 0.7, 0.4), []),
        ((0.2, 0.4, 0.2), []),  # gained too little to say
        ((0.2, 0.7, 0.1, 0.7, 0.1), [2]),  # once
    ],
)
def test_accuracy_that_falls_to_chance_is_told_of_once(accuracies, rounds):
    assert told(evaluations(*accuracies)) == rounds


def test_the_clients_of_the_latest_outlying_uploads_are_named():
    history = evaluations(0.2, 0.7, 0.1)
    history[1]["far_off"], history[2]["far_off"] = [[4, 40.0]], [[i, 98.0] for i in range(7)]
    divergence, lines = Divergence(4), []
    for row in history:
        lines += divergence.notes(row)
    assert lines[0].endswith("; outlying uploads in round 2 of clients 0, 1, 2, 3, 4 and 2 more")
    (line,) = Divergence(4, history[:2]).notes(history[2] | {"far_off": []})
    assert line.endswith("; outlying uploads in round 1 of client 4")


def test_an_earlier_course_was_told_of():
    again = Divergence(4, evaluations(0.2, 0.7, 0.1))
    assert again.notes(evaluations(0.2, 0.7, 0.1)[2]) == []
    later = Divergence(4, evaluations(0.2, 0.7))
    (line,) = later.notes(evaluations(0.2, 0.7, 0.1)[2])
    assert line.startswith("accuracy is 10.0 %, where an untrained federation has 25.0 %, after")


def test_a_run_warns_at_its_caller():
    simulation = dataclasses.replace(scripted([0.2, 0.9, 0.2, 0.2]), num_classes=4)
    with pytest.warns(RuntimeWarning, match=r"^round 2: accuracy is 20.0 %, where an") as caught:
        fl.run(simulation, rounds=3)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize(
    ("attack", "note"),
    [
        (Attack(), None),
        (Attack("noise", 0.3), None),
        (Attack("noise", 0.04), "attack.kind is noise, but attack.share 0.04 of 10 clients"),
        (Attack("noise"), "attack.kind is noise, but attack.share 0 of 10 clients"),
        (Attack(share=0.3), "attack.share is 0.3, but attack.kind is not set"),
    ],
)
def test_an_attack_without_attackers_gives_a_warning(attack, note):
    notes = attack_notes(attack, 10)
    assert bool(note) == bool(notes) and all(line.startswith(note) for line in notes)
    assert not note or attackers(Attack("noise", attack.share if attack.kind else 0), 10).sum() == 0
