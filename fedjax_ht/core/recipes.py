"""Local training that differs by architecture: one method with several recipes."""

from collections.abc import Callable, Mapping

from fedjax_ht.check.names import meant
from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method

OTHERS = "*"
"""Stands for every architecture without its own recipe."""


@checked
def by_architecture(
    make: Callable[[LocalTraining], Method], training: Mapping[str, LocalTraining]
) -> Method:
    """Makes a method with a training recipe for each architecture.

    An architecture's client functions come from `make` with its recipe. Everything else (the
    server, its training, messages) comes from `make` with the recipe of "*".

    Args:
      make: (recipe) -> the method; only the recipe may differ.
      training: name of an architecture -> its recipe; "*" is the recipe of all others.

    Raises:
      ValueError: there is no "*"; or, from the method's `check`, the federation lacks a named
        architecture. One line.

    Example:
      >>> slow, fast = (fl.LocalTraining(optax.sgd(rate)) for rate in (0.01, 0.1))
      >>> method = fl.by_architecture(fl.fedproto, {"resnet8": slow, "*": fast})
      >>> method.training_of("resnet8") is slow, method.training_of("cnn1") is fast
      (True, True)
    """
    if OTHERS not in training:
        raise ValueError(
            f"training has recipes for {', '.join(training) or 'no architecture'}; it also needs "
            f"one for {OTHERS!r}, that is, all others"
        )
    method = make(training[OTHERS])
    by_name = {name: make(recipe) for name, recipe in training.items() if name != OTHERS}

    def of(bucket: Bucket) -> Method:
        return by_name.get(bucket.name, method)

    def init_client(bucket, ctx):
        return of(bucket).init_client(bucket, ctx)

    def receive(bucket, client, downlink, data, ctx):
        return of(bucket).receive(bucket, client, downlink, data, ctx)

    def client_update(bucket, client, downlink, data, ctx):
        return of(bucket).client_update(bucket, client, downlink, data, ctx)

    def check(federation: Federation) -> None:
        known = [bucket.name for bucket in federation.buckets]
        for name, variant in by_name.items():
            if name not in known:
                rule = f"the federation's architectures are {', '.join(known)}"
                raise ValueError(f"training has a recipe for {name!r}{meant(name, known, rule)}")
            variant.check(federation)
        method.check(federation)

    def at(settings) -> Method:
        return by_architecture(lambda recipe: make(recipe).at(settings), training)

    return method._replace(
        init_client=init_client,
        receive=receive,
        client_update=client_update,
        check=check,
        recipes=tuple((name, variant.training) for name, variant in by_name.items()),
        vary=None if method.vary is None else at,
    )
