"""docs/coming_from_htfllib.md: its names are the code's, and the config there runs."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.core.method import Method
from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import paths
from fedjax_ht.lab.readers import dataset_names
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.methods import METHODS
from fedjax_ht.models import GROUPS
from tests.docs.test_examples import blocks, execute

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming_from_htfllib.md").read_text()
COLUMNS = set(re.findall(r"`([a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
PARTITION_KINDS = [*PLANS, *PARTITIONS]
# What is no name of a field, a method, a group, a partition, a data set or a column: ways to set
# things, files, values.
OTHERS = ("--workdir", "simulation.write_clients", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS=cpu")
OTHERS += (".pkl", "clients.csv", "classes.csv")
OTHERS += ("metrics.csv", "generator", "step/1/0.99", "received", "trained", "experiments.attack")
OTHERS += ("sweep --over", "compare --fair", "compare --entries=1/8", "merge")
OTHERS += ("track=wandb", "tensorboard", "mlflow", *Method._fields)


def is_known(name: str, cell: str) -> bool:
    """Returns True for a name that the code has; options are those of the cell's methods."""
    if option := re.fullmatch(r"method\.options\.(\w+)", name):
        owners = [method for method in METHODS if f"`{method}`" in cell]
        return bool(owners) and all(
            option[1] in inspect.signature(METHODS[method]).parameters for method in owners
        )
    if option := re.fullmatch(r"partition\.options\.(\w+)", name):
        kinds = [kind for kind in PARTITION_KINDS if f"`{kind}`" in cell]
        return bool(kinds) and all(option[1] in partition_options(kind) for kind in kinds)
    if re.fullmatch(r"-\w+( \d+)?", name):  # a flag of theirs
        return True
    known = [*paths(Config()), *METHODS, *GROUPS, *PARTITION_KINDS, *dataset_names()]
    return name in {*known, *COLUMNS, *OTHERS}


def test_names_in_the_last_column_are_those_of_the_code():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(lines) > 100
    for line in lines:
        ours = line.strip("|").split("|")[-1]
        unknown = [x for x in re.findall(r"`([^`]+)`", ours) if not is_known(x, ours)]
        assert unknown == [], line


def write_folders(root: Path) -> None:
    """Two clients' folders as generate_*.py writes them."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 40)):
        (root / split).mkdir(parents=True)
        for client in range(2):
            count //= client + 1
            data = {
                "x": rng.uniform(-1, 1, (count, 3, 32, 32)).astype(np.float32),
                "y": np.arange(count) % 4,
            }
            np.savez_compressed(root / split / f"{client}.npz", data=data)
    (root / "config.json").write_text(json.dumps({"num_clients": 2, "num_classes": 4}))


def test_the_config_and_the_number_of_theirs(tmp_path, monkeypatch, capsys, blank_pictures):
    config_file, best = blocks("coming_from_htfllib.md")
    config = execute(config_file)["get_config"]()
    assert config.dataset.name.startswith("client_folders:/")
    write_folders(tmp_path / "Cifar100")
    config.dataset.name = f"client_folders:{tmp_path / 'Cifar100'}"
    small = {"partition.num_clients": 2, "model.group": "mlp2", "model.feature_dim": 8}
    small |= {"rounds": 3, "trials": 2}
    config.update(small)
    folder = tmp_path / "checkpoints" / "runs" / "htfllib-seed0-trials3"
    result = train_and_evaluate(config, folder)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(best, {})
    runs = result.histories["fedtgp"]
    weighted = [max(row["accuracy_weighted"] for row in history) for history in runs]
    assert float(capsys.readouterr().out) == pytest.approx(sum(weighted) / 2) and len(runs) == 2
