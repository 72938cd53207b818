"""What goes wrong: a file that is no trace, a schedule that the run never reaches."""


class TraceError(ValueError):
    """A file or folder that cannot be read as a torch.profiler trace; the message says where and why."""


class ScheduleError(ValueError):
    """A profiling window that the run does not reach; the message shows the arithmetic."""
