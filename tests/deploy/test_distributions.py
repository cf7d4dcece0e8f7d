"""The sdist has all that a developer needs, the wheel all that a user needs: built as they are published.

The wheel is built from the sdist, with what `./dev` has installed already: no package index is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_PUBLISHED = {".ci", ".gitignore"}  # of this repository only; the build adds .gitignore by itself


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [str(Path(sys.executable).with_name("uv")), "build", "--offline", "--quiet", "--out-dir", str(folder)]
    environment = {**os.environ, "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(ROOT / ".cache" / "uv"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """The files of the wheel, as an installer puts them."""
    (wheel,) = built.glob("*.whl")
    folder = built / "site-packages"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
    return folder


def tracked() -> set[str]:
    """What the repository has at its top."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split() if listed.returncode == 0 else [path.name for path in ROOT.iterdir()]
    return {name.split("/", 1)[0] for name in names} - NOT_PUBLISHED


def test_the_sdist_has_everything_of_the_repository(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert tracked() <= {name.split("/", 1)[0] for name in names}
    assert {"deploy/systemd/rota-serve.service", "docs/grafana/rota-alerts.yaml", "tests/deploy/test_files.py"} <= names
    assert not [name for name in names if name.startswith((".cache", ".venv")) or name.endswith(".db")]


def test_the_wheel_has_the_pages_and_whatever_is_no_python(installed: Path) -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    source = ROOT / "src"
    others = {path.relative_to(source).as_posix() for path in source.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert "rota/web/static/rota.css" in others
    assert not [name for name in others if not (installed / name).exists()]
    assert not [name for name in pages if not (installed / "rota" / name).exists()]


def test_a_page_is_printed_where_there_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    script = "import rota, sys; print(rota.__file__); from rota.cli import app; app(['docs', 'rights'])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    where, _, page = done.stdout.partition("\n")
    assert (Path(where).parents[1], page) == (installed, (ROOT / "docs" / "reference" / "rights.md").read_text())
