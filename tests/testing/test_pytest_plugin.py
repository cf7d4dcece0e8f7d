"""The pytest plugin, used as a project would: a real pytest in a process of its own, outside of this checkout."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

PROGRAM = """
from datetime import timedelta
from rota import Rota

rota = Rota("shop.db")
mail = []


@rota.agent(project="shop", budget={"tokens": 100})
def read(ctx, url: str, words: int = 5):
    ctx.charge(tokens=10)
    if url == "broken" and ctx.attempt == 1:
        raise OSError("no network")
    send.enqueue(subject=url)
    return f"{words} words about {url}"


@rota.agent
def send(subject: str):
    print("sending", subject)
    mail.append(subject)


@rota.agent(cron="0 9 * * *")
def report():
    mail.append("report")


def order(url):
    return read.enqueue(url, delay=timedelta(minutes=5))
"""

TESTS = """
import pytest
import shop


@pytest.fixture
def rota(rota):
    rota.replaces(shop.rota)
    shop.mail.clear()
    return rota


def test_an_order_is_read_later_and_mailed(rota):
    job = shop.order("a page")
    rota.assert_enqueued(shop.read, url="a page")
    assert rota.run_until_idle().runs == 0
    rota.advance(300)
    summary = rota.run_until_idle()
    assert (summary.completed, summary.ok) == (2, True)
    assert job.result() == "5 words about a page"
    assert shop.mail == ["a page"]
    rota.assert_enqueued("send", count=1, subject="a page")


def test_a_network_error_is_retried_without_waiting(rota):
    job = shop.order("broken")
    rota.run_until_idle(horizon_s="5m")
    assert job.result() == "5 words about broken"
    assert [error.error for error in job.errors()] == ["OSError: no network"]


def test_a_report_is_sent_each_morning(rota):
    rota.advance("2d")
    rota.run_until_idle()
    assert shop.mail == ["report", "report"]


def test_tests_do_not_see_each_other(rota):
    with pytest.raises(AssertionError, match="expected at least one entry of read with {}, found 0"):
        rota.assert_enqueued(shop.read)
"""


def test_a_project_tests_its_agents_with_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=PROGRAM, test_shop=TESTS)
    done = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=4)


def test_a_failed_assertion_lists_what_was_enqueued(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(rota):
            @rota.agent
            def read(url): ...

            read.enqueue("a page")
            rota.assert_enqueued(read, url="another", count=2)
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*expected 2 entries of read with {'url': 'another'}, found 0; enqueued:*", "*1: {'url': 'a page'}*"]
    )


def test_the_plugin_loads_nothing_in_a_project_that_does_not_use_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "rota.testing.pytest_plugin" in sys.modules
            assert not {"rota.app", "rota.store", "msgspec", "hypothesis"} & {*sys.modules}
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)


def test_the_program_is_as_it_was_after_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop=PROGRAM,
        test_shop="""
        import shop
        from rota.testing import InMemoryRota

        def test_it():
            shop.read.enqueue("before")
            with InMemoryRota() as rota:
                rota.replaces(shop.rota)
                assert rota.enqueued(shop.read) == []
                shop.read.enqueue("inside")
            entries, total = shop.rota.api.queue.list()
            assert [entry.payload for entry in entries] == [{"url": "before"}]
            assert shop.read.enqueue("after").status == "ready"
        """,
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
