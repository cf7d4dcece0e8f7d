"""Readers of the journal: they fold events and write nothing.

`FleetState` is what a fleet is doing, `Overview` what the tables say now, `FleetReport` how the fleet performed,
`EventText` a sentence about an event; `to_chrome` and `to_ndjson` export the trace of a graph run. The metrics of the
daemon are in `rota.observe.metrics`, which is not imported here because it loads the Prometheus client.
"""

from rota.observe.event_text import EventText, TextTone, describe
from rota.observe.fleet_report import FleetReport, ProjectReport, WaitTimes, jain
from rota.observe.fleet_state import AgentName, FleetState, ProjectTotals, StartingState
from rota.observe.graph_trace import to_chrome, to_ndjson
from rota.observe.journal_times import last_event_before
from rota.observe.overview import (
    EntryLookup,
    Overview,
    read_agents,
    read_counts,
    read_overview,
    read_weights,
    recent_state,
    report_of,
)
from rota.observe.recent_rates import BUCKET_S, RatePoint, RecentRates
from rota.observe.recent_usage import AgentShare, RecentShares
from rota.observe.run_chart import WINDOW_S, ChartRow, RunEnding, RunSpan
from rota.observe.run_history import RunHistory, read_runs
from rota.observe.sentence_reader import SentenceReader
from rota.observe.text_filter import TextFilter, project_named

__all__ = [
    "BUCKET_S",
    "WINDOW_S",
    "AgentName",
    "AgentShare",
    "ChartRow",
    "EntryLookup",
    "EventText",
    "FleetReport",
    "FleetState",
    "Overview",
    "ProjectReport",
    "ProjectTotals",
    "RatePoint",
    "RecentRates",
    "RecentShares",
    "RunEnding",
    "RunHistory",
    "RunSpan",
    "SentenceReader",
    "StartingState",
    "TextFilter",
    "TextTone",
    "WaitTimes",
    "describe",
    "jain",
    "last_event_before",
    "project_named",
    "read_agents",
    "read_counts",
    "read_overview",
    "read_runs",
    "read_weights",
    "recent_state",
    "report_of",
    "to_chrome",
    "to_ndjson",
]
