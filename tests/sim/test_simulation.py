"""The engine in virtual time: the driver, the report, the drawing, and the shipped examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from rota.cores import CoresEngine
from rota.errors import ContextRefused, IslandRefused, LeaseRefused
from rota.policy import registry
from rota.sim.build import apply_policy, build_simulation
from rota.sim.plot import SHAPES_MAX, _color, draw_svg
from rota.sim.report import SimReport, TimeSpread, make_report
from rota.sim.scenario import Scenario, load_scenario, parse_scenario
from rota.sim.simulation import Simulation

MS = 1_000_000
EXAMPLES = Path(__file__).parents[2] / "examples" / "cpu"


def simulate(text: str) -> Simulation:
    scenario = parse_scenario(text)
    simulation = build_simulation(scenario)
    simulation.check = CoresEngine.check_invariants
    simulation.run(scenario.duration_ms * MS)
    return simulation


HOGS = """
cores = 1
duration_ms = 400
[[thread]]
name = "heavy"
kind = "hog"
weight = 3
[[thread]]
name = "light"
kind = "hog"
"""


# --- the driver ------------------------------------------------------------------------------------


def test_a_report_lists_what_each_thread_used() -> None:
    shown = make_report(simulate(HOGS))
    heavy, light = shown.threads
    assert (heavy.name, light.name) == ("heavy", "light")
    assert abs(heavy.share_ppm - 750_000) < 8_000
    assert heavy.runtime_ns + light.runtime_ns == 400 * MS
    assert -3 * MS < heavy.lag_min_ns < 0 < heavy.lag_max_ns < 3 * MS
    assert shown.cores[0].idle_ppm == 0
    assert shown.counted["picks"] >= heavy.switches + light.switches


def test_threads_start_at_their_start_time() -> None:
    simulation = simulate(HOGS + "start_ms = 100\n")
    first = next(segment for segment in simulation.segments if segment.thread == "light")
    assert 100 * MS <= first.start_ns <= 103 * MS


def test_one_more_thread_does_not_change_what_the_others_draw() -> None:
    sleeper = '[[thread]]\nname = "s"\nkind = "sleeper"\nwork_us = [1, 900]\nsleep_us = [1, 900]\n'
    alone, beside = simulate(HOGS + sleeper), simulate(HOGS + sleeper + sleeper.replace('"s"', '"t"'))

    def first_stretches(simulation: Simulation) -> int:
        return next(one.end_ns - one.start_ns for one in simulation.segments if one.thread == "s")

    assert first_stretches(alone) == first_stretches(beside)


def test_a_server_that_ends_leaves_its_callers_going() -> None:
    simulation = simulate("""
cores = 1
duration_ms = 100
[[thread]]
name = "server"
kind = "server"
[[thread]]
name = "client"
kind = "caller"
count = 3
work_us = 100
serve_us = 3000
sleep_us = 100
server = "server"
[[event]]
at_ms = 50
do = "exit"
name = "server"
""")
    shown = {one.name: one for one in make_report(simulation).threads}
    assert simulation.decisions["CallFailed"] >= 1
    assert shown["server"].runtime_ns <= 50 * MS
    assert all(shown[f"client-{number}"].switches > 50 for number in range(3))


def test_cores_and_the_policy_service_can_fail_and_return() -> None:
    simulation = simulate(
        HOGS.replace("cores = 1", "cores = 2")
        + """
count = 4
[[event]]
at_ms = 100
do = "core_offline"
core = 1
[[event]]
at_ms = 150
do = "service_lost"
[[event]]
at_ms = 200
do = "core_online"
core = 1
[[event]]
at_ms = 300
do = "service_back"
"""
    )
    ran = [one for one in simulation.segments if one.core == 1]
    assert not any(one.end_ns > 100 * MS and one.start_ns < 200 * MS for one in ran)
    assert any(one.start_ns > 200 * MS for one in ran)
    assert simulation.engine.counters.fallbacks == 1
    assert simulation.engine.policy_updates.epoch == 2  # it began with epoch 1


def test_a_lease_and_a_context_can_be_revoked_by_events() -> None:
    simulation = simulate("""
cores = 2
duration_ms = 100
[[group]]
name = "owner"
[[context]]
name = "cap"
budget_us = 1000
period_us = 20000
[[lease]]
name = "mine"
owner = "owner"
cores = [1]
context = "cap"
at_ms = 10
endpoint = 4
[[thread]]
name = "capped"
kind = "hog"
context = "cap"
[[thread]]
name = "poller"
kind = "hog"
group = "owner"
[[event]]
at_ms = 60
do = "revoke_lease"
name = "mine"
[[event]]
at_ms = 80
do = "revoke_context"
name = "cap"
""")
    assert simulation.decisions["PostRevoke"] == simulation.decisions["LeaseEnded"] == 1
    shown = {one.name: one for one in make_report(simulation).threads}
    assert 20 * MS < shown["capped"].runtime_ns < 26 * MS


def test_a_reschedule_can_be_delayed() -> None:
    prompt = simulate(
        HOGS + '[[thread]]\nname = "s"\nkind = "sleeper"\nlatency = "sensitive"\nwork_us=50\nsleep_us=999\n'
    )
    slow = simulate(
        "reschedule_us = 200\n"
        + HOGS
        + '[[thread]]\nname = "s"\nkind = "sleeper"\nlatency = "sensitive"\nwork_us=50\nsleep_us=999\n'
    )
    latencies = [make_report(one).threads[2].latency for one in (prompt, slow)]
    assert latencies[0] is not None
    assert latencies[1] is not None
    assert latencies[1].p50_ns >= latencies[0].p50_ns + 200_000


def test_percentiles_are_observed_times() -> None:
    assert TimeSpread.of([]) is None
    assert TimeSpread.of([5]) == TimeSpread(1, 5, 5, 5)
    assert TimeSpread.of(list(range(1, 101))) == TimeSpread(100, 50, 100, 100)
    assert TimeSpread.of(list(range(1, 1002))) == TimeSpread(1001, 501, 991, 1001)


# --- the drawing -----------------------------------------------------------------------------------


def test_a_drawing_shows_every_segment_and_every_lag() -> None:
    simulation = simulate(HOGS.replace('"light"', '"<light> & \\"loud\\""'))
    tree = ET.fromstring(draw_svg(simulation, "a <title>"))
    space = {"svg": "http://www.w3.org/2000/svg"}
    titles = [one.text or "" for one in tree.findall(".//svg:rect/svg:title", space)]
    assert len(titles) == len(simulation.segments)
    assert any(title.startswith('<light> & "loud": ') for title in titles)
    assert len(tree.findall(".//svg:polyline", space)) == 2
    words = [one.text for one in tree.findall(".//svg:text", space)]
    assert "a <title>" in words
    assert "core 0" in words


def test_a_control_character_in_a_name_cannot_break_a_drawing() -> None:
    simulation = simulate(HOGS.replace('"light"', '"a\\u0007b"'))
    tree = ET.fromstring(draw_svg(simulation, "a\x00title"))
    words = [one.text for one in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a\ufffdtitle", "a\ufffdb"} <= set(words)


def test_of_a_long_simulation_the_beginning_is_drawn() -> None:
    scenario = parse_scenario(HOGS.replace("duration_ms = 400", "duration_ms = 30000"))
    simulation = build_simulation(scenario)
    simulation.run(30_000 * MS)
    text = draw_svg(simulation, "long")
    assert text.count("<rect") < SHAPES_MAX + 20
    assert "the first" in text
    assert draw_svg(simulation, "long", until_ns=50 * MS).count("<rect") < 60


def test_an_empty_simulation_can_be_drawn() -> None:
    ET.fromstring(draw_svg(Simulation(CoresEngine(cores=1)), "empty"))


# --- the examples that are shipped ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["audio", "voice", "robot", "provider"])
def test_an_example_meets_its_deadlines(name: str) -> None:
    scenario = load_scenario(EXAMPLES / f"{name}.toml")
    simulation = build_simulation(scenario)
    simulation.run(scenario.duration_ms * MS)
    assert simulation.engine.counters.misses == 0
    assert simulation.decisions["IslandMoved"] == 0
    responses = {one.name: one.response for one in make_report(simulation).threads}
    for thread in scenario.thread:
        context = next((one for one in scenario.context if one.name == thread.context), None)
        if thread.kind == "periodic" and context is not None and context.criticality != "background":
            response = responses[thread.name]
            assert response is not None
            assert response.max_ns <= (context.deadline_us or context.period_us) * 1_000


def test_the_example_that_does_not_fit_is_refused_with_its_shortage() -> None:
    with pytest.raises(IslandRefused) as refused:
        build_simulation(load_scenario(EXAMPLES / "refused.toml"))
    assert refused.value.data["missing"] == [
        "memory in bytes: 16,000,000 needed, 8,000,000 available",
        "time of core 1 for critical deadlines in ns: 21,000,000 needed, 20,000,000 available",
    ]


def test_every_example_is_one_of_these() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == {"audio", "voice", "robot", "provider", "refused"}


def test_contexts_and_leases_outside_islands_are_refused_too() -> None:
    reservation = '[[context]]\nname = "p"\nbudget_us = 99\nperiod_us = 100\ncriticality = "high"\ncores = [0]\n'
    with pytest.raises(ContextRefused, match="utilisation of core 0"):
        simulate(HOGS + reservation)
    lease = (
        '[[group]]\nname = "g"\n[[context]]\nname = "c"\nbudget_us = 1\nperiod_us = 2\n'
        '[[lease]]\nname = "l"\nowner = "g"\ncores = [0]\ncontext = "c"\n'
    )
    with pytest.raises(LeaseRefused, match="no core would be left"):
        simulate(HOGS + lease)


# --- the command -----------------------------------------------------------------------------------


def rota(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rota.cli import main; main()", "cpu", "sim", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_a_report_and_draws(tmp_path: Path) -> None:
    drawing = tmp_path / "out.svg"
    done = rota(str(EXAMPLES / "audio.toml"), "--policy", "wfq", "--plot", str(drawing), "--plot-ms", "50")
    assert done.returncode == 0, done.stderr
    assert "wfq, seed 1" in done.stdout
    assert "0 misses" in " ".join(done.stdout.split())
    ET.parse(drawing)


def test_a_hundred_threads_have_a_hundred_colours() -> None:
    assert len({_color(number) for number in range(100)}) == 100


def test_the_command_takes_any_policy_that_is_registered() -> None:
    done = rota(str(EXAMPLES / "provider.toml"), "--policy", "strict", "--arrange-us", "1000")
    assert done.returncode == 0, done.stderr
    assert "strict, seed 4" in done.stdout
    assert "0 misses" in " ".join(done.stdout.split())


def test_another_policy_chooses_the_order_and_the_invariants_hold() -> None:
    """Three hogs of equal weight: of two waiting ones strict takes the higher priority, and the third hardly runs."""
    contexts = "".join(
        f'[[context]]\nname = "{name}"\nbudget_us = 90_000\nperiod_us = 100_000\npriority = {priority}\n'
        f'[[thread]]\nname = "{name}"\nkind = "hog"\ncontext = "{name}"\n'
        for name, priority in (("low", 1), ("middle", 2), ("high", 3))
    )
    simulation = build_simulation(parse_scenario("cores = 1\nduration_ms = 300\n" + contexts))
    apply_policy(simulation, registry.make("strict"), 1 * MS)
    simulation.check = CoresEngine.check_invariants
    simulation.run(300 * MS)
    shares = {one.name: one.share_ppm for one in make_report(simulation).threads}
    assert shares["high"] > 450_000
    assert shares["low"] < 50_000


def test_the_json_report_is_the_same_for_the_same_seed() -> None:
    first, again, other = (rota(str(EXAMPLES / "voice.toml"), "--json", "--seed", seed) for seed in ("5", "5", "6"))
    shown = msgspec.json.decode(first.stdout, type=SimReport)
    assert shown.duration_ns == 3_000 * MS
    assert first.stdout == again.stdout != other.stdout


def test_the_command_reports_an_error_in_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("cores = 1\n")
    for path, code, words in (
        (EXAMPLES / "refused.toml", 1, "context camera fits on no allowed core"),
        (bad, 2, "bad.toml: duration_ms: required key is missing; expected a whole number"),
    ):
        done = rota(str(path))
        assert done.returncode == code
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_an_unwritable_drawing_and_an_unknown_policy_are_reported(tmp_path: Path) -> None:
    for words, code, expected in (
        (("--plot", str(tmp_path / "nowhere" / "out.svg")), 2, "out.svg cannot be written: No such file"),
        (("--policy", "bogus"), 3, "no policy is called 'bogus'"),
    ):
        done = rota(str(EXAMPLES / "provider.toml"), *words)
        assert done.returncode == code
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


def test_a_scenario_can_be_made_in_python_too() -> None:
    scenario = msgspec.structs.replace(parse_scenario(HOGS), duration_ms=10)
    assert isinstance(scenario, Scenario)
    simulation = build_simulation(scenario, observe=False)
    simulation.run(10 * MS)
    assert simulation.segments == []
    assert simulation.events > 0


HINTED = """
cores = 1
duration_ms = 1500
[[thread]]
name = "editor"
kind = "hog"
hint = "latency_sensitive"
[[thread]]
name = "nightly"
kind = "hog"
hint = "batch"
[[event]]
at_ms = 500
do = "service_lost"
[[event]]
at_ms = 1000
do = "service_back"
"""


def test_hints_are_answered_by_the_policy_service_and_hold_during_its_outage() -> None:
    """Weights 2 and 0.5 by the profiles: 80 to 20, also while the service is away and afterwards."""
    simulation = simulate(HINTED)
    for start_ms in (100, 500, 1000):
        inside = [one for one in simulation.segments if start_ms * MS <= one.start_ns < (start_ms + 400) * MS]
        ran = sum(one.end_ns - one.start_ns for one in inside if one.thread == "editor")
        assert ran / (400 * MS) == pytest.approx(0.8, abs=0.06), start_ms
    assert simulation.engine.counters.fallbacks == 1


def test_what_a_scenario_admits_is_refused_with_the_words_of_a_real_host() -> None:
    with pytest.raises(IslandRefused, match="1,100,000 needed, 950,000 available"):
        build_simulation(parse_scenario(AUDIO_TOO_MUCH))


AUDIO_TOO_MUCH = """
cores = 1
duration_ms = 10
[[context]]
name = "mix"
budget_us = 6000
period_us = 10000
criticality = "critical"
[[context]]
name = "play"
budget_us = 5000
period_us = 10000
criticality = "critical"
[[island]]
name = "audio"
contexts = ["mix", "play"]
[[thread]]
name = "mixer"
kind = "hog"
context = "mix"
"""


CALLER_ENDS = """
cores = 2
duration_ms = 20
seed = 64
[[context]]
name = "little"
budget_us = 50
period_us = 5000
[[group]]
name = "servers"
context = "little"
[[thread]]
name = "server"
kind = "server"
group = "servers"
[[thread]]
name = "caller"
kind = "caller"
work_us = 2053
sleep_us = 1000
server = "server"
serve_us = 100
[[thread]]
name = "busy"
kind = "periodic"
work_us = 3203
every_us = 23723
count = 5
[[event]]
at_ms = AT
do = "exit"
name = "caller"
"""


@pytest.mark.parametrize("at_ms", range(2, 10))
def test_a_caller_may_end_before_its_server_has_started_the_call(at_ms: int) -> None:
    simulation = build_simulation(parse_scenario(CALLER_ENDS.replace("AT", str(at_ms))))
    simulation.run(20_000_000)
    assert [thread.name for thread, _account in simulation.ended] == ["caller"]
