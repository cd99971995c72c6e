"""The time of collective operations between the GPUs of a group."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.calc.parallel_layout import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationGroup:
    """Ranks that communicate. Neighbours are `stride` ranks apart."""

    size: int
    stride: int
    cluster: Cluster
    link: float
    """Share of the peak that fast links reach."""
    network: float
    """Share of the peak that the network reaches."""
    hop_us: float
    """Microseconds from one domain to the next."""

    @property
    def neighbours(self) -> int:
        """Ranks of the group in one domain of fast links."""
        return max(1, min(self.size, self.cluster.domain // self.stride))

    @property
    def link_bytes_s(self) -> float:
        return 1e9 * self.cluster.gpu.link_gb_s * self.link

    @property
    def network_bytes_s(self) -> float:
        """Of one GPU."""
        return 1e9 * self.cluster.network_gb_s / self.cluster.gpus_per_node * self.network

    def ring_s(self, total_bytes: float, operations: float = 1) -> float:
        """Return the seconds of reduce-scatters or all-gathers of `total_bytes` in all (Thakur et al. 2005, ring).

        Every rank sends (n − 1)/n of the bytes. Across nodes, the ranks of a domain share one ring and their links to
        the network add up; every operation goes through all domains.
        """
        if self.size == 1:
            return 0.0
        bandwidth = self.link_bytes_s
        if self.size > self.neighbours:
            bandwidth = min(bandwidth, self.network_bytes_s * self.neighbours)
        latency_s = operations * (self.size / self.neighbours - 1) * self.hop_us / 1e6
        return total_bytes * (self.size - 1) / self.size / bandwidth + latency_s

    def exchange_s(self, total_bytes: float) -> float:
        """Return the seconds of an all-to-all in which every rank sends `total_bytes`, its own part included."""
        inside = total_bytes * (self.neighbours - 1) / self.size / self.link_bytes_s
        outside = total_bytes * (self.size - self.neighbours) / self.size / self.network_bytes_s
        return max(inside, outside)

    def send_s(self, total_bytes: float) -> float:
        """Return the seconds of a message to the next rank."""
        is_inside = self.size <= self.neighbours
        return total_bytes / (self.link_bytes_s if is_inside else self.network_bytes_s)
