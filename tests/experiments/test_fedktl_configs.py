"""The configs of FedKTL: the paper's numbers, and generators that have not seen the clients' classes."""

from pathlib import Path

import pytest

from fedjax_ht.configs import (
    cifar10_fedktl,
    cifar100_fedktl_paper,
    few_shot_fedktl,
    quickstart_fedktl,
    tiny_imagenet_100_fedktl,
    tiny_imagenet_fedktl,
)
from fedjax_ht.generators import SHIPPED
from fedjax_ht.generators.embedded import read_metadata
from fedjax_ht.runner.build import build

CONFIGS = (
    cifar10_fedktl,
    cifar100_fedktl_paper,
    few_shot_fedktl,
    quickstart_fedktl,
    tiny_imagenet_100_fedktl,
    tiny_imagenet_fedktl,
)
SNAPSHOT = Path(__file__).parents[1] / "generators" / "reference" / "styleganxl_t64.pkl"


@pytest.mark.parametrize("file", CONFIGS)
def test_weights_are_the_papers_whatever_the_generator(file):
    options = file.get_config().method.options
    got = (options.mu, options.mse_weight, options.mmd_weight, options.server_lr, options.scale, options.margin)
    assert got == (50.0, 1.0, 1.0, 0.01, 64.0, 0.5)
    assert file.get_config("method=local,runlocal").method.name == "local"


def test_the_papers_setting_takes_a_snapshot_by_its_path(tmp_path):
    config = cifar100_fedktl_paper.get_config()
    assert (config.model.group, config.partition.num_clients, config.rounds) == ("htfe8", 20, 1000)
    assert (config.training.batch_size, config.training.learning_rate) == (10, 0.01)
    config.dataset.data_dir = str(tmp_path)
    config.method.options.generator = str(tmp_path / "imagenet64.pkl")
    with pytest.raises(FileNotFoundError, match=r"no generator at .*imagenet64\.pkl"):
        build(config)
    config.method.options.generator = str(SNAPSHOT)
    with pytest.raises(FileNotFoundError, match="cifar100"):  # the generator was read; now the data is missing
        build(config)


def test_classes_that_the_generator_of_natural_images_has_not_seen():
    seen = set(read_metadata(SHIPPED["natural_32"])["classes"])
    assert len(seen) == 30 and len(set(tiny_imagenet_fedktl.UNSEEN)) == 100
    assert not seen & set(tiny_imagenet_fedktl.UNSEEN)
    for argument, count in ((None, 40), ("classes=20", 20), ("classes=100,method=local", 100)):
        config = tiny_imagenet_fedktl.get_config(argument)
        assert tuple(config.dataset.classes) == tiny_imagenet_fedktl.UNSEEN[:count]
    assert tiny_imagenet_fedktl.get_config("classes=20").dataset.subset == 4400
    assert len(tiny_imagenet_100_fedktl.get_config().dataset.classes) == 100
    with pytest.raises(ValueError, match="classes is 'many'"):
        tiny_imagenet_fedktl.get_config("classes=many")
