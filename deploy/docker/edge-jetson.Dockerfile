# syntax=docker/dockerfile:1
# The daemon on a Jetson with JetPack 6, llama.cpp on its GPU: deploy/docker/build.sh edge-jetson --load
# JetPack 6 has Python 3.10, and 3.11 is needed: uv, itself held by its hash, installs the CPython that it knows,
# whose hash it knows, too. That one is linked against nothing of the system but glibc 2.17.
ARG JETPACK_DIGEST
ARG L4T_CUDA_DIGEST

FROM nvcr.io/nvidia/l4t-jetpack:r36.4.0@${JETPACK_DIGEST} AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ gcc python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir --require-hashes -r deploy/locks/jetson-python.txt \
    && /opt/uv/bin/uv python install --install-dir /opt/python --no-bin 3.12 \
    && ln -s /opt/python/cpython-3.12*/bin/python3.12 /opt/python/python3
# 87 is Orin's GPU; the only one that JetPack 6 runs on.
ARG CUDA_ARCHITECTURES=87
ENV PATH=/usr/local/cuda/bin:$PATH
RUN PYTHON=/opt/python/python3 CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES}" CMAKE_BUILD_PARALLEL_LEVEL=2 \
    deploy/docker/steps.sh build edge-jetson /opt/forerun

FROM nvcr.io/nvidia/l4t-cuda:12.6.11-runtime@${L4T_CUDA_DIGEST}
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="forerun-edge-jetson" \
      org.opencontainers.image.description="Forerun's edge daemon for JetPack 6" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/python /opt/python
COPY --from=build /opt/forerun /opt/forerun
COPY deploy/sbom/edge.cdx.json /usr/share/forerun/sbom.cdx.json
ENV PATH=/opt/forerun/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    XDG_STATE_HOME=/tmp/state \
    XDG_DATA_HOME=/tmp/data \
    XDG_CONFIG_HOME=/tmp/config \
    XDG_CACHE_HOME=/tmp/cache \
    CUDA_CACHE_PATH=/tmp/cuda
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=3); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["forerun", "edge"]
CMD ["--draft", "/models/draft.gguf", "--listen", "0.0.0.0:8080", "--gpu-layers", "-1"]
