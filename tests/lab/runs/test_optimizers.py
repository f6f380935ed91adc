"""Optimisers by their names in optax, and recipes of single architectures."""

import dataclasses
import inspect

import chex
import jax.numpy as jnp
import optax
import pytest

from fedjax_ht.lab.config.sections import TrainingConfig
from fedjax_ht.lab.runs.method import local_training, optimizer, recipes
from tests.lab.runs.folders import refused

WEIGHT, GRADIENT = jnp.array([1.0, -2.0]), jnp.array([0.5, 0.25])


def step(of: optax.GradientTransformation) -> jnp.ndarray:
    updates, _ = of.update(GRADIENT, of.init(WEIGHT), WEIGHT)
    return updates


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("optax:sgd/momentum=0.9", optax.sgd(0.1, momentum=0.9)),
        ("optax:adamw/b1=0.8/weight_decay=0.5", optax.adamw(0.1, b1=0.8, weight_decay=0.5)),
        ("optax:lion", optax.lion(0.1)),
    ],
)
def test_an_optimiser_of_optax(text, same):
    recipe = local_training(TrainingConfig(optimizer=text, learning_rate=0.1))
    chex.assert_trees_all_close(step(recipe.optimizer), step(same))


def test_decay_of_the_config_comes_before_it():
    training = TrainingConfig(optimizer="optax:sgd", learning_rate=0.1, weight_decay=0.5)
    chex.assert_trees_all_close(step(optimizer(training)), -0.1 * (GRADIENT + 0.5 * WEIGHT))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "adamw",
            r"'adamw'; did you mean 'optax:adamw'\? It must be sgd, adam, or an optax optimiser",
        ),
        ("optax:adamx", "'optax:adamx'; it must be sgd, adam, or an optax optimiser"),
        ("optax:jax", "it must be sgd, adam"),
        ("optax:clip", "it must be sgd, adam"),
        ("optax:adamw/beta=0.8", "optax.adamw has no option 'beta'; it has b1, b2"),
        ("optax:adamw/learning_rate=1", "optax.adamw has no option 'learning_rate'"),
        ("optax:adamw/b1=much", "'b1=much' is not a number"),
        ("optax:lbfgs", "which cannot be used: "),
        ("optax:lion/b1=0.9/b1=0.8", "'optax:lion/b1=0.9/b1=0.8'; give each of its numbers once"),
    ],
)
def test_what_is_no_optimiser_is_said_in_a_line(text, message):
    with refused(message):
        optimizer(TrainingConfig(optimizer=text))


@pytest.mark.parametrize("name", ["adamw", "lion", "rmsprop", "novograd", "adadelta"])
def test_numbers_in_its_text_are_bounded(name):
    for option, parameter in inspect.signature(getattr(optax, name)).parameters.items():
        if option == "learning_rate" or type(parameter.default) is not float:
            continue
        is_share = option in ("b1", "b2", "decay", "rho")
        for number in ("nan", "inf", "-inf", "1e999", "-0.1", *["1", "2", "1_0"] * is_share):
            with pytest.raises(ValueError, match=rf"optimizer: {option} is .*; it must be a numb"):
                optimizer(TrainingConfig(optimizer=f"optax:{name}/{option}={number}"))


@pytest.mark.parametrize("field", ["momentum", "beta1"])
def test_numbers_that_it_does_not_read_are_refused(field):
    training = dataclasses.replace(TrainingConfig(optimizer="optax:lion"), **{field: 0.5})
    with pytest.raises(ValueError, match=rf"training.{field} is 0.5, which optax:lion does not"):
        optimizer(training)


def test_recipes_of_single_architectures():
    of = (
        "resnet8:optimizer=optax:adamw/b1=0.8:batch_size=32",
        "cnn1:epochs=3:augmentation=('flip',)",
    )
    made = recipes(TrainingConfig(epochs=2, of=of))
    assert list(made) == ["*", "resnet8", "cnn1"]
    assert [recipe.batch_size for recipe in made.values()] == [10, 32, 10]
    assert [recipe.epochs for recipe in made.values()] == [2, 2, 3]
    assert made["cnn1"].augmentation is not None
    chex.assert_trees_all_close(
        step(made["resnet8"].optimizer), step(optax.adamw(0.01, b1=0.8)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (("cnn1",), "training.of has 'cnn1'; it must be NAME:KEY=VALUE"),
        (("*:epochs=3",), "each architecture once"),
        (("cnn1:epochs=3", "cnn1:epochs=4"), "'cnn1:epochs=4'; it must be .* each architecture"),
        (("cnn1:epoch=3",), "'cnn1:epoch=3': .*'training.epoch'; did you mean 'training.epochs'"),
        (("cnn1:epochs=0",), "'cnn1:epochs=0': training.epochs is 0; it must be"),
        (("cnn1:of=x",), "cannot be nested"),
    ],
)
def test_what_is_no_recipe_is_refused(of, message):
    with pytest.raises(ValueError, match=message):
        recipes(TrainingConfig(of=of))
