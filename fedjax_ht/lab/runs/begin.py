"""Compares a run with the one in its folder, before it trains or is shown, and notes it there."""

from pathlib import Path
from typing import Any

from fedjax_ht.core.user_code import user_place
from fedjax_ht.lab.report.page import Page, write_page
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.lab.runs.devices import files_of
from fedjax_ht.lab.runs.fingerprints import fingerprints
from fedjax_ht.lab.runs.identity import (
    Identity,
    check_entries,
    identities_of,
    remember_identities,
)
from fedjax_ht.lab.runs.json_files import write_json
from fedjax_ht.lab.runs.own_methods import own_names, read_trusted_run
from fedjax_ht.lab.runs.run_folder import checked_fields
from fedjax_ht.lab.weights.start import checksums, weights_of_model


def begin(
    experiment: Experiment, page: Page, workdir: Path, config_file: str | None, *, writes: bool
) -> dict[str, Identity]:
    """Compares a run with the one in its folder, and notes it there; returns the identities of its
    entries.

    Args:
      experiment: the experiment of the run.
      page: the contents of the run's page.
      workdir: the run's folder.
      config_file: "FILE[:ARGUMENT]" that registers the config's own methods.
      writes: False compares alone.

    Raises:
      ValueError: the folder holds a run of something else, or of more rounds. One line.
    """
    config, entries = experiment.config, experiment.entries
    fields = checked_fields(config, entries, workdir, noted(experiment, config_file))
    identities = identities_of(entries, config, fields["run"])
    check_entries(identities, workdir, config.rounds)
    if writes:
        remember_identities(fields, config, workdir)
        write_json(workdir / "config.json", fields)
        write_page(page, workdir)
    return identities


def noted(experiment: Experiment, config_file: str | None = None) -> dict[str, Any]:
    """Returns what config.json notes of a run: checksums, and places of a user's own code."""
    models = [arm.config.model for arm in experiment.arms.values()]
    weights = [*map(weights_of_model, models), *files_of(experiment.config.devices_profile)]
    noted: dict[str, Any] = dict(fingerprints(experiment.dataset, experiment.partitions))
    noted["weights"] = checksums(weights)
    if experiment.object_sums:
        noted["objects"] = experiment.object_sums
    for note, names in own_names(experiment).items():
        if names:
            noted[note] = {name: user_place(name) or config_file for name in names}
    return noted


def read_experiment(workdir: Path, trust: bool, experiment: Experiment | None) -> Experiment:
    """Returns the experiment of a run in a folder.

    Args:
      workdir: the run's folder.
      trust: permission to run code that config.json names, see `read_trusted_run`.
      experiment: the experiment, of a run that was given objects from Python; None builds it from
        the run's config.json.

    Raises:
      ValueError, OSError: as of `read_trusted_run`, or the folder holds another run. One line.
    """
    if experiment is None or not (workdir / "config.json").exists():
        return read_trusted_run(workdir, trust)
    checked_fields(experiment.config, experiment.entries, workdir, noted(experiment))
    return experiment
