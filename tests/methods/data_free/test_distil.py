"""DFRD, DENSE and FedFTG at the server: losses, loop, the generator's moving average."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import Context, Received
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.data_free.bases import Opinions, Server, Teachers
from fedjax_ht.methods.data_free.dense import batch_norm_loss
from fedjax_ht.methods.data_free.distil import Synthetic
from fedjax_ht.methods.data_free.image_generator import draw, moving_average
from fedjax_ht.methods.data_free.method import Uplink
from fedjax_ht.methods.data_free.options import Distillation
from tests import tiny
from tests.federations import TRAINING
from tests.methods.data_free.by_hand import (
    CASES,
    COUNTS,
    FEDERATIONS,
    KEY,
    LR,
    MEMBERS,
    SMALL,
    by_hand,
    client_params,
)
from tests.methods.data_free.recipes import (
    IMAGES,
    LABELS,
    MERGED,
    STUDENT,
    TAU,
    TEACHERS,
    losses_of,
    synthetic,
)
from tests.reference import dfrd as reference
from tests.standard import served


def received(kind: str, counted: bool) -> dict[str, Received]:
    """Stacks the uploads that the server holds after a round without data."""
    clients = sorted(i for ids in MEMBERS.values() for i in ids)
    uplinks = {
        i: Uplink(client_params(kind, i), Metadata(np.int32(COUNTS[i])) if counted else (), ())
        for i in clients
    }
    return tiny.receive(uplinks, MEMBERS, {3: 0}, [i for i in clients if i != 6])


def first_server(kind: str, method) -> Server:
    """With a moving average that differs from the generator."""
    server = jax.jit(lambda key: method.init_server(FEDERATIONS[kind], key))(jax.random.key(0))
    # Small kernels would make images without contrast.
    louder = jax.tree.map(lambda x: 4 * x if x.ndim == 4 else x, server.generator)
    average = {
        "params": jax.tree.map(jnp.negative, louder["params"]),
        "batch_stats": louder["batch_stats"],
    }
    return server._replace(generator=louder, average=average if server.average else ())


OTHERS = ("plain", "dfrd", 0), ("plain", "dense", 1)


@pytest.mark.parametrize(
    ("kind", "case", "round"),
    [("normed", "dfrd", 1), *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
)
def test_a_round_at_the_server_equals_the_steps_by_hand(kind, case, round):
    """The moving average teaches from the second round with uploads on, whichever number that is.
    FedFTG has the same loop, and other losses, which test_variants has."""
    factory, options, *_, alpha = CASES[case]
    method = factory(TRAINING, variant="released", **SMALL, **options)
    server = first_server(kind, method)._replace(has_taught=jnp.array(round > 0))
    got, ctx = received(kind, case != "dense"), Context(KEY, jnp.int32(3), None)
    new, metrics = served(method, FEDERATIONS[kind], server, got, ctx)
    generator, model, generator_loss, student_loss = by_hand(kind, case, server, round)
    np.testing.assert_allclose(metrics["generator_loss"], generator_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["student_loss"], student_loss, rtol=1e-3)
    # Where a gradient is next to nothing, as often ahead of a norm, Adam makes a whole step of its
    # rounding error.
    off = jax.tree.map(lambda a, b: np.mean(np.abs(a - b) > 0.02 * LR), new.generator, generator)
    assert max(jax.tree.leaves(off)) < (0.05 if kind == "normed" else 1e-3)
    chex.assert_trees_all_close(new.model, model, rtol=0, atol=5e-4)
    if alpha:
        kept = 0.5 if round else 0.0  # the average begins with the first trained generator
        expected = jax.tree.map(
            lambda a, g: kept * a + (1 - kept) * g, server.average, new.generator
        )
        chex.assert_trees_all_close(new.average, expected, rtol=0, atol=1e-6)
    else:
        assert new.average == server.average == ()
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()),
        (server.generator, server.model),
        (generator, model),
    )
    if kind == "plain":  # a bias ahead of a norm has no gradient
        assert min(jax.tree.leaves(moved)) > 0.02 * LR


@pytest.mark.parametrize("name", ["dfrd", "fedftg"])
def test_images_that_are_alike_cost_the_generator(name):
    """The term of diversity is added: at a negative weight a generator would make them alike."""

    def cost(b_div, images):
        losses = [losses_of(METHODS[name], "released", b_div=b)[1] for b in (b_div, 0.0)]
        weighed, rest = (loss.generator(synthetic(images=images)) for loss in losses)
        return weighed - rest

    want = reference.diversity(IMAGES, MERGED, "squares")
    assert 0.01 < want < 1
    np.testing.assert_allclose(cost(3.0, IMAGES), 3 * want, rtol=1e-4)
    np.testing.assert_allclose(cost(1.0, np.zeros_like(IMAGES)), 1.0, rtol=1e-4)


WEIGHT_OF_KL = {"dfrd": "b_tran", "dense": "b_adv", "fedftg": "b_md"}


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", WEIGHT_OF_KL)
def test_the_square_of_the_temperature_scales_every_kl(name, squared):
    """The student's loss, and the generator's without the rest of it."""
    each, student = 1.5 * TEACHERS, 1.5 * STUDENT  # apart enough at this temperature, too
    batch, at_four = synthetic(each, student), {"temperature": 4.0, "temperature_squared": squared}

    def losses(**options):
        return losses_of(METHODS[name], "released", **at_four, **options)[1]

    want = reference.student_loss(name, each, TAU, student, 4.0, squared)
    np.testing.assert_allclose(losses().student(batch), want, rtol=1e-5)
    whole, rest = (losses(**{WEIGHT_OF_KL[name]: w}).generator(batch) for w in (1.0, 0.0))
    want = reference.adversarial_loss(name, each, TAU, student, LABELS, 4.0, squared)
    assert abs(want) > 0.05
    np.testing.assert_allclose(whole - rest, want, rtol=1e-4)
    assert Distillation().kl_scale == 1


def test_the_moving_average_covers_everything():
    generator = {"params": {"w": jnp.array([1.0, 2.0])}, "batch_stats": {"var": jnp.array([4.0])}}
    average = {"params": {"w": jnp.array([3.0, 0.0])}, "batch_stats": {"var": jnp.array([2.0])}}
    new = moving_average(average, generator, 0.9)
    np.testing.assert_allclose(new["params"]["w"], [0.9 * 3 + 0.1 * 1, 0.1 * 2], rtol=1e-6)
    np.testing.assert_allclose(new["batch_stats"]["var"], [2.2], rtol=1e-6)


def test_draws_follow_the_label_shares():
    recipe = Distillation(batch_size=4000, noise_dim=3)
    noise, labels = jax.jit(functools.partial(draw, recipe=recipe))(
        KEY, label_shares=jnp.array([0.5, 0.0, 0.2, 0.3])
    )
    np.testing.assert_allclose(
        np.bincount(labels, minlength=4) / 4000, [0.5, 0, 0.2, 0.3], atol=0.03
    )
    assert noise.shape == (4000, 3)
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, 1], atol=0.03)


def test_the_batch_norm_loss_is_a_mean_over_layers_and_present_clients():
    rng = np.random.default_rng(0)

    def draw_moments(clients):
        return {"a": (rng.normal(size=(clients, 2, 3)),), "b": (rng.normal(size=(clients, 2, 5)),)}

    seen, target = ({"x": draw_moments(2), "y": draw_moments(1)} for _ in range(2))
    present = np.array([True, False, True])
    teachers = Teachers({}, target, jnp.zeros((3, 4)), jnp.zeros(4), present)
    batch = Synthetic((), jnp.zeros(2), (), Opinions((), (), seen), (), teachers)
    want = np.mean(
        [
            [
                reference.moment_distance(seen[bucket][layer][0][i], target[bucket][layer][0][i])
                for layer in "ab"
            ]
            for bucket, i in (("x", 0), ("y", 0))
        ]
    )
    np.testing.assert_allclose(batch_norm_loss(batch), want, rtol=1e-5)
