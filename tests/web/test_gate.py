"""What reaches a page: only requests of a session, from this server's own pages. Without a browser, byte for byte."""

from __future__ import annotations

import http.client
import re
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_socket

from rota.errors import InvalidInput
from rota.web import WebSettings
from tests.web.harness import World

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id="


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read().decode()

    @property
    def cookie(self) -> str:
        """The cookie that was set, as a browser would send it."""
        return str(self.headers["set-cookie"]).split(";")[0]


def ask(world: World, path: str, *, method: str = "GET", form: Any = None, **headers: str) -> Answer:
    authority = urlsplit(world.board.url).netloc
    connection = http.client.HTTPConnection(authority, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if form is not None:
        sent["content-type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, path, None if form is None else urlencode(form), sent)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def signed_in(world: World) -> str:
    """Sign in with the one-time link, and return the cookie."""
    answer = ask(world, world.board.take_link().removeprefix(world.board.url))
    assert answer.status == 200
    return answer.cookie


def opened_page(world: World, cookie: str) -> str:
    """Open the first page, and return its id."""
    found = re.search(r"'client_id': '([0-9a-f-]+)'", ask(world, "/", cookie=cookie).body)
    assert found is not None
    return found[1]


def test_without_a_session_every_page_leads_to_the_sign_in(shared: World) -> None:
    for path in ("/", "/queue", "/entry/1", "/_nicegui/x", "/no-such-page", "/logout"):
        answer = ask(shared, path)
        assert (answer.status, answer.headers["location"]) == (303, "/login"), path
    assert ask(shared, "/", cookie="rota_session_1=guessed; other=1").status == 303
    assert ask(shared, "/static/sign-in.css").status == 200


def test_the_link_works_once_and_sets_a_strict_cookie(shared: World) -> None:
    link = shared.board.take_link().removeprefix(shared.board.url)
    first, second = ask(shared, link), ask(shared, link)
    assert first.status == 200
    flags = {flag.strip().lower() for flag in first.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    assert second.status == 401
    assert "used already" in second.body
    assert "rota_session" not in second.cookie or second.cookie.startswith(f"{first.cookie.split('=')[0]}_form")
    assert ask(shared, "/", cookie=first.cookie).status == 200


def test_other_hosts_and_pages_of_other_origins_are_refused(shared: World) -> None:
    cookie, own = signed_in(shared), shared.board.url
    assert ask(shared, "/", cookie=cookie, origin=own).status == 200
    for headers in (
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ):
        answer = ask(shared, "/", cookie=cookie, **headers)
        assert answer.status == 403, headers
        assert answer.body.startswith("rota: ")
    assert ask(shared, "/", cookie=cookie, sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


def test_a_web_socket_needs_the_session_of_its_page(shared: World) -> None:
    mine, other = signed_in(shared), signed_in(shared)
    page_id, own = opened_page(shared, mine), shared.board.url
    address = own.replace("http", "ws", 1) + SOCKET

    def status(page: str, cookie: str, origin: str | None) -> int:
        try:
            with open_socket(address + page, additional_headers={"Cookie": cookie}, origin=origin) as socket:  # type: ignore[arg-type]  # a str, or none at all
                return 101 if socket.recv(timeout=30) else 0
        except InvalidStatus as refused:
            return refused.response.status_code

    assert status(page_id, mine, own) == 101
    assert status(page_id, other, own) == 403
    assert status("00000000-0000-0000-0000-000000000000", mine, own) == 403
    assert status(page_id, "a=b", own) == 403
    assert status(page_id, mine, "https://evil.example") == 403
    assert status(page_id, mine, None) == 403
    assert ask(shared, SOCKET.replace("websocket", "polling") + page_id, cookie=mine).status == 403


def test_answers_carry_the_policy_and_scripts_their_nonce(shared: World) -> None:
    cookie = signed_in(shared)
    page, again = ask(shared, "/", cookie=cookie), ask(shared, "/", cookie=cookie)
    policy = page.headers["content-security-policy"]
    nonce = re.search(r"'nonce-([\w-]+)'", policy)
    assert nonce is not None
    assert page.body.count("<script") == page.body.count(f'<script nonce="{nonce[1]}"') > 0
    assert nonce[1] not in again.body
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in re.findall(r"script-src[^;]*", policy)[0]
    assert "http" not in policy
    for answer in (page, ask(shared, "/login"), ask(shared, "/", host="evil.example")):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_forms_need_their_token(shared: World) -> None:
    cookie = signed_in(shared)
    csrf = re.search(r'\\?"csrf\\?"[^{}]*?\\?"value\\?":\\?"([\w-]+)', ask(shared, "/", cookie=cookie).body)
    assert csrf is not None
    assert ask(shared, "/logout", method="POST", form={}, cookie=cookie).status == 401
    assert ask(shared, "/logout", method="POST", form={"csrf": "x"}, cookie=cookie).status == 401
    assert ask(shared, "/", cookie=cookie).status == 200
    answer = ask(shared, "/logout", method="POST", form={"csrf": csrf[1]}, cookie=cookie)
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert ask(shared, "/", cookie=cookie).status == 303
    form = ask(shared, "/login")
    field = re.search(r'name="csrf" value="([\w-]+)"', form.body)
    assert field is not None
    wrong = ask(shared, "/login", method="POST", form={"csrf": field[1], "token": "x"})
    assert (wrong.status, "not of this browser" in wrong.body) == (401, True)
    wrong = ask(shared, "/login", method="POST", form={"csrf": field[1], "token": "<b>x"}, cookie=form.cookie)
    assert (wrong.status, "<b>x" in wrong.body) == (401, False)


def test_it_does_not_listen_to_the_network_unencrypted_or_without_a_sign_in() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "box.example"):
        with pytest.raises(InvalidInput, match="unencrypted"):
            WebSettings(store="unix:x", host=host, with_tokens=True)
        with pytest.raises(InvalidInput, match="no sign-in"):
            WebSettings(store="x.db", host=host, certificate="c", key="k")
        WebSettings(store="unix:x", host=host, with_tokens=True, certificate="c", key="k")
    for host in ("127.0.0.1", "::1", "localhost"):
        WebSettings(store="x.db", host=host)
