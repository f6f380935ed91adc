"""Times a round of every method in one setting: CPU seconds of a round and of an evaluation.

    python -m benchmarks.method_rounds [--setting=leaderboard_images] [--methods=fedavg,fedproto]
        [--rounds=5] [--out=benchmarks/results/NAME.md]

Methods share data, split, models and recipe; those that do not fit the setting are named with the
reason. A row is the median of `--rounds` rounds after one that compiles, with the participants'
scores, and one evaluation of all clients after another. CPU seconds count all threads of the
process. They distinguish methods' costs even on a shared machine, as long as memory bandwidth is
not short.
"""

import dataclasses
import itertools
import statistics
import time
import warnings
from typing import NamedTuple

import jax
from absl import app, flags

from benchmarks.report import machine, number, publish, table
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.plan import Run, fitting, plan
from fedjax_ht.lab.runs.play import simulate
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.engine import forget_engines

_SETTING = flags.DEFINE_string("setting", "leaderboard_images", "A config, with its argument.")
_METHODS = flags.DEFINE_list("methods", list(METHODS), "The methods; by default all.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds that are timed.", lower_bound=1)


class Seconds(NamedTuple):
    """CPU seconds of one method.

    Attributes:
      first: the first round and evaluation, with compilation.
      round: the median of later rounds.
      evaluation: the second evaluation.
    """

    first: float
    round: float
    evaluation: float


def setting_of(name: str, methods: list[str]) -> tuple[Config, list[str]]:
    """Returns a config with the fitting methods as entries, and a reason for each other one."""
    config, reasons = typed_config(read_config_file(name)), []
    config = only(dataclasses.replace(config, trials=1), methods)
    return fitting(config, reasons.append), reasons


def measured(run: Run, rounds: int) -> Seconds:
    """Runs rounds of one method."""
    simulation = simulate(run)
    state, clocks = simulation.init(), [time.process_time()]
    for number_done in range(rounds + 1):
        state, _ = simulation.run_round(state)
        jax.block_until_ready(state.server)
        if number_done == 0:
            simulation.evaluate(state)
        clocks.append(time.process_time())
    start = time.process_time()
    simulation.evaluate(state)
    evaluation = time.process_time() - start
    lengths = [after - before for before, after in itertools.pairwise(clocks)]
    return Seconds(lengths[0], statistics.median(lengths[1:]), evaluation)


def main(_) -> None:
    """Measures all methods."""
    warnings.simplefilter("ignore")  # what so few rounds cannot learn
    config, reasons = setting_of(_SETTING.value, _METHODS.value)
    experiment, rows = plan(config), []
    for label, run in experiment.runs.items():
        seconds = measured(run, _ROUNDS.value)
        forget_engines()  # those of fifty methods would fill the memory
        shown = [number(seconds.round, 3), number(seconds.evaluation, 3), number(seconds.first)]
        rows.append([label, *shown])
        print(f"{label}: {seconds.round:.2f} CPU seconds a round", flush=True)
    rows.sort(key=lambda row: float(row[1].replace(",", "")))
    head = ["method", "a round", "an evaluation", "the first round with compilation"]
    parts = [f"{_SETTING.value}, CPU seconds. {machine()}", table(head, rows), *reasons]
    publish("\n\n".join(parts))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
