"""Low-rank adapters (Hu et al., ICLR 2022): dense layers whose kernels are frozen.

    y = x W0 + b + (alpha / r) (x A^T) B^T

W0 and b are frozen weights, one copy for all clients, in the collection "frozen". The layer's
parameters are A [r, inputs], uniform within +-1/sqrt(inputs), and B [outputs, r], zeros. They are
"lora_a" and "lora_b" in the layer's dict. The kernel of an attention layer (nn.DenseGeneral) is
used as a matrix. All other parameters of the extractor are frozen as well; norms keep their running
statistics, and the head trains as usual.
"""

import fnmatch
import math
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.check.options import Positive, Within, checked
from fedjax_ht.core.module_checks import FROZEN, STREAM
from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import product

Rank = Annotated[int, Within(1, 99_999)]
A, B = "lora_a", "lora_b"
DENSE = (nn.Dense, nn.DenseGeneral, Linear)
Tree = Any  # nested dicts of arrays


class Adapted(nn.Module):
    """An extractor with low-rank adapters, called like the extractor itself.

    Attributes:
      module: the extractor, whose own parameters are frozen.
      rank: r of every adapter.
      alpha: numerator of the scale alpha / r; None takes 2 r, a scale of 2 for all ranks.
      targets: patterns of the paths of adapted layers, separated by commas.
    """

    module: nn.Module
    rank: int
    alpha: float | None = 16.0
    targets: str = "*"

    @property
    def scale(self) -> float:
        """Factor of the product of B and A."""
        return 2.0 if self.alpha is None else self.alpha / self.rank

    @nn.compact
    def __call__(self, x: jax.Array, *args: Any) -> jax.Array:
        """Returns the features of x; `args` are the extractor's further arguments."""
        module = self.module.clone(parent=None)
        layers: list[str] = []

        def adapt(next_function, args, kwargs, context):
            y = next_function(*args, **kwargs)
            if context.method_name != "__call__" or type(context.module) not in DENSE:
                return y
            path = "/".join(context.module.path)
            layers.append(path)
            patterns = map(str.strip, self.targets.split(","))
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                return y
            inputs = args[0] if args else kwargs["inputs"]
            return y + self._low_rank(context.module, inputs, y).astype(y.dtype)

        with nn.intercept_methods(adapt):
            if self.is_initializing():
                self._put(module.init(self.make_rng("params"), x, *args), layers)
            return self._run(module, x, *args)

    def _low_rank(self, layer: nn.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        """Returns the adapter's part of a layer's output y."""
        x = _rows(layer, x)
        outputs = y.shape[x.ndim - 1 :]
        shapes = (self.rank, x.shape[-1]), (math.prod(outputs), self.rank)
        a = layer.param(A, lambda key: uniform_fan_in(key, shapes[0], x.shape[-1]))
        b = layer.param(B, nn.initializers.zeros, shapes[1])
        return self.scale * product(product(x, a.T), b.T).reshape(y.shape)

    def _put(self, drawn: Tree, layers: list[str]) -> None:
        """Declares the variables of an extractor whose first call has initialised adapters."""
        adapters, frozen = {}, {}
        for path, value in flatten_dict(drawn["params"]).items():
            (adapters if path[-1] in (A, B) else frozen)[path] = value
        if not adapters:
            known = ", ".join(dict.fromkeys(layers)) or "none"
            raise ValueError(
                f"no dense layer matches lora's targets {self.targets!r}; the layers are {known}"
            )
        collections = {"params": unflatten_dict(adapters), FROZEN: unflatten_dict(frozen)}
        for collection, tree in (drawn | collections).items():
            for name, value in tree.items():
                self.put_variable(collection, name, value)

    def _run(self, module: nn.Module, x: jax.Array, *args: Any) -> jax.Array:
        kept: Tree = self.variables
        variables = {"params": _merged(kept[FROZEN], kept["params"])}
        if "batch_stats" in kept:
            variables["batch_stats"] = kept["batch_stats"]
        rngs = {STREAM: self.make_rng(STREAM)} if self.has_rng(STREAM) else None
        # Norms update running statistics, and may sow intermediates.
        mutable = list(filter(self.is_mutable_collection, ("batch_stats", "intermediates")))
        out, changed = module.apply(variables, x, *args, rngs=rngs, mutable=mutable)
        for collection, tree in changed.items():
            for name, value in tree.items():
                self.put_variable(collection, name, value)
        return out


@checked
def lora(module: nn.Module, rank: Rank, *, alpha: Positive | None = 16.0, targets: str = "*"):
    """Adapts the dense layers of a model at low rank, and freezes the rest of its extractor.

    Args:
      module: a `SplitModel`, whose extractor is adapted and whose head is kept; or an extractor.
      rank: r of every adapter, from 1 to 99,999.
      alpha: numerator of the scale alpha / r; None takes 2 r, so that all ranks have the scale 2.
      targets: patterns of the paths of the layers to adapt within the extractor, as in `fnmatch`,
        separated by commas: "*" for all, "*query,*value". Layers are `nn.Dense`,
        `nn.DenseGeneral`, as in flax's attention, and this library's `Linear`.

    Returns:
      A module of the same kind. `with_weights` sets its frozen weights, as for the module itself;
      otherwise they are random from a fixed key, the same for all clients.

    Raises:
      ValueError: the module is neither; or, at its first trace, no layer matches.

    Example:
      >>> models = {f"rank{r}": fl.models.lora(fl.mlp(3, (16, 8)), r) for r in (2, 4)}
      >>> federation = fl.make_federation(models, (4, 4, 1), num_classes=3, num_clients=4)
      >>> model = fl.init_variables(federation.buckets[0], jax.random.key(0))
      >>> jax.tree.map(jnp.shape, model["params"]["base"]["fc1"])
      {'lora_a': (2, 16), 'lora_b': (16, 2)}
    """
    if isinstance(module, SplitModel):
        return module.clone(base=lora(module.base, rank, alpha=alpha, targets=targets))
    if hasattr(module, "features") and hasattr(module, "classify"):
        raise ValueError(
            f"lora takes a SplitModel or an extractor, but {type(module).__name__} is neither; "
            "give fl.SplitModel(base, head)"
        )
    if isinstance(module, Adapted):
        raise ValueError(
            "lora takes a model without adapters, but this one has some; give the original model"
        )
    return Adapted(module, rank, alpha=alpha, targets=targets)


def is_adapted(module: nn.Module) -> bool:
    """Returns True for a `SplitModel` whose extractor has low-rank adapters."""
    return isinstance(module, SplitModel) and isinstance(module.base, Adapted)


def unadapted(module: nn.Module) -> nn.Module:
    """Returns a model without its adapters."""
    if isinstance(module, SplitModel) and isinstance(module.base, Adapted):
        return module.clone(base=module.base.module)
    return module


def frozen_weights(weights: Tree) -> Tree:
    """Converts `Bucket.weights` of a model to those of the same model with adapters."""
    params = dict(weights["params"])
    return weights | {FROZEN: {"base": params.pop("base")}, "params": params}


def merged_kernels(frozen: Tree, products: Tree) -> Tree:
    """Adds matrices to the kernels of frozen layers.

    Args:
      frozen: parameters of an extractor.
      products: a tree of the adapted layers alone, with a float [..., inputs, outputs] for each,
        reshaped to its kernel.
    """
    layers: Tree = flatten_dict(products)
    kernels: Tree = flatten_dict(frozen)
    for path, matrix in layers.items():
        kernel = kernels[(*path, "kernel")]
        kernels[(*path, "kernel")] = kernel + matrix.reshape(kernel.shape)
    return unflatten_dict(kernels)


def merged_params(scale: float, params: Tree, frozen: Tree) -> Tree:
    """Returns the parameters of the equivalent model without adapters.

    Args:
      scale: factor of the adapters' products, `Adapted.scale`.
      params: the model's {"base", "head"}, adapters and head.
      frozen: frozen variables of the model, {"base": parameters of the extractor}.
    """
    adapters: Tree = flatten_dict(params["base"])
    products = {}
    for (*path, name), a in adapters.items():
        if name == A:
            b = adapters[(*path, B)]
            # scanned blocks have a leading axis; kernels are [inputs, outputs]
            both = jnp.matmul(b, a, precision="highest")
            products[tuple(path)] = scale * jnp.swapaxes(both, -1, -2)
    return params | {"base": merged_kernels(frozen["base"], unflatten_dict(products))}


def _merged(frozen: Tree, adapters: Tree) -> Tree:
    return unflatten_dict(flatten_dict(frozen) | flatten_dict(adapters))


def _rows(layer: nn.Module, x: jax.Array) -> jax.Array:
    """Returns a layer's input with its contracted axes merged into one, the last."""
    if not isinstance(layer, nn.DenseGeneral):
        return x
    if layer.batch_dims:
        path = "/".join(layer.path)
        raise ValueError(f"{path} has batch_dims, which lora does not support; remove it")
    axes = (layer.axis,) if isinstance(layer.axis, int) else tuple(layer.axis)
    contracted = sorted(axis % x.ndim for axis in axes)  # as flax orders the kernel's
    kept = [axis for axis in range(x.ndim) if axis not in contracted]
    size = math.prod(x.shape[axis] for axis in contracted)
    return jnp.transpose(x, (*kept, *contracted)).reshape(*(x.shape[i] for i in kept), size)
