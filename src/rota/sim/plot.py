"""Draws a simulation as SVG: which thread ran on each core when, and the lag of each thread.

The number of shapes is limited: of a long simulation only the beginning is drawn, and the drawing says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb

from rota.sim.simulation import LagSample, Segment, Simulation
from rota.svg import document, element, text

__all__ = ["SHAPES_MAX", "draw_svg"]

SHAPES_MAX = 6_000
WIDTH = 1200
LEFT = 90  # space for names
TOP = 60  # space for the title
ROW = 26  # height of one core
LAG = 220  # height of the lag chart
LEGEND = 18
LEGEND_COLUMNS = 6
GOLDEN_ANGLE = 137.508  # degrees between two hues: neighbouring hues differ for any number of threads
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b", "#ff9da6", "#79706e")


def draw_svg(simulation: Simulation, title: str, *, until_ns: int | None = None) -> str:
    """Return an SVG drawing of the beginning of a simulation."""
    until_ns = simulation.now if until_ns is None else min(until_ns, simulation.now)
    segments = [one for one in simulation.segments if one.start_ns < until_ns]
    if len(segments) > SHAPES_MAX:
        segments, until_ns = segments[:SHAPES_MAX], segments[SHAPES_MAX].start_ns
    until_ns = max(1, until_ns)
    names = list(dict.fromkeys(segment.thread for segment in segments))
    canvas = _Canvas(until_ns, {name: _color(at) for at, name in enumerate(names)})
    lag_top = TOP + simulation.engine.core_count * ROW + 30
    height = lag_top + LAG + 50 + LEGEND * (len(names) // LEGEND_COLUMNS)
    parts = [
        *canvas.gantt(segments, simulation.engine.core_count),
        *canvas.lags([one for one in simulation.lags if one.at_ns <= until_ns], lag_top),
        *canvas.legend(lag_top + LAG + 30),
    ]
    if until_ns < simulation.now:
        parts.append(text(LEFT, TOP - 10, f"the first {_ms(until_ns)} of {_ms(simulation.now)}", class_="small"))
    return document(WIDTH, height, title, parts, margin=LEFT)


def _color(number: int) -> str:
    """Return a color for each thread: the first few from a palette, then around the color wheel."""
    if number < len(COLORS):
        return COLORS[number]
    lightness = 0.72 - 0.17 * (number % 3)
    rgb = hls_to_rgb(number * GOLDEN_ANGLE % 360 / 360, lightness, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


class _Canvas:
    """Time from left to right, one color for each thread."""

    def __init__(self, until_ns: int, colors: dict[str, str]) -> None:
        self._until_ns = until_ns
        self._colors = colors

    def gantt(self, segments: Sequence[Segment], cores: int) -> Iterator[str]:
        """One row for each core."""
        for core in range(cores):
            y = TOP + core * ROW
            yield text(8, y + 14, f"core {core}", class_="small")
            yield element("rect", x=LEFT, y=y, width=WIDTH - LEFT - 10, height=ROW - 6, fill="#f2f2f2")
        for segment in segments:
            x, end = self._x(segment.start_ns), self._x(min(segment.end_ns, self._until_ns))
            yield element(
                "rect",
                x=x,
                y=TOP + segment.core * ROW,
                width=max(end - x, 0.2),
                height=ROW - 6,
                fill=self._colors[segment.thread],
                tip=f"{segment.thread}: {_ms(segment.start_ns)} to {_ms(segment.end_ns)}",
            )

    def lags(self, samples: Sequence[LagSample], top: int) -> Iterator[str]:
        """The lag of each thread over time; above the line it is owed service."""
        highest = max([abs(sample.lag_ns) for sample in samples], default=0) or 1
        middle = top + LAG // 2
        yield text(8, top + 12, "lag", class_="small")
        yield text(8, top + 26, f"±{_ms(highest)}", class_="small")
        yield element("path", d=f"M{LEFT} {middle} H{WIDTH - 10}", stroke="#999999")
        for name, color in self._colors.items():
            points = " ".join(
                f"{self._x(one.at_ns):.1f},{middle - one.lag_ns * (LAG // 2 - 6) / highest:.1f}"
                for one in samples
                if one.thread == name
            )
            if points:
                yield element("polyline", points=points, fill="none", stroke=color)
        yield text(LEFT, top + LAG + 14, "0", class_="small")
        yield text(WIDTH - 10, top + LAG + 14, _ms(self._until_ns), class_="small", text_anchor="end")

    def legend(self, top: int) -> Iterator[str]:
        """The color of each thread."""
        for at, (name, color) in enumerate(self._colors.items()):
            x, y = LEFT + at % LEGEND_COLUMNS * 180, top + at // LEGEND_COLUMNS * LEGEND
            yield element("rect", x=x, y=y - 9, width=10, height=10, fill=color)
            yield text(x + 15, y, name, class_="small")

    def _x(self, at_ns: int) -> float:
        return LEFT + at_ns * (WIDTH - LEFT - 10) / self._until_ns


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1_000_000:,.3f} ms"
