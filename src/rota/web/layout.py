"""The frame around every page: navigation, who is signed in, the connection, dark and light, keys.

Keys work outside of text fields: `g` and a letter opens a page, `/` goes to the search field, `?` shows the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui
from nicegui.events import KeyEventArguments

from rota.web.page_session import PageSession, WebPage
from rota.web.widgets import labelled

__all__ = ["HEAD", "draw_page"]

# a constant: what is added here is not escaped
HEAD = '<link rel="stylesheet" href="/static/rota.css"><script defer src="/static/focus.js"></script>'
FOCUS_SEARCH = 'document.querySelector("[data-search] input, input[data-search]")?.focus()'
_STATUS_WORDS = {"connecting": "connecting", "live": "live", "lost": "not connected", "ended": "signed out"}


async def draw_page(page: WebPage, session: PageSession, pages: Sequence[WebPage]) -> None:
    """Build the frame, then the page in it, and follow the feed."""
    ui.add_head_html(HEAD)
    _one_main_landmark(session)
    shown = [each for each in pages if each.icon and (not each.needs or session.may(each.needs))]
    _header(session)
    _keys(shown)
    with ui.element("div").classes("frame"):
        _navigation(page, shown, session)
        with ui.element("main").classes("page") as content:
            ui.label(page.title).classes("page-title").props("role=heading aria-level=1")
            problem = ui.label("").classes("problem").props("role=alert")
            problem.set_visibility(False)
            await page.build(session)
    ui.skip_link(target=content)

    def show_problem(text: str) -> None:
        problem.set_text(text)
        problem.set_visibility(bool(text))

    await session.start(show_problem)


def _one_main_landmark(session: PageSession) -> None:
    """Take the role from the toolkit's own <main>, which is around everything, also around the navigation."""
    slot = session.client.content.parent_slot
    if slot is not None:
        slot.parent.props["role"] = "presentation"


def _header(session: PageSession) -> None:
    with ui.element("header").classes("header"):
        with ui.element("a").props('href="/"').classes("brand"):
            ui.label("rota")
        ui.label(session.store).classes("store")
        ui.space()
        status = ui.label("").classes("live").props("role=status")
        who = ui.label(session.caller).classes("caller")
        rights = session.access.rights
        bound = "" if rights.projects is None else f", only {', '.join(rights.projects)}"
        who.tooltip(f"signed in as {session.caller}, scope {rights.scope}{bound}")
        _dark_switch(session)
        with ui.element("form").props('method="post" action="/logout"').classes("sign-out"):
            ui.element("input").props('type="hidden" name="csrf"').props["value"] = session.session.csrf
            labelled(ui.button(icon="logout").props("flat dense round type=submit"), "Sign out")

    async def show_status() -> None:
        status.set_text(_STATUS_WORDS[session.feed.status])
        is_lost = session.feed.status == "lost"
        status.classes(add="tone-bad" if is_lost else "", remove="" if is_lost else "tone-bad")

    session.live(show_status)


def _navigation(page: WebPage, shown: Sequence[WebPage], session: PageSession) -> None:
    with ui.element("nav").classes("nav") as nav:
        for each in shown:
            with ui.element("a").classes("nav-link") as link:
                ui.icon(each.icon).props("aria-hidden=true")
                ui.label(each.title)
            link.props["href"] = each.path
            if each is page:
                link.props["aria-current"] = "page"
        scope = session.access.rights.scope
        if scope in ("read", "enqueue"):
            ui.label(f"This token has scope {scope}: it sees, and does not operate.").classes("nav-note")
    labelled(nav, "Pages")


def _dark_switch(session: PageSession) -> None:
    dark = ui.dark_mode(session.session.dark)

    def switch() -> None:
        order = {None: True, True: False, False: None}
        session.session.dark = order[session.session.dark]
        dark.set_value(session.session.dark)
        button.props["icon"] = icons[session.session.dark]

    icons = {None: "brightness_auto", True: "dark_mode", False: "light_mode"}
    button = ui.button(icon=icons[session.session.dark], on_click=switch).props("flat dense round")
    labelled(button, "Dark, light or as the system")


def _keys(shown: Sequence[WebPage]) -> None:
    by_key = {page.key: page.path for page in shown if page.key}
    with ui.dialog() as help_dialog, ui.card().classes("dialog"):
        ui.label("Keys").classes("card-title").props("role=heading aria-level=2")
        for page in shown:
            ui.label(f"g {page.key}   {page.title}").classes("mono")
        ui.label("/     search").classes("mono")
        ui.label("?     this list").classes("mono")
    is_prefixed = False

    def pressed(event: KeyEventArguments) -> None:
        nonlocal is_prefixed
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta:
            return
        key, was_prefixed = event.key.name, is_prefixed
        is_prefixed = key == "g" and not was_prefixed
        if was_prefixed and key in by_key:
            ui.navigate.to(by_key[key])
        elif key == "/":
            ui.run_javascript(FOCUS_SEARCH)
        elif key == "?":
            help_dialog.open()

    ui.keyboard(on_key=pressed, repeating=False)
