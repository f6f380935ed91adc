"""Entries: how they are written, what they stand for, what a run's folder remembers of them."""

import pytest

from fedjax_ht.lab.config.base import base_config, method_config, typed_config
from fedjax_ht.lab.config.entries import changes, described, elsewhere, entries_of, only, preset
from fedjax_ht.lab.configs import quickstart, quickstart_fedtgp
from fedjax_ht.lab.runs.folder import read_folder, write_folder
from fedjax_ht.lab.runs.identity import run_folder
from fedjax_ht.lab.runs.plan import plan
from tests.lab.runs.folders import edited

TUNED = preset("fedtgp:tau=3:training.learning_rate=0.05", "validation, 9 settings")


def config_of(*entries, presets=(TUNED,), **fields):
    config = only(base_config(), (*presets, *entries))
    config.update(fields)
    return config


def test_an_entry_has_all_options_of_its_method():
    plain, weighted = entries_of(typed_config(config_of("fedproto", "fedproto:weight=3")))
    assert plain.options == method_config("fedproto").options and changes(plain) == {}
    assert weighted.options == plain.options | {"weight": 3.0}
    assert weighted.label == "fedproto:weight=3"
    (blocks,) = entries_of(typed_config(config_of("fedral:blocks=(2,4)")))
    assert blocks.options["blocks"] == (2, 4)
    for repeated in ("fedproto:weight=3:weight=5", "fedproto:weight=3:method.weight=5"):
        with pytest.raises(ValueError, match=f"entry '{repeated}' sets weight twice; give it one"):
            entries_of(typed_config(config_of(repeated)))


def test_an_option_that_is_none_is_not_given():
    """A run's folder has its default, and a run without None there could not resume."""
    usual = method_config("fedtgp").options
    config = config_of("fedtgp:tau=None")
    (entry,) = entries_of(config)
    assert entry.options == usual and entry.label == "fedtgp:tau=None"
    config = base_config()
    config.method.options.tau = None
    (entry,) = entries_of(config)
    assert entry.options == usual


def test_training_and_models_may_be_an_entrys_own():
    config = config_of(
        "local", "local:training.learning_rate=0.2:training.epochs=2:model.group=cnn4"
    )
    first, other = plan(config).runs.values()
    assert (len(first.federation.buckets), len(other.federation.buckets)) == (5, 1)
    training, group = other.config.training, other.config.model.group
    assert (training.learning_rate, training.epochs, group) == (0.2, 2, "cnn4")
    assert config.training.learning_rate == 0.01 and config.model.group == "cnn5"
    assert [run.method.training.epochs for run in (first, other)] == [1, 2]


def test_tuned_entries_are_marked_in_every_spelling():
    names = (
        "fedtgp",
        "fedtgp@tuned",
        "fedtgp:tau=3.0:training.learning_rate=0.05",
        "fedtgp@tuned:weight=2",
    )
    plain, tuned, written, beyond = entries_of(typed_config(config_of(*names)))
    assert tuned.settings == written.settings and tuned.tuned == "validation, 9 settings"
    assert plain.tuned == beyond.tuned == "" and beyond.training == {"learning_rate": 0.05}
    lines = [described(entry, base_config()) for entry in (plain, tuned, beyond)]
    assert lines[0] == "fedtgp: at its defaults"
    expected = "fedtgp@tuned: tau=3.0, training.learning_rate=0.05; tuned on validation, 9 settings"
    assert lines[1] == expected
    assert lines[2].endswith("; their origin is not recorded")


PLAYED = {
    "": {"partition.seed": 7, "rounds": 3, "dataset.data_dir": "elsewhere"},
    "searched on fashion_mnist_10k, not on these data": {"dataset.name": "csv:mine.csv"},
    "searched on fashion_mnist_10k, not on these data ": {"dataset.subset": 500},
    "searched on the split practical, alpha 1.0, train_share 0.2, val_share 0.2, not on this one": {
        "partition.options.alpha": 0.1
    },
    "searched with the models mlp2, not with these": {"model.group": "cnn5"},
}


@pytest.mark.parametrize("origin", PLAYED)
def test_settings_that_were_searched_elsewhere_say_so(tmp_path, origin):
    config = typed_config(quickstart.get_config())
    config.update(PLAYED[origin])
    origin = origin.strip()
    remembered = remember(config, tmp_path)
    for played in (config, remembered):
        for entry in entries_of(played):
            assert elsewhere(entry, played) == origin
            line = described(entry, played)
            assert line.endswith(f"; {origin}") if origin else "; tuned on 9 settings" in line


def test_without_entries_it_is_the_method_and_what_it_is_compared_with():
    config = quickstart_fedtgp.get_config()
    first, second = entries_of(typed_config(config))
    assert (first.label, second.label) == ("fedtgp", "local")
    assert first.tuned == config.entries[0].tuned != ""
    config.entries = (config.entries[0], "fedtgp", "local")  # of equal labels the first
    assert entries_of(typed_config(config)) == (first, second)


def test_a_setting_gives_a_method_what_its_paper_leaves_open():
    fixed = preset("fedral:blocks=5")
    plain, other = entries_of(config_of("fedral", "fedral:inference=global", presets=[fixed]))
    assert plain.options["blocks"] == other.options["blocks"] == 5
    assert other.options["inference"] == "global"


def remember(config, folder):
    config = typed_config(config)
    write_folder(run_folder(config, entries_of(config), folder, {}))
    return typed_config(read_folder(folder).fields)


def test_a_run_remembers_every_entry_that_its_folder_holds(tmp_path):
    remember(config_of("local", "fedtgp@tuned"), tmp_path)
    config = config_of("local", "fedktl:bandwidths=(1.0,2.0)")
    remembered = remember(config, tmp_path)
    expected = ["local", "fedtgp@tuned", "fedktl:bandwidths=(1.0,2.0)"]
    assert [entry["label"] for entry in remembered.entries] == expected
    again = {entry.label: entry for entry in entries_of(remembered)}
    for entry in entries_of(typed_config(config)):
        assert again[entry.label] == entry


def test_an_entry_of_the_same_label_must_be_the_same(tmp_path):
    remember(config_of("local", "fedtgp@tuned"), tmp_path)
    other = config_of("fedtgp@tuned", presets=[preset("fedtgp:tau=4", "validation")])
    with pytest.raises(
        ValueError, match=r"another fedtgp@tuned \(method.*\.tau 3\.0 instead of 4\.0"
    ):
        remember(other, tmp_path)
    remember(config_of("fedproto"), tmp_path)  # another one may join


def test_an_option_that_an_earlier_version_did_not_know_has_its_default(tmp_path):
    config = config_of("fedtgp:tau=3")
    remember(config, tmp_path)
    with edited(tmp_path / "config.json") as content:
        del content["entries"][0]["options"]["server_epochs"]
    (entry,) = entries_of(typed_config(config))
    other = entry._replace(options=entry.options | {"server_epochs": 7})
    with pytest.raises(ValueError, match=r"tau=3 \(.*\.server_epochs 100 instead of 7\)"):
        run_folder(typed_config(config), [other], tmp_path, {})
    assert remember(config, tmp_path).entries[0]["options"]["server_epochs"] == 100
