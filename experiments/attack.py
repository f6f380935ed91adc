r"""What an honest server learns about the clients of a run from what they send (docs/leaks.md).

    python -m experiments.attack --workdir=RUN --attack=dlg,geiping [--client=0] [--uploads=1]
    [--batch=1] \
        [--noise=0,0.05] [--tv=0.01,0.3] [--method=fedavg] [--trial=0] [--csv=STEM.csv]
    python -m experiments.attack --workdir=RUN --attack=membership [--csv=STEM.csv]
    python -m experiments.attack --csv=STEM.csv

dlg and geiping play one more round of a client whose only training samples are its first --batch
ones and who takes one step, and look for images that would have been sent alike; then the same with
its next ones, --uploads times in all. A private run's client clips and adds noise as it does in the
run. --csv adds to a file what is found and, of inversions, writes the images to STEM_METHOD.png;
without --workdir it shows the file's table. All entries of the run count, or the one that --method
names. (What bad clients do to a federation is another thing: docs/bad_clients.md.)
"""

import math
from pathlib import Path

from absl import app, flags

from experiments.leaks_of_runs import Wanted, invert, memberships
from experiments.leaks_table import Inverted, add, markdown, picture, read
from fedjax_ht.core.names import unknown
from fedjax_ht.experiment.run_folder import read_run
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.runner.evaluate import load_run
from fedjax_ht.trust.leaks import inversion

# --workdir, --method, --client, --trial and --trust are those of fedjax_ht.runner.evaluate.
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
    """A flag's numbers, at least 0, or one line."""
    try:
        found = [float(text) for text in texts]
    except ValueError:
        found = [-1.0]
    if not all(0 <= number < math.inf for number in found):
        raise ValueError(
            f"--{flag} is {','.join(texts)!r}; it must be numbers of at least 0, such as 0,0.05"
        )
    return tuple(found)


def wanted_inversions(client: int, trial: int) -> Wanted:
    """What the flags ask for.

    Raises:
      ValueError: a flag has a value that it cannot have. One line.
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
    searches = [("dlg", inversion.DLG)] if "dlg" in _ATTACK.value else []
    if "geiping" in _ATTACK.value:
        searches += [("geiping", inversion.GEIPING._replace(tv=tv)) for tv in weights]
    searches = tuple((name, search._replace(steps=_STEPS.value)) for name, search in searches)
    return Wanted(client, trial, _UPLOADS.value, _BATCH.value, noises, searches, _ROUNDS.value)


def picture_of(path: Path, method: str, found: Inverted) -> Path:
    """Where the images of a method go: STEM_METHOD.png, with whatever else makes them another
    case."""
    row = found.row
    parts = [
        path.stem,
        method,
        f"batch{row.batch}" if row.batch > 1 else "",
        f"trial{row.trial}" if row.trial else "",
    ]
    return path.with_name(
        "_".join(filter(None, [*parts, f"{row.unit}{row.scale:g}" if row.unit else ""])) + ".png"
    )


def main(_) -> None:
    given, path = flags.FLAGS, _CSV.value and Path(_CSV.value)
    try:
        if path and not given.workdir:
            print(markdown(read(path)))
            return
        if not given.workdir or not _ATTACK.value:
            raise ValueError("give --workdir and --attack, or --csv alone; see --help")
        wanted = wanted_inversions(given.client or 0, given.trial)
        config, experiment = read_run(Path(given.workdir), given.trust)
        for label in [given.method] if given.method else experiment.methods:
            run, rows = load_run(given.workdir, label, given.trust), []
            if "membership" in _ATTACK.value:
                rows += memberships(run, config, given.trial, _ROUNDS.value)
            if wanted.searches:
                try:
                    found = list(invert(run, config, wanted))
                except ValueError as error:
                    if given.method:
                        raise
                    print(f"{label}: {error}", flush=True)
                    found = []
                rows += [one.row for one in found]
                if path and found:
                    picture(found, picture_of(path, experiment.entries[label].method, found[0]))
            if path:
                add(rows, path)
            print(markdown(rows), flush=True)
    except (ValueError, OSError, ImportError) as error:
        fail(error)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
