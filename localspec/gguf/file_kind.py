"""What a file that is not GGUF looks like, so that the refusal can say it."""

from __future__ import annotations

import codecs

_DOWNLOAD = "Download the file again."
_OTHER = "Give the path of a GGUF file; if this should be one, download it again."
_CONVERT = "localspec runs GGUF files only: convert it, or download the GGUF version."

_PREFIXES: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer", "Fetch the file itself with `git lfs pull`."),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a wheel)", _CONVERT),
    (b"\x1f\x8b", "a gzip archive", "Unpack it first."),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "Unpack it first."),
    (b"7z\xbc\xaf", "a 7z archive", "Unpack it first."),
    (b"\x80\x02", "a pickle (an old PyTorch checkpoint)", _CONVERT),
    (b"\x89HDF", "an HDF5 file", _CONVERT),
    (b"lmgg", "a model in the old GGML format", _CONVERT),
    (b"tjgg", "a model in the old GGJT format", _CONVERT),
    (b"fmgg", "a model in the old GGMF format", _CONVERT),
    (b"FUGG", "a GGUF file with its bytes swapped", _DOWNLOAD),
    (b"\x7fELF", "a program", _OTHER),
    (b"%PDF", "a PDF document", _OTHER),
)


def describe(head: bytes) -> tuple[str, str]:
    """What a file that begins with `head` (some 512 bytes) looks like, and the remedy."""
    for prefix, kind, remedy in _PREFIXES:
        if head.startswith(prefix):
            return kind, remedy
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, as a failed download leaves it", _DOWNLOAD
    if head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        return "a safetensors file", _CONVERT
    if text.startswith((b"{", b"[")):
        return "a JSON text", _OTHER
    if not any(head):
        return "empty space (zero bytes), as an unfinished download leaves it", _DOWNLOAD
    if _is_text(head):
        return "a text file", _OTHER
    return f"an unknown binary file (it begins with {head[:4].hex(' ')})", _DOWNLOAD


def _is_text(head: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    return all(character >= " " or character in "\t\r\n\f" for character in text)
