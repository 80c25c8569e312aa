"""Runs where a frozen program starts: a child process of localspec does its work here, and never gets any further."""

from localspec.system.frozen import begin

begin()
