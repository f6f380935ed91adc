"""Shows a run again, and writes its plots, summary.md and report.html anew. Nothing is trained.

    fedjax-ht report --workdir=checkpoints/runs/quickstart-seed0

It needs the run's data, to draw the split.
"""

from collections.abc import Callable
from pathlib import Path

from absl import flags
from tqdm import tqdm

from fedjax_ht.io.writers import read_history
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.costs import costs
from fedjax_ht.runner.entries import described
from fedjax_ht.runner.main import print_result
from fedjax_ht.runner.run_folder import read_run
from fedjax_ht.runner.run_lock import locked
from fedjax_ht.runner.table import markdown
from fedjax_ht.runner.train import write_results

# `fedjax-ht run` has one of this name, too.
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder of a run.", allow_override=True)


def show(workdir: Path, warn: Callable[[str], None] = print) -> tuple[str, list[Path]]:
    """The tables of a run, of the entries that have rows; and what was written, nothing where the folder is read-only.

    Raises:
      ValueError, OSError: there is no run or no row, its data are others now, or a process trains there. One line.
    """
    config, experiment = read_run(workdir)
    with locked(workdir, warn) as writable:
        found = {label: read_history(workdir / entry.folder) for label, entry in experiment.entries.items()}
        histories = {label: rows for label, rows in found.items() if any("accuracy" in row for row in rows)}
        if not histories:
            raise ValueError(f"the run in {workdir} has no evaluation yet")
        table = costs(histories).text if len(histories) > 1 else markdown(histories)
        summary = f"{markdown(histories)}\n\n{described(experiment.entries.values())}"
        written = []
        if writable:
            written = write_results(config, experiment, histories, summary, {"Results": table}, workdir)
    return table, written


def main(_) -> None:
    if _WORKDIR.value is None:
        fail(ValueError("no --workdir; for example --workdir=checkpoints/runs/quickstart-seed0"))
    try:
        print_result(*show(Path(_WORKDIR.value), warn=tqdm.write))
    except (ValueError, OSError, ImportError) as error:
        fail(error)
