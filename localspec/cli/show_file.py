"""`localspec show FILE`: what the header of one file says."""

from __future__ import annotations

import shlex

import click

from localspec.cli.terminal import write_json
from localspec.text.controls import printable


def show_file(name: str, ctx_size: int, as_json: bool) -> None:
    """What the header of a GGUF file says. Raises `ModelFileError`."""
    from localspec.checks import user_path
    from localspec.engine.options import EngineOptions
    from localspec.gguf.metadata import read_metadata
    from localspec.measure.prospect import prospect
    from localspec.pairs.judgement import judge
    from localspec.system.progress import readable

    model = read_metadata(user_path(name))
    judgement, outlook = judge(model, None), prospect(model, None, EngineOptions(n_ctx=ctx_size))
    needed = outlook.total
    facts = {
        "file": str(model.path),
        "name": model.name,
        "architecture": model.architecture,
        "format": model.file_type,
        "bytes": model.size_bytes,
        "licence": model.key_values.get("general.license"),
        "layers": model.n_layer,
        "head": outlook.head or None,
        "width": model.n_embd,
        "vocabulary": model.n_vocab,
        "tokenizer": model.tokenizer_model,
        "chat_template": model.chat_template is not None,
        "context": model.n_ctx_train or None,
        "memory": {"context": outlook.target.n_ctx, "bytes": needed},
        "judgement": judgement.to_dict(),
    }
    if as_json:
        write_json(facts)
        return
    for line in (
        f"{model.name}: {model.path}",
        "",
        f"architecture  {model.architecture}, {model.n_layer} layers of width {model.n_embd}",
        f"format        {model.file_type}, {readable(model.size_bytes)} ({model.size_bytes} bytes)",
        f"tokenizer     {model.tokenizer_model}, {model.n_vocab} tokens",
        f"chat template {'yes' if model.chat_template else 'none: it continues text and answers no messages'}",
        f"licence       {facts['licence'] or 'not stated'}",
        f"context       {model.n_ctx_train or 'unknown'} tokens",
        f"memory        {readable(needed)}, with a context of {outlook.target.n_ctx} tokens",
        "",
        judgement.sentence,
        *([judgement.command] if judgement.command else []),
        *judgement.running_states,
        *([outlook.head] if outlook.head and judgement.fits else []),
        *([f"`localspec suggest {shlex.quote(name)}` finds drafts for it."] if judgement.fits else []),
    ):
        click.echo(printable(line))
