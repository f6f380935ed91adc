"""A round of FedKTL's server in the released form, small enough to be held against the authors'
code.

`benchmarks.beside_fedktl` runs that code; `tests.methods.test_alignment` holds what came out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.losses.features import BANDWIDTHS
from fedjax_ht.methods.shared.pair_server import Alignment, FeatureTransformer, align
from fedjax_ht.methods.shared.prototypes import Uploads

KEY = jax.random.key(0)


class Problem(NamedTuple):
    """The state and uploads from which both the library and the reference start.

    Attributes:
      f: F's parameters and running statistics by name, and the class means of the round before.
      uploads: one prototype behind another, all valid; the last class has none.
      batch_size, epochs: B_S, E_S.
    """

    f: dict[str, np.ndarray]
    uploads: Uploads
    batch_size: int
    epochs: int


def problem(
    classes: int, latent_dim: int, num_uploads: int, batch_size: int, epochs: int
) -> Problem:
    """A problem of float32 numbers, the same at each call."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def uniform(*shape):
        return rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(classes**0.5)

    f = {
        "w1": uniform(classes, classes), "b1": uniform(classes), "scale": 1 + normal(classes) / 10,
        "bias": normal(classes) / 10, "running_mean": normal(classes) / 10,
        "running_var": 1 + uniform(classes) ** 2,
        "w2": uniform(classes, latent_dim), "b2": uniform(latent_dim), "centroids": normal(classes,
        latent_dim),
    }  # fmt: skip
    prototypes = normal(num_uploads, classes)
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    labels = np.arange(num_uploads) % (classes - 1)
    uploads = Uploads(prototypes, labels, np.ones(num_uploads, bool))
    return Problem(f, uploads, batch_size, epochs)


# 100 steps
LARGE = {"classes": 10, "latent_dim": 32, "num_uploads": 33, "batch_size": 8, "epochs": 25}
# 100 steps, too
SMALL = {"classes": 3, "latent_dim": 4, "num_uploads": 7, "batch_size": 3, "epochs": 50}


def sample_w(latent_dim: int):
    """Draws valid latents: normal numbers behind a ReLU, with a spread of about 1."""
    return lambda key, n: jax.nn.relu(1.7 * jax.random.normal(key, (n, latent_dim)))


def ours(of: Problem) -> dict[str, np.ndarray]:
    """F and Qbar after a round's alignment in the released form."""
    f = jax.tree.map(jnp.asarray, of.f)
    params = {
        "fc1": f["w1"],
        "norm": {"scale": f["scale"], "bias": f["bias"]},
        "fc2": {"kernel": f["w2"], "bias": f["b2"]},
    }
    options = Alignment(
        epochs=of.epochs, batch_size=of.batch_size, bandwidths=BANDWIDTHS, variant="released"
    )
    latent_dim = f["b2"].shape[0]
    module, draw = FeatureTransformer(latent_dim), sample_w(latent_dim)

    def transform(params, rows, mask):
        return module.apply({"params": params}, rows, mask)

    def aligned(params, centroids, uploads):
        return align(
            transform, draw, options, params=params, centroids=centroids, uploads=uploads, key=KEY
        )

    run = jax.jit(aligned)
    params, means, _ = run(params, f["centroids"], jax.tree.map(jnp.asarray, of.uploads))
    after = {
        "w1": params["fc1"], **params["norm"], "w2": params["fc2"]["kernel"],
        "b2": params["fc2"]["bias"],
        "centroids": means,
    }  # fmt: skip
    return jax.tree.map(np.asarray, after)
