"""How much a file may ask for. Every reader keeps to these numbers, and no reader has others.

The largest files of known sets stay far below them: CIFAR-100's train batch has 154 MB and 300,000
pickle steps, the inflated SVHN 225 MB, ImageNet-21k 21,841 classes.
"""

FILE_BYTES = 256 << 20  # of a file, or a file in an archive, that is read as a whole
TEXT_BYTES = 16 << 20  # of JSON, which takes up to twenty times its size in memory
TEXTS_BYTES = 128 << 20  # of a file of texts; AG News' training set has 30 MB
TEXTS = 1 << 20  # samples of a set of texts
WORDS = 1 << 21  # different ones of a set of texts
# brackets and commas of JSON that may be longer than TEXT_BYTES: each may be a value
MARKS = 1 << 23
GROWTH = 32  # decompressed bytes per byte of a file, where that is more than FILE_BYTES
PIXELS = 1 << 26  # of one image
CLASSES = 100_000
TABLE_ROWS = 1 << 21  # of a table as text
TABLE_CELLS = 1 << 24
PICKLE_STEPS = 1 << 20  # opcodes of a pickle; small integers one after another are one
PICKLE_INTEGERS = 1 << 23  # below 65,536, each an opcode: tokens of a client's texts
PICKLE_NAMES = 10_000  # of functions and classes that a pickle asks for, repetitions counted
PICKLE_DEPTH = 64  # of values in values
PICKLE_VALUES = 1 << 24  # a shared value counted wherever it occurs


def keep(what: str, value: int, limit: float, unit: str = "bytes") -> None:
    """Refuses what is above a limit.

    Raises:
      ValueError: `value` is above the limit.
    """
    if value > limit:
        raise ValueError(f"{what} has {short(value)} {unit}, more than the {limit:,} that are read")


def decompressed(size: int) -> int:
    """How many bytes a compressed file of `size` bytes may hold."""
    return max(FILE_BYTES, GROWTH * size)


def numbered_classes(count: int) -> tuple[str, ...]:
    """The names "0", "1", .. of classes that have only numbers.

    Raises:
      ValueError: there are more than `CLASSES`.
    """
    keep("the set", count, CLASSES, "classes")
    return tuple(map(str, range(count)))


def short(value: object, length: int = 60) -> str:
    """A value for a message. What a file holds may be as long as it likes."""
    text = f"{value:,}" if type(value) is int and abs(value) < 1 << 64 else repr(value)
    return text if len(text) <= length else f"{text[:length]}..."
