"""Texts by config: the set's vocabulary reaches the models, and what does not fit is one line."""

import numpy as np
import pytest

import fedjax_ht as fl
from experiments.configs import ag_news
from fedjax_ht.core.user_code import trusting
from fedjax_ht.lab.runs.plan import plan, settle
from fedjax_ht.lab.weights.start import weights_of_model
from tests.federations import count_parameters
from tests.hugging_face import write_folder
from tests.lab.readers.test_texts import write_csv

CLIENTS, WIDTH = 4, 8


@pytest.fixture
def config(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50, (400, 12))
    rows = [
        (str(i % 4 + 1), f"w{i % 4}", " ".join(f"w{word}" for word in row))
        for i, row in enumerate(tokens)
    ]
    write_csv(tmp_path / "ag_news_test.csv", rows)
    config = ag_news.get_config("set=ag_news_test,partition=iid")
    config.dataset.data_dir, config.dataset.text_length = str(tmp_path), 10
    config.partition.num_clients, config.model.feature_dim = CLIENTS, WIDTH
    return config


def test_a_set_of_texts_and_its_models(config):
    experiment = plan(config)
    assert experiment.dataset.inputs.shape == (400, 10) and experiment.dataset.vocabulary == 52
    (federation,) = (run.federation for run in experiment.runs.values())
    expected = ["fasttext", "text_logistic", "lstm", "bilstm"]
    assert [bucket.name for bucket in federation.buckets] == expected
    assert count_parameters(federation.buckets[1]) == {"base": 52 * WIDTH, "head": WIDTH * 4 + 4}


def test_a_folders_model_needs_its_tokenizer(tmp_path):
    """Words of the training texts are no tokens of a trained model; its weights come with it."""
    group = write_folder(tmp_path / "bert", "bert", vocab_size=40, max_position_embeddings=200)
    rows = "".join(f"{'ab'[i % 2]},oil prices {i % 5}\n" for i in range(60))
    (tmp_path / "texts.csv").write_text(f"label,text\n{rows}")
    config = fl.base_config()
    config.dataset.name = f"text:{tmp_path / 'texts.csv'}"
    config.partition = fl.partition_config("dirichlet", 2, alpha=100.0)
    config.model.group, config.method = group, fl.method_config("local")
    with pytest.raises(ValueError, match=r"only knows its own tokenizer's tokens; set"):
        plan(config)
    with trusting(False):  # a folder runs no code
        settled = settle(config)
    assert weights_of_model(settled.config.model) == str(tmp_path / "bert" / "model.safetensors")
