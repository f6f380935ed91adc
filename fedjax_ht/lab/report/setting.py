"""Sentences on the setting of a run, and on how to repeat it."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedjax_ht.core.user_code import names_object
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.readers.description import kind_of
from fedjax_ht.lab.runs import devices
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.environment import lines as environment_lines

PROGRAM = "fedjax-ht"


def setting(experiment: Experiment, labels: Iterable[str] | None = None) -> str:
    """Describes the federation and how entries train, in a few sentences.

    Args:
      experiment: the experiment.
      labels: labels of the entries; None for all.
    """
    config = experiment.config
    labels = list(experiment.arms if labels is None else labels)
    sizes = [len(client.train) for client in experiment.partitions[0]]
    kind = kind_of(experiment.dataset)
    public = ""
    if experiment.dataset.public_set is not None:
        public = f", and {experiment.dataset.public_set.samples} public ones"
    seeds = f"seed {config.seed}"
    if config.trials > 1:
        seeds = f"seeds {config.seed} to {config.seed + config.trials - 1}"
    return (
        f"{config.partition.num_clients} clients on {experiment.dataset.name}"
        f"{participation(config)}: {sum(sizes)} training {kind}, {min(sizes)} to {max(sizes)} a "
        f"client{public}; {split(config)}. Models: {', '.join(architectures(experiment, labels))}. "
        f"Training: {trained(experiment, labels)} a round. {config.rounds} rounds, {seeds}."
        f"{devices.described(config.devices_profile)}"
    )


def participation(config: Config) -> str:
    """Says which share of the clients takes part in a round; "" where all do."""
    text = ""
    if config.participation != 1:
        text += f", of whom {100 * config.participation:.3g} % take part in a round"
    if config.drop_rate:
        text += f" and {100 * config.drop_rate:.3g} % of these are lost"
    return text


def split(config: Config) -> str:
    """Names the split with its options and seed."""
    parts = [f"split {config.partition.kind}"]
    for name, value in sorted(config.partition.options.items()):
        if value is not None:
            parts.append(f"{name} {value}")
    return ", ".join([*parts, f"seed {config.partition.seed}"])


def architectures(experiment: Experiment, labels: Iterable[str]) -> list[str]:
    """Lists the names of the entries' architectures in alphabetical order."""
    names = set()
    for label in labels:
        names |= {bucket.name for bucket in experiment.arms[label].federation.buckets}
    return sorted(names)


def trained(experiment: Experiment, labels: Sequence[str]) -> str:
    """Lists the settings of local training: those that entries share once, else each value with the
    entries that set it."""
    parts: tuple[dict[str, list[str]], ...] = ({}, {}, {})  # text -> labels
    for label in labels:
        training = experiment.arms[label].config.training
        length = f"{training.epochs} local epochs"
        if training.steps:
            length = f"{training.steps} steps"
        optimizer = f"{training.optimizer} at {training.learning_rate}"
        if names_object(training.optimizer):
            optimizer = "an optimiser given from Python"
        batches = f"batches of {training.batch_size}"
        texts = [optimizer, batches, length]
        if training.of:
            texts[2] += f" (otherwise {', '.join(training.of)})"
        for values, text in zip(parts, texts):
            values.setdefault(text, []).append(label)
    texts = []
    for values in parts:
        for text, entries in values.items():
            if len(values) > 1:
                text = f"{text} ({', '.join(entries)})"
            texts.append(text)
    return ", ".join(texts)


def repeat() -> str:
    """Returns how to repeat this run: the command, the library, packages and machine, a line
    each."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    arguments = shlex.join(sys.argv[1:])
    command = "a call from Python"
    if main:
        command = f"python -m {main.name.removesuffix('.__main__')} {arguments}"
    elif Path(sys.argv[0]).name == PROGRAM:
        command = f"{PROGRAM} {arguments}"
    return "\n".join([command, *environment_lines(environment())])
