"""Data sets that a function of a user's own returns, which a config names as "module:function"."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_ht.core.names import kind_of_value
from fedjax_ht.core.user_code import call_user_function, user_file, user_function
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading

_PURPOSE = "dataset"


def load_user_data(name: str, options: Mapping[str, Any], hint: str) -> Dataset:
    """Returns the data set that a user's function makes; the latest one is kept.

    Args:
      name: the function's name, as "module:function". It is called without arguments.
      options: options of reading, which a user's function takes none of.
      hint: end of the message where there is no such module.

    Raises:
      ValueError: there is no such function, it raises something or returns something else, or an
        option is given. One line.
    """
    for option, value in options.items():
        if value:
            raise ValueError(
                f"{option} is {value!r}, but {name} makes its samples itself; leave it out"
            )
    return _made(user_function(_PURPOSE, name, hint), name)


@functools.lru_cache(maxsize=1)
def _made(function: Callable[..., Any], name: str) -> Dataset:
    del function  # it tells a module that was loaded anew from this one
    dataset = call_user_function(_PURPOSE, name)
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset {name!r} returns {kind_of_value(dataset)}; it must return an fl.Dataset"
        )
    if not len(dataset.labels):
        raise ValueError(f"dataset {name!r} returns a set without samples")
    reading = dataset.reading or Reading()
    if reading.path:
        return dataset
    return dataclasses.replace(dataset, reading=dataclasses.replace(reading, path=user_file(name)))
