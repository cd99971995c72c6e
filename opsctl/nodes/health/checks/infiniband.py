"""Check network ports: active ports stay active and fast, and error counters do not rise above the baseline.

The expected number of ports and their rate are those of the site's settings, of the node's history, or of the majority
of its kind. A slower rate is evidence: a cable or a transceiver has lost lanes (AzNHC check_hw_ib, gcm check-ibstat).
"""

from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration
from opsctl.nodes.health.check_results import Results, degraded, faulty, note, unknown
from opsctl.nodes.health.node_state import CheckInput, NodeSnapshot, Port
from opsctl.nodes.health.usual_hardware import PORTS, leave_out_ports, rate_of, select_active_ports

DAMAGE_COUNTERS = ("link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors")
"""Counters of which any rise is evidence."""
MAX_RATES_PER_S: dict[str, float] = read_package_table("nodes/health/checks/port_rates.toml")
"""A faster rise is a note. The thresholds are NVSentinel's."""
REMEDY = "check the cable and the port"


def infiniband(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    prior, site = check_input.prior, check_input.site
    expected = site.ib_ports or check_input.usual.values.get(PORTS, 0)
    section = snapshot.section("infiniband")
    if section.code != 0:
        if prior.ports or expected:
            yield unknown(f"/sys {section.why}")
        return
    watched = leave_out_ports(prior.ports, site.ib_ignore)
    down = list(_find_inactive(snapshot, watched))
    yield from down
    active = select_active_ports(snapshot, site.ib_ignore)
    if not down and len(active) < expected:
        whose = "the settings name" if site.ib_ports else "most nodes of this kind have"
        yield faulty(f"{len(active)} active ports, {whose} {expected:g}", REMEDY)
    passed_s = max(1.0, snapshot.at.timestamp() - prior.ports_at) if prior.ports_at else 1.0
    for name, port in active.items():
        if name in watched:
            yield from _check_counters(name, watched[name], port, passed_s)
        yield from _check_rate(name, port, check_input)


def _find_inactive(snapshot: NodeSnapshot, watched: dict[str, Port]) -> Results:
    for name in watched:
        now = snapshot.ports.get(name)
        if now is None or now.state != "ACTIVE":
            yield faulty(f"{name} was active and is {now.state if now else 'gone'}", REMEDY)


def _check_rate(name: str, port: Port, check_input: CheckInput) -> Results:
    before = check_input.prior.ports.get(name)
    learnt = max((before.rate_gbps if before else 0) or 0, check_input.usual.values.get(rate_of(name), 0))
    expected = check_input.site.ib_rate_gbps or learnt
    if port.rate_gbps and port.rate_gbps < expected:
        yield degraded(f"{name} runs at {port.rate_gbps:g} Gb/s, expected {expected:g}", REMEDY)


def _check_counters(name: str, before: Port, now: Port, passed_s: float) -> Results:
    """Yield the counters that rose too much. A counter that fell has been reset and is no evidence."""
    rises = {
        counter: now.counters[counter] - old for counter, old in before.counters.items() if counter in now.counters
    }
    for counter in DAMAGE_COUNTERS:
        rise = rises.get(counter, 0)
        if rise > 0:
            yield degraded(f"{name}: {counter} rose by {rise} since the baseline", REMEDY)
    for counter, max_rate in MAX_RATES_PER_S.items():
        rise = rises.get(counter, 0)
        if rise > max_rate * passed_s:
            yield note(f"{name}: {counter} rose by {rise} in {format_duration(passed_s)}")
