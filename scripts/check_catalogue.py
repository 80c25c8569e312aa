"""Compares every pair file with what its sources have: `python scripts/check_catalogue.py [FOLDER...]`.

Without a folder the catalogue in `models/` is checked. The hub (HF_ENDPOINT, or the public one) is asked once
for each repository and commit: whether they are there, whether the file is, its bytes, the sha256 of its LFS
record, the licence, and whether it is gated; of each file whose shape the pair file states the header is read
(some 6 MB). The package index is asked through pip, once for each package. No weights are downloaded.

Exit code 0 if all is as the files say, 1 if something is not, 2 if the hub cannot be reached or for wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from localspec.errors import (  # noqa: E402
    CatalogueError,
    DownloadError,
    FileMissing,
    ModelFileError,
    SourceUnreachable,
)
from localspec.hub import endpoint  # noqa: E402
from localspec.hub.pipindex import index_versions  # noqa: E402
from localspec.hub.remote import read_remote_metadata  # noqa: E402
from localspec.pairs.pair import HubSource, ModelFile, Pair, WheelSource  # noqa: E402
from localspec.pairs.pairfile import read_pair  # noqa: E402

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

SECONDS = 30.0


@dataclass
class Report:
    """What was found of one pair file: faults, and what is worth knowing."""

    name: str
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: int = 0

    def show(self) -> None:
        """The pair in a line, its faults and notes under it."""
        state = f"{len(self.faults)} wrong" if self.faults else "right"
        print(f"{self.name}: {state} ({self.checked} sources)")
        for mark, lines in (("wrong", self.faults), ("note", self.notes)):
            for line in lines:
                print(f"  {mark}: {line}")


def check_pair(pair: Pair) -> Report:
    """Compare every source of a pair. Raises SourceUnreachable if the hub does not answer."""
    report = Report(pair.name)
    for file in pair.pieces:
        for source in file.sources:
            report.checked += 1
            if isinstance(source, HubSource):
                check_hub(pair, file, source, report)
            elif isinstance(source, WheelSource):
                check_wheels(file, source, report)
            else:
                report.notes.append(f"{file.file} is a file of somebody's own, which no source can confirm")
        report.faults += [f"{file.file}: {fault}" for fault in wrong_shape(file)]
    return report


# The hub


def check_hub(pair: Pair, file: ModelFile, source: HubSource, report: Report) -> None:
    try:
        info = repository(source.repo, source.revision)
    except SourceUnreachable:
        raise
    except DownloadError as error:
        report.faults.append(f"{file.file}: {error.message}")
        return
    report.faults += wrong_file(file, source, info)
    if info.sha != source.revision:
        report.faults.append(f"{source.repo} answers with commit {info.sha} instead of {source.revision}")
    if info.gated:
        report.faults.append(f"{source.repo} is gated: it cannot be pulled without accepting its licence")
    licence = licence_of(info)
    if licence is None:
        report.notes.append(f"{source.repo} states no licence")
    elif licence == "other":
        report.notes.append(f"{source.repo} has a licence of its own: see that it is {pair.licence!r}")
    elif plain(licence) not in plain(pair.licence):
        report.faults.append(
            f"{source.repo} has the licence {licence!r}, and the pair file says {pair.licence!r}"
        )


def wrong_file(file: ModelFile, source: HubSource, info: ModelInfo) -> Iterator[str]:
    """A sentence for each way in which the hub's file is not the one wanted."""
    path = source.path or file.file
    found = next((item for item in info.siblings or () if item.rfilename == path), None)
    if found is None:
        yield f"{source.repo} has no file {path} at {source.revision[:12]}"
    elif found.lfs is None:
        yield f"{source.repo} keeps {path} without a sha256"
    else:
        if found.lfs.size != file.bytes:
            yield f"{path} has {found.lfs.size} bytes in {source.repo}, not {file.bytes}"
        if found.lfs.sha256 != file.sha256:
            yield f"{path} has the sha256 {found.lfs.sha256} in {source.repo}, not {file.sha256}"


@cache
def wrong_shape(file: ModelFile) -> list[str]:
    """Where the header on the hub differs from the shape that is stated. Raises SourceUnreachable."""
    if file.shape is None or not any(isinstance(source, HubSource) for source in file.sources):
        return []
    try:
        return file.shape.differences(read_remote_metadata(file))
    except SourceUnreachable:
        raise
    except (DownloadError, ModelFileError) as error:
        return [error.message]


@cache
def repository(repo: str, revision: str) -> ModelInfo:
    """What the hub says of the repository at that commit. Raises DownloadError."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint.endpoint(), **endpoint.NAMED)
    faults = endpoint.faults_of(repo, HubSource(repo, revision))
    return endpoint.ask(
        faults,
        lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=SECONDS),
        SECONDS,
    )


def licence_of(info: ModelInfo) -> str | None:
    """The licence in the repository's tags, or None."""
    named = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return named[0] if named else None


def plain(text: str) -> str:
    """A licence's name, to compare: `Apache-2.0` is `apache-2.0`, and `Llama 3.1` is `llama3.1`."""
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == ".")


# The package index


def check_wheels(file: ModelFile, source: WheelSource, report: Report) -> None:
    missing: list[str] = []
    for part in range(1, source.parts + 1):
        package = source.packages.format(i=part)
        try:
            if source.version not in versions_of(package):
                missing.append(package)
        except DownloadError as error:
            report.notes.append(f"the wheels of {file.file} were not checked: {error.message}")
            return
    if missing:
        report.faults.append(
            f"the package index lacks {source.version} of {', '.join(missing)}, which hold {file.file}"
        )


@cache
def versions_of(package: str) -> list[str]:
    """Those that the index has, asked for once; none of a package that it lacks. Raises DownloadError."""
    try:
        return index_versions(package)
    except FileMissing:
        return []


# The whole


def pair_files(folders: list[Path]) -> list[Path]:
    """Every TOML file of the folders. Raises CatalogueError for a folder without any."""
    found: list[Path] = []
    for folder in folders:
        files = sorted(folder.glob("*.toml"))
        if not files:
            raise CatalogueError(f"There are no pair files (*.toml) in {folder}.", path=str(folder))
        found += files
    return found


def check(path: Path) -> Report:
    """The report on one pair file. Raises SourceUnreachable."""
    try:
        return check_pair(read_pair(path.read_text(encoding="utf-8"), str(path)))
    except (CatalogueError, OSError, UnicodeDecodeError) as error:
        return Report(path.stem, [str(error)])


def main(argv: list[str]) -> int:
    if any(argument.startswith("-") for argument in argv):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        reports = []
        for path in pair_files([Path(argument) for argument in argv] or [ROOT / "models"]):
            report = check(path)
            report.show()
            reports.append(report)
    except SourceUnreachable as error:
        print(f"Nothing can be checked without a network: {error.message}", file=sys.stderr)
        return 2
    except CatalogueError as error:
        print(error, file=sys.stderr)
        return 2
    wrong = sum(bool(report.faults) for report in reports)
    print(f"{len(reports)} pair files, {wrong} of them wrong.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
