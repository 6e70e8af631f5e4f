# shellcheck shell=bash
# Every job of launch/slurm sources this before it does anything: it holds all that is this site's and no
# job's. Change it here, or keep a copy elsewhere and name it in DEEPNET_SITE. Account, partition and the
# like are sbatch's (`sbatch --account=... --partition=...`, or SBATCH_ACCOUNT and SBATCH_PARTITION in your profile).

# The program, as all nodes see it.
# shellcheck disable=SC2034  # for run.sh
deepnet=${DEEPNET_PROGRAM:-$DEEPNET_HOME/build/release/deepnet}

# Environment modules that it needs.
# module purge
# module load gcc openmpi cuda nccl

# The container that it runs in, with the folders that it sees; each rank is started in one of its own.
# container=(apptainer exec --nv --bind "$DEEPNET_HOME,/scratch" "$HOME/deepnet.sif")
# shellcheck disable=SC2034
container=()

# The command that starts the ranks; default: srun, by PMIx where Slurm has it, else by TCP. mpirun is for MPI's own way over a fast
# network where Slurm has no PMIx.
# launcher=(mpirun)

# The network: which interfaces MPI, NCCL and TCP take. Left alone, they choose.
# export OMPI_MCA_btl_tcp_if_include=ib0 OMPI_MCA_oob_tcp_if_include=ib0
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# How often in a row a job goes back into the queue after it lost a rank or one was stuck (codes 8 and 9).
DEEPNET_RETRIES=${DEEPNET_RETRIES:-3}

# The folder of the ranks' own logs; default: beside the job's log.
# DEEPNET_LOG_DIR=/scratch/$USER/logs
