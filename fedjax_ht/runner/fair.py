"""Gives every method of a comparison equal chances: its settings are searched in as many points and
rounds, on validation sets, before it is compared."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedjax_ht.configs.sections import Config
from fedjax_ht.core.annotations import SearchRange, search_ranges
from fedjax_ht.core.files import atomic_open
from fedjax_ht.methods import method_factory
from fedjax_ht.runner.points import searched
from fedjax_ht.runner.search import points_of
from fedjax_ht.runner.search_result import budget, table

HALVINGS = 2  # of the points, where there are rounds enough
FACTOR = 8.0  # of the config's learning rate, up and down
RATE = "training.learning_rate"


def space_of(method: str, config: Config) -> dict[str, SearchRange]:
    """Returns what is searched of a method: the learning rate, and the options that its factory
    declares with a `core.annotations.SearchRange`."""
    rate = config.training.learning_rate
    ranges = search_ranges(method_factory(method))
    return {RATE: SearchRange(rate / FACTOR, rate * FACTOR), **ranges}


def described_space(space: Mapping[str, SearchRange]) -> str:
    """Returns the settings of a space with their ranges, such as "weight from 0.01 to 10"."""
    return ", ".join(f"{key} from {ends.low:g} to {ends.high:g}" for key, ends in space.items())


def fairly_tuned(
    config: Config,
    methods: Sequence[str],
    points: int,
    workdir: Path,
    tell: Callable[[str], None],
) -> Config:
    """Returns a config that compares methods, each by the best of `points` settings.

    One of them is the method as its paper has it; the others are drawn from its space. The search
    takes the first trial's seed and split.

    Args:
      config: of the comparison.
      methods: entries to tune.
      points: settings of each, at least 2.
      workdir: the comparison's folder; searches are in search/ there.
      tell: is given a line about every point.

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
    single = dataclasses.replace(config, trials=1)
    halvings = min(HALVINGS, config.rounds.bit_length() - 1)
    spaces = {name: space_of(name, config) for name in names}
    chosen = []
    for method, (name, space) in zip(methods, spaces.items()):
        folder = workdir / "search" / name
        labels = points_of(method, space, points - 1)
        result = searched(single, labels, halvings, None, folder, tell)
        with atomic_open(folder / "sweep.md") as file:
            file.write(table(result) + "\n")
        tell(f"chosen: {result.best}")
        chosen.append(result.best)
    return dataclasses.replace(
        config,
        tuned=tuple(chosen),
        tuned_on=budget(single, points, halvings),
        searched=tuple(f"{name}: {described_space(space)}" for name, space in spaces.items()),
        entries=tuple(f"{name}@tuned" for name in names),
    )
