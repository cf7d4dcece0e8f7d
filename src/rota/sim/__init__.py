"""The core simulator: runs the cores engine in virtual time, from a scenario file to a report and a drawing.

A scenario (TOML) describes cores, threads and events. `build_simulation` makes a `Simulation` from it, which runs the
real engine without waiting. The same scenario and seed give the same run.
"""

from rota.sim.build import apply_policy, build_simulation
from rota.sim.plot import draw_svg
from rota.sim.report import SimReport, TimeSpread, make_report
from rota.sim.scenario import Scenario, load_scenario, parse_scenario
from rota.sim.simulation import Simulation

__all__ = [
    "Scenario",
    "SimReport",
    "Simulation",
    "TimeSpread",
    "apply_policy",
    "build_simulation",
    "draw_svg",
    "load_scenario",
    "make_report",
    "parse_scenario",
]
