"""The policy service of a simulation: admission for all, profiles after a delay, outages on request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rota.cores.events import Decision, PostTimeout
from rota.model.events import EventData
from rota.service.admission import UNLIMITED_PPM, Admission, OwnerLimit
from rota.service.policy_link import PolicyLink, answer_from_profiles
from rota.service.profiles import Hint
from rota.sim.simulation import Simulation

__all__ = ["SimulatedService"]


class SimulatedService:
    """Admits what a scenario asks for and answers hints, as the service of a real host does.

    The scenario is the operator's: its owners may reserve and lease whatever the engine can keep.
    """

    def __init__(self, simulation: Simulation, answer_ns: int) -> None:
        self._simulation = simulation
        self._answer_ns = answer_ns
        self._is_answering = False
        engine = simulation.engine
        cores = engine.core_count
        whole = OwnerLimit(reserved_ppm=UNLIMITED_PPM, criticality="critical", leased_cores=cores)
        self.admission = Admission(engine, _discard, default=whole)
        self._link = PolicyLink(engine, self.admission, _discard)
        simulation.on_decision = self._on_decision
        simulation.on_end = self._on_end

    def entity_created(self, entity: int, subject: str, hint: Hint) -> None:
        """Ask for the profile of a thread."""
        self._link.entity_created(entity, subject, hint, self._simulation.now)
        self._answer_later()

    def lose(self) -> Sequence[Decision]:
        """The service is lost."""
        return self._link.connection_lost("the scenario says so", self._simulation.now)

    def restore(self) -> Sequence[Decision]:
        """The service is back, if it was lost."""
        if self._link.diagnostics().trusted:
            return ()
        decisions = self._link.restore(self._simulation.now)
        self._answer_later()
        return decisions

    def _answer_later(self) -> None:
        if self._link.outbox and not self._is_answering:
            self._is_answering = True
            self._simulation.schedule(self._simulation.now + self._answer_ns, self._answer)

    def _answer(self) -> Sequence[Decision]:
        """Answer a batch of requests; the next one is answered later."""
        self._is_answering = False
        out: list[Decision] = []
        for _ in range(len(self._link.outbox)):
            response = answer_from_profiles(self._link.profiles, self._link.outbox.popleft())
            out += self._link.receive(msgspec.json.encode(response), self._simulation.now)
        self._answer_later()
        return out

    def _on_decision(self, decision: Decision) -> None:
        self.admission.apply_decisions((decision,))
        if isinstance(decision, PostTimeout):
            self._link.context_depleted(decision.entity, self._simulation.now)
            self._answer_later()

    def _on_end(self, entity: int) -> None:
        self._simulation.apply(self._link.entity_ended(entity, self._simulation.now))


def _discard(_fact: EventData) -> None:
    """A simulation has no journal."""
