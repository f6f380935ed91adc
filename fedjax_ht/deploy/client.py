"""A client on its own machine: its samples in one file, its model and its compiled programs.

`answers.answer` is what it replies to a server. Its samples and states never leave it.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket, put_weights, weights_of, with_frozen
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.evaluation import received_where, score_splits
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.message_forms import downlink_form, sends_payload, uplink_form, uplink_forms
from fedjax_ht.core.round import any_state, client_step
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.data.client_data import mixed, stack
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.meaning import meaning_sums
from fedjax_ht.data.public import beside
from fedjax_ht.deploy.noise import (
    LEDGER_FILE,
    Entropy,
    Noise,
    fresh_secret,
    training_noise,
    update_noise,
)
from fedjax_ht.deploy.plan import Plan, description, make_models, task_as_json
from fedjax_ht.deploy.samples import public_split
from fedjax_ht.deploy.secure_sums import sum_groups
from fedjax_ht.lab.runs.federation import Task
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.simulation.program import evaluation_batch

PLACEHOLDER_COUNTS = {"train": 1, "val": 0, "test": 0}
"""Numbers of samples that a client reports where the noise of "upload" hides them."""


class Programs(NamedTuple):
    """A client's compiled functions.

    Attributes:
      init: (root key, `weights_of` the bucket, id of the client whose first state it is) -> state.
      train: (state, downlink, data, root key, round, info, secret of `noise.draw`, weights) -> (the
        trained state, the result of `core.round.client_step`, {"test": Scores} of the new model).
      evaluate: (state, ..., info as of `train`, {split: bool}, weights) -> {split: Scores}.
    """

    init: Callable
    train: Callable
    evaluate: Callable


class Client(NamedTuple):
    """A client on its own machine.

    Attributes:
      plan: the config.
      client_id: number of the client, from 0.
      init_id: id of the client whose first state it has: its own, or its architecture's first.
      data: the client's samples, and behind them the public ones, on its device.
      counts: split -> number of samples.
      noise: the noise that it adds itself; None where it adds none.
      downlink_form: shapes and dtypes of the server's messages.
      initial_weights: `weights_of` its model, with its frozen variables.
      programs: the client's compiled functions.
      hello: header of its reply to "hello".
      folder: the folder of its states, a folder for each run.
      tell: takes a line for the people at the client's own machine.
    """

    plan: Plan
    client_id: int
    init_id: int
    data: Data
    counts: dict[str, int]
    noise: Noise | None
    downlink_form: PyTree
    initial_weights: PyTree
    programs: Programs
    hello: dict[str, Any]
    folder: Path
    tell: Callable[[str], None]


def make_client(
    plan: Plan,
    client_id: int,
    dataset: Dataset,
    indices: ClientIndices,
    folder: Path,
    tell: Callable[[str], None] = print,
    entropy: Entropy = fresh_secret,
    max_epsilon: float = math.inf,
) -> Client:
    """Makes a client with its samples.

    Args:
      plan: the config, the same as the server's.
      client_id: number of the client, from 0.
      dataset: the client's samples.
      indices: indices of the samples for training, validation and test.
      folder: the folder for its states, and beside them the count of its noise.
      tell: takes a line for the people at the client's own machine.
      entropy: draws the secrets of its noise.
      max_epsilon: a reply that would take epsilon beyond it is an error instead.

    Raises:
      ValueError: config, id and samples do not fit together, or the client adds no noise and has a
        `max_epsilon`. One line.
    """
    if not 0 <= client_id < plan.num_clients:
        raise ValueError(
            f"client is {client_id}; the config has clients 0 to {plan.num_clients - 1}"
        )
    if max_epsilon < math.inf and plan.unit not in ("upload", "sample"):
        raise ValueError(
            f"--most_epsilon is {max_epsilon:g}, and with privacy.unit {plan.unit or 'none'!r} a "
            "client adds no noise of its own; leave --most_epsilon out"
        )
    if dataset.task is not CLASSIFICATION:
        raise ValueError(f"{dataset.name} is for {dataset.task.name}; a deployment is for classes")
    task = Task(dataset.input_shape, dataset.num_classes, dataset.vocabulary)
    if plan.public is not None:
        dataset = beside(dataset, plan.public)
    federation = make_models(plan, task, dataset.public_set)
    if plan.secure_sums:
        forms = uplink_forms(plan.method, federation, plan.channel)
        sum_groups(plan.method, federation, forms)  # refuses what the server would refuse
    bucket = federation.buckets[federation.assignment[client_id]]
    counts = {name: len(getattr(indices, name)) for name in ClientIndices._fields}
    stacked = _stacked_data(dataset, indices)
    hello = {
        "client": client_id,
        "counts": PLACEHOLDER_COUNTS if plan.unit == "upload" else counts,
        "task": task_as_json(task),
        "meaning": meaning_sums(dataset.class_names, dataset.reading),
        "flops": _round_flops(plan, federation, bucket, stacked),
        **description(plan),
    }
    ledger = folder / LEDGER_FILE
    noise = _client_noise(
        plan, federation, bucket, num_samples=counts["train"], ledger=ledger, entropy=entropy
    )
    return Client(
        plan=plan,
        client_id=client_id,
        init_id=federation.members(bucket)[0] if plan.options.shared_init else client_id,
        data=jax.device_put(_of_one_client(stacked)),
        counts=counts,
        noise=noise and noise._replace(max_epsilon=max_epsilon),
        downlink_form=downlink_form(plan.method, federation, bucket, plan.channel),
        initial_weights=weights_of(with_frozen(bucket)),
        programs=compile_programs(plan, federation, bucket),
        hello=hello,
        folder=folder,
        tell=tell,
    )


def _stacked_data(dataset: Dataset, indices: ClientIndices) -> Data:
    """Returns a client's samples as of a bucket with one client: splits of its own have an axis of
    size 1."""
    splits = {"train": stack([indices.train])}
    for name in ("val", "test"):
        splits[name] = stack([mixed(getattr(indices, name))])
    splits |= public_split(dataset)
    return Data(dataset.inputs, dataset.labels, dataset.preprocess, splits)


def _of_one_client(stacked: Data) -> Data:
    splits = {}
    for name, split in stacked.splits.items():
        # all clients have one public set, which has no axis of clients
        splits[name] = split if name == PUBLIC else take(split, 0)
    return stacked._replace(splits=splits)


def _round_flops(plan: Plan, federation: Federation, bucket: Bucket, data: Data) -> float:
    """Computes the FLOPs of a client's round; of one sample where their number is hidden."""
    if plan.unit == "upload":
        splits = dict(data.splits)
        for name, count in PLACEHOLDER_COUNTS.items():
            splits[name] = Split(np.zeros((1, 1), np.int32), np.array([count], np.int32))
        data = data._replace(splits=splits)
    return float(bucket_flops(plan.method, federation, bucket, data)[0])


def _client_noise(
    plan: Plan,
    federation: Federation,
    bucket: Bucket,
    num_samples: int,
    ledger: Path,
    entropy: Entropy,
) -> Noise | None:
    privacy = plan.options.privacy
    if privacy is None:
        return None
    if privacy.unit == "upload":
        form = uplink_form(plan.method, federation, bucket, plan.channel)
        return update_noise(privacy, sends_payload(form), ledger, entropy)
    if privacy.unit == "sample":
        return training_noise(
            privacy, plan.method.training_of(bucket.name), num_samples, ledger, entropy
        )
    return None


def compile_programs(plan: Plan, federation: Federation, bucket: Bucket) -> Programs:
    """Returns the functions of a bucket's clients, compiled at their first call."""
    method, channel, options = plan.method, plan.channel, plan.options
    batch_size = evaluation_batch(federation, options)
    received = jnp.bool_(options.scoring.state == "received")

    def init(root, weights, init_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, init_id)
        return any_state(method, put_weights(bucket, weights), key, federation)

    def train(state, downlink, data: Data, root, round, info: ClientInfo, secret, weights):
        model = put_weights(bucket, weights)
        # `method.at` gives the noise its secret as an argument: in no constant of the program
        step = client_step(method.at(secret), model, channel)
        trained, result = step(state, downlink, data, root, round, info)
        is_scored = {"test": jnp.bool_(True)}
        scores = score_splits(
            method,
            model,
            trained,
            downlink=downlink,
            data=data,
            requested=is_scored,
            batch_size=batch_size,
        )
        return trained, result, scores

    def evaluate(state, downlink, data: Data, root, round, info: ClientInfo, is_scored, weights):
        model = put_weights(bucket, weights)
        scored = received_where(
            method,
            model,
            state,
            downlink=downlink,
            data=data,
            root=root,
            round=round,
            info=info,
            received=received,
        )
        return score_splits(
            method,
            model,
            scored,
            downlink=downlink,
            data=data,
            requested=is_scored,
            batch_size=batch_size,
        )

    return Programs(*map(jax.jit, (init, train, evaluate)))
