# repeak itself. Two targets: `cluster` for Ray nodes, MLflow and jobs; `orchestrator`, the default, for the command.
#   docker build -f docker/orchestrator.Dockerfile -t repeak:0.1.0 .
#   docker build -f docker/orchestrator.Dockerfile --target cluster -t repeak-cluster:0.1.0 .
ARG PYTHON_VERSION=3.12.12
FROM python:${PYTHON_VERSION}-slim-bookworm AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY search_spaces search_spaces
COPY trackers trackers
COPY orchestrator orchestrator
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim-bookworm AS base
COPY requirements.lock /tmp/requirements.lock
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.lock
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl \
    && useradd --create-home --uid 10001 repeak \
    && install -d -o repeak -g repeak /data
# The third keeps the GPUs visible to a driver that Ray gave none; the fourth keeps engines at normal priority.
ENV REPEAK_HOME=/data HF_HOME=/data/huggingface \
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
VOLUME /data

FROM base AS cluster
# Compilers and libraries are those of the engine image: engines run on these nodes. wget is KubeRay's probe, rsync
# the cluster launcher's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev libgomp1 libnuma1 rsync wget \
    && rm -rf /var/lib/apt/lists/*
# What a cluster needs beyond requirements.lock: Ray's dashboard and jobs, MLflow's driver for PostgreSQL.
COPY docker/cluster.lock /tmp/cluster.lock
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.lock -r /tmp/cluster.lock
USER 10001
WORKDIR /home/repeak
CMD ["repeak", "--help"]

FROM base AS orchestrator
USER 10001
WORKDIR /home/repeak
ENTRYPOINT ["repeak"]
CMD ["--help"]
