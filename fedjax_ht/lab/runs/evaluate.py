"""Evaluates or exports one client's trained model from a run.

Or scores all clients after epochs of their own training, with --adapt_epochs.

fedjax-ht evaluate --workdir=checkpoints/runs/quickstart-seed0-trials3 --client=3
[--export=client3.safetensors]
fedjax-ht evaluate --workdir=checkpoints/runs/quickstart-seed0-trials3 --adapt_epochs=0,1,2,5
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from absl import flags

from fedjax_ht.check.names import meant
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.targets import output_names
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.cli import TRUST, fail
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.readers.description import kind_of
from fedjax_ht.lab.report.rows import Score
from fedjax_ht.lab.runs.folder import read_folder
from fedjax_ht.lab.runs.identity import check_identity, identity_of
from fedjax_ht.lab.runs.method import evaluated_clients
from fedjax_ht.lab.runs.own_methods import read_experiment
from fedjax_ht.lab.runs.plan import Plan, Run
from fedjax_ht.lab.runs.play import simulate
from fedjax_ht.lab.safe.torch_files import save_safetensors
from fedjax_ht.lab.weights.start import state_dict
from fedjax_ht.methods.shared.adapters import plain_model
from fedjax_ht.simulation.rows import Row, evaluation_row, merit, score_of
from fedjax_ht.simulation.simulation import Simulation, SimulationState

# allow_override: `fedjax-ht run` defines the same flags, and one process may import both
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder of a run.", allow_override=True)
_TRUST = flags.DEFINE_bool("trust", False, TRUST, allow_override=True)
_CLIENT = flags.DEFINE_integer("client", None, "The id of a client.")
_METHOD = flags.DEFINE_string("method", None, "An entry's label; by default the first one's.")
_TRIAL = flags.DEFINE_integer("trial", 0, "The number of a trial, from 0.")
_ADAPT = flags.DEFINE_list(
    "adapt_epochs", [], "Epochs that clients train alone before they are scored, such as 0,1,2,5."
)
_EXPORT = flags.DEFINE_string(
    "export", None, "Write the client's state to this .npz, or its model to this .safetensors."
)


class LoadedRun(NamedTuple):
    """A run, restored from its newest checkpoint.

    Attributes:
      run: the entry, with its method, models and data.
      simulation, state: the simulation of one of its runs, and its newest saved state.
    """

    run: Run
    simulation: Simulation
    state: SimulationState


def load_run(
    workdir: Path | str,
    method: str | None = None,
    trust: bool = False,
    *,
    trial: int = 0,
    experiment: Plan | None = None,
) -> LoadedRun:
    """Loads a run from its newest checkpoint, to inspect it.

        >>> loaded = fl.load_run("runs/first", "fedssa@tuned")  # doctest: +SKIP
        >>> images = loaded.run.dataset.inputs[:10]  # doctest: +SKIP
        >>> loaded.simulation.predict(loaded.state, 3, images)  # doctest: +SKIP

    Args:
      workdir: the folder of the run.
      method: the label of an entry; None for the first.
      trial: number of the entry's run, from 0.
      trust: True allows code named in the run's config to run, see `own_methods.read_trusted_run`.
      experiment: the run's experiment, if it has objects from Python.

    Returns:
      The run's `simulation` and `state`, and its `run` with the entry's `label` and `method`, the
      `dataset`, and `partitions`, one per trial. The simulation runs at jax's current precision of
      products, which is the run's within `jax.default_matmul_precision(run.config.precision)`.

    Raises:
      ValueError, OSError: there is no such run, method or trial, its data have changed, its folder
        belongs to another run, or it needs `trust`. One line.
    """
    workdir = Path(workdir)
    experiment = read_experiment(workdir, trust, experiment)
    method = method or next(iter(experiment.runs))
    if method not in experiment.runs:
        advice = meant(method, experiment.runs, f"it has {', '.join(experiment.runs)}")
        raise ValueError(f"the run in {workdir} has no method {method!r}{advice}")
    run, notes = experiment.runs[method], read_folder(workdir).notes
    place = workdir / run.entry.folder
    expected = identity_of(run.entry, experiment.config, notes)
    check_identity(method, place, expected)
    trials = len(experiment.partitions)
    if not 0 <= trial < trials:
        raise ValueError(f"no trial {trial}; trials run from 0 to {trials - 1}")
    simulation, folder = simulate(run, trial), place / "checkpoints"
    restored = Checkpointer(folder, simulation, trial=trial).restore()
    if restored is None:
        raise FileNotFoundError(f"no readable checkpoint below {folder}")
    state, _ = restored
    return LoadedRun(run=run, simulation=simulation, state=state)


def client_state(loaded: LoadedRun, client: int) -> PyTree:
    """Returns a client's state, as the method left it, in NumPy arrays.

    Raises:
      ValueError: there is no such client.
    """
    federation = loaded.run.federation
    if not 0 <= client < federation.num_clients:
        raise ValueError(f"no client {client}; ids run from 0 to {federation.num_clients - 1}")
    bucket = federation.buckets[federation.assignment[client]]
    row = federation.members(bucket).index(client)
    states = loaded.simulation.read_clients(loaded.state, bucket.name, np.array([row]))
    return jax.tree.map(lambda x: x[0], states)


def export(state: PyTree, path: Path | str, bucket: Bucket, classes: Sequence[str] = ()) -> None:
    """Writes a client's state; `config.model.weights` can read a .safetensors.

    A .safetensors has low-rank adapters merged into their kernels, so that its model needs none. A
    .npz has them by name, without the frozen weights.

    Args:
      state: the state of the client.
      path: .npz for the whole state, keyed by path ("params/base/conv1/kernel"); .safetensors for
        its model under torch's names, see `weights.start.state_dict`.
      bucket: the client's bucket.
      classes: names of the model's outputs, see `data.targets.output_names`; stored in a
        .safetensors, with its head.

    Raises:
      ValueError: the suffix is unknown, or the state has no model.
    """
    if Path(path).suffix == ".safetensors":
        model = state if isinstance(state, dict) else getattr(state, "model", {})
        if "params" not in model:
            raise ValueError(
                "this method's clients have no model to export as .safetensors; use .npz"
            )
        module, variables = plain_model(bucket, model)
        save_safetensors(path, state_dict(module, variables), classes)
        return
    check_export(path)
    arrays = {}
    for key, leaf in jax.tree_util.tree_leaves_with_path(state):
        arrays[jax.tree_util.keystr(key, simple=True, separator="/")] = np.asarray(leaf)
    with atomic_open(path, "wb") as file:
        np.savez(file, **arrays)


def check_export(path: Path | str) -> None:
    """Raises ValueError for a suffix that `export` does not write."""
    if Path(path).suffix not in (".npz", ".safetensors"):
        raise ValueError(f"export is {str(path)!r}; it must end in .npz or .safetensors")


def print_scores(loaded: LoadedRun, client: int) -> None:
    """Prints the scores of a client's model on its own samples."""
    dataset, federation = loaded.run.dataset, loaded.run.federation
    bucket = federation.buckets[federation.assignment[client]]
    evaluation = loaded.simulation.evaluate(loaded.state, np.array([client]))
    print(f"client {client} ({bucket.name}), {loaded.run.label} after {loaded.state.round} rounds")
    scores: dict[str, dict[str, dict[str, np.ndarray]]] = {}  # split -> rule -> metric
    for split, by_rule in evaluation.accuracy.items():
        scores[split] = {rule: {"accuracy": values} for rule, values in by_rule.items()}
    if evaluation.measured is not None:
        scores = evaluation.measured.clients
    for split, by_rule in scores.items():
        count = evaluation.counts[split][client]
        for rule in loaded.run.method.rules:
            for metric, values in by_rule[rule].items():
                score = Score(metric)
                value = f"{score.text(values[client])}{score.unit}"
                print(f"  {split} {score.name} by {rule}: {value} of {count} {kind_of(dataset)}")


def adapted_rows(loaded: LoadedRun, epochs: Sequence[int], trial: int = 0) -> list[Row]:
    """Returns an evaluation's columns after each number of epochs of the clients' own training.

    See `Scoring.adapt_epochs`.
    """
    run, rows = loaded.run, []
    # clients whose states are stored for another score have them here as well
    state = "received" if run.options.scoring.state == "received" else "both"
    only = evaluated_clients(run.config)
    for count in epochs:
        scoring = dataclasses.replace(run.options.scoring, state=state, adapt_epochs=count or None)
        options = dataclasses.replace(run.options, scoring=scoring)
        made = simulate(run._replace(options=options), trial, beside=loaded.simulation)
        rows.append(evaluation_row(made.evaluate(loaded.state, only), made.rules, only))
    return rows


def print_curve(loaded: LoadedRun, epochs: Sequence[int], trial: int = 0) -> None:
    """Prints scores by epochs of tuning, and those of the number that validation sets choose."""
    rows = adapted_rows(loaded, epochs, trial)
    key = score_of(rows[0])
    score = Score(key)
    columns = [x for x in (key, f"val_{key}", f"new_{key}", f"new_val_{key}") if x in rows[0]]
    print(f"{loaded.run.label} after {loaded.state.round} rounds")
    print(f"| epochs | {' | '.join(f'{column}{score.unit}' for column in columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for count, row in zip(epochs, rows):
        print(f"| {count} | {' | '.join(score.text(row[column]) for column in columns)} |")
    for prefix in ("", "new_"):
        if f"{prefix}val_{key}" in columns:
            merits = [merit(row, f"{prefix}val_{key}") for row in rows]
            best = int(np.argmax(merits))
            value = f"{score.text(rows[best][prefix + key])}{score.unit}"
            print(f"{epochs[best]} epochs have the best {prefix}val_{key}: {prefix}{key} {value}")
    if f"val_{key}" not in columns:
        print(
            "clients have no validation sets to choose a number with; the best one here is biased"
        )


def main(_) -> None:
    if not _WORKDIR.value or (_CLIENT.value is None and not _ADAPT.value):
        raise ValueError(
            "give --workdir, and --client or --adapt_epochs; for example "
            "--workdir=checkpoints/runs/quickstart-seed0-trials3 --client=3"
        )
    if _EXPORT.value is not None and _CLIENT.value is None:
        raise ValueError("--export is given without --client; give the id of the client to export")
    if not all(text.isascii() and text.isdecimal() for text in _ADAPT.value):
        raise ValueError(
            f"adapt_epochs is {','.join(_ADAPT.value)!r}; it must be numbers, such as 0,1,2,5,10"
        )
    enable_compilation_cache()
    if _EXPORT.value is not None:
        check_export(_EXPORT.value)
    loaded = load_run(_WORKDIR.value, _METHOD.value, _TRUST.value, trial=_TRIAL.value)
    with jax.default_matmul_precision(loaded.run.config.precision):
        if _ADAPT.value:
            print_curve(loaded, list(map(int, _ADAPT.value)), _TRIAL.value)
        if _CLIENT.value is None:
            return
        state = client_state(loaded, _CLIENT.value)
        print_scores(loaded, _CLIENT.value)
    if _EXPORT.value is not None:
        federation = loaded.run.federation
        bucket = federation.buckets[federation.assignment[_CLIENT.value]]
        try:
            export(state, _EXPORT.value, bucket, output_names(loaded.run.dataset))
        except (ValueError, OSError) as error:
            fail(error, code=1)
        print(f"  exported to {_EXPORT.value}")
