"""References to repositories: what is chosen, how it is pinned, and a sentence for each way in which it fails."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import huggingface_hub.constants
import pytest

import localspec
from localspec.errors import (
    AccessDenied,
    FileMissing,
    HashMismatch,
    InvalidRequest,
    LocalspecError,
    NotDownloaded,
    OfflineError,
    SourceUnreachable,
    StoreError,
)
from localspec.hub import endpoint, huggingface
from localspec.hub.finding import resolve
from localspec.hub.hubmodels import paths_on_disk, pull_references, remove_reference
from localspec.pairs.offer import offers, quantization_of
from localspec.pairs.pins import Pins
from localspec.pairs.reference import Reference, choose, parse_reference, required_reference
from localspec.store.store import Store
from tests.hubkit import content
from tests.hubserver import Hub, running_hub

REPO = "Someone/Some-GGUF"
Q4, Q8, F16 = content(1, 40_000), content(2, 30_000), content(3, 20_000)
PARTS = {f"big/Some-Q6_K-0000{i}-of-00003.gguf": content(10 + i, 9_000 + i) for i in (1, 2, 3)}
FILES = {
    "README.md": b"# Some",
    "Some-Q4_K_M.gguf": Q4,
    "some.q8_0.gguf": Q8,
    "Some-F16.gguf": F16,
    "mmproj-Some-BF16.gguf": content(4, 500),
    **PARTS,
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store ü")


@pytest.fixture(autouse=True)
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface, "PAUSE_SECONDS", 0.001)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    huggingface_hub.close_session()
    with running_hub() as server:
        server.repos[REPO] = dict(FILES)
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
        huggingface_hub.close_session()


def cut_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def ref(choice: str, repo: str = REPO) -> Reference:
    return required_reference(f"{repo}:{choice}" if choice else repo)


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("org/repo:q4_k_m", Reference("org/repo", "Q4_K_M")),
        ("org/repo:UD-Q4_K_XL", Reference("org/repo", "UD-Q4_K_XL")),
        ("Org/Re.po-1_x", Reference("Org/Re.po-1_x", "")),
        ("org/repo:sub/My File.gguf", Reference("org/repo", "sub/My File.gguf")),
        ("qwen2.5-coder-1.5b", None),
        ("model.gguf", None),
        ("folder/model.gguf", None),
        ("folder/MODEL.GGUF", None),
        ("./folder/model", None),
        ("/folder/model", None),
        ("~/folder", None),
        ("a/b/c:Q4_0", None),
        ("C:\\folder\\model.gguf", None),
        ("org/repo:", None),
        ("org/repo:Q4\0", None),
        ("", None),
    ],
)
def test_what_is_a_reference(text: str, parsed: Reference | None) -> None:
    assert parse_reference(text) == parsed
    if parsed is None:
        with pytest.raises(InvalidRequest, match="does not name a model of a hub"):
            required_reference(text)
    else:
        assert parse_reference(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Llama-3.2-1B-Instruct.IQ4_XS.gguf", "IQ4_XS"),
        ("Model.i1-IQ2_XXS.gguf", "IQ2_XXS"),
        ("ggml_model_f16.gguf", "F16"),
        ("Some-BF16-00001-of-00002.gguf", "BF16"),
        ("BF16/Some-00001-of-00002.gguf", "BF16"),
        ("x/Q4_K_M/Some.gguf", "Q4_K_M"),
        ("Q4_0/Some-Q8_0.gguf", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Bit-TQ1_0.gguf", "TQ1_0"),
        ("Llama-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Some-F16-Q4_K_M.gguf", "Q4_K_M"),
        ("Some-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("mmproj-Some-F16.gguf", ""),
        ("F16/Some.mmproj.gguf", ""),
        ("Some.gguf", ""),
        ("MyQ4_0Some.gguf", ""),
        ("Some-Q4x.gguf", ""),
    ],
)
def test_the_quantization_in_a_name(path: str, quantization: str) -> None:
    assert quantization_of(path) == quantization


LIKE_EACH_OTHER = [
    f"Some-{name}.gguf"
    for name in ("Q4_K", "Q4_K_M", "Q4_K_S", "Q4_K_XL", "UD-Q4_K_XL", "IQ4_XS", "IQ4_XXS", "F16", "BF16", "Q4_0",
                 "Q4_0_4_4", "Q2_K", "IQ2_K", "TQ2_0", "Q2_0")
]  # fmt: skip


@pytest.mark.parametrize("path", LIKE_EACH_OTHER)
def test_a_quantization_is_never_a_part_of_another(path: str) -> None:
    wanted = path.removeprefix("Some-").removesuffix(".gguf")
    for spelled in (wanted, wanted.lower()):
        assert choose(ref(spelled), offers(LIKE_EACH_OTHER)).paths == (path,)
    others = [other for other in LIKE_EACH_OTHER if other != path]
    with pytest.raises(FileMissing, match=f"has no quantization {wanted}\\.") as caught:
        choose(ref(wanted), offers(others))
    assert caught.value.remedy.startswith("On offer: BF16, " if wanted != "BF16" else "On offer: F16, ")


def test_files_of_the_same_quantization_are_all_named() -> None:
    paths = ["a/Some-Q4_0.gguf", "b/Some-Q4_0.gguf", "Other-q4_0.gguf", "Some-Q8_0.gguf"]
    with pytest.raises(InvalidRequest, match="may be any of 3 files: Other-q4_0") as caught:
        choose(ref("Q4_0"), offers(paths))
    assert caught.value.remedy == f"Name the file, such as {REPO}:Other-q4_0.gguf."
    assert choose(ref("a/Some-Q4_0.gguf"), offers(paths)).paths == ("a/Some-Q4_0.gguf",)
    assert choose(ref("Other-q4_0.gguf"), offers(paths)).paths == ("Other-q4_0.gguf",)
    with pytest.raises(InvalidRequest, match="2 files"):
        choose(ref("Some-Q4_0.gguf"), offers(paths))


def test_a_model_that_is_there_whole_and_split_is_taken_whole() -> None:
    split = [f"Some-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths = ["Some-Q4_K_M.gguf", *split]
    assert choose(ref("Q4_K_M"), offers(paths)).paths == ("Some-Q4_K_M.gguf",)
    assert choose(ref(split[0]), offers(paths)).paths == tuple(split)
    with pytest.raises(InvalidRequest, match="2 files"):
        choose(ref("Q4_K_M"), offers(["x/Some-Q4_K_M.gguf", *split]))


def test_parts_belong_together_and_none_may_lack() -> None:
    paths = [path for path in sorted(PARTS) if "00002" not in path] + ["Some-Q6_K-00001-of-00001.gguf"]
    one = offers(paths)
    with pytest.raises(InvalidRequest, match="2 files"):
        choose(ref("Q6_K"), one)
    with pytest.raises(FileMissing, match=r"lacks the part big/Some-Q6_K-00002-of-00003\.gguf"):
        choose(ref("Q6_K"), offers(paths[:2]))
    assert choose(ref("Some-Q6_K-00003-of-00003.gguf"), offers(PARTS)).paths == tuple(sorted(PARTS))


def test_the_hubs_own_hash_and_commit_are_taken(hub: Hub, store: Store) -> None:
    model = resolve(ref("q4_k_m"), home=store.home)
    assert (model.file, model.bytes, model.sha256) == ("Some-Q4_K_M.gguf", len(Q4), sha256(Q4))
    assert (model.sources[0].repo, model.sources[0].revision) == (REPO, hub.commit)
    assert hub.asked_for == [f"/api/models/{REPO}?blobs=true"]
    assert Pins(store.home).all() == []
    assert not store.home.exists()


def test_a_pulled_reference_is_pinned_and_needs_no_network(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [ref("Q4_K_M"), ref("Q8_0")]
    with pytest.raises(NotDownloaded) as caught:
        paths_on_disk(wanted, store)
    command = f"{REPO}:Q4_K_M -md {REPO}:Q8_0"
    assert caught.value.command == f"Run `localspec pull {command}`."
    target, draft = pull_references(wanted, store=store)
    assert draft is not None
    assert (target.read_bytes(), draft.read_bytes()) == (Q4, Q8)
    assert target == store.home / "files" / sha256(Q4) / "Some-Q4_K_M.gguf"
    asked = len(hub.asked_for), hub.probes
    cut_the_network(monkeypatch)
    assert paths_on_disk(wanted, store) == [target, draft]
    assert pull_references(wanted, store=store) == (target, draft)
    assert pull_references(wanted, store=store, offline=True) == (target, draft)
    assert (len(hub.asked_for), hub.probes) == asked
    pinned = Pins(store.home).all()
    assert [pair.name for pair in pinned] == [f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
    assert (pinned[0].licence, pinned[0].bytes, pinned[0].draft) == ("apache-2.0", len(Q4), None)
    assert hub.commit[:8] in pinned[0].summary


def test_a_pin_is_found_in_any_case_of_letters(hub: Hub, store: Store) -> None:
    pull_references([ref("Q4_K_M")], store=store)
    assert paths_on_disk([ref("q4_k_m", REPO.lower())], store)
    assert len(hub.asked_for) == 1


def test_what_changes_upstream_does_not_change_what_was_pinned(hub: Hub, store: Store) -> None:
    wanted = [ref("Q4_K_M")]
    first, _ = pull_references(wanted, store=store)
    changed = content(77, 41_000)
    hub.commit = "f" * 40
    hub.repos[REPO]["Some-Q4_K_M.gguf"] = changed
    assert pull_references(wanted, store=store)[0].read_bytes() == Q4
    first.unlink()
    # The test's hub has the same bytes at every commit: the pin sees that they are not the file.
    with pytest.raises(HashMismatch) as caught:
        pull_references(wanted, store=store)
    assert "--update" in caught.value.command and "update=True" in caught.value.remedy
    second, _ = pull_references(wanted, store=store, update=True)
    assert second.read_bytes() == changed
    assert Pins(store.home).all()[0].target.sha256 == sha256(changed)
    assert pull_references(wanted, store=store)[0] == second


def test_an_application_may_take_what_the_repository_has_now(hub: Hub, store: Store) -> None:
    name = str(ref("Q4_K_M"))
    localspec.pull(name, home=store.home)
    hub.repos[REPO]["Some-Q4_K_M.gguf"] = content(77, 41_000)
    localspec.pull(name, home=store.home)
    assert Pins(store.home).all()[0].target.sha256 == sha256(Q4)
    localspec.pull(name, home=store.home, update=True)
    assert Pins(store.home).all()[0].target.sha256 == sha256(content(77, 41_000))
    with pytest.raises(InvalidRequest, match="is no model of a hub"):
        localspec.pull("smollm2-135m", home=store.home, update=True)


def test_an_update_drops_the_old_bytes_once_the_new_are_there(hub: Hub, store: Store) -> None:
    wanted = [ref("Q4_K_M")]
    first, _ = pull_references(wanted, store=store)
    hub.repos[REPO]["Some-Q4_K_M.gguf"] = content(77, 41_000)
    hub.cdn_faults = ["forbidden"]
    with pytest.raises(AccessDenied):
        pull_references(wanted, store=store, update=True)
    assert paths_on_disk(wanted, store) == [first]
    second, _ = pull_references(wanted, store=store, update=True)
    assert not first.exists()
    assert paths_on_disk(wanted, store) == [second]


def test_a_stopped_pull_goes_on_with_the_same_bytes(hub: Hub, store: Store) -> None:
    hub.cdn_faults = ["truncate"] * 3 + ["forbidden"]
    hub.cut = 5_000
    with pytest.raises(AccessDenied):
        pull_references([ref("Q4_K_M")], store=store)
    hub.commit = "f" * 40
    pull_references([ref("Q4_K_M")], store=store)
    assert Pins(store.home).all()[0].target.sources[0].revision != hub.commit
    assert hub.served == len(Q4)


def test_a_split_model_comes_whole_into_one_folder(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pull_references([ref("Q6_K")], store=store)
    assert first.name == "Some-Q6_K-00001-of-00003.gguf"
    lines = "".join(f"{sha256(body)}\n" for _, body in sorted(PARTS.items()))
    assert first.parent == store.home / "files" / f"split-{sha256(lines.encode())}"
    found = {path.name: path.read_bytes() for path in first.parent.iterdir()}
    assert found == {path.removeprefix("big/"): body for path, body in PARTS.items()}
    cut_the_network(monkeypatch)
    assert paths_on_disk([ref("Q6_K")], store) == [first]
    first.with_name("Some-Q6_K-00003-of-00003.gguf").unlink()
    with pytest.raises(NotDownloaded, match="27 kB"):
        paths_on_disk([ref("Q6_K")], store)
    with pytest.raises(OfflineError, match=r"00003\.gguf missing; Some-Q6_K-00001.* and .*00002.* are there"):
        pull_references([ref("Q6_K")], store=store, offline=True)
    assert hub.served == sum(map(len, PARTS.values()))


def test_a_damaged_part_alone_is_fetched_again(hub: Hub, store: Store) -> None:
    first, _ = pull_references([ref("Q6_K")], store=store)
    second = first.with_name("Some-Q6_K-00002-of-00003.gguf")
    second.write_bytes(b"x" * second.stat().st_size)
    before = hub.served
    pull_references([ref("Q6_K")], store=store)
    assert second.read_bytes() == PARTS["big/" + second.name]
    assert hub.served - before == second.stat().st_size


def test_models_that_share_a_part_do_not_share_a_folder(hub: Hub, store: Store) -> None:
    other = {
        f"other/{path.removeprefix('big/').replace('Q6_K', 'Q5_K')}": body for path, body in PARTS.items()
    }
    hub.repos[REPO] |= other | {"other/Some-Q5_K-00003-of-00003.gguf": b"another end"}
    one, two = (pull_references([ref(choice)], store=store)[0] for choice in ("Q6_K", "Q5_K"))
    assert one.parent != two.parent
    assert remove_reference(ref("Q6_K"), store) == sum(map(len, PARTS.values()))
    assert not one.parent.exists()
    assert paths_on_disk([ref("Q5_K")], store) == [two]


def test_removing_keeps_what_another_reference_needs(hub: Hub, store: Store) -> None:
    hub.repos["else/where"] = {"Some-Q4_K_M.gguf": Q4}
    path, _ = pull_references([ref("Q4_K_M")], store=store)
    pull_references([ref("Q4_K_M", "else/where")], store=store)
    assert hub.served == len(Q4)
    assert remove_reference(ref("Q4_K_M"), store) == 0
    assert path.exists()
    assert remove_reference(ref("Q4_K_M", "else/where"), store) == len(Q4)
    assert not path.exists()
    assert Pins(store.home).all() == []
    assert remove_reference(ref("Q4_K_M"), store) == 0


@pytest.mark.parametrize(
    ("fault", "token", "kind", "words"),
    [
        ("bad-token", "hf_old", AccessDenied, "refuses the token: it is wrong or has expired"),
        ("gated", "hf_good", AccessDenied, "is gated: its licence must be accepted"),
        ("gated-anonymous", None, AccessDenied, "is gated: its licence must be accepted"),
        ("forbidden", None, AccessDenied, f"forbids access to {REPO}"),
        ("no-repo", None, FileMissing, f"has no public repository {REPO}"),
        ("private", None, FileMissing, f"has no public repository {REPO}"),
        ("rate-limit", None, SourceUnreachable, "turns requests away"),
        ("error-500", None, SourceUnreachable, "answered with server error 500"),
        ("error-503", None, SourceUnreachable, "answered with server error 503"),
        ("html", None, SourceUnreachable, "does not answer as a model hub does"),
        ("no-json", None, SourceUnreachable, "does not answer as a model hub does"),
        ("no-sha", None, SourceUnreachable, "does not answer as a model hub does"),
    ],
)
def test_each_refusal_has_its_sentence(
    hub: Hub,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    token: str | None,
    kind: type[LocalspecError],
    words: str,
) -> None:
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.info_fault = fault
    with pytest.raises(LocalspecError) as caught:
        pull_references([ref("Q4_K_M")], store=store)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.remedy
    assert "--source" not in caught.value.command
    assert caught.value.file == f"{REPO}:Q4_K_M"
    assert len(hub.asked_for) == 1
    assert Pins(store.home).all() == []


def test_a_gated_repository_that_lists_its_files_keeps_its_sentence(hub: Hub, store: Store) -> None:
    hub.fault = "gated-anonymous"
    with pytest.raises(AccessDenied, match="is gated: its licence must be accepted"):
        pull_references([ref("Q4_K_M")], store=store)


def test_the_token_is_sent(hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull_references([ref("Q4_K_M")], store=store)
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert hub.cdn_tokens == [None]


def test_a_hub_that_does_not_answer(hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.hub.finding.LIST_SECONDS", 0.2)
    hub.info_fault = "hang"
    with pytest.raises(SourceUnreachable, match="does not answer in time"):
        resolve(ref("Q4_K_M"), home=store.home)


def test_a_hub_that_is_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}/")
    huggingface_hub.close_session()
    with pytest.raises(SourceUnreachable, match="cannot be reached") as caught:
        resolve(ref("Q4_K_M"), home=store.home)
    assert "HF_ENDPOINT" in caught.value.remedy
    huggingface_hub.close_session()


def test_offline_mode_of_the_hub_library(hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    with pytest.raises(SourceUnreachable, match="HF_HUB_OFFLINE is set"):
        resolve(ref("Q4_K_M"), home=store.home)
    assert hub.asked_for == []


def test_offline_without_a_pin(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_the_network(monkeypatch)
    for call in (
        lambda: resolve(ref("Q4_K_M"), offline=True, home=store.home),
        lambda: pull_references([ref("Q4_K_M")], store=store, offline=True),
    ):
        with pytest.raises(OfflineError, match="has not been pulled, and offline forbids the network"):
            call()


@pytest.mark.parametrize(
    ("choice", "kind", "message", "remedy"),
    [
        (
            "Q5_K_M",
            FileMissing,
            f"The repository {REPO} has no quantization Q5_K_M.",
            "F16, Q4_K_M, Q6_K, Q8_0.",
        ),
        ("BF16", FileMissing, "has no quantization BF16", "On offer: F16, "),
        ("x.gguf", FileMissing, "has no file x.gguf", "Some-F16.gguf, Some-Q4_K_M.gguf, big/Some-Q6_K-00001"),
        (
            "",
            InvalidRequest,
            "names a repository",
            f"On offer: F16, Q4_K_M, Q6_K, Q8_0. Write {REPO}:QUANTIZATION.",
        ),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_is_not_there_names_what_is(
    store: Store, choice: str, kind: type[LocalspecError], message: str, remedy: str
) -> None:
    with pytest.raises(kind) as caught:
        pull_references([ref(choice)], store=store)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("files", [{}, {"model.safetensors": b"x"}])
def test_a_repository_without_models(hub: Hub, store: Store, files: dict[str, bytes]) -> None:
    hub.repos[REPO] = files
    with pytest.raises(FileMissing) as caught:
        resolve(ref("Q4_K_M"), home=store.home)
    assert caught.value.remedy.startswith("It has no GGUF files")


def test_names_without_a_quantization_are_offered_as_files(hub: Hub, store: Store) -> None:
    hub.repos[REPO] = {"model.gguf": Q4, "mmproj-F16.gguf": Q8}
    with pytest.raises(FileMissing) as caught:
        resolve(ref("F16"), home=store.home)
    assert caught.value.remedy == "On offer: mmproj-F16.gguf, model.gguf."
    assert resolve(ref("model.gguf"), home=store.home).sha256 == sha256(Q4)


def test_a_file_that_git_keeps_has_no_sha256_and_is_refused(hub: Hub, store: Store) -> None:
    hub.in_git = {"Some-Q4_K_M.gguf"}
    with pytest.raises(LocalspecError, match=r"gives no sha256 for Some-Q4_K_M\.gguf"):
        pull_references([ref("Q4_K_M")], store=store)


def test_bytes_that_are_not_the_hubs_own_hash(hub: Hub, store: Store) -> None:
    hub.etag = "0" * 64
    with pytest.raises(HashMismatch, match=r"sha256 [0-9a-f]{12}… instead of 000000000000…"):
        pull_references([ref("Q4_K_M")], store=store)
    assert not list((store.home / "files").rglob("*.gguf"))


@pytest.mark.parametrize(
    "path", ["..\\..\\Some-Q4_0.gguf", "a:b-Q4_0.gguf", "a\nb-Q4_0.gguf", "a*-Q4_0.gguf", "\u202e-Q4_0.gguf"]
)
def test_names_that_lead_elsewhere_are_refused(hub: Hub, store: Store, path: str) -> None:
    hub.repos[REPO] = {path: Q4}
    with pytest.raises(LocalspecError, match="is no name for a file"):
        pull_references([ref("Q4_0")], store=store)


@pytest.mark.parametrize("commit", ["main", "../../x", "F" * 40, ""])
def test_a_commit_that_is_none_is_refused(hub: Hub, store: Store, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(LocalspecError, match=r"says what cannot be|does not answer as a model hub"):
        pull_references([ref("Q4_K_M")], store=store)


@pytest.mark.parametrize("repo", ["a--b/c", "org/re..po", "org/" + "x" * 120, "org/repo.git"])
@pytest.mark.usefixtures("hub")
def test_a_repository_that_cannot_be(store: Store, repo: str) -> None:
    with pytest.raises(FileMissing, match="cannot be the name of a repository"):
        resolve(ref("Q4_0", repo), home=store.home)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "files": []}',
        "\udcff".encode("utf-8", "surrogateescape"),
    ],
)
def test_a_damaged_pin_is_named_and_replaced(hub: Hub, store: Store, text: str | bytes) -> None:
    pull_references([ref("Q4_K_M")], store=store)
    (pin,) = (store.home / "references").iterdir()
    pin.write_bytes(text if isinstance(text, bytes) else text.encode())
    for call in (
        lambda: paths_on_disk([ref("Q4_K_M")], store),
        lambda: pull_references([ref("Q4_K_M")], store=store),
    ):
        with pytest.raises(StoreError, match=r"The pinned reference .* cannot be read") as caught:
            call()
        assert "--update" in caught.value.command and "update=True" in caught.value.remedy
    assert Pins(store.home).all() == []
    pull_references([ref("Q4_K_M")], store=store, update=True)
    assert paths_on_disk([ref("Q4_K_M")], store)
    pin.write_bytes(b"{")
    remove_reference(ref("Q4_K_M"), store)
    assert not pin.exists()


def test_the_first_of_two_pins_stands(hub: Hub, store: Store) -> None:
    from localspec.hub.finding import find

    pins = Pins(store.home)
    first = find(ref("Q4_K_M"), home=store.home)
    hub.commit = "f" * 40
    second = find(ref("Q4_K_M"), home=store.home)
    assert first != second
    assert pins.put(first) == pins.put(second) == pins.get(f"{REPO}:Q4_K_M") == first
    assert pins.put(second, replace=True) == pins.get(f"{REPO}:Q4_K_M") == second


def test_what_is_written_is_what_is_read(hub: Hub, store: Store) -> None:
    pull_references([ref("Q6_K")], store=store)
    (pin,) = (store.home / "references").iterdir()
    data = json.loads(pin.read_text(encoding="utf-8"))
    assert (data["reference"], data["revision"]) == (f"{REPO}:Q6_K", hub.commit)
    assert [(file["path"], file["sha256"]) for file in data["files"]] == [
        (path, sha256(body)) for path, body in sorted(PARTS.items())
    ]
    assert endpoint.endpoint() == hub.endpoint
