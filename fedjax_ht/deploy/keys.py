"""A client's keys: files that only their owner can read, each for one server.

As in Flower, a request's signature covers only its time. A server could thus replay a client's
request, for a minute, to another one that knows the same public key. So a key is for one server,
which a note beside it names, and is rejected elsewhere. Needs the extra `flower`.
"""

import hashlib
import json
import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.runs.folder import read_json


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads a client's private key.

    Raises:
      ValueError, OSError: the file is not a private key, or others can read it. One line.
    """
    check_private(path, "client")
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{path} is not a private key without a passphrase: {problem}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not an ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
    return key


def check_private(path: Path, side: str) -> None:
    """Rejects a private key that other users of the machine can read.

    Raises:
      ValueError: they can. One line.
    """
    if path.stat().st_mode & 0o077:
        raise ValueError(
            f"{path} can be read by others, who could answer as this {side}; chmod 600 {path}"
        )


def make_key(folder: Path, client_id: int, server: str) -> tuple[Path, Path]:
    """Makes a client's key for a server, and the note that names the server.

    Args:
      folder: receives client3, client3.pub and client3.server for client 3.
      client_id: number of the client, from 0.
      server: the server's address, HOST:PORT.

    Returns:
      The paths of the private and the public key.

    Raises:
      ValueError, OSError: a key exists already, or it cannot be written. One line.
    """
    private_path = folder / f"client{client_id}"
    public_path = private_path.with_suffix(".pub")
    for path in (private_path, public_path, _note(private_path)):
        if path.exists():
            raise ValueError(f"{path} already exists; choose another --workdir, or delete it")
    key, form = ec.generate_private_key(ec.SECP384R1()), serialization
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(private_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(private)
    public_path.write_bytes(public + b"\n")
    _write_note(private_path, server, None)
    return private_path, public_path


def bind_to_server(key: Path, server: str, authority: Path | None) -> None:
    """Rejects a key for another server; a new key is bound to the first server it is used with.

    Args:
      key: file of the private key.
      server: HOST:PORT of the server.
      authority: certificate file of the server's authority; None without TLS.

    Raises:
      ValueError, OSError: it is another server's, or the note cannot be read or written. One line.
    """
    fingerprint = None
    if authority is not None:
        fingerprint = hashlib.sha256(authority.read_bytes()).hexdigest()
    path = _note(key)
    known = read_json(path) if path.exists() else {"server": server, "authority": None}
    if known.get("server") != server:
        raise ValueError(
            f"{key} is the key for {known.get('server')}, but the server is {server}; make one for "
            f"it with fedjax-ht deploy keys, or delete {path} if the server has moved"
        )
    if known.get("authority") not in (None, fingerprint):
        raise ValueError(
            f"{key} is the key for a server with another authority than {authority}; delete {path} "
            "if the authority's certificate was renewed"
        )
    if known.get("authority") != fingerprint or not path.exists():
        _write_note(key, server, fingerprint)


def _note(key: Path) -> Path:
    return key.with_name(f"{key.name}.server")


def _write_note(key: Path, server: str, authority: str | None) -> None:
    write_whole(_note(key), json.dumps({"server": server, "authority": authority}))
