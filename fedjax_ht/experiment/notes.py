"""Lines at the head of a run: what its readers must know before it trains."""

from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.experiment.build import Experiment


def notes(experiment: Experiment) -> list[str]:
    """Returns lines on a run's splits, each once; of several splits they begin with the trial."""
    lines = []
    splits = {id(partition): trial for trial, partition in enumerate(experiment.partitions)}
    for trial in sorted(splits.values()):
        place = f"split of trial {trial}: " if len(splits) > 1 else "split: "
        for note in split_notes(experiment.dataset, experiment.partitions[trial]):
            lines.append(f"{place}{note}")
    return lines
