"""Searches an entry's settings, by the clients' validation sets only.

    fedjax-ht sweep --config=few_samples --entry=fedtgp \
        --over=weight=0.1,1,10 --over=training.learning_rate=0.01,0.03,0.1

tries all nine. --draws=20 instead tries the entry as given, and twenty points spread over the
space, in which --over=weight=log:0.01:10 may be a range. With --halvings=2, the worse half stops
after a quarter of the rounds, and half of the rest after half of them. The same command resumes a
stopped search. The choice is printed as an entry for `fedjax-ht compare --methods`; test sets do
not affect it.
"""

import shlex
import time

from absl import flags

from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.runs.progress import tell
from fedjax_ht.lab.runs.run import chosen_workdir, configured, orderly, refuse_method_flags
from fedjax_ht.lab.runs.search import budget, rounds_planned, rounds_trained, rungs, searched, table
from fedjax_ht.lab.runs.spaces import parse_space, points_of
from fedjax_ht.lab.runs.train import once_started

_ENTRY = flags.DEFINE_string(
    "entry", None, "The entry to search, such as fedtgp or fedproto:variant=released."
)
_OVER = flags.DEFINE_multi_string(
    "over",
    [],
    "KEY=VALUE,VALUE,... or KEY=log:LOW:HIGH or KEY=uniform:LOW:HIGH.",
    allow_override=True,
)
_DRAWS = flags.DEFINE_integer(
    "draws", None, "Number of points to draw; by default all combinations are tried."
)
_HALVINGS = flags.DEFINE_integer("halvings", 0, "How often to drop the worse half of the points.")


def main(_) -> None:
    config, name = configured()
    if _ENTRY.value is None:
        raise ValueError("no --entry; for example --entry=fedtgp")
    refuse_method_flags("entry", "entry")
    start = time.time()
    workdir = chosen_workdir(f"{name}-sweep-{_ENTRY.value.replace(':', '-')}", config)
    with orderly(workdir) as tasks:
        labels = points_of(_ENTRY.value, parse_space(_OVER.value), _DRAWS.value)
        rounds = rounds_planned(len(labels), rungs(config.rounds, _HALVINGS.value))
        tell(f"{budget(config, len(labels), rounds)}. Writing to {workdir}.")
        result = searched(config, labels, _HALVINGS.value, workdir=workdir, tell=tell, tasks=tasks)
        spent = budget(config, len(labels), rounds_trained(result.scores))
        text = f"{table(result)}\n\n{spent}."
        with once_started():
            write_whole(workdir / "sweep.md", text + "\n")
    print(f"\n{text}\n{time.time() - start:.0f} s.\n")
    print(f"chosen: --methods={shlex.quote(result.best)}")
