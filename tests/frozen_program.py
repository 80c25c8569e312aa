"""The program that test_freezing.py freezes. Its first argument is a task; its last line is the answer as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import psutil

from localspec import LLM

MODELS = Path(__file__).parent / "models"


def main(task: str, *arguments: str) -> None:
    with (Path.home() / "starts").open("a", encoding="utf-8") as starts:
        starts.write(f"{task}\n")
    sys.addaudithook(no_network)
    if task == "recipe":
        sys.argv[1:] = arguments
        import program  # type: ignore[import-not-found]  # noqa: F401 - the one of docs/shipping.md
    elif task == "localspec":
        sys.argv[1:] = arguments
        from localspec.__main__ import main as command

        command()
    else:
        print(json.dumps(TASKS[task](*arguments)))


def no_network(event: str, arguments: tuple[object, ...]) -> None:
    """End where anything but this machine is asked for."""
    here = re.search("127.0.0.1|localhost|'::1'", repr(arguments))
    if event in ("socket.connect", "socket.getaddrinfo") and not here:
        sys.exit(f"{event} {arguments}")


def answers(library: str) -> dict[str, object]:
    """What the shipped pair says, first tried in a child process; and from where all that is loaded was read."""
    schema = {"type": "object", "properties": {"km": {"type": "integer"}}, "required": ["km"]}
    with LLM.from_folder(MODELS, try_first=True, library=library, n_ctx=256, threads=1) as llm:
        text = llm.generate("the", max_tokens=4, temperature=0.0).text
        said = llm.generate("the", max_tokens=60, seed=1, json_schema=schema)
        build = llm.engine.target.weights.build
    files = [str(getattr(module, "__file__", None) or "") for module in sys.modules.values()]
    mapped = [item.path for item in psutil.Process().memory_maps() if ".so" in item.path]
    return {"text": text, "schema": said.text, "build": build, "files": files, "mapped": mapped}


def catalogue() -> list[str]:
    from localspec.pairs.catalogue import pairs

    return [pair.name for pair in pairs()]


def libraries() -> dict[str, dict[str, object]]:
    """Each library, tried in a child; and whether both can be used in one process, tried in another one."""
    from localspec.engine.libraries import libraries
    from localspec.engine.together import why_not_together

    found: dict[str, dict[str, object]] = {}
    for library in libraries():
        probe = library.probe(60.0)
        found[library.key] = {"usable": probe.usable, "error": probe.error, "said": probe.said}
        found[library.key]["together"] = why_not_together(library)
    return found


def child(entry: str, argument: str) -> list[object]:
    """How a child process ended that was to do this, and its last words."""
    from tempfile import TemporaryDirectory

    from localspec.system.child import run_in_child

    with TemporaryDirectory() as folder:
        ended = run_in_child(entry, argument, 600.0, Path(folder))
    return [ended.code, ended.said]


TASKS = {"answers": answers, "catalogue": catalogue, "libraries": libraries, "child": child}

if __name__ == "__main__":
    main(*sys.argv[1:])
