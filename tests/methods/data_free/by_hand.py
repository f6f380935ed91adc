"""The server rounds of DFRD and DENSE step by step, with losses and optimizers by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.methods.data_free.dense import dense
from fedjax_ht.methods.data_free.dfrd import dfrd
from fedjax_ht.methods.data_free.image_generator import draw, make_generator
from fedjax_ht.methods.data_free.options import Distillation
from tests.federations import NUM_CLASSES, normed_federation, sliced_federation
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


def dfrd_loss(each, tau, student, labels, images, noise, embedding):
    u = jnp.einsum("nb,nbc->bc", tau, each)
    chosen = (u.argmax(1) == labels) & (student.argmax(1) != labels)
    apart = jnp.sum(chosen * kl(softmax(student), softmax(u))) / jnp.maximum(chosen.sum(), 1)
    long = jnp.mean(jnp.maximum(jnp.linalg.norm(embedding, axis=1) - 0.5 * 2, 0))
    return (
        cross_entropy(u, labels).mean()
        - 3 * apart
        + 2 * diversity(images, noise * embedding)
        + 0.5 * long
    )


def dense_loss(each, tau, student, labels, images, noise, embedding):
    u = each.mean(0)
    chosen = (u.argmax(1) == labels) != (student.argmax(1) == labels)
    apart = jnp.sum(chosen * kl(softmax(student), softmax(u))) / jnp.maximum(chosen.sum(), 1)
    return cross_entropy(u, labels).mean() - 3 * apart


def ensemble_kl(each, tau, student):
    return jnp.mean(kl(softmax(jnp.einsum("nb,nbc->bc", tau, each)), softmax(student)))


CASES = {  # factory, options, the generator's loss by hand, alpha
    "dfrd": (
        dfrd,
        {"b_tran": 3.0, "b_div": 2.0, "b_ey": 0.5, "gamma": 0.5, "alpha": 0.7},
        dfrd_loss,
        0.7,
    ),
    "dense": (
        dense,
        {"b_adv": 3.0, "reset_opt": False, "student_batch": "iteration"},
        dense_loss,
        0.0,
    ),
}


def by_hand(kind, case, server, round):
    """Computes a round's iterations, step by step and teacher by teacher, with Adam's and SGD's
    formulas."""
    _, options, generator_loss, alpha = CASES[case]
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
            student = jax.lax.stop_gradient(apply(bucket, model, images))
            embedding = params["embedding"][labels] if "embedding" in params else None
            value = generator_loss(
                everybody(images), tau[:, labels], student, labels, images, noise, embedding
            )
            return value, new.get("batch_stats", {})

        return jax.value_and_grad(loss, has_aux=True)(params)

    @jax.jit
    def student_gradient(model, generator, noise, labels):
        images = module.apply(generator, noise, labels, False).images
        return jax.value_and_grad(
            lambda model: ensemble_kl(
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
