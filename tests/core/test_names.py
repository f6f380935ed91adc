"""Names that were meant, and meanings of options by their docstrings."""

import functools

import pytest

from fedjax_ht.core.docstrings import documented_by, meanings
from fedjax_ht.core.names import nearest

FIELDS = [
    "rounds",
    "training",
    "training.learning_rate",
    "training.weight_decay",
    "training.batch_size",
    "training.epochs",
    "partition.num_clients",
    "partition.options",
    "client_store",
    "evaluate.batch_size",
]


def base(weight, steps):
    """Averages.

    Args:
      weight: weight of the mean, which
        goes on.
      steps: steps of a round: ten.
      **more: others.

    Raises:
      ValueError: weight is negative.
    """


@documented_by(base)
def passing(steps, **more):
    """Passes options on.

    Args:
      steps: steps of its own.
    """


def test_meanings_are_the_entries_of_docstrings():
    assert meanings(base) == {
        "weight": "weight of the mean, which goes on.",
        "steps": "steps of a round: ten.",
        "**more": "others.",
    }
    expected = {**meanings(base), "steps": "steps of its own."}
    assert meanings(functools.partial(passing, steps=1)) == expected


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lr", "training.learning_rate"),
        ("training.LR", "training.learning_rate"),
        ("evaluate.bs", "evaluate.batch_size"),
        ("decay", "training.weight_decay"),
        ("clients", "partition.num_clients"),
        ("trainig.epochs", "training.epochs"),
        ("num_epochs", "training.epochs"),
        ("zzz", None),
    ],
)
def test_a_field_that_was_meant(name, known):
    assert nearest(name, FIELDS) == known
