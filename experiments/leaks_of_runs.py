"""Attacks on the clients of a run, by `experiments.leaks`."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.leaks import imitation, inversion, membership
from experiments.leaks.images import psnr, ssim
from experiments.leaks_table import NOT_NEEDED, OTHER, OWN, Inverted, Row
from fedjax_ht.core.context import ClientInfo, Turn
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.round import Channel, send
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Transform, chain, gaussian_noise, wire_elements
from fedjax_ht.data.client_data import stack
from fedjax_ht.lab.runs.evaluate import LoadedRun, client_state
from fedjax_ht.lab.runs.method import make_method, uplink_steps
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.privacy_budget import participations
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.privacy import private


class Case(NamedTuple):
    """A client of a run as an attacker sees it.

    Attributes:
      victim: the client.
      state: its state.
      other: first state of another client, for an attacker who does not know the client's.
    """

    victim: imitation.Victim
    state: PyTree
    other: PyTree


class Inversions(NamedTuple):
    """Inversions of one client's uploads.

    Attributes:
      client, trial: client and trial of the uploads.
      uploads, batch: number of uploads, and of images in each.
      noises: standard deviations of noise on every number.
      searches: (name, search) of each attack.
      rounds: number of rounds that epsilon covers; None for all up to the attacked one.
    """

    client: int
    trial: int
    uploads: int
    batch: int
    noises: tuple[float, ...]
    searches: tuple[tuple[str, inversion.Search], ...]
    rounds: int | None


def arrays(tree: PyTree) -> PyTree:
    """Puts the leaves of a tree on the device."""
    return jax.tree.map(jnp.asarray, tree)


def case(loaded: LoadedRun, client: int, trial: int, batch: int = 0) -> Case:
    """Returns a client in its next round; with `batch`, one step on that many samples."""
    run = loaded.run
    entry, privacy, method = run.entry, run.options.privacy, run.method
    state = arrays(client_state(loaded, client))
    if batch:
        training = run.config.training
        training = dataclasses.replace(
            training, batch_size=batch, steps=1, shuffle=False, augmentation=()
        )
        method = make_method(entry, training, uplink_steps(run.config, CODES))
    federation = run.federation
    bucket = federation.buckets[federation.assignment[client]]
    root, round = jax.random.key(run.config.seed + trial), jnp.int32(loaded.state.round)
    samples = len(run.partitions[trial][client].train)
    last = jnp.int32(loaded.state.last_round[client])
    info = ClientInfo(jnp.int32(client), jnp.int32(samples), last)
    server = arrays(loaded.state.server)
    channel = Channel(chain(run.options.uplink), chain(run.options.downlink))
    hidden = private(method, privacy)
    turn = Turn(root, round, info)
    downlink = send(hidden, federation, bucket, channel, server=server, turn=turn)
    neighbour = jnp.int32((client + 1) % federation.num_clients)
    first = Turn(root, jnp.int32(0), info._replace(id=neighbour)).context(Purpose.INIT_CLIENT)
    other = method.init_client(bucket, first._replace(info=None, shared_key=None))
    victim = imitation.Victim(
        method=method,
        bucket=bucket,
        downlink=downlink,
        turn=turn,
        data=data_of(loaded, client, trial),
        privacy=privacy,
    )
    return Case(victim, state, other)


def data_of(loaded: LoadedRun, client: int, trial: int) -> Data:
    """Returns a client's samples, padded as in the run, so that all clients share a program."""
    dataset, partition = loaded.run.dataset, loaded.run.partitions[trial]
    splits = {}
    for name in ("train", "test"):
        padded = stack([getattr(indices, name) for indices in partition])
        splits[name] = jax.tree.map(lambda x: jnp.asarray(x[client]), padded)
    return Data(arrays(dataset.inputs), arrays(dataset.labels), dataset.preprocess, splits)


def uploaded(
    victim: imitation.Victim,
    transform: Transform,
    state: PyTree,
    images: jax.Array,
    labels: jax.Array,
    number: jax.Array,
) -> PyTree:
    """Computes the uplink of a client with other samples.

    Args:
      victim: the client.
      transform: transform of the run's uplinks.
      state: state of the client.
      images, labels: samples of the client.
      number: number of the upload; each has its own noise.
    """
    hidden = victim._replace(privacy=victim.privacy and victim.privacy._replace(secret=(number,)))

    def drawn(key, message):
        return transform(jax.random.fold_in(key, number), message)

    return imitation.upload(hidden, state, images, labels, drawn)


def epsilon(loaded: LoadedRun, client: int, trial: int, rounds: int, noisy: bool) -> float | str:
    """Accounts for a client's privacy after some rounds; "" without privacy.

    It ignores that a draw of participants may also hide the client (docs/privacy.md).

    Args:
      loaded, client, trial: run, client and trial of the account.
      rounds: number of rounds.
      noisy: True if the attacker sees something with the clients' noise, `privacy.unit` "client"
        or "upload".
    """
    run, options = loaded.run, loaded.run.options
    if options.privacy is None:
        return ""
    noise, delta = options.privacy.noise, options.privacy.delta
    clients = len(run.partitions[trial])
    times = participations(options.seed + trial, options.participation, clients, rounds)
    times = int(times[client])
    if options.privacy.unit == "sample":
        training = run.method.training
        count = len(run.partitions[trial][client].train)
        batch = min(training.batch_size, count)
        return poisson_epsilon(noise, batch, count, times * num_steps(training, count), delta)
    return gaussian_epsilon(noise, times, delta) if noisy else math.inf


def hiding(loaded: LoadedRun) -> dict:
    """Returns the run's privacy as fields of a row."""
    privacy = loaded.run.options.privacy
    if privacy is None:
        return {}
    return {"unit": privacy.unit, "clip": privacy.clip, "scale": privacy.noise}


def invert(loaded: LoadedRun, plan: Inversions) -> Iterator[Inverted]:
    """Yields all inversions of one client's uploads; they share compiled programs.

    Raises:
      ValueError: the samples are not images, there are too few, or the method sends nothing.
    """
    client, trial, batch = plan.client, plan.trial, plan.batch
    victim, state, other = case(loaded, client, trial, batch)
    images, labels = uploads_of(loaded, victim, plan)
    shape, hidden = images.shape[1:], hiding(loaded)

    @jax.jit
    def sent_of(images, labels, number):
        transform = chain(loaded.run.options.uplink)
        return uploaded(victim, transform, state, images, labels, number)

    @jax.jit
    def seen_of(sent, held, labels):
        return imitation.observe(victim, sent, held, shape, labels)

    sent = [sent_of(images[i], labels[i], jnp.uint32(i)) for i in range(plan.uploads)]
    with_state, with_other = (seen_of(sent[0], held, labels[0]) for held in (state, other))
    simulate = imitation.imitation(victim, with_state.known, shape)
    # If the uplink does not depend on the client's state, nothing is guessed.
    matters = imitation.state_matters(simulate, with_state.known, with_other.known, images[0])
    states = {OWN: state, OTHER: other} if matters else {NOT_NEEDED: other}
    rounds = plan.rounds or loaded.state.round + 1
    noisy = hidden.get("unit") == "upload"
    hidden["epsilon"] = epsilon(loaded, client, trial, rounds, noisy=noisy)
    cases = itertools.product(range(plan.uploads), plan.noises, states.items(), plan.searches)
    for i, noise, (knowledge, held), (name, search) in cases:
        key = jax.random.fold_in(jax.random.fold_in(victim.turn.root, Purpose.UPLINK), i)
        seen = seen_of(gaussian_noise(noise, 0.0)(key, sent[i]), held, labels[i])
        result = inversion.invert(simulate, seen, shape, jax.random.key(i), search)
        real = np.asarray(images[i])
        best = inversion.in_order(np.asarray(result.images), real)
        row = Row(
            round=loaded.state.round,
            method=loaded.run.label,
            attack=name,
            client=client,
            batch=batch,
            tv=search.tv,
            noise=noise,
            state=knowledge,
            numbers=int(wire_elements(sent[i]).payload_elements),
            psnr=float(psnr(best, real).mean()),
            ssim=float(ssim(best, real).mean()),
            trial=trial,
            image=i,
            **hidden,
        )
        yield Inverted(row, best, real)


def uploads_of(
    loaded: LoadedRun, victim: imitation.Victim, plan: Inversions
) -> tuple[jax.Array, jax.Array]:
    """Returns the samples to invert.

    They are images, float [uploads, batch, H, W, C] in [0, 1], and labels, int [uploads, batch].

    Raises:
      ValueError: the samples are not images, are too small, or are too few.
    """
    if not isinstance(loaded.run.dataset.preprocess, Pixels):
        raise ValueError(
            f"{loaded.run.dataset.name} has no images to look for; --attack=membership takes any "
            "data"
        )
    uploads, batch = plan.uploads, plan.batch
    indices, count = victim.data.splits["train"]
    if count < uploads * batch:
        flags = f"--batch={batch}" if uploads == 1 else f"--uploads={uploads} times --batch={batch}"
        raise ValueError(f"client {plan.client} has {count} training samples, fewer than {flags}")
    indices = indices[: uploads * batch]
    images = victim.data.preprocess.scaled(victim.data.inputs[indices])
    ssim(images[:1], images[:1])  # rejects images that are too small before compilation
    images = images.reshape(uploads, batch, *images.shape[1:])
    return images, victim.data.labels[indices].reshape(uploads, batch)


def memberships(loaded: LoadedRun, trial: int, rounds: int | None = None) -> Iterator[Row]:
    """Yields rows for each client with training and test samples, by its own model.

    If the server has a model, there are also rows by that, with the client's own batch statistics
    if it keeps any.

    Args:
      loaded, trial: run and trial of the clients.
      rounds: number of rounds that epsilon covers; None for all so far.
    """
    method, privacy = loaded.run.method, loaded.run.options.privacy
    losses = jax.jit(
        functools.partial(membership.losses, method), static_argnames=("bucket", "split")
    )
    for client in range(loaded.run.federation.num_clients):
        victim, state, _ = case(loaded, client, trial)
        data = victim.data
        models = {OWN: state}
        if method.global_model is not None:
            hidden, ctx = private(method, privacy), victim.turn.context(Purpose.RECEIVE)
            models[NOT_NEEDED] = hidden.receive(victim.bucket, state, victim.downlink, data, ctx)
        for knowledge, model in models.items():
            # Splits are padded to one size: only the first `count` losses belong to samples.
            by_split = []
            for name in ("train", "test"):
                padded = losses(victim.bucket, model, victim.downlink, data, split=name)
                by_split.append(np.asarray(padded)[: int(data.splits[name].count)])
            auc = membership.auc(*by_split)
            if math.isnan(auc):
                continue
            noisy = knowledge == NOT_NEEDED
            spent = epsilon(loaded, client, trial, rounds or loaded.state.round, noisy=noisy)
            fields = {"state": knowledge, "trial": trial, "epsilon": spent, **hiding(loaded)}
            yield Row(loaded.state.round, loaded.run.label, "membership", client, auc=auc, **fields)
