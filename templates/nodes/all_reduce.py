"""What `opsctl test-nodes` runs on a node: one process for each device, in Python 3.8 or later with torch.

python - '{"seconds": 30, "megabytes": 64}'                         alone: allocate on every device, multiply there
python - '{..., "rank": 0, "world": 4, "master": "node001", "port": 29555, "devices": 8}'     together: all-reduce

It prints JSON, one object a line: `begun` as soon as torch is there, then what it found or the `error`.
"""

import sys

sys.path[:] = [place for place in sys.path if place]  # nothing of the working directory; `-P` came with Python 3.11

import json
import os
import signal
import time
from datetime import timedelta


def say(**what):
    print(json.dumps(what), flush=True)


def device_of(torch, local):
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def alone(torch, asked):
    """Every device holds a large tensor and multiplies it right."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for local in range(max(1, devices)):
        device = device_of(torch, local)
        held = torch.ones(asked["megabytes"] * 2**18, device=device)
        side = torch.ones(512, 512, device=device)
        if float(held.sum(dtype=torch.float64)) != held.numel() or float((side @ side)[0, 0]) != 512:
            raise ArithmeticError(f"device {local} reckons wrong")
    say(devices=devices, torch=torch.__version__)


def together(torch, asked, local):
    """Sum a tensor over all ranks; the bandwidth is that of NCCL's tests: size / time x 2(n-1)/n."""
    import torch.distributed as dist

    device, number = device_of(torch, local), max(1, asked["devices"])
    ranks, rank = asked["world"] * number, asked["rank"] * number + local
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{asked['master']}:{asked['port']}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=asked["seconds"]),
    )
    given = torch.ones(asked["megabytes"] * 2**18, device=device)
    times = []
    for _ in range(4):
        given.fill_(1.0)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(given)
        total = float(given[-1])  # waits for the device
        times.append(time.perf_counter() - started)
        if total != ranks:
            raise ArithmeticError(f"the sum over {ranks} ranks came out as {total:g}")
    dist.barrier()
    if local == 0:
        say(seconds=min(times), gigabytes_per_s=given.numel() * 4 / min(times) * 2 * (ranks - 1) / ranks / 1e9)


def run(asked, local):
    try:
        import torch

        if local == 0:
            say(begun=True)
        if "rank" in asked:
            together(torch, asked, local)
        else:
            alone(torch, asked)
    except BaseException as error:
        first = str(error).strip().split("\n")[0][:300]
        say(error=f"{type(error).__name__}: {first}")
        return 1
    return 0


def main():
    asked = json.loads(sys.argv[1])
    # Whatever hangs: the default action of the signal ends it, also in the middle of a driver's call.
    signal.alarm(int(asked["seconds"] + asked.get("start_seconds", 60)))
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    if asked.get("interface"):
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = asked["interface"]
    children = []
    for local in range(1, asked.get("devices", 0)):
        child = os.fork()
        if child == 0:
            signal.alarm(int(asked["seconds"] + asked.get("start_seconds", 60)))
            os._exit(run(asked, local))
        children.append(child)
    code = run(asked, 0)
    for child in children:
        code |= 1 if os.waitpid(child, 0)[1] else 0
    sys.stdout.flush()
    os._exit(code)


main()
