"""A client where its data are: what it answers to a server. Its states never leave it.

A message has a head with "kind":

    hello      who is there: the answer has the client's id, its numbers of samples and what its
    models are made for train      one round, from the downlink: the answer is the uplink, with
    metrics and scores evaluate   the answer is how many samples were classified correctly

Whatever cannot be answered is a head with "error", one line.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.evaluation import as_asked, score_splits
from fedjax_ht.core.federation import Bucket, Federation, put_weights, weights_of
from fedjax_ht.core.forms import downlink_form, sends_payload, uplink_form
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.method import ClientInfo, Context, Data, PyTree, Split
from fedjax_ht.core.round import client_step
from fedjax_ht.data.client_data import mixed, stack
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import states
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.headers import asked, printable
from fedjax_ht.deploy.messages import pack, unpack
from fedjax_ht.deploy.noise import (
    LEDGER,
    Entropy,
    Noise,
    draw,
    fresh_words,
    noise_of_steps,
    noise_of_sums,
)
from fedjax_ht.deploy.plan import Plan, about, difference, make_models, task_as_json
from fedjax_ht.deploy.sums import as_vector, summed_clients
from fedjax_ht.experiment.federation import Task
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.simulation.program import evaluation_batch

HIDDEN = {"train": 1, "val": 0, "test": 0}
"""What a client says of its samples where nothing of it is told."""


class Programs(NamedTuple):
    """A client's compiled functions.

    Attributes:
      first: (root, `weights_of` its bucket, whose first state) -> it.
      train: (state, downlink, data, root, round, info, words of `noise.draw`) -> (Taught, {"test":
        Scores} as training left it).
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
      noise: what it adds itself; None where it adds none.
      downlink: the form of what comes down.
      weights: what its model starts from, if anything.
      programs: what it runs.
      hello: what it says of itself.
      folder: where its states are.
      tell: takes a line for whoever is at the client's own machine.
    """

    plan: Plan
    client: int
    source: int
    data: Data
    counts: dict[str, int]
    noise: Noise | None
    downlink: PyTree
    weights: PyTree
    programs: Programs
    hello: dict[str, Any]
    folder: Path
    tell: Callable[[str], None]


def make_site(
    plan: Plan,
    client: int,
    dataset: Dataset,
    own: ClientIndices,
    folder: Path,
    tell: Callable[[str], None] = print,
    entropy: Entropy = fresh_words,
    most_epsilon: float = math.inf,
) -> Site:
    """A client with its samples.

    Args:
      plan: the config, as the server has it.
      client: its id, from 0.
      dataset: its samples.
      own: which of them it trains on, validates and tests with.
      folder: where its states are kept, one folder a run, and beside them the count of its noise.
      tell: takes a line for whoever is at the client's own machine.
      entropy: where the words of its noise come from.
      most_epsilon: what it may tell; an answer with which it would be more is an error.

    Raises:
      ValueError: the config, the id and the data do not fit together, or it adds no noise and has a
        `most_epsilon`. One line.
    """
    if not 0 <= client < plan.num_clients:
        raise ValueError(f"client is {client}; the config has clients 0 to {plan.num_clients - 1}")
    if most_epsilon < math.inf and plan.unit not in ("upload", "sample"):
        given = f"--most_epsilon is {most_epsilon:g}, and privacy.unit {plan.unit or 'none'!r}"
        raise ValueError(f"{given}, with which a client adds no noise of its own")
    task = Task(dataset.input_shape, dataset.num_classes, dataset.vocabulary)
    federation = make_models(plan, task)
    if plan.secure_sums:
        forms = {
            b.name: uplink_form(plan.method, federation, b, plan.channel)
            for b in federation.buckets
        }
        summed_clients(plan.method, federation, forms)
    bucket = federation.buckets[federation.assignment[client]]
    counts = {name: len(getattr(own, name)) for name in ClientIndices._fields}
    splits = {"train": stack([own.train])} | {
        name: stack([mixed(getattr(own, name))]) for name in ("val", "test")
    }
    stacked = Data(dataset.inputs, dataset.labels, dataset.preprocess, splits)
    data = jax.device_put(stacked._replace(splits=jax.tree.map(lambda x: x[0], splits)))
    told, shown = counts, stacked
    if plan.unit == "upload":
        told = HIDDEN
        one = {
            name: Split(np.zeros((1, 1), np.int32), np.int32([count]))
            for name, count in HIDDEN.items()
        }
        shown = stacked._replace(splits=one)
    flops = float(bucket_flops(plan.method, federation, bucket, shown)[0])
    hello = {
        "client": client,
        "counts": told,
        "task": task_as_json(task),
        "flops": flops,
        **about(plan),
    }
    programs = compiled(plan, federation, bucket)
    form = downlink_form(plan.method, federation, bucket, plan.channel)
    source = federation.members(bucket)[0] if plan.options.shared_init else client
    noise = _noise(plan, federation, bucket, counts["train"], folder / LEDGER, entropy)
    noise = noise and noise._replace(most=most_epsilon)
    return Site(
        plan,
        client,
        source,
        data,
        counts,
        noise,
        form,
        weights_of(bucket),
        programs,
        hello,
        folder,
        tell,
    )


def _noise(
    plan: Plan, federation: Federation, bucket: Bucket, samples: int, path: Path, entropy: Entropy
) -> Noise | None:
    privacy = plan.options.privacy
    if plan.unit == "upload":
        form = uplink_form(plan.method, federation, bucket, plan.channel)
        return noise_of_sums(privacy, sends_payload(form), path, entropy)
    return (
        noise_of_steps(privacy, plan.method.training, samples, path, entropy)
        if plan.unit == "sample"
        else None
    )


def compiled(plan: Plan, federation: Federation, bucket: Bucket) -> Programs:
    """The functions of a bucket's clients, compiled at their first call."""
    method, channel, options = plan.method, plan.channel, plan.options
    size, received = (
        evaluation_batch(federation, options),
        jnp.bool_(options.evaluate == "received"),
    )

    def first(root, weights, source):
        ctx = Context(client_key(root, Purpose.INIT_CLIENT, 0, source), jnp.int32(0), None)
        return method.init_client(put_weights(bucket, weights), ctx)

    def train(state, downlink, data: Data, root, round, info: ClientInfo, words):
        taught = client_step(method.at(words), bucket, channel)(
            state, downlink, data, root, round, info
        )
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
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"a message of kind {printable(repr(kind))}")
        reply = kinds[kind](site, message)
    except Exception as error:  # whatever it is, the client stays there for the next message
        own, words = isinstance(error, ValueError | OSError), printable(str(error))
        words = words if own else f"{type(error).__name__}: {words}"
        # XLA's may name the shapes of the client's arrays
        if not own and site.plan.unit == "upload":
            site.tell(words)
            words = f"{type(error).__name__}, as the client itself is told"
        reply = Envelope({"error": words}, {})
    seconds = {} if site.plan.unit == "upload" else {"seconds": time.perf_counter() - start}
    return reply._replace(head=reply.head | {"client": site.client} | seconds)


def _hello(site: Site, message: Envelope) -> Envelope:
    owner, differs = message.head.get("owner"), difference(message.head["about"], about(site.plan))
    problem = f"it {differs}" if differs else ""
    if owner is not None and owner != site.client:
        problem = f"its key is that of client {printable(str(owner))}"
    if problem:
        site.tell(f"client {site.client} is left out: {printable(problem)}")
        raise ValueError(problem)
    return Envelope(site.hello, {})


def _train(site: Site, message: Envelope) -> Envelope:
    # The client's own end of Flower says whether the answer will be masked, not the server.
    masked, secure = message.head.get("masked", False), site.plan.secure_sums
    if masked != secure:
        words = ("with", "would leave unmasked") if secure else ("without", "would leave masked")
        raise ValueError(
            f"this client was started {words[0]} --secure_sums, and its answer {words[1]}"
        )
    ask = _read(site, message.head)
    state, downlink = _state(site, ask), unpack(site.downlink, message.arrays, "the downlink")
    try:
        states.check_room(site.folder)
        # from here on the answer counts, whether or not it arrives
        words, epsilon = draw(site.noise)
    except ValueError as error:
        site.tell(f"round {ask.after}: no answer; {error}")
        raise
    taught, scores = site.programs.train(state, downlink, site.data, *ask.where, words)
    finite = bool(taught.finite)
    states.save(ask.folder, ask.after, taught.client if finite else state)
    states.forget(ask.folder, ask.oldest)
    head = {"finite": finite} | _said(
        site, f"after training in round {ask.after}", _scores(scores), _numbers(taught.metrics)
    )
    if epsilon is not None:
        head["epsilon"] = epsilon
        site.tell(f"round {ask.after}: epsilon {epsilon:.4g} with this answer")
    if not finite:
        return Envelope(head, {})
    return Envelope(head, {"vector": as_vector(taught.uplink)} if secure else pack(taught.uplink))


def _evaluate(site: Site, message: Envelope) -> Envelope:
    ask = _read(site, message.head)
    downlink = unpack(site.downlink, message.arrays, "the downlink")
    wanted = {
        name: jnp.bool_(name != "train" or site.plan.options.evaluate_train)
        for name in ClientIndices._fields
    }
    scores = site.programs.evaluate(_state(site, ask), downlink, site.data, *ask.where, wanted)
    return Envelope(_said(site, f"after round {message.head['round']}", _scores(scores)), {})


def _said(
    site: Site, when: str, scores: dict[str, Any], metrics: dict[str, float] | None = None
) -> dict[str, Any]:
    """What of a client's numbers leaves it: none of those that are made of what noise hides, and
    without noise. Scores that stay are a line at home."""
    unit, test = site.plan.unit, scores["test"]
    if unit == "upload" and test["count"]:
        share = test["correct"][site.plan.method.rules[0]] / test["count"]
        site.tell(f"{when}: accuracy {100 * share:.2f} % of {test['count']} test samples")
    said = {"scores": {} if unit == "upload" else scores}
    return (
        said
        if metrics is None
        else said | {"metrics": {} if unit in ("upload", "sample") else metrics}
    )


class _Ask(NamedTuple):
    """Where a message stands: the run's folder, after how many rounds the client's state is asked
    for and kept, the oldest state that the server may come back to, and (root, round, info) as
    compiled functions take them."""

    folder: Path
    before: int
    after: int
    oldest: int
    where: tuple[jax.Array, jax.Array, ClientInfo]


def _read(site: Site, head: dict[str, Any]) -> _Ask:
    run, number, last_round, oldest = asked(head)
    info = ClientInfo(
        jnp.int32(site.client), jnp.int32(site.counts["train"]), jnp.int32(last_round)
    )
    where = jax.random.key(site.plan.options.seed), jnp.int32(number), info
    return _Ask(site.folder / run, last_round + 1, number + 1, oldest, where)


def _state(site: Site, ask: _Ask) -> PyTree:
    # On its device for good, as a state that was read is: else the same program would be compiled
    # for each.
    first = site.programs.first(ask.where[0], site.weights, jnp.int32(site.source))
    first = jax.device_put(first, jax.devices()[0])
    return first if ask.before == 0 else states.load(ask.folder, ask.before, first)


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _scores(scores: dict[str, Any]) -> dict[str, Any]:
    return {
        split: {
            "correct": {rule: int(c) for rule, c in found.correct.items()},
            "count": int(found.count),
        }
        for split, found in scores.items()
    }
