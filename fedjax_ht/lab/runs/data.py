"""Downloads data sets from their homes, lists those that can be read, and shows one.

    fedjax-ht data get cifar10 [--data_dir=data]
    fedjax-ht data list [--data_dir=data]
    fedjax-ht data show csv:mine.csv [--label=outcome] [--features=-id] [--page=mine.html]

A download that was cut off goes on where it stopped, by the same command. Runs read what was
downloaded by --config.dataset.name=NAME --config.dataset.data_dir=DIR. `show` prints what a run
would read: samples, classes, sets, columns, and what was left out or converted; and writes a page
with twenty samples, the classes by set and the values. Its flags are a config's dataset.label and
so on.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.cli import fail
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.description import describe
from fedjax_ht.lab.readers.download import Listed, get, listing
from fedjax_ht.lab.report.data_page import write_data_page

# allow_override: another command has a flag of this name, and one process may import both
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "data", "The folder of the sets' files.", allow_override=True
)
_PAGE = flags.DEFINE_string("page", None, "show: the page to write; by default data-NAME.html.")
_LABEL = flags.DEFINE_string("label", None, "show: the column of the labels.")
_FEATURES = flags.DEFINE_list("features", [], "show: the columns of the samples, or -NAME.")
_GROUP = flags.DEFINE_string("group", None, "show: the column of whose a sample is.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", None, "show: pixels to resize to.")
_TEXT_LENGTH = flags.DEFINE_integer("text_length", None, "show: tokens of a text.")
_TOKENIZER = flags.DEFINE_string("tokenizer", None, "show: the tokenizer of texts.")
_USAGE = "`get NAME`, `list` or `show NAME`, and --data_dir=DIR if that is not data"


def command(arguments: Sequence[str], data_dir: str, page: str | None = None, **options) -> None:
    """Runs the action that the command line names: ["get", NAME], ["list"] or ["show", NAME].

    Args:
      arguments: the words of the command line.
      data_dir: the folder of the sets' files.
      page: path of the file that `show` writes; None for one by the set's name.
      **options: options of `load_dataset`, for `show`.

    Raises:
      ValueError, OSError, ImportError: one line.
    """
    match list(arguments):
        case ["show", name]:
            show(load_dataset(name, data_dir, **options), Path(page or page_name(name)))
        case ["list"]:
            print("\n".join(line(listed) for listed in listing(data_dir)))
        case ["get", name]:
            get(name, data_dir)
            print(f"read it by --config.dataset.name={name} --config.dataset.data_dir={data_dir}")
        case _:
            raise ValueError(f"unknown command {' '.join(arguments)!r}; give {_USAGE}")


def show(dataset: Dataset, page: Path) -> None:
    """Prints the facts of a data set, and writes a page that shows it."""
    print("\n".join(describe(dataset).lines))
    print(f"written: {write_data_page(dataset, page)}")


def page_name(name: str) -> str:
    """Returns the name of a data set's page: "data-mine.html" for "csv:folder/mine.csv"."""
    prefix, _, argument = name.partition(":")
    path = argument.partition(":")[0] if prefix in ("csv", "parquet", "hf", "text") else argument
    stem = Path(path).name.partition(".")[0] or prefix
    return f"data-{re.sub(r'[^0-9A-Za-z_-]+', '-', stem)}.html"


def line(listed: Listed) -> str:
    """Returns the line of a data set: its name, its kind, and whether it is there."""
    if listed.size is None:  # nothing is downloaded
        return f"{listed.name:<20}{listed.about}"
    state = f"is there: {listed.present[0]}" if listed.present else "is not there"
    size = f"{listed.size / 1e6:,.0f} MB"
    return f"{listed.name:<20}{listed.about}; {size} from {listed.home}; {state}"


def main(arguments: list[str]) -> None:
    try:
        command(
            arguments[1:],
            _DATA_DIR.value,
            _PAGE.value,
            image_size=_IMAGE_SIZE.value,
            text_length=_TEXT_LENGTH.value,
            tokenizer=_TOKENIZER.value,
            label=_LABEL.value,
            features=_FEATURES.value,
            group=_GROUP.value,
        )
    except (ValueError, OSError, ImportError) as error:
        fail(error)
