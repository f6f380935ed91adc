"""FedKTL's client beside the authors': the same weights, batches and pairs, and how far apart both
end.

    python -m benchmarks.beside_fedktl_client --htfllib=PATH [--python=PYTHON] [--out=FILE]

PATH is a checkout of github.com/TsingZ0/HtFLlib, whose client runs as it is under PYTHON, which has
torch. A linear model of five classes; the server has no pair for one of them, so that passes over
the pairs end within batches. HtFLlib is in float64, so that differences are of our float32 alone.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import htfllib
from benchmarks.report import machine, publish, table
from fedjax_ht.core.context import ClientInfo, Context
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Masked
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.shared.etf_classifier import simplex_etf
from fedjax_ht.methods.shared.pairs import Pairs, draw_in_passes, first_projection
from fedjax_ht.models.generator import Card, Generator
from tests.tiny import client_data, linear_federation

_HTFLLIB = flags.DEFINE_string("htfllib", None, "A checkout of HtFLlib.", allow_override=True)
_PYTHON = flags.DEFINE_string(
    "python", sys.executable, "What HtFLlib runs under.", allow_override=True
)

CLASSES, WIDTH, LATENTS, BATCH = 5, 7, 6, 4
LABELS = (0, 1, 2, 3, 3, 1, 0, 2, 4, 4, 1, 0)
AVAILABLE = np.array([True, True, False, True, True])
SETTINGS = ((0.5, 1e-3, 1), (50.0, 1e-3, 4), (50.0, 1e-4, 30))  # mu, learning rate, epochs


def problem(mu: float, rate: float, epochs: int) -> tuple[dict, dict]:
    """Returns what both sides start from, and our results, by the same names."""
    bucket = linear_federation(CLASSES, WIDTH, 2, 1).buckets[0]
    data = client_data(LABELS, seed=3)
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (CLASSES, 2, 2, 1)).astype(np.float32)
    latents = rng.normal(size=(CLASSES, LATENTS)).astype(np.float32)
    generator = Generator(
        Card("unused"),
        LATENTS,
        lambda variables, key, n: jax.random.normal(key, (n, LATENTS)),
        lambda variables, w: jnp.zeros((len(w), 2, 2, 3)),
    )
    training = LocalTraining(optax.sgd(rate), batch_size=BATCH, epochs=epochs, shuffle=False)
    method = fedktl(training, generator=generator, variant="released", latents="raw", mu=mu)
    key = jax.random.key(5)
    client = method.init_client(bucket, Context(key, jnp.int32(0), None))
    info = ClientInfo(jnp.int32(0), jnp.int32(len(LABELS)), jnp.int32(-1))
    ctx = Context(key, jnp.int32(0), info)
    downlink = Pairs(
        Masked(jnp.asarray(images), AVAILABLE), Masked(jnp.asarray(latents), AVAILABLE)
    )
    data_in_round = data._replace(round=jnp.int32(0))
    new, uplink, _ = method.client_update(bucket, client, downlink, data_in_round, ctx)
    # The classes of every step's pairs, as `client_update` draws them.
    order = []
    for step in range(epochs * len(LABELS) // BATCH):
        drawn = draw_in_passes(
            jnp.asarray(AVAILABLE), BATCH, jnp.int32(step), jax.random.fold_in(key, 1)
        )
        order.append(np.asarray(drawn[0])[np.asarray(drawn[1])])
    projection = first_projection(WIDTH, LATENTS)
    start = flat(client["params"]) | {
        "projection/kernel": projection["kernel"],
        "projection/bias": projection["bias"],
        "x": data.preprocess(data.inputs),
        "y": np.array(LABELS),
        "images": data.preprocess.normalise(jnp.asarray((images + 1) / 2)),
        "latents": latents,
        "etf": simplex_etf(CLASSES, CLASSES),
        "pair_order": np.concatenate(order),
        "pair_counts": [len(step) for step in order],
        "batch_size": BATCH,
        "mu": mu,
        "rate": rate,
        "epochs": epochs,
    }
    return start, flat(new["params"]) | {"prototypes": np.asarray(uplink[0].values)}


def flat(params) -> dict[str, np.ndarray]:
    """Returns a linear model's arrays by name."""
    layers = {"base": params["base"]["fc"], "head": params["head"]}
    return {
        f"{name}/{leaf}": np.asarray(array)
        for name, layer in layers.items()
        for leaf, array in layer.items()
    }


def main(_) -> None:
    htfllib.check_checkout(_HTFLLIB.value)
    rows = []
    for mu, rate, epochs in SETTINGS:
        start, results = problem(mu, rate, epochs)
        code = Path(_HTFLLIB.value, "system", "flcore", "clients", "clientktl.py")
        other = htfllib.run_on_arrays("fedktl_client_htfllib.py", _PYTHON.value, code, start)
        moved = max(np.abs(other[k] - start[k]).max() for k in results if k in start)
        apart = max(np.abs(other[k] - results[k]).max() for k in results)
        steps = epochs * len(LABELS) // BATCH
        rows.append([f"{mu:g}", f"{rate:g}", str(steps), f"{moved:.2f}", f"{apart:.1e}"])
    head = ("mu", "learning rate", "steps", "weights moved by", "weights and prototypes apart")
    version = f"HtFLlib under PyTorch {other['torch']}, float64; ours float32, variant `released`."
    text = "FedKTL's client: the largest move of a weight in a round, and the largest difference."
    publish("\n".join([text, machine(), version, "", table(head, rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
