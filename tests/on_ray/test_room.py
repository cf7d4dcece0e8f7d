"""What fits on a cluster: pure arithmetic, without a cluster."""

from __future__ import annotations

from rota.fleet.on_ray.held_usage import HeldUsage
from rota.fleet.on_ray.room import ClusterNode, Room, lack
from rota.model.ray import RaySettings, RayShape, kind_of, shape_of

ONE, TWO, FOUR = RaySettings().shape, RaySettings(resources={"CPU": 2}).shape, RaySettings(resources={"CPU": 4}).shape
GPU = RaySettings(resources={"GPU": 1}).shape


def node(name: str, used: float = 0.0, **total: float) -> ClusterNode:
    free = {resource: amount - (used if resource == "CPU" else 0.0) for resource, amount in total.items()}
    return ClusterNode(f"id-{name}", name, f"10.0.0.{len(name)}", total, free)


def seen(*nodes: ClusterNode) -> Room:
    room = Room()
    room.see(nodes)
    return room


def test_a_kind_names_its_shape() -> None:
    settings = RaySettings(resources={"GPU": 1, "CPU": 0.5}, node="big")
    assert settings.kind == "ray:CPU=0.5,GPU=1@big"
    assert shape_of(settings.kind) == settings.shape
    assert settings.shape.sentence() == "CPU 0.5, GPU 1 on node big"
    assert kind_of(RaySettings(resources={"CPU": 0}).shape) == "ray:"
    assert shape_of("ray:") == RayShape(())
    assert shape_of("gpu") is None
    assert shape_of(None) is None


def test_as_many_are_claimed_as_fit() -> None:
    room = seen(node("a", CPU=4), node("b", CPU=4))
    assert room.claimable([ONE], [], 100) == ([ONE], 8)
    assert room.claimable([ONE], [], 3) == ([ONE], 3)
    for at in ("id-a", "id-a", "id-a", "id-b", "id-b", "id-b"):
        room.take(ONE, at)
    assert room.claimable([ONE], [], 100) == ([ONE], 2)
    assert room.claimable([ONE, FOUR], [], 100) == ([ONE, FOUR], 1)  # one that does not fit is held
    room.give(ONE, "id-a")
    assert room.claimable([ONE], [], 100) == ([ONE], 3)


def test_any_mix_of_what_is_claimed_fits() -> None:
    room = seen(node("a", CPU=8))
    assert room.claimable([ONE, FOUR], [], 100) == ([ONE, FOUR], 2)


def test_a_run_is_placed_on_the_node_that_it_fills_best() -> None:
    room = seen(node("a", CPU=4), node("b", CPU=4), node("g", CPU=1, GPU=1))
    assert room.places([ONE]) == ["id-a"]  # not where the GPUs are
    room.take(ONE, "id-b")
    assert room.places([ONE, FOUR, ONE]) == ["id-b", "id-a", "id-b"]
    assert room.places([GPU, GPU]) == ["id-g", None]


def test_a_run_with_gpus_goes_where_the_fewest_of_them_are_free() -> None:
    room = seen(node("a", CPU=1, GPU=2), node("b", CPU=8, GPU=2))
    room.take(GPU, "id-b")
    assert room.places([GPU, RaySettings(resources={"GPU": 2}).shape]) == ["id-b", "id-a"]


def test_free_cpus_of_two_nodes_are_no_room_for_one_run() -> None:
    room = seen(node("a", CPU=4), node("b", CPU=4))
    for at in ("id-a", "id-b"):
        room.take(TWO, at)
    assert room.places([FOUR]) == [None]
    assert room.claimable([FOUR], [], 100) == ([], 0)  # nothing is free for it, so nothing is decided yet
    assert room.claimable([TWO, FOUR], [FOUR], 100) == ([TWO, FOUR], 1)  # one waits for a; b may have another
    assert room.claimable([TWO, FOUR], [FOUR, FOUR], 100) == ([], 0)


def test_what_is_held_waits_where_it_will_fit_first_and_the_rest_goes_on() -> None:
    room = seen(node("a", CPU=4), node("b", CPU=4))
    for at in ("id-a", "id-a", "id-b"):
        room.take(ONE, at)
    assert room.places([FOUR, ONE, ONE, ONE]) == [None, "id-a", "id-a", None]  # b is for the large one
    assert room.claimable([ONE, FOUR], [FOUR, ONE, ONE], 100) == ([], 0)  # small ones must not pass it for ever
    room.give(ONE, "id-b")
    assert room.places([FOUR, ONE]) == ["id-b", "id-a"]
    room = seen(node("a", CPU=4, GPU=1))
    room.take(GPU, "id-a")
    assert room.places([GPU]) == [None]
    assert room.claimable([ONE, GPU], [GPU], 100) == ([ONE], 2)  # three CPUs are free, one of them for the held run


def test_what_others_use_is_not_ours_and_what_we_use_is_not_theirs() -> None:
    room = seen(node("a", used=3, CPU=4))
    assert room.claimable([ONE], [], 100) == ([ONE], 1)
    assert not room.keeps_waiting(ONE, "id-a")  # Ray has a CPU for it
    for _ in range(3):
        room.see([node("a", used=4, CPU=4)])
    assert room.keeps_waiting(ONE, "id-a")
    room = seen(node("a", CPU=4))
    room.take(ONE, "id-a")
    room.see([node("a", used=1, CPU=4)])
    assert not room.keeps_waiting(ONE, "id-a")  # it is starting
    assert room.claimable([ONE], [], 100) == ([ONE], 3)


def test_a_run_that_no_node_can_have_waits_for_others() -> None:
    room = seen(node("a", used=2, CPU=4), node("b", used=2, CPU=4))
    assert room.is_kept_by_others(FOUR)
    assert not room.is_kept_by_others(ONE)
    room.take(FOUR, "id-a")
    assert room.keeps_waiting(FOUR, "id-a")
    room.see([node("a", used=4, CPU=4), node("b", CPU=4)])
    assert not room.keeps_waiting(FOUR, "id-a")
    assert not room.is_kept_by_others(FOUR)
    assert not room.keeps_waiting(FOUR, "id-gone")


def test_a_report_that_lags_behind_counts_nobody_twice() -> None:
    room = seen(node("a", CPU=4))
    room.see([node("a", used=2, CPU=4)])  # of our two runs, which have just ended
    assert room.claimable([ONE], [], 100) == ([ONE], 4)


def test_what_is_missing_is_named() -> None:
    nodes = [node("a", CPU=4), node("bb", CPU=2, left=1)]
    assert lack(ONE, nodes) is None
    assert lack(FOUR, nodes) is None
    assert lack(RayShape((("CPU", 4.0),), "bb"), nodes) == (
        "resource_missing",
        "it needs CPU 4, and no node of the cluster has more than 2",
    )
    assert lack(RayShape((("CPU", 4.0), ("left", 1.0))), nodes) == (
        "resource_missing",
        "no node of the cluster has CPU 4, left 1 together",
    )
    assert lack(RayShape((("cpu", 1.0),)), nodes) == (
        "resource_missing",
        "no node of the cluster has the resource cpu; it has CPU 6, left 1; did you mean CPU?",
    )
    assert lack(RayShape((), "third"), nodes) == ("node_missing", "the cluster has no node 'third'; its nodes: a, bb")
    assert lack(RayShape((), "10.0.0.2"), nodes) is None
    assert lack(RayShape((), "id-a"), nodes) is None


def test_without_a_cluster_nothing_fits() -> None:
    assert Room().places([ONE]) == [None]
    room = seen(node("a", CPU=4))
    room.forget()
    assert room.places([ONE]) == [None]
    assert room.claimable([ONE], [], 100) == ([], 0)


def test_a_run_that_needs_nothing_always_fits() -> None:
    room = seen(node("a", used=4, CPU=4))
    nothing = RayShape(())
    assert room.places([nothing]) == ["id-a"]
    assert room.claimable([nothing], [], 7) == ([nothing], 7)


def test_shapes_of_different_nodes_are_claimed_one_by_one() -> None:
    on_a, on_b = RayShape((("CPU", 1.0),), "a"), RayShape((("CPU", 1.0),), "b")
    room = seen(node("a", CPU=4), node("b", CPU=4))
    assert room.claimable([on_a], [], 100) == ([on_a], 4)
    assert room.claimable([on_a, on_b], [], 100) == ([on_a, on_b], 1)
    assert room.claimable([on_a, ONE], [], 100) == ([on_a, ONE], 4)


def test_seconds_that_are_held_are_carried_from_run_to_run() -> None:
    usage = HeldUsage()
    runs = [usage.of(1, FOUR, 350) for _ in range(10)]  # 1.4 CPU seconds each
    assert sum(each["cpu_s"] for each in runs) == 14
    assert {each["wall_s"] for each in runs} == {1}  # at least one
    assert usage.of(2, GPU, 2_000) == {"wall_s": 2, "cpu_s": 2, "gpu_s": 2}
