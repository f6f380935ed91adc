"""Makes a data set of a table's columns, with the checks that hold for tables of every origin."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.conversion import refuse_merged
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.columns import Roles
from fedjax_ht.lab.readers.table_checks import (
    class_lines,
    refuse_giveaways,
    refuse_text_giveaways,
)
from fedjax_ht.lab.readers.tokens import TextForm, tokenised


def numbers_set(
    name: str,
    roles: Roles,
    *,
    inputs: np.ndarray,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    counts: Sequence[int],
    reading: Reading,
    **parts: Any,
) -> Dataset:
    """Returns a set of rows of numbers, which a model sees standardised by the training samples.

    Args:
      name: the set's name.
      roles: roles of the columns.
      inputs: float64 [N, features], all finite.
      labels: the rows' classes, int [N].
      class_names: names of the classes.
      counts: rows of each file.
      reading: the record of the reading, to which lines on the columns are added.
      **parts: other fields of the `Dataset`.

    Raises:
      ValueError: a column is plausibly not what it is taken for, or float32 makes its values equal.
    """
    warnings = refuse_giveaways(roles, inputs, labels, counts)
    warnings += class_lines(f"column {roles.label!r}", labels, class_names)
    refuse_merged("the table", inputs, roles.features)
    return Dataset(
        name,
        inputs.astype(np.float32),
        labels,
        class_names,
        preprocess=Standardised(),
        reading=_completed(reading, roles, warnings),
        **parts,
    )


def texts_set(
    name: str,
    roles: Roles,
    *,
    cells: Sequence[Sequence[str]],
    labels: np.ndarray,
    class_names: tuple[str, ...],
    form: TextForm,
    official: Mapping[str, np.ndarray],
    reading: Reading,
    **parts: Any,
) -> Dataset:
    """Returns a set of texts, as tokens of a tokenizer or of a vocabulary of the training texts.

    Args:
      name: the set's name.
      roles: roles of the columns; without names where the file has no head.
      cells: the columns of text of each row, which are joined.
      labels: the rows' classes, int [N].
      class_names: names of the classes.
      form: length of the texts, and their tokenizer.
      official: name of a set -> indices of its rows; without "train" all texts are learned from.
      reading: the record of the reading, to which lines on the columns are added.
      **parts: other fields of the `Dataset`.

    Raises:
      ValueError: a column is plausibly not what it is taken for. One line.
    """
    warnings = refuse_text_giveaways(roles, cells, labels)
    column = f"column {roles.label!r}" if roles.label else "the first column"
    warnings += class_lines(column, labels, class_names)
    texts = list(map(" ".join, cells))
    learned = official.get("train", np.arange(len(texts)))
    tokens = tokenised(texts, learned, form)
    completed = _completed(reading, roles, warnings + tokens.warnings)
    return Dataset(
        name,
        tokens.ids,
        labels,
        class_names,
        official=official,
        vocabulary=len(tokens.texts),
        reading=dataclasses.replace(completed, token_texts=tokens.texts),
        **parts,
    )


def _completed(reading: Reading, roles: Roles, warnings: tuple[str, ...]) -> Reading:
    """The record with the columns' names, and the lines on them before its own."""
    sentence = (roles.sentence,) if roles.sentence else ()
    return dataclasses.replace(
        reading,
        label=roles.label,
        features=roles.features,
        warnings=(*sentence, *warnings, *reading.warnings),
    )
