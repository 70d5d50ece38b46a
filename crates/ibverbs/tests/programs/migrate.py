"""Moves an idle virtual machine to a QEMU that waits for it, by `migrate rdma:`, and looks at what arrived.

migrate.py SCRATCH ADDRESS PORT PIN

The other QEMU is asked at that address and port, and gets the machine by RDMA at the next port. PIN: `on` registers all memory at first, `off` a megabyte at a time. What the machine
has at 32 MB, where no firmware puts anything, must be there afterwards, byte for byte.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time

scratch, address, port, pin = sys.argv[1:]
rdma = f"rdma:{address}:{int(port) + 1}"
AT, SIZE = 32 << 20, 3 << 20


class Monitor:
    """QEMU's machine protocol, on a socket."""

    def __init__(self, connection):
        self.commands, self.answers = connection.makefile("w"), connection.makefile("r")
        assert "QMP" in self.read()
        self.ask("qmp_capabilities")

    def read(self):
        line = self.answers.readline()
        assert line, "QEMU is gone"
        return json.loads(line)

    def ask(self, command, **arguments):
        self.commands.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.commands.flush()
        while True:
            answer = self.read()
            if "return" in answer:
                return answer["return"]
            # Events come in between.
            assert "event" in answer, f"{command}: {answer}"

    def until(self, command, wanted):
        while True:
            answer = self.ask(command)
            status = answer.get("status")
            if status == wanted:
                return answer
            assert status not in ("failed", "cancelled", "guest-panicked"), answer
            time.sleep(0.02)


pattern = os.path.join(scratch, f"pattern-{pin}")
with open(pattern, "wb") as file:
    file.write(random.Random(7).randbytes(SIZE))
# Not on its standard output, on which it says which device it uses.
monitor = socket.socket(socket.AF_UNIX)
monitor.bind(os.path.join(scratch, f"qmp-{pin}"))
monitor.listen()
line = f"qemu-system-x86_64 -nodefaults -display none -accel tcg -m 64 -qmp unix:{scratch}/qmp-{pin}"
loader = f"loader,file={pattern},addr={AT},force-raw=on"
source = subprocess.Popen([*line.split(), "-device", loader])
here = Monitor(monitor.accept()[0])
there = Monitor(socket.create_connection((address, int(port))))

capabilities = [{"capability": "rdma-pin-all", "state": pin == "on"}]
for side in (here, there):
    side.ask("migrate-set-capabilities", capabilities=capabilities)
# It listens when this is answered.
there.ask("migrate-incoming", uri=rdma)
here.ask("migrate", uri=rdma)
moved = here.until("query-migrate", "completed")
there.until("query-status", "running")
arrived = os.path.join(scratch, f"arrived-{pin}")
there.ask("pmemsave", val=AT, size=SIZE, filename=arrived)
with open(pattern, "rb") as before, open(arrived, "rb") as after:
    assert before.read() == after.read(), "the machine's memory is not what it was"
print("moved", moved["ram"]["transferred"], "bytes, all of them right")
for side in (there, here):
    try:
        side.ask("quit")
    except (ConnectionError, AssertionError):
        # It may not have the time to answer.
        pass
sys.exit(source.wait())
