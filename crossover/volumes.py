"""How large the root volumes of instances are, in GB: the stacks make them, the reports price them."""

DATABASE_GB = 30  # Redis hosts; gp3 gives 125 MB/s at any size, which every write reaches before it is acknowledged
PEER_GB = 20  # torch and its packages take a quarter of it
GPU_GB = 100  # the Deep Learning image asks for it
