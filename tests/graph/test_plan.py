"""Compiling: regions are the cycles of the immediate edges, and the order is deterministic."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.graph.compiler import check, compile_graph
from rota.graph.document import InputLimits
from rota.graph.loader import load_mapping
from rota.graph.plan import Plan
from rota.graph.plan_reports import plan_to_dict
from rota.graph.regions import strongly_connected
from tests.graph.drafts import BARE, FULL, draft


def compiled(*arguments: Any, **options: Any) -> Plan:
    return compile_graph(load_mapping(draft(*arguments, **options)), platform=BARE)


def prioritised(**classes: str) -> list[dict[str, Any]]:
    return [{"id": name, "execution": {"priority": priority}} for name, priority in classes.items()]


# --- examples ------------------------------------------------------------------------------------


def test_a_loop_waits_for_the_sensor_and_a_delayed_actuator_has_no_predecessors() -> None:
    plan = compiled(
        ["sensor", "estimator", "controller", "actuator"],
        [
            "sensor.out -> estimator.measurement",
            "estimator.state -> controller.state",
            "controller.correction -> estimator.correction",
            "controller.command ~> actuator.command",
        ],
        loops={"estimator_controller_loop": ["estimator", "controller"]},
    )
    assert plan.region_order == ("sensor", "actuator", "estimator_controller_loop")
    assert list(plan.regions) == ["estimator_controller_loop", "sensor", "actuator"]
    loop = plan.regions["estimator_controller_loop"]
    assert (loop.kind, loop.components) == ("composite_loop", ("controller", "estimator"))
    assert (loop.incoming_regions, loop.outgoing_regions) == (("sensor",), ())
    assert plan.component_region["controller"] == "estimator_controller_loop"


def test_a_diamond_runs_from_its_source_to_its_sink() -> None:
    edges = ["source.l -> left.in", "source.r -> right.in", "left.out -> sink.l", "right.out -> sink.r"]
    plan = compiled(["source", "left", "right", "sink"], edges)
    assert plan.region_order == ("source", "left", "right", "sink")
    assert list(plan.regions) == ["sink", "left", "right", "source"]  # in the order in which groups are complete


def test_two_cycles_that_share_a_component_are_one_region() -> None:
    edges = ["a.o -> b.a", "b.o -> a.b", "b.p -> c.b", "c.o -> b.c", "c.p -> d.in"]
    plan = compiled(["a", "b", "c", "d"], edges, loops={"abc_loop": ["a", "b", "c"]})
    assert plan.region_order == ("abc_loop", "d")


def test_the_highest_priority_of_the_ready_regions_goes_first() -> None:
    plan = compiled(prioritised(slow="background", usual="normal", quick="high", idle="low"))
    assert plan.region_order == ("quick", "usual", "idle", "slow")


def test_equal_priorities_keep_the_order_in_which_they_became_ready() -> None:
    plan = compiled(prioritised(c="normal", a="normal", b="normal"))
    assert plan.region_order == ("c", "a", "b")


def test_a_region_that_becomes_ready_later_overtakes_those_of_a_lower_class() -> None:
    parts = prioritised(fetch="normal", parse="normal", store="normal", report="low", alarm="high")
    edges = ["fetch.o -> parse.in", "parse.o -> store.in", "fetch.p -> report.in"]
    assert compiled(parts, edges).region_order == ("alarm", "fetch", "parse", "store", "report")


def test_priority_never_goes_before_a_dependency() -> None:
    parts = prioritised(source="background", urgent="high")
    assert compiled(parts, ["source.out -> urgent.in"]).region_order == ("source", "urgent")


def test_a_loop_is_as_urgent_as_its_most_urgent_member() -> None:
    parts = prioritised(other="normal", a="background", b="high")
    plan = compiled(parts, ["a.o -> b.in", "b.o -> a.in"], loops={"ab": ["a", "b"]})
    assert plan.region_order == ("ab", "other")
    assert plan.regions["ab"].rank == 3


def test_regions_made_ready_together_are_taken_in_the_order_of_their_ids() -> None:
    edges = ["source.a -> zebra.in", "source.b -> ant.in"]
    assert compiled(["source", "zebra", "ant"], edges).region_order == ("source", "ant", "zebra")


def test_components_start_after_their_dependencies_in_fifo_order() -> None:
    parts = [{"id": "late", "depends_on": ["base"]}, "free", "base", {"id": "last", "depends_on": ["late", "free"]}]
    assert compiled(parts).lifecycle_order == ("free", "base", "late", "last")


# --- lanes ---------------------------------------------------------------------------------------

LANES = {
    "main": {"type": "event_loop"},
    "own": {"type": "isolated_thread", "hz": 50},
    "hand": {"type": "manual_step"},
}


def test_an_independent_lane_is_outside_the_epoch_and_has_its_own_order() -> None:
    parts: list[Any] = ["a", {"id": "w1", "lane": "own"}, {"id": "w2", "lane": "own"}, {"id": "h", "lane": "hand"}]
    edges = ["a.out ~> w1.in", "w1.out -> w2.in", "w2.out ~> a.back"]
    plan = compiled(parts, edges, lanes=LANES, version=2)
    assert plan.region_order == ("a",)
    assert [(each.lane, each.region_order) for each in plan.independent] == [("own", ("w1", "w2")), ("hand", ("h",))]


@pytest.mark.parametrize(
    ("lane", "workers"),
    [
        ({"type": "event_loop"}, 0),
        ({"type": "fixed_rate", "hz": 10}, 0),
        ({"type": "thread_pool"}, 1),
        ({"type": "thread_pool", "max_threads": 4}, 4),
        ({"type": "process_pool", "max_threads": 3}, 3),
        ({"type": "isolated_thread"}, 1),
        ({"type": "manual_step"}, 0),
        ({"type": "queue"}, 0),
    ],
)
def test_zero_or_omitted_threads_mean_one_worker_where_there_are_workers(lane: dict[str, Any], workers: int) -> None:
    assert compiled(["a"], lanes={"main": lane}, version=2).lanes["main"].workers == workers


def test_a_tick_may_take_its_period_unless_a_budget_is_given() -> None:
    lanes = {
        "main": {"type": "fixed_rate", "hz": 100},
        "own": {"type": "fixed_rate", "period_ms": 20, "tick_budget_ms": 5},
    }
    plan = compiled(["a", {"id": "b", "lane": "own"}], lanes=lanes)
    assert (plan.lanes["main"].period_ns, plan.lanes["main"].tick_budget_ns) == (10_000_000, 10_000_000)
    assert (plan.lanes["own"].period_ns, plan.lanes["own"].tick_budget_ns) == (20_000_000, 5_000_000)


@pytest.mark.parametrize(
    ("version", "given", "epochs"),
    [(1, {}, 0), (2, {}, 8), (2, {"starvation_epochs": 3}, 3), (2, {"starvation_epochs": 0}, 0)],
)
def test_aging_is_8_epochs_in_version_2_and_off_in_version_1(version: int, given: dict[str, int], epochs: int) -> None:
    plan = compiled(["a"], lanes={"main": {"type": "thread_pool", **given}}, version=version)
    assert plan.lanes["main"].starvation_epochs == epochs


def test_a_lane_knows_its_components_in_the_order_of_the_file() -> None:
    plan = compiled(["z", {"id": "m", "lane": "own"}, "a"], lanes=LANES, version=2)
    assert plan.lanes["main"].components == ("z", "a")


# --- the JSON output -----------------------------------------------------------------------------


def test_the_plan_as_json_has_every_field() -> None:
    parts = [{"id": "a", "boundary": {"role": "input", "descriptor": "stdin"}}, "b", "c"]
    edges = ["a.out -> b.in", "b.out -> c.in", "c.out -> b.back"]
    lanes = {"main": {"type": "thread_pool", "max_threads": 2, "priority": "high"}}
    shape = plan_to_dict(compiled(parts, edges, lanes=lanes, loops={"bc": ["b", "c"]}))
    assert list(shape) == [
        "graph",
        "kind",
        "schema_version",
        "scheduler_contract_version",
        "components",
        "edges",
        "compiled_regions",
        "component_region",
        "region_order",
        "independent_lanes",
        "lifecycle_order",
        "lane_capabilities",
        "hierarchy",
    ]
    assert (shape["scheduler_contract_version"], shape["schema_version"]) == ("0.2", 1)
    assert shape["components"][0] == {
        "id": "a",
        "type": "test.Part",
        "lane": "main",
        "boundary_role": "input",
        "boundary_descriptor": "stdin",
    }
    assert shape["edges"][0] == {
        "id": "e0",
        "kind": "immediate",
        "from": "a.out",
        "to": "b.in",
        "mode": "latest",
        "capacity": 1,
        "overflow": "overwrite",
        "copy_policy": "copy",
        "readers": "single",
        "max_inflight": 0,
        "slow_reader_drop_risk": False,
    }
    assert shape["compiled_regions"][0]["loop_policy"]["type"] == "fixed_point"
    assert shape["compiled_regions"][1] == {
        "id": "a",
        "kind": "component",
        "components": ["a"],
        "incoming_regions": [],
        "outgoing_regions": ["bc"],
        "loop_policy": None,
    }
    assert shape["component_region"] == {"a": "a", "b": "bc", "c": "bc"}
    assert shape["hierarchy"] == []


def test_lane_capabilities_list_what_this_platform_enforces() -> None:
    lanes = {
        "main": {"type": "thread_pool", "max_threads": 2, "priority": "high", "nice_priority": -5, "thread_name": "w"}
    }
    spec = load_mapping(draft(["a"], lanes=lanes, version=2))
    bare, full = (plan_to_dict(compile_graph(spec, platform=each))["lane_capabilities"][0] for each in (BARE, FULL))
    assert bare["ignored_fields"] == ("priority", "thread_name", "nice_priority")
    assert bare["applied_fields"] == ()
    assert full["ignored_fields"] == ("priority",)
    assert full["applied_fields"] == ("thread_name", "nice_priority")
    for shape in (bare, full):
        assert (shape["id"], shape["type"], shape["max_threads"]) == ("main", "thread_pool", 2)
        assert (shape["queue_capacity"], shape["overflow"]) == (0, "reject")
        assert shape["unsupported_claims"] == ("hard_preemption", "hard_real_time", "implicit_os_scheduler_tuning")
        assert {"persistent_worker_lifecycle", "bounded_priority_queue", "worker_id_trace", "priority_queue"} <= set(
            shape["implemented"]
        )


def test_a_fixed_rate_lane_prints_its_period() -> None:
    lanes = {"main": {"type": "fixed_rate", "hz": 50, "wall_clock_enabled": True, "overrun_policy": "skip_next"}}
    (lane,) = plan_to_dict(compiled(["a"], lanes=lanes))["lane_capabilities"]
    assert (lane["overrun_policy"], lane["period_ms"], lane["wall_clock_enabled"]) == ("skip_next", 20.0, True)
    assert "opt_in_wall_clock_cadence" in lane["implemented"]


# --- laws ----------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Graphs in which every cycle has a loop: an edge that would close another cycle is a delay edge."""
    count = draw(st.integers(1, 12))
    names = draw(st.permutations([f"c{n}" for n in range(count)]))
    classes = st.sampled_from(["high", "normal", "low", "background"])
    parts = [{"id": name, "execution": {"priority": draw(classes)}} for name in names]
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2 * count))
    place = {name: at for at, name in enumerate(sorted(names))}
    edges = []
    for number, (left, right) in enumerate(pairs):
        source, target = names[left], names[right]
        forward = place[source] < place[target]
        edges.append(
            {
                "id": f"w{number}",
                "kind": "immediate" if forward else "delay",
                "from": f"{source}.o{number}",
                "to": f"{target}.i{number}",
            }
        )
    return draft(parts, edges)


@given(graphs())
def test_the_same_input_gives_the_same_plan_byte_for_byte(document: dict[str, Any]) -> None:
    first, second = (
        msgspec.json.encode(plan_to_dict(compile_graph(load_mapping(document), platform=BARE))) for _ in range(2)
    )
    assert first == second


@given(graphs())
def test_every_region_comes_once_and_after_its_predecessors(document: dict[str, Any]) -> None:
    plan = compile_graph(load_mapping(document), platform=BARE)
    assert sorted(plan.region_order) == sorted(plan.regions)
    at = {name: place for place, name in enumerate(plan.region_order)}
    for region in plan.regions.values():
        assert all(at[before] < at[region.id] for before in region.incoming_regions)


@given(graphs())
def test_no_region_is_passed_over_for_one_of_a_lower_class_that_was_ready(document: dict[str, Any]) -> None:
    """Whenever a region is taken, no other region whose predecessors are all done has a higher class."""
    plan = compile_graph(load_mapping(document), platform=BARE)
    done: set[str] = set()
    for name in plan.region_order:
        ready = [each for each in plan.regions.values() if each.id not in done and set(each.incoming_regions) <= done]
        assert plan.regions[name].rank == max(each.rank for each in ready)
        done.add(name)


@given(graphs(), st.randoms(use_true_random=False))
def test_regions_and_their_predecessors_do_not_depend_on_the_order_of_the_file(
    document: dict[str, Any], rng: random.Random
) -> None:
    shuffled = {**document, "components": list(document["components"]), "edges": list(document["edges"])}
    rng.shuffle(shuffled["components"])
    rng.shuffle(shuffled["edges"])
    one, other = (compile_graph(load_mapping(each), platform=BARE) for each in (document, shuffled))
    assert one.component_region == other.component_region
    assert dict(one.regions) == dict(other.regions)


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_the_edges_does_not_change_the_diagnostics(document: dict[str, Any], rng: random.Random) -> None:
    """Edges in another order are the same graph: the same diagnostics, but equal ones may be in another order."""
    shuffled = {**document, "edges": list(document["edges"])}
    rng.shuffle(shuffled["edges"])
    said = [check(load_mapping(each), platform=BARE).diagnostics for each in (document, shuffled)]
    assert sorted(map(str, said[0])) == sorted(map(str, said[1]))


def reachable(successors: list[list[int]]) -> list[set[int]]:
    """Return all nodes that can be reached from each node, by the simplest algorithm."""
    reached = [{node, *after} for node, after in enumerate(successors)]
    for _ in successors:
        for node in range(len(successors)):
            reached[node] |= {further for each in reached[node] for further in reached[each]}
    return reached


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=4), min_size=n, max_size=n))
)
def test_strongly_connected_groups_are_those_that_reach_each_other(successors: list[list[int]]) -> None:
    reach = reachable(successors)
    groups = strongly_connected(successors)
    assert sorted(node for group in groups for node in group) == list(range(len(successors)))
    for group in groups:
        assert group == [node for node in range(len(successors)) if node in reach[group[0]] and group[0] in reach[node]]


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=4), min_size=n, max_size=n))
)
def test_a_group_is_complete_only_after_everything_reachable_from_it(successors: list[list[int]]) -> None:
    complete: set[int] = set()
    for group in strongly_connected(successors):
        complete |= set(group)
        assert all(after in complete for node in group for after in successors[node])


@given(
    st.integers(1, 7).flatmap(lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=3), min_size=n, max_size=n))
)
def test_a_graph_compiles_if_and_only_if_each_cycle_has_a_loop(successors: list[list[int]]) -> None:
    names = [f"c{node}" for node in range(len(successors))]
    edges = [
        f"{names[node]}.o{at} -> {names[after]}.i{node}_{at}"
        for node in range(len(names))
        for at, after in enumerate(successors[node])
    ]
    circles = [group for group in strongly_connected(successors) if len(group) > 1 or group[0] in successors[group[0]]]
    loops = {f"loop{at}": [names[node] for node in group] for at, group in enumerate(circles)}
    plan = compiled(names, edges, loops=loops)
    assert {name for name, region in plan.regions.items() if region.kind == "composite_loop"} == set(loops)
    for name in loops:
        fewer = {each: members for each, members in loops.items() if each != name}
        refused = check(load_mapping(draft(names, edges, loops=fewer)), platform=BARE)
        assert [each.code for each in refused.errors] == ["immediate_cycle_without_loop"]


def test_a_chain_longer_than_the_recursion_limit_compiles() -> None:
    length = 50_000
    chain = [[node + 1] for node in range(length - 1)] + [[0]]
    assert strongly_connected(chain) == [list(range(length))]
    chain[-1] = []
    assert strongly_connected(chain) == [[node] for node in reversed(range(length))]


def test_the_largest_graph_compiles() -> None:
    names = [f"c{n}" for n in range(4096)]
    edges = [f"{left}.out -> {right}.in" for left, right in pairwise(names)]
    edges += [f"{left}.far -> {right}.far" for left, right in zip(names, names[2:], strict=False)]

    spec = load_mapping(draft(names, edges), limits=InputLimits(graph_input_bytes=8 * 1024 * 1024))
    assert compile_graph(spec, platform=BARE).region_order == tuple(names)
