"""Downloads data sets from their homes, and says which there are.

    fedjax-ht data get cifar10 [--data_dir=data]
    fedjax-ht data list [--data_dir=data]

A download that was cut off goes on where it stopped, by the same command. Runs read what is there
by --config.dataset.name=NAME --config.dataset.data_dir=DIR.
"""

from collections.abc import Sequence

from absl import flags

from fedjax_ht.data.sources.download import Listed, get, listing
from fedjax_ht.runner.cli import fail

# Others have one of this name, too, and one process may import both.
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "data", "The folder of the sets' files.", allow_override=True
)
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
    there = f"is there: {listed.present[0]}" if listed.present else "is not there"
    return (
        f"{listed.name:<20}{listed.about}; {listed.size / 1e6:,.0f} MB from {listed.home}; {there}"
    )


def main(arguments: list[str]) -> None:
    try:
        command(arguments[1:], _DATA_DIR.value)
    except (ValueError, OSError, ImportError) as error:
        fail(error)
