"""The limits on sizes that a file may ask for, which every reader keeps to.

The largest files of known sets stay far below them: CIFAR-100's train batch has 154 MB and 300,000
pickle steps, ImageNet-21k 21,841 classes.
"""

from fedjax_ht.check.names import short
from fedjax_ht.data.conversion import CLASSES

FILE_BYTES = 256 << 20  # of a file, or a file in an archive, that is read as a whole
TEXT_BYTES = 16 << 20  # of JSON, which takes up to twenty times its size in memory
TEXTS_BYTES = 128 << 20  # of a file of texts; AG News' training set has 30 MB
TEXTS = 1 << 20  # samples of a set of texts
WORDS = 1 << 21  # different ones of a set of texts
# brackets and commas of LEAF's JSON, each of which may be a value; a hundred writers of FEMNIST
# have 18 million
JSON_MARKS = 20 << 20
JSON_OBJECTS = 1 << 20  # a user each; small ones take 250 bytes
GROWTH = 32  # decompressed bytes per byte of a file, where that is more than FILE_BYTES
PIXELS = 1 << 26  # of one image
TABLE_ROWS = 1 << 21  # of a table as text
TABLE_COLUMNS = 1 << 15  # of a table as text; each is an array
TABLE_CELLS = 1 << 24
PICKLE_STEPS = 6 << 20  # opcodes of a pickle; a token of a text is one
PICKLE_NAMES = 10_000  # of functions and classes that a pickle asks for, repetitions counted


def keep(what: str, value: int, limit: float, unit: str = "bytes") -> None:
    """Refuses a value above a limit.

    Raises:
      ValueError: `value` is above the limit.
    """
    if value > limit:
        raise ValueError(f"{what} has {short(value)} {unit}, more than the {limit:,} that are read")


def decompressed(size: int) -> int:
    """The most bytes that a compressed file of `size` bytes may hold."""
    return max(FILE_BYTES, GROWTH * size)


def numbered_classes(count: int) -> tuple[str, ...]:
    """The names "0", "1", .. of classes that have only numbers.

    Raises:
      ValueError: there are more than `CLASSES`.
    """
    keep("the set", count, CLASSES, "classes")
    return tuple(map(str, range(count)))
