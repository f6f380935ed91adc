"""Searches an entry's settings, by the clients' validation sets alone.

    python -m experiments.sweep --config=experiments/configs/few_samples.py --entry=fedtgp \
        --over=weight=0.1,1,10 --over=training.learning_rate=0.01,0.03,0.1

tries all nine; --draws=20 tries twenty that are spread over the space, in which --over=weight=log:0.01:10 may be a
range, and the entry as it is given. With --halvings=2 the worse half ends after a quarter of the rounds, and half of
the rest after half of them. The same command again goes on where the search stopped. What is chosen is printed as an
entry for `experiments.compare --methods`; test sets have no say in it.
"""

import functools
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import app, flags
from ml_collections import ConfigDict
from tqdm import tqdm

from experiments.build import build
from experiments.cli import fail, parse_flags
from experiments.main import chosen_workdir, configured, orderly
from experiments.points import Found, search
from experiments.search import draw, grid, label_of, parse_space, rounds_trained, rungs
from experiments.train import catch_signals, remember_config
from fedjax_ht.io.files import atomic_open

_ENTRY = flags.DEFINE_string("entry", None, "What to search, such as fedtgp or fedproto:variant=released.")
_OVER = flags.DEFINE_multi_string("over", [], "KEY=VALUE,VALUE,... or KEY=log:LOW:HIGH or KEY=uniform:LOW:HIGH.")
_DRAWS = flags.DEFINE_integer("draws", None, "How many points to draw; by default all combinations are tried.")
_HALVINGS = flags.DEFINE_integer("halvings", 0, "How often the worse half of the points ends.")
_TOGETHER = flags.DEFINE_integer("together", None, "Points in one program; by default 1 on CPU, elsewhere all.")


def points_of(entry: str, over: Sequence[str], draws: int | None) -> list[str]:
    """The labels of what is tried; with draws the entry as it is given comes first.

    Raises:
      ValueError: the space is wrong.
    """
    space = parse_space(over)
    if not space:
        raise ValueError("--over names no setting to search, such as --over=training.learning_rate=0.01,0.1")
    if draws is not None and draws < 1:
        raise ValueError(f"--draws is {draws}; it must be at least 1")
    points = grid(space) if draws is None else [{}, *draw(space, draws)]
    return list(dict.fromkeys(label_of(entry, point) for point in points))


def searched(
    config: ConfigDict, labels: Sequence[str], halvings: int, together: int | None, workdir: Path, tell=print
) -> Found:
    """Searches among entries, on the config's split and seeds.

    Raises:
      ValueError, FileNotFoundError: the config is wrong, or has no validation sets. One line.
      Interrupted: by a signal.
    """
    config = config.copy_and_resolve_references()
    config.entries, at = tuple(labels), rungs(config.rounds, halvings)
    experiment = build(config)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose by; give them a share of each client's samples, such as "
            "--config.partition.options.val_share=0.2"
        )
    remember_config(config, experiment.entries.values(), workdir)
    size = together or (1 if jax.default_backend() == "cpu" else len(labels))
    with catch_signals() as caught, jax.default_matmul_precision(config.precision):
        return search(experiment, config, workdir, at, size, caught, tell)


def table(found: Found) -> str:
    """Markdown: every point's validation accuracy by rounds, the best of the longest first."""
    rounds = sorted(found.scores)
    order = sorted(found.scores[rounds[0]], key=lambda x: [-found.scores[r].get(x, -1) for r in reversed(rounds)])
    rows = [["entry", *(f"{r} rounds, validation %" for r in rounds)], ["---"] * (1 + len(rounds))]
    for label in order:
        scores = [found.scores[r].get(label) for r in rounds]
        rows.append([label, *("" if score is None else f"{100 * score:.2f}" for score in scores)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def budget(config: ConfigDict, points: int, halvings: int) -> str:
    """What a search spends, in words."""
    at = rungs(config.rounds, halvings)
    trained = rounds_trained(points, at)
    return (
        f"{points} settings, {trained} rounds of training, by validation on {config.trials} split"
        f"{'s' * (config.trials > 1)} of seed {config.partition.seed}, seed {config.seed}"
    )


def count_programs() -> list[float]:
    """Seconds of every program that is compiled from now on, or read from the cache."""
    seconds: list[float] = []

    def listen(name: str, duration: float, **_) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def main(_) -> None:
    config, name = configured()
    if _ENTRY.value is None:
        fail(ValueError("no --entry; for example --entry=fedtgp"))
    start, compiled = time.time(), count_programs()
    workdir = chosen_workdir(f"{name}-sweep-{_ENTRY.value.replace(':', '-')}", config)
    with orderly(workdir):
        labels = points_of(_ENTRY.value, _OVER.value, _DRAWS.value)
        spent = budget(config, len(labels), _HALVINGS.value)
        tell = functools.partial(tqdm.write, file=sys.stderr)
        tell(f"{spent}. Writing to {workdir}.")
        found = searched(config, labels, _HALVINGS.value, _TOGETHER.value, workdir, tell)
    text = f"{table(found)}\n\n{spent}."
    with atomic_open(workdir / "sweep.md") as file:
        file.write(text + "\n")
    print(f"\n{text}\n{len(compiled)} programs in {sum(compiled):.0f} s of {time.time() - start:.0f}.\n")
    print(f"chosen: --methods={shlex.quote(found.best)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
