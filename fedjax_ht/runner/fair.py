"""Equal chances: every method's settings are searched in as many points and rounds, on validation, before it is
compared."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_ht.io.files import atomic_open
from fedjax_ht.runner.points import budget, searched, table
from fedjax_ht.runner.search import points_of

HALVINGS = 2
FACTOR = 8  # of the config's learning rate, up and down
SPACES: dict[str, tuple[str, ...]] = {
    "fedproto": ("weight=log:0.01:10",),
    "fedtgp": ("weight=log:0.01:10", "tau=log:1:100"),
    "fedktl": ("mu=log:1:100", "server_lr=log:0.001:0.1"),
    "fedssa": ("mu=uniform:0:1",),
    "fedral": ("angle_lr=log:0.001:1", "init_scale=log:0.3:30"),
    "fedgen": ("alpha=log:0.1:30", "beta=log:0.1:30"),
    "fedgh": ("server_lr=log:0.001:0.1",),
    "fd": ("weight=log:0.01:10",),
    "fedclassavg": ("mu=log:0.01:1", "temperature=log:0.05:0.5"),
    "fml": ("alpha=uniform:0:1", "beta=uniform:0:1"),
    "dense": ("generator_lr=log:0.00002:0.002", "student_lr=log:0.001:0.1"),
    "fedftg": ("generator_lr=log:0.00002:0.002", "student_lr=log:0.001:0.1"),
    "dfrd": ("generator_lr=log:0.00002:0.002", "student_lr=log:0.001:0.1"),
}
"""What of a method is a matter of the setting; the others have nothing but their learning rate."""


def space_of(method: str, config: ConfigDict) -> tuple[str, ...]:
    """What is searched of a method, as --over has it."""
    rate = config.training.learning_rate
    return (f"training.learning_rate=log:{rate / FACTOR:g}:{rate * FACTOR:g}", *SPACES.get(method, ()))


def fairly_tuned(
    config: ConfigDict, methods: Sequence[str], points: int, workdir: Path, tell: Callable[[str], None]
) -> ConfigDict:
    """A config that compares methods, each by the best of `points` settings: as its paper has it, and others that are
    drawn from its space. The search takes the first trial's seed and split.

    Raises:
      ValueError: a method is given twice, `points` is below 2, or as `searched`.
    """
    names = [method.partition(":")[0] for method in methods]
    if len(set(names)) < len(names) or any("@" in name for name in names):
        raise ValueError(f"--methods is {','.join(methods)!r}; --fair takes each method once, and tunes it itself")
    if points < 2:
        raise ValueError(f"--fair is {points}; it must be at least 2 settings a method")
    alone = config.copy_and_resolve_references()
    alone.trials, chosen = 1, []
    for method, name in zip(methods, names):
        folder = workdir / "search" / name
        found = searched(alone, points_of(method, space_of(name, config), points - 1), HALVINGS, None, folder, tell)
        with atomic_open(folder / "sweep.md") as file:
            file.write(table(found) + "\n")
        tell(f"chosen: {found.best}")
        chosen.append(found.best)
    config = config.copy_and_resolve_references()
    config.tuned, config.tuned_on = tuple(chosen), budget(alone, points, HALVINGS)
    config.entries = tuple(f"{name}@tuned" for name in names)
    return config
