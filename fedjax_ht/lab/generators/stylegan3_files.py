"""Reads StyleGAN3 and StyleGAN-XL networks from .pkl snapshots.

A snapshot pickles a dictionary of networks. It is opened without torch, and none of it is executed.
Each network includes the source of its class, which the official loader executes; here it stays
text. Names used to write arrays are recorded and interpreted. All other names (of training
settings, of discriminators) are recorded and ignored.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.lab.generators import npz, stylegan3
from fedjax_ht.lab.safe import safe_pickle
from fedjax_ht.lab.safe.bounded import in_one_line, open_regular
from fedjax_ht.lab.safe.torch_files import TENSOR_CALLS, build_tensor, read_storage
from fedjax_ht.models.generator import Card, Generator

_CLASSES = ("Generator", "SuperresGenerator")
_LICENCE = "the snapshot's own; NVIDIA's are for research and evaluation only"


class _Ignored(safe_pickle.Call):
    """A call of an unknown name, recorded and ignored."""

    def _ignore(self, *_):
        pass

    __setitem__ = append = extend = add = _ignore


_ALLOWED = (
    safe_pickle.NUMPY_CALLS
    | TENSOR_CALLS
    | {
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): safe_pickle.Call,
        ("torch.storage", "_load_from_bytes"): safe_pickle.Call,
        ("torch.nn.modules.sparse", "Embedding"): safe_pickle.Call,
        ("dnnlib.util", "EasyDict"): safe_pickle.Dict,
        ("dill._dill", "_create_array"): safe_pickle.Call,
    }
)


class Module(NamedTuple):
    """A torch module as pickled; its content is read only on access.

    Attributes:
      name: path of the module in the snapshot, such as "G_ema.synthesis.input".
      class_name: name of its Python class.
      state: the module's `__dict__`, as recorded.
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
        """Returns the parameter or buffer of this name; None if the module has it as None."""
        arrays = {**self._group("_parameters"), **self._group("_buffers")}
        value = self._entry("array", name, arrays)
        if value is None:
            return None
        with safe_pickle.damage_is_a_value_error():
            return build_tensor(f"{self.name}.{name}", value, _storage)

    def attribute(self, name: str) -> Any:
        """Returns the plain value or NumPy array of this name."""
        value = self._entry("attribute", name, self.state)
        with safe_pickle.damage_is_a_value_error():
            match value:
                case safe_pickle.Call(args=(type() as function, args, state, *_)) if (
                    type(value).__name__ == "_create_array"
                ):
                    value = _recorded(function, args, state)  # dill's format of an array
            return safe_pickle.build(value)

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

    This takes about as much memory as the file's size.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or holds no such network. One line.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no snapshot at {path}")
    with in_one_line(str(path)):
        with open_regular(path) as file, safe_pickle.damage_is_a_value_error():
            content = safe_pickle.Recorder(file, _ALLOWED, "", other_names=_Ignored).load()
        if not isinstance(content, dict) or "G_ema" not in content:
            raise ValueError(
                f"holds {_described(content)}; expected a dictionary with the network G_ema, as "
                "StyleGAN3 and StyleGAN-XL write it"
            )
        return _module("G_ema", content["G_ema"])


def _module(name: str, value: Any) -> Module:
    match value:
        case safe_pickle.Call(
            args=({"type": "class", "class_name": str() as class_name, "state": dict() as state},)
        ):
            # persistence, NVIDIA's way to pickle networks
            return Module(name, class_name, state)
        case safe_pickle.Call(state=dict() as state):
            return Module(name, type(value).__name__, state)  # one of torch's own modules
    raise ValueError(f"{name} is {_described(value)}; expected a torch module")


def _described(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"a {kind.__name__}"


def _storage(record: Any) -> np.ndarray:
    match record:
        case safe_pickle.Call(args=(content,)) if type(record).__name__ == "_load_from_bytes":
            # protocol 2 has no bytes, and writes them as a call
            return read_storage(safe_pickle.build(content))
    raise ValueError("a tensor without its values")


def _recorded(function: type, args: Any, state: Any) -> safe_pickle.Call:
    if not issubclass(function, safe_pickle.Call) or not isinstance(args, tuple):
        raise ValueError("an array in a form that dill does not write")
    call = function(*args)
    call.__setstate__(state)
    return call


def load_snapshot(path: Path | str) -> Generator:
    """Loads the generator in a .pkl snapshot; see `open_snapshot`.

    Its card has what the snapshot tells about itself: name and family.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged, or its network is not supported, as the message explains. One
        line.
    """
    network, variables = read_snapshot(path)
    origin = f"{network.family} snapshot {Path(path).name}"
    card = Card(Path(path).stem, licence=_LICENCE, origin=origin)
    return stylegan3.make_generator(network, variables, card)


def read_snapshot(path: Path | str) -> tuple[stylegan3.Network, stylegan3.Variables]:
    """Reads the static description and the arrays of a .pkl snapshot.

    Raises:
      FileNotFoundError, ValueError: as for `load_snapshot`.
    """
    root = open_snapshot(path)
    with in_one_line(str(path)):
        if root.class_name not in _CLASSES:
            raise ValueError(
                f"G_ema is a {root.class_name}; only {' and '.join(_CLASSES)} are supported"
            )
        synthesis = root.module("synthesis")
        if "layer_names" not in synthesis.state:
            raise ValueError(
                f"G_ema's synthesis, a {synthesis.class_name}, has no layer_names; it is not a "
                "StyleGAN3 or StyleGAN-XL"
            )
        return _read(root, synthesis)


def _read(root: Module, synthesis: Module) -> tuple[stylegan3.Network, stylegan3.Variables]:
    mapping, waves = root.module("mapping"), synthesis.module("input")
    arrays: dict[str, np.ndarray] = {}
    num_classes = class_dim = 0
    if root.number("c_dim"):
        # StyleGAN-XL keeps ImageNet's 1,000 embeddings, and uses the first ones for fewer classes.
        arrays["classes"] = _class_embeddings(mapping)[: int(root.number("c_dim"))]
        num_classes, class_dim = arrays["classes"].shape
    dense = [mapping.module(f"fc{i}") for i in range(int(mapping.number("num_layers")))]
    layers = [synthesis.module(name) for name in synthesis.attribute("layer_names")]
    # Without classes, StyleGAN3 has no embeddings, and StyleGAN-XL has them without a projection.
    embeds = mapping.has_module("embed_proj") or (not num_classes and mapping.has_module("embed"))
    is_xl = root.class_name == "SuperresGenerator" or embeds
    network = stylegan3.Network(
        family="styleganxl" if is_xl else "stylegan3",
        noise_dim=int(root.number("z_dim")),
        latent_dim=int(root.number("w_dim")),
        num_classes=num_classes,
        class_dim=class_dim,
        mapping_layers=len(dense),
        size=tuple(int(length) for length in waves.attribute("size")),
        sampling_rate=float(waves.number("sampling_rate")),
        bandwidth=float(waves.number("bandwidth")),
        output_scale=float(synthesis.number("output_scale")),
        layers=tuple(_layer(module) for module in layers),
    )
    for i, module in enumerate(dense):
        arrays |= _dense(f"mapping/{i}", module, "lrelu")
    weight = _array(waves, "weight")
    arrays |= {
        "input/transform": _array(waves, "transform"),
        "input/frequencies": _array(waves, "freqs"),
        "input/phases": _array(waves, "phases"),
        "input/weight": weight.T / math.sqrt(len(weight)),
    }
    arrays |= _dense("input/style", waves.module("affine"), "linear")
    for i, (layer, module) in enumerate(zip(network.layers, layers)):
        arrays |= _layer_arrays(f"layers/{i}", layer, module)
    return network, checked(network, arrays)


def _class_embeddings(mapping: Module) -> np.ndarray:
    """Returns each class's part of the mapping's input, float [classes, E]."""
    if not mapping.has_module("embed_proj"):
        # A dense layer of a one-hot vector picks a row of its weight.
        embed = _dense("embed", mapping.module("embed"), "linear")
        return _normalised(embed["embed/weight"] + embed["embed/bias"])
    project = _dense("project", mapping.module("embed_proj"), "lrelu")
    embedded = _array(mapping.module("embed"), "weight")
    x = embedded @ project["project/weight"] + project["project/bias"]
    return _normalised(np.where(x >= 0, x, 0.2 * x) * math.sqrt(2))


def _normalised(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, 1, keepdims=True) + 1e-8)


def _layer(module: Module) -> stylegan3.Layer:
    up, down = module.array("up_filter"), module.array("down_filter")
    clamp = module.attribute("conv_clamp")
    return stylegan3.Layer(
        inputs=int(module.number("in_channels")),
        outputs=int(module.number("out_channels")),
        kernel=int(module.number("conv_kernel")),
        up=int(module.number("up_factor")),
        down=int(module.number("down_factor")),
        up_taps=1 if up is None else len(up),
        down_taps=1 if down is None else len(down),
        radial=down is not None and down.ndim == 2,
        padding=tuple(int(edge) for edge in module.attribute("padding")),
        clamp=None if clamp is None else float(clamp),
        to_rgb=bool(module.attribute("is_torgb")),
    )


def _layer_arrays(name: str, layer: stylegan3.Layer, module: Module) -> dict[str, np.ndarray]:
    weight = _array(module, "weight")
    gain = 1 / np.sqrt(_array(module, "magnitude_ema"))
    if layer.to_rgb:
        gain = gain / math.sqrt(layer.inputs * layer.kernel**2)
    else:
        weight = weight / np.sqrt(np.mean(weight * weight, (1, 2, 3), keepdims=True))
    arrays = {
        f"{name}/weight": weight.transpose(2, 3, 1, 0),
        f"{name}/bias": _array(module, "bias"),
        f"{name}/gain": gain,
    }
    for kind in ("up_filter", "down_filter"):
        taps = module.array(kind)
        arrays[f"{name}/{kind}"] = np.ones(1) if taps is None else taps
    return arrays | _dense(f"{name}/style", module.module("affine"), "linear")


def _dense(name: str, module: Module, activation: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a fully connected layer, with its gains multiplied in."""
    if module.attribute("activation") != activation:
        raise ValueError(
            f"{module.name} has the activation {module.attribute('activation')!r}; expected "
            f"{activation}"
        )
    weight = _array(module, "weight") * module.number("weight_gain")
    bias = module.array("bias")
    if bias is None:
        bias = np.zeros(len(weight))
    else:
        bias = np.asarray(bias, np.float64) * module.number("bias_gain")
    return {f"{name}/weight": weight.T, f"{name}/bias": bias}


def _array(module: Module, name: str) -> np.ndarray:
    value = module.array(name)
    if value is None:
        raise ValueError(f"{module.name}.{name} is None; expected numbers")
    return np.asarray(value, np.float64)


def checked(network: stylegan3.Network, arrays: dict[str, np.ndarray]) -> stylegan3.Variables:
    """Returns the arrays as variables, after checking the network and their shapes."""
    _check_network(network, len(arrays))
    expected = stylegan3.expected_shapes(network)
    if unknown := arrays.keys() ^ expected.keys():
        raise ValueError(f"the arrays {', '.join(sorted(unknown))} are missing or unknown")
    npz.check(arrays, expected)
    return {name: jnp.asarray(arrays[name], jnp.float32) for name in expected}


def _check_network(network: stylegan3.Network, num_arrays: int) -> None:
    """Rejects a network whose layers do not fit together, before anything of its size is made."""
    if not network.layers:
        raise ValueError("the synthesis has no layers")
    if network.mapping_layers > num_arrays:
        raise ValueError(
            f"it has {short(network.mapping_layers)} mapping layers but only {num_arrays} arrays"
        )
    channels, (width, height) = network.layers[0].inputs, network.size
    for i, layer in enumerate(network.layers):
        is_last = i == len(network.layers) - 1
        if layer.inputs != channels or layer.to_rgb != is_last or min(layer.up, layer.down) < 1:
            raise ValueError(f"layer {i} does not fit the one before it: {layer}")
        width = _length_after(layer, width, sum(layer.padding[:2]))
        height = _length_after(layer, height, sum(layer.padding[2:]))
        if min(width, height) < 1:
            raise ValueError(f"layer {i} leaves an image of {width} x {height} pixels")
        channels = layer.outputs
    if channels not in (1, 3):
        raise ValueError(f"its images have {channels} channels; expected 1 or 3")


def _length_after(layer: stylegan3.Layer, length: int, padding: int) -> int:
    """Returns the side of a layer's output, as in `stylegan3.filtered_leaky_relu`."""
    lost = layer.up_taps + layer.down_taps - 2
    return -(-((length + layer.kernel - 1) * layer.up + padding - lost) // layer.down)
