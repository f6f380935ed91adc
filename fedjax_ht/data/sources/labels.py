"""Warns of labels that are read, but look wrong."""

import logging
from pathlib import Path

import numpy as np


def warn_of_empty_class_0(path: Path | str, labels: np.ndarray) -> None:
    """Warns in one line if no sample is of class 0.

    The labels may count from 1, and a model would learn a class too many.
    """
    if len(labels) and labels.min() > 0:
        logging.warning(
            f"{path}: labels run from {labels.min()} to {labels.max()}, so that class 0 has no "
            "sample; if they count from 1, subtract 1 from them"
        )
