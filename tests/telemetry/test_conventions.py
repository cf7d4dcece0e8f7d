"""The names that spans, metrics and logs share with other programs are those of OpenTelemetry's conventions.

The published names are read from the package of the conventions, which the extra `otel` brings along.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import opentelemetry.semconv._incubating.attributes as attribute_modules
import opentelemetry.semconv._incubating.metrics as metric_modules
import pytest
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiOperationNameValues
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MessagingOperationTypeValues

SOURCE = Path(__file__).parents[2] / "src" / "rota" / "telemetry"
TEXT = "\n".join(path.read_text() for path in sorted(SOURCE.glob("*.py")))
CONVENTIONAL = re.compile(
    r'"((?:messaging|gen_ai|error|process|service|telemetry|exception|event|code)(?:\.[a-z_]+)+)"'
)
NAMED = sorted(set(CONVENTIONAL.findall(TEXT)))


def published(package: ModuleType) -> set[str]:
    """Every name that a module of the package publishes as a constant."""
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)
    ]
    return {value for module in modules for value in vars(module).values() if isinstance(value, str)}


ATTRIBUTES = published(attribute_modules)
METRICS = published(metric_modules)


def test_names_were_found() -> None:
    assert {"messaging.destination.name", "gen_ai.agent.name", "gen_ai.usage.input_tokens", "error.type"} <= set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_a_conventional_name_is_published(name: str) -> None:
    assert name in ATTRIBUTES | METRICS


def test_the_operations_are_those_of_the_conventions() -> None:
    used = {word for word in ("invoke_agent", "invoke_workflow") if f'"{word}"' in TEXT or f'f"{word} ' in TEXT}
    assert used == {"invoke_agent", "invoke_workflow"}
    assert used <= {each.value for each in GenAiOperationNameValues}
    assert {"send", "process"} <= {each.value for each in MessagingOperationTypeValues}
