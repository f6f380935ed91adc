"""Tells the samples of a client's file of PFLlib or HtFLlib: images, windows, rows or texts."""

import numpy as np

from fedjax_ht.core.inputs import CHANNELS, looks_like_image
from fedjax_ht.data.conversion import as_array
from fedjax_ht.lab.readers.image_arrays import to_bytes, to_nhwc
from fedjax_ht.lab.readers.raw import as_stored


def client_inputs(x: np.ndarray | list) -> tuple[str, np.ndarray]:
    """The kind of a client's samples, and the samples as they are kept, see `read_client_folders`.

    Raises:
      ValueError: they are of no kind.
    """
    if isinstance(x, np.ndarray) and x.dtype.hasobject:
        x = x.tolist()
    if isinstance(x, list):
        if not x or _is_pair(x[0]):
            return "texts", _texts(x)
        x = _stacked(x)
    if x.dtype.kind == "b" or (x.dtype == np.uint8 and x.ndim > 2):
        return "images", _bytes(x)
    if x.dtype.kind != "f":
        return "texts", _tokens(x)
    if x.ndim == 4:
        return _images_or_windows(x)
    return "rows", as_stored("x", x)


def _images_or_windows(x: np.ndarray) -> tuple[str, np.ndarray]:
    """The kind of floats [n, C, H, W], and the samples as they are kept."""
    if x.shape[1] in CHANNELS and looks_like_image(x.shape[2:]):
        return "images", _images(x)
    windows = as_stored("x", x).transpose(0, 3, 2, 1)  # time first
    if windows.shape[2] == 1:
        windows = windows[:, :, 0]
    return "windows", np.ascontiguousarray(windows)


def _is_pair(sample: object) -> bool:
    """Returns whether a sample is a list of tokens and its length."""
    match sample:
        case (list() | tuple(), int()):
            return True
    return False


def _stacked(samples: list) -> np.ndarray:
    """Arrays, or numbers in lists, of one shape as one array.

    Raises:
      ValueError: they are something else.
    """
    for sample in samples:
        if not isinstance(sample, np.ndarray) and not _is_numbers(sample):
            raise ValueError(
                "x holds something else than pairs of a list of integers and its length, or arrays "
                "of one shape"
            )
    return as_array("x", samples)


def _is_numbers(sample: object) -> bool:
    """Returns whether a list, or lists in lists, holds numbers alone."""
    if not isinstance(sample, list | tuple):
        return False
    if all(isinstance(part, list | tuple) for part in sample):
        return all(map(_is_numbers, sample))
    return set(map(type, sample)) <= {int, float, bool}


def _bytes(x: np.ndarray) -> np.ndarray:
    """Images of bool or bytes as bytes [n, H, W, C]."""
    if x.ndim not in (3, 4):
        raise ValueError(f"x is {x.dtype} {x.shape}, neither floats nor integers [n, L]")
    return np.ascontiguousarray(to_bytes(to_nhwc(x))[0])


def _tokens(x: np.ndarray) -> np.ndarray:
    """Integers [n, L] as int32."""
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise ValueError(f"x is {x.dtype} {x.shape}, neither floats nor integers [n, L]")
    if x.size and x.min() < 0:
        raise ValueError(f"x has the token {x.min()}; tokens are 0 or more")
    return as_stored("x", x).astype(np.int32, copy=False)


def _images(x: np.ndarray) -> np.ndarray:
    """Floats [n, C, H, W] in [-1, 1] to bytes [n, H, W, C]."""
    if x.size and not -1 <= x.min() <= x.max() <= 1:
        raise ValueError(f"x runs from {x.min()} to {x.max()}, not within -1 to 1")
    return np.round((x * 0.5 + 0.5) * 255).astype(np.uint8).transpose(0, 2, 3, 1)


def _texts(pairs: list) -> np.ndarray:
    """int32 [n, L] of n pairs of a list of L tokens and how many of them are no padding."""
    for pair in pairs:
        match pair:
            # Types before numpy sees them: among texts of any length it would give each number the
            # longest one's room.
            case (list() | tuple() as tokens, int()) if set(map(type, tokens)) <= {int}:
                pass
            case _:
                raise ValueError(
                    "x holds something else than pairs of a list of integers and its length"
                )
    if len(sizes := {len(tokens) for tokens, _ in pairs}) > 1:
        raise ValueError(
            f"x has texts of {min(sizes)} to {max(sizes)} tokens, padding counted; all must be as "
            "long"
        )
    if not pairs:
        return np.zeros((0, 0), np.int32)
    tokens, lengths = (np.array(values, np.int64) for values in zip(*pairs))
    behind = np.arange(tokens.shape[1]) >= lengths[:, None]
    fits = 0 <= lengths.min() <= lengths.max() <= tokens.shape[1]
    if not fits or tokens.min(initial=0) < 0 or tokens[behind].any():
        raise ValueError(
            "x has tokens below 0, or a length that is not that of its text: behind it is only "
            "padding, 0"
        )
    return as_stored("x", tokens)
