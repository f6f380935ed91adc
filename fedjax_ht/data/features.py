"""Features of a frozen extractor, computed once, to train small models on."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import Count, checked
from fedjax_ht.core.inputs import AsStored, InputShape, described, is_image, zeros
from fedjax_ht.core.module_checks import FROZEN, check_module
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import Dataset


@checked
@standard_numerics()
def extract_features(
    dataset: Dataset, module: Any, variables: Any, *, batch_size: Count = 128
) -> Dataset:
    """Returns a data set with features, float32 [N, K], in place of its images.

    The extractor runs once over all images, in evaluation mode. Labels, official sets, clients,
    groups and public samples do not change. Models for vectors train on the result, such as `mlp`
    and the group "mlp2".

    Args:
      dataset: the images. Their `preprocess` must scale pixels as the weights expect. Grey images
        get three equal channels if the weights expect colours.
      module: a `SplitModel` or another flax module that is a client's model.
      variables: its {"params": {"base"}, "stats": {"base"}}, such as `load_backbone` returns.
      batch_size: number of images per batch.

    Raises:
      ValueError: the samples are not images, the variables do not fit the module, or features are
        not finite. One line.

    Examples:
      >>> import fedjax_ht as fl
      >>> images = np.zeros((6, 16, 16, 3), np.uint8)
      >>> dataset = fl.Dataset("mine", images, np.arange(6) % 2)
      >>> module = fl.models.cnn4(num_classes=2, feature_dim=8)
      >>> variables = module.init(jax.random.key(0), np.zeros((1, 16, 16, 3), np.float32))
      >>> fl.extract_features(dataset, module, variables)
      <Dataset mine: 6 samples of [8] float32; 2 classes>
    """
    check_module("the extractor", module)
    shape, colours = dataset.input_shape, colour_shape(dataset.name, dataset.input_shape)
    fitting = [taken for taken in (shape, colours) if _fits(module, variables, taken)]
    if not fitting:
        raise ValueError(
            f"the variables do not fit {type(module).__name__} for samples of {described(shape)}: "
            'they must be its {"params": {"base"}, "stats": {"base"}}, and with adapters "frozen"'
        )
    channels = fitting[0][-1]
    weights = {"params": variables["params"], "batch_stats": variables.get("stats", {})}
    weights |= {FROZEN: variables[FROZEN]} if FROZEN in variables else {}

    @jax.jit
    def run(scaled: Any, weights: PyTree, samples: PyTree) -> jax.Array:
        x = scaled(samples)
        x = jnp.broadcast_to(x, (*x.shape[:-1], channels))
        real = jnp.ones(len(x), bool)
        return module.apply(weights, x, False, real, method="features")

    count, parts = len(dataset.labels), []
    for start in range(0, count, batch_size):
        # the last batch is padded, so that one program serves all
        rows = np.minimum(np.arange(start, start + batch_size), count - 1)
        samples = jax.tree.map(lambda x: x[rows], dataset.inputs)  # noqa: B023, called at once
        part = run(dataset.preprocess, weights, samples)
        parts.append(np.asarray(part, np.float32)[: count - start])
    features = np.concatenate(parts)
    if not np.isfinite(features).all():
        raise ValueError(f"{dataset.name}: the extractor returns features that are not finite")
    return with_features(dataset, features)


def colour_shape(subject: str, shape: InputShape) -> tuple[int, int, int]:
    """Returns (H, W, 3) for images.

    Raises:
      ValueError: the shape is not that of grey or colour images. The message begins with `subject`.
    """
    if not is_image(shape):
        raise ValueError(
            f"{subject}: features are extracted from images, float [H, W, 1 or 3]; a sample is "
            f"{described(shape)}"
        )
    return (*shape[:2], 3)


def with_features(dataset: Dataset, features: np.ndarray) -> Dataset:
    """Replaces a data set's samples by features [N, K]."""
    return dataclasses.replace(dataset, inputs=features, preprocess=AsStored())


def _fits(module: Any, variables: PyTree, shape: InputShape) -> bool:
    """Returns whether variables fit the extractor for samples of a shape."""
    form = jax.eval_shape(lambda key: module.init(key, zeros(shape)), jax.random.key(0))
    parts = {"params": "params", "stats": "batch_stats", FROZEN: FROZEN}
    expected = [form.get(part, {}).get("base", {}) for part in parts.values()]
    given = [variables.get(part, {}).get("base", {}) for part in parts]
    return _shapes(given) == _shapes(expected)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(np.shape, tree)
