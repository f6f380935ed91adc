"""Prints the table of docs/adapters.md: methods on low-rank adapters, and whole models.

python -m experiments.adapters_table
"""

import optax
from absl import app

import fedjax_ht as fl
from fedjax_ht.lab.cli import parse_flags

CLIENTS, RANKS, ROUNDS = 21, (2, 4, 8), 10


def main(_: list[str]) -> None:
    """Trains an extractor by FedAvg, and then every method from it."""
    dataset = fl.load_dataset("fashion_mnist_10k")
    partition = fl.make_partition("pathological", dataset, CLIENTS, seed=0, classes_per_client=4)
    model, shape = fl.mlp(10, (64, 32)), dataset.input_shape
    training = fl.LocalTraining(optax.sgd(0.01), batch_size=10)

    def run(method: fl.Method, federation: fl.Federation, rounds: int):
        data = fl.make_federation_data(dataset, partition, federation)
        return fl.run(fl.make_simulation(method, federation, data), rounds=rounds)

    whole = fl.make_federation({"mlp": model}, shape, 10, num_clients=CLIENTS)
    state, _ = run(fl.fedavg(fl.LocalTraining(optax.sgd(0.05), batch_size=10)), whole, 3)
    weights = {"mlp": {"params": state.server}}

    def adapted(ranks: tuple[int, ...]) -> fl.Federation:
        models = {f"mlp_r{rank}": fl.models.lora(model, rank) for rank in ranks}
        federation = fl.make_federation(models, shape, 10, num_clients=CLIENTS)
        return fl.with_weights(federation, weights, head=True)

    mixed = adapted(RANKS)
    makers = (fl.local, fl.hetlora, fl.flexlora, fl.flora, fl.ffa_lora, fl.fedsa_lora)
    entries = [(make(training), mixed) for make in makers]
    entries.append((fl.fedit(training), adapted((4,))))
    entries.append((fl.fedavg(training), fl.with_weights(whole, weights, head=True)))
    for method, federation in entries:
        _, history = run(method, federation, ROUNDS)
        last = history[-1]
        print(
            f"| `{method.name}` | {last['accuracy']:.2%} | {last['uplink_payload_bytes']:,} | "
            f"{last['downlink_payload_bytes']:,} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
