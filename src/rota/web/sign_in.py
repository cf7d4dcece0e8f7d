"""Signing in and out: small pages without the toolkit, so that nothing but a session reaches it.

A form is accepted only with the token that was written into it, which must equal the one in a cookie of the same
browser (before a session) or the session's own (to sign out).
"""

from __future__ import annotations

import hmac
import html
import secrets
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rota.errors import Forbidden, RotaError
from rota.web.gate import LOGIN
from rota.web.sessions import SESSION_S, Sessions, WebSession
from rota.web.settings import WebSettings

__all__ = ["SignIn"]

FORM_BYTES_MAX = 8_192
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · rota</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}
<link rel="stylesheet" href="/static/sign-in.css"></head>
<body><main><h1>rota</h1>{body}</main></body></html>
"""
_FORM = """<form method="post" action="/login">
<input type="hidden" name="csrf" value="{csrf}">
<label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Sign in</button></form>
<p>Create a token where the daemon runs: <code>rota token create NAME --scope operate</code>.
A token of scope <code>read</code> sees everything and changes nothing.</p>"""
_LINK = """<p>Open the newest one-time link that <code>rota web</code> has printed in its terminal or log.</p>"""


class SignIn:
    """The pages before a session, and its end."""

    def __init__(self, settings: WebSettings, sessions: Sessions, cookie: str) -> None:
        self._settings = settings
        self._sessions = sessions
        self._cookie = cookie
        self._form_cookie = f"{cookie}_form"

    async def open_link(self, request: Request) -> Response:
        """Sign in with the one-time link."""
        try:
            session = await self._sessions.open_link(request.path_params["key"], _address(request))
        except RotaError as problem:
            return self._login_page(problem)
        # A redirect would be part of a navigation that another site may have begun, which sends no strict cookie.
        body = '<p>Signed in. <a href="/">Open the dashboard</a></p>'
        refresh = '<meta http-equiv="refresh" content="0;url=/">'
        return self._with_session(HTMLResponse(_page("Signed in", body, refresh)), session)

    async def login(self, request: Request) -> Response:
        """Show the form, or sign in with the token of the form."""
        if request.method == "GET":
            return self._login_page(None)
        try:
            form = await _form(request)
            _check_csrf(form, request.cookies.get(self._form_cookie, ""))
            session = await self._sessions.sign_in(form.get("token", "").strip(), _address(request))
        except RotaError as problem:
            return self._login_page(problem)
        return self._with_session(RedirectResponse("/", status_code=303), session)

    async def logout(self, request: Request) -> Response:
        """End the session."""
        session: WebSession | None = request.scope["state"]["session"]
        response = RedirectResponse(LOGIN, status_code=303)
        if session is not None:
            try:
                _check_csrf(await _form(request), session.csrf)
            except RotaError as problem:
                return self._login_page(problem)
            self._sessions.end(session)
        response.delete_cookie(self._cookie, path="/", secure=self._settings.is_tls, httponly=True, samesite="strict")
        return response

    def _login_page(self, problem: RotaError | None) -> Response:
        csrf = secrets.token_urlsafe(32)
        error = "" if problem is None else f'<p role="alert" class="problem">{html.escape(str(problem))}</p>'
        form = _FORM.format(csrf=csrf) if self._settings.with_tokens else ""
        link = _LINK if self._settings.with_link else ""
        store = f"<p>{html.escape(self._settings.store)}</p>"
        response = HTMLResponse(_page("Sign in", store + error + form + link), status_code=401 if problem else 200)
        self._set_cookie(response, self._form_cookie, csrf, LOGIN)
        return response

    def _with_session(self, response: Response, session: WebSession) -> Response:
        self._set_cookie(response, self._cookie, session.session_id, "/")
        return response

    def _set_cookie(self, response: Response, name: str, value: str, path: str) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(SESSION_S),
            path=path,
            secure=self._settings.is_tls,
            httponly=True,
            samesite="strict",
        )


def _page(title: str, body: str, refresh: str = "") -> str:
    return _PAGE.format(title=title, body=body, refresh=refresh)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a small form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise Forbidden("the form is too large")
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _check_csrf(form: dict[str, str], expected: str) -> None:
    if not expected or not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode()):
        raise Forbidden("the form is not of this browser, or too old", hint="Load the page again.")


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "?"
