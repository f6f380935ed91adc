"""Runs of equal blocks: one scanned block with stacked parameters, or one block after another.

A stage's blocks are siblings `layer3_0`, `layer3_1`, ... or, from some block on, one node
`layer3_blocks` whose arrays have a leading axis of blocks: beside `layer3_0` alone it holds
`layer3_1` and on, with no sibling `layer3_0` and on. Scanning compiles one block for all; the
values are the same. The functions go by names alone, so that they serve parameters, batch
statistics, optimizer moments and whole variables dicts, in numpy or jax.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

SUFFIX = "_blocks"
ON_GPUS = 7  # of ResNet-152's 35, five turns; a ViT's twelve are none
Tree = dict[str, Any]


def blocks_at_once() -> int:
    """Blocks that one turn of a scan runs.

    On GPUs several: XLA copies what a single block takes from the stack by an address that the host
    computes from the loop's counter, which keeps the loop outside of CUDA graphs. What several
    blocks take is cut out by kernels instead, and one such kernel serves them all.
    """
    return ON_GPUS if jax.default_backend() == "gpu" else 1


def scan_blocks(block: nn.Module, x: jax.Array, *args: Any, length: int) -> jax.Array:
    """Runs `length` blocks of the form of `block`, each on the output of the one before, with
    variables of its own.

    Args:
      block: a module named `<stage>_blocks`, called as block(x, *args); its output has the shape
        and dtype of x.
      x: the first block's input.
      args: given to every block as they are.
      length: number of blocks.
    """
    step = nn.scan(
        lambda block, x, _: (block(x, *args), None),
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True, "dropout": True},
        length=length,
        unroll=blocks_at_once(),
    )
    return step(block, x, None)[0]


def unstack_blocks(tree: Tree) -> Tree:
    """Every `<stage>_blocks`, at any depth, as siblings `<stage>_<i>`; all else as it is."""
    out = {}
    for name, value in tree.items():
        if not isinstance(value, dict):
            out[name] = value
        elif name.endswith(SUFFIX):
            blocks = _block_names(tree, name)
            out |= {
                block: jax.tree.map(lambda leaf, i=i: leaf[i], value)
                for i, block in enumerate(blocks)
            }
        else:
            out[name] = unstack_blocks(value)
    return out


def stack_blocks(tree: Tree, like: Tree) -> Tree:
    """`tree` with its blocks stacked where `like`'s are; the inverse of `unstack_blocks`.

    Args:
      tree: siblings `<stage>_<i>` throughout.
      like: the same variables in the form wanted; its arrays may be `jax.ShapeDtypeStruct`s.

    Raises:
      ValueError: the two do not hold the same blocks and arrays.
    """
    names = {name: _block_names(like, name) if name.endswith(SUFFIX) else [name] for name in like}
    if differing := set(tree) ^ {part for parts in names.values() for part in parts}:
        where = "missing" if min(differing) not in tree else "not expected"
        raise ValueError(f"{min(differing)!r} is {where} beside {', '.join(sorted(tree))}")
    out = {}
    for name, parts in names.items():
        if name.endswith(SUFFIX):
            out[name] = jax.tree.map(
                lambda *leaves: jnp.stack(leaves), *(tree[part] for part in parts)
            )
        else:
            out[name] = (
                stack_blocks(tree[name], like[name]) if isinstance(like[name], dict) else tree[name]
            )
    return out


def _block_names(tree: Tree, stacked: str) -> list[str]:
    """The siblings that the node `stacked` of `tree` stands for."""
    stage = stacked.removesuffix(SUFFIX)
    first = sum(name.startswith(f"{stage}_") and name[len(stage) + 1 :].isdigit() for name in tree)
    length = jax.tree.leaves(tree[stacked])[0].shape[0]
    return [f"{stage}_{i}" for i in range(first, first + length)]
