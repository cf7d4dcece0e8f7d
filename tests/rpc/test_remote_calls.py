"""What happens to a call when an attempt fails, decided without I/O and without a clock."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import RotaError, StoreUnavailable
from rota.kernel import ScheduleSpec
from rota.rpc.client.remote_calls import BACKOFF_S, LATE_RETRY_S, ConnectionLost, RemoteCall, RemoteCalls
from rota.rpc.methods import METHODS

UNSENT = ConnectionLost("connection refused", sent=False)
SENT = ConnectionLost("", sent=True)


def request(name: str, *args: Any, retry_s: float = 30.0, keys: bool = True, **kwargs: Any) -> RemoteCall:
    requests = RemoteCalls("unix:/run/rota", timeout_s=5.0, retry_s=retry_s, keys=keys)
    return requests.make(METHODS[name], METHODS[name].bind(*args, **kwargs), 100.0)


def test_the_pauses_grow_until_the_time_is_up() -> None:
    call = request("kernel.sched.complete", 1, "completed", retry_s=3.0)
    pauses = [call.pause_after(UNSENT, 100.0) for _ in range(8)]
    assert pauses == [*BACKOFF_S, BACKOFF_S[-1], BACKOFF_S[-1]]
    assert call.pause_after(UNSENT, 102.0) == 1.0
    with pytest.raises(StoreUnavailable, match="unix:/run/rota cannot be reached: connection refused"):
        call.pause_after(UNSENT, 102.1)


def test_the_calls_of_one_outage_are_not_each_retried_for_the_whole_time() -> None:
    calls = RemoteCalls("unix:/run/rota", timeout_s=5.0, retry_s=30.0, keys=True)

    def begin(now: float) -> RemoteCall:
        return calls.make(METHODS["kernel.sched.get"], METHODS["kernel.sched.get"].bind(1), now)

    begin(100.0).pause_after(UNSENT, 100.0)
    late, later = begin(125.0), begin(131.0)
    late.pause_after(UNSENT, 129.9)
    with pytest.raises(StoreUnavailable):
        late.pause_after(UNSENT, 130.0)
    later.pause_after(UNSENT, 131.0 + LATE_RETRY_S / 2)
    with pytest.raises(StoreUnavailable):
        later.pause_after(UNSENT, 131.0 + LATE_RETRY_S)
    another_outage = begin(180.0)  # no call has failed for so long
    another_outage.pause_after(UNSENT, 180.0)
    another_outage.pause_after(UNSENT, 205.0)
    with pytest.raises(RotaError):  # a response, whatever it says
        begin(206.0).result_of(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32132,"message":"SchedUnknownId: no entry"}}')
    begin(230.0).pause_after(UNSENT, 230.0)
    begin(230.0).pause_after(UNSENT, 255.0)


def test_a_sent_call_is_retried_only_if_that_is_safe() -> None:
    with pytest.raises(StoreUnavailable, match=r"kernel.sched.complete was lost \(timed out\): it may have been"):
        request("kernel.sched.complete", 1, "completed").pause_after(SENT, 100.0)
    assert request("kernel.sched.get", 1).pause_after(SENT, 100.0) == BACKOFF_S[0]
    assert request("kernel.sched.enqueue", ScheduleSpec(1)).pause_after(SENT, 100.0) == BACKOFF_S[0]
    with pytest.raises(StoreUnavailable, match="may have been executed"):
        request("kernel.sched.enqueue", ScheduleSpec(1), keys=False).pause_after(SENT, 100.0)


def test_a_call_that_waits_has_longer_for_its_response() -> None:
    assert request("kernel.sched.get", 1).timeout_s == 5.0
    assert request("kernel.sched.claim", "worker", wait_s=20.0).timeout_s == 25.0
    assert request("kernel.sched.claim", "worker", wait_s=-1.0).timeout_s == 5.0


def test_arguments_that_the_function_does_not_take_are_rejected_before_the_call() -> None:
    for args in ((), (1, 2)):
        with pytest.raises(TypeError):
            request("kernel.sched.get", *args)
    with pytest.raises(TypeError):
        request("kernel.sched.get", 1, more=1)
    with pytest.raises(TypeError):
        request("kernel.sched.change", 1, 5)  # priority is keyword-only
    with pytest.raises(TypeError):
        request("kernel.sched.enqueue")
