"""What cannot take effect is refused with one sentence: it neither hangs nor is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.errors import InvalidInput, PolicyDiffers, PolicyInvalid, StoreUnavailable
from rota.model.reasons import PickReason
from rota.model.snapshot import Snapshot
from rota.policy import Policy, assign_slots
from tests.daemon.harness import serving

NAN, INFINITY = float("nan"), float("inf")


def work(ctx: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("slots", [0, -1, "4", True, 1.5, {}, {"gpu": 0}, None])
def test_slots_with_which_nothing_could_run(slots: Any) -> None:
    with Rota() as rota, pytest.raises(InvalidInput, match="slots must be a whole number from 1"):
        rota.run(slots, until_idle=True)


@pytest.mark.parametrize("field", ["weight", "project_weight"])
@pytest.mark.parametrize("weight", ["heavy", 0, -1, NAN, INFINITY, True])
def test_weights_that_are_no_share(field: str, weight: Any) -> None:
    with Rota() as rota:
        settings: Any = {"project": "p", field: weight}
        with pytest.raises(InvalidInput, match=f"{field} must be a number from 0.001 to 1,000,000"):
            rota.agent("a", **settings)(work)
        with pytest.raises(InvalidInput, match="name it with project="):
            rota.agent("b", project_weight=2)(work)


def test_dimensions_that_nothing_charges() -> None:
    with Rota(dimensions=("pages",)) as rota:
        rota.agent("a", budget={"pages": 3, "tokens": 5})(work)
        with pytest.raises(InvalidInput, match=r"budget has no dimension 'tokenz'\. Did you mean 'tokens'"):
            rota.agent("b", budget={"tokenz": 5})(work)
        with pytest.raises(InvalidInput, match="ceiling has no dimension 'page'"):
            rota.agent("b", ceiling={"page": 5})(work)
        with pytest.raises(InvalidInput, match=r"budget has no dimension 'miles'\. Declare it"):
            rota.project("p", budget={"miles": 5})


@pytest.mark.only_on("memory", "file", reason="only a file is in a folder")
def test_a_store_in_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no folder .*missing"):
        Rota(tmp_path / "missing" / "rota.db")


@pytest.mark.parametrize("number", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("door", ["embedded", "daemon"])
def test_numbers_that_json_does_not_have(tmp_path: Path, number: float, door: str) -> None:
    """At a daemon the client refuses them: on the wire they would be null already."""
    with (
        serving(tmp_path / "rota.db", http=False) as served,
        Rota(served.unix if door == "daemon" else ":memory:") as rota,
    ):
        api = rota.api
        agent = rota.agent("a")(work)
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            agent.enqueue(x=[{"deep": number, "none": None}])
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            api.agents.update(agent.pid, metadata={"x": number})
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            api.projects.create("p", metadata={"x": number})
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            api.journal.append(None, "mine", {"x": number})
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            api.journal.remember("mine", {"x": number})
        job = agent.enqueue(x=[{"none": None, "number": 1.5}])
        (entry,) = api.queue.claim(worker_id="w")
        with pytest.raises(InvalidInput, match="is not a number in JSON"):
            api.queue.complete(entry.sched_id, "completed", token=entry.token, result={"x": number})
        api.queue.complete(entry.sched_id, "completed", token=entry.token, result={"x": None})
        assert job.entry().result == {"x": None}


def test_a_run_that_returns_nan_fails_alone() -> None:
    with Rota() as rota:

        @rota.agent(max_attempts=1)
        def wild(ctx: Any) -> float:  # noqa: ARG001  # by its name it gets the context
            return NAN

        calm = rota.agent("calm")(work)
        jobs = wild.enqueue(), calm.enqueue()
        rota.run(until_idle=True)
        wild_entry, calm_entry = (job.entry() for job in jobs)
        assert (wild_entry.exit_kind, wild_entry.outcome) == ("failed", "result_not_json")
        assert "nan is not a number in JSON" in wild_entry.result["error"]
        assert calm_entry.exit_kind == "completed"


# --- a second opinion about the policy -------------------------------------------------------------


def mine() -> Policy:
    def rank(snapshot: Snapshot) -> Any:
        return assign_slots(((each, PickReason("mine", "any")) for each in snapshot.candidates), snapshot.slots)

    return Policy(name="mine", rank=rank, sentence="Any order.")


def test_a_second_opinion_in_python(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with Rota(path, policy="fair_share", share_by="cost") as rota:
        assert rota.api.policies.get().share_by == "cost"
    with pytest.raises(PolicyDiffers, match=r"is fair_share\(min_guarantee=True\), set by Rota"):
        Rota(path, policy="eevdf")
    with pytest.raises(PolicyDiffers, match="shares by cost"):
        Rota(path, share_by="cpu")
    with pytest.raises(PolicyDiffers, match="asks for mine"):
        Rota(path, policy=mine())
    with Rota(path, policy="fair_share", policy_params={"min_guarantee": True}) as rota:
        assert rota.api.policies.get().name == "fair_share"


def test_a_policy_object_is_for_one_program_only(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with Rota(path, policy=mine()) as rota:
        rota.agent("a")(work).enqueue()
        rota.run(until_idle=True)
        claims = [event.payload for event in rota.api.journal.tail() if event.kind == "kernel.sched.claimed"]
        assert [claim["policy"] for claim in claims] == ["mine"]
        assert rota.api.policies.get().set_by is None
    with serving(path, http=False) as served, pytest.raises(PolicyInvalid, match="cannot be sent to a daemon"):
        Rota(served.unix, policy=mine())
