"""A method that reports all its arguments, so that every number of a run is known in advance."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_ht as fl
from fedjax_ht.core.wire import Masked, Metadata
from tests.federations import (
    NUM_CLASSES,
    NUM_CLIENTS,
    TRAINING,
    federation_data,
    mixed_federation,
    samples,
)

FEDERATION = mixed_federation()


class Server(NamedTuple):
    """Facts that the clients sent, by id: weights [n, 2], facts [n, 5], and how often each was
    heard [n]; the level counts rounds from 1."""

    level: jax.Array
    weights: jax.Array
    facts: jax.Array
    heard: jax.Array


class Uplink(NamedTuple):
    weights: jax.Array
    facts: Metadata  # float32 [5]: id, samples, last round, this round, and a draw from the key


class Downlink(NamedTuple):
    level: jax.Array
    ones: Masked  # [n], of which client i is sent i + 1


def capped_scores(x, cap):
    """The class by the image's brightness, but never above `cap`."""
    pixels = (x.mean((1, 2, 3)) * 0.5 + 0.5) * 255
    return jax.nn.one_hot(jnp.minimum(jnp.round((pixels - 40) / 40), cap).astype(int), NUM_CLASSES)


def capped_accuracy(cap: int, indices: np.ndarray) -> float:
    """The share of samples that `capped_scores` gets right, by hand; NaN without any."""
    dataset, _ = samples()
    brightness = dataset.inputs[indices].astype(float).mean((1, 2, 3))
    guess = np.minimum(np.round((brightness - 40) / 40), cap)
    return float(np.mean(guess == dataset.labels[indices])) if len(indices) else np.nan


def probe() -> fl.Method:
    """Clients hold a weight that moves and a cap, which `receive` sets; training adds two."""

    def client_update(bucket, client, downlink, data, ctx: fl.Context):
        info = ctx.info
        weight = client["weight"] + downlink.level
        facts = [info.id, info.num_samples, info.last_round, ctx.round, jax.random.uniform(ctx.key)]
        uplink = Uplink(weight, Metadata(jnp.stack([jnp.float32(fact) for fact in facts])))
        return {"weight": weight, "cap": client["cap"] + 2}, uplink, {"id": jnp.float32(info.id)}

    def server_update(federation, server, received, ctx):
        uplink, info, arrived = fl.gather_received(received)
        at = jnp.where(arrived, info.id, NUM_CLIENTS)  # out of range: not written
        weights = server.weights.at[at].set(uplink.weights, mode="drop")
        facts = server.facts.at[at].set(uplink.facts.value, mode="drop")
        heard = server.heard.at[at].add(1, mode="drop")
        return Server(server.level + 1, weights, facts, heard), {"heard": arrived.sum()}

    def broadcast(federation, bucket, server, ctx: fl.Context):
        mask = jnp.arange(NUM_CLIENTS) <= ctx.info.id
        return Downlink(server.level, Masked(jnp.ones(NUM_CLIENTS), mask))

    def zeros(*shape):
        return jnp.zeros((NUM_CLIENTS, *shape))

    return fl.Method(
        name="probe",
        training=TRAINING,
        init_server=lambda federation, key: Server(jnp.float32(1), zeros(2), zeros(5), zeros()),
        init_client=lambda bucket, ctx: {
            "weight": jax.random.uniform(ctx.key, (2,)),
            "cap": jnp.float32(0),
        },
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        receive=lambda bucket, client, downlink, data, ctx: (
            client | {"cap": jnp.round(downlink.level)}
        ),
        predict=lambda bucket, client, downlink, x, mask: {"cap": capped_scores(x, client["cap"])},
        rules=("cap",),
        wire=fl.Wire(counts="other"),  # facts are no counts
    )


@functools.cache
def simulation(changes: tuple = (), padding: int = 0, **options) -> fl.Simulation:
    """The probe, with `changes` as pairs of a Method's field and its value."""
    method, data = probe()._replace(**dict(changes)), federation_data(FEDERATION, padding)
    return fl.make_simulation(method, FEDERATION, data, fl.SimulationOptions(**options))
