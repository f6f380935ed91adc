"""Server optimisers for methods whose server averages parameters.

They are FedAvgM (Hsu et al., 2019), FedAdagrad, FedAdam and FedYogi (Reddi et al., ICLR 2021). With
D the mean of the uploads minus the server's parameters w:

    fedavgm     u <- beta u + D;                w <- w + eta u
    adaptive    m <- b1 m + (1 - b1) D;         w <- w + eta m / (sqrt(v) + tau)
    fedadagrad  v <- v + D^2, with b1 0
    fedadam     v <- b2 v + (1 - b2) D^2
    fedyogi     v <- v - (1 - b2) D^2 sign(v - D^2)

As in the paper, v starts at tau^2, and m and v have no bias correction. The authors' code corrects
the step of FedAdam and FedYogi in round t, eta sqrt(1 - b2^t) / (1 - b1^t) in place of eta, so that
tau is not corrected, and starts v at 0: bias_correction=True, server_v0=0.

An entry with D exactly 0, such as one that no client of the round holds, keeps w, m and v. Batch
statistics stay with each client, as without an optimiser.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import NonNegative, Positive, Rest, SearchRange, checked, options_of
from fedjax_ht.core.local_training import require_optimizer
from fedjax_ht.core.method import Method, View, around
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.registry import LIBRARY, MEANS, not_averaging

Rate = Annotated[Positive, SearchRange(0.001, 1.0)]
Floor = Annotated[Positive, SearchRange(1e-4, 0.1)]


class Optimized(NamedTuple):
    """The server's state.

    Attributes:
      server: the method's own.
      slots: the optimiser's.
    """

    server: PyTree
    slots: PyTree


class Moments(NamedTuple):
    """The state of an adaptive optimiser.

    Attributes:
      steps: int32 scalar, the number of steps so far.
      mean, square: m and v, of the parameters' structure.
    """

    steps: jax.Array
    mean: PyTree
    square: PyTree


def adaptive(
    square: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    rate: float,
    tau: float,
    v0: float | None,
    b1: float = 0.0,
    corrected: tuple[float, float] = (0.0, 0.0),
) -> optax.GradientTransformation:
    """Makes an adaptive optimiser of the module's docstring.

    Args:
      square: (v, D^2) -> the new v.
      rate, tau, b1: numbers of the module's docstring.
      v0: initial v; None takes tau^2.
      corrected: decay rates of m and v, by which the step is corrected; 0 corrects nothing.
    """
    first = tau**2 if v0 is None else v0

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Moments(jnp.int32(0), zeros, jax.tree.map(lambda x: jnp.full_like(x, first), params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None):
        steps = state.steps + 1
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, updates)
        squares = jax.tree.map(lambda v, g: square(v, g**2), state.square, updates)
        seen_mean, seen_square = (1 - b**steps if b else 1.0 for b in corrected)

        def step(m, v):
            return -rate * (jnp.sqrt(seen_square) / seen_mean) * m / (jnp.sqrt(v) + tau)

        return jax.tree.map(step, mean, squares), Moments(steps, mean, squares)

    return optax.GradientTransformation(init, update)


@checked
def fedavgm(
    *, server_lr: Rate = 1.0, server_momentum: Annotated[Rest, SearchRange(0.5, 0.99)] = 0.9
) -> optax.GradientTransformation:
    """Makes FedAvgM's optimiser.

    Args:
      server_lr: eta, the server's step size.
      server_momentum: beta, the decay rate of the server's momentum.
    """
    return optax.sgd(server_lr, momentum=server_momentum)


@checked
def fedadagrad(
    *, server_lr: Rate = 0.1, server_tau: Floor = 1e-3, server_v0: NonNegative | None = None
) -> optax.GradientTransformation:
    """Makes FedAdagrad's optimiser.

    Args:
      server_lr: eta, the server's step size.
      server_tau: tau, added to the root of v.
      server_v0: initial v; None takes the square of server_tau.
    """
    return adaptive(jnp.add, rate=server_lr, tau=server_tau, v0=server_v0)


def _with_moments(
    name: str, square: Callable[[float, jax.Array, jax.Array], jax.Array]
) -> Callable[..., optax.GradientTransformation]:
    """Makes the factory of an optimiser from its rule, (b2, v, D^2) -> the new v."""

    def make(
        *,
        server_lr: Rate = 0.1,
        server_b1: Rest = 0.9,
        server_b2: Rest = 0.99,
        server_tau: Floor = 1e-3,
        server_v0: NonNegative | None = None,
        bias_correction: bool = False,
    ) -> optax.GradientTransformation:
        """Makes an optimiser with running means of D and of its square.

        Args:
          server_lr: eta, the server's step size.
          server_b1, server_b2: decay rates of m and v.
          server_tau: tau, added to the root of v.
          server_v0: initial v; None takes the square of server_tau.
          bias_correction: True corrects the first rounds' steps, as the authors' code does.
        """
        corrected = (server_b1, server_b2) if bias_correction else (0.0, 0.0)
        new = functools.partial(square, server_b2)
        return adaptive(
            new, rate=server_lr, b1=server_b1, tau=server_tau, v0=server_v0, corrected=corrected
        )

    make.__name__ = make.__qualname__ = name
    return checked(make)


fedadam = _with_moments("fedadam", lambda b2, v, d2: b2 * v + (1 - b2) * d2)
fedyogi = _with_moments("fedyogi", lambda b2, v, d2: v - (1 - b2) * d2 * jnp.sign(v - d2))


FACTORIES: dict[str, Callable[..., optax.GradientTransformation]] = {
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
}
"""Name of `registry.OPTIMIZERS` -> factory."""


@checked
def server_optimizer(
    method: Method, optimizer: str | optax.GradientTransformation, **options: Any
) -> Method:
    """Makes a method's server step towards the mean of the uploads with an optimiser.

    Configs append it to the method's name, as in "fedprox+fedadam:mu=0.1:server_lr=0.03". SGD with
    rate 1 leaves the method as it is, up to rounding.

    Args:
      method: a method whose server state is parameters, updated to the mean of the uploads.
      optimizer: fedavgm, fedadagrad, fedadam or fedyogi; or an optimiser of optax, whose gradient
        is the server's parameters minus the mean.
      **options: options of the named optimiser, such as server_lr.

    Returns:
      The method; its `check` rejects a server whose state has values other than floats.

    Raises:
      ValueError: the server does not average, or there is no such optimiser. One line.

    Example:
      >>> method = fl.fedprox(fl.LocalTraining(optax.sgd(0.1)), mu=0.1)
      >>> fl.server_optimizer(method, "fedadam", server_lr=0.03).name
      'fedprox+fedadam'
      >>> fl.server_optimizer(method, optax.sgd(0.5)).name
      'fedprox+optimizer'
    """
    if method.name in LIBRARY and method.name not in MEANS:
        raise ValueError(not_averaging(method.name))
    name = optimizer if isinstance(optimizer, str) else "optimizer"
    if isinstance(optimizer, str):
        if optimizer not in FACTORIES:
            raise ValueError(unknown("server optimizer", optimizer, FACTORIES))
        optimizer = FACTORIES[optimizer](**options)
    elif options:
        raise ValueError(
            f"options are {', '.join(options)}, but an optax optimizer has its own; remove them, "
            "or name an optimizer, such as fedadam"
        )
    require_optimizer(optimizer)
    return around(method, functools.partial(_optimized, optimizer, name))


def _optimized(optimizer: optax.GradientTransformation, name: str, method: Method) -> Method:
    def check(federation):
        method.check(federation)
        form = jax.eval_shape(functools.partial(method.init_server, federation), jax.random.key(0))
        leaves = jax.tree.leaves(form)
        if not leaves or not all(jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
            raise ValueError(not_averaging(method.name))

    def init_server(federation, key):
        server = method.init_server(federation, key)
        return Optimized(server, optimizer.init(server))

    def broadcast(federation, bucket, server, ctx):
        return method.broadcast(federation, bucket, server.server, ctx)

    def server_update(federation, server, received, ctx):
        old, slots = server
        mean, metrics = method.server_update(federation, old, received, ctx)
        moved = jax.tree.map(jnp.not_equal, mean, old)
        anything = jnp.stack([x.any() for x in jax.tree.leaves(moved)]).any()
        gradient = jax.tree.map(jnp.subtract, old, mean)
        updates, stepped = optimizer.update(gradient, slots, old)
        stepped_params = optax.apply_updates(old, updates)
        # By entry, since momentum would move entries that no client of this round holds.
        new = jax.tree.map(jnp.where, moved, stepped_params, old)
        touched = optax.tree_utils.tree_map_params(
            optimizer,
            lambda _, entry: entry,
            stepped,
            moved,
            transform_non_params=lambda _: anything,
        )
        return Optimized(new, jax.tree.map(jnp.where, touched, stepped, slots)), metrics

    scored = method.global_model
    if scored is not None:
        params, stats = scored.params, scored.stats
        scored = scored._replace(
            params=lambda server: params(server.server), stats=lambda server: stats(server.server)
        )
    return method._replace(
        name=f"{method.name}+{name}",
        check=check,
        init_server=init_server,
        broadcast=broadcast,
        server_update=server_update,
        global_model=scored,
        view=View(features=method.view.features, warn=method.view.warn),
    )


def optimized_factory(factory: Callable[..., Method], optimizer: str) -> Callable[..., Method]:
    """Makes the factory of "BASE+OPTIMIZER", whose options are those of both.

    Args:
      factory: the base's.
      optimizer: a key of `FACTORIES`.
    """
    steps = FACTORIES[optimizer]
    own = options_of(steps)

    @functools.wraps(factory)
    def make(training, **options) -> Method:
        numbers = {name: options.pop(name) for name in own if name in options}
        return server_optimizer(factory(training, **options), optimizer, **numbers)

    both = list(options_of(factory).values()) + list(own.values())
    keyword_only = [p.replace(kind=p.KEYWORD_ONLY) for p in both[1:]]
    described: Any = make  # functions declare no attributes
    described.__signature__ = inspect.Signature([both[0], *keyword_only])
    described.documented_by = (steps,)
    del described.checks_its_arguments  # copied from the base, whose signature differs
    return described
