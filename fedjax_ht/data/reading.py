"""Records of how readers read their files, which a `Dataset` carries along."""

import dataclasses
import json
from typing import NamedTuple


class LeftOut(NamedTuple):
    """Files of a folder that are not samples of the set.

    Attributes:
      number: number of files; 0 for a single named entry.
      what: the kind of one of them, such as "file .heic", or a folder.
      why: the reason, such as "no kind of image that is read".
      is_usual: True for files that usually accompany samples, which need no warning.
    """

    number: int
    what: str
    why: str
    is_usual: bool = False

    def __str__(self) -> str:
        word, *more = self.what.split(" ", 1)
        if self.number > 1:
            word += "s"
        counted = [f"{self.number:,}"] if self.number else []
        return f"{' '.join([*counted, word, *more])} ({self.why})"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A record of one reading.

    Attributes:
      path: file or folder that was read; "" for arrays in memory.
      label: name of the label column; "" if it has none.
      features: names of the feature columns, in order.
      token_texts: the text of each token id, for a set of texts.
      group_names: the name of each number in `Dataset.groups`; () if groups are numbers.
      left_out: files that are not samples.
      converted: conversions of the contents, one phrase each, such as "3 images turned by their
        EXIF orientation".
      warnings: messages on choices that may be unintended; `load_dataset` logs them at every call.
    """

    path: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    token_texts: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    converted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Returns the record as JSON, for a file next to the arrays."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Reading":
        """Returns the record that `to_json` wrote.

        Raises:
          ValueError, TypeError: the text was not written by `to_json`.
        """
        fields = json.loads(text)
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)
        fields["left_out"] = tuple(LeftOut(*entry) for entry in fields["left_out"])
        return cls(**fields)
