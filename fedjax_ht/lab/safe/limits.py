"""Limits on the sizes that a file may ask for, which every reader keeps.

The largest files of known data sets stay far below: CIFAR-100's train batch has 154 MB and 300,000
pickle steps, ImageNet-21k has 21,841 classes.
"""

from fedjax_ht.check.names import short
from fedjax_ht.data.conversion import CLASSES

FILE_BYTES = 256 << 20  # per file, or file in an archive, that is read as a whole
TEXT_BYTES = 16 << 20  # of JSON, which takes up to twenty times its size in memory
TEXTS_BYTES = 128 << 20  # per file of texts; AG News' training set has 30 MB
TEXTS = 1 << 20  # samples of a set of texts
WORDS = 1 << 21  # different words of a set of texts
# brackets and commas of LEAF's JSON, each of which may be a value; a hundred writers of FEMNIST
# have 18 million
JSON_MARKS = 20 << 20
JSON_OBJECTS = 1 << 20  # one per user; small ones take 250 bytes
GROWTH = 32  # decompressed bytes per byte of a file, if that is more than FILE_BYTES
PIXELS = 1 << 26  # per image
TABLE_ROWS = 1 << 21  # per table of text
TABLE_COLUMNS = 1 << 15  # per table of text; each becomes an array
TABLE_CELLS = 1 << 24
PICKLE_STEPS = 6 << 20  # opcodes of a pickle; one per token of a text
PICKLE_NAMES = 10_000  # functions and classes that a pickle names, counting repetitions


def keep(what: str, value: int, limit: float, unit: str = "bytes") -> None:
    """Rejects a value above a limit.

    Raises:
      ValueError: `value` is above the limit.
    """
    if value > limit:
        raise ValueError(f"{what} has {short(value)} {unit}, more than the allowed {limit:,}")


def decompressed(size: int) -> int:
    """Returns the most bytes that a compressed file of `size` bytes may hold."""
    return max(FILE_BYTES, GROWTH * size)


def numbered_classes(count: int) -> tuple[str, ...]:
    """Returns the names "0", "1", ... of classes that only have numbers.

    Raises:
      ValueError: there are more than `CLASSES`.
    """
    keep("the set", count, CLASSES, "classes")
    return tuple(map(str, range(count)))
