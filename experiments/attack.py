r"""Measures what an honest server learns about a run's clients from their uploads (docs/leaks.md).

    python -m experiments.attack --workdir=RUN --attack=dlg,geiping [--client=0] [--uploads=1] \
        [--batch=1] [--noise=0,0.05] [--tv=0.01,0.3] [--method=fedavg] [--trial=0] [--csv=STEM.csv]
    python -m experiments.attack --workdir=RUN --attack=membership [--csv=STEM.csv]
    python -m experiments.attack --csv=STEM.csv

dlg and geiping run one more round of a client whose only training samples are its first --batch
ones and who takes one step, and search for images that would have been sent alike; then the same
with its next ones, --uploads times in all. A private run's client clips and adds noise as in the
run. --csv adds the results to a file and writes the images of inversions to STEM_METHOD.png;
without --workdir it shows the file's table. All entries of the run are attacked, or the one that
--method names. (For what bad clients do to a federation, see docs/bad_clients.md.)
"""

import math
from pathlib import Path

from absl import app, flags

from experiments.leaks import inversion
from experiments.leaks_of_runs import Inversions, invert, memberships
from experiments.leaks_table import Inverted, Row, add, markdown, picture
from experiments.loaded import loaded_entries
from experiments.rows import read_rows
from fedjax_ht.check.names import unknown
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.runs.evaluate import LoadedRun

# --workdir, --method, --client, --trial and --trust are those of fedjax_ht.lab.runs.evaluate.
_ATTACK = flags.DEFINE_list("attack", None, "dlg, geiping, membership.")
_UPLOADS = flags.DEFINE_integer("uploads", 1, "Uploads that are inverted, one after another.")
_BATCH = flags.DEFINE_integer("batch", 1, "Images of the step that is inverted, 1 to 16.")
_NOISE = flags.DEFINE_list(
    "noise", ["0"], "Standard deviations of Gaussian noise on every number sent."
)
_TV = flags.DEFINE_list(
    "tv", ["0.01", "0.3"], "Weights of the total variation in geiping, each an inversion."
)
_STEPS = flags.DEFINE_integer("adam_steps", 1000, "Steps of an inversion.")
_ROUNDS = flags.DEFINE_integer(
    "epsilon_rounds",
    None,
    "Rounds that epsilon is told of; by default all until the one that is attacked.",
)
_CSV = flags.DEFINE_string("csv", None, "File to add to, or to show.", allow_override=True)

KINDS = ("dlg", "geiping", "membership")


def numbers(flag: str, texts: list[str]) -> tuple[float, ...]:
    """Reads a flag's numbers.

    Raises:
      ValueError: one of them is not a number of at least 0. One line.
    """
    try:
        values = tuple(map(float, texts))
    except ValueError:
        values = (-1.0,)
    if not all(0 <= value < math.inf for value in values):
        raise ValueError(
            f"--{flag} is {','.join(texts)!r}; it must be numbers of at least 0, such as 0,0.05"
        )
    return values


def inversions_of_flags(client: int, trial: int) -> Inversions:
    """Returns the inversions that the flags ask for.

    Raises:
      ValueError: a flag has an invalid value. One line.
    """
    for kind in _ATTACK.value:
        if kind not in KINDS:
            raise ValueError(unknown("attack", kind, KINDS))
    for flag, most in ((_UPLOADS, 64), (_BATCH, 16)):
        if not 1 <= flag.value <= most:
            raise ValueError(f"--{flag.name} is {flag.value}; it must be from 1 to {most}")
    if _ROUNDS.value is not None and _ROUNDS.value < 1:
        raise ValueError(f"--epsilon_rounds is {_ROUNDS.value}; it must be at least 1")
    noises, weights = numbers("noise", _NOISE.value), numbers("tv", _TV.value)
    searches = []
    if "dlg" in _ATTACK.value:
        searches.append(("dlg", inversion.DLG._replace(steps=_STEPS.value)))
    if "geiping" in _ATTACK.value:
        geiping = inversion.GEIPING._replace(steps=_STEPS.value)
        searches += [("geiping", geiping._replace(tv=tv)) for tv in weights]
    return Inversions(
        client=client,
        trial=trial,
        uploads=_UPLOADS.value,
        batch=_BATCH.value,
        noises=noises,
        searches=tuple(searches),
        rounds=_ROUNDS.value,
    )


def picture_of(path: Path, method: str, inverted: Inverted) -> Path:
    """Returns the path of a method's images: STEM_METHOD.png, with parts that distinguish cases."""
    row = inverted.row
    parts = [path.stem, method]
    if row.batch > 1:
        parts.append(f"batch{row.batch}")
    if row.trial:
        parts.append(f"trial{row.trial}")
    if row.unit:
        parts.append(f"{row.unit}{row.scale:g}")
    return path.with_name("_".join(parts) + ".png")


def attacked(loaded: LoadedRun, requested: Inversions, path: Path | None) -> list[Row]:
    """Attacks one entry of a run.

    Args:
      loaded: the entry.
      requested: inversions; membership is inferred if --attack names it.
      path: path of the CSV, beside which images are drawn; None draws none.

    Raises:
      ValueError: --method names the entry, but it cannot be inverted.
    """
    options, rows = flags.FLAGS, []
    if "membership" in _ATTACK.value:
        rows += memberships(loaded, options.trial, _ROUNDS.value)
    if not requested.searches:
        return rows
    try:
        inverted = list(invert(loaded, requested))
    except ValueError as error:
        if options.method:
            raise
        print(f"{loaded.run.label}: {error}", flush=True)  # the other entries are still attacked
        return rows
    if path and inverted:
        picture(inverted, picture_of(path, loaded.run.entry.method, inverted[0]))
    return rows + [result.row for result in inverted]


@orderly_main
def main(_) -> None:
    options, path = flags.FLAGS, _CSV.value and Path(_CSV.value)
    if path and not options.workdir:
        print(markdown(read_rows(path, Row)))
        return
    if not options.workdir or not _ATTACK.value:
        raise ValueError("give --workdir and --attack, or --csv alone; see --help")
    requested = inversions_of_flags(options.client or 0, options.trial)
    for loaded in loaded_entries():
        rows = attacked(loaded, requested, path)
        if path:
            add(rows, path)
        print(markdown(rows), flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
