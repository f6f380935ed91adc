"""The program and the machine behind a measurement."""

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import jax

from fedjax_ht.lab.version import library_version

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
CODE = "code."
"""Prefix for files of a user's own code, which an entry records beside these versions."""


@functools.cache
def environment() -> dict[str, str]:
    """Returns the versions of the library and its packages, the commit, and the machine."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "fedjax_ht": library_version(),
        "commit": commit(),
        **versions,
        "machine": machine(),
    }


def lines(versions: Mapping[str, str]) -> list[str]:
    """Formats an `environment` as lines: the library, its packages, the machine."""
    return [
        f"fedjax_ht {versions['fedjax_ht']} (commit {versions['commit']})",
        ", ".join(f"{name} {versions[name]}" for name in PACKAGES),
        versions["machine"],
    ]


def machine() -> str:
    """Describes JAX's devices, the cores and the Python version."""
    device = jax.devices()[0]
    kind = device.device_kind
    if device.platform == "cpu":
        kind = processor()
    return (
        f"{len(jax.devices())} x {kind}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )


def processor() -> str:
    """Returns the processor's name if the system provides it, else its kind."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if name:
            return name[1]
    return platform.machine()


def commit() -> str:
    """Returns the commit of the running code, or "unknown".

    A wheel has none, unless pip built it from a repository.
    """
    root = Path(__file__).parents[3]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    if not (root / ".git").exists():  # installed, perhaps into another repository
        return _commit_of_install()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _commit_of_install() -> str:
    """Returns the commit that pip records for an installation from a repository (PEP 610)."""
    try:
        text = importlib.metadata.distribution("fedjax_ht").read_text("direct_url.json")
        return json.loads(text or "{}")["vcs_info"]["commit_id"][:12]
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return "unknown"
