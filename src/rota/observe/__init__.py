"""Readers of the journal: they fold events and write nothing.

`FleetState` is what a fleet is doing, `FleetReport` how it performed, `EventText` a sentence about an event;
`to_chrome` and `to_ndjson` export the trace of a graph run. The metrics of the daemon are in `rota.observe.metrics`,
which is not imported here because it loads the Prometheus client.
"""

from rota.observe.event_text import EventText, TextTone, describe
from rota.observe.fleet_report import FleetReport, ProjectReport, WaitTimes, jain
from rota.observe.fleet_state import AgentName, FleetState, ProjectTotals, StartingState
from rota.observe.graph_trace import to_chrome, to_ndjson
from rota.observe.recent_usage import AgentShare, RecentShares
from rota.observe.run_chart import WINDOW_S, ChartRow, RunEnding, RunSpan
from rota.observe.text_filter import TextFilter, project_named

__all__ = [
    "WINDOW_S",
    "AgentName",
    "AgentShare",
    "ChartRow",
    "EventText",
    "FleetReport",
    "FleetState",
    "ProjectReport",
    "ProjectTotals",
    "RecentShares",
    "RunEnding",
    "RunSpan",
    "StartingState",
    "TextFilter",
    "TextTone",
    "WaitTimes",
    "describe",
    "jain",
    "project_named",
    "to_chrome",
    "to_ndjson",
]
