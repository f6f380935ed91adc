"""The typed form of a config, its form in config files and config.json, and missing options."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.check.options import hints_of
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.config_files import read_config_file, shipped
from fedjax_ht.lab.config.sections import Config, DevicesConfig, PrivacyConfig, TrainingConfig
from fedjax_ht.lab.config.typed import to_json, to_plain
from fedjax_ht.lab.configs import quickstart, quickstart_fedtgp
from fedjax_ht.lab.runs.method import local_training, simulation_options
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.trust.options import Attack, Privacy


@pytest.mark.parametrize("name", shipped())
def test_config_json_holds_what_a_config_file_says(name):
    config = read_config_file(name)
    written = to_json(config)
    assert to_json(typed_config(written)) == written  # read again
    assert typed_config(config) == config and typed_config(config) is not config


def test_the_defaults_are_those_of_the_base_config():
    plain = to_json(base_config())
    for section in ("method", "partition"):
        plain[section]["options"] = {}
    assert to_json(Config()) == plain


def test_missing_values_are_none():
    config = base_config()
    typed = typed_config(config)
    assert typed.training.steps is typed.devices is typed.model.shared is typed.attack.kind is None
    assert to_plain(typed)["training"]["steps"] == 0 and to_plain(typed)["model"]["shared"] == ""
    config.training.steps, config.devices = 7, None
    typed = typed_config(config)
    assert (typed.training.steps, typed.devices) == (7, None)
    assert to_plain(typed)["devices"] == 0


def test_numbers_of_numpy_are_pythons():
    training = TrainingConfig(epochs=np.int32(3), learning_rate=np.float64(0.5))
    assert type(training.epochs) is int and to_json(training)["learning_rate"] == 0.5


def test_a_recipe_has_all_that_its_section_says():
    training = TrainingConfig(batch_size=3, epochs=4, steps=5, shuffle=False, drop_remainder=False)
    recipe = local_training(training)
    named = {field.name for field in dataclasses.fields(LocalTraining)} & set(vars(training))
    assert named == {
        *("optimizer", "batch_size", "epochs", "steps", "shuffle", "drop_remainder"),
        *("augmentation", "schedule"),
    }
    for name in named - {"optimizer", "augmentation", "schedule"}:
        assert getattr(recipe, name) == getattr(training, name)


@pytest.mark.parametrize(
    ("section", "kind", "differing"),
    [
        # a config file has 0 for steps that are not given
        (TrainingConfig, LocalTraining, {"optimizer", "augmentation", "schedule", "steps"}),
        (PrivacyConfig, Privacy, {"unit"}),  # of no privacy there is no Privacy
        (DevicesConfig, Profile, {"available", "flops", "up", "down"}),
    ],
)
def test_a_field_that_is_declared_twice_is_the_same(section, kind, differing):
    hints, of_library = hints_of(section), hints_of(kind)
    shared = hints.keys() & of_library.keys()
    assert differing < shared
    defaults = vars(kind)
    if issubclass(kind, tuple):
        defaults = kind._field_defaults
    for name in shared - differing:
        assert hints[name] == of_library[name] and getattr(section, name) == defaults[name], name


def test_the_simulations_options_have_the_defaults_of_a_config():
    assert simulation_options(Config()) == SimulationOptions()


def test_steps_are_tuples_however_they_are_written():
    config = base_config()
    config.robust, config.uplink = ("norm_bound/2.0", "median"), ("gaussian_noise/0.05/0.2",)
    typed = typed_config(config)
    assert typed.robust == (("norm_bound", 2.0), ("median",))
    config.robust, config.uplink = typed.robust, (("gaussian_noise", 0.05, 0.2),)
    assert typed_config(config) == typed


def test_a_field_is_checked_when_it_is_set():
    config = base_config()
    for set_field in (
        lambda: dataclasses.replace(config, devices=-1),
        lambda: setattr(config, "devices", -1),
        lambda: config.update({"devices": -1}),
        lambda: Config(devices=-1),
    ):
        with pytest.raises(ValueError, match=r"^devices is -1; it must be an integer of at least"):
            set_field()
    with pytest.raises(AttributeError, match=r"^unknown config field 'training.lr'; did you mean"):
        config.training.lr = 0.1
    with pytest.raises(ValueError, match=r"^unknown config field 'training.lr'; did you mean"):
        config.update({"training": {"lr": 0.1}})
    config.training.learning_rate, config.attack = 1, Attack("noise", 0.5)
    assert type(config.training.learning_rate) is float and config.attack.kind == "noise"


class ConfigDict(dict):
    """An object with to_dict, as ml_collections' ConfigDict has."""

    def to_dict(self):
        return dict(self)


def test_what_can_be_made_a_dict_is_taken():
    fields = ConfigDict(rounds=3, training={"epochs": 2}, attack={"kind": "none"})
    config = typed_config(fields)
    assert (config.rounds, config.training.epochs, config.attack.kind) == (3, 2, None)
    with pytest.raises(ValueError, match=r"^unknown config field 'ruonds'; did you mean 'rounds'"):
        typed_config(ConfigDict(ruonds=3))


def test_options_of_a_mapping_keep_the_others():
    config = typed_config(quickstart_fedtgp.get_config())
    before, split = dict(config.method.options), dict(config.partition.options)
    config.update({"method": {"options": {"tau": 15.0}}, "partition": {"options": {"alpha": 1.0}}})
    assert config.method.options == before | {"tau": 15.0}
    assert config.partition.options == split | {"alpha": 1.0}
    config.update({"partition": {"kind": "iid", "options": {"train_share": 0.5}}})
    assert config.partition.options == {"train_share": 0.5}


def test_an_argument_for_another_split_keeps_its_seeds():
    config = quickstart.get_config("partition=pathological")
    assert config.partition.per_trial and config.partition.kind == "pathological"
    assert "classes_per_client" in config.partition.options
