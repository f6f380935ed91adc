"""Times FedKTL's server: a round's alignment, and the embedded generator's images of all classes.

    python -m benchmarks.fedktl_server [--out=benchmarks/results/NAME.md]

CIFAR-100's shape: 100 classes, 20 clients with 45 classes each (900 prototypes of 100 dimensions),
E_S = B_S = 100, H = 512. The shipped architecture has random weights, since time does not depend on
them.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.report import machine, number, publish, table
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.generators import Card, Generator, embedded
from fedjax_ht.methods.fedktl import FORMS
from fedjax_ht.methods.shared.pair_server import (
    Alignment,
    FeatureTransformer,
    Uploads,
    align,
    synthesise,
)
from fedjax_ht.methods.shared.units import in_units, into

CLASSES, CLIENTS, OWN, LATENT = 100, 20, 45, 512
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed calls of each.")


def uploads(classes: int = CLASSES, clients: int = CLIENTS, own_classes: int = OWN) -> Uploads:
    """Returns random uploads in the server's layout: [clients * classes] rows.

    Every client holds `own_classes` classes at random.
    """
    rng = np.random.default_rng(0)
    held = np.stack([rng.permutation(classes) < own_classes for _ in range(clients)])
    labels = np.broadcast_to(np.arange(classes), held.shape).reshape(-1)
    prototypes = rng.standard_normal((held.size, classes)).astype(np.float32)
    return Uploads(jnp.array(prototypes), jnp.array(labels, jnp.int32), jnp.array(held.reshape(-1)))


def timed(run: Callable, *args, repeats: int = 3) -> tuple[float, float]:
    """Returns seconds of the first call, and the median of later ones."""
    seconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - start)
    return seconds[0], float(np.median(seconds[1:]))


def as_a_server(run: Callable) -> Callable:
    """Compiles a function as a simulation compiles its server."""
    return jax.jit(run, compiler_options=compiler_options(jax.default_backend()))


def untrained() -> Generator:
    """Returns an untrained generator of the shipped architecture."""
    variables = embedded.init_variables(jax.random.key(0), latent_dim=LATENT)
    generator = Generator(
        Card("embedded"), LATENT, embedded.sample_w, embedded.synthesize, variables
    )
    return in_units(generator, "raw")


def alignment_seconds(
    variant: str, sent: Uploads, repeats: int = 3, **options
) -> tuple[float, float]:
    """Returns seconds of a round's alignment: of the first call, and of later ones.

    `options` are those of `Alignment`.
    """
    key, generator, transformer = jax.random.key(0), untrained(), FeatureTransformer(LATENT)
    first = transformer.init(key, sent.prototypes, sent.valid)["params"]
    centroids = jnp.zeros((sent.prototypes.shape[1], LATENT))

    def aligned(weights, params, sent, key):
        def sample_w(key, n):
            return generator.sample_w(weights, key, n)

        def free(p, rows, mask):
            return transformer.apply({"params": p}, rows, mask)

        def held(p, rows, mask):
            return into(weights.ball, free(p, rows, mask))

        transform = held if FORMS[variant]["bounded"] else free
        return align(
            transform,
            sample_w,
            Alignment(variant=variant, **options),
            params=params,
            centroids=centroids,
            uploads=sent,
            key=key,
        )

    return timed(as_a_server(aligned), generator.variables, first, sent, key, repeats=repeats)


def image_seconds(
    shape: tuple[int, int, int], count: int = CLASSES, repeats: int = 3
) -> tuple[float, float]:
    """Returns seconds of making `count` images in a shape: of the first call, and of later ones."""
    generator = untrained()
    images = as_a_server(lambda weights, w: synthesise(generator, weights, w, shape, True))
    w = generator.sample_w(generator.variables, jax.random.key(0), count)
    return timed(images, generator.variables, w, repeats=repeats)


def main(_) -> None:
    rows, sent = [], uploads()
    for variant in ("paper", "released"):
        rows.append(
            [
                f"alignment, {variant}",
                *map(number, alignment_seconds(variant, sent, _REPEATS.value)),
            ]
        )
        print(*rows[-1], flush=True)
    for shape in ((32, 32, 3), (28, 28, 1)):
        rows.append(
            [
                f"{CLASSES} images, {shape}",
                *map(number, image_seconds(shape, repeats=_REPEATS.value)),
            ]
        )
        print(*rows[-1], flush=True)
    head = ("what", "first call (s)", "later calls (s)")
    publish(f"FedKTL's server, {sent.valid.sum()} prototypes. {machine()}\n\n{table(head, rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
