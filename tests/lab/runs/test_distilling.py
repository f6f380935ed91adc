"""Distillation on a base by its name, through configs, comparisons and a whole run."""

import matplotlib.image
import pytest

from experiments.configs import (
    cifar10_sliced,
    fashion_mnist_distil,
    fashion_mnist_quarter,
    fashion_mnist_sliced,
)
from fedjax_ht.lab.config.base import base_config, method_config, typed_config
from fedjax_ht.lab.config.entries import chosen, entries_of
from fedjax_ht.lab.runs.compare import comparison
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import train_and_evaluate

TINY = {"iterations": 1, "generator_steps": 1, "student_steps": 1, "batch_size": 4, "noise_dim": 4}


def config_of(name: str, **options):
    config = base_config()
    config.method = method_config(name, **options)
    config.partition.num_clients = 4
    config.partition.options = {"alpha": 10.0}
    config.dataset.subset = 400
    config.model.update({"group": "conv4_quarter", "norm": "static_batch", "rates": "1,1/4"})
    config.scoring.state = "trained"
    return config


def test_methods_are_compared_by_their_composed_names():
    names = ["heterofl", "fedrolex+dfrd", "fedftg"]
    config = comparison(typed_config(config_of("fedrolex+dfrd", alpha=0.0)), names, 2)
    experiment = plan(config)
    assert list(experiment.runs) == [run.method.name for run in experiment.runs.values()] == names
    # as its paper has it
    assert experiment.runs["fedrolex+dfrd"].entry.options["alpha"] == 0.5 and config.trials == 2


def test_options_that_it_does_not_have():
    with pytest.raises(ValueError, match=r"fedrolex\+dfrd has no option 'base'; it has .*alpha, "):
        method_config("fedrolex+dfrd", base="fedavg")
    config = config_of("fedrolex+dfrd")
    config.method.options.update({"selection": "all"})
    with pytest.raises(ValueError, match="selection is 'all'"):
        plan(config)


FILES = (fashion_mnist_sliced, fashion_mnist_quarter, fashion_mnist_distil, cifar10_sliced)


@pytest.mark.parametrize("file", FILES)
def test_dense_is_given_the_label_wherever_it_is_compared(file):
    """DENSE is the config's method or an entry; an option chooses another merge."""
    assert file.get_config("method=dense,runlocal").method.options.merge == "mul"
    config = file.get_config()
    texts = ("dense", "fedavg+dense", "fedrolex+dense:merge=none", "fedrolex+dfrd")
    config.entries = chosen(config.entries, texts)
    _, *entries = entries_of(typed_config(config))
    assert [entry.options["merge"] for entry in entries] == ["mul", "mul", "none", "mul"]
    # the only one that squares the temperature
    expected = (4.0, True) if file is fashion_mnist_distil else (None, False)
    names = ("temperature", "temperature_squared")
    assert {tuple(entry.options[name] for name in names) for entry in entries} == {expected}


@pytest.mark.slow
def test_a_run_scores_the_global_model_and_shows_the_generators(tmp_path):
    config = config_of("fedrolex+dfrd", **TINY)
    config.rounds = 2
    config.dataset.image_size = 32
    config.training.steps = 2
    config.checkpoint.every = 1
    result = train_and_evaluate(config, tmp_path)
    last = result.histories["fedrolex+dfrd"][0][-1]
    assert 0 <= last["global_accuracy_head"] <= 1 and last["generator_loss"] > 0
    pictures = sorted((tmp_path / "fedrolex+dfrd" / "images").iterdir())
    assert [p.name for p in pictures] == ["00001.png", "00002.png"]
    assert matplotlib.image.imread(pictures[0]).std() > 0
