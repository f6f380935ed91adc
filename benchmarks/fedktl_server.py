"""FedKTL's server: one round's alignment at CIFAR-100 shape, and images of all classes by the embedded generator.

python -m benchmarks.fedktl_server [--out=benchmarks/results/NAME.md]

100 classes, 20 clients with 45 classes each (900 prototypes of 100 dimensions), E_S = B_S = 100, H = 512. Random
weights of the shipped architecture: time does not depend on them.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.report import machine, number, publish, table
from experiments.cli import parse_flags
from fedjax_ht.generators import Card, Generator, embedded
from fedjax_ht.generators.images import synthesise
from fedjax_ht.generators.units import in_units, into
from fedjax_ht.methods.alignment import Alignment, FeatureTransformer, Uploads, align

CLASSES, CLIENTS, OWN, LATENT = 100, 20, 45, 512
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed calls of each.")


def uploads() -> Uploads:
    """Every client's own classes, at random, as the server lays them out: [clients * classes] rows."""
    rng = np.random.default_rng(0)
    own = np.stack([rng.permutation(CLASSES) < OWN for _ in range(CLIENTS)])
    labels = np.broadcast_to(np.arange(CLASSES), own.shape).reshape(-1)
    prototypes = rng.standard_normal((own.size, CLASSES)).astype(np.float32)
    return Uploads(jnp.array(prototypes), jnp.array(labels, jnp.int32), jnp.array(own.reshape(-1)))


def timed(run: Callable, *args) -> tuple[float, float]:
    """Seconds of the first call, and the median of later ones."""
    seconds = []
    for _ in range(1 + _REPEATS.value):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - start)
    return seconds[0], float(np.median(seconds[1:]))


def main(_) -> None:
    key = jax.random.key(0)
    variables = embedded.init_variables(key, latent_dim=LATENT)
    generator = in_units(Generator(Card("embedded"), LATENT, embedded.sample_w, embedded.synthesize, variables))
    transformer, sent = FeatureTransformer(LATENT), uploads()
    first = transformer.init(key, sent.prototypes, sent.valid)["params"]
    centroids = jnp.zeros((CLASSES, LATENT))
    rows = []
    for variant in ("paper", "released"):

        @jax.jit
        def aligned(weights, params, sent, key, variant=variant):
            sample_w = lambda key, n: generator.sample_w(weights, key, n)  # noqa: E731
            transform = lambda p, rows, mask: into(weights.ball, transformer.apply({"params": p}, rows, mask))  # noqa: E731
            return align(transform, sample_w, Alignment(variant=variant), params, centroids, sent, key)

        rows.append([f"alignment, {variant}", *map(number, timed(aligned, generator.variables, first, sent, key))])
        print(*rows[-1], flush=True)
    for shape in ((32, 32, 3), (28, 28, 1)):
        images = jax.jit(lambda weights, w, shape=shape: synthesise(generator, weights, w, shape, True))
        w = generator.sample_w(generator.variables, key, CLASSES)
        rows.append([f"{CLASSES} images, {shape}", *map(number, timed(images, generator.variables, w))])
        print(*rows[-1], flush=True)
    head = ("what", "first call (s)", "later calls (s)")
    publish(f"FedKTL's server, {sent.valid.sum()} prototypes. {machine()}\n\n{table(head, rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
