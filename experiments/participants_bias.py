r"""Measures how much the best "accuracy of a round's participants" owes to the draw.

    python -m experiments.participants_bias --run=RUNS/a/local --csv=ACCURACIES.csv
    python -m experiments.participants_bias --csv=experiments/results/participants_bias.csv \
        --picture=docs/pictures/participants_bias.png

Takes all clients' accuracies at a run's last evaluation, and keeps them fixed. Draws some clients
at random as a round does, round after round, and tracks the highest mean so far. Anything above the
mean over all clients is bias, not learning. Prints it for 100, 300 and 500 rounds. --csv stores a
run's accuracies, and is read if no --run is given.
"""

from pathlib import Path

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.rows import read_lines, write_rows
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.plots import save, subplots
from fedjax_ht.simulation.rows import evaluated

_RUN = flags.DEFINE_string("run", None, "Folder of one method of a run, with its metrics.jsonl.")
_CSV = flags.DEFINE_string(
    "csv", None, "CSV of the clients' accuracies: written from --run, or read without one."
)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.")
_DRAWN = flags.DEFINE_integer("drawn", 10, "Clients drawn in a round.")
_DRAWS = flags.DEFINE_integer("draws", 500, "Rounds, each with a draw.", allow_override=True)

REPEATS = 200  # histories of draws


def best_so_far(accuracy: np.ndarray, participants: int, rounds: int, repeats: int) -> np.ndarray:
    """Computes the highest mean over participants up to each round, while clients learn nothing.

    Args:
      accuracy: float [num_clients].
      participants: distinct clients in a round, drawn uniformly.
      rounds, repeats: rounds of one history of draws, and number of histories.

    Returns:
      float [repeats, rounds].
    """
    rng = np.random.default_rng(0)
    order = rng.random((repeats, rounds, len(accuracy))).argpartition(participants - 1, axis=-1)
    return np.maximum.accumulate(np.asarray(accuracy)[order[..., :participants]].mean(-1), axis=1)


def picture(accuracy: np.ndarray, participants: int, best: np.ndarray) -> Figure:
    """Plots the clients' accuracies on the left, the best draws so far on the right, in percent."""
    figure, (left, right) = subplots(1, 2, sharey=True, figsize=(8, 3.6), width_ratios=(1, 3))
    left.boxplot(
        100 * accuracy, showmeans=True, flierprops={"markersize": 3}, tick_labels=["all clients"]
    )
    left.set(ylabel="test accuracy (%)")
    low, middle, high = 100 * np.percentile(best, (5, 50, 95), axis=0)
    rounds = np.arange(1, best.shape[1] + 1)
    right.fill_between(rounds, low, high, alpha=0.2, lw=0)
    right.plot(
        rounds, middle, label=f"best round of {participants} drawn clients (median, 5 to 95 %)"
    )
    right.axhline(
        100 * accuracy.mean(), color="black", ls="--", lw=1, label="mean over all clients"
    )
    right.set(xlabel="rounds without training")
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure


def last_accuracies(folder: Path) -> np.ndarray:
    """Returns the clients' accuracies at the last evaluation of an entry's first run.

    Clients without samples are skipped.
    """
    first = read_runs(folder)[0]
    accuracy = np.array(evaluated(first)[-1]["clients"], float)
    return accuracy[~np.isnan(accuracy)]


def write_accuracies(accuracy: np.ndarray, path: Path) -> None:
    """Writes a row per client, which `read_accuracies` reads back."""
    write_rows(path, ["client", "accuracy"], enumerate(accuracy.tolist()))


def read_accuracies(path: Path) -> np.ndarray:
    """Returns the clients' accuracies, float [num_clients].

    Raises:
      ValueError: the file has no column accuracy, or that has something other than numbers.
    """
    rows = read_lines(path)
    if not rows or "accuracy" not in rows[0]:
        raise ValueError(f"{path} has no column accuracy with a row a client")
    return np.array([float(row["accuracy"]) for row in rows])


def accuracies() -> np.ndarray:
    """Returns the accuracies that the flags ask for.

    Raises:
      ValueError: the flags or a file are wrong. FileNotFoundError: a file is missing.
    """
    if not _RUN.value and not _CSV.value:
        raise ValueError("give --run or --csv; see --help")
    if _RUN.value:
        accuracy = last_accuracies(Path(_RUN.value))
        if not _CSV.value:
            return accuracy
        write_accuracies(accuracy, Path(_CSV.value))
    return read_accuracies(Path(_CSV.value))  # rounded, so that the file gives the same numbers


@orderly_main
def main(_) -> None:
    accuracy = accuracies()
    if not 1 <= _DRAWN.value <= len(accuracy):
        raise ValueError(f"--drawn is {_DRAWN.value}; it must be from 1 to {len(accuracy)}")
    best = best_so_far(accuracy, _DRAWN.value, _DRAWS.value, REPEATS)
    print(f"all {len(accuracy)} clients: {100 * accuracy.mean():.2f} %")
    for rounds in (100, 300, 500):
        if rounds <= _DRAWS.value:
            at = 100 * best[:, rounds - 1]
            print(f"best of {rounds} rounds of {_DRAWN.value}: {at.mean():.2f} ± {at.std():.2f} %")
    if _PICTURE.value:
        save(picture(accuracy, _DRAWN.value, best), Path(_PICTURE.value))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
