"""A federation: one bucket per architecture, and each client's bucket."""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket, make_bucket, put_weights, weights_of, with_frozen
from fedjax_ht.core.inputs import InputShape, plain
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.task import CLASSIFICATION, Task
from fedjax_ht.core.trees import PyTree


@dataclasses.dataclass(frozen=True)
class PublicSet:
    """Size of the public set, which the server and all clients share; the data has its samples.

    Attributes:
      samples: number of samples.
      is_labelled: True if its samples have labels, from the federation's own classes.
    """

    samples: int
    is_labelled: bool = True


@dataclasses.dataclass(frozen=True)
class Federation:
    """The buckets in order, and each client's bucket.

    Attributes:
      buckets: the architectures in use.
      assignment: entry i is the index in `buckets` of client i's bucket. Ids are 0 to
        num_clients - 1.
      num_classes: outputs of the task (classes in classification).
      global_model: a model that only the server holds, as a bucket without clients, or None.
      public: the public set, or None. A simulation sets it from its data.
      task: the meaning of the outputs.
      new: number of clients in each bucket that never train, see `with_new_clients`; () for none.
    """

    buckets: tuple[Bucket, ...]
    assignment: tuple[int, ...]
    num_classes: int
    global_model: Bucket | None = None
    public: PublicSet | None = None
    task: Task = CLASSIFICATION
    new: tuple[int, ...] = ()

    def __repr__(self) -> str:
        counts = [f"{len(self.members(bucket))} x {bucket.name}" for bucket in self.buckets]
        return (
            f"<Federation of {self.num_clients} clients: {', '.join(counts)}; {self.num_classes} "
            f"{'classes' if self.task == CLASSIFICATION else f'outputs, {self.task.name}'}>"
        )

    @property
    def num_clients(self) -> int:
        """The number of clients in all buckets."""
        return len(self.assignment)

    def members(self, bucket: Bucket) -> tuple[int, ...]:
        """Returns the client ids of a bucket, ascending."""
        index = self.buckets.index(bucket)
        return tuple(i for i, b in enumerate(self.assignment) if b == index)

    def num_training(self, bucket: Bucket) -> int:
        """Returns the number of a bucket's clients that take part in training."""
        new = self.new[self.buckets.index(bucket)] if self.new else 0
        return len(self.members(bucket)) - new

    @property
    def shared(self) -> Bucket:
        """The auxiliary model of all buckets."""
        return self.buckets[0].auxiliary

    @property
    def server_model(self) -> Bucket:
        """The global model; the federation must have one."""
        assert self.global_model is not None
        return self.global_model

    @property
    def public_set(self) -> PublicSet:
        """The public set; the federation must have one."""
        assert self.public is not None
        return self.public

    @property
    def feature_dim(self) -> int:
        """The feature width of all buckets; ValueError if they differ."""
        dims = {b.name: b.feature_dim for b in self.buckets}
        if len(set(dims.values())) != 1:
            raise ValueError(
                f"all models must have the same feature width, got {dims}; set one feature_dim for "
                "the group"
            )
        return self.buckets[0].feature_dim


@checked
@standard_numerics()
def make_federation(
    modules: Mapping[str, nn.Module],
    input_shape: InputShape,
    num_classes: int,
    *,
    num_clients: int | None = None,
    assignment: Sequence[str] | None = None,
    shared: nn.Module | None = None,
    global_model: Bucket | None = None,
    task: Task = CLASSIFICATION,
) -> Federation:
    """Builds a federation from modules by name; user-defined modules need no registration.

    Args:
      modules: name -> module (see `Bucket.module`).
      input_shape: `Dataset.input_shape`: shape of one sample as a model sees it, such as (H, W, C).
      num_classes: number of classes, or `Dataset.num_outputs` for other tasks.
      num_clients: number of clients; client i has module i mod len(modules), as in the papers.
      assignment: the name of each client's module, instead of `num_clients`.
      shared: the auxiliary model, for methods that train one besides the client's own; None for the
        (first) module with the fewest parameters.
      global_model: the model that only the server holds, see `Federation`.
      task: the task of the data, `Dataset.task`.

    Returns:
      The federation; modules without clients have no bucket.

    Raises:
      ValueError: a module does not return [B, features] and [B, num_classes], or is not hashable;
        the assignment names an unknown module; or an argument has the wrong type. One line.

    Example:
      >>> models = {"narrow": fl.mlp(3, (8,)), "wide": fl.mlp(3, (16, 8))}
      >>> federation = fl.make_federation(models, (4, 4, 1), num_classes=3, num_clients=5)
      >>> federation.feature_dim
      8
      >>> [(bucket.name, federation.members(bucket)) for bucket in federation.buckets]
      [('narrow', (0, 2, 4)), ('wide', (1, 3))]
    """
    if (num_clients is None) == (assignment is None):
        raise ValueError("give exactly one of num_clients and assignment")
    names = list(modules)
    count = (num_clients or 0) if assignment is None else len(assignment)
    if not names or count < 1:
        raise ValueError(
            f"a federation needs a model and a client, got {len(names)} models and {num_clients=}"
        )
    if assignment is None:
        assignment = [names[i % len(names)] for i in range(count)]
    if unknown := sorted(set(assignment) - set(names)):
        raise ValueError(f"assignment names {unknown[0]!r}, but the modules are {', '.join(names)}")
    form = plain(input_shape), num_classes, task
    group = {name: make_bucket(name, module, *form) for name, module in modules.items()}
    if shared is None:
        auxiliary, _ = min(group.values(), key=operator.itemgetter(1))
    else:
        auxiliary, _ = make_bucket("shared", shared, *form)
    used = [name for name in names if name in set(assignment)]
    buckets = tuple(dataclasses.replace(group[name][0], shared=auxiliary) for name in used)
    places = tuple(used.index(name) for name in assignment)
    return Federation(buckets, places, num_classes, global_model, task=task)


@checked
@standard_numerics()
def make_sliced_federation(
    network: Callable[[float], nn.Module],
    rates: Sequence[float],
    input_shape: InputShape,
    num_classes: int,
    *,
    task: Task = CLASSIFICATION,
) -> Federation:
    """Builds a federation whose clients train slices of one network.

    Args:
      network: (rate) -> a module as in `Bucket.module`, such as `models.sliced_network` returns;
        network(1.0) is the server's model, `Federation.global_model`.
      rates: one width rate per client, above 0 and at most 1: the `width` of client i's bucket is
        rates[i].
      input_shape, num_classes, task: arguments as for `make_federation`.

    Returns:
      The federation, with one bucket per width rate, widest first.

    Raises:
      ValueError: there is no client, or a rate is out of range.

    Example:
      >>> network = fl.sliced_network("conv4_quarter", 10, (32, 32, 3))
      >>> federation = fl.make_sliced_federation(network, (1.0, 0.5, 0.5), (32, 32, 3), 10)
      >>> [(bucket.width, federation.members(bucket)) for bucket in federation.buckets]
      [(1.0, (0,)), (0.5, (1, 2))]
    """
    for i, rate in enumerate(rates):
        if not 0 < rate <= 1:
            raise ValueError(
                f"the width rate of client {i} is {rate}; it must be above 0 and at most 1"
            )
    names = {float(rate): f"rate{float(rate)}" for rate in sorted(set(rates), reverse=True)}
    modules = {name: network(rate) for rate, name in names.items()}
    assignment = [names[float(rate)] for rate in rates]
    federation = make_federation(
        modules, input_shape, num_classes, assignment=assignment, task=task
    )
    buckets = tuple(
        dataclasses.replace(b, width=rate) for b, rate in zip(federation.buckets, names)
    )
    whole, _ = make_bucket("global", network(1.0), plain(input_shape), num_classes, task)
    return dataclasses.replace(federation, buckets=buckets, global_model=whole)


def all_weights(federation: Federation) -> PyTree:
    """Returns the weights of all buckets and the global model, see `weights_of`."""
    return list(map(weights_of, (*federation.buckets, federation.global_model)))


def put_all_weights(federation: Federation, weights: PyTree) -> Federation:
    """Puts the result of `all_weights` back into the federation, see `put_weights`."""
    *of_buckets, of_whole = weights
    buckets, whole = map(put_weights, federation.buckets, of_buckets), federation.global_model
    return dataclasses.replace(
        federation,
        buckets=tuple(buckets),
        global_model=None if whole is None else put_weights(whole, of_whole),
    )


def with_frozen_variables(federation: Federation) -> Federation:
    """Draws frozen variables that the weights lack, see `bucket.with_frozen`."""
    buckets = tuple(map(with_frozen, federation.buckets))
    return dataclasses.replace(federation, buckets=buckets)


def with_new_clients(federation: Federation, share: float) -> Federation:
    """Returns the federation in which a share of each bucket's clients never trains.

    Their numbers are rounded so that they add up to that share of all clients. They do not depend
    on a seed, so programs do not either.

    Raises:
      ValueError: a bucket has no other clients. One line.
    """
    if not share:
        return federation
    sizes = [federation.num_training(bucket) for bucket in federation.buckets]
    new = np.diff(np.floor(share * np.cumsum(sizes) + 0.5).astype(int), prepend=0).tolist()
    for bucket, size, count in zip(federation.buckets, sizes, new):
        if count == size:
            raise ValueError(
                f"new_share is {share}, so all clients of {bucket.name!r} ({size}) are new "
                "and none trains it; use a smaller share or more clients"
            )
    return dataclasses.replace(federation, new=tuple(new))


def without_weights(federation: Federation) -> Federation:
    """Returns the federation without initial weights, which programs take as an argument.

    It compares equal to the original.
    """

    def bare(bucket: Bucket | None) -> Bucket | None:
        if bucket is None:
            return None
        return dataclasses.replace(bucket, weights=None, shared=bare(bucket.shared))

    *buckets, whole = map(bare, (*federation.buckets, federation.global_model))
    return dataclasses.replace(federation, buckets=tuple(buckets), global_model=whole)


def require_equal_heads(federation: Federation) -> None:
    """Checks a federation for methods that exchange heads.

    Raises:
      ValueError: the heads of two buckets differ in the names or the shapes of their parameters.
    """
    first, *further = federation.buckets
    for bucket in further:
        expected, shapes = _head_shapes(first), _head_shapes(bucket)
        if shapes != expected:
            raise ValueError(
                f"all models must have the same head, but that of {first.name!r} is {expected} "
                f"and that of {bucket.name!r} is {shapes}; choose a group with equal heads"
            )


def require_one_feature_width(federation: Federation) -> None:
    """Checks a federation for methods that exchange features.

    Raises:
      ValueError: the models' feature widths differ.
    """
    _ = federation.feature_dim


def _head_shapes(bucket: Bucket) -> dict[str, tuple[int, ...]]:
    def init():
        features = jnp.zeros((1, bucket.feature_dim))
        return bucket.module.init(jax.random.key(0), features, method="classify")

    head = jax.eval_shape(init)["params"]["head"]
    shapes = {}
    for path, leaf in jax.tree.leaves_with_path(head):
        shapes[jax.tree_util.keystr(path, simple=True, separator="/")] = leaf.shape
    return shapes
