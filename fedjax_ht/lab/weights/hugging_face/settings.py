"""The config.json of a Hugging Face folder, which may come from anybody."""

import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, NamedTuple

_BYTES = 1 << 20  # of a JSON file; those of models have a few thousand
_LARGEST = 1 << 20  # of a size in config.json, such as a number of token ids
_LAYERS = 1000


class Settings(NamedTuple):
    """A folder and the fields of its config.json.

    Attributes:
      folder: the folder.
      fields: name -> value of JSON.
    """

    folder: Path
    fields: dict[str, Any]

    @property
    def place(self) -> str:
        """The file's path, which begins messages."""
        return str(self.folder / "config.json")

    def count(
        self, field: str, default: int | None = None, *, divisor: int = 1, most: int = _LARGEST
    ) -> int:
        """Returns a positive integer, a multiple of `divisor` and at most `most`."""
        value = self.fields.get(field, default)
        if type(value) is not int or not 0 < value <= most or value % divisor:
            multiple = f", a multiple of {divisor}" if divisor > 1 else ""
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be a positive integer of at most "
                f"{most:,}{multiple}"
            )
        return value

    def layers(self, field: str) -> int:
        """Returns the number of layers."""
        return self.count(field, most=_LAYERS)

    def number(self, field: str, default: float) -> float:
        """Returns a positive finite number."""
        value = self.fields.get(field, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be a positive number"
            )
        return float(value)

    def choice(self, field: str, default: str, known: Collection[str]) -> str:
        """Returns one of `known`."""
        value = self.fields.get(field, default)
        if not isinstance(value, str) or value not in known:
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be one of {', '.join(known)}"
            )
        return value

    def require(self, field: str, value: Any) -> None:
        """Refuses a model whose field has another value than the only one that is built; a field
        that is left out or null has it."""
        actual = self.fields.get(field)
        if actual is not None and actual != value:
            raise ValueError(
                f"{self.place}: {field} is {actual!r:.60}; only models with {value!r} are built"
            )

    def rotary_base(self) -> float:
        """Returns the base of rotated positions, which newer files have in "rope_parameters".

        Raises:
          ValueError: the positions are scaled, as those of models for long texts.
        """
        fields = self.fields
        for name in ("rope_scaling", "rope_parameters"):
            values = fields.get(name)
            if values is None:
                continue
            kind = "?"
            if isinstance(values, dict):
                kind = values.get("rope_type", values.get("type", "default"))
            if kind != "default":
                raise ValueError(
                    f"{self.place}: {name} is {values!r:.60}; only rotated positions without a "
                    "scale are built"
                )
            fields = fields | values
        return Settings(self.folder, fields).number("rope_theta", 10_000.0)

    def pooling(self) -> Literal["cls", "mean"]:
        """Returns how the features of a text are made: as 1_Pooling/config.json says, of which the
        folders of sentence encoders have one; else the class token's."""
        place = self.folder / "1_Pooling" / "config.json"
        if not place.exists():
            return "cls"
        fields = read_object(place)
        if fields.get("pooling_mode_mean_tokens") is True:
            return "mean"
        if fields.get("pooling_mode_cls_token") is True:
            return "cls"
        raise ValueError(f"{place}: neither the mean of tokens nor the class token is its pooling")


def read_settings(folder: Path) -> Settings:
    """Reads the config.json of a folder.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no JSON object. One line.
    """
    place = folder / "config.json"
    if not place.is_file():
        raise FileNotFoundError(
            f"no config.json in {folder}; name a folder of Hugging Face's, with config.json and "
            "model.safetensors"
        )
    return Settings(folder, read_object(place))


def read_object(path: Path) -> dict[str, Any]:
    """Reads a small JSON object.

    Raises:
      ValueError: the file is too large, not a regular file, or holds no JSON object. One line.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path} is not a regular file")
        content = file.read(_BYTES + 1)
    if len(content) > _BYTES:
        raise ValueError(f"{path} has more than {_BYTES:,} bytes, which no model's has")
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds no JSON object")
    return fields
