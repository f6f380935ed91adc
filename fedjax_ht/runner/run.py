"""Runs an experiment: fedjax-ht run --config=quickstart [--config.rounds=50].

The same command again goes on where the run stopped.
"""

from fedjax_ht.runner.program import chosen_workdir, configured, execute, orderly
from fedjax_ht.runner.progress import print_files


def main(_) -> None:
    config, name = configured()
    workdir = chosen_workdir(name, config)
    with orderly(workdir):
        result = execute(config, workdir)
    print_files(result.files)
