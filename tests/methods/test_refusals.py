"""Options and federations that methods refuse before anything is compiled, each in one line."""

from typing import Literal, get_args, get_origin

import jax.numpy as jnp
import pytest

from fedjax_ht.check.options import options_of
from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods import METHODS
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.split import DenseHead
from tests import tiny
from tests.federations import TRAINING
from tests.generators_tiny import LATENT_DIM, tiny_generator

GENERATOR = tiny_generator()
CONSTANT = GENERATOR._replace(sample_w=lambda _, key, n: jnp.ones((n, LATENT_DIM)))
FEW, PLAIN = GENERATOR._replace(num_labels=3), GENERATOR._replace(conditional=None)
BY_LABEL = {"source": "labels"}
SUMMED = {"owners": "summed", "clock": "round", "hide_classes": True}


def words_of(annotation) -> list[str]:
    """The texts that an annotation allows by name."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for part in get_args(annotation) for word in words_of(part)]


CHOICES = [
    (name, p.name)
    for name in METHODS
    for p in list(options_of(METHODS[name]).values())[1:]
    if words_of(p.annotation)
]


def of_models(**models):
    return make_federation(models, (2, 2, 1), 4, num_clients=2)


FEDERATIONS = {
    "alike": tiny.linear_federation(4, 6, clients=2),
    "widths differ": of_models(a=mlp(4, (4,)), b=mlp(4, (5,))),
    "deep head": of_models(deep=SplitModel(tiny.Flat(3), DenseHead((4,), 4))),
}
REFUSED = [  # beyond the annotations of options
    ("fedktl", {"generator": CONSTANT}, "alike", "generator 'tiny' .* spread 0.0; .* above 0"),
    ("fedssa", SUMMED, "alike", "owners is 'summed', which counts the clients that hold a class"),
    ("fedavg", {}, "alike", "one architecture for all clients, got linear0, linear1"),
    ("fedclassavg", {}, "widths differ", "all models must have the same head"),
    ("feddropout", {}, "alike", "feddropout trains slices of one network"),
    ("fedgen", {}, "widths differ", "all models must have the same head"),
    ("fedgh", {}, "widths differ", "all models must have the same head"),
    ("fedktl", {"dim": 3}, "alike", "dim is 3; an ETF of 4 classes needs at least 4"),
    ("fedktl", BY_LABEL | {"generator": FEW}, "alike", "knows 3 classes; .* at least 4"),
    ("fedktl", BY_LABEL | {"generator": PLAIN}, "alike", "needs a conditional one with at least 4"),
    ("fedl2g", {"guide": "features"}, "widths differ", "width"),
    ("fedproto", {}, "widths differ", "feature width"),
    ("fedral", {}, "widths differ", "feature width"),
    ("fedral", {"blocks": 4}, "alike", "blocks is 4; .* divisor of the models' 6 features"),
    ("fedral", {"byte_budget": (48.0, 23.0)}, "alike", "byte_budget is 23.0; .* at least 24,"),
    ("fedrolex", {}, "alike", "fedrolex trains slices of one network"),
    ("fedssa", {}, "deep head", "one linear layer, but the head is made of fc1, fc2"),
    ("fedssa", {}, "widths differ", "all models must have the same head"),
    ("heterofl", {}, "alike", "heterofl trains slices of one network"),
    ("lg_fedavg", {}, "widths differ", "all models must have the same head"),
]


def made(name: str, options: dict):
    given = {"generator": GENERATOR} if name == "fedktl" else {}
    return METHODS[name](TRAINING, **given | options)


@pytest.mark.parametrize("name, option", CHOICES)
def test_choices(name, option):
    """Numbers are in tests/lab/runs/test_every_number.py."""
    with pytest.raises(ValueError, match=rf"^{option} is 'size'; .*[iI]t must be .*'") as error:
        made(name, {option: "size"})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, options, federation, words", REFUSED)
def test_options_and_federations(name, options, federation, words):
    with pytest.raises(ValueError, match=words) as error:
        made(name, options).check(FEDERATIONS[federation])
    assert "\n" not in str(error.value)


def test_what_is_taken():
    made("fedl2g", {}).check(FEDERATIONS["widths differ"])
    made("fedral", {"blocks": (1, 2, 3, 6)}).check(FEDERATIONS["alike"])
