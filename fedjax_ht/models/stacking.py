"""Runs of equal blocks: one scanned block with stacked parameters, or one block after another.

A stage's blocks are siblings `layer3_0`, `layer3_1`, ... or, from some block on, one node
`layer3_blocks` whose arrays have a leading axis of blocks. Its first block is `layer3_1` if the
only sibling is `layer3_0`, and `layer3_0` if there is none. Scanning compiles one block for all;
the values are the same. The functions rely on names alone, so that they work on parameters, batch
statistics, optimizer moments and whole variables dicts, in NumPy or JAX.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.trees import join_trees, take

SUFFIX = "_blocks"
ON_GPUS = 7  # ResNet-152's 35 blocks take five turns; a ViT's twelve leave no loop
Tree = dict[str, Any]


def blocks_at_once() -> int:
    """Returns how many blocks one turn of a scan runs.

    Several on GPUs. XLA copies a single block's slice of the stack from an address that the host
    computes from the loop counter, which keeps the loop out of CUDA graphs. The slices of several
    blocks are instead cut out by kernels, one of which serves them all.
    """
    return ON_GPUS if jax.default_backend() == "gpu" else 1


def scan_blocks(block: nn.Module, x: jax.Array, *args: Any, length: int) -> jax.Array:
    """Runs `length` equal blocks in a scan, each on the output of the previous one.

    Args:
      block: a module named `<stage>_blocks`, called as block(x, *args); its output has the shape
        and dtype of x. Every block has variables of its own, stacked along a leading axis.
      x: the first block's input.
      args: arguments that every block gets unchanged.
      length: number of blocks.

    Returns:
      The last block's output.
    """

    def run_block(block, x, _):
        return block(x, *args), None

    step = nn.scan(
        run_block,
        # Axis 0 of every variable is the block, as `stack_blocks` and `unstack_blocks` take it.
        variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=length,
        unroll=blocks_at_once(),
    )
    return step(block, x, None)[0]


def unstack_blocks(tree: Tree) -> Tree:
    """Splits every `<stage>_blocks`, at any depth, into siblings `<stage>_<i>`.

    Args:
      tree: nested dicts of arrays; only stacks are changed.

    Returns:
      The same arrays, with stacks cut along their leading axis.
    """
    out = {}
    for name, value in tree.items():
        if not isinstance(value, dict):
            out[name] = value
        elif name.endswith(SUFFIX):
            for i, block in enumerate(_block_names(tree, name)):
                out[block] = take(value, i)
        else:
            out[name] = unstack_blocks(value)
    return out


def stack_blocks(tree: Tree, like: Tree) -> Tree:
    """Stacks blocks where another tree has them stacked; the inverse of `unstack_blocks`.

    Args:
      tree: variables with siblings `<stage>_<i>` throughout.
      like: the same variables in the form to return; its arrays may be `jax.ShapeDtypeStruct`s.

    Returns:
      The arrays of `tree` in the form of `like`.

    Raises:
      ValueError: the two do not hold the same blocks and arrays.

    Example:
      >>> import numpy as np
      >>> from fedjax_ht.models import stack_blocks, unstack_blocks
      >>> stacked = {"layer1_blocks": {"kernel": np.arange(6).reshape(3, 2)}}
      >>> apart = unstack_blocks(stacked)
      >>> sorted(apart)
      ['layer1_0', 'layer1_1', 'layer1_2']
      >>> apart["layer1_2"]["kernel"].tolist()
      [4, 5]
      >>> stack_blocks(apart, like=stacked)["layer1_blocks"]["kernel"].shape
      (3, 2)
    """
    blocks = {}
    for name in like:
        blocks[name] = _block_names(like, name) if name.endswith(SUFFIX) else [name]
    expected = {block for names in blocks.values() for block in names}
    if differing := set(tree) ^ expected:
        name = min(differing)
        problem = "not expected" if name in tree else "missing"
        raise ValueError(f"{name!r} is {problem} among {', '.join(sorted(tree))}")
    out = {}
    for name, names in blocks.items():
        if name.endswith(SUFFIX):
            out[name] = join_trees(jnp.stack, [tree[block] for block in names])
        elif isinstance(like[name], dict):
            out[name] = stack_blocks(tree[name], like[name])
        else:
            out[name] = tree[name]
    return out


def _block_names(tree: Tree, stacked: str) -> list[str]:
    """Returns the sibling names of the blocks in the node `stacked` of `tree`."""
    stage = stacked.removesuffix(SUFFIX)
    first = 0  # the stack's numbers continue those of its siblings
    for name in tree:
        first += name.startswith(f"{stage}_") and name[len(stage) + 1 :].isdigit()
    length = jax.tree.leaves(tree[stacked])[0].shape[0]
    return [f"{stage}_{i}" for i in range(first, first + length)]
