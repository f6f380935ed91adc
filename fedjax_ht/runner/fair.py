"""Equal chances: every method's settings are searched in as many points and rounds, on validation,
before it is compared."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_ht.core.bounds import SearchRange, search_ranges
from fedjax_ht.core.files import atomic_open
from fedjax_ht.methods import method_factory
from fedjax_ht.runner.points import budget, searched, table
from fedjax_ht.runner.search import Space, points_of

HALVINGS = 2  # of the points, where there are rounds enough
FACTOR = 8.0  # of the config's learning rate, up and down
RATE = "training.learning_rate"


def space_of(method: str, config: ConfigDict) -> Space:
    """Returns what is searched of a method: the learning rate, and the options that its factory
    declares with a `core.bounds.SearchRange`."""
    rate = config.training.learning_rate
    return {
        RATE: SearchRange(rate / FACTOR, rate * FACTOR),
        **search_ranges(method_factory(method)),
    }


def described_space(space: Space) -> str:
    """Names the settings of a space with their ranges, such as "weight from 0.01 to 10"."""
    return ", ".join(f"{key} from {ends.low:g} to {ends.high:g}" for key, ends in space.items())


def fairly_tuned(
    config: ConfigDict,
    methods: Sequence[str],
    points: int,
    workdir: Path,
    tell: Callable[[str], None],
) -> ConfigDict:
    """A config that compares methods, each by the best of `points` settings: as its paper has it,
    and others that are drawn from its space. The search takes the first trial's seed and split.

    Raises:
      ValueError: a method is given twice, `points` is below 2, or as `searched`.
    """
    names = [method.partition(":")[0] for method in methods]
    if len(set(names)) < len(names) or any("@" in name for name in names):
        raise ValueError(
            f"--methods is {','.join(methods)!r}; --fair takes each method once, and tunes it "
            "itself"
        )
    if points < 2:
        raise ValueError(f"--fair is {points}; it must be at least 2 settings a method")
    single = config.copy_and_resolve_references()
    single.trials = 1
    halvings = min(HALVINGS, config.rounds.bit_length() - 1)
    spaces = {name: space_of(name, config) for name in names}
    chosen = []
    for method, (name, space) in zip(methods, spaces.items()):
        folder = workdir / "search" / name
        result = searched(
            single, points_of(method, space, points - 1), halvings, None, folder, tell
        )
        with atomic_open(folder / "sweep.md") as file:
            file.write(table(result) + "\n")
        tell(f"chosen: {result.best}")
        chosen.append(result.best)
    config = config.copy_and_resolve_references()
    config.tuned, config.tuned_on = tuple(chosen), budget(single, points, halvings)
    config.searched = tuple(f"{name}: {described_space(space)}" for name, space in spaces.items())
    config.entries = tuple(f"{name}@tuned" for name in names)
    return config
