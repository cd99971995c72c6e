"""A million hostile inputs over all parsers and file formats, in processes with bounded memory.

Every input on which a parser fails is kept in tests/corpus/crashes, where every later case may begin with it.

`FUZZ_CASES=10000 FUZZ_SEED=7 FUZZ_MINUTES=25 pytest -s tests/endurance/test_fuzz.py`
"""

import json
import os
import subprocess
import sys
import time

from tests.hostile.fuzz_all import TARGETS

CASES = int(os.environ.get("FUZZ_CASES", "1000000"))
SEED = int(os.environ.get("FUZZ_SEED", str(int(time.time()))))
MAX_MINUTES = int(os.environ.get("FUZZ_MINUTES", "25"))
PROGRAM = """
import collections, hashlib, json, random, sys, time
from tests.hostile.fuzz import CORPUS, bounded_memory, bounded_time, find_failure, make_case
from tests.hostile.fuzz_all import TARGETS

share, shares, cases, seed, minutes = map(int, sys.argv[1:])
CRASHES = CORPUS / "crashes"
CRASHES.mkdir(exist_ok=True)
until = time.monotonic() + 60 * minutes
failures, count, slowest = collections.Counter(), 0, (0.0, "")
names = list(TARGETS)[share::shares]
with bounded_time(), bounded_memory():
    for number, name in enumerate(names):
        end = time.monotonic() + (until - time.monotonic()) / (len(names) - number)
        target, samples, source = TARGETS[name], TARGETS[name].samples(), random.Random(f"{seed} {name}")
        for _ in range(cases // len(TARGETS) + 1):
            if time.monotonic() > end:
                break
            data = make_case(samples, source)
            began = time.process_time()
            failure = find_failure(target, data)
            slowest = max(slowest, (time.process_time() - began, name))
            count += 1
            if failure:
                failures[f"{name}: {failure} on {data[:80]!r}"] += 1
                digest = hashlib.sha256(data).hexdigest()[:12]
                CRASHES.joinpath(f"{name.replace(' ', '-').replace(',', '')}-{digest}.bin").write_bytes(data)
print(json.dumps({"count": count, "slowest": slowest, "failures": failures.most_common(20)}))
"""


def test_a_million_inputs_raise_only_documented_errors() -> None:
    shares = os.cpu_count() or 1
    began = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(share), str(shares), str(CASES), str(SEED), str(MAX_MINUTES)],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in range(shares)
    ]
    results = [json.loads(process.communicate(timeout=60 * MAX_MINUTES + 120)[0]) for process in processes]
    count = sum(result["count"] for result in results)
    slowest = max(tuple(result["slowest"]) for result in results)
    print(
        f"\nseed {SEED}: {count} inputs over {len(TARGETS)} targets in {(time.monotonic() - began) / 60:.1f} minutes; "
        f"slowest {slowest[0]:.2f} s ({slowest[1]})"
    )
    assert [failure for result in results for failure in result["failures"]] == []
    assert count >= CASES
