"""Keys and certificates: files are read, or refused in one line, and each is for one server."""

import socket
import ssl
import stat
import subprocess

import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives import serialization as form
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedjax_ht.deploy.command import check_keys
from fedjax_ht.deploy.gate import read_public_keys
from fedjax_ht.deploy.keys import bind_to_server, make_key, read_private_key
from tests.deploy.wire import attending, client, listening, wait_until


def test_keys_are_read_by_client_or_refused_in_one_line(tmp_path, keys):
    def write(name, key, kind=form.PublicFormat.OpenSSH):
        (tmp_path / name).write_bytes(key.public_key().public_bytes(form.Encoding.OpenSSH, kind))

    with pytest.raises(ValueError, match="has no keys"):
        read_public_keys(tmp_path)
    write("site3.pub", keys[3])
    write("client12.pub", keys[1])
    read = read_public_keys(tmp_path)
    assert read == {i: public_key_to_bytes(keys[k].public_key()) for i, k in ((3, 3), (12, 1))}
    write("other_3.pub", keys[0])
    with pytest.raises(ValueError, match="client 3 has two keys"):
        read_public_keys(tmp_path)
    (tmp_path / "other_3.pub").unlink()
    write("client4.pub", keys[3])
    with pytest.raises(ValueError, match="or two clients have this one"):
        read_public_keys(tmp_path)
    (tmp_path / "client4.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ValueError, match=r"client4.pub is not a public key of ssh-keygen: "):
        read_public_keys(tmp_path)
    (tmp_path / "client4.pub").rename(tmp_path / "hospital.pub")
    with pytest.raises(ValueError, match=r"hospital.pub: its name must end with the client's id"):
        read_public_keys(tmp_path)


def test_a_key_may_be_withdrawn_from_a_run_that_has_begun(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"has no keys for clients 1: add client1\.pub"):
        check_keys({0: b"", 2: b""}, 3, tmp_path, has_begun=False)
    check_keys({0: b"", 2: b""}, 3, tmp_path, has_begun=True)
    assert capsys.readouterr().out.endswith("has no keys for clients 1: they cannot take part\n")


def private_bytes(key) -> bytes:
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())


def test_a_private_key_that_others_can_read_is_refused(tmp_path, keys):
    path = tmp_path / "client0"
    path.write_bytes(private_bytes(keys[0]))
    path.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others, who could answer as this client"):
        read_private_key(path)
    path.chmod(0o600)
    assert read_private_key(path).private_numbers() == keys[0].private_numbers()
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="is not a private key without a passphrase"):
        read_private_key(path)


def test_a_key_is_made_for_a_server_and_refused_elsewhere(tmp_path):
    private, public = make_key(tmp_path / "keys", 3, "fl.example.org:8000")
    assert private.name == "client3" and stat.S_IMODE(private.stat().st_mode) == 0o600
    key = read_private_key(private)
    assert read_public_keys(tmp_path / "keys") == {3: public_key_to_bytes(key.public_key())}
    assert public.name == "client3.pub"
    with pytest.raises(ValueError, match="client3 already exists; choose another --workdir"):
        make_key(tmp_path / "keys", 3, "other.example.org:8000")
    assert read_private_key(private).private_numbers() == key.private_numbers()
    ours, theirs = tmp_path / "ours.crt", tmp_path / "theirs.crt"
    ours.write_text("ours"), theirs.write_text("theirs")
    for _ in range(2):
        bind_to_server(private, "fl.example.org:8000", ours)
    for server, authority, message in (
        ("other.example.org:8000", ours, "is the key for fl.example.org:8000, but the server is"),
        ("fl.example.org:8000", theirs, "with another authority than"),
        ("fl.example.org:8000", None, "with another authority than None"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            bind_to_server(private, server, authority)
        assert "\n" not in str(error.value) and "client3.server if" in str(error.value)


def test_a_key_of_ssh_keygen_is_the_first_servers(tmp_path, keys):
    path = tmp_path / "id_ecdsa"
    path.write_bytes(private_bytes(keys[0]))
    bind_to_server(path, "a:1", None)
    bind_to_server(path, "a:1", None)
    with pytest.raises(ValueError, match="is the key for a:1, but the server is b:1; make one"):
        bind_to_server(path, "b:1", None)
    (tmp_path / "id_ecdsa.server").write_text("[" * 10**5)
    with pytest.raises(ValueError, match=r"id_ecdsa.server is not readable as JSON"):
        bind_to_server(path, "a:1", None)


def answer_of(port, certs, *identity) -> bytes:
    """Returns the first bytes of what a server answers to HTTP over TLS."""
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    if identity:
        context.load_cert_chain(*identity)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return secure.recv(12)
    except OSError:
        return b""


@pytest.mark.parametrize("side", ["server", "client"])
def test_certificates_of_the_page_on_deployments_hold_under_strict_verification(certs, side):
    strictly = ["openssl", "verify", "-x509_strict", f"-purpose=ssl{side}", "-CAfile=ca.crt"]
    done = subprocess.run([*strictly, f"{side}.pem"], cwd=certs, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("quick")
def test_with_an_authority_of_clients_a_stranger_gets_no_further_than_tls(certs, keys):
    files = certs / "server.pem", certs / "server.key"
    identity = certs / "client.pem", certs / "client.key"
    ca = certs / "ca.crt"
    with listening(keys, certificate=files, client_ca=ca) as (link, port, _):
        assert answer_of(port, certs) == b""
        assert answer_of(port, certs, *identity) == b"HTTP/1.1 404"
        with attending(port, keys[0], client(0), authority=ca) as lines:
            wait_until(lambda: lines)
            assert "no connection to" in lines[0] and link.online_nodes() == {}
        with attending(port, keys[0], client(0), authority=ca, identity=identity):
            wait_until(link.online_nodes)
    with listening(keys, certificate=files) as (_, port, _):
        assert answer_of(port, certs) == b"HTTP/1.1 404"
