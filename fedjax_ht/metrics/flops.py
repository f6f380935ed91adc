"""FLOPs of a client's round, counted in its program: two for every multiply-add of a matrix product
or a convolution.

A compiler's cost analysis takes the body of a loop once, whatever its length. Here a loop counts as
often as it runs: how long local training is follows from the client's numbers of samples, which are
known, so the program's integer arithmetic on them is carried out beside the count, for all clients
of an architecture at once.

Not counted: elementwise work (activations, normalisation, pooling, the optimiser's update, and
depthwise convolutions, which are sums of shifted products in `ops.conv`), sorting, factorisations,
evaluation, and what the server does. XLA's count of a training step, which has all of that, is 2 to
5 % above this one for CNN-1..5, perceptrons and ResNets, 21 % for MobileNetV2. A masked partial
batch counts as the whole one that it is (what a prototype method collects in batches by the
device's taste, `local_training.forward_batch`); lanes that wait for others count nothing. A loop
whose length only the run knows counts once.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_ht.core.federation import Bucket, Federation, features, init_variables, logits
from fedjax_ht.core.influence import called_programs
from fedjax_ht.core.inputs import abstract, on_device
from fedjax_ht.core.method import ClientInfo, Context, Data, Method
from fedjax_ht.core.round import any_state
from fedjax_ht.ops.conv import MULTIPLIED

# an integer of all clients, int [n] of each client's own, or None: only the run knows it
Known = Any
Flops = Any  # float, or float64 [n]

INTEGERS = "iub"  # kinds of dtype, booleans among them
INTEGER_ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
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
    "select_n": lambda which, *cases: np.choose(np.asarray(which, int), cases),
    "convert_element_type": lambda x: x,
}


def bucket_flops(method: Method, federation: Federation, bucket: Bucket, data: Data) -> np.ndarray:
    """FLOPs of `receive` and `client_update`, float64 [n], of each of a bucket's clients in a round
    it takes part in.

    Args:
      method, federation, bucket: whose program.
      data: the bucket's, with splits stacked over its n clients (or n rows of several trials).
    """
    counts = {name: np.asarray(split.count) for name, split in data.splits.items()}
    key, number = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.int32)

    def own(x):
        return on_device(x.shape[1:], x.dtype)

    def whole(x):
        return on_device(x.shape, x.dtype)

    def context(key, number, num_samples) -> Context:
        return Context(key, number, ClientInfo(number, num_samples, number), shared_key=key)

    def sent(server_key, key, number):
        server = method.init_server(federation, server_key)
        return method.broadcast(federation, bucket, server, context(key, number, number))

    def work(counts, client, downlink, data, key, number):
        splits = {name: split._replace(count=counts[name]) for name, split in data.splits.items()}
        data = data._replace(splits=splits)
        ctx = context(key, number, counts["train"])
        client = method.receive(bucket, client, downlink, data, ctx)
        return method.client_update(bucket, client, downlink, data, ctx)

    numbers = jax.tree.map(own, counts)
    downlink = jax.eval_shape(sent, key, key, number)
    one = jax.tree.map(whole, data._replace(splits={}))._replace(
        splits=jax.tree.map(own, data.splits)
    )
    client = jax.eval_shape(lambda key: any_state(method, bucket, key), key)
    program = jax.make_jaxpr(work)(numbers, client, downlink, one, key, number)
    return np.zeros(len(counts["train"])) + program_flops(program, jax.tree.leaves(counts))


def sample_flops(bucket: Bucket) -> float:
    """FLOPs of an architecture on one sample, forward: what one step costs beside another
    architecture's."""

    def forward(params, stats, x, mask):
        representations = features(bucket, params, stats, x, mask, train=False)[0]
        return logits(bucket, params, representations)

    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    x, mask = abstract(bucket.input_shape, 1), jax.ShapeDtypeStruct((1,), bool)
    return program_flops(jax.make_jaxpr(forward)(model["params"], model["stats"], x, mask))


def program_flops(program: ClosedJaxpr, known: Sequence[Known] = ()) -> Flops:
    """FLOPs of a traced program, see the module's text.

    Args:
      program: from `jax.make_jaxpr`.
      known: values of its first arguments, integer scalars: each an int or, to count for n clients
        at once, int [n].

    Returns:
      A float, or float64 [n].
    """
    return _walk(program, [*known, *[None] * (len(program.jaxpr.invars) - len(known))])[0]


def _walk(program: ClosedJaxpr | Jaxpr, arguments: Sequence[Known]) -> tuple[Flops, list[Known]]:
    """FLOPs, and what is known of the outputs."""
    jaxpr = _jaxpr(program)
    values = dict(zip(jaxpr.invars, arguments))
    if isinstance(program, ClosedJaxpr):
        values |= zip(jaxpr.constvars, map(_integer, program.consts))

    def read(atom) -> Known:
        return _integer(atom.val) if isinstance(atom, Literal) else values.get(atom)

    total = 0.0
    for equation in jaxpr.eqns:
        flops, outputs = _equation(equation, [read(atom) for atom in equation.invars])
        total += flops
        values |= zip(equation.outvars, outputs)
    return total, [read(atom) for atom in jaxpr.outvars]


def _integer(x) -> Known:
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return np.asarray(x) if np.ndim(x) == 0 and dtype.kind in INTEGERS else None


def _equation(equation: JaxprEqn, values: list[Known]) -> tuple[Flops, list[Known]]:
    name, params, unknown = equation.primitive.name, equation.params, [None] * len(equation.outvars)
    if name == "dot_general":
        return _matrix_product(equation), unknown
    if name == "conv_general_dilated":
        return _convolution(equation), unknown
    if name == "scan":
        constants = values[: _scan_constants(params)]
        rest = len(values) - len(constants)
        return params["length"] * _walk(params["jaxpr"], [*constants, *[None] * rest])[0], unknown
    if name == "while":
        return _loop(equation, values), unknown
    if name == "cond":  # the costliest branch
        branches = [_walk(branch, values[1:])[0] for branch in params["branches"]]
        return np.maximum.reduce(np.broadcast_arrays(*branches)), unknown
    if called := called_programs(equation):
        return _walk(called[0], values)
    if name in INTEGER_ARITHMETIC and all(v is not None for v in values):
        dtype = equation.outvars[0].aval.dtype
        if dtype.kind in INTEGERS:
            # of what a client without samples divides by nothing is used
            with np.errstate(divide="ignore"):
                return 0.0, [np.asarray(INTEGER_ARITHMETIC[name](*values)).astype(dtype)]
    return 0.0, unknown


def _scan_constants(params: dict[str, Any]) -> int:
    """How many of a scan's operands are the same in every pass; jax 0.11 tells it by their tree."""
    return (
        params["num_consts"]
        if "num_consts" in params
        else len(list(params["ft_in"].unpack()[0].vals))
    )


def _matrix_product(equation: JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    flops = 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
    # Zeros laid into a kernel are no work: a convolution costs the same in whichever form it runs
    # (`ops.conv`). Gradients keep the scope of what they are of.
    scopes = re.findall(MULTIPLIED.format(r"(\d+)", r"(\d+)"), str(equation.source_info.name_stack))
    for multiplied, factors in scopes:
        flops = flops * int(multiplied) / int(factors)
    return flops


def _convolution(equation: JaxprEqn) -> float:
    """Products with padding, and with the holes of a dilated input, are none."""
    params = equation.params
    left, right, out = (v.aval.shape for v in (*equation.invars, *equation.outvars))
    numbers = params["dimension_numbers"]
    per_axis = zip(
        (left[i] for i in numbers.lhs_spec[2:]),
        (right[i] for i in numbers.rhs_spec[2:]),
        (out[i] for i in numbers.out_spec[2:]),
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
    )
    pairs = 1
    for length, size, outputs, stride, (before, _), holes, spread in per_axis:
        seen = np.arange(outputs)[:, None] * stride + np.arange(size) * spread - before
        pairs *= np.sum((seen >= 0) & (seen % holes == 0) & (seen // holes < length))
    batch, features = (out[i] for i in numbers.out_spec[:2])
    return 2.0 * batch * features * right[numbers.rhs_spec[1]] * pairs


def _loop(equation: JaxprEqn, values: list[Known]) -> Flops:
    """A loop's body as often as it runs, for each client."""
    params = equation.params
    body, carry = params["body_jaxpr"], params["cond_nconsts"] + params["body_nconsts"]
    constants = values[params["cond_nconsts"] : carry]
    counting = _counter(equation, values)
    if counting is None:
        return _walk(body, [*constants, *[None] * (len(values) - carry)])[0]
    place, first, past = counting
    rounds = np.maximum(np.asarray(past) - first, 0)
    state = [None] * (len(values) - carry)
    if not _has_loop(body):  # every pass costs the same
        return rounds * _walk(body, [*constants, *state])[0]
    total = 0.0
    for number in range(int(np.max(rounds))):
        state[place] = first + number
        total += np.where(number < rounds, _walk(body, [*constants, *state])[0], 0.0)
    return total


def _counter(equation: JaxprEqn, values: list[Known]) -> tuple[int, Known, Known] | None:
    """Of a loop as `lax.fori_loop` writes it: the counter's place in the carry, its first value,
    and where it ends."""
    condition, body = equation.params["cond_jaxpr"].jaxpr, equation.params["body_jaxpr"].jaxpr
    skip, constants = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    if [test.primitive.name for test in condition.eqns] != ["lt"]:
        return None
    counter, end = condition.eqns[0].invars
    carried, inputs = condition.invars[skip:], body.invars[constants:]
    place = next((i for i, v in enumerate(carried) if v is counter), None)
    if place is None:
        return None
    steps = [
        e for e in body.eqns if e.primitive.name == "add" and e.outvars[0] is body.outvars[place]
    ]
    by_one = [
        e for e in steps if e.invars[0] is inputs[place] and getattr(e.invars[1], "val", None) == 1
    ]
    stays = all(i is o for v, i, o in zip(carried, inputs, body.outvars) if v is end)
    before = dict(zip(condition.invars, [*values[:skip], *values[skip + constants :]]))
    first, past = before[counter], _integer(end.val) if isinstance(end, Literal) else before[end]
    return (
        (place, first, past)
        if by_one and stays and first is not None and past is not None
        else None
    )


def _jaxpr(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program


def _has_loop(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(
        e.primitive.name == "while" or any(map(_has_loop, called_programs(e)))
        for e in _jaxpr(program).eqns
    )
