r"""Local training (or :method=fedproto, fedtgp) on AG News: 20 clients of HtFLlib's text models.

    fedjax-ht run --config=ag_news
    fedjax-ht compare --config=ag_news:set=ag_news_test --fair=5 --trials=3 \
        --methods=local,fedproto,fedtgp,fedgh,fd,fml,lg_fedavg,fedgen,fedssa

Dirichlet 0.1. Clients have fastText, logistic regression, LSTM and BiLSTM in turn, with 64 features
(512 in HtFLlib), batches of 10 and one epoch per round. Part of each client's texts is for
validation, for --fair.

Needs train.csv and test.csv of AG News in `data/ag_news/`. set=ag_news_test needs only the 7,600
texts of test.csv, in `data/ag_news/test.csv` or `data/ag_news_test.csv`, a seventeenth of the data.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config

SETS = ("ag_news", "ag_news_test")


def get_config(argument=None):
    config = base_config()
    config.method = method_config("local")
    config.dataset.name = "ag_news"
    # Four classes and alpha 0.1: few draws leave every client 40 samples.
    config.partition = partition_config(
        "practical", alpha=0.1, max_tries=10_000, train_share=0.6, val_share=0.15
    )
    config.model.group = "htfe_txt4"
    config.model.feature_dim = 64
    config.training.optimizer = "adam"
    config.training.learning_rate = 0.001
    config.rounds = 50
    config.evaluate.every = 5
    return apply_argument(config, argument, {"set": _set}, rounds=1)


def _set(config, name):
    if name not in SETS:
        raise ValueError(f"set is {name!r}; it must be {' or '.join(SETS)}")
    config.dataset.name = name
