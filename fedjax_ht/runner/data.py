"""Downloads data sets from their homes, and lists those that can be read.

    fedjax-ht data get cifar10 [--data_dir=data]
    fedjax-ht data list [--data_dir=data]

A download that was cut off goes on where it stopped, by the same command. Runs read what was
downloaded by --config.dataset.name=NAME --config.dataset.data_dir=DIR.
"""

from collections.abc import Sequence

from absl import flags

from fedjax_ht.data.sources.download import Listed, get, listing
from fedjax_ht.runner.cli import fail

# allow_override: another command has a flag of this name, and one process may import both
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "data", "The folder of the sets' files.", allow_override=True
)
_USAGE = "`get NAME` or `list`, and --data_dir=DIR if that is not data"


def command(arguments: Sequence[str], data_dir: str) -> None:
    """Does what the command line asks for: ["get", NAME] or ["list"].

    Raises:
      ValueError, OSError, ImportError: one line.
    """
    match list(arguments):
        case ["list"]:
            print("\n".join(line(listed) for listed in listing(data_dir)))
        case ["get", name]:
            get(name, data_dir)
            print(f"read it by --config.dataset.name={name} --config.dataset.data_dir={data_dir}")
        case _:
            raise ValueError(f"unknown command {' '.join(arguments)!r}; give {_USAGE}")


def line(listed: Listed) -> str:
    """Returns the line of a data set: its name, what it is, and whether it is there."""
    if listed.size is None:  # nothing is downloaded
        return f"{listed.name:<20}{listed.about}"
    state = f"is there: {listed.present[0]}" if listed.present else "is not there"
    size = f"{listed.size / 1e6:,.0f} MB"
    return f"{listed.name:<20}{listed.about}; {size} from {listed.home}; {state}"


def main(arguments: list[str]) -> None:
    try:
        command(arguments[1:], _DATA_DIR.value)
    except (ValueError, OSError, ImportError) as error:
        fail(error)
