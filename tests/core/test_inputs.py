"""Shapes and dtypes that a sample may have, and the array that a model sees of it."""

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.inputs import AsStored, Pixels, abstract, pixels_of, shape_of, zeros
from fedjax_ht.models.layers import Linear

LABELS, NAMES = np.array([0, 1, 1]), ("a", "b")
TOKENS = np.arange(12, dtype=np.int64).reshape(3, 4)
INT = jax.ShapeDtypeStruct((4,), jnp.int32)


class Text(NamedTuple):
    tokens: np.ndarray
    length: np.ndarray


KINDS = {
    "images": (np.zeros((3, 4, 5, 3), np.uint8), (4, 5, 3)),
    "grey and alpha": (np.zeros((3, 4, 5, 2), np.uint8), (4, 5, 2)),
    "float images": (np.zeros((3, 4, 5, 1), np.float64), (4, 5, 1)),
    "windows": (np.zeros((3, 128, 9), np.float16), (128, 9)),
    "rows": (np.zeros((3, 7), np.float32), (7,)),
    "tokens": (TOKENS, INT),
    "small tokens": (TOKENS.astype(np.uint16), INT),
    "tuple": (Text(TOKENS, TOKENS[:, 0]), Text(INT, jax.ShapeDtypeStruct((), jnp.int32))),
    "dict": ({"x": np.zeros((3, 2)), "t": TOKENS}, {"x": (2,), "t": INT}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_model_inputs_of_each_kind_of_sample(kind):
    inputs, shape = KINDS[kind]
    dataset = fl.Dataset(kind, inputs, LABELS, NAMES)
    assert dataset.input_shape == shape
    stored = jax.tree.map(jnp.asarray, dataset.inputs)
    seen = jax.jit(lambda rule, x: rule(x))(dataset.preprocess, stored)
    chex.assert_trees_all_equal_shapes_and_dtypes(seen, abstract(shape, 3), zeros(shape, 3))
    assert shape_of(seen) == shape
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(zeros(shape, 2)))


def test_pixels_of_bytes_and_of_floats():
    x = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 2), np.uint8)
    rule = fl.Dataset("d", x, LABELS, NAMES, Pixels((0.1, 0.2), 0.5)).preprocess
    want = (x / 255 - [0.1, 0.2]) / 0.5
    np.testing.assert_allclose(rule(jnp.asarray(x)), want, atol=1e-6)
    np.testing.assert_allclose(rule(jnp.asarray(x / 255)), want, atol=1e-6)
    np.testing.assert_allclose(rule.pixels(want), x / 255, atol=1e-6)
    np.testing.assert_allclose(rule.normalise(jnp.zeros(2)), rule.black)


def test_a_rule_of_ones_own():
    dataset = fl.Dataset("d", TOKENS, LABELS, NAMES, lambda x: jax.nn.one_hot(x, 12))
    assert dataset.input_shape == (4, 12)
    scale = jax.tree_util.Partial(lambda scale, x: x * scale, np.float32(3))
    dataset = fl.Dataset("d", np.ones((3, 2), np.float32), LABELS, NAMES, scale)
    assert jax.tree.leaves(dataset.preprocess) == [3]
    assert (dataset.preprocess(dataset.inputs) == 3).all()


def test_models_of_images_need_to_know_what_a_pixel_is():
    with pytest.raises(ValueError, match="X needs the normalisation of pixels: give the dataset"):
        pixels_of(AsStored(), "X")


def test_numbers_of_64_bits_have_32_on_a_device():
    shapes = {"t": jax.ShapeDtypeStruct((4,), np.int64), "x": jax.ShapeDtypeStruct((), np.float64)}
    forms = abstract(shapes, 3)
    assert (forms["t"].shape, forms["t"].dtype) == ((3, 4), jnp.int32)
    assert (forms["x"].shape, forms["x"].dtype) == ((3,), jnp.float32)


class Pair(nn.Module):
    @nn.compact
    def __call__(self, x):
        mean = nn.Embed(12, 3, name="embedding")(x["t"]).mean(1)
        return nn.Dense(3, name="fc")(jnp.concatenate([mean, x["x"]], -1))


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_a_federation_of_several_arrays_trains():
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(60, 2)), "t": rng.integers(0, 12, (60, 4))}
    dataset = fl.Dataset("both", inputs, (inputs["x"][:, 0] > 0).astype(int), NAMES)
    modules = {"pair": fl.SplitModel(Pair(), Linear(2))}
    federation = fl.make_federation(modules, dataset.input_shape, 2, num_clients=2)
    again = fl.make_federation(modules, dataset.input_shape, 2, num_clients=2)
    assert hash(federation.buckets[0]) == hash(again.buckets[0])
    data = fl.make_federation_data(dataset, fl.make_partition("iid", dataset, 2), federation)
    method = fl.fedproto(fl.LocalTraining(optax.sgd(0.5), batch_size=5, epochs=10))
    _, history = fl.run(fl.make_simulation(method, federation, data), 2)
    assert history[-1]["accuracy"] > 0.8
