r"""FlexLoRA (or :method=hetlora, flora, ...) on AG News: adapters of four ranks on a frozen MiniLM.

    fedjax-ht run --config=ag_news_adapters:model=minilm
    fedjax-ht compare --config=ag_news_adapters:model=minilm \
        --methods=local,lg_fedavg,fedit,hetlora,flexlora,flora,ffa_lora,fedsa_lora

1,000 articles, cut to 32 tokens, are split over 20 clients by Dirichlet 0.3. Clients have ranks 2,
4, 8 and 16 in turn, on the queries and values of all layers.

Needs test.csv of AG News in `data/ag_news/`, the package tokenizers, and a Hugging Face folder with
a BERT: its config.json, model.safetensors and tokenizer.json. An example is MiniLM with six layers
(all-MiniLM-L6-v2, Apache-2.0).
"""

from experiments.configs import ag_news
from fedjax_ht.lab.config.base import apply_argument, method_config, partition_config


def get_config(argument=None):
    config = ag_news.get_config()
    config.method = method_config("flexlora")
    config.dataset.name = "ag_news_test"
    config.dataset.text_length = 32
    config.dataset.subset = 1000
    config.partition = partition_config("practical", alpha=0.3, max_tries=10_000, train_share=0.6)
    _model(config, "minilm")
    config.model.lora = "rank=2,4,8,16"
    config.model.lora_targets = "*query,*value"
    config.training.learning_rate = 0.002
    config.rounds = 5
    config.model.feature_dim = None
    return apply_argument(config, argument, {"model": _model}, rounds=1)


def _model(config, folder):
    config.model.group = f"hf:{folder}"
    config.dataset.tokenizer = folder
