"""`localspec doctor`: what is in order on this machine, what is not, and what to do about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from localspec.cli.options import json_option, offline_option
from localspec.cli.terminal import busy, columns_of, styled, tell, wrapped, write_json
from localspec.text.controls import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localspec.doctor.finding import Finding

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command(short_help="Check this machine and the installation.")
@click.option(
    "--rpc", metavar="HOST:PORT,...", default="", help="Ask these RPC servers of llama.cpp too (docs/rpc.md)."
)
@json_option
@offline_option
def doctor(rpc: str, as_json: bool, offline: bool) -> None:
    """Check llama.cpp, processor, GPU, memory, disk, folders and network, with a remedy where something is off.

    The library is tried in a process of its own, so that a crash of one compiled for another processor is reported.
    Exit code 0 without problems, 1 with some.
    """
    from localspec.doctor.examine import examine
    from localspec.system.rpc_servers import checked_addresses

    findings: list[Finding] = []
    for finding in _with_spinner(examine(offline=offline, rpc=checked_addresses("rpc", rpc))):
        findings.append(finding)
        if not as_json:
            _show(finding)
    problems = sum(finding.status.value == "problem" for finding in findings)
    if as_json:
        listed = [finding.to_dict() for finding in findings]
        write_json({"problems": problems, "findings": listed})
    else:
        click.echo({0: "No problems.", 1: "1 problem."}.get(problems, f"{problems} problems."))
    if problems:
        click.get_current_context().exit(1)


def _with_spinner(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Each finding, with a spinner while it is being looked for."""
    while True:
        with busy("looking"):
            finding = next(findings, None)
        if finding is None:
            return
        yield finding


def _show(finding: Finding) -> None:
    mark = styled(f"{finding.status.value:8}", fg=_COLOURS[finding.status.value])
    blank = " " * 8
    text = wrapped(f"{blank} {finding.topic}: {printable(finding.fact)}", columns_of(sys.stdout), hang=9)
    click.echo(f"{mark}{text.removeprefix(blank)}")
    if finding.remedy:
        tell(f"{blank} -> {finding.remedy}", hang=12)
