"""Reads XLA's listings of a program compiled for a GPU: loops, their kernels, and bytes moved."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A thunk of a compiled program.

    Attributes:
      depth: of its nesting.
      kind: of work, such as "Kernel" or "While".
      after: the number of the thunk that it waits for last.
      name: of the instruction that it runs.
    """

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
    """Returns the nodes of XLA's listing of a GPU program, in its order."""
    pattern = r"^( *)\d+: k(\w+) +\[(?:prev=(\d+))?[^]]*\] *(\S*)"
    nodes = []
    for indent, kind, after, name in re.findall(pattern, text, re.MULTILINE):
        nodes.append(Node(depth=len(indent) // 4, kind=kind, after=after, name=name))
    return nodes


def loops(nodes: Sequence[Node], turns: Sequence[int | None]) -> list[Loop]:
    """Returns all loops, outer before inner.

    Args:
      nodes: of a program.
      turns: of each loop in this order, as `loop_turns` reads them.
    """
    starts = [i for i, node in enumerate(nodes) if node.kind == "While"]
    known = dict(zip(starts, turns, strict=True))
    all_loops = []
    for start in starts:
        around = [i for i in range(start) if start < _end(nodes, i)]
        depth = sum(nodes[i].kind == "While" and known[i] is None for i in around)
        graphed = any(nodes[i].kind == "CommandBuffer" for i in around)
        all_loops.append(
            Loop(
                depth=depth,
                graphed=graphed,
                after=nodes[start].after,
                turns=known[start],
                body=_turn(nodes, start, known),
            )
        )
    return all_loops


def _turn(nodes: Sequence[Node], start: int, known: dict[int, int | None]) -> list[Node]:
    """Returns the nodes that a turn of the loop at `start` runs.

    The first node in a loop is its condition. Of a loop within it counts as often as that runs,
    with its condition; one whose length the device alone knows is left out.
    """
    inside = range(start + 1, _end(nodes, start))
    direct = min((nodes[i].depth for i in inside), default=0)
    body = []
    for i in inside[1:]:
        if nodes[i].depth != direct:
            continue
        if i in known:
            body += [nodes[i + 1], *_turn(nodes, i, known)] * (known[i] or 0)
        else:
            body.append(nodes[i])
    return body


def _end(nodes: Sequence[Node], start: int) -> int:
    """Returns where the nodes within the one at an index end."""
    for i in range(start + 1, len(nodes)):
        if nodes[i].depth <= nodes[start].depth:
            return i
    return len(nodes)


def steps_of(all_loops: Sequence[Loop]) -> list[Loop]:
    """Returns the loops over training steps, one a bucket.

    They are those nested deepest whose length the device alone knows.
    """
    unknown = [loop for loop in all_loops if loop.turns is None]
    deepest = max(loop.depth for loop in unknown)
    return [loop for loop in unknown if loop.depth == deepest]


SIZES = {
    "pred": 1,
    "s8": 1,
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "f64": 8,
    "s64": 8,
    "u64": 8,
}
"""Bytes of a number; u8 is left out: images, of which little is read."""


def bytes_of(shape: str) -> int:
    """Returns the bytes of all arrays in an HLO shape such as "(f32[3,10]{1,0}, s32[])"."""
    total = 0
    for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        lengths = [int(side) for side in sides.split(",") if side]
        total += SIZES.get(kind, 0) * math.prod(lengths)
    return total


class Instruction(NamedTuple):
    """An instruction of a computation.

    Attributes:
      shape: of its result.
      operation: its kind, such as "fusion".
      operands: their names.
      rest: of its line.
    """

    shape: str
    operation: str
    operands: list[str]
    rest: str


def _instructions(text: str) -> dict[str, Instruction]:
    """Reads the instructions of a computation by name."""
    pattern = r"^ *(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(([^)]*)\)(.*)"
    instructions = {}
    for name, shape, operation, operands, rest in re.findall(pattern, text, re.MULTILINE):
        names = re.findall(r"%([\w.-]+)", operands)
        instructions[name] = Instruction(
            shape=shape, operation=operation, operands=names, rest=rest
        )
    return instructions


def _slice_bytes(fused: str) -> int:
    """Returns the bytes that a fusion reads and writes.

    Of an array that it only takes slices of, or puts a slice into, the slices count.
    """
    instructions = _instructions(fused)
    root = re.search(r"^ *ROOT %([\w.-]+)", fused, re.MULTILINE)[1]
    total = _written(instructions, root)
    for name, line in instructions.items():
        if line.operation == "parameter":
            total += _read(instructions, name)
    return total


def _read(instructions: dict[str, Instruction], name: str) -> int:
    """Returns the bytes that are read of an instruction's result."""
    total, whole = 0, bytes_of(instructions[name].shape)
    for user_name, user in instructions.items():
        if name not in user.operands:
            continue
        if user.operation in ("slice", "dynamic-slice"):
            total += bytes_of(user.shape)
        elif user.operation == "bitcast":
            total += _read(instructions, user_name)
        elif user.operation != "dynamic-update-slice" or user.operands[0] != name:
            return whole
    return min(total, whole)


def _written(instructions: dict[str, Instruction], name: str) -> int:
    """Returns the bytes that an instruction writes; of an update in place those of the slice."""
    line = instructions[name]
    if line.operation == "tuple":
        return sum(_written(instructions, operand) for operand in line.operands)
    if line.operation == "bitcast":
        return _written(instructions, line.operands[0])
    if line.operation == "dynamic-update-slice":
        return bytes_of(instructions[line.operands[1]].shape)
    return bytes_of(line.shape)


def _computations(hlo: str) -> dict[str, str]:
    """Returns the lines of each computation by its name, those of the entry by "ENTRY"."""
    pattern = r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}"
    computations = re.findall(pattern, hlo, re.MULTILINE | re.DOTALL)
    return {entry.strip() or name: text for entry, name, text in computations}


def _whiles(text: str) -> list[tuple[str, int | None]]:
    """Returns the bodies of a computation's loops, and how often they run."""
    bodies = []
    for line in text.splitlines():
        if " while(" in line:
            count = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
            body = re.search(r"body=%?([\w.-]+)", line)[1]
            bodies.append((body, int(count[1]) if count else None))
    return bodies


def loop_turns(hlo: str) -> list[int | None]:
    """Returns how often the loops of a scheduled program run, outer before inner.

    None where the device alone knows.
    """
    computations = _computations(hlo)

    def within(name: str) -> list[int | None]:
        all_turns = []
        for body, turns in _whiles(computations[name]):
            all_turns += [turns, *within(body)]
        return all_turns

    return within("ENTRY")


def step_bytes(hlo: str) -> int:
    """Returns the bytes that the kernels of the loops over steps read and write.

    By the shapes of their operands and results; but of stacks, through which loops of known length
    within them go, by slices.
    """
    computations = _computations(hlo)
    inner = {name: _whiles(text) for name, text in computations.items()}
    depths = {}  # body of a loop over steps, or over batches of them -> its depth
    for bodies in inner.values():
        for body, turns in bodies:
            if turns is None:
                depths[body] = _depth(body, inner)
    deepest = max(depths.values())
    total = 0
    for body, depth in depths.items():
        if depth == deepest:
            total += _turn_bytes(body, computations, inner)
    return total


def _depth(name: str, inner: dict[str, list[tuple[str, int | None]]]) -> int:
    """Returns how many loops lie around a body whose length the device alone knows."""
    depths = [0]
    for computation, bodies in inner.items():
        for body, turns in bodies:
            if body == name:
                depths.append(_depth(computation, inner) + (turns is None))
    return max(depths)


def _turn_bytes(
    name: str,
    computations: dict[str, str],
    inner: dict[str, list[tuple[str, int | None]]],
    stacked: bool = False,
) -> int:
    """Returns the bytes of a turn of a loop's body; `stacked` ones go through stacks by slices."""
    instructions, total = _instructions(computations[name]), 0
    for body, turns in inner[name]:
        if turns:
            total += turns * _turn_bytes(body, computations, inner, stacked=True)
    for line in instructions.values():
        if line.operation == "fusion" and stacked:
            total += _slice_bytes(computations[re.search(r"calls=%?([\w.-]+)", line.rest)[1]])
        elif line.operation in ("fusion", "custom-call", "copy", "sort"):
            total += bytes_of(line.shape)
            total += sum(bytes_of(instructions[operand].shape) for operand in line.operands)
    return total
