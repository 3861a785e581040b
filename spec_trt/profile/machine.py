"""The machine that is measured, in words."""

import os
import platform
import re
import resource
from pathlib import Path

import torch

__all__ = ["machine_line", "peak_memory_bytes"]


def machine_line(device: torch.device) -> str:
    """The processor that runs the engine, with the number of cores that this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {len(os.sched_getaffinity(0))} cores"


def _processor() -> str:
    """The CPU's name, as Linux knows it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory that this process has had so far; on a GPU, what is taken of its memory now, by all processes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
