"""A run as an attacker meets it: who its clients are to `fedjax_ht.trust.leaks`, and all that is
found of them."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.leaks_table import NOT_NEEDED, OTHER, OWN, Inverted, Row
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.method import ClientInfo, Data, PyTree
from fedjax_ht.core.round import Channel, client_context, receive, send
from fedjax_ht.core.wire import Transform, chain, gaussian_noise, wire_elements
from fedjax_ht.data.client_data import stack
from fedjax_ht.experiment.entries import as_run
from fedjax_ht.experiment.method import make_method
from fedjax_ht.metrics.images import psnr, ssim
from fedjax_ht.runner.evaluate import LoadedRun, client_state
from fedjax_ht.simulation.spending import participations
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.leaks import imitation, inversion, membership
from fedjax_ht.trust.privacy import private


class Case(NamedTuple):
    """A client of a run: who it is to an attacker, its own state, and another client's first
    one."""

    victim: imitation.Victim
    own: PyTree
    other: PyTree


class Wanted(NamedTuple):
    """Which inversions.

    Attributes:
      client, trial: whose uploads.
      uploads, batch: how many, and of how many images each.
      noises: deviations of noise on every number.
      searches: by name.
      rounds: that epsilon is told of; None is all until the attacked one.
    """

    client: int
    trial: int
    uploads: int
    batch: int
    noises: tuple[float, ...]
    searches: tuple[tuple[str, inversion.Search], ...]
    rounds: int | None


def arrays(tree):
    return jax.tree.map(jnp.asarray, tree)


def case(run: LoadedRun, config, client: int, trial: int, batch: int = 0) -> Case:
    """A client in its next round; with `batch`, of one step on so many samples."""
    experiment, label = run.experiment, run.method
    method, entry, privacy = (
        experiment.methods[label],
        experiment.entries[label],
        experiment.options.privacy,
    )
    own = arrays(client_state(run, client, trial))
    if batch:
        training = as_run(entry, config).training
        training = dataclasses.replace(
            training, batch_size=batch, steps=1, shuffle=False, augmentation=()
        )
        method = make_method(entry, training)
    federation = experiment.federations[label]
    bucket = federation.buckets[federation.assignment[client]]
    root, round = jax.random.key(config.seed + trial), jnp.int32(run.state.round)
    samples = len(experiment.partitions[trial][client].train)
    last = jnp.int32(run.state.last_round[trial][client])
    info = ClientInfo(jnp.int32(client), jnp.int32(samples), last)
    server = jax.tree.map(lambda x: jnp.asarray(x)[trial], run.state.servers)
    channel = Channel(chain(experiment.options.uplink), chain(experiment.options.downlink))
    downlink = send(
        private(method, privacy), federation, bucket, channel, server, root, round, info
    )
    neighbour = jnp.int32((client + 1) % federation.num_clients)
    first = client_context(Purpose.INIT_CLIENT, root, jnp.int32(0), info._replace(id=neighbour))
    other = method.init_client(bucket, first._replace(info=None, shared_key=None))
    parts = {
        name: stack([getattr(who, name) for who in experiment.partitions[trial]])
        for name in ("train", "test")
    }
    splits = {
        name: jax.tree.map(lambda x: jnp.asarray(x[client]), part) for name, part in parts.items()
    }
    dataset = experiment.dataset
    data = Data(arrays(dataset.inputs), arrays(dataset.labels), dataset.preprocess, splits)
    return Case(
        imitation.Victim(method, bucket, downlink, root, round, info, data, privacy), own, other
    )


def uploaded(
    victim: imitation.Victim, transform: Transform, own: PyTree, images, labels, number: jax.Array
) -> PyTree:
    """What a client sends whose samples are these, with the run's own `transform` of uplinks;
    `number` is the upload's, each of which has noise of its own."""
    hidden = victim._replace(privacy=victim.privacy and victim.privacy._replace(secret=(number,)))

    def drawn(key, message):
        return transform(jax.random.fold_in(key, number), message)

    return imitation.upload(hidden, own, images, labels, drawn)


def epsilon(run: LoadedRun, client: int, trial: int, rounds: int, noisy: bool) -> float | str:
    """What the accountant says of a client after so many rounds; "" without privacy. That a draw of
    participants may hide them as well (docs/privacy.md) is not counted.

    Args:
      run, client, trial: whose.
      rounds: how many.
      noisy: whether what is looked at has the noise of clients, `privacy.unit` "client" or
        "upload".
    """
    experiment, options = run.experiment, run.experiment.options
    if options.privacy is None:
        return ""
    noise, delta = options.privacy.noise, options.privacy.delta
    clients = len(experiment.partitions[trial])
    times = int(
        participations(options.seed + trial, options.participation, clients, rounds)[client]
    )
    if options.privacy.unit == "sample":
        training, count = (
            experiment.methods[run.method].training,
            len(experiment.partitions[trial][client].train),
        )
        return poisson_epsilon(
            noise, min(training.batch_size, count), count, times * num_steps(training, count), delta
        )
    return gaussian_epsilon(noise, times, delta) if noisy else math.inf


def hiding(run: LoadedRun) -> dict:
    """The run's privacy as fields of a row."""
    privacy = run.experiment.options.privacy
    return (
        {}
        if privacy is None
        else {"unit": privacy.unit, "clip": privacy.clip, "scale": privacy.noise}
    )


def invert(run: LoadedRun, config, wanted: Wanted) -> Iterator[Inverted]:
    """All inversions of one client's uploads. What is compiled for the first serves the others.

    Raises:
      ValueError: the samples are no images, there are too few, or the method sends nothing.
    """
    if not isinstance(run.experiment.dataset.preprocess, Pixels):
        raise ValueError(
            f"{run.experiment.dataset.name} has no images to look for; --attack=membership takes "
            "any data"
        )
    client, batch, total = wanted.client, wanted.batch, wanted.uploads * wanted.batch
    victim, own, other = case(run, config, client, wanted.trial, batch)
    indices, count = victim.data.splits["train"]
    if count < total:
        asked = (
            f"--batch={batch}"
            if wanted.uploads == 1
            else f"--uploads={wanted.uploads} times --batch={batch}"
        )
        raise ValueError(f"client {client} has {count} training samples, fewer than {asked}")
    images = victim.data.preprocess.scaled(victim.data.inputs[indices[:total]])
    labels = victim.data.labels[indices[:total]].reshape(wanted.uploads, batch)
    ssim(images[:1], images[:1])  # refuses what is too small, before anything is compiled
    images = images.reshape(wanted.uploads, batch, *images.shape[1:])
    shape, hidden = images.shape[1:], hiding(run)

    @jax.jit
    def sent_of(images, labels, number):
        return uploaded(victim, chain(run.experiment.options.uplink), own, images, labels, number)

    @jax.jit
    def seen_of(sent, state, labels):
        return imitation.seen_of(victim, sent, state, shape, labels)

    sent = [sent_of(images[i], labels[i], jnp.uint32(i)) for i in range(wanted.uploads)]
    with_own, with_other = (seen_of(sent[0], state, labels[0]) for state in (own, other))
    simulate = imitation.imitation(victim, with_own.held, shape)
    lost = imitation.tells_apart(simulate, with_own.held, with_other.held, images[0])
    states = {OWN: own, OTHER: other} if lost else {NOT_NEEDED: other}
    rounds = wanted.rounds or run.state.round + 1
    hidden |= {
        "epsilon": epsilon(run, client, wanted.trial, rounds, noisy=hidden.get("unit") == "upload")
    }
    for i in range(wanted.uploads):
        key = jax.random.fold_in(jax.random.fold_in(victim.root, Purpose.UPLINK), i)
        size, real = int(wire_elements(sent[i]).payload_elements), np.asarray(images[i])
        for noise in wanted.noises:
            noisy = gaussian_noise(noise, 0.0)(key, sent[i])
            for state, held in states.items():
                seen = seen_of(noisy, held, labels[i])
                for name, search in wanted.searches:
                    found = inversion.invert(simulate, seen, shape, jax.random.key(i), search)
                    best = inversion.in_order(np.asarray(found.images), real)
                    scores = float(psnr(best, real).mean()), float(ssim(best, real).mean())
                    about = (
                        run.state.round,
                        run.method,
                        name,
                        client,
                        batch,
                        search.tv,
                        noise,
                        state,
                        size,
                    )
                    yield Inverted(
                        Row(*about, *scores, trial=wanted.trial, image=i, **hidden), best, real
                    )


def memberships(run: LoadedRun, config, trial: int, rounds: int | None = None) -> Iterator[Row]:
    """Rows of each client that has training and test samples: by its own model, and by the server's
    where the server has one, with the client's own batch statistics if it keeps any.

    Args:
      run, config, trial: of what.
      rounds: that epsilon is told of; None is all until now.
    """
    method, privacy = run.experiment.methods[run.method], run.experiment.options.privacy
    losses = jax.jit(
        functools.partial(membership.losses, method), static_argnames=("bucket", "split")
    )
    for client in range(run.experiment.federations[run.method].num_clients):
        victim, own, _ = case(run, config, client, trial)
        models = {OWN: own}
        if method.global_params is not None:
            place = victim.root, victim.round, victim.info
            models[NOT_NEEDED] = receive(
                private(method, privacy), victim.bucket, own, victim.downlink, victim.data, *place
            )
        for state, model in models.items():
            asked = victim.bucket, model, victim.downlink, victim.data
            counts = {name: int(split.count) for name, split in victim.data.splits.items()}
            each = [
                np.asarray(losses(*asked, split=name))[: counts[name]] for name in ("train", "test")
            ]
            value = membership.auc(*each)
            if not math.isnan(value):
                spent = epsilon(
                    run, client, trial, rounds or run.state.round, noisy=state == NOT_NEEDED
                )
                about = {"state": state, "trial": trial, **hiding(run), "epsilon": spent}
                yield Row(run.state.round, run.method, "membership", client, auc=value, **about)
