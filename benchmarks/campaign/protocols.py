"""Measures the protocols by which other libraries publish their speed: rounds, and a whole run.

Images are random where a protocol's own are not needed: seconds do not depend on them.
"""

import statistics
import time

import numpy as np
import optax

from benchmarks.campaign.rounds import NONE, kept_programs, random_images, timed_rounds
from benchmarks.peers.network import split_model
from benchmarks.peers.protocols import PROTOCOLS
from benchmarks.report import peak_memory
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.scoring_options import Scoring
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.moments import normalised
from fedjax_ht.methods import METHODS
from fedjax_ht.models import model_group
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.rows import evaluated
from fedjax_ht.simulation.simulation import make_simulation

# Behind pfl-research's convolutions and behind its hidden layer, which the peers leave out.
PFL_DROPOUT = (0.25, 0.5)


def federated_images(
    shape: tuple[int, int, int],
    classes: int,
    clients: int,
    samples: int,
    tested: int,
    alpha: float | None,
) -> tuple[Dataset, Partition]:
    """Makes random images and deals them to clients.

    Args:
      shape, classes: of the images.
      clients: how many there are.
      samples, tested: training and test images of each, on average.
      alpha: of PFLlib's Dirichlet shares, a quarter of which tests; None gives every client as
        many.
    """
    each = samples + tested
    dataset = random_images(clients * each, tuple(shape), classes)
    if alpha is not None:
        share = samples / each
        return dataset, make_partition(
            "practical", dataset, clients, alpha=alpha, train_share=share
        )
    rows = np.arange(clients * each).reshape(clients, each)
    return dataset, tuple(ClientIndices(row[:samples], NONE, row[samples:]) for row in rows)


def modules_of(group: str, classes: int, shape: tuple[int, int, int]) -> PyTree:
    """Returns the architectures of a model group, or the model of one of the peers' protocols."""
    if group in PROTOCOLS:
        return {group: split_model(PROTOCOLS[group].network)}
    return model_group(group, classes, tuple(shape))


def protocol_round(
    protocol: str,
    group: str,
    method: str,
    shape: tuple[int, int, int],
    classes: int,
    clients: int,
    samples: int,
    tested: int,
    alpha: float | None = None,
    epochs: int = 1,
    batch_size: int = 10,
    evaluate: bool = True,
    evaluate_train: bool = True,
    clip_norm: float | None = None,
    lanes: int | None = None,
    client_store: str = "device",
    rounds: int = 3,
    cache: str = "",
    published: dict[str, float] | None = None,
    published_peak: dict[str, float] | None = None,
    **options,
) -> dict:
    """Times a round of all clients with SGD, its server, and an evaluation.

    Args:
      protocol: whose it is, for the report.
      group: of models, or a protocol of `benchmarks.peers` for its model.
      method: of `METHODS`; `options` are its own.
      shape, classes, clients, samples, tested, alpha: see `federated_images`.
      epochs, batch_size, clip_norm: local training.
      evaluate: True evaluates all clients behind a round, as PFLlib and HtFLlib do; False scores
        them on their test images as training left them.
      evaluate_train: whether an evaluation is of training images, too.
      lanes, client_store: see `SimulationOptions`.
      rounds: the first of them compiles.
      cache: see `campaign_rounds.kept_programs`.
      published: seconds of a round by others: who and on which device -> seconds.
      published_peak: likewise, bytes of device memory.
    """
    hits = kept_programs(cache)
    dataset, partition = federated_images(shape, classes, clients, samples, tested, alpha)
    federation = make_federation(modules_of(group, classes, shape), tuple(shape), classes, clients)
    data = make_federation_data(dataset, partition, federation)
    clipping = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    training = LocalTraining(optax.chain(*clipping, optax.sgd(0.01)), batch_size, epochs=epochs)
    chosen = SimulationOptions(
        lanes=lanes,
        devices=1,
        client_store=client_store,
        scoring=Scoring(train=evaluate and evaluate_train),
    )
    simulation = make_simulation(METHODS[method](training, **options), federation, data, chosen)
    steps = num_steps(training, data.counts["train"])
    setting = {"protocol": protocol, "group": group, "method": method, "clients": clients}
    setting |= {
        "steps": int(np.sum(steps)),
        "longest": int(np.max(steps)),
        "lanes": simulation.lanes,
    }
    setting |= {"client_store": client_store, "published": published or {}}
    setting |= {"published_peak": published_peak or {}}
    times = timed_rounds([simulation], rounds, score=not evaluate, evaluate=evaluate)
    return setting | times | {"cached": len(hits)}


def pfl_images(users: int, samples: int) -> tuple[Dataset, Partition]:
    """Deals CIFAR-10 to users at random; where `data/` lacks it, random images of its shape."""
    try:
        dataset = normalised(load_dataset("cifar10", "data"), "dataset")
    except FileNotFoundError:
        return federated_images((32, 32, 3), 10, users, samples, tested=10, alpha=None)
    return dataset, make_partition("iid", dataset, users, sets="official")


def pfl_run(
    rounds: int = 1500,
    users: int = PROTOCOLS["pfl"].users,
    cohort: int = PROTOCOLS["pfl"].cohort,
    every: int = 10,
    limit: float = 400.0,
    images: str = "found",
) -> dict:
    """Plays pfl-research's CIFAR-10 benchmark to its end, with its dropout, for at most `limit`
    seconds.

    Args:
      rounds, users, cohort: how many, and how many users take part in a round.
      every: rounds between evaluations on all test images, which the users hold together.
      limit: seconds after which no further round begins.
      images: "random" takes no others, "found" CIFAR-10 where it is in `data/`.
    """
    start, protocol = time.perf_counter(), PROTOCOLS["pfl"]
    if images == "random":
        dataset, partition = federated_images((32, 32, 3), 10, users, protocol.samples, 10, None)
    else:
        dataset, partition = pfl_images(users, protocol.samples)
    model = split_model(protocol.network, PFL_DROPOUT)
    federation = make_federation({"cnn": model}, dataset.input_shape, dataset.num_classes, users)
    data = make_federation_data(dataset, partition, federation)
    training = LocalTraining(
        optax.sgd(protocol.learning_rate), protocol.batch_size, epochs=protocol.epochs
    )
    options = SimulationOptions(participation=cohort / users, devices=1)
    simulation = make_simulation(METHODS["fedavg"](training), federation, data, options)

    def enough(state, history: list) -> bool:
        return time.perf_counter() - start > limit

    began = time.perf_counter()
    # Only the central evaluation is the protocol's.
    state, history = run(
        simulation, rounds, eval_every=every, after_round=enough, score_every=rounds
    )
    whole, scores = time.perf_counter() - began, evaluated(history)
    # The first round compiles; where there is no other, its seconds are reported.
    seconds = [row["seconds_round"] for row in history if row["round"] > 0]
    result = {
        "protocol": "pfl-research, CIFAR-10",
        "group": "pfl's CNN",
        "method": "fedavg",
        "data": dataset.name,
        "rounds": state.round,
        "lanes": simulation.lanes,
        "whole": whole,
        "round": statistics.median(seconds[1:] or seconds),
        "accuracy": scores[-1]["accuracy_weighted"],
        "curve": [[row["round"], row["accuracy_weighted"]] for row in scores],
        "peak": peak_memory(),
    }
    if state.round < rounds:
        result["wrong"] = f"{state.round} of {rounds} rounds in {limit:.0f} s"
    return result
