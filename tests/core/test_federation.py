"""Models that a federation cannot hold are refused in one line that says what to do."""

import flax.linen as nn
import pytest

import fedjax_ht as fl

SHAPE, CLASSES = (4, 4, 1), 3


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


class Extractor(nn.Module):
    """Batch norm by running statistics where `running`, else by the batch."""

    running: bool

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=self.running)(x.reshape(len(x), -1))


class Foreign:
    """No Flax module."""


def federation(module):
    return fl.make_federation({"mine": module}, SHAPE, CLASSES, num_clients=2)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Plain, r"model 'mine' is the class Plain; give an instance: Plain\(...\)"),
        (Plain(), r"a Plain without features and classify; .*: fl.SplitModel\(base, head\)"),
        (Foreign(), r"a tests.core.test_federation.Foreign; it must be a Flax module"),
    ],
)
def test_an_invalid_model_is_named(module, message):
    with pytest.raises(ValueError, match=message):
        federation(module)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((Plain, nn.Dense(CLASSES)), "SplitModel's base is the class Plain; give an instance"),
        ((Plain(), nn.Dense), "SplitModel's head is the class Dense; give an instance"),
        (
            (Foreign(), nn.Dense(CLASSES)),
            "base is a tests.core.test_federation.Foreign; it must be a Flax module",
        ),
    ],
)
def test_an_invalid_part_of_a_model_is_named(parts, message):
    with pytest.raises(ValueError, match=message):
        fl.SplitModel(*parts)


def test_batch_statistics_need_a_stateful_model():
    with pytest.raises(ValueError, match=r"wrap it as SplitModel\(base, head, stateful=True\)"):
        federation(fl.SplitModel(Extractor(running=False), nn.Dense(CLASSES)))
    assert (
        federation(fl.SplitModel(Extractor(running=True), nn.Dense(CLASSES))).buckets[0].feature_dim
        == 16
    )
