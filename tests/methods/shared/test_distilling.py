"""DFRD, DENSE and FedFTG at the server: their losses, their loop, their generator's moving
average."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.method import Context, Received
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.dense import batch_norm_loss, dense
from fedjax_ht.methods.dfrd import dfrd
from fedjax_ht.methods.fedftg import fedftg
from fedjax_ht.methods.shared.composition import losses_of
from fedjax_ht.methods.shared.distillation import (
    Distillation,
    Synthetic,
    draw,
    make_generator,
    moving_average,
)
from fedjax_ht.methods.shared.ensemble import Opinions, Teachers
from fedjax_ht.methods.shared.fine_tuning import Server, Uplink
from fedjax_ht.models.conditional import Generated
from tests import tiny
from tests.federations import NUM_CLASSES, TRAINING, normed_federation, sliced_federation
from tests.reference import dfrd as reference

# here G normalises, too
FEDERATIONS = {"plain": sliced_federation(), "normed": normed_federation((16, 16, 1))}
# of which 6 does not arrive, and 3 has no samples
MEMBERS = {"rate1.0": [4, 6, 7], "rate0.5": [0, 3]}
COUNTS = np.random.default_rng(0).integers(0, 9, (8, NUM_CLASSES)) * [1, 1, 1, 1, 0]
TEACHERS, KEY = [4, 7, 0], jax.random.key(5)  # in the order of the sums
T, LR, STUDENT_LR, DECAY = 2.0, 0.01, 0.5, 0.1
SMALL = {
    "iterations": 2,
    "generator_steps": 2,
    "student_steps": 2,
    "batch_size": 6,
    "noise_dim": 4,
    "temperature": T,
    "generator_lr": LR,
    "student_lr": STUDENT_LR,
    "weight_decay": DECAY,
}


def bucket_of(kind: str, i: int):
    federation = FEDERATIONS[kind]
    return federation.buckets[federation.assignment[i]]


@functools.cache
def client_params(kind: str, i: int):
    """A client's uploaded model; weights large enough that clients differ. NaN of the one that does
    not arrive."""
    bucket, rng = bucket_of(kind, i), np.random.default_rng(i)
    shapes = jax.eval_shape(lambda key: init_variables(bucket, key)["params"], jax.random.key(0))
    return jax.tree.map(
        lambda x: np.float32(0.6 * rng.normal(size=x.shape) + (np.nan if i == 6 else 0)), shapes
    )


def received(kind: str, counted: bool = True) -> dict[str, Received]:
    """What the server holds after a round without data."""
    messages = {}
    for name, ids in MEMBERS.items():
        params = jax.tree.map(lambda *xs: jnp.stack(xs), *(client_params(kind, i) for i in ids))
        counts = Metadata(jnp.asarray(COUNTS[ids], jnp.int32)) if counted else ()
        info = tiny.infos(ids, [0 if i == 3 else 10 for i in ids])
        messages[name] = Received(
            Uplink(params, counts, ()), info, jnp.array([i != 6 for i in ids])
        )
    return messages


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


def serve(kind: str, method, server, round: int = 1):
    ctx = Context(KEY, jnp.int32(round), None)
    step = jax.jit(lambda server, got: method.server_update(FEDERATIONS[kind], server, got, ctx))
    return step(server, received(kind, method.name != "dense"))


def softmax(x):
    return jax.nn.softmax(x / T)


def kl(p, q):
    return jnp.sum(p * (jnp.log(p) - jnp.log(q)), -1)


def cross_entropy(logits, labels):
    return -jnp.log(jax.nn.softmax(logits))[..., jnp.arange(len(labels)), labels]


def diversity(images, noise):
    return jnp.exp(
        -jnp.mean(
            ((images[:, None] - images) ** 2).mean((2, 3, 4))
            * ((noise[:, None] - noise) ** 2).mean(2)
        )
    )


def dfrd_loss(each, tau, own, labels, images, noise, embedding):
    u = jnp.einsum("nb,nbc->bc", tau, each)
    chosen = (u.argmax(1) == labels) & (own.argmax(1) != labels)
    apart = jnp.sum(chosen * kl(softmax(own), softmax(u))) / jnp.maximum(chosen.sum(), 1)
    long = jnp.mean(jnp.maximum(jnp.linalg.norm(embedding, axis=1) - 0.5 * 2, 0))
    return (
        cross_entropy(u, labels).mean()
        - 3 * apart
        + 2 * diversity(images, noise * embedding)
        + 0.5 * long
    )


def dense_loss(each, tau, own, labels, images, noise, embedding):
    u = each.mean(0)
    chosen = (u.argmax(1) == labels) != (own.argmax(1) == labels)
    apart = jnp.sum(chosen * kl(softmax(own), softmax(u))) / jnp.maximum(chosen.sum(), 1)
    return cross_entropy(u, labels).mean() - 3 * apart


def fedftg_loss(each, tau, own, labels, images, noise, embedding):
    losses = cross_entropy(each, labels) - 3 * kl(softmax(own), softmax(each)) / NUM_CLASSES
    return jnp.mean(jnp.sum(tau * losses, 0)) + 2 * diversity(images, noise)


def ensemble_kl(each, tau, own):
    return jnp.mean(kl(softmax(jnp.einsum("nb,nbc->bc", tau, each)), softmax(own)))


def each_kl(each, tau, own):
    return jnp.mean(jnp.sum(tau * kl(softmax(each), softmax(own)), 0)) / NUM_CLASSES


CASES = {  # factory, options, the losses by hand, alpha
    "dfrd": (
        dfrd,
        {"b_tran": 3.0, "b_div": 2.0, "b_ey": 0.5, "gamma": 0.5, "alpha": 0.7},
        dfrd_loss,
        ensemble_kl,
        0.7,
    ),
    "dense": (dense, {"b_adv": 3.0, "reset_opt": False}, dense_loss, ensemble_kl, 0.0),
    "fedftg": (
        fedftg,
        {"b_md": 3.0, "b_div": 2.0, "merge": "mul", "student_batch": "iteration"},
        fedftg_loss,
        each_kl,
        0.0,
    ),
}


def by_hand(kind, case, server, round):
    """The same iterations, step by step and teacher by teacher, with Adam's and SGD's formulas."""
    _, options, generator_loss, student_loss, alpha = CASES[case]
    recipe = Distillation(**SMALL, merge=options.get("merge", "none" if case == "dense" else "mul"))
    module, bucket = make_generator(FEDERATIONS[kind], recipe), FEDERATIONS[kind].global_model
    counts = COUNTS[TEACHERS] if case != "dense" else np.ones((3, NUM_CLASSES))
    tau, shares = map(jnp.float32, reference.label_weights(np.float64(counts)))
    models, buckets = ([of(kind, i) for i in TEACHERS] for of in (client_params, bucket_of))

    def apply(bucket, params, x):
        return bucket.module.apply({"params": params}, x)

    def everybody(x):
        return jnp.stack([apply(b, m, x) for b, m in zip(buckets, models)])

    @jax.jit
    def generator_gradient(params, stats, model, noise, labels):
        """While G is trained it normalises by batch, and keeps running statistics."""

        def loss(params):
            variables = {"params": params, "batch_stats": stats}
            made, new = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
            images = made.images
            own = jax.lax.stop_gradient(apply(bucket, model, images))
            embedding = params["embedding"][labels] if "embedding" in params else None
            value = generator_loss(
                everybody(images), tau[:, labels], own, labels, images, noise, embedding
            )
            return value, new.get("batch_stats", {})

        return jax.value_and_grad(loss, has_aux=True)(params)

    @jax.jit
    def student_gradient(model, generator, noise, labels):
        images = module.apply(generator, noise, labels, False).images
        return jax.value_and_grad(
            lambda model: student_loss(
                everybody(images), tau[:, labels], apply(bucket, model, images)
            )
        )(model)

    tree = jax.tree.map
    params, stats = server.generator["params"], server.generator["batch_stats"]
    model, losses, teaching = server.model, [], []
    first, second, step = tree(jnp.zeros_like, params), tree(jnp.zeros_like, params), 0
    for iteration in range(2):
        generator_key, student_key = jax.random.split(
            jax.random.fold_in(jax.random.fold_in(KEY, 1), iteration)
        )
        if options.get("reset_opt", True):
            first, second, step = tree(jnp.zeros_like, params), tree(jnp.zeros_like, params), 0
        for number in range(2):
            drawn = draw(jax.random.fold_in(generator_key, number), recipe, shares)
            (loss, stats), g = generator_gradient(params, stats, model, *drawn)
            step += 1
            first = tree(lambda m, g: 0.5 * m + 0.5 * g, first, g)
            second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, second, g)

            def change(p, m, v, k=step):
                return p - LR * (m / (1 - 0.5**k)) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-8)

            params = tree(change, params, first, second)
            losses.append(loss)
        for number in range(2):
            drawn = 0 if options.get("student_batch") == "iteration" else number
            key, average_key = jax.random.split(jax.random.fold_in(student_key, drawn))
            generator = {"params": params, "batch_stats": stats}
            loss, g = student_gradient(model, generator, *draw(key, recipe, shares))
            if alpha and round:
                more, extra = student_gradient(
                    model, server.average, *draw(average_key, recipe, shares)
                )
                loss, g = loss + alpha * more, tree(lambda a, b: a + alpha * b, g, extra)
            model = tree(lambda p, g: p - STUDENT_LR * (g + DECAY * p), model, g)
            teaching.append(loss)
    return generator, model, np.mean(losses), np.mean(teaching)


OTHERS = (
    ("plain", "dfrd", 0),
    ("plain", "dense", 1),
    ("plain", "fedftg", 1),
    ("normed", "fedftg", 1),
)


@pytest.mark.parametrize(
    ("kind", "case", "round"),
    [("normed", "dfrd", 1), *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
)
def test_a_round_at_the_server_equals_the_steps_by_hand(kind, case, round):
    """In round 0 the moving average does not teach; later it is that of the round before."""
    factory, options, *_, alpha = CASES[case]
    method = factory(TRAINING, variant="released", **SMALL, **options)
    server = first_server(kind, method)
    new, metrics = serve(kind, method, server, round)
    generator, model, generator_loss, student_loss = by_hand(kind, case, server, round)
    np.testing.assert_allclose(metrics["generator_loss"], generator_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["student_loss"], student_loss, rtol=1e-3)
    # Where a gradient is next to nothing, as often ahead of a norm, Adam makes a whole step of its
    # rounding error.
    off = jax.tree.map(lambda a, b: np.mean(np.abs(a - b) > 0.02 * LR), new.generator, generator)
    assert max(jax.tree.leaves(off)) < (0.05 if kind == "normed" else 1e-3)
    chex.assert_trees_all_close(new.model, model, rtol=0, atol=5e-4)
    if alpha:
        kept = 0.5 if round else 0.0  # the average begins with round 0's generator
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


@pytest.mark.slow
def test_the_student_may_see_one_batch_in_all_steps_of_an_iteration():
    """A student that stands still has the loss of the first step in every step, and another one
    with new batches."""
    still = SMALL | {"student_lr": 0.0, "iterations": 1, "generator_steps": 1, "batch_size": 4}

    def loss(**options):
        method = dfrd(TRAINING, variant="released", **still | {"alpha": 0.7} | options)
        return float(serve("plain", method, first_server("plain", method))[1]["student_loss"])

    alone = loss(student_steps=1)
    np.testing.assert_allclose(loss(student_steps=3, student_batch="iteration"), alone, rtol=1e-6)
    assert abs(loss(student_steps=3) - alone) > 1e-4 * abs(alone)


WEIGHT_OF_KL = {"dfrd": "b_tran", "dense": "b_adv", "fedftg": "b_md"}


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", WEIGHT_OF_KL)
def test_the_square_of_the_temperature_scales_every_kl(name, squared):
    """The student's loss, and of the generator's what is left when that without its KL is taken
    off."""
    rng = np.random.default_rng(3)
    each, own, labels = (
        3 * rng.normal(size=(3, 8, 5)),
        3 * rng.normal(size=(8, 5)),
        np.arange(8) % 5,
    )
    tau = rng.dirichlet(np.ones(3), 8).T
    made = Generated(
        jnp.float32(rng.normal(size=(8, 4, 4, 1))),
        jnp.float32(rng.normal(size=(8, 6))),
        jnp.ones((8, 6)),
    )
    opinions = Opinions(jnp.float32(each), jnp.float32(tau), {})
    batch = Synthetic(made.merged, jnp.asarray(labels), made, opinions, jnp.float32(own), None)
    at_four = {"variant": "released", "temperature": 4.0, "temperature_squared": squared}

    def losses(**options):
        return losses_of(METHODS[name], **at_four, **options)[1]

    want = reference.student_loss(name, each, tau, own, 4.0, squared)
    np.testing.assert_allclose(losses().student(batch), want, rtol=1e-5)
    whole, rest = (losses(**{WEIGHT_OF_KL[name]: w}).generator(batch) for w in (1.0, 0.0))
    want = reference.adversarial_loss(name, each, tau, own, labels, 4.0, squared)
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
        return {
            "a": (rng.normal(size=(clients, 2, 3)),),
            "b": (rng.normal(size=(clients, 2, 5)),),
        }

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


BAD = {
    "iterations is -1; it must be an integer of at least 0": {"iterations": -1},
    "generator_steps is 0; it must be an integer of at least 1": {"generator_steps": 0},
    "images is 'fake'; it must be 'generator', 'untrained', 'real' or 'noise'": {"images": "fake"},
    "batch_size is 1; it must be an integer of at least 2": {"batch_size": 1},
    "temperature is 0.0; it must be a number above 0": {"temperature": 0.0},
    "decay is 1.5; it must be a number from 0 to 1": {"decay": 1.5},
    "counts is 'some'; it must be 'seen_so_far', 'this_round', 'full' or 'none'": {
        "counts": "some"
    },
    "student_batch is 'round'; it must be 'step' or 'iteration'": {"student_batch": "round"},
    "merge is 'sum'; it must be 'mul', 'add', 'cat', 'ncat' or 'none'": {"merge": "sum"},
    "selection is 'all'; it must be 'diamond', 'triangle', 'nabla' or 'xor'": {"selection": "all"},
    "diversity is 'none'; it must be 'squares' or 'norms'": {"diversity": "none"},
    "base is 'fedavgg'; did you mean 'fedavg'? It must be one of none, fedavg, heterofl": {
        "base": "fedavgg"
    },
}


@pytest.mark.parametrize("message", BAD)
def test_bad_options_are_one_line(message):
    with pytest.raises(ValueError, match=message.split(";")[0]) as error:
        dfrd(TRAINING, **BAD[message])
    assert str(error.value).startswith(message)


def test_bad_options_of_the_others():
    with pytest.raises(ValueError, match="adversarial is 'other'; it must be 'dfrd' or 'own'"):
        dense(TRAINING, adversarial="other")
    with pytest.raises(
        ValueError, match="kl_reduce is 'max'; it must be 'mean_classes' or 'sum_classes'"
    ):
        fedftg(TRAINING, kl_reduce="max")
