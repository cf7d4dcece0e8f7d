"""rota's Prometheus metrics as OpenTelemetry data points: the same names, so that one dashboard serves both.

A collector that writes to Prometheus adds `_total` to a sum, as rota's own page has it, and finds the unit in the name
already. Three of them are sent once more under the name that the conventions for messaging give them. This module
needs the extra `otel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client.metrics_core import Metric as Family

__all__ = ["metric_points"]

_UNKNOWN: Any = None  # Prometheus does not keep the extremes; the encoder leaves them out
_CUMULATIVE = AggregationTemporality.CUMULATIVE
# by rota's name: the name, the unit and the operation in the conventions for messaging
_CONVENTIONAL: Mapping[str, tuple[str, str, str]] = {
    "rota_entries_enqueued": ("messaging.client.sent.messages", "{message}", "enqueue"),
    "rota_entries_claimed": ("messaging.client.consumed.messages", "{message}", "process"),
    "rota_run_seconds": ("messaging.process.duration", "s", "process"),
}


def metric_points(families: Iterable[Family], since_ns: int, now_ns: int) -> list[Metric]:
    """Return the values of all metrics; sums count from `since_ns`."""
    found: list[Metric] = []
    for family in families:
        data = _data(family, since_ns, now_ns, {})
        found.append(Metric(family.name, family.documentation, _unit(family.name), data))
        if family.name in _CONVENTIONAL:
            name, unit, operation = _CONVENTIONAL[family.name]
            more = {"messaging.system": "rota", "messaging.operation.name": operation}
            found.append(Metric(name, family.documentation, unit, _data(family, since_ns, now_ns, more)))
    return found


def _unit(name: str) -> str:
    return "s" if name.endswith("_seconds") else "1"


def _data(family: Family, since_ns: int, now_ns: int, more: Mapping[str, str]) -> Sum | Gauge | Histogram:
    if family.type == "histogram":
        return Histogram(list(_histograms(family, since_ns, now_ns, more)), _CUMULATIVE)
    points = [
        NumberDataPoint({**sample.labels, **more}, since_ns, now_ns, sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return Sum(points, _CUMULATIVE, is_monotonic=True) if family.type == "counter" else Gauge(points)


def _histograms(family: Family, since_ns: int, now_ns: int, more: Mapping[str, str]) -> Iterator[HistogramDataPoint]:
    """Yield a point for each set of labels: Prometheus counts up to a bound, OpenTelemetry between two."""
    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        values = series.setdefault(labels, {"bounds": [], "sum": 0.0, "count": 0})
        if sample.name.endswith("_bucket"):
            values["bounds"].append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith(("_sum", "_count")):
            values[sample.name.rpartition("_")[2]] = sample.value
    for labels, values in series.items():
        bounds = sorted(values["bounds"])
        counts = [bounds[0][1], *(later - earlier for (_, earlier), (_, later) in pairwise(bounds))]
        yield HistogramDataPoint(
            attributes={**dict(labels), **more},
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            count=int(values["count"]),
            sum=values["sum"],
            bucket_counts=counts,
            explicit_bounds=[bound for bound, _ in bounds[:-1]],
            min=_UNKNOWN,
            max=_UNKNOWN,
        )
