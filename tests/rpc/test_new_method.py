"""A new method is one declaration and one handler; everything else follows.

The test adds both to a copy of the sources, writes the generated files as `./dev docs` does, and then uses the method
in every way there is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECLARATION = '''
    @method("kernel.sched.count_of", scope="operate", execution="read", result="count", command="agents entries")
    def count_of(self, pid: int, state: str = "queued") -> int:
        """Count the entries of an agent in a state."""
        ...
'''
HANDLER = '''
    def count_of(self, pid: int, state: str = "queued") -> int:
        """Count the entries of an agent in a state."""
        return self.list(pid=pid, state=state)[1]
'''
STORY = """
import asyncio, inspect, sys
from rota.errors import Forbidden
from rota.kernel import ScheduleSpec
from rota.rpc import connect, connect_async
from tests.daemon.harness import make_token, serving

async def count_async(address, **options):
    async with connect_async(address, **options) as client:
        return await client.queue.count_of(1), await client.call("kernel.sched.count_of", pid=1)

with serving(sys.argv[1]) as served, served.client() as client:
    client.enqueue_many([ScheduleSpec(client.create_agent("builder", "callable"))] * 2)
    token, weak = make_token(served.path, "operate"), make_token(served.path, "work")

    assert client.queue.count_of(1) == 2
    assert client.queue.count_of(1, state="completed") == 0
    assert list(inspect.signature(client.queue.count_of).parameters) == ["pid", "state"]
    assert asyncio.run(count_async(served.unix)) == (2, 2)

    with connect(served.url, token=token) as over_http:
        assert over_http.queue.count_of(1) == 2
    assert asyncio.run(count_async(served.url, token=token)) == (2, 2)
    with connect(served.url, token=weak) as over_http:
        try:
            over_http.queue.count_of(1)
        except Forbidden as denied:
            assert "needs scope operate" in str(denied)
        else:
            raise AssertionError("the scope is not enforced")

    (found,) = (each for each in client.server.discover()["methods"] if each["name"] == "kernel.sched.count_of")
    assert found["summary"] == "Count the entries of an agent in a state."
    assert [each["name"] for each in found["params"]] == ["pid", "state"]
    assert found["x-scope"] == "operate"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources with a new method."""
    for folder in ("src/rota", "tests/docs", "tests/daemon"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "kept_sessions.py", "postgres_server.py", "short_folders.py", "stores.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    add_to_class(tmp_path / "src/rota/service/api/entries.py", "QueueApi", DECLARATION)
    add_to_class(tmp_path / "src/rota/kernel/queue.py", "Queue", HANDLER)
    return tmp_path


def add_to_class(file: Path, name: str, function: str) -> None:
    """Insert a function after the docstring of a class."""
    start = re.compile(rf'^class {name}\(.*?""".*?"""\n', re.MULTILINE | re.DOTALL)
    text, count = start.subn(lambda found: found[0] + function, file.read_text())
    assert count == 1
    file.write_text(text)


def python(checkout: Path, *words: str) -> str:
    environment = {"PYTHONPATH": f"{checkout / 'src'}:{checkout}", "PATH": "/usr/bin:/bin", "HOME": str(checkout)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_declared_method_is_served_called_documented_and_a_command(checkout: Path) -> None:
    python(checkout, "-m", "tests.docs.write")
    store = str(checkout / "rota.db")
    python(checkout, "-c", STORY, store)

    page = (checkout / "docs/reference/rpc.md").read_text()
    section = page.split("## kernel.sched.count_of\n", 1)[1].split("\n## ", 1)[0]
    assert "Count the entries of an agent in a state. Scope `operate`" in section
    assert '| `state` | `str` | `"queued"` |' in section

    assert python(checkout, "-m", "rota", "agents", "entries", "builder", "--store", store) == "2\n"
    words = ("agents", "entries", "1", "--state", "completed", "--json", "--store", store)
    assert python(checkout, "-m", "rota", *words) == '{"count":0}\n'
    assert "rota agents entries" in (checkout / "docs/reference/cli.md").read_text()
