"""The .npz files of `embedded` generators: those that the library ships, and a user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.generators import npz
from fedjax_ht.lab.generators.embedded import init_variables, sample_classes, sample_w, synthesize
from fedjax_ht.models.generator import Card, Generator

FORMAT = "embedded"


def save_embedded(
    path: Path | str, variables: PyTree, card: Card, metadata: Mapping[str, Any]
) -> None:
    """Writes a generator as .npz: float16 weights named by their path in `variables`, and one JSON
    object.

    Args:
      path: the file; it is replaced as a whole.
      variables: variables in the structure that `init_variables` makes.
      card: the generator's origin.
      metadata: further facts about the generator, as JSON takes them.
    """
    arrays = {}
    for key, x in jax.tree_util.tree_leaves_with_path(variables):
        arrays[_name(key)] = np.asarray(x, np.float16)
    npz.write(
        path, {"format": FORMAT, "latent_dim": len(variables["average"]), **metadata}, card, arrays
    )


def load_embedded(path: Path | str) -> Generator:
    """Reads a file that `save_embedded` wrote. Nothing in the file is executed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or no embedded generator. One line.
    """
    metadata, arrays = npz.read(path)
    _check_format(path, metadata)
    try:
        arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        channels = tuple(arrays[f"convolutions/{i}/kernel"].shape[2] for i in (0, 2, 4, 5))
        latent_dim = len(arrays["average"])
        image_channels = len(arrays["image/bias"])
        num_classes = len(arrays.get("classes", ()))
        # The widths that the arrays have must fit each other: as those of a generator of this size.
        # The key is an argument, or else the weights are drawn under `ensure_compile_time_eval`.
        expected = jax.eval_shape(
            lambda key: init_variables(key, channels, latent_dim, image_channels, num_classes),
            jax.random.key(0),
        )
        leaves, structure = jax.tree_util.tree_flatten_with_path(expected)
        for key, leaf in leaves:
            if arrays[_name(key)].shape != leaf.shape:
                raise ValueError(
                    f"{_name(key)} is of shape {arrays[_name(key)].shape}, expected {leaf.shape}"
                )
            if not np.isfinite(arrays[_name(key)]).all():
                raise ValueError(f"{_name(key)} holds values that are not finite")
        card = npz.card(metadata)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: no embedded generator: {npz.one_line(error)}") from error
    variables = jax.tree.unflatten(
        structure, [jnp.asarray(arrays[_name(key)]) for key, _ in leaves]
    )
    return Generator(
        card=card,
        latent_dim=latent_dim,
        sample_w=sample_w,
        synthesize=synthesize,
        variables=variables,
        conditional=sample_classes if num_classes else None,
        num_labels=num_classes,
    )


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Reads the JSON object of a generator's .npz: "format", "latent_dim", "card" and more.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or no embedded generator. One line.
    """
    metadata, _ = npz.read(path, arrays=False)
    _check_format(path, metadata)
    return metadata


def _check_format(path: Path | str, metadata: Mapping[str, Any]) -> None:
    if metadata["format"] != FORMAT:
        raise ValueError(
            f"{path}: holds a generator of format {metadata['format']!r}; expected {FORMAT}"
        )


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
