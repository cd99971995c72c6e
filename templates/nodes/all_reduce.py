"""The program that `opsctl test-nodes` runs on a node: one process a device, Python 3.8 or later with torch.

Alone, allocate and multiply on every device:
    python - '{"timeout_s": 30, "size_mib": 64}'
Together, all-reduce over the ranks of a group:
    python - '{..., "rank": 0, "world": 4, "master": "node001", "port": 29555, "devices": 8}'

The output is JSON, one object a line: `begun` once torch is imported, then the results or the `error`.
"""

import sys

sys.path[:] = [path for path in sys.path if path]  # no imports from the working directory; `-P` needs Python 3.11

import json
import os
import signal
import time
from datetime import timedelta

MAX_ERROR_CHARS = 300
REPEATS = 4


def print_fields(**fields):
    print(json.dumps(fields), flush=True)


def get_device(torch, local_rank):
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def test_alone(torch, options):
    """Allocate a large tensor on every device and multiply matrices there. Raises ArithmeticError."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for local_rank in range(max(1, devices)):
        device = get_device(torch, local_rank)
        tensor = torch.ones(options["size_mib"] * 2**18, device=device)
        matrix = torch.ones(512, 512, device=device)
        if float(tensor.sum(dtype=torch.float64)) != tensor.numel() or float((matrix @ matrix)[0, 0]) != 512:
            raise ArithmeticError(f"device {local_rank} computes wrong results")
    print_fields(devices=devices, torch=torch.__version__)


def test_together(torch, options, local_rank):
    """Sum a tensor over all ranks. Raises ArithmeticError.

    Bandwidth as in NCCL's tests (busbw): size / time x 2(n-1)/n.
    """
    import torch.distributed as dist

    device = get_device(torch, local_rank)
    ranks_per_node = max(1, options["devices"])
    ranks = options["world"] * ranks_per_node
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{options['master']}:{options['port']}",
        rank=options["rank"] * ranks_per_node + local_rank,
        world_size=ranks,
        timeout=timedelta(seconds=options["timeout_s"]),
    )
    tensor = torch.ones(options["size_mib"] * 2**18, device=device)
    times_s = []
    for _ in range(REPEATS):
        tensor.fill_(1.0)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        total = float(tensor[-1])  # waits for the device
        times_s.append(time.perf_counter() - started)
        if total != ranks:
            raise ArithmeticError(f"the sum over {ranks} ranks is {total:g}")
    dist.barrier()
    if local_rank == 0:
        size_bytes = tensor.numel() * 4
        bandwidth = size_bytes / min(times_s) * 2 * (ranks - 1) / ranks / 1e9
        print_fields(seconds=min(times_s), gigabytes_per_s=bandwidth)


def run(options, local_rank):
    """Run the test for one device. Return the exit code."""
    try:
        import torch

        if local_rank == 0:
            print_fields(begun=True)
        if "rank" in options:
            test_together(torch, options, local_rank)
        else:
            test_alone(torch, options)
    except BaseException as error:
        first_line = str(error).strip().split("\n")[0][:MAX_ERROR_CHARS]
        print_fields(error=f"{type(error).__name__}: {first_line}")
        return 1
    return 0


def set_alarm(options):
    """End this process after its time limit. SIGALRM's default action also ends a process inside a driver call."""
    signal.alarm(int(options["timeout_s"] + options.get("start_timeout_s", 60)))


def main():
    options = json.loads(sys.argv[1])
    set_alarm(options)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    if options.get("interface"):
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = options["interface"]
    children = []
    for local_rank in range(1, options.get("devices", 0)):
        child = os.fork()
        if child == 0:
            set_alarm(options)  # a forked process has no alarm
            os._exit(run(options, local_rank))
        children.append(child)
    code = run(options, 0)
    for child in children:
        code |= 1 if os.waitpid(child, 0)[1] else 0
    sys.stdout.flush()
    os._exit(code)


main()
