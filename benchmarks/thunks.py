"""What XLA's listings say of a program compiled for a GPU: its loops, their kernels, and the bytes that these move."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Node(NamedTuple):
    """A thunk of a compiled program: how deep it is nested, its kind, what it waits for last, and what it runs."""

    depth: int
    kind: str
    after: str
    name: str


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
      depth: how many loops it lies in.
      graphed: whether it lies in a CUDA graph.
      after: what it waits for last, as XLA's listing numbers it; loops with the same are free to run side by side.
      body: its nodes, but for loops within.
    """

    depth: int
    graphed: bool
    after: str
    body: list[Node]


def read_thunks(text: str) -> list[Node]:
    """The nodes of XLA's listing of a GPU program, in its order."""
    found = re.findall(r"^( *)\d+: k(\w+) +\[(?:prev=(\d+))?[^]]*\] *(\S*)", text, re.MULTILINE)
    return [Node(len(indent) // 4, kind, after, name) for indent, kind, after, name in found]


def loops(nodes: Sequence[Node]) -> list[Loop]:
    """All loops, outer before inner. The first node in a loop is its condition."""
    found = []
    for start, node in enumerate(nodes):
        if node.kind != "While":
            continue
        inside = []
        for other in nodes[start + 1 :]:
            if other.depth <= node.depth:
                break
            inside.append(other)
        direct = min((n.depth for n in inside), default=0)
        body = [n for n in inside[1:] if n.depth == direct and n.kind != "While"]
        graphed = _enclosing(nodes, start, "CommandBuffer") > 0
        found.append(Loop(_enclosing(nodes, start, "While"), graphed, node.after, body))
    return found


def _enclosing(nodes: Sequence[Node], index: int, kind: str) -> int:
    """How many nodes of a kind the node at an index lies in."""
    depth, count = nodes[index].depth, 0
    for node in reversed(nodes[:index]):
        if node.depth < depth:
            depth, count = node.depth, count + (node.kind == kind)
    return count


def steps_of(nodes: Sequence[Node]) -> list[Loop]:
    """The loops over training steps: those nested deepest, one a bucket."""
    every = loops(nodes)
    deepest = max(loop.depth for loop in every)
    return [loop for loop in every if loop.depth == deepest]


SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}


def bytes_of(shape: str) -> int:
    """Of all arrays in an HLO shape such as "(f32[3,10]{1,0}, s32[])"; bytes of images, of which little is read, are
    left out."""
    total = 0
    for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        if kind in SIZES and kind != "u8":
            total += SIZES[kind] * int(np.prod([int(side) for side in sides.split(",") if side] or [1]))
    return total


def step_bytes(hlo: str) -> int:
    """What the kernels of the innermost loops' bodies read and write, by the shapes of their operands and results."""
    bodies = {}
    for name, text in re.findall(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL):
        bodies[name] = text
    inner = {n: re.findall(r"body=%?([\w.-]+)", text) for n, text in bodies.items()}

    def depth(name: str) -> int:
        parents = [n for n, called in inner.items() if name in called]
        return 1 + max(map(depth, parents)) if parents else 0

    looped = {name: depth(name) for called in inner.values() for name in called}
    total = 0
    for name in (n for n, d in looped.items() if d == max(looped.values())):
        shapes = dict(re.findall(r"^ *(?:ROOT )?%([\w.-]+) = (\([^=]*?\)|\S+) \w", bodies[name], re.MULTILINE))
        kernel = r"%[\w.-]+ = (\([^=]*?\)|\S+) (?:fusion|custom-call|copy|sort)\(([^)]*)\)"
        for shape, operands in re.findall(kernel, bodies[name]):
            operands = re.findall(r"%([\w.-]+)", operands)
            total += bytes_of(shape) + sum(bytes_of(shapes.get(o, "")) for o in operands)
    return total
