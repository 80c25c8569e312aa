"""Who may ask and how: key, web pages, sizes, methods, sockets; and the endpoints about the server itself."""

from __future__ import annotations

import hmac
import os
import re
import socket
import stat
import threading

import httpx
import openai
import pytest
import uvicorn

from localspec import LLM
from localspec.errors import InvalidRequest
from localspec.server import guard
from localspec.server.app import create_app
from localspec.server.serve import Server, tcp_socket, unix_socket
from localspec.server.settings import Settings

from .serverkit import NO_TLS, QUESTION, SECONDS, ready, running, wait_until
from .tinygguf import write_llama

CHAT = "/v1/chat/completions"
BODY = {"messages": QUESTION, "max_tokens": 4}
PAGE = "http://page.example"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("tiny") / "target.gguf", seed=1)


@pytest.fixture(scope="module")
def load(file):
    return lambda: LLM.from_files(file, n_ctx=512, threads=1, draft_tokens="off")


@pytest.fixture(scope="module")
def server(load):
    with running(load, max_body=20_000) as started:
        yield ready(started)


@pytest.fixture(scope="module")
def locked(load):
    with running(load, api_key=KEY, cors=(PAGE,)) as started:
        yield ready(started)


def error(answer):
    return answer.json()["error"]


KEY = "s3crét"
WRONG_KEYS = {
    "no key": "", "another": "wrong", "its beginning": KEY[:-1], "its end": KEY[1:], "with more": f"{KEY}x",
    "twice": KEY * 2, "with a word behind it": f"{KEY} x", "with a word before it": f"x {KEY}",
    "in capitals": KEY.upper(), "without its accent": "s3cret", "in quotes": f'"{KEY}"', "with a comma": f"{KEY},",
}  # fmt: skip
WRONG_SCHEMES = (
    "",
    "B",
    "Basic",
    "Bear",
    "Bearers",
    "BearerBearer",
    "Token",
    "X-Bearer",
    "Bearer,",
    "Bearer:",
)
REFUSED = {
    "nothing": {},
    "in Latin-1": {"Authorization": f"Bearer {KEY}".encode("latin-1")},
    "in Latin-1, the other way": {"X-Api-Key": KEY.encode("latin-1")},
    "the scheme alone": {"Authorization": b"Bearer"},
    "a scheme, the other way": {"X-Api-Key": f"Bearer {KEY}".encode()},
    "no blank": {"Authorization": f"Bearer{KEY}".encode()},
    "a line before it": {"Authorization": f"Basic x, Bearer {KEY}".encode()},
    "elsewhere": {"Api-Key": KEY.encode(), "Cookie": f"key={KEY}".encode()},
    **{
        f"{name}: {key}": {"Authorization": f"Bearer {key}".strip().encode()}
        for name, key in WRONG_KEYS.items()
    },
    **{f"{name}, the other way: {key}": {"X-Api-Key": key.encode()} for name, key in WRONG_KEYS.items()},
    **{f"scheme {scheme}": {"Authorization": f"{scheme} {KEY}".strip().encode()} for scheme in WRONG_SCHEMES},
}
OPENING = {
    "as OpenAI": {"Authorization": f"Bearer {KEY}".encode()},
    "small letters": {"Authorization": f"bearer {KEY}".encode()},
    "capitals": {"Authorization": f"BEARER {KEY}".encode()},
    "blanks before it": {"Authorization": f"Bearer   {KEY}".encode()},
    "the other way": {"X-Api-Key": KEY.encode()},
    "beside a wrong one": {"X-Api-Key": KEY.encode(), "Authorization": b"Bearer wrong"},
    "a wrong one beside it": {"X-Api-Key": b"wrong", "Authorization": f"Bearer {KEY}".encode()},
    "beside another scheme": {"X-Api-Key": KEY.encode(), "Authorization": b"Basic eDp5"},
}


@pytest.fixture(scope="module")
def door(locked):
    """One connection to the server with a key."""
    with httpx.Client(base_url=locked.url, timeout=SECONDS) as client:
        yield client


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
def test_without_the_key_nothing_is_answered(door, headers):
    for answer in (
        door.post(CHAT, json=BODY, headers=headers),
        *(
            door.get(f"/{path}", headers=headers)
            for path in ("v1/models", "models", "metrics", "nothing", "health/")
        ),
    ):
        assert answer.status_code == 401
        assert error(answer)["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/"):
        assert door.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("headers", OPENING.values(), ids=OPENING)
def test_the_key_opens(door, headers):
    assert door.get("/v1/models", headers=headers).status_code == 200
    assert door.get("/nothing", headers=headers).status_code == 404


def test_the_key_opens_for_an_answer(locked):
    assert locked.post(CHAT, BODY, headers=OPENING["as OpenAI"]).status_code == 200


def test_every_key_is_compared_whole_and_in_constant_time(locked, monkeypatch):
    compared = []

    def compare(given, key):
        compared.append((given, key))
        return compare_digest(given, key)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    headers = {"Authorization": b"Bearer other", "X-Api-Key": KEY.encode()}
    assert locked.get("/v1/models", headers=headers).status_code == 200
    assert compared == [(b"other", KEY.encode()), (KEY.encode(), KEY.encode())]


def test_a_key_may_end_in_any_letter(load):
    """The last byte of this one's UTF-8 is a blank in Latin-1, in which headers are read."""
    with running(load, api_key="voilà") as server:
        answer = ready(server).get("/v1/models", headers={"Authorization": "Bearer voilà".encode()})
        assert answer.status_code == 200


def test_the_official_client_is_told_of_a_wrong_key(locked):
    with locked.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_a_page_that_is_allowed_may_read(locked):
    headers = {"Origin": PAGE, "Authorization": "Bearer s3crét".encode()}
    answer = locked.post(CHAT, BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("DELETE", "/v1/responses/resp_1")):
        wanted = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "authorization"}
        preflight = httpx.options(
            locked.url + path, headers={"Origin": PAGE} | wanted, timeout=SECONDS, verify=NO_TLS
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE


def test_a_refusal_can_be_read_by_the_page(locked):
    answer = locked.post(CHAT, BODY, headers={"Origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", ["http://other.example", "null", "http://127.0.0.1:1"])
def test_other_pages_are_refused(server, locked, origin):
    for where in (server, locked):
        answer = where.post(CHAT, BODY, headers={"Origin": origin, "Authorization": "Bearer s3crét".encode()})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_any_page_where_that_is_wanted(load):
    with running(load, cors=("*",)) as server:
        answer = ready(server).post(CHAT, BODY, headers={"Origin": PAGE})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("told", [True, False], ids=["with its length", "in pieces"])
def test_a_body_that_is_too_large_is_a_413(server, told):
    data = b'{"messages": [{"role": "user", "content": "' + b"x" * 30_000 + b'"}]}'
    content = data if told else (data[i : i + 5000] for i in range(0, len(data), 5000))
    answer = httpx.post(server.url + CHAT, content=content, timeout=SECONDS, verify=NO_TLS)
    assert answer.status_code == 413
    assert error(answer)["code"] == "request_too_large"
    assert server.post(CHAT, BODY).status_code == 200


def test_what_does_not_exist_is_a_404_and_a_wrong_method_a_405(server):
    for path in ("/v1/nothing", "/v1/chat", "/docs", "/v1/chat/completions/"):
        answer = server.post(path, BODY)
        assert answer.status_code == 404
        assert error(answer)["code"] == "unknown_url"
    answer = server.get(CHAT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("start", ["", "/v1"])
def test_clients_may_leave_v1_out(server, start):
    answers = [
        server.post(f"{start}/chat/completions", BODY),
        server.post(f"{start}/completions", {"prompt": "abc", "max_tokens": 2}),
        server.get(f"{start}/models"),
        server.get(f"{start}/models/tiny"),
    ]
    created = server.post(f"{start}/responses", {"input": "abc", "max_output_tokens": 2})
    place = f"{start}/responses/{created.json()['id']}"
    answers += [created, server.get(place), httpx.delete(server.url + place, timeout=SECONDS, verify=NO_TLS)]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert [answer.json()["object"] for answer in answers] == [
        "chat.completion", "text_completion", "list", "model", "response", "response", "response",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/models", "/v1/models/tiny", "/metrics", "/props"]
)
def test_where_there_is_get_there_is_head(server, path):
    answer = httpx.head(server.url + path, timeout=SECONDS)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == server.get(path).headers["content-type"]
    wrong = httpx.put(server.url + path, timeout=SECONDS, verify=NO_TLS)
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_server_may_answer_to_any_name_and_says_its_own(load):
    with running(load, any_model=True) as server:
        ready(server)
        for path, body in ((CHAT, BODY), ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
                           ("/v1/responses", {"input": "a", "max_output_tokens": 2})):  # fmt: skip
            answer = server.post(path, body | {"model": "gpt-4o"})
            assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
        assert server.get("/v1/models/gpt-4o").json()["id"] == "tiny"
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["tiny"]


def test_another_name_is_refused_where_that_was_not_asked_for(server):
    for path, body in ((CHAT, BODY), ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
        answer = server.post(path, body | {"model": "gpt-4o"})
        assert (answer.status_code, error(answer)["param"]) == (404, "model")
        assert error(answer)["message"] == (
            "There is no model 'gpt-4o'. Leave `model` out, ask for 'tiny', or start the server with any_model=True: "
            "it then answers to every name."
        )
    assert server.get("/v1/models/gpt-4o").status_code == 404


def test_the_first_page_says_what_this_is(server):
    answer = server.get("/")
    assert answer.text.startswith("localspec ")
    assert answer.text.count("\n") == 1


def test_tokenize_and_detokenize_are_inverse(server):
    text = "the hélder <|im_end|>"
    tokens = server.post("/tokenize", {"content": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == text
    plain = server.post("/tokenize", {"content": text, "parse_special": False}).json()["tokens"]
    assert len(plain) > len(tokens)
    pieces = server.post("/tokenize", {"content": "thé", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["th", [0xC3], [0xA9]]
    assert server.post("/tokenize", {"content": ""}).json()["tokens"] == []
    assert server.post("/detokenize", {"tokens": []}).json()["content"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/detokenize", {"tokens": [1, 100_000]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_bad_texts_and_ids_are_named(server, path, body, param):
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert error(answer)["param"] == param


def test_the_properties_are_the_engines(server, file):
    props = server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 0
    assert props["model_path"] == str(file)
    assert "im_start" in props["chat_template"]
    assert props["drafting"].startswith("o")


def test_the_metrics_are_prometheus_text_and_count(server):
    def value(name):
        found = re.search(rf"^localspec_{name} (\S+)$", server.get("/metrics").text, re.M)
        return float(found[1])

    before = value("completion_tokens_total")
    server.post(CHAT, BODY)
    assert value("completion_tokens_total") == before + 4
    text = server.get("/metrics").text
    assert re.search(
        r'^localspec_requests_total\{path="/v1/chat/completions",status="200"\} \d+$', text, re.M
    )
    for line in text.splitlines():
        assert re.fullmatch(
            r'# (HELP|TYPE) localspec_\w+ .+|localspec_\w+(\{(\w+="[^"]*",?)+\})? [\d.e+-]+', line
        )


def test_the_description_names_every_endpoint_and_its_body(server):
    description = server.get("/openapi.json").json()
    assert {
        CHAT,
        "/v1/completions",
        "/v1/models",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
        "/props",
    } <= set(description["paths"])
    schema = description["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rsplit("/", 1)[1]
    assert "messages" in description["components"]["schemas"][name]["properties"]


def test_a_port_in_use_is_said_before_anything_is_loaded():
    with tcp_socket("127.0.0.1", 0) as taken:
        again = tcp_socket("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(InvalidRequest, match="cannot listen"), again:
            pass
    with pytest.raises(InvalidRequest, match="cannot listen"), tcp_socket("no such host", 1):
        pass


def test_small_packets_leave_at_once():
    with tcp_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_unix_socket_serves_and_only_its_owner_may_connect(load, tmp_path):
    path = tmp_path / "s"
    with unix_socket(path) as listening:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        app = create_app(load, Settings("tiny"))
        server = Server(uvicorn.Config(app, log_config=None, loop="asyncio", ws="none"), app.state.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localspec", timeout=SECONDS) as client:
            wait_until(lambda: client.get("/health").status_code == 200)
            assert client.post(CHAT, json=BODY).status_code == 200
            with pytest.raises(InvalidRequest, match="Another server"), unix_socket(path):
                pass
        server.stop()
        thread.join(SECONDS)
    assert not path.exists()


def test_what_a_killed_server_left_is_replaced_but_no_file(tmp_path):
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with unix_socket(path):
        pass
    path.write_text("mine")
    with pytest.raises(InvalidRequest, match="no socket"), unix_socket(path):
        pass
    assert path.read_text() == "mine"
    missing = tmp_path / "no" / os.devnull[1:]
    with pytest.raises(InvalidRequest, match="cannot listen") as caught, unix_socket(missing / "s"):
        pass
    assert f"there is no folder {missing}." in str(caught.value)
