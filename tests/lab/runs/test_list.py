"""fedjax-ht list: every option and field with its default, the values it may have, its meaning."""

import functools

import pytest

from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.config.typed import paths
from fedjax_ht.lab.runs import list as listing
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.registry import FACTORIES


def without_meaning(options) -> list[str]:
    return [option.name for option in options if len(option.meaning) < 10]


def test_every_option_of_methods_and_partitions_has_its_meaning():
    for name in (*METHODS, "fedrolex+dfrd", "fedprox+fedyogi"):
        assert without_meaning(listing.of_method(name)) == [], name
    for kind in PLANS | PARTITIONS:
        options = listing.of_partition(kind)
        assert without_meaning(options) == [], kind
        assert {option.name for option in options} == set(partition_options(kind))


def test_every_field_of_a_config_has_its_meaning():
    fields = list(listing.fields())
    assert without_meaning(fields) == []
    sections = {path.rpartition(".")[0] for path in paths(base_config())}
    leaves = {path for path in paths(base_config()) if path not in sections}
    outer = {"method.options", "partition.options"}
    leaves = {path for path in leaves if path.rpartition(".")[0] not in outer} | outer
    assert {field.name for field in fields} == leaves


def test_a_method_by_its_name_shows_values_and_meanings():
    lines = listing.listed(["methods", "fedtgp"], 100).splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip().startswith("tau=100.0"))
    assert "a number of at least 0; a comparison searches from 1 to 100" in lines[place]
    assert lines[place + 1].strip() == "cap of the adaptive margin."
    narrow = listing.listed(["methods", "fedtgp"], 60)
    assert all(len(line) <= 60 for line in narrow.splitlines()) and "training" not in narrow
    for words, message in (
        (["methods", "fedtpg"], r"unknown method 'fedtpg'; did you mean 'fedtgp'\?"),
        (["method"], r"unknown kind 'method'; did you mean 'methods'\?"),
    ):
        with pytest.raises(ValueError, match=message):
            listing.listed(words, 60)


def test_a_method_behind_a_base_shows_the_options_of_both():
    text = listing.listed(["methods", "fedprox+fedadam"], 100)
    assert "mu=0.01" in text and "server_tau=0.001" in text
    with pytest.raises(ValueError, match="the server of fedproto does not only average"):
        listing.listed(["methods", "fedproto+fedadam"], 100)


def test_a_method_registered_by_a_user_shows_its_meanings(monkeypatch):
    """Also as a function with options filled in, or one that passes options on."""
    monkeypatch.setitem(FACTORIES, "mine", functools.partial(METHODS["fedproto"], variant="paper"))
    options = {option.name: option for option in listing.of_method("mine")}
    assert options["weight"].meaning.startswith("lambda, the regulariser's weight")


def test_fields_are_found_by_a_text_in_name_or_meaning():
    text = "training.learning_rate=0.01  a number above 0\n    Step size of the optimiser."
    assert listing.listed(["fields", "learning_rate"], 100).startswith(text)
    assert text in listing.listed(["fields", "step size"], 100)
    assert len(listing.listed(["fields"], 100).splitlines()) > 150
    line = r"unknown config field 'lr'; did you mean 'training.learning_rate'\? `fedjax-ht list fields`"
    with pytest.raises(ValueError, match=line):
        listing.listed(["fields", "lr"], 100)
