"""The check `check_method` reports methods that read padding samples or absent clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.bucket import head_scores
from fedjax_ht.core.local_training import Loss, train
from fedjax_ht.core.task import multi_label, per_pixel, regression
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.shared.averaging import weighted_mean

TRAINING = fl.LocalTraining(optax.sgd(0.1), batch_size=4)
FEDERATION = fl.make_federation({"mlp": fl.mlp(3, (4,))}, (2, 2, 1), 3, num_clients=3)
METHOD = fl.fedavg(TRAINING)._replace(name="mine")


def forgets_the_mask(bucket, client, downlink, data, ctx):
    def loss(params, stats, batch, key):
        scores = head_scores(bucket, {"params": params, "stats": stats}, batch.x, batch.mask)
        value = optax.softmax_cross_entropy_with_integer_labels(scores, batch.y).mean()
        return Loss(value, stats)

    result = train(
        TRAINING, loss, client["params"], client["stats"], data, key=ctx.key, num_classes=3
    )
    _, uplink, _ = METHOD.client_update(bucket, client, downlink, data, ctx)
    return client | {"params": result.params}, uplink, {"loss": result.loss}


def forgets_the_count(bucket, client, downlink, data, ctx):
    client, uplink, _ = METHOD.client_update(bucket, client, downlink, data, ctx)
    return client, uplink, {"brightness": data.inputs[data.splits["train"].indices].mean()}


def centred_scores(bucket, client, downlink, x, mask):
    scores = head_scores(bucket, client, x, mask)
    return {"head": scores - scores.mean(0)}


def forgets_who_arrived(federation, server, received, ctx):
    uplink, info, _ = received["mlp"]
    return weighted_mean(uplink.params, info.num_samples.astype(jnp.float32)), {}


def divides_by_nothing(bucket, client, downlink, data, ctx):
    client, uplink, metrics = METHOD.client_update(bucket, client, downlink, data, ctx)
    return client, uplink, metrics | {"share": metrics["loss"] / ctx.info.num_samples}


def counts_rounds(bucket, client, downlink, data, ctx):
    client, uplink, metrics = METHOD.client_update(bucket, client, downlink, data, ctx)
    return client, uplink._replace(num_samples=fl.Metadata(jnp.int32(1000))), metrics


def takes_the_largest(federation, server, received, ctx):
    uplink, info, arrived = received["mlp"]
    counted = arrived & (info.num_samples > 0)

    def largest(rows):
        flags = counted.reshape((-1,) + (1,) * (rows.ndim - 1))
        return jnp.where(counted.any(), jnp.where(flags, rows, -jnp.inf).max(0), 0)

    return jax.tree.map(largest, uplink.params), {}


def draws_once(bucket, client, downlink, data, ctx):
    client, uplink, metrics = METHOD.client_update(bucket, client, downlink, data, ctx)
    return client, uplink, metrics | {"draw": jnp.float32(np.random.normal())}


SCAFFOLD = fl.scaffold(TRAINING)


def sends_what_it_keeps(bucket, client, downlink, data, ctx):
    client, uplink, metrics = SCAFFOLD.client_update(bucket, client, downlink, data, ctx)
    return client, uplink._replace(control=client["control"]), metrics


def test_a_control_variate_that_is_sent_whole_breaks_the_methods_invariant():
    fl.check_method(SCAFFOLD, FEDERATION)
    wrong = SCAFFOLD._replace(client_update=sends_what_it_keeps)
    with pytest.raises(ValueError, match=r"View\.invariant of 'scaffold', after round 1") as error:
        fl.check_method(wrong, FEDERATION)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("part", "function", "message"),
    [
        ("server_update", takes_the_largest, "round 0, depends on more than the sum"),
        ("client_update", draws_once, "draws from np.random or random"),
        ("client_update", counts_rounds, r"counts \(fl.Metadata\) more samples than the client"),
        ("client_update", forgets_the_mask, "client 0 in bucket mlp, round 0, reads samples that"),
        (
            "client_update",
            forgets_the_count,
            "weight them by batch.mask, .* it differs in leaves '2",
        ),
        ("predict", centred_scores, "client 0 in bucket mlp, round 0, reads samples"),
        ("server_update", forgets_who_arrived, "round 0, reads rows of clients that"),
        ("client_update", divides_by_nothing, "client 2 .*, round 0, is not finite at 2/share"),
    ],
)
def test_methods_that_break_the_contract_are_found(part, function, message):
    with pytest.raises(ValueError, match=f"'mine'.*{message}") as error:
        fl.check_method(METHOD._replace(**{part: function}), FEDERATION)
    assert "\n" not in str(error.value)


def test_a_sound_method_passes():
    def client_update(bucket, client, downlink, data, ctx):
        client, _, metrics = METHOD.client_update(bucket, client, downlink, data, ctx)
        unread = Masked(jnp.full(3, jnp.nan), jnp.zeros(3, bool))
        return client, unread, metrics

    quiet = fl.local(dataclasses.replace(TRAINING, drop_remainder=False))
    assert fl.check_method(quiet._replace(client_update=client_update), FEDERATION) is None
    fl.check_method(METHOD, FEDERATION)


def test_a_federation_that_does_not_fit_is_the_methods_own_message():
    with pytest.raises(ValueError, match=r"needs one architecture .*, such as fedprox$"):
        fl.check_method(METHOD)


@pytest.mark.parametrize(
    "task", [regression((0.0, 0.0), (1.0, 1.0)), multi_label(2), per_pixel(4, 4, 2)]
)
def test_targets_are_the_tasks(task):
    outputs = 32 if task.name == "per-pixel" else 2
    federation = fl.make_federation(
        {"a": fl.mlp(outputs, (3,))}, (4, 4, 1), outputs, num_clients=3, task=task
    )
    fl.check_method(fl.fedavg(TRAINING), federation)
    with pytest.raises(ValueError, match="compares samples by class"):
        fl.check_method(fl.fedproto(TRAINING), federation)


def test_random_keys_are_compared_too():
    def init_client(bucket, ctx):
        return METHOD.init_client(bucket, ctx) | {"key": jax.random.key(0)}

    quiet = fl.local(TRAINING)
    fl.check_method(quiet._replace(init_client=init_client), FEDERATION)
