"""Which arguments of a function its results depend on, told from its trace: nothing is run.

An operation's results depend on all of its arguments, a loop's or a called program's, too. So a
dependence may be named that is none; none is missed.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_ht.core.method import PyTree

LOOP = "loop"
LOOPS = ("while", "scan")

Sources = frozenset


def influences(fn: Callable[..., PyTree], *arguments: PyTree) -> tuple[PyTree, PyTree]:
    """What fn(*arguments) returns, as `jax.ShapeDtypeStruct`s, and of the same structure what each
    array depends on: a frozenset of the arguments' numbers, with "loop" where it comes out of a
    loop.

    Arguments may be `jax.ShapeDtypeStruct`s.
    """
    program, shapes = jax.make_jaxpr(fn, return_shape=True)(*arguments)
    numbers = [i for i, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]
    known: dict[Any, Sources] = {v: Sources({i}) for v, i in zip(program.jaxpr.invars, numbers)}

    def sources(atom) -> Sources:
        return Sources() if isinstance(atom, Literal) else known.get(atom, Sources())

    for equation in program.jaxpr.eqns:
        found = Sources({LOOP} if _loops(equation) else ()).union(*map(sources, equation.invars))
        known |= dict.fromkeys(equation.outvars, found)
    return shapes, jax.tree.unflatten(
        jax.tree.structure(shapes), list(map(sources, program.jaxpr.outvars))
    )


def called_programs(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    """The programs that an equation calls."""
    values = (x if isinstance(x, tuple) else (x,) for x in equation.params.values())
    return [x for group in values for x in group if isinstance(x, ClosedJaxpr | Jaxpr)]


def _loops(equation: JaxprEqn) -> bool:
    programs = (p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in called_programs(equation))
    return equation.primitive.name in LOOPS or any(_loops(e) for p in programs for e in p.eqns)
