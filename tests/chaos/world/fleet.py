"""Instances and their programs: booted, started again after a failure, replaced when they are taken, and gone once they are through.

As cdk/boot/program.sh sets the service up: restarted five seconds after a failure, at most so often in an hour, then off the fleet.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.chaos.world.kernel import Kernel, Process, Signal

RESTART_S, BURST = 5.0, 4


@dataclass
class VirtualInstance:
    """One instance of the fleet. `process`: the program that runs on it at present, None before its start."""

    number: int
    service: Process
    process: Process | None = None


@dataclass
class VirtualFleet:
    """An Auto Scaling group. `program(process)`: returns the function that a process of an instance runs; `boot_s(number)`: returns the
    seconds from the start of the instance with that number to its program's; `crashes`: errors with which programs ended.
    """

    kernel: Kernel
    program: Callable[[Process], Callable[[], object]]
    boot_s: Callable[[int], float]
    capacity: int = 0
    instances: dict[int, VirtualInstance] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)
    crashes: list[BaseException] = field(default_factory=list)
    _made: int = 0

    def resize(self, capacity: int) -> None:
        """Set the group's capacity: end instances beyond it, start missing ones."""
        self.capacity = capacity
        for number in sorted(self.instances)[capacity:]:
            self._end(number)
        self._fill()

    def take(self, number: int) -> None:
        """End a spot instance; the group starts another one with its number."""
        if number in self.instances:
            self._end(number)
            self._fill()

    def _end(self, number: int) -> None:
        """End the instance with that number and its program."""
        instance = self.instances.pop(number)
        if instance.process is not None:
            instance.process.kill()
        instance.service.kill()
        self.changed.set()

    def _fill(self) -> None:
        """Start instances until there are as many as the group's capacity."""
        numbers = (number for number in range(self.capacity + len(self.instances)) if number not in self.instances)
        while len(self.instances) < self.capacity:
            number, self._made = next(numbers), self._made + 1
            service = Process(self.kernel, f"instance {self._made}", of_the_world=True)
            self.instances[number] = VirtualInstance(number, service)
            self.kernel.spawn(partial(self._live, self.instances[number]), process=service, name="service")

    def _live(self, instance: VirtualInstance) -> None:
        """Run one instance: boot, start its program, restart the program after failures (at most BURST starts), then end for good."""
        self.kernel.sleep(self.boot_s(instance.number))
        for start in range(1, BURST + 1):
            process = instance.process = Process(self.kernel, f"{instance.service.name}, start {start}")
            process.role = f"program {instance.number}"
            task = self.kernel.spawn(self.program(process), process=process, name="main")
            self.kernel.wait(task.ended)
            if task.failure is None:
                break
            if process.alive:
                self.crashes.append(task.failure)
                process.kill()  # systemd ends what is left of the service
            self.kernel.sleep(RESTART_S)
        self.capacity -= 1
        del self.instances[instance.number]
        self.changed.set()
