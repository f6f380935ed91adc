"""Checkpoints with orbax: the state of a simulation and its history, the newest few kept."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedjax_ht.core.simulation import SimulationState


class Checkpointer(NamedTuple):
    """Attributes:
    save: (state, history) -> None; atomic, named by the state's round; returns when it is on disk.
    restore: (template state, warn) -> (state, history), or None if there is none. A checkpoint that cannot be read is
      passed over with a warning, for the one before it.
    """

    save: Callable[[SimulationState, list[dict]], None]
    restore: Callable[..., tuple[SimulationState, list[dict]] | None]


def make_checkpointer(directory: Path | str, keep: int = 2) -> Checkpointer:
    """Checkpoints below `directory`, of which the newest `keep` stay."""
    directory = Path(directory).absolute()

    def manager() -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        return ocp.CheckpointManager(directory, options=options)

    def save(state: SimulationState, history: list[dict]) -> None:
        with manager() as m:
            if state.round in m.all_steps():  # saved already, or the leftover of a broken one that was passed over
                m.delete(state.round)
            items = {"state": ocp.args.StandardSave(_storable(state)), "history": ocp.args.JsonSave({"rows": history})}
            m.save(state.round, args=ocp.args.Composite(**items), force=True)

    def restore(template: SimulationState, warn: Callable[[str], None] = logging.warning):
        if not directory.exists():
            return None
        with manager() as m:
            for step in sorted(m.all_steps(), reverse=True):
                items = {"state": ocp.args.StandardRestore(_storable(template)), "history": ocp.args.JsonRestore()}
                try:
                    found = m.restore(step, args=ocp.args.Composite(**items))
                    return _restored(template, found["state"], step), found["history"]["rows"]
                except Exception as error:  # whatever is wrong with one file, an older checkpoint may be whole
                    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                    warn(f"checkpoint {directory / str(step)} cannot be read ({reason}); trying the one before it")
        return None

    return Checkpointer(save, restore)


def _storable(state: SimulationState) -> dict[str, Any]:
    # An empty pytree is no checkpoint item; the leaves as a list need no knowledge of the method's types to be stored.
    return {"leaves": {f"{i:05d}": leaf for i, leaf in enumerate(jax.tree.leaves(state[1:]))}}


def _restored(template: SimulationState, stored: dict[str, Any], step: int) -> SimulationState:
    structure = jax.tree.structure(template[1:])
    server, clients, last_round = jax.tree.unflatten(structure, [stored["leaves"][k] for k in sorted(stored["leaves"])])
    return SimulationState(step, server, clients, np.array(last_round))
