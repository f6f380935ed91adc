"""A client where its data are: what it answers to a server. Its states never leave it.

A message has a head with "kind":

    hello      who is there: the answer has the client's id, its numbers of samples and what its models are made for
    train      one round, from the downlink: the answer is the uplink, with metrics and scores
    evaluate   the answer is how many samples were classified correctly

Whatever cannot be answered is a head with "error", one line.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.evaluation import as_asked, score_splits
from fedjax_ht.core.federation import Bucket, Federation, put_weights, weights_of
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.method import ClientInfo, Context, Data, PyTree
from fedjax_ht.core.round import client_step
from fedjax_ht.data.client_data import mixed, stack
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import states
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.forms import downlink_form, uplink_forms
from fedjax_ht.deploy.messages import pack, unpack
from fedjax_ht.deploy.plan import Plan, about, difference, make_models, task_as_json
from fedjax_ht.deploy.sums import as_vector, summed_clients
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.runner.build import Task
from fedjax_ht.simulation.program import evaluation_batch


class Programs(NamedTuple):
    """A client's compiled functions.

    Attributes:
      first: (root, `weights_of` its bucket, whose first state) -> it.
      train: (state, downlink, data, root, round, info) -> (Taught, {"test": Scores} as training left it).
      evaluate: (state, downlink, data, root, round, info, wanted) -> {split: Scores}.
    """

    first: Callable
    train: Callable
    evaluate: Callable


class Site(NamedTuple):
    """A client at home.

    Attributes:
      plan: the config.
      client: its id.
      source: the id of the client whose first state it has: its own, or its architecture's first.
      data: its samples, on its device.
      counts: split -> how many.
      downlink: the form of what comes down.
      weights: what its model starts from, if anything.
      programs: what it runs.
      hello: what it says of itself.
      folder: where its states are.
    """

    plan: Plan
    client: int
    source: int
    data: Data
    counts: dict[str, int]
    downlink: PyTree
    weights: PyTree
    programs: Programs
    hello: dict[str, Any]
    folder: Path


def make_site(plan: Plan, client: int, dataset: Dataset, own: ClientIndices, folder: Path) -> Site:
    """A client with its samples.

    Args:
      plan: the config, as the server has it.
      client: its id, from 0.
      dataset: its samples.
      own: which of them it trains on, validates and tests with.
      folder: where its states are kept, one folder a run.

    Raises:
      ValueError: the config, the id and the data do not fit together. One line.
    """
    if not 0 <= client < plan.num_clients:
        raise ValueError(f"client is {client}; the config has clients 0 to {plan.num_clients - 1}")
    task = Task(dataset.input_shape, dataset.num_classes, dataset.vocabulary)
    federation = make_models(plan, task)
    if plan.secure_sums:
        summed_clients(plan.method, federation, uplink_forms(plan, federation))
    bucket = federation.buckets[federation.assignment[client]]
    counts = {name: len(getattr(own, name)) for name in ClientIndices._fields}
    splits = {"train": stack([own.train])} | {name: stack([mixed(getattr(own, name))]) for name in ("val", "test")}
    stacked = Data(dataset.inputs, dataset.labels, dataset.preprocess, splits)
    data = jax.device_put(stacked._replace(splits=jax.tree.map(lambda x: x[0], splits)))
    hello = {
        "client": client,
        "counts": counts,
        "task": task_as_json(task),
        "flops": float(bucket_flops(plan.method, federation, bucket, stacked)[0]),
        **about(plan),
    }
    programs = compiled(plan, federation, bucket)
    form = downlink_form(plan, federation, bucket)
    source = federation.members(bucket)[0] if plan.options.shared_init else client
    return Site(plan, client, source, data, counts, form, weights_of(bucket), programs, hello, folder)


def compiled(plan: Plan, federation: Federation, bucket: Bucket) -> Programs:
    """The functions of a bucket's clients, compiled at their first call."""
    method, channel, options = plan.method, plan.channel, plan.options
    size, received = evaluation_batch(federation, options), jnp.bool_(options.evaluate == "received")

    def first(root, weights, source):
        ctx = Context(client_key(root, Purpose.INIT_CLIENT, 0, source), jnp.int32(0), None)
        return method.init_client(put_weights(bucket, weights), ctx)

    def train(state, downlink, data: Data, root, round, info: ClientInfo):
        taught = client_step(method, bucket, channel)(state, downlink, data, root, round, info)
        wanted = {"test": jnp.bool_(True)}
        return taught, score_splits(method, bucket, taught.client, downlink, data, wanted, size)

    def evaluate(state, downlink, data: Data, root, round, info: ClientInfo, wanted):
        scored = as_asked(method, bucket, state, downlink, data, root, round, info, received)
        return score_splits(method, bucket, scored, downlink, data, wanted, size)

    return Programs(*map(jax.jit, (first, train, evaluate)))


def answer(site: Site, message: Envelope) -> Envelope:
    """What a client says to a message; a head with "error" where it cannot."""
    start = time.perf_counter()
    try:
        kinds = {"hello": _hello, "train": _train, "evaluate": _evaluate}
        kind = message.head.get("kind")
        if kind not in kinds:
            raise ValueError(f"a message of kind {kind!r}")
        reply = kinds[kind](site, message)
    except Exception as error:  # whatever it is, the client stays there for the next message
        named = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        reply = Envelope({"error": named + " ".join(str(error).split())}, {})
    return reply._replace(head=reply.head | {"client": site.client, "seconds": time.perf_counter() - start})


def _hello(site: Site, message: Envelope) -> Envelope:
    if words := difference(message.head["about"], about(site.plan)):
        raise ValueError(f"it {words}")
    return Envelope(site.hello, {})


def _train(site: Site, message: Envelope) -> Envelope:
    # The client's own end of Flower says whether the answer will be masked, not the server.
    masked, secure = message.head.get("masked", False), site.plan.secure_sums
    if masked != secure:
        words = ("with", "would leave unmasked") if secure else ("without", "would leave masked")
        raise ValueError(f"this client was started {words[0]} --secure_sums, and its answer {words[1]}")
    ask = _read(site, message.head)
    state, downlink = _state(site, ask), unpack(site.downlink, message.arrays, "the downlink")
    taught, scores = site.programs.train(state, downlink, site.data, *ask.where)
    finite = bool(taught.finite)
    states.save(ask.folder, ask.after, taught.client if finite else state)
    states.forget(ask.folder, ask.oldest)
    head = {"finite": finite, "metrics": _numbers(taught.metrics), "scores": _scores(scores)}
    if not finite:
        return Envelope(head, {})
    return Envelope(head, {"vector": as_vector(taught.uplink)} if secure else pack(taught.uplink))


def _evaluate(site: Site, message: Envelope) -> Envelope:
    ask = _read(site, message.head)
    downlink = unpack(site.downlink, message.arrays, "the downlink")
    wanted = {name: jnp.bool_(name != "train" or site.plan.options.evaluate_train) for name in ClientIndices._fields}
    return Envelope(
        {"scores": _scores(site.programs.evaluate(_state(site, ask), downlink, site.data, *ask.where, wanted))}, {}
    )


class _Ask(NamedTuple):
    """Where a message stands: the run's folder, after how many rounds the client's state is asked for and kept, the
    oldest state that the server may come back to, and (root, round, info) as compiled functions take them."""

    folder: Path
    before: int
    after: int
    oldest: int
    where: tuple[jax.Array, jax.Array, ClientInfo]


def _read(site: Site, head: dict[str, Any]) -> _Ask:
    number, last_round = int(head["round"]), int(head["last_round"])
    info = ClientInfo(jnp.int32(site.client), jnp.int32(site.counts["train"]), jnp.int32(last_round))
    where = jax.random.key(site.plan.options.seed), jnp.int32(number), info
    return _Ask(site.folder / _name(head["run"]), last_round + 1, number + 1, int(head["oldest"]), where)


def _state(site: Site, ask: _Ask) -> PyTree:
    # On its device for good, as a state that was read is: else the same program would be compiled for each.
    first = site.programs.first(ask.where[0], site.weights, jnp.int32(site.source))
    first = jax.device_put(first, jax.devices()[0])
    return first if ask.before == 0 else states.load(ask.folder, ask.before, first)


def _name(run: str) -> str:
    if not isinstance(run, str) or not run.isalnum():
        raise ValueError(f"a run called {run!r}")
    return run


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _scores(scores: dict[str, Any]) -> dict[str, Any]:
    return {
        split: {"correct": {rule: int(c) for rule, c in found.correct.items()}, "count": int(found.count)}
        for split, found in scores.items()
    }
