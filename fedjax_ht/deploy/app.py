"""The Flower app of a run, and Flower's own programs as this library starts them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_ht.io.files import atomic_open

_PROJECT = """\
[project]
name = "fedjax-ht-run"
version = "{version}"
description = "A run of fedjax_ht"
license = "Apache-2.0"
dependencies = ["fedjax_ht[flower]"]

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "fedjax_ht_server:app"
clientapp = "fedjax_ht_client:app"

[tool.flwr.app.config]
{config}
"""
_MODULES = {  # a client's is imported for every message, and has no need of jax
    "fedjax_ht_client": "from fedjax_ht.deploy.flower import client_app\n\napp = client_app()\n",
    "fedjax_ht_server": "from fedjax_ht.deploy.flower_server import server_app\n\napp = server_app()\n",
}


def write_app(folder: Path, version: str, config: Mapping[str, str | float | bool]) -> None:
    """Writes a Flower app whose server takes `config`: for `flwr run FOLDER`."""
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    with atomic_open(folder / "pyproject.toml") as file:
        file.write(_PROJECT.format(version=version, config=lines))
    for name, text in _MODULES.items():
        with atomic_open(folder / f"{name}.py") as file:
            file.write(text)


def write_connection(home: Path, address: str, certificates: Path | None) -> None:
    """Writes Flower's config.toml below `home`, by which its commands find the SuperLink as "here"."""
    secure = f"root-certificates = {json.dumps(str(certificates))}" if certificates else "insecure = true"
    with atomic_open(home / "config.toml") as file:
        file.write(f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n{secure}\n')


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: its files below `home`, those beside this Python first, and nothing told to its makers."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"FLWR_HOME": str(home), "PATH": here, "FLWR_TELEMETRY_ENABLED": "0"}


def start(words: Sequence[str], home: Path, log: Path | None) -> subprocess.Popen:
    """Starts one of Flower's programs, which ends with this one; its output goes to `log`, or where this one's does."""
    tethered = [sys.executable, "-m", "fedjax_ht.deploy.tether", str(os.getpid()), _program(words[0]), *words[1:]]
    with log.open("ab") if log else contextlib.nullcontext() as file:
        return subprocess.Popen(tethered, env=environment(home), stdout=file, stderr=subprocess.STDOUT if log else None)


def run(words: Sequence[str], home: Path) -> str:
    """What one of Flower's programs prints.

    Raises:
      OSError: it fails. What it said, as one line.
    """
    done = subprocess.run([_program(words[0]), *words[1:]], env=environment(home), capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip(" │╭╮╰╯─") for line in (done.stdout + done.stderr).splitlines()]
        said = " ".join(line for line in lines if line) or f"exit code {done.returncode}"
        raise OSError(f"{' '.join(words[:2])}: {said}")
    return done.stdout


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
