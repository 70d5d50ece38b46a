"""What an MPI program does, on as many ranks as mpirun starts: messages around a ring, a sum, and one-sided writes."""
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size


def pattern(of, length):
    return bytearray((i * 7 + of) & 255 for i in range(length))


# Eager messages, and such as are asked for first.
for length in (0, 1, 64, 4096, 100_000, 1_000_000):
    got = bytearray(length)
    world.Sendrecv([pattern(rank, length), MPI.BYTE], right, recvbuf=[got, MPI.BYTE], source=left)
    assert got == pattern(left, length), length

assert world.allreduce(rank + 1) == size * (size + 1) // 2

window = MPI.Win.Allocate(4096, comm=world)
window.Fence()
window.Put([pattern(rank, 1000), MPI.BYTE], right)
window.Fence()
assert window.tomemory()[:1000] == pattern(left, 1000)
got = bytearray(1000)
window.Fence()
window.Get([got, MPI.BYTE], right)
window.Fence()
assert got == pattern(rank, 1000)
window.Free()

# Everybody has come here.
if all(world.allgather(True)) and rank == 0:
    print(f"{size} ranks were right", flush=True)
