"""An invalid scenario file is refused with the place and the expected value."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.errors import RotaError, ScenarioInvalid
from rota.sim.build import build_simulation
from rota.sim.scenario import SCENARIO_BYTES_MAX, load_scenario, parse_scenario

GOOD = """
cores = 2
duration_ms = 10
[[group]]
name = "web"
[[context]]
name = "cap"
budget_us = 100
period_us = 1000
[[thread]]
name = "server"
kind = "server"
[[thread]]
name = "worker"
kind = "sleeper"
work_us = [10, 20]
sleep_us = 30
group = "web"
context = "cap"
cores = [0, 1]
weight = 2.5
"""
OFFLINE = "[[event]]\nat_ms = 3\ndo = 'core_offline'\ncore = {}\n"
LEASE = '[[lease]]\nname = "l"\nowner = "web"\ncores = [1]\ncontext = "cap"\n'
ISLAND = '[[island]]\nname = "i"\ncontexts = ["cap"]\n'
REVOKE = '[[event]]\nat_ms = 1\ndo = "revoke_context"\nname = "cap"\n'


def test_a_good_file_is_read_as_it_is_written() -> None:
    scenario = parse_scenario(GOOD)
    assert scenario.cores == 2
    worker = scenario.thread[1]
    assert (worker.work_us, worker.sleep_us, worker.weight, worker.cores) == ((10, 20), 30, 2.5, (0, 1))
    assert scenario.rule == "eevdf"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("cores = 2", "cores = 0"), "cores must be from 1 to 4,096, not 0"),
        (("cores = 2", 'cores = "two"'), 'cores: expected a whole number, found "two"'),
        (
            ("cores = 2", "colour = 2"),
            "2 problems\n  colour: unknown key; valid keys: .*\n  cores: required key is missing",
        ),
        (("duration_ms = 10", "duration_ms = true"), "duration_ms: expected a whole number, found true"),
        (
            ('kind = "sleeper"', 'kind = "napper"'),
            r'thread\[1\].kind: expected one of hog, .*, found "napper"',
        ),
        (("work_us = [10, 20]", ""), r"thread\[1\].work_us is missing: a sleeper requires it"),
        (("work_us = [10, 20]", "work_us = [20, 10]"), r"thread\[1\].work_us must be .* a range must be ascending"),
        (
            ("work_us = [10, 20]", "work_us = [1, 2, 3]"),
            r"thread\[1\].work_us: expected a list of 2 items .* found a list of 3",
        ),
        (("sleep_us = 30", "sleep_us = 0"), r"thread\[1\].sleep_us must be at least 1 microsecond"),
        (("sleep_us = 30", "sleep_us = 30\nevery_us = 5"), r"thread\[1\].every_us is not allowed: a sleeper has none"),
        (('group = "web"', 'group = "wed"'), r"thread\[1\].group is 'wed'; defined: web"),
        (('context = "cap"', 'context = "cop"'), r"thread\[1\].context is 'cop'; defined: cap"),
        (("cores = [0, 1]", "cores = [0, 2]"), r"thread\[1\].cores names core 2; cores are 0 to 1"),
        (("weight = 2.5", "weight = 0"), r"thread\[1\].weight must be from 0.001"),
        (("weight = 2.5", "weight = nan"), r"thread\[1\].weight: expected a number, found nan"),
        (("weight = 2.5", "weight = -inf"), r"thread\[1\].weight: expected a number, found -inf"),
        (("budget_us = 100", "budget_us = 2000"), r"context\[0\].budget_us must be from 1 to 1,000, not 2,000"),
        (('name = "worker"', 'name = "server"'), r"thread\[1\].name is 'server', already used by another thread"),
        (('name = "web"', 'name = ""'), r"group\[0\].name must not be empty"),
        (("weight = 2.5", "count = 2000000"), r"thread\[1\].count must be from 1 to 1,000,000"),
        (("weight = 2.5", "start_ms = 11"), r"thread\[1\].start_ms must be from 0 to 10, not 11"),
        (("weight = 2.5", '[[lease]]\nname="a"\nowner="web"\ncores=[]\ncontext="cap"'), r"lease\[0\].cores must name"),
        (("weight = 2.5", '[[lease]]\nname="a"\nowner="x"\ncores=[1]\ncontext="cap"'), r"lease\[0\].owner is 'x'"),
        (("weight = 2.5", '[[island]]\nname="a"\ncontexts=["b"]'), r"island\[0\].contexts is 'b'"),
        (("weight = 2.5", '[[event]]\nat_ms=1\ndo="core_offline"'), r"event\[0\].core is missing"),
        (("weight = 2.5", '[[event]]\nat_ms=1\ndo="exit"\nname="x"'), r"event\[0\].name is 'x'"),
        (("weight = 2.5", '[[event]]\nat_ms=99\ndo="service_lost"'), r"event\[0\].at_ms must be from 0 to 10"),
        (
            ("weight = 2.5", '[[event]]\nat_ms=9\ndo="service_lost"\nname="x"'),
            r"event\[0\].name is not allowed: service_",
        ),
        (("weight = 2.5", f"{REVOKE}{REVOKE}"), r"event\[0\].name is 'cap', which is revoked twice"),
        (("weight = 2.5", f"{ISLAND}{REVOKE}"), r"event\[0\].name is 'cap', a context of an island"),
        (
            ("weight = 2.5", ISLAND + ISLAND.replace('"i"', '"j"')),
            r"island\[1\].contexts names 'cap', which island 'i' has",
        ),
        (
            ("weight = 2.5", f"{ISLAND}leases=['l']\n{LEASE}at_ms=1"),
            r"lease\[0\].at_ms is not allowed: it is granted with",
        ),
        (("weight = 2.5", f"{LEASE}at_ms=11"), r"lease\[0\].at_ms must be from 0 to 10, not 11"),
        (("weight = 2.5", f"{LEASE}at_ms=-1"), r"lease\[0\].at_ms must be from 0 to 10, not -1"),
        (("weight = 2.5", "slice_us = 99"), r"thread\[1\].slice_us must be from 100 to 100,000, not 99"),
        (("cores = [0, 1]", "cores = [1, 1]"), r"thread\[1\].cores names a core twice"),
        (("weight = 2.5", "weight = = 3"), "is not TOML: Invalid value"),
    ],
)
def test_an_invalid_value_is_refused_with_its_place(change: tuple[str, str], words: str) -> None:
    with pytest.raises(ScenarioInvalid, match=words):
        parse_scenario(GOOD.replace(*change))


def test_a_caller_must_name_a_server() -> None:
    caller = '[[thread]]\nname = "c"\nkind = "caller"\nwork_us = 1\nsleep_us = 1\nserve_us = 1\n'
    with pytest.raises(ScenarioInvalid, match=r"thread\[2\].server is missing"):
        parse_scenario(GOOD + caller)
    with pytest.raises(ScenarioInvalid, match=r"thread\[2\].server is 'worker'; defined: server"):
        parse_scenario(GOOD + caller + 'server = "worker"\n')
    assert parse_scenario(GOOD + caller + 'server = "server"\n').thread[2].server == "server"


def test_a_lease_is_revoked_only_when_it_is_granted_and_alone() -> None:
    """The engine has no handle to it before, and that of an island's lease is the island's."""
    lease = '[[lease]]\nname = "l"\nowner = "web"\ncores = [1]\ncontext = "cap"\nat_ms = 5\n'
    revoked = '[[event]]\nat_ms = {}\ndo = "revoke_lease"\nname = "l"\n'
    with pytest.raises(ScenarioInvalid, match=r"event\[0\].name is 'l', which is granted only at 5 ms"):
        parse_scenario(GOOD + lease + revoked.format(4))
    assert parse_scenario(GOOD + lease + revoked.format(5)).event[0].name == "l"
    lease, island = lease.replace("at_ms = 5", ""), '[[island]]\nname = "i"\ncontexts = ["cap"]\nleases = ["l"]\n'
    with pytest.raises(ScenarioInvalid, match=r"event\[0\].name is 'l', a lease of an island"):
        parse_scenario(GOOD + lease + island + revoked.format(5))


def test_an_empty_scenario_is_refused() -> None:
    with pytest.raises(ScenarioInvalid, match="thread count must be from 1"):
        parse_scenario("cores = 1\nduration_ms = 1\n")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ScenarioInvalid, match=r"nothing.toml cannot be read: No such file"):
        load_scenario(tmp_path / "nothing.toml")
    with pytest.raises(ScenarioInvalid, match="cannot be read: Is a directory"):
        load_scenario(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"cores = \xff\xfe")
    with pytest.raises(ScenarioInvalid, match="is not UTF-8"):
        load_scenario(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (SCENARIO_BYTES_MAX + 1))
    with pytest.raises(ScenarioInvalid, match="the maximum, which is 1,048,576 bytes"):
        load_scenario(large)
    with pytest.raises(ScenarioInvalid, match="/dev/zero is larger than the maximum"):
        load_scenario(Path("/dev/zero"))
    good = tmp_path / "good.toml"
    good.write_text(GOOD)
    assert load_scenario(good).cores == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ISLAND + "memory_bytes = 5", r"island\[0\]: island i does not fit: memory in bytes: 5 needed, 0 available"),
        (ISLAND + "slots = -1", r"island\[0\]: RealtimeIsland.slots must lie from 0"),
        (
            "[[context]]\nname = 'b'\nbudget_us = 1\nperiod_us = 9\nendpoint = -1",
            r"context\[1\]: SchedulingContext.timeout",
        ),
        (LEASE + "at_ms = 4\n" + LEASE.replace('"l"', '"m"'), r"lease\[0\] at 4 ms: .* cores 1 are not free"),
        (OFFLINE.format(0) + OFFLINE.format(1), r"event\[1\] at 3 ms: the last core cannot go offline"),
    ],
)
def test_what_is_refused_later_says_where_it_is_in_the_file(text: str, words: str) -> None:
    scenario = parse_scenario(GOOD + text)
    with pytest.raises(RotaError, match=words):
        build_simulation(scenario).run(10_000_000)
