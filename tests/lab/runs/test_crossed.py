"""A comparison over crossed seeds: its cells and its table."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.runs.compare import components, run_splits
from fedjax_ht.lab.runs.train import GaveUp, Result
from tests.runs import config_of

RNG = np.random.default_rng(3)
SPLITS, MODELS = np.array([[-3.0], [0.0], [3.0]]), np.array([-1.0, 0.0, 1.0, 0.0])


def test_components_are_the_mean_squares_written_out():
    cells = RNG.normal(70, 2, (3, 4)) + SPLITS
    rows, columns, mean = cells.mean(1), cells.mean(0), cells.mean()
    rest = sum(
        (cells[s, k] - rows[s] - columns[k] + mean) ** 2 for s in range(3) for k in range(4)
    ) / (2 * 3)
    of_split = (4 * sum((rows - mean) ** 2) / 2 - rest) / 4
    of_model = max(0.0, (3 * sum((columns - mean) ** 2) / 3 - rest) / 3)
    error = of_split / 3 + of_model / 4 + rest / 12
    expected = [mean, *np.sqrt([of_split, of_model, rest, error])]
    assert components(cells) == pytest.approx(expected)


def test_effects_that_add_up_leave_no_rest_and_a_negative_estimate_is_zero():
    _, split, model, rest, _ = components(80 + SPLITS + MODELS)
    assert rest == pytest.approx(0) and split == pytest.approx(3)
    assert model == pytest.approx(np.std(MODELS, ddof=1))
    assert components(np.array([[1.0, -1.0], [-1.0, 1.0]]))[1:4] == (0, 0, 2)


def test_the_estimates_are_right_on_average():
    draws = [
        RNG.normal(0, 3, (3, 1)) + RNG.normal(0, 2, 3) + RNG.normal(0, 1, (3, 3))
        for _ in range(3000)
    ]
    estimate = np.array([components(cells) for cells in draws])
    assert np.mean(estimate[:, 1:4] ** 2, 0) == pytest.approx([9, 4, 1], rel=0.1)
    # the error is that of the mean over other splits and seeds
    assert np.mean(estimate[:, 4] ** 2) == pytest.approx(np.var(estimate[:, 0]), rel=0.1)


def written(config, folder):
    """A run that trained nothing: local training is right by split and seed, LG-FedAvg 0.5 less."""
    histories = {"local": [], "lg_fedavg": []}
    for trial in range(config.trials):
        accuracy = 0.5 + config.partition.seed / 10 + trial / 100
        row = {"round": 1, "trial": trial}
        histories["local"].append([row | {"accuracy": accuracy}])
        histories["lg_fedavg"].append([row | {"accuracy": accuracy - 0.005}])
    return Result(histories, "", [folder / "config.json"], None)


def test_every_pair_is_a_cell(tiny_config, tmp_path):
    config = dataclasses.replace(typed_config(config_of(tiny_config)), trials=2)
    text = run_splits(config, 2, tmp_path, written)[0].markdown()
    assert "| lg_fedavg minus local | -0.50 | 0.00 | 0.00 |" in text
    assert "| local | 65.50 | 7.07 | 0.71 | 0.00 |" in text


def test_a_split_in_which_an_entry_gives_up_does_not_stop_the_others(tiny_config, tmp_path):
    config = dataclasses.replace(typed_config(config_of(tiny_config)), trials=2)

    def run_split(of_split, folder):
        if of_split.partition.seed == config.partition.seed:
            raise GaveUp("silence", written(of_split, folder))
        return written(of_split, folder)

    text, silence = run_splits(config, 2, tmp_path, run_split)
    assert text == run_splits(config, 2, tmp_path, written)[0] and str(silence) == "silence"


@pytest.mark.slow
def test_the_command_runs_every_pair(run_module, tiny_config, tmp_path):
    arguments = f"--config={tiny_config}:runlocal", "--methods=local,lg_fedavg", "--split_seeds=2"
    done = run_module("compare", *arguments, "--trials=2", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "± split" in done.stdout
    for seed in (1, 2):
        assert (tmp_path / f"split_{seed}" / "report.html").exists()
    done = run_module("compare", *arguments, "--trials=1", f"--workdir={tmp_path}")
    assert done.returncode == 2 and "--trials is 1; with --split_seeds" in done.stderr
