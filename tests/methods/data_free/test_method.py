"""Distillation on a method that averages: what stays, feeds back, is counted and shown."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.check.options import options_of
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining, label_counts
from fedjax_ht.lab.config.base import method_config, method_options
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.data_free.bases import BASES, make_base
from fedjax_ht.methods.data_free.dense import dense
from fedjax_ht.methods.data_free.dfrd import dfrd
from fedjax_ht.methods.data_free.image_generator import make_generator
from fedjax_ht.methods.data_free.method import pictures
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.methods.registry import AVERAGING
from fedjax_ht.models.sliced import sliced_model
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import (
    NUM_CLASSES,
    SHAPE,
    TRAINING,
    SlicedDense,
    federation_data,
    identical,
    mixed_federation,
    normed_federation,
    sliced_federation,
)
from tests.methods.data_free.recipes import TINY
from tests.standard import played


def federation_of(rate: float, shape=SHAPE):
    """Every client has a slice of this width."""

    def network(rate):
        return sliced_model(SlicedDense((6, 8), rate), NUM_CLASSES)

    return make_sliced_federation(network, [rate] * 8, shape, NUM_CLASSES)


def states(method, federation, rounds=2):
    """After each round, on the host."""
    options = SimulationOptions(participation=0.6, drop_rate=0.25, lanes=1)
    sim = make_simulation(method, federation, federation_data(federation), options)
    return played(sim, rounds)[0][1:]


OF_DFRD = [f"{base}+dfrd" for base in ("fedrolex", "fedavg", "heterofl", "feddropout")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OF_DFRD, "fedrolex+dense", "fedrolex+fedftg"])
def test_without_iterations_it_is_the_base(name):
    """Bit by bit: the same clients train on the same batches, and the server's mean is the same.
    Clients of the bases keep no state between rounds."""
    base = name.partition("+")[0]
    federation = federation_of(1.0) if base == "fedavg" else sliced_federation()
    plain = states(METHODS[base](TRAINING), federation)
    tuned = states(
        method_factory(name)(TRAINING, **TINY | {"iterations": 0}, variant="released"), federation
    )
    for a, b in zip(plain, tuned):
        assert identical(a.server, b.server.model)
        first = jax.tree.map(np.asarray, b.server.generator)
        # which nobody has trained
        assert b.server.average == () or identical(b.server.average, first)


@pytest.mark.slow
def test_the_distilled_model_feeds_back():
    """Clients' next slices are cut from it, or, as released, from the average."""
    federation = sliced_federation()
    plain = states(METHODS["fedrolex"](TRAINING), federation, 1)
    ctx = Context(jax.random.key(0), jnp.int32(1), tiny.infos([0], 10))
    sent = {}
    for feedback in (True, False):
        weighting = {"weighting": "uniform"}  # as the base by itself
        method = method_factory("fedrolex+dfrd")(
            TRAINING, **TINY, **weighting, student_lr=0.5, feedback=feedback
        )
        (state,) = states(method, federation, 1)
        assert not identical(state.server.model, plain[0].server)
        whole = federation.buckets[0]
        down = jax.tree.map(np.asarray, method.broadcast(federation, whole, state.server, ctx))
        base = make_base("fedrolex", TRAINING).method
        expected = state.server.model if feedback else plain[0].server
        want = jax.tree.map(np.asarray, base.broadcast(federation, whole, expected, ctx))
        assert identical(down, want)
        sent[feedback] = state.server
    assert sent[True].averaged == () and identical(sent[False].averaged, plain[0].server)
    assert identical(sent[True].model, sent[False].model)


@pytest.mark.parametrize("kind", ["this_round", "seen_so_far", "full", "none"])
def test_labels_are_counted(kind):
    """Over two rounds of two steps of three samples each, and six rounds later."""
    labels = np.array([0, 2, 2, 3, 0, 1, 0])
    data = tiny.client_data(labels, shape=SHAPE, padding=2)
    training = LocalTraining(optax.sgd(0.1), batch_size=3, steps=2)
    histogram = np.bincount(labels, minlength=NUM_CLASSES)
    contexts = [tiny.context(0, seed) for seed in range(8)]
    used = [np.asarray(label_counts(training, data, ctx.key, NUM_CLASSES)) for ctx in contexts]
    assert all(u.sum() == 6 for u in used) and not (used[0] == used[1]).all()
    method, bucket = dfrd(training, counts=kind), sliced_federation().buckets[0]
    run = jax.jit(lambda client, ctx: method.client_update(bucket, client, (), data, ctx))
    client = method.init_client(bucket, contexts[0])
    for number, ctx in enumerate(contexts):
        client, uplink, _ = run(client, ctx)
        message = uplink.label_counts
        want = {
            "this_round": used[number],
            "seen_so_far": np.minimum(np.sum(used[: number + 1], axis=0), histogram),
            "full": histogram,
            "none": None,
        }[kind]
        if want is None:
            assert message == client.seen == ()
        else:
            np.testing.assert_array_equal(message.value, want)


def test_pictures_are_of_both_generators_class_by_class():
    federation, recipe = sliced_federation(), Distillation(noise_dim=4, batch_size=2)
    method = dfrd(TRAINING, noise_dim=4, batch_size=2)
    server = jax.jit(lambda key: method.init_server(federation, key))(jax.random.key(0))
    brighter = jax.tree.map(lambda x: 2 * x, server.generator)
    shown = method.view.pictures(federation, server._replace(average=brighter))
    assert list(shown) == ["generator", "moving average"]
    noise = jax.random.normal(jax.random.key(0), (40, 4))
    for variables, images in zip((server.generator, brighter), shown.values()):
        assert images.shape == (40, *SHAPE) and 0 <= images.min() < images.max() <= 1
        made = make_generator(federation, recipe).apply(
            variables, noise, np.arange(40) % NUM_CLASSES, False
        )
        np.testing.assert_allclose(images, (made.images + 1) / 2, atol=1e-5)
    alone = server._replace(average=())
    assert list(pictures(recipe, federation, alone)) == ["generator"]


def test_federations_that_it_cannot_run_on():
    message = "dfrd needs a global model; make the federation with make_sliced_federation"
    with pytest.raises(ValueError, match=message):
        dfrd(TRAINING).check(mixed_federation())
    line = r"fedavg\+dfrd averages whole models; all rates must be 1, not 0.5"
    with pytest.raises(ValueError, match=line):
        dfrd(TRAINING, base="fedavg").check(federation_of(0.5))
    dfrd(TRAINING, base="fedavg").check(federation_of(1.0))
    with pytest.raises(ValueError, match="compares moments of batch norms, but the models have"):
        dense(TRAINING, b_bn=1.0).check(sliced_federation())
    dense(TRAINING, b_bn=1.0).check(normed_federation())
    with pytest.raises(ValueError, match="images have 65 pixels a side"):
        dfrd(TRAINING).check(federation_of(1.0, (65, 65, 1)))


@pytest.mark.parametrize("base", AVERAGING)
def test_two_factories_are_composed_by_name(base):
    assert tuple(BASES) == ("none", *AVERAGING)
    factory = method_factory(f"{base}+fedftg")
    assert method_options(f"{base}+fedftg").keys() == method_options("fedftg").keys() - {"base"}
    inherited = options_of(METHODS[base]).keys() - {"training", "whole_head"}
    assert "weighting" in inherited and inherited <= method_options("fedftg").keys()
    method = factory(TRAINING, weighting="samples", iterations=3)
    assert method.name == f"{base}+fedftg" == METHODS["fedftg"](TRAINING, base).name
    foreign = "masked_loss" if base == "fedavg" else "per_layer"
    if base != "feddropout":
        with pytest.raises(
            ValueError, match=f"{foreign} is not an option of base '{base}'; remove it"
        ):
            factory(TRAINING, **{foreign: True})
    with pytest.raises(ValueError, match="weighting is 'age'"):
        factory(TRAINING, weighting="age")
    options = method_config(f"{base}+fedftg", b_md=2.0).options
    assert options.b_md == 2.0 and options.merge == "cat" and "base" not in options


def test_names_that_are_no_composition():
    for name in ("fedfoo", "fedtgp+dfrd", "fedrolex+fedtgp", "dfrd+fedrolex", "fedrolex+"):
        message = r"unknown method '.*'; .*BASE\+METHOD with one of fedavg"
        with pytest.raises(ValueError, match=message):
            method_factory(name)
