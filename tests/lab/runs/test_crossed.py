"""A comparison over crossed seeds: its flags, its cells and its files."""

import csv

import numpy as np
import pytest

from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.runs import crossed
from fedjax_ht.lab.runs.crossed import Seeds, chosen_seeds, run_crossed, split_configs
from fedjax_ht.lab.runs.train import Result
from tests.runs import config_of


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((3, None, None), "--model_seeds is None; crossed seeds need --split_seeds and --model_"),
        ((None, 3, None), "--split_seeds is None"),
        ((1, 3, None), "--split_seeds is 1; .* each of at least 2"),
        ((3, 0, None), "--model_seeds is 0"),
        ((3, 3, 5), "--trials is given beside --model_seeds"),
    ],
)
def test_seeds_that_cannot_be_crossed(flags, message):
    with pytest.raises(ValueError, match=message):
        chosen_seeds(*flags)


def test_flags_that_name_no_seeds_cross_none():
    assert chosen_seeds(None, None, 3) is None
    assert chosen_seeds(2, 3, None) == Seeds(2, 3)


def test_all_trials_of_a_split_have_it(tiny_config):
    config = config_of(tiny_config)
    config.partition.per_trial = True
    made = split_configs(typed_config(config), Seeds(2, 3))
    assert [(split.trials, split.partition.seed, split.partition.per_trial) for split in made] == [
        (3, 1, False),
        (3, 2, False),
    ]


def written(config, folder):
    """A run that trained nothing: local training is right by split and seed, LG-FedAvg half a
    point less."""
    histories = {"local": [], "lg_fedavg": []}
    for trial in range(config.trials):
        accuracy = 0.5 + config.partition.seed / 10 + trial / 100
        row = {"round": 1, "trial": trial}
        histories["local"].append([row | {"accuracy": accuracy}])
        histories["lg_fedavg"].append([row | {"accuracy": accuracy - 0.005}])
    return Result(histories, "", [folder / "config.json"], None)


def test_every_pair_is_a_cell(tiny_config, tmp_path):
    shown = []
    config = typed_config(config_of(tiny_config))
    files = run_crossed(config, Seeds(2, 2), tmp_path, written, show_result=shown.append)
    assert [file.name for file in files] == ["seeds.csv", "seeds.md", "report.html"]
    rows = list(csv.DictReader(files[0].open()))
    cells = [(row["split_seed"], row["model_seed"], float(row["best"])) for row in rows[:4]]
    seeds = [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert [cell[:2] for cell in cells] == seeds and [row["entry"] for row in rows] == [
        *["local"] * 4,
        *["lg_fedavg"] * 4,
    ]
    assert np.allclose([cell[2] for cell in cells], [0.6, 0.61, 0.7, 0.71])
    assert "| lg_fedavg minus local | -0.50 |" in shown[0].markdown() == files[1].read_text()[:-1]


def test_a_folder_that_is_read_only_gets_no_file(tiny_config, tmp_path):
    config = typed_config(config_of(tiny_config))

    def read_only(config, folder):
        return written(config, folder)._replace(files=[])

    assert run_crossed(config, Seeds(2, 2), tmp_path, read_only) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_runs_every_pair(run_module, tiny_config, tmp_path):
    arguments = f"--config={tiny_config}:runlocal", "--methods=local,lg_fedavg", "--split_seeds=2"
    folder = f"--workdir={tmp_path}"
    done = run_module("compare", *arguments, "--model_seeds=2", folder)
    assert done.returncode == 0, done.stderr
    assert "| method x split |" in done.stdout and "seeds.csv" in done.stdout
    page = (tmp_path / "report.html").read_text()
    for seed in (1, 2):
        assert f"split_{seed}/report.html" in page
        assert (tmp_path / f"split_{seed}" / "report.html").exists()


def test_a_partition_that_has_one_split_is_refused(tiny_config, tmp_path, monkeypatch):
    config = typed_config(config_of(tiny_config))
    monkeypatch.setattr(
        crossed, "make_partitions", lambda config, dataset: (((np.arange(3),),),) * 2
    )
    with pytest.raises(ValueError, match="kind=dirichlet makes the same split by two of these"):
        run_crossed(config, Seeds(2, 2), tmp_path, None)
    assert not list(tmp_path.iterdir())
