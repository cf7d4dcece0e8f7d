"""Policies: the one in force with its bound on waiting, what else there is, and when strict order replaced one."""

from __future__ import annotations

from typing import get_args

from nicegui import ui

from rota.errors import InvalidInput
from rota.model import Event
from rota.model.policy_setting import ShareBy
from rota.policy import descriptions
from rota.service import SchedulerApi
from rota.web.page_session import PageSession
from rota.web.pictures import add_style
from rota.web.policy_view import KINDS, change_rows, facts, params_of, policy_rows, wait_facts
from rota.web.tables import Column, FieldList, TextTable
from rota.web.widgets import confirm, empty, section

__all__ = ["build"]

OLDEST_S = 5.0  # how long the oldest ready entry is used: with it, all ready ones are counted
READ_BACK = 100_000  # events before the last one in which changes of policies are searched
PAGE = 1_000
DEFAULT = "default"
_POLICIES = (
    Column("policy", "Policy"),
    Column("order", "Order", is_wide=True),
    Column("bound", "Waiting bound", is_wide=True),
)
_CHANGES = (Column("when", "When"), Column("what", "What", is_wide=True), Column("by", "By"))


async def build(session: PageSession) -> None:
    """Build the page."""
    page = PoliciesPage(session)
    page.build()
    session.live(page.refresh)


class PoliciesPage:
    """The elements of the page, and a form for operators."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._known = descriptions()
        self._events_of = -1  # the newest event when changes were searched

    def build(self) -> None:
        """Make the elements."""
        add_style()
        with ui.element("div").classes("grid"):
            with section("In force"):
                self._facts = FieldList()
            with section("Waits"):
                self._waits = FieldList()
                self._no_waits = empty("No run has started yet: there is no wait to show.", self._session.fleet_command)
        if self._session.may("kernel.policy.set"):
            self._form()
        with section("Fallbacks and changes"):
            self._changes = TextTable(_CHANGES, "Fallbacks and changes", rows_shown=10)
            self._no_changes = empty(
                "No policy has failed, and none was set. Choose one:", self._session.command("rota policy set NAME")
            )
        with section("All policies"):
            self._policies = TextTable(_POLICIES, "All policies")

    def _form(self) -> None:
        names = [DEFAULT, *(each.name for each in self._known if each.can_be_made)]
        with section("Set the policy"):
            with ui.element("div").classes("toolbar"):
                name = ui.select(names, value=DEFAULT, label="Policy").props("dense outlined options-dense")
                params = ui.input("Parameters (JSON)", placeholder="{}").props("dense outlined")
                share_by = ui.select(list(get_args(ShareBy)), label="Sharing counts", clearable=True).props(
                    "dense outlined options-dense"
                )

                async def set_policy() -> None:
                    await self._set(str(name.value), str(params.value or ""), share_by.value or None)

                ui.button("Set", on_click=set_policy).props("no-caps")
            ui.label("It applies to all supervisors and workers of the store.").classes("soft small")

    async def _set(self, name: str, written: str, share_by: ShareBy | None) -> None:
        session = self._session
        try:
            params = params_of(written)
        except InvalidInput as problem:
            session.say_problem(problem)
            return
        restarts = " All shares restart." if share_by is not None else ""
        if await confirm("Set the policy", f"{name} decides from now on which entry runs next.{restarts}", "Set"):
            words = f"the policy is {name}"
            await session.act(
                "kernel.policy.set",
                words,
                session.api.policies.set,
                name,
                params,
                share_by=share_by,
                by=session.caller,
            )

    async def refresh(self) -> None:
        """Fill the elements."""
        session = self._session
        in_force = await session.read(session.api.policies.get)
        self._facts.show(facts(in_force))
        self._policies.show(policy_rows(self._known, in_force))
        oldest, _ = await session.read_every(OLDEST_S, session.api.queue.list, status="ready", limit=1)
        now = session.api.clock.now()
        waited_s = max(0.0, now - max(oldest[0].created_at, oldest[0].runnable_at)) if oldest else None
        state = session.feed.state
        waits = [] if state is None else wait_facts(state.waits(), waited_s)
        self._waits.show(waits)
        self._no_waits.set_visibility(not waits)
        await self._show_changes(now)

    async def _show_changes(self, now: float) -> None:
        """Search the journal once, and again when one of the new events is about a policy."""
        session, seen = self._session, self._session.feed.events
        newest = max((each.event.event_id for each in seen if each.event.kind in KINDS), default=0)
        if newest <= self._events_of:
            return
        self._events_of = newest
        found = await session.read(_read_changes, session.api)
        self._changes.show(change_rows(found, now))
        self._no_changes.set_visibility(not found)


def _read_changes(api: SchedulerApi) -> list[Event]:
    """Return the last events about policies, oldest first."""
    since, found = max(0, api.journal.cursor() - READ_BACK), list[Event]()
    while page := api.journal.tail(since, PAGE, kinds=KINDS):
        found += page
        since = page[-1].event_id
    return found
