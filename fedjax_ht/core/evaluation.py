"""Evaluation, compiled: who classifies how many samples of a split correctly, clients and the
server's own model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.executor import Schedule, run_clients
from fedjax_ht.core.federation import Bucket, Federation, features, logits
from fedjax_ht.core.local_training import take_batch
from fedjax_ht.core.method import Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, Participant, TrialServers, any_state, receive, send, view
from fedjax_ht.core.statistics import collect_statistics


class Asked(NamedTuple):
    """What to score: arguments of the compiled evaluation, so that one serves a round and an
    evaluation.

    Attributes:
      received: bool, the clients after `receive` with the newest downlink, else as their training
        left them.
      splits: name of a clients' set -> bool.
    """

    received: jax.Array
    splits: dict[str, jax.Array]


class Scores(NamedTuple):
    """Per rule the number of correctly classified samples; and how many samples there were."""

    correct: dict[str, jax.Array]
    count: jax.Array


def score(predict: Callable, data: Data, split: Split, batch_size: int) -> Scores:
    """Counts correct predictions over a split.

    Args:
      predict: (x, mask) -> {rule: scores [B, C]}, or None. A score of -inf says "no prediction"; a
        sample whose scores are all -inf is wrong.
      data: holds the images.
      split: which samples.
      batch_size: samples a call.
    """

    def scored(i):
        batch = take_batch(data, split.indices, split.count, i * batch_size, batch_size)
        return predict(batch.x, batch.mask) or {}, batch

    def body(i, correct):
        scores, batch = scored(i)
        hits = {
            rule: (jnp.argmax(s, -1) == batch.y) & jnp.isfinite(jnp.max(s, -1)) & batch.mask
            for rule, s in scores.items()
        }
        return {rule: correct[rule] + jnp.sum(h, dtype=jnp.int32) for rule, h in hits.items()}

    rules = jax.eval_shape(scored, jnp.int32(0))[0]
    batches = (split.count + batch_size - 1) // batch_size
    correct = lax.fori_loop(0, batches, body, {rule: jnp.int32(0) for rule in rules})
    return Scores(correct, split.count)


def as_asked(
    method: Method, bucket: Bucket, client, downlink, own: Data, root, round, info, received
) -> PyTree:
    """The client's state after receipt where `received`, bool, else as it is."""
    took = receive(method, bucket, client, downlink, own, root, round, info)
    # Leaf by leaf: most methods receive nothing, or a head, and the rest needs no copy.
    return jax.tree.map(lambda a, b: b if a is b else jnp.where(received, a, b), took, client)


def score_splits(
    method: Method,
    bucket: Bucket,
    client,
    downlink,
    own: Data,
    wanted: dict[str, jax.Array],
    batch_size: int,
) -> dict[str, Scores]:
    """Scores one client on its own sets; one that is not wanted, name -> bool, counts as empty."""

    def predict(x, mask):
        return method.predict(bucket, client, downlink, x, mask)

    splits = {name: own.splits[name] for name in wanted}
    splits = {
        name: s._replace(count=jnp.where(wanted[name], s.count, 0)) for name, s in splits.items()
    }
    return {name: score(predict, own, split, batch_size) for name, split in splits.items()}


def as_scored(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel, keeps: bool = True
) -> Callable:
    """(client, Participant, servers, the client's own data, round, received) -> (the method with
    the trial's settings, the client's state as an evaluation scores it, downlink); `received` as of
    `Asked`, the others as of a round. Of clients that keep nothing (`keeps`, see
    `forms.keeps_state`) it is what comes down."""

    def prepare(
        client, participant: Participant, servers: TrialServers, own: Data, round, received
    ):
        server, root, settings = servers.of(participant.trial)
        mine, info = method.at(settings), participant.info
        downlink = send(mine, federation, bucket, channel, server, root, round, info)
        if keeps:
            client = as_asked(mine, bucket, client, downlink, own, root, round, info, received)
        else:
            client = receive(
                mine, bucket, any_state(mine, bucket, root), downlink, own, root, round, info
            )
        return mine, client, downlink

    return prepare


def received_state(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel
) -> Callable:
    """Returns (participant, servers, data, round) -> the state of a client that keeps nothing
    between rounds, as the newest downlink leaves it; compiled."""
    prepare = as_scored(method, federation, bucket, channel, keeps=False)

    def run(participant: Participant, servers: TrialServers, data: Data, round):
        return prepare((), participant, servers, view(data, participant), round, True)[1]

    return jax.jit(run)


def client_evaluation(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    batch_size: int,
    keeps: bool = True,
) -> Callable:
    """(client, Participant, servers, data, round, Asked) -> {split: Scores}, for one client. A set
    that is not asked for counts as empty."""
    prepare = as_scored(method, federation, bucket, channel, keeps)

    def run(
        client, participant: Participant, servers: TrialServers, data: Data, round, asked: Asked
    ):
        own = view(data, participant)
        mine, client, downlink = prepare(client, participant, servers, own, round, asked.received)
        return score_splits(mine, bucket, client, downlink, own, asked.splits, batch_size)

    return run


def bucket_evaluation(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    lanes: int,
    batch_size: int,
    keeps: bool = True,
) -> Callable:
    """(states, schedule of Participant, servers, data, (round, Asked)) -> {split: Scores [P]}, on
    one device.

    The states stay; of clients that keep nothing they are (). Arguments as `bucket_round`, and
    samples a call.
    """
    one = client_evaluation(method, federation, bucket, channel, batch_size, keeps)

    def run(
        states, schedule: Schedule, servers: TrialServers, data: Data, when: tuple[jax.Array, Asked]
    ):
        # The states are read, not carried through the loop: evaluation changes none and must not
        # copy them.
        def score_one(_, slot_and_own):
            slot, own = slot_and_own
            client = jax.tree.map(lambda x: x[jnp.minimum(slot, x.shape[0] - 1)], states)
            return (), one(client, own, servers, data, *when)

        plan = schedule._replace(own=(schedule.slots, schedule.own))
        return run_clients(score_one, (), plan, lanes)[1]

    return run


def global_evaluation(
    method: Method, federation: Federation, statistics: str, batch_size: int
) -> Callable:
    """((server, {"train", "test"} -> Split), data) -> Scores of the server's own model by its head.

    Args:
      statistics: what "static_batch" norms go by, as `SimulationOptions.global_statistics`.
      Others as `bucket_evaluation`.
    """
    bucket = federation.global_model

    def run(own: tuple[PyTree, dict[str, Split]], data: Data) -> Scores:
        server, splits = own
        params, stats = method.global_params(server), {}
        if statistics == "training":
            stats = collect_statistics(bucket, params, data, splits["train"], batch_size)

        def predict(x, mask):
            return {
                "head": logits(
                    bucket, params, features(bucket, params, stats, x, mask, train=False)[0]
                )
            }

        return score(predict, data, splits["test"], batch_size)

    return run
