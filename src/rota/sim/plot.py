"""Draws a simulation as SVG: which thread ran on each core when, and the lag of each thread.

The SVG is written as text, so it needs no extra package and opens in a browser. The number of shapes is limited: of a
long simulation only the beginning is drawn, and the drawing says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from html import escape

from rota.sim.simulation import LagSample, Segment, Simulation

__all__ = ["SHAPES_MAX", "draw_svg"]

SHAPES_MAX = 6_000
WIDTH = 1200
LEFT = 90  # space for names
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
    lag_top = 60 + simulation.engine.core_count * ROW + 30
    height = lag_top + LAG + 50 + LEGEND * (len(names) // LEGEND_COLUMNS)
    body = [
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *canvas.gantt(segments, simulation.engine.core_count),
        *canvas.lags([one for one in simulation.lags if one.at_ns <= until_ns], lag_top),
        *canvas.legend(lag_top + LAG + 30),
    ]
    if until_ns < simulation.now:
        body.append(f'<text x="{LEFT}" y="40">the first {_ms(until_ns)} of {_ms(simulation.now)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="11">', '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>\n"])


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
            y = 50 + core * ROW
            yield f'<text x="8" y="{y + 14}">core {core}</text>'
            yield f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 10}" height="{ROW - 6}" fill="#f2f2f2"/>'
        for segment in segments:
            x, end = self._x(segment.start_ns), self._x(min(segment.end_ns, self._until_ns))
            color, y = self._colors[segment.thread], 50 + segment.core * ROW
            tip = f"{segment.thread}: {_ms(segment.start_ns)} to {_ms(segment.end_ns)}"
            shape = f'<rect x="{x:.2f}" y="{y}" width="{max(end - x, 0.2):.2f}" height="{ROW - 6}" fill="{color}">'
            yield f"{shape}<title>{escape(tip)}</title></rect>"

    def lags(self, samples: Sequence[LagSample], top: int) -> Iterator[str]:
        """The lag of each thread over time; above the line it is owed service."""
        highest = max([abs(sample.lag_ns) for sample in samples], default=0) or 1
        middle = top + LAG // 2
        yield f'<text x="8" y="{top + 12}">lag</text><text x="8" y="{top + 26}">±{_ms(highest)}</text>'
        yield f'<line x1="{LEFT}" y1="{middle}" x2="{WIDTH - 10}" y2="{middle}" stroke="#999"/>'
        for name, color in self._colors.items():
            points = " ".join(
                f"{self._x(one.at_ns):.1f},{middle - one.lag_ns * (LAG // 2 - 6) / highest:.1f}"
                for one in samples
                if one.thread == name
            )
            if points:
                yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1"/>'
        yield f'<text x="{LEFT}" y="{top + LAG + 14}">0</text>'
        yield f'<text x="{WIDTH - 10}" y="{top + LAG + 14}" text-anchor="end">{_ms(self._until_ns)}</text>'

    def legend(self, top: int) -> Iterator[str]:
        """The color of each thread."""
        for at, (name, color) in enumerate(self._colors.items()):
            x, y = LEFT + at % LEGEND_COLUMNS * 180, top + at // LEGEND_COLUMNS * LEGEND
            yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>'
            yield f'<text x="{x + 15}" y="{y}">{escape(name)}</text>'

    def _x(self, at_ns: int) -> float:
        return LEFT + at_ns * (WIDTH - LEFT - 10) / self._until_ns


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1_000_000:,.3f} ms"
