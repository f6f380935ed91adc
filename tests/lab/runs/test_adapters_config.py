"""Low-rank adapters by config: ranks that clients take in turn, and the extractor's file."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import init_variables, make_bucket
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.configs.quickstart import get_config
from fedjax_ht.lab.runs.federation import Task, adapter_ranks, make_clients
from fedjax_ht.lab.runs.method import local_training
from fedjax_ht.lab.safe.torch_files import save_safetensors
from fedjax_ht.lab.weights.start import own_names
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.models.adapters import unadapted
from tests.federations import identical
from tests.hugging_face import made_up, write_folder

TASK = Task((4, 4, 1), 10)


def config_of(**fields):
    config = get_config()
    config.model.group, config.partition.num_clients = "mlp2", 6
    config.model.lora = "rank=2,4,8"
    for name, value in fields.items():
        setattr(config.model, name, value)
    return typed_config(config)


def test_clients_take_architectures_and_ranks_in_turn():
    message = "^model.lora adapts a frozen extractor with random weights; "
    with pytest.warns(UserWarning, match=message):
        federation = make_clients(config_of(), TASK)
    names = [federation.buckets[place].name for place in federation.assignment]
    narrow, wide = ("mlp_narrow_r2", "mlp_narrow_r8", "mlp_narrow_r4"), (4, 2, 8)
    assert names[::2] == list(narrow)
    assert names[1::2] == [f"mlp_wide_r{rank}" for rank in wide]
    assert federation.buckets[0].module.base.scale == 16 / 2


@pytest.mark.filterwarnings("ignore:model.lora adapts")
def test_memory_deals_ranks():
    """A client gets the largest rank that trains in its memory."""
    config = config_of(group="mlp2", lora_alpha=0)
    federation = make_clients(config, TASK)
    assert all(bucket.module.base.scale == 2 for bucket in federation.buckets)
    (wanted,) = (bucket for bucket in federation.buckets if bucket.name == "mlp_narrow_r4")
    memory = training_memory(wanted, local_training(config.training))
    dealt = make_clients(config, TASK, np.full(6, float(memory)))
    assert {bucket.name for bucket in dealt.buckets} == {"mlp_narrow_r4"}


def test_the_extractors_file_is_needed_again(tmp_path):
    """A run that goes on reads the file, since no checkpoint has a frozen extractor."""
    with pytest.warns(UserWarning):
        plain = make_clients(config_of(group="mlp2", lora="rank=2"), TASK).buckets
    files, extractors = {}, {}
    for bucket in plain:
        name = bucket.name.removesuffix("_r2")
        model = make_bucket(name, unadapted(bucket.module), TASK.input_shape, 10)[0]
        extractors[name] = init_variables(model, jax.random.key(5))["params"]["base"]
        arrays = own_names({"params": init_variables(model, jax.random.key(5))["params"]})
        save_safetensors(tmp_path / f"{name}.safetensors", arrays)
        files[name] = str(tmp_path / f"{name}.safetensors")
    config = config_of(weights=files, weights_head=True)
    for bucket in make_clients(config, TASK, begun=True).buckets:
        expected = extractors[bucket.name.rpartition("_r")[0]]
        assert identical(bucket.weights["frozen"]["base"], expected)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError):
        make_clients(config, TASK, begun=True)


def test_a_folder_is_an_extractor(tmp_path):
    """The trained weights of a group hf:FOLDER are those of its folder, and frozen."""
    group = write_folder(tmp_path / "bert", "bert")
    config = config_of(group=group, lora="rank=1,2", lora_targets="*query,*value")
    task = Task(jax.ShapeDtypeStruct((6,), jnp.int32), 3, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buckets = make_clients(config, task).buckets
    assert [bucket.name for bucket in buckets] == ["bert_r1", "bert_r2"]
    table = buckets[1].weights["frozen"]["base"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, made_up("bert")["embeddings.word_embeddings.weight"])
    params = jax.eval_shape(lambda key: init_variables(buckets[1], key), jax.random.key(0))
    layers = params["params"]["base"]["layers_blocks"]
    assert set(layers) == {"query", "value"} and layers["query"]["lora_a"].shape == (2, 2, 8)


@pytest.mark.parametrize(
    "text", ["2,4", "rank=", "rank=0", "rank=2,x", "rank=2.5", "rank=nan", "rank=100000"]
)
def test_other_words_for_ranks_are_refused(text):
    with pytest.raises(ValueError, match=r"^model.lora is .*; it must be empty or ranks"):
        adapter_ranks(text)


def test_slices_have_no_adapters():
    config = config_of(group="conv4_quarter", rates="1,1/2", norm="static_batch")
    with pytest.raises(ValueError, match=r"model.lora is 'rank=2,4,8'; with model.rates"):
        make_clients(config, TASK)
