"""The configs of FedTGP's CIFAR-10 splits."""

import pytest

from experiments.configs import cifar10_pathological, cifar10_practical
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import entries_of

CONFIGS = pytest.mark.parametrize("file", [cifar10_practical, cifar10_pathological])


@CONFIGS
def test_both_forms_of_both_methods_stand_beside_local_training(file):
    entries = entries_of(typed_config(file.get_config()))
    forms = {(entry.method, entry.options.get("variant")) for entry in entries}
    both = {
        (method, variant) for method in ("fedproto", "fedtgp") for variant in ("paper", "released")
    }
    assert forms == both | {("local", None)} and len(entries) == 5
    assert file.get_config().partition.num_clients == 20 and file.get_config().partition.per_trial


@CONFIGS
def test_a_method_that_is_named_runs_alone(file):
    assert [
        entry.method for entry in entries_of(typed_config(file.get_config("method=fedproto")))
    ] == ["fedproto"]
    assert file.get_config("method=fedproto,runlocal").rounds == 1
