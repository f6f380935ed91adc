"""Loads the entries of the run that the flags of `fedjax-ht evaluate` name."""

from collections.abc import Iterator
from pathlib import Path

from absl import flags

from fedjax_ht.lab.runs.evaluate import LoadedRun, load_run
from fedjax_ht.lab.runs.own_methods import read_trusted_run


def loaded_entries() -> Iterator[LoadedRun]:
    """Yields each entry of --workdir, or the one that --method names, in its --trial."""
    options = flags.FLAGS
    experiment = read_trusted_run(Path(options.workdir), options.trust)
    for label in [options.method] if options.method else experiment.runs:
        yield load_run(options.workdir, label, trial=options.trial, experiment=experiment)
