"""Privacy from a config."""

import pytest

from fedjax_ht.lab.config.base import base_config, method_config, typed_config
from fedjax_ht.lab.runs.method import simulation_options
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.trust.options import Privacy
from tests.lab.runs.folders import refused
from tests.runs import config_of

pytest.importorskip("dp_accounting")


def test_a_config_says_what_is_private():
    config = base_config()
    assert simulation_options(typed_config(config)).privacy is None
    config.privacy.update({"unit": "upload", "clip": 0.5, "noise": 2.0})
    assert simulation_options(typed_config(config)).privacy == Privacy("upload", 0.5, 2.0, 1e-5)


def test_a_plan_has_methods_whose_clients_are_hidden_alone(tiny_config):
    config = config_of(tiny_config)
    config.privacy.unit = "client"
    with refused("privacy.unit is 'client', but clients of fedtgp"):
        plan(config)
    config.method = method_config("lg_fedavg")
    assert set(plan(config).runs) == {"lg_fedavg", "local"}
