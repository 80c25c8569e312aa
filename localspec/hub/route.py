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


def public(address: str) -> str:
    """An address, with or without its scheme, without the name and password in it."""
    scheme, mark, rest = address.rpartition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"


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
