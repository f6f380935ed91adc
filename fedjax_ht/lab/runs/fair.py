"""Gives every method of a comparison equal chances: its settings are searched in as many points and
rounds, on validation sets, before it is compared."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import flax.linen as nn

from fedjax_ht.core.annotations import SearchRange, search_ranges
from fedjax_ht.core.bounds import checked
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.config.base import AnyConfig, typed_config
from fedjax_ht.lab.config.entry_text import split_spec
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.from_python import given_objects
from fedjax_ht.lab.runs.points import searched
from fedjax_ht.lab.runs.search import Space, points_of
from fedjax_ht.lab.runs.search_result import budget, table
from fedjax_ht.lab.runs.train_points import Trainer
from fedjax_ht.methods import method_factory

HALVINGS = 2  # of the points, where there are rounds enough
FACTOR = 8.0  # of the config's learning rate, up and down
RATE = "training.learning_rate"


def space_of(method: str, config: Config, recipe: Space | None = None) -> Space:
    """Returns the search space of a method: the learning rate, other fields of the recipe, and the
    options that the method's factory declares with a `core.annotations.SearchRange`.

    Args:
      method: name of the method.
      config: the config of the comparison; its learning rate is the middle of the range.
      recipe: fields of `training` with their values or ranges, alike for all methods. They come
        before a method's own options, so that all methods are searched at the same draws of them.
    """
    rate = config.training.learning_rate
    ranges = search_ranges(method_factory(method))
    return {RATE: SearchRange(rate / FACTOR, rate * FACTOR), **(recipe or {}), **ranges}


def check_recipe(recipe: Space) -> None:
    """Checks that all methods have the settings searched beside the methods' own options.

    Raises:
      ValueError: a setting is no field of `training`.
    """
    for key in recipe:
        if not key.startswith("training."):
            raise ValueError(
                f"--over names {key!r}; beside --fair it must name a field of training, which all "
                "methods have, such as --over=training.batch_size=64,512"
            )


def _names_of(methods: Sequence[str]) -> list[str]:
    """Returns the names of the methods of entries.

    Raises:
      ValueError: a method is there twice, or is tuned already.
    """
    names = [split_spec(method)[0] for method in methods]
    if len(set(names)) < len(names) or any("@" in name for name in names):
        raise ValueError(
            f"methods is {','.join(methods)!r}; a fair comparison takes each method once, and "
            "tunes it itself"
        )
    return names


def described_space(space: Space) -> str:
    """Returns the settings of a space: "weight from 0.01 to 10, training.epochs 1 or 10"."""
    parts = []
    for key, values in space.items():
        if isinstance(values, SearchRange):
            parts.append(f"{key} from {values.low:g} to {values.high:g}")
        else:
            parts.append(f"{key} {' or '.join(values)}")
    return ", ".join(parts)


@checked
@with_standard_numerics
def fairly_tuned(
    config: AnyConfig,
    methods: Sequence[str],
    workdir: Path | str,
    *,
    points: int = 9,
    tell: Callable[[str], None] = print,
    recipe: Space | None = None,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    trainer: Trainer | None = None,
) -> Config:
    """Searches the settings of methods with equal budgets, on validation sets, and returns a config
    that compares the best of each.

    One of a method's settings is the method as its paper has it; the others are drawn from its
    space. The search takes the first trial's seed and split.

        >>> config = fl.fairly_tuned(
        ...     config, ["local", "fedssa"], "runs/fair", points=9
        ... )  # doctest: +SKIP
        >>> fl.train_and_evaluate(config, "runs/fair")  # doctest: +SKIP

    Args:
      config: the config of the comparison, whose partition has validation sets.
      methods: the entries to tune, by name, such as those of `register_method`.
      workdir: the comparison's folder; searches are in search/ there, and go on from what is in it.
      points: number of settings of each, at least 2.
      tell: called with a line about every point.
      recipe: fields of `training` that are searched, too, with their values as text, or a
        `SearchRange`: {"training.batch_size": ("64", "512")}. All methods have the same draws.
      dataset: the data set in place of the config's name, see `make_experiment`, which the config
        that is returned then needs.
      models: architecture -> module, likewise.
      trainer: trains the points elsewhere; None trains them here.

    Raises:
      ValueError, OSError: a method is given twice, `points` is below 2, the config has no
        validation sets, or the folder is of another search. One line.
      Interrupted: by a signal.
    """
    config, workdir = typed_config(config), Path(workdir)
    names = _names_of(methods)
    if points < 2:
        raise ValueError(
            f"a fair comparison of {points}; it must be of at least 2 settings a method"
        )
    check_recipe(recipe or {})
    objects = given_objects(dataset, models)
    single = dataclasses.replace(config, trials=1)
    halvings = min(HALVINGS, config.rounds.bit_length() - 1)
    spaces = {name: space_of(name, config, recipe) for name in names}
    chosen = []
    for method, (name, space) in zip(methods, spaces.items()):
        folder = workdir / "search" / name
        labels = points_of(method, space, points - 1)
        result = searched(
            single,
            labels,
            halvings,
            together=None,
            workdir=folder,
            tell=tell,
            trainer=trainer,
            objects=objects,
        )
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
