"""Options and federations that methods refuse before anything is compiled, each in one line."""

import jax.numpy as jnp
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods import METHODS
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.split import DenseHead
from tests import tiny
from tests.federations import TRAINING, sliced_federation
from tests.generators_tiny import LATENT_DIM, tiny_generator

GENERATOR = tiny_generator()
CONSTANT = GENERATOR._replace(sample_w=lambda _, key, n: jnp.ones((n, LATENT_DIM)))

OPTIONS = [
    ("fedapen", {"adapt_every": 1}, "adapt_every is 1; .* integer of at least 2"),
    ("fedavg", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
    ("fedclassavg", {"mu": -1}, "mu is -1; .* at least 0"),
    ("fedclassavg", {"temperature": 0}, "temperature is 0; .* above 0"),
    ("fedclassavg", {"variant": "official"}, "variant is 'official'; .* 'paper' or 'released'"),
    ("fd", {"regulariser": "kl"}, "regulariser is 'kl'; .* 'mse_logits' or 'soft_cross_entropy'"),
    ("feddropout", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
    ("fedgen", {"noise_dim": 0}, "noise_dim is 0; .* integer of at least 1"),
    ("fedgen", {"server_steps": 0}, "server_steps is 0; .* integer of at least 1 or None"),
    ("fedgen", {"variant": "code"}, "variant is 'code'; .* 'paper' or 'released'"),
    ("fedgh", {"server_batch_size": 0}, "server_batch_size is 0; .* integer of at least 1"),
    ("fedgh", {"server_epochs": 0}, "server_epochs is 0; .* integer of at least 1"),
    ("fedkd", {"end": 1.2}, "end is 1.2; .* above 0 and at most 1"),
    ("fedkd", {"rounds": 0}, "rounds is 0; .* integer of at least 1"),
    ("fedkd", {"start": 0}, "start is 0; .* above 0 and at most 1"),
    ("fedkd", {"variant": "official"}, "variant is 'official'; .* 'paper' or 'released'"),
    ("fedktl", {"bandwidths": (10.0, -1.0)}, r"bandwidths is \(10.0, -1.0\); .*'median',"),
    ("fedktl", {"classifier": "mlp"}, "classifier is 'mlp'; .* 'etf' or 'head'"),
    ("fedktl", {"clip_norm": -1.0}, "clip_norm is -1.0; .* at least 0"),
    ("fedktl", {"generator": CONSTANT}, "generator 'tiny' .* spread 0.0; .* above 0"),
    ("fedktl", {"latents": "own"}, "latents is 'own'; .* 'raw' or 'spread'"),
    ("fedktl", {"server_epochs": 0}, "server_epochs is 0; .* integer of at least 1"),
    ("fedktl", {"source": "none"}, r"source is 'none'; did you mean 'noise'\? .* 'prototypes'"),
    ("fedktl", {"transfer": "latents"}, "transfer is 'latents'; .* 'pairs' or 'images'"),
    ("fedktl", {"variant": "code"}, "variant is 'code'; .* 'paper' or 'released'"),
    ("fedproto", {"variant": "official"}, "variant is 'official'; .* 'paper' or 'released'"),
    ("fedproto", {"weighting": "size"}, "weighting is 'size'; .* 'uniform' or 'samples'"),
    ("fedral", {"blocks": (2, 0)}, r"blocks is \(2, 0\); .* at least 1 or a tuple"),
    ("fedral", {"inference": "both"}, "inference is 'both'; .* 'own' or 'global'"),
    ("fedral", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
    ("fedrolex", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
    ("fedssa", {"mu": 1.5}, r"mu is 1\.5; .* from 0 to 1"),
    ("fedssa", {"owners": "all"}, "owners is 'all'; .* 'stored', 'uploaded' or 'summed'"),
    (
        "fedssa",
        {"owners": "summed", "clock": "round", "hide_classes": True},
        "owners is 'summed', which counts the clients that hold a class, and hide",
    ),
    ("fedssa", {"stable_rounds": 0}, "stable_rounds is 0; .* integer of at least 1"),
    ("fedtgp", {"server_batch_size": 0}, "server_batch_size is 0; .* integer of at least 1"),
    ("fedtgp", {"server_epochs": 0}, "server_epochs is 0; .* integer of at least 1"),
    ("fedtgp", {"variant": "code"}, "variant is 'code'; .* 'paper' or 'released'"),
    ("fml", {"alpha": 1.5}, r"alpha is 1\.5; .* from 0 to 1"),
    ("fml", {"beta": -0.1}, r"beta is -0\.1; .* from 0 to 1"),
    ("fml", {"variant": "official"}, "variant is 'official'; .* 'paper' or 'released'"),
    ("heterofl", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
    ("lg_fedavg", {"weighting": "size"}, "weighting is 'size'; .* 'samples' or 'uniform'"),
]


def of_models(**models):
    return make_federation(models, (2, 2, 1), 4, num_clients=2)


FEDERATIONS = {
    "alike": tiny.linear_federation(4, 6, clients=2),
    "one": tiny.linear_federation(4, 6, clients=2, buckets=1),
    "slices": sliced_federation(),
    "widths differ": of_models(a=mlp(4, (4,)), b=mlp(4, (5,))),
    "deep head": of_models(deep=SplitModel(tiny.Flat(3), DenseHead((4,), 4))),
}
NO_FIT = [
    ("fedavg", {}, "alike", "one architecture for all clients, got linear0, linear1"),
    ("fedclassavg", {}, "widths differ", "the heads of all models must be equal"),
    ("feddropout", {}, "alike", "feddropout trains slices of one network"),
    ("fedgen", {}, "widths differ", "the heads of all models must be equal"),
    ("fedgh", {}, "widths differ", "the heads of all models must be equal"),
    ("fedktl", {"dim": 3}, "alike", "dim is 3; an ETF of 4 classes needs at least 4"),
    (
        "fedktl",
        {"source": "labels", "generator": GENERATOR._replace(num_labels=3)},
        "alike",
        "generator 'tiny' knows 3 classes; .* at least 4",
    ),
    (
        "fedktl",
        {"source": "labels", "generator": GENERATOR._replace(conditional=None)},
        "alike",
        "needs a conditional one with at least 4",
    ),
    ("fedl2g", {"guide": "features"}, "widths differ", "width"),
    ("fedproto", {}, "widths differ", "feature width"),
    ("fedral", {}, "widths differ", "feature width"),
    ("fedral", {"blocks": 4}, "alike", "blocks is 4; .* divisor of the models' 6 features"),
    (
        "fedral",
        {"byte_budget": (48.0, 23.0)},
        "alike",
        "byte_budget is 23.0; .* at least 24, the bytes of the smallest upload",
    ),
    ("fedrolex", {}, "alike", "fedrolex trains slices of one network"),
    ("fedssa", {}, "deep head", "one linear layer, but the head is made of fc1, fc2"),
    ("fedssa", {}, "widths differ", "the heads of all models must be equal"),
    ("heterofl", {}, "alike", "heterofl trains slices of one network"),
    ("lg_fedavg", {}, "widths differ", "the heads of all models must be equal"),
]
FIT = [
    *((name, {}, "alike") for name in ("fedclassavg", "fedgen", "fedgh", "fedproto", "fedssa")),
    ("fedavg", {}, "one"),
    ("fedktl", {}, "alike"),
    ("fedl2g", {}, "widths differ"),
    ("fedral", {"blocks": (1, 2, 3, 6)}, "alike"),
    ("lg_fedavg", {}, "alike"),
    *((name, {}, "slices") for name in ("feddropout", "fedrolex", "heterofl")),
]


def made(name: str, options: dict):
    given = {"generator": GENERATOR} if name == "fedktl" else {}
    return METHODS[name](TRAINING, **given | options)


@pytest.mark.parametrize("name, options, words", OPTIONS)
def test_options(name, options, words):
    with pytest.raises(ValueError, match=words) as error:
        made(name, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, options, federation, words", NO_FIT)
def test_federations(name, options, federation, words):
    method = made(name, options)
    with pytest.raises(ValueError, match=words) as error:
        method.check(FEDERATIONS[federation])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, options, federation", FIT)
def test_what_is_taken(name, options, federation):
    made(name, options).check(FEDERATIONS[federation])
