"""Opens the .pkl snapshots of StyleGAN3 and StyleGAN-XL without torch, and runs nothing of them.

A snapshot pickles a dictionary of networks. Each network carries the source of its class, which the
official loader executes; here it stays text. Names that arrays are written with are recorded and
understood, every other name (of training settings, of discriminators) is recorded and ignored.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.lab.safe.bounded import open_regular
from fedjax_ht.lab.safe.safe_pickle import (
    NUMPY_CALLS,
    Call,
    Dict,
    Recorder,
    build,
    damage_is_a_value_error,
)
from fedjax_ht.lab.safe.torch_files import TENSOR_CALLS, build_tensor, read_storage


class _Ignored(Call):
    """A call of a name that is not understood: it is recorded, and nothing comes of it."""

    def _ignore(self, *_):
        pass

    __setitem__ = append = extend = add = _ignore


_ALLOWED = (
    NUMPY_CALLS
    | TENSOR_CALLS
    | {
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): Call,
        ("torch.storage", "_load_from_bytes"): Call,
        ("torch.nn.modules.sparse", "Embedding"): Call,
        ("dnnlib.util", "EasyDict"): Dict,
        ("dill._dill", "_create_array"): Call,
    }
)


class Module(NamedTuple):
    """A torch module as it was pickled; nothing of it is read before it is asked for.

    Attributes:
      name: the module's place in the snapshot, such as "G_ema.synthesis.input".
      class_name: the name of its Python class.
      state: the module's `__dict__`, as it was recorded.
    """

    name: str
    class_name: str
    state: dict[str, Any]

    def has_module(self, name: str) -> bool:
        """Returns whether the module has a sub-module of this name."""
        return name in self._group("_modules")

    def module(self, name: str) -> "Module":
        """Returns the sub-module of this name."""
        value = self._entry("sub-module", name, self._group("_modules"))
        return _module(f"{self.name}.{name}", value)

    def array(self, name: str) -> np.ndarray | None:
        """Returns the parameter or buffer of this name; None where the module has it as None."""
        arrays = {**self._group("_parameters"), **self._group("_buffers")}
        value = self._entry("array", name, arrays)
        if value is None:
            return None
        with damage_is_a_value_error():
            return build_tensor(f"{self.name}.{name}", value, _storage)

    def attribute(self, name: str) -> Any:
        """Returns the plain value or NumPy array of this name."""
        value = self._entry("attribute", name, self.state)
        with damage_is_a_value_error():
            match value:
                case Call(args=(type() as function, args, state, *_)) if (
                    type(value).__name__ == "_create_array"
                ):
                    value = _recorded(function, args, state)  # dill's way to write an array
            return build(value)

    def number(self, name: str) -> float:
        """Returns the finite number of this name."""
        value = self.attribute(name)
        if (
            not np.isscalar(value)
            or not isinstance(value, int | float | np.number)
            or not math.isfinite(value)
        ):
            raise ValueError(f"{self.name}.{name} is {short(value)}; expected a number")
        return value.item() if isinstance(value, np.generic) else value

    def _group(self, name: str) -> dict[str, Any]:
        return value if isinstance(value := self.state.get(name), dict) else {}

    def _entry(self, kind: str, name: str, entries: dict[str, Any]) -> Any:
        if name not in entries:
            raise ValueError(
                f"{self.name}, a {self.class_name}, has no {kind} {name}; this network is not "
                "supported"
            )
        return entries[name]


def open_snapshot(path: Path | str) -> Module:
    """Opens the network "G_ema" of a snapshot.

    It takes about as much memory as the file has bytes.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or holds no such network. One line.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no snapshot at {path}")
    try:
        with open_regular(path) as file, damage_is_a_value_error():
            content = Recorder(file, _ALLOWED, "", other_names=_Ignored).load()
        if not isinstance(content, dict) or "G_ema" not in content:
            raise ValueError(
                f"holds {_described(content)}; expected a dictionary with the network G_ema, as "
                "StyleGAN3 and StyleGAN-XL write it"
            )
        return _module("G_ema", content["G_ema"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _module(name: str, value: Any) -> Module:
    match value:
        case Call(
            args=({"type": "class", "class_name": str() as class_name, "state": dict() as state},)
        ):
            # persistence, NVIDIA's way to pickle a network
            return Module(name, class_name, state)
        case Call(state=dict() as state):
            return Module(name, type(value).__name__, state)  # a module of torch's own
    raise ValueError(f"{name} is {_described(value)}; expected a torch module")


def _described(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"a {kind.__name__}"


def _storage(record: Any) -> np.ndarray:
    match record:
        case Call(args=(content,)) if type(record).__name__ == "_load_from_bytes":
            # protocol 2 has no bytes, and writes them as a call
            return read_storage(build(content))
    raise ValueError("a tensor without its numbers")


def _recorded(function: type, args: Any, state: Any) -> Call:
    if not issubclass(function, Call) or not isinstance(args, tuple):
        raise ValueError("an array in a form that dill does not write")
    call = function(*args)
    call.__setstate__(state)
    return call
