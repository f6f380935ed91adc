"""Walks over a traced program (a jaxpr): its equations, and which inputs an output depends on.

Nothing is run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_ht.core.trees import PyTree

LOOP = "loop"  # a member of `Sources`: the value comes out of a loop
LOOPS = ("while", "scan")

Sources = frozenset
"""Numbers of the arguments that a value depends on, and `LOOP`."""


def jaxpr_of(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """Returns a program without its constants."""
    if isinstance(program, ClosedJaxpr):
        return program.jaxpr
    return program


def called_programs(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    """Returns the programs that an equation calls: of `jit`, loops, branches, custom gradients."""
    programs = []
    for values in equation.params.values():
        if not isinstance(values, tuple):  # as the branches of a `cond` are
            values = (values,)
        programs += [x for x in values if isinstance(x, ClosedJaxpr | Jaxpr)]
    return programs


def equations(program: ClosedJaxpr | Jaxpr) -> Iterator[JaxprEqn]:
    """Yields a program's equations, each followed by those of the programs that it calls."""
    for equation in jaxpr_of(program).eqns:
        yield equation
        for called in called_programs(equation):
            yield from equations(called)


def has_loop(program: ClosedJaxpr | Jaxpr, kinds: tuple[str, ...] = LOOPS) -> bool:
    """Returns True if there is a loop of these kinds in a program or in one that it calls."""
    return any(equation.primitive.name in kinds for equation in equations(program))


def influences(fn: Callable[..., PyTree], *arguments: PyTree) -> tuple[PyTree, PyTree]:
    """Traces which arguments each result of a function depends on.

    The outputs of an equation depend on all of its inputs, a loop's or a called program's, too. So
    a dependence may be named that is none; none is missed.

    Args:
      fn: (*arguments) -> pytree of arrays.
      arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      The results as `jax.ShapeDtypeStruct`s; and a pytree of their structure with `Sources`.
    """
    program, shapes = jax.make_jaxpr(fn, return_shape=True)(*arguments)
    inputs: list[Sources] = []
    for number, argument in enumerate(arguments):
        inputs += [Sources({number})] * len(jax.tree.leaves(argument))
    known: dict[Any, Sources] = dict(zip(program.jaxpr.invars, inputs))

    def sources(atom) -> Sources:
        # Literals and constants of the program depend on no argument.
        if isinstance(atom, Literal):
            return Sources()
        return known.get(atom, Sources())

    for equation in program.jaxpr.eqns:
        joined = Sources().union(*map(sources, equation.invars))
        if equation.primitive.name in LOOPS or any(map(has_loop, called_programs(equation))):
            joined |= {LOOP}
        known |= dict.fromkeys(equation.outvars, joined)
    structure = jax.tree.structure(shapes)
    return shapes, jax.tree.unflatten(structure, list(map(sources, program.jaxpr.outvars)))


def union(sources: PyTree) -> Sources:
    """Joins all `Sources` of a pytree."""

    def is_sources(x):
        return isinstance(x, Sources)

    return Sources().union(*jax.tree.leaves(sources, is_leaf=is_sources))
