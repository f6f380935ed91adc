"""Bases of a distilling method: methods whose servers average whole models or slices, or none.

"none":   data-free; every client trains a model of its own and uploads it, nothing comes down;
          the server's model is only ever distilled
another:  its round; then the uploaded models teach the averaged one, which the next round
          starts from
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.names import meant
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.local import local
from fedjax_ht.methods.shared.partial_training import uploaded_params
from fedjax_ht.methods.shared.supervised import train_model


class Base(NamedTuple):
    """A base.

    Attributes:
      method: the method; its server state is the global model's parameters {"base", "head"}.
      uploaded: (uplinks with a leading axis) -> the uploaded models' parameters with that axis.
    """

    method: Method
    uploaded: Callable[[PyTree], PyTree]


def alone(training: LocalTraining) -> Method:
    """Makes the base "none": clients train alone and upload their models, the server stays.

    Args:
      training: the recipe of local training.
    """

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        return client, client["params"], {"loss": result.loss}

    def init_server(federation, key):
        return init_variables(federation.global_model, key)["params"]

    base = local(training)
    wire = base.wire._replace(positions="own")
    return base._replace(
        name="none", init_server=init_server, client_update=client_update, wire=wire
    )


def _whole_uplink(uplink: PyTree) -> PyTree:
    return uplink


def _fedavg_params(uplink: PyTree) -> PyTree:
    return uplink.params


BASES: dict[str, tuple[Callable[..., Method], Callable[[PyTree], PyTree]]] = {
    "none": (alone, _whole_uplink),
    "fedavg": (fedavg, _fedavg_params),
    # A teacher's head has to be whole; averaged are the rows that the base's label_split says.
    "heterofl": (functools.partial(heterofl, whole_head=True), uploaded_params),
    "feddropout": (functools.partial(feddropout, whole_head=True), uploaded_params),
    "fedrolex": (functools.partial(fedrolex, whole_head=True), uploaded_params),
}
"""Name -> (factory, `Base.uploaded`)."""


def check_base(name: str, base: Method, federation: Federation) -> None:
    """Raises a ValueError where the method `name` cannot distil on its base in a federation."""
    if federation.global_model is None:
        raise ValueError(
            f"{name} needs a global model; make the federation by make_sliced_federation "
            "(in a config: set model.rates)"
        )
    base.check(federation)
    if base.name == "fedavg" and federation.buckets[0].width != 1:
        raise ValueError(
            f"{name} averages whole models; all rates must be 1, not {federation.buckets[0].width}"
        )


def make_base(name: str, training: LocalTraining, **options) -> Base:
    """Makes a base by name.

    Args:
      name: a key of `BASES`.
      training: the recipe of local training.
      **options: options of the base's factory.

    Raises:
      ValueError: there is no such base.
    """
    if name not in BASES:
        raise ValueError(
            f"base is {name!r}" + meant(name, BASES, f"it must be one of {', '.join(BASES)}")
        )
    factory, uploaded = BASES[name]
    return Base(factory(training, **options), uploaded)
