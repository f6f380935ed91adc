"""Modules of one's own: what clients give them, and what is refused in one line."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_ht as fl
from fedjax_ht.metrics.memory import training_memory
from tests.federations import TRAINING

HEAD = nn.Dense(3)


class Plain(nn.Module):
    """A layer, and behind it a module of the test's choice."""

    last: nn.Module | None = None

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(8)(x))
        return x if self.last is None else self.last(x)


class Dropped(nn.Module):
    stream: str = "dropout"

    @nn.compact
    def __call__(self, x, train, mask):
        dropout = nn.Dropout(0.5, rng_collection=self.stream)
        return dropout(nn.relu(nn.Dense(8)(x)), deterministic=not train)


class Quiet(nn.Module):
    """Draws nothing until it is told that it trains."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(8)(x)))


class Attentive(nn.Module):
    scored: bool = False

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.Dense(8)(x.reshape(len(x), 3, 2))
        keeps = not train and not self.scored
        attention = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=keeps)
        return attention(x, x).mean(1)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.Dense(8)(x)
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if train else x


class Scaled(nn.Module):
    collection: str = "constants"

    @nn.compact
    def __call__(self, x):
        return x * self.variable(self.collection, "scale", jnp.ones, (1,)).value


class Synchronised(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask):
        norm = nn.BatchNorm(use_running_average=not train, axis_name="batch")
        return norm(nn.Dense(8)(x), mask=None if mask is None else mask[:, None])


class Padded(nn.Module):
    masked: bool = False  # by a mask that broadcasts along the features

    @nn.compact
    def __call__(self, x, train, mask):
        norm = nn.BatchNorm(use_running_average=not train)
        return norm(nn.Dense(8)(x), mask=mask if self.masked else None)


class Inverted(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask):
        norm = nn.BatchNorm(use_running_average=train)
        return norm(nn.Dense(8)(x), mask=None if mask is None else mask[:, None])


class Linear(nnx.Module):
    def __init__(self, width: int, features: int, rngs: nnx.Rngs):
        self.layer = nnx.Linear(width, features, rngs=rngs)
        self.norm = nnx.BatchNorm(features, rngs=rngs)

    def __call__(self, x, train, mask):
        return self.norm(self.layer(x), use_running_average=not train)


class Dropping(Linear):
    def __init__(self, width: int, features: int, rngs: nnx.Rngs):
        super().__init__(width, features, rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def stateful(base: nn.Module) -> fl.SplitModel:
    return fl.SplitModel(base, HEAD, stateful=True)


def bucket_of(module: nn.Module) -> fl.Bucket:
    return fl.make_federation({"m": module}, (6,), 3, num_clients=1).buckets[0]


BY_BATCH = nn.BatchNorm(use_running_average=False)
FROZEN, FIXED = nn.BatchNorm(use_running_average=True), nn.Dropout(0.5, deterministic=False)
REFUSED = {
    "class": (lambda: Plain, "model 'm' is the class Plain; give an instance: Plain(...)"),
    "no parts": (Plain, "model 'm' is a Plain without features and classify; "),
    "no module": (object, "model 'm' is a builtins.object; it must be a Flax module"),
    "class of a base": (lambda: fl.SplitModel(Plain, HEAD), "SplitModel's base is the class Plain"),
    "class of a head": (lambda: fl.SplitModel(Plain(), nn.Dense), "SplitModel's head is the class"),
    "statistics": (lambda: fl.SplitModel(Plain(BY_BATCH), HEAD), "model 'm' normalises by the"),
    "collection": (lambda: fl.SplitModel(Plain(Scaled()), HEAD), "model 'm' keeps base/last/scale"),
    "norm in the head": (
        lambda: fl.SplitModel(Plain(), nn.Sequential((FROZEN, HEAD))),
        "model 'm' keeps batch statistics in its head (head/layers_0), which is called without tr",
    ),
    "dropout in the head": (
        lambda: fl.SplitModel(Plain(), nn.Sequential((FIXED, HEAD))),
        "model 'm': layers_0 draws random numbers in evaluation or in the head, where there is no",
    ),
    "drawn in evaluation": (
        lambda: stateful(Attentive(scored=True)),
        "model 'm': MultiHeadDotProductAttention_0 draws random numbers in evaluation or in the h",
    ),
    "stream": (lambda: stateful(Noisy()), "model 'm': base draws from the stream 'noise', but"),
    "stream of a dropout": (lambda: stateful(Dropped("drop")), "model 'm': Dropout_0 draws from"),
    "axis": (lambda: stateful(Synchronised()), "model 'm': it sums over the device axis 'batch',"),
    "padding": (
        lambda: stateful(Padded()),
        "model 'm': base/BatchNorm_0 averages the padding of the last batch; give its call mask=",
    ),
    "by batch in evaluation": (
        lambda: stateful(Inverted()),
        "model 'm': base/BatchNorm_0 normalises by the current batch in evaluation; give it use_ru",
    ),
    "mask of one axis": (
        lambda: stateful(Padded(masked=True)),
        "model 'm': base/BatchNorm_0 averages the padding of the last batch; give its call mask=",
    ),
    "not stateful": (lambda: fl.SplitModel(Dropped(), HEAD), "model 'm': Dropped.__call__()"),
    "silent": (
        lambda: fl.SplitModel(Quiet(), HEAD),
        "model 'm': Quiet.__call__() takes train, whic",
    ),
    "stateful": (lambda: stateful(Plain()), "model 'm': Plain.__call__() takes 2 positional"),
    "nnx": (lambda: Linear(6, 8, nnx.Rngs(0)), "model 'm' is a tests.core.test_modules.Linear; it"),
    "nnx dropout": (
        lambda: stateful(nnx.bridge.to_linen(Dropping, 6, 8)),
        "model 'm': its flax.nnx module needs an RNG stream, ",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_clients_cannot_run_is_one_line(kind):
    make, message = REFUSED[kind]
    with pytest.raises(ValueError) as error:
        bucket_of(make())
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert ("fl.from_nnx(Linear" in str(error.value)) == (kind == "nnx")


def test_a_part_of_flax_nnx_is_refused_and_its_bridge_works():
    with pytest.raises(ValueError, match=r"SplitModel's base .*fl.from_nnx\(Linear, ..., head=\)"):
        fl.SplitModel(Linear(6, 8, nnx.Rngs(0)), HEAD)
    bucket = bucket_of(stateful(nnx.bridge.to_linen(Linear, 6, 8)))
    variables = fl.init_variables(bucket, jax.random.key(0))
    out, stats = run(bucket, variables, True)
    assert out.shape == (4, 8)
    means = [tree["base"]["norm"]["mean"] for tree in (stats, variables["stats"])]
    assert not np.array_equal(*means)


X, MASK = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32), np.ones(4, bool)


def run(bucket, variables, train: bool, key=None):
    params, stats = variables["params"], variables["stats"]
    return fl.features(bucket, params, stats, X, MASK, train=train, key=key)


@pytest.mark.parametrize(
    "module",
    [stateful(Dropped()), fl.SplitModel(Plain(FIXED), HEAD), stateful(Attentive())],
    ids=["documented", "plain", "attention"],
)
def test_dropout_acts_in_training_by_its_key_alone(module):
    bucket = bucket_of(module)
    variables = fl.init_variables(bucket, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1))
    first, second = (run(bucket, variables, True, key)[0] for key in keys)
    scored = run(bucket, variables, False)[0]
    assert not np.array_equal(first, second) and not np.array_equal(first, scored)
    np.testing.assert_array_equal(run(bucket, variables, True, keys[0])[0], first)
    if not bucket.draws:  # without a key nothing is dropped
        np.testing.assert_array_equal(run(bucket, variables, True)[0], scored)
    # what is counted of a step needs no key from outside
    assert training_memory(bucket, TRAINING) > 0


def test_a_frozen_norm_in_a_base_is_taken():
    assert bucket_of(fl.SplitModel(Plain(FROZEN), HEAD)).feature_dim == 8


class Four(nn.Module):
    @nn.compact
    def __call__(self, x):
        _, height, width, channels = x.shape
        return nn.Dense(4)(x.reshape(-1, height * width * channels))


INVERSE = nn.Sequential((nn.Dense(4), jnp.linalg.inv))
UNFIT = {  # base, shape of a sample -> start of the message
    "rows for a convolution": (nn.Conv(4, (3, 3)), (6,), "model 'm': base takes samples with 3"),
    "images without channels": (nn.Conv(4, (3, 3)), (8, 8), "model 'm': base takes samples with 3"),
    "rows for a recurrent layer": (nn.RNN(nn.LSTMCell(3)), (6,), "model 'm': base takes samples"),
    "other axes": (Four(), (6,), "model 'm' fails on a sample of shape (6,), ValueError: not"),
    "other error": (INVERSE, (6,), "model 'm' fails on a sample of shape (6,), ValueError: Arg"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_module_that_does_not_fit_is_one_line_with_its_name_and_the_shape(case):
    base, shape, message = UNFIT[case]
    with pytest.raises(ValueError) as error:
        fl.make_federation({"m": fl.SplitModel(base, HEAD)}, shape, 3, num_clients=1)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


class Mapped(nn.Module):
    @nn.compact
    def __call__(self, x):
        shared = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
        return nn.vmap(nn.Conv, **shared)(4, (3, 3))(x).mean((1, 2))


def test_a_convolution_of_single_samples_under_a_vmap_is_taken():
    module = fl.SplitModel(Mapped(), HEAD)
    assert fl.make_federation({"m": module}, (8, 8, 1), 3, num_clients=1).feature_dim == 4
