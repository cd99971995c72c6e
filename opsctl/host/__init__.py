"""The local machine: clocks, processes, threads with deadlines, disk usage."""
