"""Modules of flax.nnx run as clients run models: with values, dropout and statistics of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_ht as fl
from tests.federations import TRAINING

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
REAL = np.ones(4, bool)


class Net(nnx.Module):
    """Dropout, batch statistics, parameters below a list, and a head."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, norm: bool = True):
        self.blocks = nnx.Sequential(nnx.Linear(6, width, rngs=rngs), nnx.relu)
        self.norm = nnx.BatchNorm(width, momentum=0.5, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.classifier = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x, mask=None):
        x = self.blocks(x)
        if self.norm is not None:
            x = self.norm(x, mask=None if mask is None else mask[:, None])
        return self.classifier(self.dropout(x))


class Maskless(Net):
    def __call__(self, x):
        return self.classifier(self.norm(self.blocks(x)))


class Squashed(Net):
    def __call__(self, x, mask=None):
        return nnx.softmax(super().__call__(x, mask))


class Tied(Net):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, rngs=rngs, norm=False)
        self.classifier.bias = self.blocks.layers[0].bias


def dropping(rngs: nnx.Rngs) -> nnx.Module:
    head = nnx.Sequential(nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 3, rngs=rngs))
    return nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), head)


class Counting(Net):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros(()))


def sequential(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 3, rngs=rngs))


def bucket_of(module) -> fl.Bucket:
    return fl.make_federation({"m": module}, (6,), 3, num_clients=1).buckets[0]


@pytest.fixture(scope="module")
def bucket():
    return bucket_of(fl.from_nnx(Net, 8, head="classifier"))


@pytest.fixture(scope="module")
def variables(bucket):
    return fl.init_variables(bucket, jax.random.key(0))


def features(bucket, variables, x, mask, **how):
    return fl.features(bucket, variables["params"], variables["stats"], x, mask, **how)


def test_it_computes_what_the_module_does(bucket, variables):
    module = Net(8, rngs=nnx.Rngs(0))
    module.eval()
    base, head = (variables["params"][part] for part in ("base", "head"))
    module.blocks.layers[0].kernel[...] = base["blocks"]["layers"]["0"]["kernel"]
    module.norm.scale[...] = base["norm"]["scale"]
    module.classifier.kernel[...] = head["kernel"]
    features_, stats = features(bucket, variables, X, REAL, train=False)
    got = fl.logits(bucket, {"head": head}, features_)  # a head alone, as a server has it
    np.testing.assert_allclose(got, module(X), atol=1e-6)
    assert jax.tree.all(jax.tree.map(np.array_equal, stats, variables["stats"]))


def test_each_client_and_part_draws_its_own_values(bucket, variables):
    other = fl.init_variables(bucket, jax.random.key(1))["params"]["base"]["blocks"]
    kernel = variables["params"]["base"]["blocks"]["layers"]["0"]["kernel"]
    assert not np.array_equal(other["layers"]["0"]["kernel"], kernel)


def test_dropout_draws_at_each_key_in_training_alone(bucket, variables):
    keys = jax.random.split(jax.random.key(1))
    first, second = (features(bucket, variables, X, REAL, train=True, key=key)[0] for key in keys)
    kept = features(bucket, variables, X, REAL, train=True)[0]
    assert not np.array_equal(first, second) and not np.array_equal(first, kept)
    again = features(bucket, variables, X, REAL, train=True, key=keys[0])[0]
    np.testing.assert_array_equal(again, first)


def test_padding_does_not_enter_batch_statistics(bucket, variables):
    padded = np.concatenate([X, np.full((2, 6), 100, np.float32)])
    mask = np.arange(6) < 4
    kept, stats = features(bucket, variables, padded, mask, train=True)
    expected, of_real = features(bucket, variables, X, REAL, train=True)
    np.testing.assert_allclose(kept[:4], expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stats, of_real)
    assert not np.allclose(stats["base"]["norm"]["mean"], 0)


def test_a_head_by_its_place_in_a_list():
    bucket = bucket_of(fl.from_nnx(sequential, head="layers.2"))
    assert bucket.feature_dim == 8


def test_equal_arguments_are_an_equal_model():
    model = fl.from_nnx(Net, 8, head="classifier", norm=False)
    again = fl.from_nnx(Net, 8, head="classifier", norm=False)
    assert model == again and hash(model) == hash(again)
    assert model != fl.from_nnx(Net, 8, head="classifier")


def test_a_method_keeps_its_contract_with_such_models():
    models = {
        str(norm): fl.from_nnx(Net, 4, head="classifier", norm=norm) for norm in (True, False)
    }
    federation = fl.make_federation(models, (6,), 3, num_clients=6)
    fl.check_method(fl.lg_fedavg(TRAINING), federation)


REFUSED = {
    "instance": (
        lambda: fl.from_nnx(Net(8, rngs=nnx.Rngs(0)), head="classifier"),
        "from_nnx got an instance of Net, but each client initialises its own; give the class",
    ),
    "path": (lambda: fl.from_nnx(Net, 8, head="head"), "Net has no submodule 'head'; it has"),
    "list": (lambda: fl.from_nnx(Net, [8], head="classifier"), "arguments of Net are not hashable"),
    "mask": (lambda: fl.from_nnx(Maskless, 8, head="classifier"), "Maskless keeps batch"),
    "tied": (lambda: fl.from_nnx(Tied, 3, head="classifier"), "Tied's 'classifier' shares"),
    "dropout": (
        lambda: fl.from_nnx(dropping, head="layers.1"),
        "dropping's 'layers.1' has dropout",
    ),
    "variable": (lambda: fl.from_nnx(Counting, 8, head="classifier"), "Counting keeps calls, an"),
    "last": (lambda: bucket_of(fl.from_nnx(Squashed, 8, head="classifier")), "model 'm' fails"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_clients_cannot_run_is_one_line(kind):
    make, message = REFUSED[kind]
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
