"""Names that were meant, and meanings of options by their docstrings."""

import functools

import pytest

from fedjax_ht.check.docstrings import documented_by, meanings
from fedjax_ht.check.names import listed_clients, nearest, unknown, unknown_option

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
    "scoring.batch_size",
]


def base(weight, steps):
    """Averages.

      formula: an indented line that is no entry.

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
        ("scoring.bs", "scoring.batch_size"),
        ("decay", "training.weight_decay"),
        ("clients", "partition.num_clients"),
        ("trainig.epochs", "training.epochs"),
        ("num_epochs", "training.epochs"),
        ("zzz", None),
        ("r", None),  # the initial of one word is no abbreviation
    ],
)
def test_a_field_that_was_meant(name, known):
    assert nearest(name, FIELDS) == known


def test_an_unknown_name_is_answered_with_the_known_ones_or_where_they_are():
    assert unknown("method", "x", ["ab", "cd"]) == "unknown method 'x'; there are ab, cd"
    assert unknown("method", "x", ["ab"], "see there") == "unknown method 'x'; see there"
    assert unknown("method", "abd", ["abc"]).endswith("; did you mean 'abc'? There are abc")
    assert unknown_option("fd", "x", []) == "fd has no option 'x'; it has none"


def test_five_clients_are_named_and_the_others_counted():
    assert listed_clients([2]) == "client 2"
    assert listed_clients(range(5)) == "clients 0, 1, 2, 3, 4"
    assert listed_clients(range(7)) == "clients 0, 1, 2, 3, 4 and 2 more"
