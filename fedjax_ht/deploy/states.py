"""A client's own states on its own disk: one for each round after which the server may go on.

States are named by the number of rounds after which they hold. The server says after which of a
client's rounds it goes on: a round whose upload was lost counts as if it had not been, on both
sides.
"""

from pathlib import Path

from fedjax_ht.checkpoints import sealed
from fedjax_ht.checkpoints.trees import load_tree, save_tree
from fedjax_ht.core.method import PyTree

MOST = 1000
"""States that a client keeps, of all runs together. In one run a server may go back to about
`checkpoint.every` by `checkpoint.keep` of them."""


def check_room(home: Path) -> None:
    """Refuses to keep more states, so that no server fills a client's disk with made-up runs.

    Args:
      home: where the folders of a client's runs are.

    Raises:
      ValueError: there are `MOST` states in them. One line.
    """
    runs = [path for path in home.iterdir() if path.is_dir()] if home.exists() else []
    count = sum(len(sealed.numbers(run)) for run in runs)
    if count >= MOST:
        raise ValueError(
            f"{home} has {count} states of {len(runs)} runs, and a client keeps {MOST} at most; "
            "delete the folders of runs that have ended"
        )


def save(folder: Path, number: int, state: PyTree) -> None:
    """Writes a state, whole or not at all, in place of one with that number.

    Raises:
      OSError: it cannot be written. One line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sealed.remove_half_written(folder)
    path = folder / str(number)
    if path.exists():
        sealed.remove(path)
    save_tree(sealed.temporary(path) / "state", state)
    sealed.place(path)


def load(folder: Path, number: int, template: PyTree) -> PyTree:
    """The state with a number.

    Raises:
      ValueError, OSError: there is none, or it has changed since. One line.
    """
    path = folder / str(number)
    if not path.exists():
        known = ", ".join(map(str, sealed.numbers(folder))) or "none"
        raise FileNotFoundError(f"{folder} has no state after {number} rounds; it has {known}")
    sealed.check(path)
    return load_tree(path / "state", template)


def forget(folder: Path, below: int) -> None:
    """Deletes the states with smaller numbers."""
    for number in sealed.numbers(folder):
        if number < below:
            sealed.remove(folder / str(number))
