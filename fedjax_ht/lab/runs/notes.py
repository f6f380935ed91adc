"""Lines at the head of a run: facts that its readers must know before it trains."""

import numpy as np

from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.simulation.simulation import batch_notes


def notes(experiment: Experiment) -> list[str]:
    """Returns lines on a run's splits and batches, each once; of several splits they begin with the
    trial."""
    lines = []
    splits = {id(partition): trial for trial, partition in enumerate(experiment.partitions)}
    for trial in sorted(splits.values()):
        place = f"split of trial {trial}: " if len(splits) > 1 else "split: "
        for note in split_notes(experiment.dataset, experiment.partitions[trial]):
            lines.append(f"{place}{note}")
    public, arms = experiment.dataset.public_set, experiment.arms.values()
    if public is not None and not any(arm.method.public_samples for arm in arms):
        lines.append(
            f"{public.samples} samples are public (dataset.public), and no method of this run "
            "reads them: clients have that many samples less"
        )
    counts = np.array([[len(c.train) for c in clients] for clients in experiment.partitions])
    for arm in arms:
        lines += batch_notes(arm.federation, arm.method, counts)
    rounds = experiment.config.rounds
    for label, arm in experiment.arms.items():
        warmup = arm.entry.options.get("warmup", 0)
        if warmup >= rounds:
            lines.append(
                f"{label}: clients stay as they are in its first {warmup} rounds (warmup), and the "
                f"run has {rounds}; set warmup to fewer, such as {label}:warmup={rounds // 5}"
            )
    return list(dict.fromkeys(lines))  # entries with one recipe have the same
