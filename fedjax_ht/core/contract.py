"""Checks of a method: whether a federation meets its needs, and what its functions return.

Needs are checked before anything is compiled. Returned values are checked during tracing, so that
compiled programs spend no time on it.
"""

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, model_form
from fedjax_ht.core.federation import Federation, PublicSet
from fedjax_ht.core.method import Method, around, no_stats
from fedjax_ht.core.samples import Data
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata, is_payload, leaves_of

CLEARER = {"Trees 0 and 1 differ": "it differs", "tree 0": "before", "tree 1": "after"}
"""Phrases of chex -> replacements in this library's messages."""


def lacks_public_set(method: Method) -> str:
    """Returns a one-line message that a method needs a public set, and how to provide one."""
    return (
        f"{method.name} needs a public set, shared by server and clients: set dataset.public to "
        "hold_out:0.1, a share of the samples, or to the name of a data set; in Python, pass "
        "fl.Dataset(public=indices)"
    )


def require_public_set(method: Method, federation: Federation) -> None:
    """Checks that a method that reads a public set has a large enough one.

    Raises:
      ValueError: there is none, or it has fewer samples than a round uses. One line.
    """
    needed = method.needs.public_samples
    if not needed:
        return
    if federation.public is None:
        raise ValueError(lacks_public_set(method))
    if needed > federation.public.samples:
        raise ValueError(
            f"{method.name} uses {needed} public samples a round, but the public "
            f"set has {federation.public.samples}; lower public_per_round to that, or "
            "enlarge dataset.public"
        )


def public_bytes(public: PublicSet | None, data: Data | None) -> int | None:
    """Returns the bytes of the public set's stored samples, and of its labels if it has any.

    Args:
      public: the size of the public set; None for methods that read none.
      data: samples that include the public ones.

    Returns:
      The bytes; None without a public set or data.
    """
    if public is None or data is None:
        return None
    arrays = [*jax.tree.leaves(data.inputs)]
    if public.is_labelled:
        arrays.append(data.labels)
    return public.samples * sum(x.nbytes // len(x) for x in arrays)


def keeps_statistics(bucket: Bucket) -> bool:
    """Returns whether a model's norms keep running statistics."""
    model = model_form(bucket)
    return bool(jax.tree.leaves(model["stats"]))


def require_task(method: Method, federation: Federation) -> None:
    """Checks that a method suits the federation's task.

    Raises:
      ValueError: the method compares classes, and the task is not classification; or a recipe
        augments images although targets have several axes. One line.
    """
    task = federation.task
    if task != CLASSIFICATION and method.needs.classes:
        raise ValueError(
            f"{method.name} compares samples by class, but the task is {task.name}; choose "
            "a method that does not, such as local, lg_fedavg, fedper or fedral"
        )
    recipes = [method.training, *dict(method.recipes).values()]
    if len(task.target[0]) > 1 and any(recipe.augmentation for recipe in recipes):
        raise ValueError("augmentation moves the pixels of images but not their targets; remove it")


def require_server_statistics(method: Method, federation: Federation) -> None:
    """Checks that a server has all that scores its own model.

    Raises:
      ValueError: the model's norms keep running statistics, and the method averages none; or the
        model has frozen variables, which only clients hold. One line.
    """
    model = method.global_model
    bucket = None if model is None else model.bucket(federation)
    if model is None or bucket is None:
        return
    if bucket.freezes:
        raise ValueError(
            f"the server of {method.name} scores a model of its own, and has none of the frozen "
            f"variables of {bucket.name!r}; use another method, or a model without them"
        )
    if model.stats is no_stats and keeps_statistics(bucket):
        raise ValueError(
            f"norm is 'batch', but {method.name} keeps no running statistics of the server's "
            "model; use static_batch or another norm"
        )


def guarded(method: Method) -> Method:
    """Makes a method's functions raise one-line errors for values that break the contract.

    Exceptions of a function itself get a note with its name (`BaseException.add_note`). The
    traceback alone would name the function of this library that happened to trace it first.
    """
    return around(method, _guarded)


def _guarded(method: Method) -> Method:
    return method._replace(**{name: _checked(method, name) for name in CHECKS})


def _checked(method: Method, name: str) -> Callable:
    """Wraps a function of the method: checks its output, and that it does not write into arguments.

    Its errors get a note with its name.
    """
    function, check = getattr(method, name), CHECKS[name]

    @functools.wraps(function)
    def call(*arguments):
        given = jax.tree.leaves(arguments)
        try:
            out = function(*arguments)
        except Exception as error:
            code = getattr(function, "__code__", None)
            place = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
            error.add_note(
                f"while tracing {name} of {method.name!r}{place}; "
                "simulation.find_fault(state, jit=False) runs it on concrete values"
            )
            raise
        kept = jax.tree.leaves(arguments)
        if len(kept) != len(given) or not all(map(operator.is_, kept, given)):
            raise ValueError(
                f"{name} of {method.name!r} modifies its arguments in place; return a new tree, "
                "such as client | {...} instead of client |= {...}"
            )
        return out if check is None else check(method, arguments, out)

    return call


def _check_receive(method: Method, arguments: tuple, new: PyTree) -> PyTree:
    _bucket, client, *_ = arguments
    _require_state(method, "receive", "client", client, new)
    return new


def _check_client_update(method: Method, arguments: tuple, out: Any) -> tuple:
    _bucket, client, *_ = arguments
    values = "(client, uplink, metrics)"
    new, uplink, metrics = _require_values(method, "client_update", out, values)
    _require_state(method, "client_update", "client", client, new)
    uplink = jax.tree.map(jnp.asarray, uplink)  # a constant count may be a NumPy scalar
    _require_floats(method, uplink)
    return new, uplink, _require_metrics(method, "client_update", metrics)


def _check_server_update(method: Method, arguments: tuple, out: Any) -> tuple:
    _federation, server, *_ = arguments
    new, metrics = _require_values(method, "server_update", out, "(server, metrics)")
    _require_state(method, "server_update", "server", server, new)
    return new, _require_metrics(method, "server_update", metrics)


def _check_predict(method: Method, arguments: tuple, scores: Any) -> Any:
    bucket, *_, mask = arguments
    if not isinstance(scores, Mapping):
        raise ValueError(
            f"predict of {method.name!r} returns a {type(scores).__name__}; it must return a "
            "dict: rule -> scores"
        )
    if missing := [rule for rule in method.rules if rule not in scores]:
        raise ValueError(
            f"predict of {method.name!r} lacks the rule {missing[0]!r}; it returns "
            f"{', '.join(map(repr, scores)) or 'none'}, but Method.rules lists "
            f"{', '.join(map(repr, method.rules))}"
        )
    for rule, values in scores.items():
        with one_line(f"rule {rule!r} of predict of {method.name!r} must be [samples, classes]"):
            chex.assert_shape(values, (*mask.shape, bucket.num_classes))
    return scores


CHECKS: dict[str, Callable[[Method, tuple, Any], Any] | None] = {
    "init_server": None,
    "init_client": None,
    "broadcast": None,
    "receive": _check_receive,
    "client_update": _check_client_update,
    "server_update": _check_server_update,
    "predict": _check_predict,
}
"""Traced functions of a method -> check (method, arguments, output) -> output.

None if the function may return any value.
"""


@contextlib.contextmanager
def one_line(subject: str) -> Iterator[None]:
    """Turns a failed assertion of chex, or jax's TypeError, into a one-line ValueError.

    Args:
      subject: the beginning of the message, before a colon.
    """
    try:
        yield
    except (AssertionError, TypeError) as error:
        reason = re.sub(r"^\[Chex\] Assertion \w+ failed:", "", str(error))
        # without values
        reason = re.sub(r"(differ in leaves '[^']*'): \n.*", r"\1", reason, flags=re.DOTALL)
        for phrase, clearer in CLEARER.items():
            reason = reason.replace(phrase, clearer)
        raise ValueError(f"{subject}: {' '.join(reason.split())}") from error


def _require_values(method: Method, name: str, out: Any, values: str) -> tuple:
    """Returns a function's output; ValueError unless it is a tuple with one value per name."""
    count = values.count(",") + 1
    if not isinstance(out, tuple) or len(out) != count:
        returned = f"{len(out)} values" if isinstance(out, tuple) else f"a {type(out).__name__}"
        raise ValueError(f"{name} of {method.name!r} returns {returned}; it must return {values}")
    return out


def _require_state(method: Method, name: str, side: str, before: PyTree, after: PyTree) -> None:
    """Checks that a state keeps its structure, shapes and dtypes.

    Args:
      method: the method, named in the message.
      name: the name of the function that returns the state.
      side: "client" or "server".
      before, after: the state passed to the function, and the state that it returned.
    """
    state = f"the {side}'s state returned by {name} of {method.name!r}"
    with one_line(f"{state} must have the same form as its input"):
        forms = jax.eval_shape(lambda *trees: trees, before, after)
        chex.assert_trees_all_equal_shapes_and_dtypes(*forms)


def _require_floats(method: Method, uplink: PyTree) -> None:
    """Checks that all arrays of an upload outside `Metadata` are floats.

    Others could not be read behind the wire, e.g. by defences.

    Args:
      method: the method, named in the message.
      uplink: an upload as `client_update` returns it, or its form.

    Raises:
      ValueError: an array outside `Metadata` is not of floats. One line.
    """
    for leaf in leaves_of(uplink):
        if isinstance(leaf, Metadata) or is_payload(leaf):
            continue
        kind = getattr(getattr(leaf, "values", leaf), "dtype", type(leaf).__name__)
        raise ValueError(
            f"client_update of {method.name!r} sends {kind} outside Metadata, which attacks, "
            "defences and outlier reports cannot read; return floats and declare "
            "Wire(code=fl.Code(...)), or put counts and indices into fl.Metadata"
        )


def _require_metrics(method: Method, name: str, metrics: Any) -> Mapping[str, Any]:
    if not isinstance(metrics, Mapping):
        kind = type(metrics).__name__
        raise ValueError(f"{name} of {method.name!r} returns a {kind} for its metrics, not a dict")
    for key, value in metrics.items():
        with one_line(f"metric {key!r} of {name} of {method.name!r} must be a number"):
            chex.assert_shape(value, ())
    return metrics
