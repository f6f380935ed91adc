"""Records of the readers' work on their files, which a `Dataset` carries beside the arrays."""

import dataclasses
import json
from typing import NamedTuple


class LeftOut(NamedTuple):
    """Files of a folder that are no samples of the set.

    Attributes:
      number: number of the files; 0 for an entry that is named itself.
      what: the kind of one of them, such as "file .heic", or a folder.
      why: the reason, "no kind of image that is read".
      is_usual: True for what usually stands beside samples, which is no reason for a warning.
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
      path: file or folder that was read; "" for arrays that came from memory.
      label: name of the label's column; "" where the labels have no name.
      features: names of the columns that are the samples, in order.
      token_texts: the text of each token id, of a set of texts.
      group_names: the name of each number in `Dataset.groups`; () where groups are numbers.
      left_out: files that are no samples.
      converted: changes on the way into the arrays, a phrase each, such as "3 images turned by
        their EXIF orientation".
      warnings: lines on choices that may have been meant otherwise; `load_dataset` logs them at
        every call.
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
        """Returns the record as JSON, for a file beside the arrays."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Reading":
        """Returns the record that `to_json` wrote.

        Raises:
          ValueError, TypeError: the text is not what `to_json` writes.
        """
        fields = json.loads(text)
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)
        fields["left_out"] = tuple(LeftOut(*entry) for entry in fields["left_out"])
        return cls(**fields)
