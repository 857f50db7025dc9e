"""Associates devices with verifiers: which of several serves each session.

`pace` is the product's choice (`edge_client.core.verifier_choice`), for one device after the other, each of
which knows the turns that it would cause beside the sessions before it. `matching` solves the association
problem of UARA (Koh & Yang, arXiv 2511.01695) by two phases of matching, with full knowledge of all devices.
Their bandwidths and computing shares, which they learn by reinforcement, are not allotted here: a verifier
serves its sessions in common steps.
"""

from __future__ import annotations

from edge_client.core.verifier_choice import DraftSkill, VerifierCandidate, choose, token_time
from simulator.world import VerifierSpec, World

ROWS = 4
"""Rows of a session in a target step, as `forerun` has in the worlds of docs/simulation.md (2 to 6)."""

LEAST_GAIN = 1e-9
"""Seconds by which an exchange must shorten all tokens, so that rounding never goes in circles."""


def by_pace(world: World, rtts: list[list[float]]) -> list[int]:
    """Choose for one device after the other as the product does. An `Associate`."""
    return _Crowd(world, rtts).by_pace()


def by_matching(world: World, rtts: list[list[float]]) -> list[int]:
    """Match devices and verifiers by deferred acceptance, then exchange devices. An `Associate`."""
    return _Crowd(world, rtts).by_matching()


class _Crowd:
    """The devices of a world with several verifiers."""

    def __init__(self, world: World, rtts: list[list[float]]) -> None:
        self._rtts = rtts  # [device][verifier], seconds
        self._skill = DraftSkill(world.draft.mean, world.device.draft_step_time(1))
        sites = [site.verifier for site in world.sites]
        self._verifiers = range(len(sites))
        # [verifier][sessions there], seconds
        self._turns = [[turn(verifier, count) for count in range(len(rtts) + 1)] for verifier in sites]
        self._times: dict[tuple[int, int, int], float] = {}

    def by_pace(self) -> list[int]:
        """Choose for each device as the product does; the turns are those with one session more."""
        counts, served = [0 for _ in self._verifiers], list[int]()
        for device, rtts in enumerate(self._rtts):
            candidates = [
                VerifierCandidate(str(place), rtt=rtt, turn=self._turns[place][counts[place] + 1])
                for place, rtt in enumerate(rtts)
            ]
            chosen = choose(str(device), candidates, (), self._skill)
            assert chosen is not None, "all are ready"
            served.append(int(chosen.name))
            counts[served[-1]] += 1
        return served

    def by_matching(self) -> list[int]:
        """Match devices and verifiers by deferred acceptance, then exchange devices while all gain."""
        return self._exchanged(self._accepted())

    def _accepted(self) -> list[int]:
        """Return the stable matching that devices propose (Gale & Shapley 1962). A verifier has as many
        places as make all turns about equal, and prefers devices that would be fast there."""
        places = [0 for _ in self._verifiers]
        for _ in self._rtts:
            places[min(self._verifiers, key=lambda each: self._turns[each][places[each] + 1])] += 1
        wishes = [
            sorted(self._verifiers, key=lambda each: self._time(device, each, places[each]), reverse=True)
            for device in range(len(self._rtts))
        ]
        held: list[list[int]] = [[] for _ in self._verifiers]
        free = list(range(len(self._rtts)))[::-1]
        while free:
            device = free.pop()
            verifier = wishes[device].pop()  # its best that has not refused it
            held[verifier].append(device)
            if len(held[verifier]) > places[verifier]:
                slowest = max(held[verifier], key=lambda each: self._time(each, verifier, places[verifier]))
                held[verifier].remove(slowest)
                free.append(slowest)
        return [next(at for at in self._verifiers if device in held[at]) for device in range(len(self._rtts))]

    def _exchanged(self, served: list[int]) -> list[int]:
        """Move a device, or swap two, while that shortens the sum of all times per token."""
        devices = range(len(served))
        best, improved = self._total(served), True
        while improved:
            improved = False
            moves = [{device: at} for device in devices for at in self._verifiers if at != served[device]]
            swaps = [
                {one: served[other], other: served[one]}
                for one in devices
                for other in range(one)
                if served[one] != served[other]
            ]
            for change in (*moves, *swaps):
                changed = [change.get(device, at) for device, at in enumerate(served)]
                total = self._total(changed)
                if total < best - LEAST_GAIN:
                    served, best, improved = changed, total, True
                    break
        return served

    def _total(self, served: list[int]) -> float:
        counts = [served.count(place) for place in self._verifiers]
        return sum(self._time(device, at, counts[at]) for device, at in enumerate(served))

    def _time(self, device: int, verifier: int, count: int) -> float:
        """Return the seconds per token of the device if `count` sessions are at the verifier."""
        key = device, verifier, count
        if key not in self._times:
            rtt, wait = self._rtts[device][verifier], self._turns[verifier][count]
            self._times[key] = token_time(rtt, wait, self._skill)
        return self._times[key]


def turn(verifier: VerifierSpec, count: int) -> float:
    """Return the seconds of a turn with `count` sessions, in as many steps as their rows need."""
    rows = max(1, ROWS * count)
    steps = -(-rows // verifier.max_rows)
    return steps * verifier.time(-(-rows // steps), 0)
