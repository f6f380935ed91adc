"""Writes pickles opcode by opcode, as torch and its users do, without torch."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np

ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


class Reduced:
    """Pickles to what `__reduce__` may return: function, arguments, state, list and dict items."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def attacks(target: Path) -> dict[str, Reduced]:
    """Objects that write `target` when they are read from a pickle."""
    code = f"open({str(target)!r}, 'w').close()"
    return {
        "system": Reduced(os.system, (f"touch {target}",)),
        "eval": Reduced(eval, (code,)),
        "exec": Reduced(exec, (code,)),
        "open": Reduced(open, (str(target), "w")),
    }


def plain(value) -> bytes:
    """The opcodes of a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def call(name: str, *arguments: bytes) -> bytes:
    """The opcodes of a call of "module function"."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n(" + b"".join(arguments) + b"tR"


def dictionary(entries: Mapping[str, bytes], start: bytes = b"}") -> bytes:
    return start + b"(" + b"".join(plain(name) + value for name, value in entries.items()) + b"u"


def storage(
    array: np.ndarray, kind: str = "FloatStorage", key: str = "7", little: bool = True
) -> bytes:
    """A storage in the stream of torch before 1.6, as pickle writes a tensor's numbers, too."""
    record = (
        b"("
        + plain("storage")
        + f"ctorch\n{kind}\n".encode()
        + b"".join(map(plain, (key, "cuda:0", array.size)))
    )
    start = [
        0x1950A86A20F9469CFC6C,
        1001,
        {"protocol_version": 1001, "little_endian": little, "type_sizes": {}},
    ]
    pickled = [pickle.dumps(value, 2) for value in start] + [
        b"\x80\x02" + record + b"NtQ.",
        pickle.dumps([key], 2),
    ]
    return b"".join(pickled) + array.size.to_bytes(8, "little") + array.tobytes()


def tensor(array: np.ndarray, stream: bytes | None = None) -> bytes:
    """The opcodes of a float32 tensor, its storage inside the pickle."""
    array = np.asarray(array, np.float32, order="C")
    strides = tuple(step // 4 for step in array.strides)
    inside = call(
        "torch.storage _load_from_bytes",
        plain(storage(array.ravel()) if stream is None else stream),
    )
    places = b"".join(map(plain, (0, array.shape, strides, False)))
    return call("torch._utils _rebuild_tensor_v2", inside, places, ORDERED_DICT)


def network(
    class_name: str, attributes: Mapping[str, bytes], modules=None, arrays=None, source: str = ""
) -> bytes:
    """The opcodes of a network as NVIDIA's code pickles it: its class's source and its state."""
    state = dict(attributes) | {
        "_parameters": dictionary(arrays or {}, ORDERED_DICT),
        "_buffers": ORDERED_DICT,
        "_modules": dictionary(modules or {}, ORDERED_DICT),
    }
    about = {"type": "class", "version": 6, "module_src": source, "class_name": class_name}
    about = {name: plain(value) for name, value in about.items()} | {"state": dictionary(state)}
    return call("torch_utils.persistence _reconstruct_persistent_obj", dictionary(about))


def write_snapshot(path: Path, **networks: bytes) -> Path:
    path.write_bytes(b"\x80\x02" + dictionary(networks) + b".")
    return path
