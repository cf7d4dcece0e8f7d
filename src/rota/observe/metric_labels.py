"""Labels of metrics whose values users choose: their number and their length are limited.

Every value of a label is a series of its own, in the daemon and in the database that collects the metrics. So the first
values keep their names, and all later ones share `OTHER`. A long name is cut and gets a digest, so that two names that
begin alike stay apart.
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["AGENTS_MAX", "LABELS_MAX", "LABEL_BYTES_MAX", "OTHER", "PROJECTS_MAX", "Labels", "short"]

LABELS_MAX = 64  # values of a label such as a dimension or a policy
PROJECTS_MAX = 64  # projects with series of their own
AGENTS_MAX = 200  # agents with series of their own, of all projects
LABEL_BYTES_MAX = 80  # as UTF-8
OTHER = "other"


def short(value: str) -> str:
    """Return a value for a label, of at most `LABEL_BYTES_MAX` bytes on the page."""
    if _bytes_of(value) <= LABEL_BYTES_MAX:
        return value
    digest = blake2b(value.encode("utf-8", "replace"), digest_size=4).hexdigest()
    head = value[: LABEL_BYTES_MAX - len(digest) - 1]
    while _bytes_of(head) + len(digest) + 1 > LABEL_BYTES_MAX:
        head = head[:-1]
    return f"{head}~{digest}"


def _bytes_of(text: str) -> int:
    """Return how many bytes a text has on the page, where some characters are escaped."""
    return len(text.encode("utf-8", "replace")) + sum(map(text.count, ("\\", '"', "\n")))


class Labels:
    """The values of each label that are in use."""

    def __init__(self) -> None:
        self._known: dict[str, set[str | tuple[str, str]]] = {}

    def value(self, label: str, value: str, limit: int = LABELS_MAX) -> str:
        """Return the value of a label; beyond `limit` different ones it is `OTHER`."""
        return short(value) if self._keeps(label, value, limit) else OTHER

    def project(self, project_id: str | None) -> str:
        """Return the label of a project; none is empty."""
        return "" if project_id is None else self.value("project", project_id, PROJECTS_MAX)

    def agent(self, project_id: str | None, name: str) -> tuple[str, str]:
        """Return the labels of a project and one of its agents."""
        project = self.project(project_id)
        kept = project != OTHER and self._keeps("agent", (project, name), AGENTS_MAX)
        return project, short(name) if kept else OTHER

    def _keeps(self, label: str, value: str | tuple[str, str], limit: int) -> bool:
        known = self._known.setdefault(label, set())
        if value not in known and len(known) < limit:
            known.add(value)
        return value in known
