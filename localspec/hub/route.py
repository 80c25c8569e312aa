"""The way to a host: the proxy and the certificates that an HTTP library takes from the environment."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

CERTIFICATES = "SSL_CERT_FILE"
NOT_READ = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of other HTTP libraries with the same meaning: pip reads them, huggingface_hub's does not."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*@")
_REASON = re.compile(r"certificate verify failed: (.+?)(?: \(_ssl|$)")


@dataclass(frozen=True)
class Proxy:
    """A proxy that is set. setting: the variable, or where else it is set; address: without name and password."""

    setting: str
    address: str

    def __str__(self) -> str:
        return f"the proxy {self.address} of {self.setting}"

    @property
    def remedy(self) -> str:
        """What to do when it is of no use."""
        return f"Correct {self.setting} or remove it; NO_PROXY names hosts that are reached without a proxy."


def proxy_to(url: str) -> Proxy | None:
    """The proxy that requests of this URL go through, or None."""
    scheme, host = url.partition("://")[0].lower(), _hostname(url)
    found = getproxies()
    kind = scheme if found.get(scheme) else "all"
    if not found.get(kind) or proxy_bypass(host):
        return None
    names = [f"{kind}_proxy", f"{kind}_proxy".upper()]
    named = next((name for name in names if os.environ.get(name) == found[kind]), None)
    return Proxy(named or "the system's settings", public(found[kind]))


def proxy_addresses() -> list[str]:
    """All proxies that are set, with their names and passwords: not to be shown."""
    return list(getproxies().values())


def public(address: str) -> str:
    """An address, with or without its scheme, without the name and password in it.

    Whatever is before the last "@" counts as these: a password may have any sign in it that should be escaped.
    """
    scheme, rest = _parted(address)
    return scheme + rest.rpartition("@")[2]


def _parted(address: str) -> tuple[str, str]:
    """The scheme with its "://", or "", and the rest."""
    found = _SCHEME.match(address)
    start = found.end() if found else 0
    return address[:start], address[start:]


def public_text(text: str, *addresses: str) -> str:
    """A foreign message without names and passwords: of addresses in it, and of these `addresses` in any piece."""
    for address in addresses:
        name, _, password = _parted(address)[1].rpartition("@")[0].partition(":")
        if any(len(piece) > 1 and piece in text for piece in re.split(r"[:/@?#\[\]]", password or name)):
            return "its message may show a password"
    return _ADDRESS.sub(lambda found: public(found[0]), text)


def certificate_fault(error: Exception, url: str) -> str | None:
    """The sentence for a certificate that could not be verified, or for settings that name no certificates.

    None for any other fault. url: what was asked, where the exception does not know.
    """
    for link in _links(error):
        if isinstance(link, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(link):
            reason = _REASON.search(str(link))
            return untrusted(_host(error) or _hostname(url), reason[1] if reason else str(link))
    return certificates_fault() if any(isinstance(link, OSError) for link in _links(error)) else None


def untrusted(host: str, reason: str) -> str:
    """The sentence for a host whose certificate could not be verified."""
    return f"The certificate of {host} could not be verified: {reason.strip().rstrip('.')}."


def certificates_fault() -> str | None:
    """Why what SSL_CERT_FILE names is of no use, as a sentence; None if it is, or is not set."""
    path = os.environ.get(CERTIFICATES)
    if not path:
        return None
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # also what is no certificate
        return f"{CERTIFICATES} names {path}, which holds no usable certificates: {error.strerror or error}."
    return None


def certificates_remedy() -> str:
    """What to do when a certificate cannot be verified; names variables that are set in vain."""
    remedy = (
        "If a proxy or a mirror signs with a certificate of its own, name the file that holds it in "
        f"{CERTIFICATES}."
    )
    ignored = ignored_certificates()
    return f"{remedy} {ignored}" if ignored else remedy


def ignored_certificates() -> str:
    """A sentence on certificates named where Hugging Face downloads do not look for them, or ""."""
    named = [name for name in NOT_READ if os.environ.get(name)]
    if not named or os.environ.get(CERTIFICATES):
        return ""
    verb = "is" if len(named) == 1 else "are"
    return f"{' and '.join(named)} {verb} read by pip alone, not for Hugging Face."


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # no address at all
        return ""


def _host(error: Exception) -> str | None:
    """The host that was asked when it happened, after redirects."""
    for link in _links(error):
        try:
            return str(link.request.url.host)  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):  # RuntimeError: httpx's, where it is not known
            continue
    return None


def _links(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and those that led to it; libraries also hand them on as arguments."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or link in seen:
            continue
        seen.append(link)
        yield link
        inner = [value for value in link.args if isinstance(value, BaseException)]
        waiting += [link.__cause__, link.__context__, *inner]
