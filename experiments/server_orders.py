r"""Retrains a server on one round's prototypes, in other orders of its mini-batches.

    python -m experiments.server_orders --workdir=RUN --csv=orders.csv \
        [--method=fedtgp:variant=released] [--trial=0] [--orders=4]

The clients' models stay those of the run's newest checkpoint, and upload their class means, from
training samples in evaluation mode. The server continues from its state, in `--orders` orders for
each of: its settings, a tenth of its rate, ten times its epochs, and its settings only on uploads
of at least 20 samples; and once with all uploads in a batch. A row has the setting, the order, the
number of uploads and of those nearest to another class's prototype, and each client's accuracy on
its test samples by the method's first rule. Further rows use the run's own prototypes, the mean of
each class's uploads as prototypes, and the clients' own heads.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import fedjax_ht as fl
from experiments.prototype_margins import client_prototypes
from experiments.rows import write_rows
from fedjax_ht.core.context import Context
from fedjax_ht.core.wire import Masked
from fedjax_ht.data.partition import class_counts
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.runs.evaluate import LoadedRun, load_run
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.shared.prototypes import Uplink, mean_by_class

# --workdir, --method, --trial and --trust are those of fedjax_ht.lab.runs.evaluate.
_CSV = flags.DEFINE_string("csv", None, "File to write.", allow_override=True)
_ORDERS = flags.DEFINE_integer("orders", 4, "Trainings of each setting.", allow_override=True)

LEAST = 20  # fewest samples of an upload that counts in the last setting


def training(loaded: LoadedRun, **options) -> Callable:
    """Compiles the server's training: (uploads [N, C, K], present bool [N, C], key) -> server.

    `options` replace those of the run's method.
    """
    run, state = loaded.run, loaded.state
    method = METHODS[run.entry.method](run.method.training, **run.entry.options | options)

    def train(values, present, key):
        ids = jnp.arange(len(values))
        info = fl.ClientInfo(ids, num_samples=jnp.ones_like(ids), last_round=ids)  # read by nobody
        uploads = fl.Received(Uplink(Masked(values, present), ()), info, jnp.ones(len(ids), bool))
        ctx = Context(key, jnp.int32(state.round), None, federation=run.federation)
        return method.server_update(run.federation, state.server, {"all": uploads}, ctx)[0]

    return jax.jit(train)


def rows_of(loaded: LoadedRun, trial: int, orders: int) -> Iterator[dict]:
    """Yields a row per training."""
    run, state = loaded.run, loaded.state
    values, present = map(jnp.asarray, client_prototypes(loaded, trial))
    counts = class_counts(
        run.dataset.labels, run.partitions[trial], num_classes=run.federation.num_classes
    )
    first = loaded.simulation.rules[0]

    def row(setting, order, server, uploaded=present, rule=first):
        prototypes = run.method.view.prototypes(server).values
        distances = jnp.linalg.norm(values[:, :, None] - prototypes, axis=-1)
        astray = uploaded & (distances.argmin(-1) != jnp.arange(uploaded.shape[1]))
        scores = loaded.simulation.evaluate(state._replace(server=server)).accuracy["test"][rule]
        columns = {f"client_{i}": float(score) for i, score in enumerate(scores)}
        about = {"round": int(state.round), "setting": setting, "order": order}
        about |= {"uploads": int(uploaded.sum()), "astray": int(astray.sum())}
        return about | {"accuracy": float(np.nanmean(scores))} | columns

    yield row("as it was", "", state.server)
    centres = mean_by_class(values, present)
    yield row("class means", "", state.server._replace(prototypes=centres))
    options = run.entry.options
    rate, epochs = options["server_lr"], options["server_epochs"]
    many = present & jnp.asarray(counts >= LEAST)
    settings = {
        "its settings": (present, orders, {}),
        "rate / 10": (present, orders, {"server_lr": rate / 10}),
        "10 x epochs": (present, orders, {"server_epochs": 10 * epochs}),
        "one batch": (present, 1, {"server_batch_size": present.size}),
        f"uploads of {LEAST} samples": (many, orders, {}),
    }
    for setting, (uploaded, times, changed) in settings.items():
        train = training(loaded, **changed)
        for order in range(times):
            server = train(values, uploaded, jax.random.key(order))
            yield row(setting, order, server, uploaded)
    yield row("own heads", "", state.server, rule="head")


@orderly_main
def main(_) -> None:
    options = flags.FLAGS
    if not options.workdir or not _CSV.value:
        raise ValueError("give --workdir and --csv; see --help")
    loaded = load_run(options.workdir, options.method, options.trust, trial=options.trial)
    if loaded.run.entry.method != "fedtgp":
        raise ValueError(f"{loaded.run.label}: only FedTGP's server trains prototypes")
    rows = []
    for row in rows_of(loaded, options.trial, _ORDERS.value):
        rows.append(row)
        write_rows(Path(_CSV.value), row.keys(), [row.values() for row in rows])


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
