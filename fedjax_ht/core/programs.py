"""Walks over a traced program (a jaxpr): its equations, and which inputs an output depends on.

Nothing is run. Differences between versions of JAX are handled only here: how an equation stores
the programs that it calls, the names of calls, and the constants of a scan.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_ht.core.trees import PyTree

LOOP = "loop"  # a member of `Sources`: the value is computed by a loop
LOOPS = ("while", "scan")

# Primitives that run one program once, on their own inputs. All other primitives with a program,
# such as loops, branches and reductions, pass it other values.
CALLS = frozenset(
    (
        "jit",
        "pjit",  # `jit` before jax 0.7
        "call",
        "closed_call",
        "eval_jaxpr",  # in jax 0.12 replaces the three above
        "remat2",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vmap_call",
    )
)

Sources = frozenset
"""Indices of the arguments that a value depends on, and `LOOP`."""


def jaxpr_of(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """Returns a program without its constants."""
    if isinstance(program, ClosedJaxpr):
        return program.jaxpr
    return program


def called_programs(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    """Returns the programs that an equation calls (jit, loops, branches, custom gradients)."""
    programs = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple) else (value,):  # the branches of a `cond`
            if isinstance(part, ClosedJaxpr | Jaxpr):
                programs.append(part)
    return programs


def call_of(equation: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """Returns the program of a call, which has the equation's inputs and outputs; else None."""
    if equation.primitive.name not in CALLS:
        return None
    (program,) = called_programs(equation)
    return program


def scan_constants(equation: JaxprEqn) -> int:
    """Returns the number of a scan's leading inputs that are the same in each iteration."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"]
    # Since jax 0.11 the operands are a tree (constants, carry, slices).
    return len(list(params["ft_in"].unpack()[0].vals))


def equations(program: ClosedJaxpr | Jaxpr) -> Iterator[JaxprEqn]:
    """Yields a program's equations, each followed by those of the programs that it calls."""
    for equation in jaxpr_of(program).eqns:
        yield equation
        for called in called_programs(equation):
            yield from equations(called)


def has_loop(program: ClosedJaxpr | Jaxpr, kinds: tuple[str, ...] = LOOPS) -> bool:
    """Returns True if a program, or one that it calls, has a loop of these kinds."""
    return any(equation.primitive.name in kinds for equation in equations(program))


def influences(fn: Callable[..., PyTree], *arguments: PyTree) -> tuple[PyTree, PyTree]:
    """Traces which arguments each result of a function depends on.

    Calls, such as those of `jit`, are followed into their programs. The outputs of any other
    equation, including loops and branches, depend on all of its inputs. Thus dependences may be
    overestimated, but none is missed.

    Args:
      fn: (*arguments) -> pytree of arrays.
      arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      The results as `jax.ShapeDtypeStruct`s, and a pytree of the same structure with `Sources`.
    """
    program, shapes = jax.make_jaxpr(fn, return_shape=True)(*arguments)
    inputs: list[Sources] = []
    for number, argument in enumerate(arguments):
        inputs += [Sources({number})] * len(jax.tree.leaves(argument))
    return shapes, jax.tree.unflatten(jax.tree.structure(shapes), _sources(program, inputs))


def _sources(program: ClosedJaxpr | Jaxpr, inputs: Sequence[Sources]) -> list[Sources]:
    """Returns the `Sources` of a program's outputs, given those of its inputs."""
    jaxpr = jaxpr_of(program)
    known: dict[Any, Sources] = dict(zip(jaxpr.invars, inputs))

    def read(atom) -> Sources:
        # Literals and constants of the program depend on no argument.
        return Sources() if isinstance(atom, Literal) else known.get(atom, Sources())

    for equation in jaxpr.eqns:
        values = list(map(read, equation.invars))
        called = call_of(equation)
        if called is not None:
            outputs = _sources(called, values)
        else:
            joined = Sources().union(*values)
            if equation.primitive.name in LOOPS or any(map(has_loop, called_programs(equation))):
                joined |= {LOOP}
            outputs = [joined] * len(equation.outvars)
        known |= zip(equation.outvars, outputs)
    return list(map(read, jaxpr.outvars))


def union(sources: PyTree) -> Sources:
    """Joins all `Sources` of a pytree."""
    return Sources().union(*jax.tree.leaves(sources))
