"""Shows a run again, and rewrites its plots, summary.md and report.html. It trains nothing.

    fedjax-ht report --workdir=checkpoints/runs/quickstart-seed0-trials3

A folder written by `compare` shows the comparison, with its target. Drawing the split needs the
run's data.
"""

from collections.abc import Callable
from pathlib import Path

from absl import flags
from tqdm import tqdm

from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.cli import TRUST
from fedjax_ht.lab.config.entries import Entry
from fedjax_ht.lab.report.compared import FILE, Page, compared, read_page
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.report import repeat, text_of
from fedjax_ht.lab.report.rows import are_evaluated, up_to
from fedjax_ht.lab.runs.folder import locked, read_folder
from fedjax_ht.lab.runs.identity import identity_of
from fedjax_ht.lab.runs.own_methods import read_experiment
from fedjax_ht.lab.runs.plan import Plan
from fedjax_ht.lab.runs.progress import print_files, print_result
from fedjax_ht.lab.runs.train import write_results

# allow_override: `fedjax-ht run` defines the same flags, and one process may import both
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder of a run.", allow_override=True)
_TRUST = flags.DEFINE_bool("trust", False, TRUST, allow_override=True)


def report_run(
    workdir: Path | str,
    experiment: Plan | None = None,
    *,
    warn: Callable[[str], None] = print,
    show_result: Callable[[Document], None] = lambda text: None,
    trust: bool = False,
) -> tuple[str, list[Path]]:
    """Rewrites the tables, pictures and report of a run or comparison, for all entries with rows.

    Args:
      workdir: the run's folder.
      experiment: the run's experiment, see `make_experiment`, if it has objects from Python. Other
        runs are built from config.json.
      warn: called with each warning.
      show_result: called with the result as text, before the pictures are drawn.
      trust: True allows code named in the run's config to run, see `own_methods.read_trusted_run`.

    Returns:
      The result as text, and the written files, report.html last; no files in a read-only folder.

    Raises:
      ValueError, OSError: there is no run or no row, its data have changed, or a process is
        training there. One line.
    """
    workdir = Path(workdir)
    experiment = read_experiment(workdir, trust, experiment)
    with locked(workdir, warn) as writable:
        page = read_page(workdir) or Page(tuple(experiment.runs), None, repeat())
        entries = _entries_of(page, experiment, workdir)
        histories = {entry.label: up_to(read_runs(workdir / entry.folder)) for entry in entries}
        if not any(map(are_evaluated, histories.values())):
            raise ValueError(f"the run in {workdir} has no evaluation yet")
        config = experiment.config
        noted = read_folder(workdir).notes
        identities = {entry.label: identity_of(entry, config, noted) for entry in entries}
        shown = compared(config, entries, identities, histories=histories, workdir=workdir)
        text = text_of(shown, page.aim)
        show_result(text)
        written = []
        if writable:
            written = write_results(experiment, shown, page, workdir, warn)
    return text.markdown(), written


def _entries_of(page: Page, experiment: Plan, workdir: Path) -> list[Entry]:
    """Returns the entries of a page."""
    for label in page.labels:
        if label not in experiment.runs:
            raise ValueError(
                f"{workdir / FILE} names the entry {label!r}, which the run's experiment does not "
                "have"
            )
    return [experiment.runs[label].entry for label in page.labels]


def main(_) -> None:
    if not _WORKDIR.value:
        raise ValueError(
            "no --workdir; for example --workdir=checkpoints/runs/quickstart-seed0-trials3"
        )
    _, written = report_run(
        _WORKDIR.value, warn=tqdm.write, show_result=print_result, trust=_TRUST.value
    )
    print_files(written)
