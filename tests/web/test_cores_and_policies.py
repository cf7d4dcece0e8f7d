"""Cores and Policies in a real browser: leases and refusals; the policy in force, its bound, and setting it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from rota.errors import LeaseRefused
from rota.model.core_grants import CoreAsk, CoreHost
from rota.model.cpu import CpuSettings
from tests.web.harness import World, picture
from tests.web.made import agent, authors, running, token_of

BOX = CoreHost(key="boot-1", name="box", cores=(0, 1))


def test_leases_refusals_and_budgets_of_cpu_time_are_shown(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "leaser", "leasing")
        (first, token), (second, other) = running(client, pid), running(client, pid)
        client.cores.grant(first, token, BOX, CoreAsk(cpu=CpuSettings(lease=1)))
        with pytest.raises(LeaseRefused):
            client.cores.grant(second, other, BOX, CoreAsk(cpu=CpuSettings(lease=2)))  # also when the first has ended
        client.queue.put_back(second, token=other, delay_s=600)
        client.contexts.create(bound_to="name", bound_id="web-cpu", budget=500, period_s=60, unit="cpu_ms")
    operator.goto(f"{shared.board.url}/cores")
    expect(operator.get_by_role("link", name=f"leased by leaser #{first}")).to_be_visible()
    expect(operator.get_by_role("cell", name="core 1 for itself")).to_be_visible()
    refused = operator.get_by_role("group", name="Refused")
    link = refused.get_by_role("link", name=str(second), exact=True)
    link.focus()
    expect(operator.get_by_role("cell", name="name web-cpu")).to_be_visible()
    picture(operator, "cores")
    with shared.client() as client:
        client.complete(first, "completed", token=token)
    expect(operator.get_by_text("No run has been granted cores.")).to_be_visible()
    expect(link).to_be_focused()


def test_an_operator_sets_the_policy(page: Page, shared: World) -> None:
    token, author = token_of(shared, "operate")
    shared.board.enter_with(page, token)
    page.goto(f"{shared.board.url}/policies")
    expect(page.get_by_text("eevdf(priority_first=True), the default")).to_be_visible()
    page.get_by_label("Parameters (JSON)").fill("[1]")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("the parameters cannot be read")).to_be_visible()
    page.get_by_label("Parameters (JSON)").fill("")
    page.get_by_label("Policy", exact=True).click()
    page.get_by_role("option", name="wfq").click()
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Set").click()
    expect(
        page.get_by_role("cell", name="the policy is wfq(priority_first=False), sharing counts tokens")
    ).to_be_visible()
    expect(page.get_by_text("wfq (in force)")).to_be_visible()
    picture(page, "policies")
    assert author in authors(shared, "kernel.policy.chosen")
    with shared.client() as client:
        client.policies.set("default")
