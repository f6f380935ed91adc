"""Reads MATLAB files, which SVHN and Flowers-102 come with."""

from pathlib import Path

import numpy as np


def load_mat(name: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a MATLAB 5 file.

    Raises:
      ImportError: scipy is not installed.
      ValueError: the file is damaged.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError(f"{name}: its .mat files need scipy; run pip install scipy") from error
    with path.open("rb") as file:
        try:
            return loadmat(file)
        except Exception as error:  # scipy raises nearly anything on a damaged file
            raise ValueError(f"damaged .mat file ({error})") from error
