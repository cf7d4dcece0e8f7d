"""`./dev docs --site` and `--serve`: the pages of docs/ as a static site, built with zensical (docs/decisions/0050).

The pages stay plain Markdown that reads well in the repository. The site is built from a copy of them, in which links
that leave docs/ lead to copies: `../examples/fleet.toml` becomes a page that shows this file.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".cache" / "site"
PORT = 8418
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".md": ""}
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def build(into: Path = SITE) -> Path:
    """Build the site from the pages as they are now, and return its folder."""
    shutil.rmtree(into, ignore_errors=True)
    pages = into / "pages"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("zensical.toml"))
    todo = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    done: set[Path] = set()
    while todo:
        page = todo.pop()
        if page in done:
            continue
        done.add(page)
        place = into / "pages" / _place(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        text, others = _moved(page)
        place.write_text(text)
        todo += others
    mermaid = _mermaid()
    if mermaid:
        shutil.copytree(mermaid, pages / "site" / "mermaid")
    shutil.copy(ROOT / "docs" / "site" / "zensical.toml", into)
    _zensical(into)
    return into / "html"


class SiteBroken(Exception):
    """The tool found problems in the pages, such as a link that leads nowhere."""


def _zensical(folder: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr)  # it colours each letter
        raise SiteBroken(said.split("Traceback (most recent call last)")[0])


def _mermaid() -> Path | None:
    """Return the folder of mermaid's modules: nicegui, which draws the dashboard, has a copy."""
    found = importlib.util.find_spec("nicegui")
    folder = Path(found.origin).parent / "elements" / "mermaid" / "dist" if found and found.origin else None
    return folder if folder and folder.exists() else None


def _place(source: Path) -> PurePosixPath:
    """Return where a file of the repository is in the site: pages of docs/ at the top, others below project/."""
    path = PurePosixPath(source.relative_to(ROOT).as_posix())
    if path.parts[0] == "docs":
        inside = path.relative_to("docs")
        return inside / "README.md" if source.is_dir() else inside
    return PurePosixPath("project") / (path if path.suffix == ".md" else f"{path}.md")


def _moved(source: Path) -> tuple[str, list[Path]]:
    """Return a file as a page of the site, and the files that it links to and that are no pages of docs/."""
    if source.is_dir():
        return _listing(source), []
    text = source.read_text()
    if source.suffix != ".md":
        return f"# {source.relative_to(ROOT)}\n\n```{LANGUAGES.get(source.suffix, '')}\n{text}\n```\n", []
    others: list[Path] = []
    here = _place(source).parent

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if "://" in link[2] or not target.is_relative_to(ROOT) or not target.exists():
            return link[0]
        inside = target.is_relative_to(ROOT / "docs")
        if not inside or target.is_dir():
            others.append(target)
        elif target.suffix != ".md":
            return link[0]
        return f"{link[1]}{os.path.relpath(_place(target), here)}{link[3]}"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts), others


def _listing(folder: Path) -> str:
    names = sorted(each.name for each in folder.iterdir())
    return f"# {folder.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def _sources() -> Iterator[Path]:
    yield from (each for each in (ROOT / "docs").rglob("*") if each.is_file())
    yield from (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")


def serve(port: int = PORT) -> None:
    """Serve the site to this machine until Ctrl-C; a request after a page was changed builds the site again."""
    folder, one_at_a_time = build(), threading.Lock()

    class Pages(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            with one_at_a_time:
                changed = max(each.stat().st_mtime for each in _sources())
                if self.path.endswith((".html", "/")) and changed > (folder / "index.html").stat().st_mtime:
                    build()
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing about single requests."""

    with ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Pages, directory=str(folder))) as server:
        print(f"http://127.0.0.1:{port}/index.html (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--site", action="store_true", help="build the site into .cache/site/html")
    what.add_argument("--serve", nargs="?", type=int, const=PORT, metavar="PORT", help="build it and serve it")
    arguments = parser.parse_args()
    try:
        if arguments.site:
            print(build() / "index.html")
        else:
            serve(arguments.serve)
    except SiteBroken as broken:
        raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
