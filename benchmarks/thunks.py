"""What XLA's listings say of a program compiled for a GPU: its loops, their kernels, and the bytes
that these move."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Node(NamedTuple):
    """A thunk of a compiled program: how deep it is nested, its kind, what it waits for last, and
    what it runs."""

    depth: int
    kind: str
    after: str
    name: str


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
      depth: how many loops it lies in whose length the device alone knows.
      graphed: whether it lies in a CUDA graph.
      after: what it waits for last, as XLA's listing numbers it; loops with the same are free to
        run side by side.
      turns: how often it runs, where that is known beforehand.
      body: the nodes that one turn runs, those of loops of known length within as often as these
        run.
    """

    depth: int
    graphed: bool
    after: str
    turns: int | None
    body: list[Node]


def read_thunks(text: str) -> list[Node]:
    """The nodes of XLA's listing of a GPU program, in its order."""
    found = re.findall(r"^( *)\d+: k(\w+) +\[(?:prev=(\d+))?[^]]*\] *(\S*)", text, re.MULTILINE)
    return [Node(len(indent) // 4, kind, after, name) for indent, kind, after, name in found]


def loops(nodes: Sequence[Node], turns: Sequence[int | None]) -> list[Loop]:
    """All loops, outer before inner; `turns` of each in this order, as `loop_turns` reads them."""
    starts = [i for i, node in enumerate(nodes) if node.kind == "While"]
    known = dict(zip(starts, turns, strict=True))

    def turn(start: int) -> list[Node]:
        """The first node in a loop is its condition."""
        inside = range(start + 1, _end(nodes, start))
        direct = min((nodes[i].depth for i in inside), default=0)
        found = []
        for i in (i for i in inside[1:] if nodes[i].depth == direct):
            within = [nodes[i + 1], *turn(i)] * (known[i] or 0) if i in known else [nodes[i]]
            found += within
        return found

    def loop(start: int) -> Loop:
        depth = sum(known[i] is None and i < start < _end(nodes, i) for i in starts)
        graphed = any(
            n.kind == "CommandBuffer" and i < start < _end(nodes, i) for i, n in enumerate(nodes)
        )
        return Loop(depth, graphed, nodes[start].after, known[start], turn(start))

    return [loop(start) for start in starts]


def _end(nodes: Sequence[Node], start: int) -> int:
    """Where the nodes within the one at an index end."""
    behind = (i for i in range(start + 1, len(nodes)) if nodes[i].depth <= nodes[start].depth)
    return next(behind, len(nodes))


def steps_of(every: Sequence[Loop]) -> list[Loop]:
    """The loops over training steps, one a bucket: those nested deepest whose length the device
    alone knows."""
    unknown = [loop for loop in every if loop.turns is None]
    deepest = max(loop.depth for loop in unknown)
    return [loop for loop in unknown if loop.depth == deepest]


SIZES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "f64": 8,
    "s64": 8,
    "u64": 8,
}


def bytes_of(shape: str) -> int:
    """Of all arrays in an HLO shape such as "(f32[3,10]{1,0}, s32[])"; bytes of images, of which
    little is read, are left out."""
    total = 0
    for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        if kind in SIZES and kind != "u8":
            total += SIZES[kind] * int(
                np.prod([int(side) for side in sides.split(",") if side] or [1])
            )
    return total


class Instruction(NamedTuple):
    """Of a computation: shape of its result, operation, names of its operands, and the rest of its
    line."""

    shape: str
    operation: str
    operands: list[str]
    rest: str


def _instructions(text: str) -> dict[str, Instruction]:
    """By name."""
    found = re.findall(
        r"^ *(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(([^)]*)\)(.*)", text, re.MULTILINE
    )
    return {
        name: Instruction(shape, operation, re.findall(r"%([\w.-]+)", operands), rest)
        for name, shape, operation, operands, rest in found
    }


def _slice_bytes(fused: str) -> int:
    """What a fusion reads and writes: of an array that it only takes slices of, or puts a slice
    into, the slices."""
    lines = _instructions(fused)

    def read(name: str) -> int:
        total, whole = 0, bytes_of(lines[name].shape)
        for user in (line for line in lines.values() if name in line.operands):
            if user.operation in ("slice", "dynamic-slice"):
                total += bytes_of(user.shape)
            elif user.operation == "bitcast":
                total += read(next(n for n, line in lines.items() if line is user))
            elif user.operation != "dynamic-update-slice" or user.operands[0] != name:
                return whole
        return min(total, whole)

    def written(name: str) -> int:
        line = lines[name]
        if line.operation == "tuple":
            return sum(map(written, line.operands))
        if line.operation == "bitcast":
            return written(line.operands[0])
        return bytes_of(
            lines[line.operands[1]].shape
            if line.operation == "dynamic-update-slice"
            else line.shape
        )

    root = re.search(r"^ *ROOT %([\w.-]+)", fused, re.MULTILINE)[1]
    return written(root) + sum(
        read(name) for name, line in lines.items() if line.operation == "parameter"
    )


def _computations(hlo: str) -> dict[str, str]:
    """The lines of each computation by its name, "ENTRY" by that."""
    found = re.findall(r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL)
    return {entry.strip() or name: text for entry, name, text in found}


def _whiles(text: str) -> list[tuple[str, int | None]]:
    """The bodies of a computation's loops, and how often they run."""
    lines = [line for line in text.splitlines() if " while(" in line]
    turns = (re.search(r'"known_trip_count":\{"n":"(\d+)"', line) for line in lines)
    return [
        (re.search(r"body=%?([\w.-]+)", line)[1], n and int(n[1])) for line, n in zip(lines, turns)
    ]


def loop_turns(hlo: str) -> list[int | None]:
    """How often the loops of a scheduled program run, None where the device alone knows; outer
    before inner."""
    bodies = _computations(hlo)

    def within(name: str) -> list[int | None]:
        return [turns for body, n in _whiles(bodies[name]) for turns in (n, *within(body))]

    return within("ENTRY")


def step_bytes(hlo: str) -> int:
    """What the kernels of the loops over steps read and write, by the shapes of their operands and
    results; but of stacks, through which loops of known length within them go, by slices."""
    bodies = _computations(hlo)
    inner = {name: _whiles(text) for name, text in bodies.items()}

    def depth(name: str) -> int:
        """Loops around it whose length the device alone knows."""
        around = [
            (n, turns) for n, called in inner.items() for body, turns in called if body == name
        ]
        return max((depth(n) + (turns is None) for n, turns in around), default=0)

    def a_turn(name: str, stacked: bool = False) -> int:
        lines = _instructions(bodies[name])
        total = sum(turns * a_turn(body, True) for body, turns in inner[name] if turns)
        for line in lines.values():
            if line.operation == "fusion" and stacked:
                total += _slice_bytes(bodies[re.search(r"calls=%?([\w.-]+)", line.rest)[1]])
            elif line.operation in ("fusion", "custom-call", "copy", "sort"):
                total += bytes_of(line.shape) + sum(
                    bytes_of(lines[operand].shape) for operand in line.operands
                )
        return total

    looped = {
        body: depth(body) for called in inner.values() for body, turns in called if turns is None
    }
    return sum(a_turn(name) for name, d in looped.items() if d == max(looped.values()))
