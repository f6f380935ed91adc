"""The configs of FedKTL: the paper's numbers, and generators without the clients' classes."""

from pathlib import Path

import pytest

from experiments.configs import (
    cifar10_fedktl,
    cifar100_fedktl_paper,
    few_shot_fedktl,
    quickstart_fedktl,
    tiny_imagenet_100_fedktl,
    tiny_imagenet_fedktl,
    tiny_imagenet_few_shot_fedktl,
)
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import chosen, entries_of, only
from fedjax_ht.lab.configs import few_samples
from fedjax_ht.lab.generators import SHIPPED, npz
from fedjax_ht.lab.runs.plan import plan

CONFIGS = (
    cifar10_fedktl,
    cifar100_fedktl_paper,
    few_shot_fedktl,
    quickstart_fedktl,
    tiny_imagenet_100_fedktl,
    tiny_imagenet_fedktl,
    tiny_imagenet_few_shot_fedktl,
)
SNAPSHOT = Path(__file__).parents[1] / "generators" / "reference" / "styleganxl_t64.pkl"


@pytest.mark.parametrize("file", CONFIGS)
def test_weights_are_the_papers_whatever_the_generator(file):
    options = file.get_config().method.options
    weights = (options.mu, options.mse_weight, options.mmd_weight)
    assert weights == (50.0, 1.0, 1.0)
    assert (options.server_lr, options.scale, options.margin) == (0.01, 64.0, 0.5)
    assert file.get_config("method=local,runlocal").method.name == "local"


def test_the_papers_setting_takes_a_snapshot_by_its_path(tmp_path):
    config = cifar100_fedktl_paper.get_config()
    assert (config.model.group, config.partition.num_clients, config.rounds) == ("htfe8", 20, 1000)
    options = config.method.options
    assert config.shared_init and (options.variant, options.latents) == ("released", "raw")
    config.dataset.data_dir = str(tmp_path)
    config.method.options.generator = str(tmp_path / "imagenet64.pkl")
    with pytest.raises(FileNotFoundError, match=r"no generator at .*imagenet64\.pkl"):
        plan(config)
    config.method.options.generator = str(SNAPSHOT)
    # the generator was read; now the data is missing
    with pytest.raises(FileNotFoundError, match="cifar100"):
        plan(config)


def test_classes_that_the_generator_of_natural_images_has_not_seen():
    seen = set(npz.read(SHIPPED["natural_32"])[0]["classes"])
    assert len(seen) == 30 and len(set(tiny_imagenet_fedktl.UNSEEN)) == 100
    assert not seen & set(tiny_imagenet_fedktl.UNSEEN)
    for argument, count in ((None, 40), ("classes=20", 20), ("classes=100,method=local", 100)):
        config = tiny_imagenet_fedktl.get_config(argument)
        assert tuple(config.dataset.classes) == tiny_imagenet_fedktl.UNSEEN[:count]
    with pytest.raises(ValueError, match="classes is 'many'"):
        tiny_imagenet_fedktl.get_config("classes=many")


def test_runs_in_units_of_the_spread_stay_so():
    for file in (tiny_imagenet_fedktl, tiny_imagenet_100_fedktl):
        config = file.get_config()
        assert config.method.options.latents == "spread"
        config.entries = chosen(config.entries, ("fedktl:mu=0.0",))
        assert {entry.options["latents"] for entry in entries_of(config)} == {"spread"}
    config = only(few_samples.get_config(), ("fedktl", "fedktl@tuned"))
    assert {entry.options["latents"] for entry in entries_of(config)} == {"spread"}


def test_arms_are_the_full_method_with_one_option_changed():
    full = entries_of(typed_config(tiny_imagenet_fedktl.get_config()))[0].options
    for arms, count in (("ablations", 7), ("mu", 5)):
        entries = entries_of(typed_config(tiny_imagenet_fedktl.get_config(f"arms={arms}")))
        changed = [{k for k, v in e.options.items() if v != full[k]} for e in entries]
        assert len(entries) == count and changed.count(set()) == 1
        assert not {"generator", "latents"} & set().union(*changed)
    with pytest.raises(ValueError, match="arms is 'all'; it must be ablations or mu"):
        tiny_imagenet_fedktl.get_config("arms=all")
