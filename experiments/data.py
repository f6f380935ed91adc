"""Downloads data sets from their homes, and says which there are.

    python -m experiments.data get cifar10 [--data_dir=data]
    python -m experiments.data list [--data_dir=data]

A download that was cut off goes on where it stopped, by the same command. Runs read what is there by
--config.dataset.name=NAME --config.dataset.data_dir=DIR.
"""

from collections.abc import Sequence

from experiments.signals import end_on_signals

if __name__ == "__main__":  # before anything that takes time to import
    end_on_signals()

from absl import app, flags

from experiments.cli import fail
from fedjax_ht.data.sources.download import Listed, get, listing

# Others have one of this name, too, and one process may import both.
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "The folder of the sets' files.", allow_override=True)
_USAGE = "`get NAME` or `list`, and --data_dir=DIR if that is not data"


def command(words: Sequence[str], data_dir: str) -> None:
    """What the command line does: `words` are ["get", NAME] or ["list"].

    Raises:
      ValueError, OSError, ImportError: one line.
    """
    match list(words):
        case ["list"]:
            print("\n".join(line(listed) for listed in listing(data_dir)))
        case ["get", name]:
            get(name, data_dir)
            print(f"read it by --config.dataset.name={name} --config.dataset.data_dir={data_dir}")
        case _:
            raise ValueError(f"unknown command {' '.join(words)!r}; give {_USAGE}")


def line(listed: Listed) -> str:
    """One set."""
    if listed.size is None:
        return f"{listed.name:<20}{listed.about}"
    there = f"is there: {listed.there[0]}" if listed.there else "is not there"
    return f"{listed.name:<20}{listed.about}; {listed.size / 1e6:,.0f} MB from {listed.home}; {there}"


def parse(arguments: list[str]) -> list[str]:
    """The command line without its flags."""
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        fail(error)


def main(arguments: list[str]) -> None:
    try:
        command(arguments[1:], _DATA_DIR.value)
    except (ValueError, OSError, ImportError) as error:
        fail(error)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
