"""FLOPs of a client's round: two for every multiply-add of a matrix product or a convolution.

They are counted in the program of `receive` and `client_update`, traced once per architecture. A
compiler's cost analysis counts the body of a loop once, regardless of its length. Here a loop
counts as often as it runs. If its length depends on known integers, such as clients' numbers of
samples, the program's integer arithmetic is evaluated along with the count, for all clients at
once. A loop whose length is only known at run time counts once.

Not counted: elementwise work (activations, normalisation, pooling of maps, the optimiser's update,
and depthwise convolutions, which are sums of shifted products in `ops.patches`), sorting,
factorisations, evaluation, and the server's work. XLA's count of a training step, which includes
all of that, is 2 to 5 % higher for CNN-1..5, perceptrons and ResNets, and 21 % for MobileNetV2.

Products with zero padding count in the library's convolutions (`models.Conv`), but not in
`nn.Conv`: with 3x3 kernels on 8x8 images it has a sixth less.

A training step on a partial batch counts by its share of real samples. A pass that collects
prototypes or statistics counts whole batches, whose size depends on the device
(`batches.forward_batch`). Training in stored order (`LocalTraining.steps` without a shuffle) counts
every round as the first. Waiting lanes count nothing.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_ht.core.bucket import Bucket, features, logits, model_form, traceable
from fedjax_ht.core.context import ClientInfo, Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import abstract, on_device
from fedjax_ht.core.local_training import BATCH_OF
from fedjax_ht.core.message_forms import client_form, downlink_form
from fedjax_ht.core.method import Method
from fedjax_ht.core.programs import call_of, called_programs, has_loop, jaxpr_of, scan_constants
from fedjax_ht.core.samples import PUBLIC, Data, of_member
from fedjax_ht.ops.patches import MULTIPLIED


def bucket_flops(method: Method, federation: Federation, bucket: Bucket, data: Data) -> np.ndarray:
    """Counts FLOPs of `receive` and `client_update` of each of a bucket's clients.

    Args:
      method, federation, bucket: arguments that the program binds.
      data: the bucket's data, with splits stacked over its n clients.

    Returns:
      float64 [n], for a round in which the client takes part.
    """
    return work_flops(bucket_work(method, federation, bucket, data_form(data)), data)


def work_flops(work: ClosedJaxpr, data: Data) -> np.ndarray:
    """Counts FLOPs of `bucket_work` for the bucket's n clients, float64 [n]."""
    counts = {name: np.asarray(split.count) for name, split in data.splits.items()}
    if PUBLIC in counts:  # the same for all clients
        counts[PUBLIC] = np.full_like(counts["train"], counts[PUBLIC])
    # Adding zeros gives shape [n] even if FLOPs are the same for all clients.
    return np.zeros(len(counts["train"])) + program_flops(work, jax.tree.leaves(counts))


def data_form(data: Data) -> Data:
    """Returns the form of one client's view of stacked data: shapes and dtypes."""
    return jax.tree.map(lambda x: on_device(x.shape, x.dtype), of_member(data, 0))


def bucket_work(method: Method, federation: Federation, bucket: Bucket, data: Data) -> ClosedJaxpr:
    """Traces `receive` and `client_update` of a bucket's clients; `data` is a `data_form`.

    Returns:
      The program; its first arguments are the client's numbers of samples, in the order of split
      names.
    """

    def work(counts, client, downlink, data, key, number):
        splits = {name: split._replace(count=counts[name]) for name, split in data.splits.items()}
        data = data._replace(splits=splits)
        info = ClientInfo(number, counts["train"], number)
        ctx = Context(key=key, round=number, info=info, shared_key=key)
        model = traceable(bucket)
        client = method.receive(model, client, downlink, data, ctx)
        return method.client_update(model, client, downlink, data, ctx)

    key, number = jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((), jnp.int32)
    client = client_form(method, bucket, federation)
    downlink = downlink_form(method, federation, bucket)
    counts = {name: split.count for name, split in data.splits.items()}
    # The counts come first: `program_flops` takes the values of a program's first arguments.
    return jax.make_jaxpr(work)(counts, client, downlink, data, key, number)


def sample_flops(bucket: Bucket) -> float:
    """Counts FLOPs of an architecture's forward pass on one sample.

    They serve to compare the costs of architectures' training steps.
    """

    def forward(params, stats, x, mask):
        representations = features(traceable(bucket), params, stats, x, mask, train=False)[0]
        return logits(bucket, params, representations)

    model = model_form(bucket)
    x, mask = abstract(bucket.input_shape, 1), jax.ShapeDtypeStruct((1,), bool)
    return program_flops(jax.make_jaxpr(forward)(model["params"], model["stats"], x, mask))


# an integer for all clients, int [n] with one per client, or None if only known at run time
Known = Any
Flops = Any  # float, or float64 [n]

INTEGERS = "iub"  # kinds of dtype, including booleans


def program_flops(program: ClosedJaxpr, known: Sequence[Known] = ()) -> Flops:
    """Counts FLOPs of a traced program, see the module's docstring.

    Args:
      program: a traced program, as `jax.make_jaxpr` returns it.
      known: the values of the program's first arguments, integer scalars: each an int or, to count
        for n clients at once, int [n].

    Returns:
      A float, or float64 [n].
    """
    return _program(program, known)[0]


def _program(program: ClosedJaxpr | Jaxpr, arguments: Sequence[Known]) -> tuple[Flops, list[Known]]:
    """Returns the FLOPs of a program and its outputs, None if unknown.

    Missing arguments are unknown.
    """
    jaxpr = jaxpr_of(program)
    values = dict(zip(jaxpr.invars, arguments))
    if isinstance(program, ClosedJaxpr):
        values |= zip(jaxpr.constvars, map(_integer, program.consts))

    def read(atom) -> Known:
        if isinstance(atom, Literal):
            return _integer(atom.val)
        return values.get(atom)

    total = 0.0
    for equation in jaxpr.eqns:
        flops, outputs = _equation(equation, list(map(read, equation.invars)))
        total += flops
        values |= zip(equation.outvars, outputs)
    return total, list(map(read, jaxpr.outvars))


def _equation(equation: JaxprEqn, values: list[Known]) -> tuple[Flops, list[Known]]:
    """Returns the FLOPs of an equation with these inputs, and its outputs, None if unknown."""
    name, unknown = equation.primitive.name, [None] * len(equation.outvars)
    if name in COUNTED:
        return COUNTED[name](equation, values), unknown
    if (program := call_of(equation)) is not None:
        return _program(program, values)
    if programs := called_programs(equation):
        # Their inputs and number of runs are unknown: each counts once.
        return sum(_program(program, ())[0] for program in programs), unknown
    if name not in INTEGER_ARITHMETIC or any(value is None for value in values):
        return 0.0, unknown
    out: Any = equation.outvars[0].aval  # JAX declares no form of values
    dtype = out.dtype
    if dtype.kind not in INTEGERS:
        return 0.0, unknown
    # A client without samples may divide by zero, but does not use the result.
    with np.errstate(divide="ignore"):
        return 0.0, [np.asarray(INTEGER_ARITHMETIC[name](*values)).astype(dtype)]


def _integer(x) -> Known:
    """Returns a constant of a program if it is an integer scalar, else None."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return np.asarray(x) if np.ndim(x) == 0 and dtype.kind in INTEGERS else None


# Products


def _matrix_product(equation: JaxprEqn, _: list[Known]) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: Any = equation.invars[0].aval
    out: Any = equation.outvars[0].aval
    flops = 2.0 * out.size * math.prod(left.shape[i] for i in contracted)
    # Zeros inserted into a kernel do not count: a convolution costs the same in every form
    # (`ops.patches`). Gradients keep the scope of the forward operation.
    scopes = re.findall(MULTIPLIED.format(r"(\d+)", r"(\d+)"), str(equation.source_info.name_stack))
    for multiplied, factors in scopes:
        flops = flops * int(multiplied) / int(factors)
    return flops


def _convolution(equation: JaxprEqn, _: list[Known]) -> float:
    """Counts the products of a convolution, except those with padding or holes of its input."""
    params = equation.params
    values: list[Any] = [*equation.invars, *equation.outvars]
    left, right, out = (value.aval.shape for value in values)
    numbers = params["dimension_numbers"]
    pairs = 1
    axes = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:])
    for i, (left_axis, right_axis, out_axis) in enumerate(axes):
        starts = np.arange(out[out_axis])[:, None] * params["window_strides"][i]
        offsets = np.arange(right[right_axis]) * params["rhs_dilation"][i]
        place = starts + offsets - params["padding"][i][0]
        holes = params["lhs_dilation"][i]
        inside = (place >= 0) & (place // holes < left[left_axis])
        pairs *= np.sum(inside & (place % holes == 0))
    batch, features = (out[i] for i in numbers.out_spec[:2])
    return 2.0 * batch * features * right[numbers.rhs_spec[1]] * pairs


# Loops and branches


def _branches(equation: JaxprEqn, values: list[Known]) -> Flops:
    """Returns the FLOPs of the costliest branch."""
    branches = [_program(branch, values[1:])[0] for branch in equation.params["branches"]]
    return np.maximum.reduce(np.broadcast_arrays(*branches))


def _scan(equation: JaxprEqn, values: list[Known]) -> Flops:
    """Returns the FLOPs of a scan's body, with only constants known, times its length."""
    constants = values[: scan_constants(equation)]
    return equation.params["length"] * _program(equation.params["jaxpr"], constants)[0]


def _while(equation: JaxprEqn, values: list[Known]) -> Flops:
    """Returns the FLOPs of all iterations of a loop's body, for each client."""
    params = equation.params
    body, first_carried = params["body_jaxpr"], params["cond_nconsts"] + params["body_nconsts"]
    constants = values[params["cond_nconsts"] : first_carried]
    carry: list[Known] = [None] * (len(values) - first_carried)
    counter = _counter(equation, values)
    if counter is None:
        return _program(body, [*constants, *carry])[0]
    rounds = np.maximum(np.asarray(counter.end) - counter.start, 0)
    share = _real_share(body, constants, rounds)
    if not has_loop(body, ("while",)):  # every iteration costs the same
        return share * rounds * _program(body, [*constants, *carry])[0]
    total = 0.0
    for number in range(int(np.max(rounds))):
        carry[counter.place] = counter.start + number
        total += np.where(number < rounds, _program(body, [*constants, *carry])[0], 0.0)
    return share * total


def _real_share(body: ClosedJaxpr | Jaxpr, constants: list[Known], rounds: Known) -> Flops:
    """Returns the share of real samples in the batches of a loop of training steps.

    A loop reads an epoch's first batches, of which the last may be partial. It is 1 for other
    loops.
    """
    jaxpr = jaxpr_of(body)
    values = dict(zip(jaxpr.invars, constants))
    for equation in jaxpr.eqns:
        scope = re.search(BATCH_OF.format(r"(\d+)"), str(equation.source_info.name_stack))
        if scope is None:
            continue
        for variable in equation.invars:  # positions are compared with the number of samples
            count = None if isinstance(variable, Literal) else values.get(variable)
            if count is not None:
                places = np.maximum(rounds * int(scope[1]), 1)
                return np.minimum(count, places) / places
    return 1.0


class _Counter(NamedTuple):
    """The counter of a loop of `lax.fori_loop`, which increments by one.

    Attributes:
      place: the counter's index in the loop's carry.
      start, end: the counter's values in the first iteration and after the last, each an int or int
        [n].
    """

    place: int
    start: Known
    end: Known


def _counter(equation: JaxprEqn, values: list[Known]) -> _Counter | None:
    """Returns a loop's counter; None for other kinds of loops, or if the length is unknown."""
    params = equation.params
    condition, body = jaxpr_of(params["cond_jaxpr"]), jaxpr_of(params["body_jaxpr"])
    skip, body_skip = params["cond_nconsts"], params["body_nconsts"]
    if [test.primitive.name for test in condition.eqns] != ["lt"]:
        return None
    counter, end = condition.eqns[0].invars
    carried = condition.invars[skip:]
    inputs, outputs = body.invars[body_skip:], body.outvars
    # By identity, since equality of variables is undefined.
    places = {id(variable): place for place, variable in enumerate(carried)}
    place, end_place = places.get(id(counter)), places.get(id(end))
    if place is None or not _adds_one(body, inputs[place], outputs[place]):
        return None
    if end_place is not None and inputs[end_place] is not outputs[end_place]:
        return None  # the body changes the end
    # The condition's inputs: its constants and the carry, without the body's constants in between.
    before: dict[Any, int | None] = dict(
        zip(condition.invars, [*values[:skip], *values[skip + body_skip :]])
    )
    end_value = _integer(end.val) if isinstance(end, Literal) else before[end]
    if before[counter] is None or end_value is None:
        return None
    return _Counter(place, before[counter], end_value)


def _adds_one(body: Jaxpr, old: Any, new: Any) -> bool:
    for equation in body.eqns:
        if equation.primitive.name == "add" and equation.outvars[0] is new:
            left, right = equation.invars
            return left is old and getattr(right, "val", None) == 1
    return False


# Tables


def _quotient(a, b):
    # XLA's division rounds towards zero, NumPy's towards minus infinity.
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _select(which, *cases):
    return np.choose(np.asarray(which, int), cases)


COUNTED: dict[str, Callable[[JaxprEqn, list[Known]], Flops]] = {
    "dot_general": _matrix_product,
    "conv_general_dilated": _convolution,
    "scan": _scan,
    "while": _while,
    "cond": _branches,
}
"""Primitive -> FLOPs of an equation; others only count the programs that they call."""

INTEGER_ARITHMETIC: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "rem": np.fmod,
    "sign": np.sign,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "select_n": _select,
    "convert_element_type": np.asarray,
}
"""Primitive -> the equivalent function for NumPy integers."""
